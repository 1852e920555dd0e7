//! Downloads into the cache of Hugging Face's tools, so that either side finds what the other one fetched.
//!
//! The hub says which files a revision has, how long they are and what their hashes are; whatever it sends is written to
//! `blobs/HASH.incomplete`, where a later call goes on, and becomes a blob only when length and hash are right. Weights
//! are the files that the model's index names, and nothing else. Names from the hub are checked before they become
//! paths, and the token goes to the hub's own host, over TLS, only.

mod client;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::env::HubEnv;
use super::repo::{Repo, is_plain};
use crate::error::ModelError;
use crate::weights::read_index;
use client::Client;

/// Longest answer of the hub about a model.
const MAX_INFO_BYTES: u64 = 32 << 20;
/// Longest configuration, tokenizer or index.
const MAX_TEXT_BYTES: u64 = 256 << 20;
const BUFFER: usize = 1 << 20;
/// Files without weights, by their endings.
const TEXT: [&str; 4] = [".json", ".jinja", ".txt", ".model"];
/// Weights in the order of preference: the whole file, or the index of its shards and their ending.
const WEIGHTS: [(&str, &str, &str); 2] = [
    ("model.safetensors", "model.safetensors.index.json", ".safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", ".bin"),
];

/// How far a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// File that is being fetched.
    pub file: &'a str,
    /// Bytes of it that are here.
    pub done: u64,
    /// All its bytes.
    pub total: u64,
}

/// What a hub says about one revision.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct RemoteFile {
    #[serde(rename = "rfilename")]
    name: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    git_hash: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// A file as it is fetched.
struct Blob<'a> {
    name: &'a str,
    /// Name of the blob in the cache.
    hash: &'a str,
    /// Large files have one that can be checked; the others have a hash of git.
    sha256: bool,
    size: u64,
}

/// Fetches what `argument` (`org/name[@revision]`) needs to run and returns its folder in the cache; an existing path
/// is returned as it is. What the cache holds already is not fetched again.
pub fn download_model(
    argument: &str,
    env: &HubEnv,
    progress: &mut dyn FnMut(&DownloadProgress<'_>),
) -> Result<PathBuf, ModelError> {
    let path = Path::new(argument);
    if !argument.is_empty() && path.exists() {
        return Ok(path.to_path_buf());
    }
    let repo = Repo::parse(argument)?;
    let cache = Cache::new(env, argument)?;
    if env.offline {
        return Err(ModelError::Download {
            address: repo.argument.clone(),
            what: "HF_HUB_OFFLINE is set".into(),
            hint: "unset it to download".into(),
        });
    }
    let client = Client::new(env)?;
    let info = info(&client, &repo)?;
    let snapshot = cache.snapshots(&repo).join(&info.sha);
    let mut fetch =
        Fetch { client: &client, repo: &repo, info: &info, folder: cache.folder(&repo), snapshot, progress };
    for file in info.siblings.iter().filter(|file| TEXT.iter().any(|ending| file.name.ends_with(ending))) {
        fetch.file(&file.name, MAX_TEXT_BYTES)?;
    }
    for name in fetch.weights()? {
        fetch.file(&name, u64::MAX)?;
    }
    // A commit never moves and needs no ref.
    if !is_commit(&repo.revision) {
        write_reference(&cache.reference(&repo), &info.sha)?;
    }
    Ok(fetch.snapshot)
}

fn info(client: &Client, repo: &Repo) -> Result<Info, ModelError> {
    let url = client.url(&format!("api/models/{}/revision/{}?blobs=true", repo.id(), repo.revision));
    let text = client.get(&url, 0)?.text(MAX_INFO_BYTES)?;
    let mut info: Info =
        serde_json::from_str(&text).map_err(|e| client.error(&url, format!("not the description of a model: {e}")))?;
    if !is_commit(&info.sha) {
        return Err(client.error(&url, format!("the commit is called {:?}", info.sha)));
    }
    // Folders of a repository hold other formats; hidden files are git's.
    info.siblings.retain(|file| is_plain(&file.name));
    Ok(info)
}

struct Fetch<'a> {
    client: &'a Client,
    repo: &'a Repo,
    info: &'a Info,
    /// `models--org--name`
    folder: PathBuf,
    snapshot: PathBuf,
    progress: &'a mut dyn FnMut(&DownloadProgress<'_>),
}

impl Fetch<'_> {
    fn has(&self, name: &str) -> bool {
        self.info.siblings.iter().any(|file| file.name == name)
    }

    /// Names of the weight files; the index among the files without weights is here already.
    fn weights(&self) -> Result<Vec<String>, ModelError> {
        for (whole, index, ending) in WEIGHTS {
            if self.has(whole) {
                return Ok(vec![whole.to_string()]);
            }
            if self.has(index) {
                let names: BTreeSet<String> = read_index(&self.snapshot.join(index), ending)?.into_values().collect();
                return Ok(names.into_iter().collect());
            }
        }
        Err(ModelError::Download {
            address: self.client.shown(&self.client.url(&self.repo.id())),
            what: "the model has neither model.safetensors nor pytorch_model.bin".into(),
            hint: "a .gguf file is fetched by itself: `hf download org/name FILE`, then give its path".into(),
        })
    }

    /// Fetches one file and links it into the snapshot.
    fn file(&mut self, name: &str, longest: u64) -> Result<(), ModelError> {
        let url = self.client.url(&format!("{}/resolve/{}/{name}", self.repo.id(), self.info.sha));
        let file = self.info.siblings.iter().find(|file| file.name == name);
        let file =
            file.ok_or_else(|| self.client.error(&url, "the model has no such file, though its index names it"))?;
        let blob = file.blob().ok_or_else(|| self.client.error(&url, "the hub does not say its length and hash"))?;
        if blob.size > longest {
            return Err(self.client.error(&url, format!("{} bytes, at most {longest} are fetched", blob.size)));
        }
        let blobs = self.folder.join("blobs");
        std::fs::create_dir_all(&blobs).map_err(|e| ModelError::io(&blobs, e))?;
        std::fs::create_dir_all(&self.snapshot).map_err(|e| ModelError::io(&self.snapshot, e))?;
        let path = blobs.join(blob.hash);
        if std::fs::metadata(&path).map(|m| m.len()).ok() != Some(blob.size) {
            self.blob(&url, &blob, &path)?;
        }
        link(&path, &Path::new("../../blobs").join(blob.hash), &self.snapshot.join(name))
    }

    fn blob(&mut self, url: &str, blob: &Blob<'_>, path: &Path) -> Result<(), ModelError> {
        let incomplete = path.with_file_name(format!("{}.incomplete", blob.hash));
        let io = |e| ModelError::io(&incomplete, e);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&incomplete).map_err(io)?;
        file.try_lock().map_err(|_| self.client.error(url, "another process is fetching it"))?;
        let mut hash = Sha256::new();
        let mut done = resume(&mut file, &mut hash, blob).map_err(io)?;
        if done < blob.size || blob.size == 0 {
            let mut response = self.client.get(url, done)?;
            if response.start() != done {
                if response.start() != 0 {
                    return Err(self.client.error(url, "the hub sends another part of the file than was asked for"));
                }
                // The server sends the whole file.
                file.set_len(0).and_then(|()| file.rewind()).map_err(io)?;
                hash = Sha256::new();
                done = 0;
            }
            let mut buffer = vec![0; BUFFER];
            loop {
                let read = response
                    .read(&mut buffer)
                    .map_err(|e| self.client.error(url, format!("the connection broke after {done} bytes: {e}")))?;
                if read == 0 {
                    break;
                }
                done += read as u64;
                if done > blob.size {
                    break;
                }
                hash.update(&buffer[..read]);
                file.write_all(&buffer[..read]).map_err(io)?;
                (self.progress)(&DownloadProgress { file: blob.name, done, total: blob.size });
            }
        }
        if done < blob.size {
            return Err(self.client.error(url, format!("it ended after {done} of {} bytes", blob.size)));
        }
        let right = done == blob.size && (!blob.sha256 || hex(&hash.finalize()) == blob.hash);
        if !right {
            // Going on from here would never end well.
            drop(file);
            std::fs::remove_file(&incomplete).map_err(io)?;
            return Err(self.client.error(url, "it is not the file that the hub describes (length or SHA-256)"));
        }
        file.sync_all().map_err(io)?;
        std::fs::rename(&incomplete, path).map_err(io)
    }
}

impl RemoteFile {
    fn blob(&self) -> Option<Blob<'_>> {
        let (hash, sha256, size) = match &self.lfs {
            Some(lfs) => (lfs.sha256.as_str(), true, lfs.size),
            None => (self.git_hash.as_deref()?, false, self.size?),
        };
        let length = if sha256 { 64 } else { 40 };
        let is_hash = hash.len() == length && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        is_hash.then_some(Blob { name: &self.name, hash, sha256, size })
    }
}

/// Takes over what an earlier call fetched: its length, with the file at its end.
fn resume(file: &mut File, hash: &mut Sha256, blob: &Blob<'_>) -> std::io::Result<u64> {
    let len = file.seek(SeekFrom::End(0))?;
    if len > blob.size {
        file.set_len(0)?;
        file.rewind()?;
        return Ok(0);
    }
    if blob.sha256 {
        file.rewind()?;
        std::io::copy(file, hash)?;
    }
    Ok(len)
}

/// Makes `name` in the snapshot refer to the blob.
fn link(blob: &Path, relative: &Path, name: &Path) -> Result<(), ModelError> {
    if name.exists() {
        return Ok(());
    }
    // A link to a blob that is gone is in the way.
    match std::fs::remove_file(name) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(ModelError::io(name, e)),
        _ => {}
    }
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(relative, name);
    // Links need a privilege elsewhere.
    #[cfg(not(unix))]
    let linked = {
        let _ = relative;
        std::fs::hard_link(blob, name).or_else(|_| std::fs::copy(blob, name).map(|_| ()))
    };
    #[cfg(unix)]
    let _ = blob;
    linked.map_err(|e| ModelError::io(name, e))
}

fn write_reference(path: &Path, commit: &str) -> Result<(), ModelError> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(|e| ModelError::io(folder, e))?;
    let temporary = path.with_file_name(format!(".{}.tmp", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(commit.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|e| ModelError::io(path, e))
}

/// A full commit hash.
fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
