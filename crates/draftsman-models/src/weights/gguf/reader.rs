//! A cursor over the bytes of a GGUF file that never believes a length before comparing it with what is left.

use std::path::Path;

use crate::error::ModelError;
use crate::weights::truncation::TRUNCATED;

/// Array elements of the whole metadata that are read: the largest tokenizers need about 1.5 million, and an element
/// in memory is wider than in the file.
const MAX_ARRAY_ELEMENTS: usize = 8 << 20;

pub(super) struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    elements_left: usize,
    /// What is being read, for messages.
    pub(super) reading: String,
}

impl<'a> Reader<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, at: 0, elements_left: MAX_ARRAY_ELEMENTS, reading: "the header".into() }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn error(&self, what: impl std::fmt::Display) -> ModelError {
        ModelError::malformed(self.path, format!("{}: {what} (byte {})", self.reading, self.at), TRUNCATED)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], ModelError> {
        if len > self.remaining() {
            return Err(self.error(format!("needs {len} bytes more, the file has {} left", self.remaining())));
        }
        let slice = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(slice)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let slice = self.take(N)?;
        // `take` gave exactly N bytes.
        Ok(*slice.first_chunk::<N>().unwrap_or(&[0; N]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of things that take at least `min_bytes` each: refused when the file could not hold that many.
    pub(super) fn count(&mut self, min_bytes: usize) -> Result<usize, ModelError> {
        let count = self.u64()?;
        if count > (self.remaining() / min_bytes.max(1)) as u64 {
            return Err(self.error(format!(
                "claims {count} entries, the rest of the file ({} bytes) cannot hold them",
                self.remaining()
            )));
        }
        Ok(count as usize)
    }

    /// Length of a metadata array, taken from what all arrays together may hold.
    pub(super) fn array_len(&mut self, min_bytes: usize) -> Result<usize, ModelError> {
        let count = self.count(min_bytes)?;
        match self.elements_left.checked_sub(count) {
            Some(left) => self.elements_left = left,
            None => {
                return Err(
                    self.error(format!("arrays of more than {MAX_ARRAY_ELEMENTS} elements together are not read"))
                );
            }
        }
        Ok(count)
    }

    pub(super) fn string(&mut self) -> Result<&'a str, ModelError> {
        let len = self.count(1)?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|e| self.error(format!("a string is not UTF-8: {e}")))
    }
}
