//! A file that ends before its tensors do: one message, however many tensors are gone.

use std::path::Path;

use crate::error::{ModelError, Problems};

pub(super) const TRUNCATED: &str =
    "the file is truncated or damaged; download or copy it again and compare its checksum";

/// Tensors found to end beyond the file.
#[derive(Default)]
pub(super) struct Truncation {
    count: usize,
    /// Where the first of them, in file order, ends, and its name.
    first: Option<(u64, String)>,
    last_end: u64,
}

impl Truncation {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Notes a tensor that ends at byte `end` of the file, which is beyond it.
    pub(super) fn add(&mut self, name: &str, end: u64) {
        self.count += 1;
        self.last_end = self.last_end.max(end);
        if self.first.as_ref().is_none_or(|(first, _)| end < *first) {
            self.first = Some((end, name.to_string()));
        }
    }

    /// Ends the check of a header: everything found, or nothing.
    pub(super) fn finish(self, path: &Path, len: usize, mut problems: Problems) -> Result<(), ModelError> {
        if let Some((end, name)) = self.first {
            let others = match self.count - 1 {
                0 => String::new(),
                more => format!(" and {more} more tensors end beyond the file, the last at byte {}", self.last_end),
            };
            let what = format!("the file is truncated: it has {len} bytes, tensor `{name}` ends at byte {end}{others}");
            if problems.is_empty() {
                return Err(ModelError::malformed(path, what, TRUNCATED));
            }
            problems.push(what);
        }
        problems.into_model_result(path)
    }
}
