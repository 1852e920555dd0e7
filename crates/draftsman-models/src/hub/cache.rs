//! The cache of Hugging Face's tools: `models--org--name/{refs, snapshots, blobs}`.

use std::path::{Path, PathBuf};

use super::env::HubEnv;
use super::repo::{Repo, is_plain};
use crate::error::ModelError;

/// A ref is a commit hash.
const MAX_REF_BYTES: u64 = 256;
/// Revisions listed in a message.
const SHOWN: usize = 5;

pub(super) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(super) fn new(env: &HubEnv, argument: &str) -> Result<Self, ModelError> {
        match &env.cache {
            Some(root) => Ok(Self { root: root.clone() }),
            None => Err(ModelError::ModelNotFound {
                argument: argument.to_string(),
                looked_in: vec![PathBuf::from(argument)],
                hint: "neither HF_HUB_CACHE, HF_HOME nor HOME says where the cache is".into(),
            }),
        }
    }

    /// Everything of one model.
    pub(super) fn folder(&self, repo: &Repo) -> PathBuf {
        self.root.join(format!("models--{}--{}", repo.org, repo.name))
    }

    pub(super) fn snapshots(&self, repo: &Repo) -> PathBuf {
        self.folder(repo).join("snapshots")
    }

    /// The file that says which commit a branch or tag is.
    pub(super) fn reference(&self, repo: &Repo) -> PathBuf {
        self.folder(repo).join("refs").join(&repo.revision)
    }

    /// The model folder of the revision, if it is there: files in it are links to blobs, which the system follows.
    pub(super) fn snapshot(&self, repo: &Repo) -> Result<Option<PathBuf>, ModelError> {
        let reference = self.reference(repo);
        let commit = match std::fs::metadata(&reference) {
            Ok(metadata) if metadata.is_file() => read_reference(&reference, metadata.len())?,
            // A commit needs no ref.
            _ => repo.revision.clone(),
        };
        let folder = self.snapshots(repo).join(commit);
        Ok(folder.is_dir().then_some(folder))
    }

    /// Names of the revisions that are there, a few of them.
    pub(super) fn revisions(&self, repo: &Repo) -> Vec<String> {
        let names = |folder: PathBuf| -> Vec<String> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_plain(name)).collect()
        };
        let folder = self.folder(repo);
        let mut found: Vec<String> = names(folder.join("refs"));
        if found.is_empty() {
            found = names(folder.join("snapshots"));
        }
        found.retain(|name| *name != repo.revision);
        found.sort();
        found.truncate(SHOWN);
        found
    }
}

fn read_reference(path: &Path, len: u64) -> Result<String, ModelError> {
    let bad =
        |what: String| ModelError::malformed(path, what, "the cache is damaged; delete this file and download again");
    if len > MAX_REF_BYTES {
        return Err(bad(format!("{len} bytes, a commit hash has 40")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| ModelError::io(path, e))?;
    let commit = text.trim();
    if is_plain(commit) { Ok(commit.to_string()) } else { Err(bad(format!("{commit:?} is no commit hash"))) }
}
