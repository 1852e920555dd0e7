//! From a model argument to a path: a local folder or file, or `org/name[@revision]` in the cache of Hugging Face.
//!
//! Nothing here touches the network but `download_model`, which exists with the feature `download` only and is called
//! only where the user asks for it.

mod cache;
#[cfg(feature = "download")]
mod download;
mod env;
mod repo;

use std::path::{Path, PathBuf};

use crate::error::ModelError;

use cache::Cache;
#[cfg(feature = "download")]
pub use download::{DownloadProgress, download_model};
pub use env::{HubEnv, Token};
use repo::Repo;

/// Finds what a model argument names: a path that exists, else a model in the cache.
pub fn resolve_model(argument: &str, env: &HubEnv) -> Result<PathBuf, ModelError> {
    let path = Path::new(argument);
    if !argument.is_empty() && path.exists() {
        return Ok(path.to_path_buf());
    }
    let repo = Repo::parse(argument)?;
    let cache = Cache::new(env, argument)?;
    match cache.snapshot(&repo)? {
        Some(folder) => Ok(folder),
        None => Err(not_found(&repo, &cache, env)),
    }
}

fn not_found(repo: &Repo, cache: &Cache, env: &HubEnv) -> ModelError {
    let name = &repo.argument;
    let mut looked_in = vec![PathBuf::from(name), cache.folder(repo)];
    let revisions = cache.revisions(repo);
    let hint = if !revisions.is_empty() {
        looked_in[1] = cache.snapshots(repo);
        format!("the cache holds other revisions of it: {}", revisions.join(", "))
    } else if env.offline {
        "HF_HUB_OFFLINE is set; without it, `--download` fetches the model".to_string()
    } else if cfg!(feature = "download") {
        format!("`--download` fetches it, and so does `hf download {}`", repo.id())
    } else {
        format!(
            "`hf download {}` fetches it, and so does `--download` in a build with the feature `download`",
            repo.id()
        )
    };
    ModelError::ModelNotFound { argument: name.clone(), looked_in, hint }
}
