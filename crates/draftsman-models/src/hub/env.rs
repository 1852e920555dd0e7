//! What the environment says about the hub and its cache.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The public hub.
const ENDPOINT: &str = "https://huggingface.co";

/// The variables that Hugging Face's own tools read. A plain value, so that tests and servers need no variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubEnv {
    /// Folder of the cache (`HF_HUB_CACHE`, else `HF_HOME/hub`); `None` where there is no home folder either.
    pub cache: Option<PathBuf>,
    /// `HF_HUB_OFFLINE`: nothing may be downloaded.
    pub offline: bool,
    /// `HF_TOKEN`, or what `hf auth login` left.
    pub token: Option<Token>,
    /// `HF_ENDPOINT`: a mirror of the hub.
    pub endpoint: String,
}

/// A secret that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps a secret, without the space around it; `None` when nothing is left.
    pub fn new(secret: &str) -> Option<Self> {
        let secret = secret.trim();
        (!secret.is_empty()).then(|| Self(secret.to_string()))
    }

    /// The secret itself, for the one header it belongs in.
    #[cfg(feature = "download")]
    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

impl HubEnv {
    /// Reads the variables of this process.
    pub fn from_process() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Reads variables through `get`; an empty one counts as not set.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let folder = |name: &str| get(name).map(PathBuf::from);
        let text = |name: &str| get(name).and_then(|value| value.into_string().ok());
        let user = folder("HOME").or_else(|| folder("USERPROFILE"));
        let home = folder("HF_HOME")
            .or_else(|| {
                Some(folder("XDG_CACHE_HOME").or_else(|| Some(user.as_ref()?.join(".cache")))?.join("huggingface"))
            })
            .map(|path| match (path.strip_prefix("~"), &user) {
                (Ok(rest), Some(user)) => user.join(rest),
                _ => path,
            });
        let cache = folder("HF_HUB_CACHE")
            .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(home.as_ref()?.join("hub")));
        let stored = || {
            let file = folder("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")))?;
            Token::new(&std::fs::read_to_string(file).ok()?)
        };
        Self {
            cache,
            offline: text("HF_HUB_OFFLINE")
                .is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())),
            token: text("HF_TOKEN").and_then(|secret| Token::new(&secret)).or_else(stored),
            endpoint: text("HF_ENDPOINT")
                .map_or_else(|| ENDPOINT.to_string(), |endpoint| endpoint.trim_end_matches('/').to_string()),
        }
    }
}
