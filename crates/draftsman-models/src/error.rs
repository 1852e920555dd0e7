//! What can go wrong with model files and inputs: which file, which key, what was found, what to do.

use std::fmt;
use std::path::{Path, PathBuf};

use draftsman_kernels::KernelError;

/// Everything found wrong in one check, reported together rather than one problem a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl Problems {
    /// Adds one problem.
    pub fn push(&mut self, problem: impl Into<String>) {
        self.0.push(problem.into());
    }

    /// True when nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `Ok` when nothing was found, else itself as the error.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// As [`Problems::into_result`], as a [`ModelError`] that names the file or folder that was checked.
    pub fn into_model_result(self, path: &Path) -> Result<(), ModelError> {
        self.into_result().map_err(|problems| ModelError::Problems { path: path.to_path_buf(), problems })
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A shard with every name wrong would otherwise scroll the useful part away.
        const SHOWN: usize = 20;
        match self.0.len() {
            1 => return f.write_str(&self.0[0]),
            n => write!(f, "{n} problems")?,
        }
        for problem in self.0.iter().take(SHOWN) {
            write!(f, "\n  - {problem}")?;
        }
        if self.0.len() > SHOWN {
            write!(f, "\n  - and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file breaks the rules of its own format (truncated, hostile, not that format at all).
    #[error("{}: {what}\n  hint: {hint}", path.display())]
    Malformed {
        /// File.
        path: PathBuf,
        /// The rule and where it broke.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A key of a configuration has a value that cannot be used.
    #[error("{}: `{key}`: {what}\n  hint: {hint}", path.display())]
    Config {
        /// File.
        path: PathBuf,
        /// Key, dots for nesting.
        key: String,
        /// What is wrong with the value.
        what: String,
        /// What to do.
        hint: String,
    },
    /// Several things wrong with one file or folder.
    #[error("{}: {problems}", path.display())]
    Problems {
        /// File or folder.
        path: PathBuf,
        /// All of them.
        problems: Problems,
    },
    /// The file is sound, but it holds something this version does not run.
    #[error("{}: {what}\n  hint: {hint}", path.display())]
    Unsupported {
        /// File or folder.
        path: PathBuf,
        /// What.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The weights would not fit.
    #[error(
        "{}: the weights need {need_gib:.2} GiB of memory and {have_gib:.2} GiB are free\n  hint: \
         load with a smaller dtype (--dtype bf16), or close other programs", path.display()
    )]
    Memory {
        /// File or folder.
        path: PathBuf,
        /// Needed, with the largest tensor while it is converted.
        need_gib: f64,
        /// Free.
        have_gib: f64,
    },
    /// A model argument that is neither a path nor a model's name.
    #[error("`{argument}`: {what}\n  hint: a model is a folder, a .gguf file, or org/name[@revision]")]
    BadModelArgument {
        /// What was given.
        argument: String,
        /// What is wrong with it.
        what: String,
    },
    /// A model that is neither here nor in the cache.
    #[error("`{argument}` is not here; looked for {}\n  hint: {hint}", paths(looked_in))]
    ModelNotFound {
        /// What was given.
        argument: String,
        /// Where it could have been.
        looked_in: Vec<PathBuf>,
        /// What to do.
        hint: String,
    },
    /// A hub did not give what was asked of it. No part of this holds a token or a password.
    #[error("{address}: {what}\n  hint: {hint}")]
    Download {
        /// Where from, without user and query.
        address: String,
        /// What happened.
        what: String,
        /// What to do.
        hint: String,
    },
    /// More positions than the model was made for.
    #[error(
        "the sequence needs {needed} positions, and the target's max_position_embeddings is \
         {max_positions}\n  hint: shorten the prompt or the number of new tokens"
    )]
    ContextTooLong {
        /// Cached plus new tokens.
        needed: usize,
        /// The model's limit.
        max_positions: usize,
    },
    /// A tap names a layer that does not exist.
    #[error(
        "layer id {layer} is out of range: the target has {num_layers} layers, ids 0..={}",
        num_layers.saturating_sub(1)
    )]
    LayerOutOfRange {
        /// The id asked for.
        layer: usize,
        /// Layers of the target.
        num_layers: usize,
    },
    /// A token that has no row in the embedding.
    #[error(
        "token id {id} at index {index} is outside the target's vocabulary of {vocab_size} rows\n  \
         hint: the ids come from another tokenizer"
    )]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Its index in the input.
        index: usize,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A cache that an earlier call filled only in its lower layers cannot serve the upper ones.
    #[error(
        "the cache holds {len} tokens in its first {filled} layers only, and this call runs \
         {needed} layers\n  hint: the earlier call asked for no logits and stopped after its last \
         tapped layer; use a new cache"
    )]
    CacheIncomplete {
        /// Cached tokens.
        len: usize,
        /// Layers that hold them.
        filled: usize,
        /// Layers this call runs.
        needed: usize,
    },
    /// A recurrent state cannot be taken back so far.
    #[error(
        "the cache cannot go back from {held} tokens to {len}: its gated delta layers keep the inputs of the last \
         forward only, at most {rows} rows, and reach back to {shortest}\n  hint: truncate to {shortest} or more, or to 0 \
         and run the tokens again"
    )]
    RollbackTooFar {
        /// Tokens asked for.
        len: usize,
        /// Fewest tokens that can be restored, besides none.
        shortest: usize,
        /// Tokens held.
        held: usize,
        /// Rows of a forward that are kept.
        rows: usize,
    },
    /// An input that no model could take.
    #[error("{0}")]
    InvalidInput(String),
    /// A device or kernel refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(" and ")
}

impl ModelError {
    /// Wraps an I/O error with its path.
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// A broken file.
    pub fn malformed(path: &Path, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_path_buf(), what: what.into(), hint: hint.into() }
    }

    /// A tensor that is asked for and not there.
    pub(crate) fn missing_tensor(path: &Path, name: &str) -> Self {
        Self::malformed(
            path,
            format!("tensor `{name}` is missing"),
            "the file belongs to another model, or its export was incomplete",
        )
    }

    /// A configuration key with an unusable value.
    pub fn config(path: &Path, key: impl Into<String>, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Config { path: path.to_path_buf(), key: key.into(), what: what.into(), hint: hint.into() }
    }

    /// Something this version does not run.
    pub fn unsupported(path: &Path, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unsupported { path: path.to_path_buf(), what: what.into(), hint: hint.into() }
    }
}
