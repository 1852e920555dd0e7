//! `org/name[@revision]`, with nothing in it that could leave the cache.

use crate::error::ModelError;

/// Longest organisation, name or revision.
const MAX_PART: usize = 128;
const DEFAULT_REVISION: &str = "main";

/// A model on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repo {
    /// As the user wrote it.
    pub(super) argument: String,
    pub(super) org: String,
    pub(super) name: String,
    /// A branch, tag or commit.
    pub(super) revision: String,
}

impl Repo {
    pub(super) fn parse(argument: &str) -> Result<Self, ModelError> {
        let bad = |what: &str| ModelError::BadModelArgument { argument: argument.to_string(), what: what.to_string() };
        let (id, revision) = match argument.split_once('@') {
            Some((id, revision)) => (id, revision),
            None => (argument, DEFAULT_REVISION),
        };
        let path_like = argument.starts_with(['/', '.', '~', '\\']) || argument.ends_with(".gguf");
        let Some((org, name)) = id.split_once('/').filter(|_| !path_like) else {
            return Err(bad("there is no such file or folder"));
        };
        for (part, what) in [(org, "organisation"), (name, "name"), (revision, "revision")] {
            // `--` separates the parts in the cache's folder names.
            if part.len() > MAX_PART || !is_plain(part) || (what != "revision" && part.contains("--")) {
                return Err(bad(&format!(
                    "there is no such file or folder, and {part:?} is no {what} of a model (letters, digits, `-`, `_` \
                     and `.`, neither `..` nor `/`)"
                )));
            }
        }
        Ok(Self {
            argument: argument.to_string(),
            org: org.to_string(),
            name: name.to_string(),
            revision: revision.to_string(),
        })
    }

    /// `org/name`
    pub(super) fn id(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }
}

/// A file or folder name that is one, on every system, and is not hidden.
pub(super) fn is_plain(part: &str) -> bool {
    let mut bytes = part.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !part.contains("..")
        && !part.ends_with('.')
}
