//! What can go wrong while evaluating.

use std::path::PathBuf;

use draftsman_contract::LayoutError;
use draftsman_decode::DecodeError;
use draftsman_models::ModelError;

/// An error of evaluation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line of a suite cannot be used.
    #[error("{}:{line}: {problem}\n  hint: {hint}", path.display())]
    Suite {
        /// The file.
        path: PathBuf,
        /// 1-based line.
        line: usize,
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A suite as a whole cannot be used.
    #[error("{}: {problem}\n  hint: {hint}", path.display())]
    SuiteFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// Validation data that the drafter cannot be judged on.
    #[error("validation document {document}: {problem}")]
    Validation {
        /// Index of the document.
        document: usize,
        /// What is wrong.
        problem: String,
    },
    /// Validation data as a whole.
    #[error("validation: {0}")]
    ValidationFile(String),
    /// An answer that is not the target's, or was given for another prompt.
    #[error("replay of `{id}`: {problem}")]
    Replay {
        /// The prompt.
        id: String,
        /// What is wrong.
        problem: String,
    },
    /// A layout was refused.
    #[error("validation document {document}: {source}")]
    Layout {
        /// Index of the document.
        document: usize,
        /// Why.
        source: LayoutError,
    },
    /// Draft blocks over a document were refused.
    #[error("document {document}: {source}")]
    Blocks {
        /// Index of the document.
        document: usize,
        /// Why.
        source: LayoutError,
    },
    /// From decoding.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// From the models.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A device failed while a result was read back.
    #[error("reading {what} from the device: {message}")]
    Device {
        /// Which tensor.
        what: &'static str,
        /// The framework's message.
        message: String,
    },
}
