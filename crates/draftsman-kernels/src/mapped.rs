//! Files in memory without reading them.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::KernelError;

/// A file mapped read-only. The bytes of a file that is written to while it is mapped change under the reader, and a
/// file cut short kills the process at the next access: [`MappedFile::check`] finds the second before it happens
/// where it can be seen.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps a file.
    pub fn open(path: &Path) -> Result<Self, KernelError> {
        let io = |source| KernelError::Io { path: path.to_owned(), source };
        let regular = |meta: &std::fs::Metadata| {
            let refused = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
            meta.is_file().then_some(()).ok_or_else(refused).map_err(io)
        };
        // Before opening: a pipe would be waited for.
        regular(&std::fs::metadata(path).map_err(io)?)?;
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        regular(&meta)?;
        // An empty mapping is an error on some systems; there is nothing to map either.
        let map = if meta.len() == 0 {
            None
        } else {
            // SAFETY: the mapping is read-only and only handed out as bytes, of which every value is valid. That the
            // file isn't changed meanwhile is the documented condition of this type.
            Some(unsafe { Mmap::map(&file) }.map_err(io)?)
        };
        Ok(Self { path: path.to_owned(), file, map })
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives back the memory that holds a copy of these bytes. They can be read again: the system fetches them from the
    /// file. A hint only, for those who read a large file once, piece by piece.
    pub fn release(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = &self.map
            && bytes.start < bytes.end
            && bytes.end <= map.len()
        {
            // SAFETY: the mapping is shared and read-only, so nothing written can be lost: the pages come back from the
            // file with the same bytes, under the same condition as all bytes of this type.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }

    /// An error if the file has become shorter than the mapping.
    pub fn check(&self) -> Result<(), KernelError> {
        let now = self.file.metadata().map_err(|source| KernelError::Io { path: self.path.clone(), source })?.len();
        let mapped = self.bytes().len() as u64;
        if now < mapped {
            return Err(KernelError::FileShrunk { path: self.path.clone(), mapped, now });
        }
        Ok(())
    }
}
