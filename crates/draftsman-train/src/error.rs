//! What can go wrong in training, each with the file, the key or the two values that disagree.

use std::io;
use std::path::{Path, PathBuf};

use draftsman_contract::LayoutError;
use draftsman_models::ModelError;

/// Every problem found in one recipe and its overrides, reported together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.source_name, .problems))]
pub struct RecipeError {
    /// The recipe's file name, or what stands for it.
    pub source_name: String,
    /// One line each: the key, what is wrong, and a hint.
    pub problems: Vec<String>,
}

fn list(source_name: &str, problems: &[String]) -> String {
    match problems {
        [one] => format!("recipe {source_name}: {one}"),
        many => {
            let lines: Vec<String> = many.iter().map(|problem| format!("\n  - {problem}")).collect();
            format!("recipe {source_name}: {} problems:{}", many.len(), lines.concat())
        }
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The recipe or an override is wrong.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A model could not be built, read, written or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Blocks could not be laid out.
    #[error("block layout: {0}")]
    Layout(#[from] LayoutError),
    /// The training data cannot be trained on.
    #[error("training data: {0}")]
    Data(String),
    /// A file or folder of the run could not be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as a verb.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A file of the run is not what it should be.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with a hint.
        problem: String,
    },
    /// The run folder cannot be used as asked.
    #[error("run folder {}: {problem}", path.display())]
    RunFolder {
        /// The run folder.
        path: PathBuf,
        /// Why, and what to do.
        problem: String,
    },
    /// A checkpoint belongs to another recipe, other data or another target.
    #[error("cannot resume from {}: a resumed run must be the same run\n{differences}", checkpoint.display())]
    Changed {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// One line a difference: what it was, what it is, why it matters.
        differences: String,
    },
    /// The loss or the gradient is not a number.
    #[error(
        "step {step}: {what} is {value}; nothing was saved for this step (hint: lower train.learning_rate, or check the data of this step)"
    )]
    NotFinite {
        /// The optimizer update that would have been made (counted from 1).
        step: usize,
        /// Loss, or gradient norm.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// A tensor could not be read back from its device.
    #[error("cannot read back {what}: {problem}")]
    ReadBack {
        /// Which tensor.
        what: String,
        /// The device's answer.
        problem: String,
    },
    /// The live check (evaluation during training) failed.
    #[error("validation at step {step}: {message}")]
    Check {
        /// Completed optimizer updates.
        step: usize,
        /// The check's own error.
        message: String,
    },
}

impl TrainError {
    /// For `map_err`: `path` and what was tried.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, action, source }
    }

    pub(crate) fn file(path: &Path, problem: impl Into<String>) -> Self {
        Self::File { path: path.to_path_buf(), problem: problem.into() }
    }
}
