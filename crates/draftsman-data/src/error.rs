//! What can be wrong with data, said so that it can be repaired.

use std::fmt;
use std::path::{Path, PathBuf};

/// All problems found in one file, up to a cap; the rest is counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProblemList {
    shown: Vec<String>,
    total: usize,
}

impl ProblemList {
    /// How many problems are spelled out.
    pub const CAP: usize = 20;

    /// Notes a problem.
    pub fn push(&mut self, problem: String) {
        self.total += 1;
        if self.shown.len() < Self::CAP {
            self.shown.push(problem);
        }
    }

    /// True if nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// How many problems were noted, those beyond the cap included.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The problems that are spelled out.
    pub fn shown(&self) -> &[String] {
        &self.shown
    }
}

impl fmt::Display for ProblemList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.shown.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        if self.total > self.shown.len() {
            write!(f, "\n… and {} more", self.total - self.shown.len())?;
        }
        Ok(())
    }
}

/// An error of this crate. The message names the file and the place in it, and says what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file can't be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Lines of a data file are wrong; each problem carries file and line.
    #[error("{problems}")]
    Problems {
        /// What is wrong, line by line.
        problems: ProblemList,
    },
    /// A data file holds no record.
    #[error("{}: no records; a data file holds one JSON object a line, with `messages` or with `input_ids` and `loss_mask`", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A tokenizer can't be built or used.
    #[error("{place}: {message}")]
    Tokenizer {
        /// The file or the metadata key.
        place: String,
        /// What is wrong, with a hint.
        message: String,
    },
    /// A chat template can't be compiled or rendered.
    #[error("chat template {name}{}: {message}", line.map(|l| format!(", line {l}")).unwrap_or_default())]
    Template {
        /// The template's name: its file or metadata key.
        name: String,
        /// The line in the template, where it is known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// An answer store doesn't fit what is to be written into it.
    #[error("{}: {message}", path.display())]
    Store {
        /// The store's file.
        path: PathBuf,
        /// What is wrong, with a hint.
        message: String,
    },
    /// An answer store is in use.
    #[error("{}: another process is writing this answer store; wait for it or choose another --out", path.display())]
    Locked {
        /// The store's file.
        path: PathBuf,
    },
}

impl DataError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn tokenizer(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Tokenizer { place: place.into(), message: message.into() }
    }

    pub(crate) fn store(path: &Path, message: impl Into<String>) -> Self {
        Self::Store { path: path.to_owned(), message: message.into() }
    }
}
