//! The run folder: who may use it, and what lies where.
//!
//! ```text
//! run/recipe.toml          resolved recipe; loads again
//! run/metrics.jsonl        one flat object a log line
//! run/checkpoints/step-00001000/
//! run/run.lock             held while a process trains
//! ```

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::TrainError;
use crate::files;

/// How a run folder may be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMode {
    /// It must not exist yet, or be empty.
    New,
    /// It must hold a run with a complete checkpoint.
    Resume,
    /// What an earlier run left in it is deleted.
    Overwrite,
}

/// Names this crate writes at the top of a run folder.
const RECIPE: &str = "recipe.toml";
const METRICS: &str = "metrics.jsonl";
const CHECKPOINTS: &str = "checkpoints";
const LOCK: &str = "run.lock";

/// A locked run folder.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    // Held open: closing releases the lock.
    _lock: File,
}

impl RunFolder {
    /// Checks that `path` may be entered as `mode` says, without changing anything.
    pub fn check(path: &Path, mode: RunMode) -> Result<(), TrainError> {
        let refuse = |problem: String| Err(TrainError::RunFolder { path: path.to_path_buf(), problem });
        let names = match fs::read_dir(path) {
            Ok(entries) => entries
                .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(TrainError::io(path, "list"))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(TrainError::io(path, "list")(error)),
        };
        match mode {
            RunMode::New if names.iter().any(|name| name != LOCK) => {
                refuse("is not empty (hint: --resume continues its run, --overwrite deletes it)".into())
            }
            RunMode::Resume if !names.iter().any(|name| name == RECIPE) => {
                refuse(format!("holds no run to resume: there is no {RECIPE} in it"))
            }
            RunMode::Overwrite => {
                let foreign: Vec<&String> = names.iter().filter(|name| !is_own(name)).collect();
                match foreign.first() {
                    Some(name) => refuse(format!(
                        "holds \"{name}\", which no run wrote: not deleted (hint: choose another folder)"
                    )),
                    None => Ok(()),
                }
            }
            RunMode::New | RunMode::Resume => Ok(()),
        }
    }

    /// Enters and locks the folder, creating or emptying it as `mode` says.
    pub fn open(path: &Path, mode: RunMode) -> Result<Self, TrainError> {
        Self::check(path, mode)?;
        fs::create_dir_all(path).map_err(TrainError::io(path, "create"))?;
        let lock_path = path.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(TrainError::io(&lock_path, "open"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(TrainError::RunFolder {
                    path: path.to_path_buf(),
                    problem: "is in use by another process".into(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(TrainError::io(&lock_path, "lock")(error)),
        }
        if mode == RunMode::Overwrite {
            let recipe = path.join(RECIPE);
            // The recipe goes first: a half-deleted folder must not look like a run.
            for name in [&recipe, &path.join(METRICS)] {
                if name.exists() {
                    fs::remove_file(name).map_err(TrainError::io(name, "delete"))?;
                }
            }
            let checkpoints = path.join(CHECKPOINTS);
            if checkpoints.exists() {
                fs::remove_dir_all(&checkpoints).map_err(TrainError::io(&checkpoints, "delete"))?;
            }
        }
        let checkpoints = path.join(CHECKPOINTS);
        fs::create_dir_all(&checkpoints).map_err(TrainError::io(&checkpoints, "create"))?;
        files::sync_folder(path)?;
        Ok(Self { path: path.to_path_buf(), _lock: lock })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `metrics.jsonl`.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    /// `checkpoints/`.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        checkpoints_in(&self.path)
    }

    /// Writes the resolved recipe.
    pub(crate) fn write_recipe(&self, toml: &str) -> Result<(), TrainError> {
        files::write_atomic(&recipe_in(&self.path), toml.as_bytes())
    }
}

/// The resolved recipe of a run.
#[must_use]
pub fn recipe_in(run: &Path) -> PathBuf {
    run.join(RECIPE)
}

/// The checkpoints of a run.
#[must_use]
pub fn checkpoints_in(run: &Path) -> PathBuf {
    run.join(CHECKPOINTS)
}

fn is_own(name: &str) -> bool {
    let base = name.strip_suffix(".tmp").unwrap_or(name);
    [RECIPE, METRICS, CHECKPOINTS, LOCK, "recipe", "metrics", "provenance.json", "log.txt"].contains(&base)
}
