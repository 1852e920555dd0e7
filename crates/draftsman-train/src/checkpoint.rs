//! Checkpoints: whole folders that appear at once or not at all, and prove themselves by checksums.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use draftsman_contract::TargetIdentity;
use draftsman_kernels::WeightDtype;
use draftsman_models::{Dflash, save_drafter};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::TrainError;
use crate::files;
use crate::optim::Moments;
use crate::progress::Better;
use crate::recipe::{Recipe, deciding_lines};
use crate::window::{Exact, Window};

/// Version of the checkpoint format.
pub(crate) const VERSION: u32 = 1;

const OPTIMIZER: &str = "optimizer.safetensors";
const RECIPE: &str = "recipe.toml";
const STATE: &str = "state.json";
const VALIDATION: &str = "validation.json";
const CHECKSUMS: &str = "checksums.json";
const PREFIX: &str = "step-";
/// Folders that are being written or deleted; never read.
const SAVING: &str = ".saving-";
const DELETING: &str = ".deleting-";

/// Everything besides tensors that a run needs to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(crate) version: u32,
    /// Completed updates.
    pub(crate) step: usize,
    /// Epoch of the next document, and its index in the epoch's order: both follow from `documents_consumed`.
    pub(crate) epoch: u64,
    pub(crate) position: u64,
    pub(crate) documents_consumed: u64,
    pub(crate) seed: u64,
    pub(crate) data_sha256: String,
    pub(crate) target: TargetIdentity,
    pub(crate) elapsed_seconds: f64,
    pub(crate) window: Window,
    pub(crate) best: Option<Best>,
}

/// The best validation so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Best {
    pub(crate) step: usize,
    pub(crate) metric: String,
    /// For readers; `exact` is what counts.
    pub(crate) value: f64,
    pub(crate) exact: Exact,
}

impl Best {
    /// Of equals the later one wins: it has learnt longer, and the first may be the untrained drafter.
    pub(crate) fn beaten_by(&self, value: f64, better: Better) -> bool {
        match better {
            Better::Higher => value >= self.exact.0,
            Better::Lower => value <= self.exact.0,
        }
    }
}

/// What is saved.
pub(crate) struct Content<'a> {
    pub(crate) drafter: &'a Dflash,
    pub(crate) moments: &'a BTreeMap<String, Moments>,
    pub(crate) recipe_toml: &'a str,
    pub(crate) validation: Option<&'a serde_json::Value>,
    pub(crate) state: &'a State,
}

/// What is read back, tensors of the drafter apart (`draftsman_models::load_drafter` reads the same folder).
pub(crate) struct Loaded {
    pub(crate) state: State,
    pub(crate) moments: BTreeMap<String, Moments>,
    pub(crate) recipe_toml: String,
    pub(crate) validation: Option<serde_json::Value>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Checksums {
    version: u32,
    files: BTreeMap<String, FileSum>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSum {
    bytes: u64,
    sha256: String,
}

/// Name of the checkpoint after `step` updates.
fn name(step: usize) -> String {
    format!("{PREFIX}{step:08}")
}

/// Folder of the checkpoint after `step` updates.
pub(crate) fn folder(checkpoints: &Path, step: usize) -> PathBuf {
    checkpoints.join(name(step))
}

/// Saves a checkpoint into `checkpoints`: everything goes into a hidden folder, which gets its name when all of it is on disk.
pub(crate) fn save(checkpoints: &Path, content: &Content<'_>) -> Result<PathBuf, TrainError> {
    let step = content.state.step;
    let final_folder = folder(checkpoints, step);
    let temporary = checkpoints.join(format!("{SAVING}{}", name(step)));
    remove(&temporary)?;
    save_drafter(content.drafter, &temporary, WeightDtype::F32)?;
    files::write_synced(&temporary.join(OPTIMIZER), &optimizer_bytes(&temporary, content.moments)?)?;
    files::write_synced(&temporary.join(RECIPE), content.recipe_toml.as_bytes())?;
    files::write_synced(&temporary.join(STATE), &json(&temporary.join(STATE), content.state)?)?;
    if let Some(validation) = content.validation {
        files::write_synced(&temporary.join(VALIDATION), &json(&temporary.join(VALIDATION), validation)?)?;
    }
    let sums = Checksums { version: VERSION, files: sums_of(&temporary)? };
    files::write_synced(&temporary.join(CHECKSUMS), &json(&temporary.join(CHECKSUMS), &sums)?)?;
    files::sync_folder(&temporary)?;
    if final_folder.exists() {
        // A resumed run comes past a step that an interrupted save or an older, longer run left behind.
        discard(checkpoints, &final_folder)?;
    }
    fs::rename(&temporary, &final_folder).map_err(TrainError::io(&final_folder, "rename to"))?;
    files::sync_folder(checkpoints)?;
    Ok(final_folder)
}

/// Steps that have a folder, ascending, complete or not.
fn steps(checkpoints: &Path) -> Result<Vec<usize>, TrainError> {
    let entries = match fs::read_dir(checkpoints) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(TrainError::io(checkpoints, "list")(error)),
    };
    let mut steps = Vec::new();
    for entry in entries {
        let entry = entry.map_err(TrainError::io(checkpoints, "list"))?;
        let name = entry.file_name();
        if let Some(step) =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|digits| digits.parse().ok())
        {
            steps.push(step);
        }
    }
    steps.sort_unstable();
    Ok(steps)
}

/// The newest checkpoint whose checksums hold. Those that fail come along, newest first, with the reason.
pub(crate) fn newest(checkpoints: &Path) -> Result<(Option<PathBuf>, Vec<TrainError>), TrainError> {
    let mut broken = Vec::new();
    for step in steps(checkpoints)?.into_iter().rev() {
        let candidate = folder(checkpoints, step);
        match verify(&candidate) {
            Ok(()) => return Ok((Some(candidate), broken)),
            Err(error) => broken.push(error),
        }
    }
    Ok((None, broken))
}

/// Checks every file of a checkpoint against its checksum.
pub fn verify_checkpoint(folder: &Path) -> Result<(), TrainError> {
    verify(folder)
}

fn verify(folder: &Path) -> Result<(), TrainError> {
    let path = folder.join(CHECKSUMS);
    let sums: Checksums = parse(&path)?;
    if sums.version != VERSION {
        return Err(TrainError::file(
            &path,
            format!("version {} is unknown (this program reads {VERSION})", sums.version),
        ));
    }
    for required in [OPTIMIZER, RECIPE, STATE, "model.safetensors", "config.json"] {
        if !sums.files.contains_key(required) {
            return Err(TrainError::file(&path, format!("does not list {required}")));
        }
    }
    for (name, sum) in &sums.files {
        // Names come from a file: nothing outside the folder is read.
        if Path::new(name).components().count() != 1 || name.starts_with('.') {
            return Err(TrainError::file(&path, format!("\"{name}\" is not a file name")));
        }
        let file = folder.join(name);
        let length = fs::metadata(&file).map_err(TrainError::io(&file, "read"))?.len();
        if length != sum.bytes {
            return Err(TrainError::file(&file, format!("holds {length} bytes, its checksum says {}", sum.bytes)));
        }
        if sha256(&files::read(&file)?) != sum.sha256 {
            return Err(TrainError::file(&file, "its checksum does not match: the file was changed or damaged"));
        }
    }
    Ok(())
}

/// Reads what [`save`] wrote, apart from the drafter.
pub(crate) fn load(folder: &Path) -> Result<Loaded, TrainError> {
    verify(folder)?;
    let state_path = folder.join(STATE);
    let state: State = parse(&state_path)?;
    if state.version != VERSION {
        return Err(TrainError::file(
            &state_path,
            format!("version {} is unknown (this program reads {VERSION})", state.version),
        ));
    }
    Ok(Loaded {
        state,
        moments: load_moments(&folder.join(OPTIMIZER))?,
        recipe_toml: files::read_text(&folder.join(RECIPE))?,
        validation: validation_in(folder)?,
    })
}

/// Deletes all but the newest `keep` checkpoints and the one after `best` updates.
pub(crate) fn prune(checkpoints: &Path, keep: usize, best: Option<usize>) -> Result<(), TrainError> {
    let steps = steps(checkpoints)?;
    let old = steps.len().saturating_sub(keep);
    for step in &steps[..old] {
        if Some(*step) != best {
            discard(checkpoints, &folder(checkpoints, *step))?;
        }
    }
    Ok(())
}

/// Deletes checkpoints after `step`: a resumed run will make them anew, and what it has not made yet must not win over it.
pub(crate) fn forget_after(checkpoints: &Path, step: usize) -> Result<(), TrainError> {
    for later in steps(checkpoints)?.into_iter().filter(|other| *other > step) {
        discard(checkpoints, &folder(checkpoints, later))?;
    }
    Ok(())
}

/// Deletes what interrupted saves and deletions left behind.
pub(crate) fn sweep(checkpoints: &Path) -> Result<(), TrainError> {
    for entry in fs::read_dir(checkpoints).map_err(TrainError::io(checkpoints, "list"))? {
        let entry = entry.map_err(TrainError::io(checkpoints, "list"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if [SAVING, DELETING].iter().any(|prefix| name.starts_with(prefix)) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Takes a checkpoint's name away first, so that a half-deleted one is never seen.
fn discard(checkpoints: &Path, folder: &Path) -> Result<(), TrainError> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let hidden = checkpoints.join(format!("{DELETING}{name}"));
    remove(&hidden)?;
    fs::rename(folder, &hidden).map_err(TrainError::io(folder, "rename"))?;
    remove(&hidden)
}

fn remove(folder: &Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(TrainError::io(folder, "delete")(error)),
    }
}

/// Moments under `first.NAME` and `second.NAME`.
fn optimizer_bytes(folder: &Path, moments: &BTreeMap<String, Moments>) -> Result<Vec<u8>, TrainError> {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let owned: Vec<(String, &[usize], Vec<u8>)> = moments
        .iter()
        .flat_map(|(name, state)| {
            [
                (format!("first.{name}"), &state.shape[..], bytes(&state.first)),
                (format!("second.{name}"), &state.shape[..], bytes(&state.second)),
            ]
        })
        .collect();
    let fail = |error: safetensors::SafeTensorError| {
        TrainError::file(&folder.join(OPTIMIZER), format!("cannot be built: {error}"))
    };
    let views: Vec<(&str, TensorView<'_>)> = owned
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), bytes)?)))
        .collect::<Result<_, _>>()
        .map_err(fail)?;
    safetensors::serialize(views, None).map_err(fail)
}

fn load_moments(path: &Path) -> Result<BTreeMap<String, Moments>, TrainError> {
    let bytes = files::read(path)?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|error| TrainError::file(path, format!("not a safetensors file: {error}")))?;
    let values = |view: &TensorView<'_>, name: &str| {
        if view.dtype() != Dtype::F32 {
            return Err(TrainError::file(path, format!("tensor {name} is {:?}, expected F32", view.dtype())));
        }
        let (words, _) = view.data().as_chunks::<4>();
        Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect::<Vec<f32>>())
    };
    let mut moments = BTreeMap::new();
    for (full, first) in tensors.tensors() {
        let Some(name) = full.strip_prefix("first.") else { continue };
        let other = format!("second.{name}");
        let second =
            tensors.tensor(&other).map_err(|_| TrainError::file(path, format!("has {full} but no {other}")))?;
        if second.shape() != first.shape() {
            return Err(TrainError::file(
                path,
                format!("{full} is {:?}, {other} is {:?}", first.shape(), second.shape()),
            ));
        }
        let state =
            Moments { shape: first.shape().to_vec(), first: values(&first, &full)?, second: values(&second, &other)? };
        moments.insert(name.to_owned(), state);
    }
    Ok(moments)
}

fn sums_of(folder: &Path) -> Result<BTreeMap<String, FileSum>, TrainError> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(TrainError::io(folder, "list"))? {
        let entry = entry.map_err(TrainError::io(folder, "list"))?;
        let bytes = files::read(&entry.path())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        sums.insert(name, FileSum { bytes: bytes.len() as u64, sha256: sha256(&bytes) });
    }
    Ok(sums)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec_pretty(value)
        .map_err(|error| TrainError::file(path, format!("cannot be written as JSON: {error}")))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, TrainError> {
    serde_json::from_slice(&files::read(path)?).map_err(|error| TrainError::file(path, error.to_string()))
}

/// The checkpoints of a run that a person means by "latest" and "best".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCheckpoints {
    /// Newest complete one.
    pub latest: PathBuf,
    /// The one that the live check liked best, where it is still there.
    pub best: Option<PathBuf>,
}

/// A hash of what decides a run: its recipe (but for keys like `log_every`) and its data. Absent before the first
/// checkpoint. With the same target, runs of one hash have the same checkpoints.
pub fn run_identity(run: &Path) -> Result<Option<String>, TrainError> {
    // The newest may be in the making, where somebody copies the run.
    let states = list_checkpoints(run)?.into_iter().rev().map(|(_, folder)| parse::<State>(&folder.join(STATE)));
    let Some(state) = states.filter_map(Result::ok).next() else { return Ok(None) };
    let recipe = Recipe::load(&crate::run_folder::recipe_in(run), &[])?;
    let lines = deciding_lines(&recipe)? + &state.data_sha256;
    let digest = Sha256::digest(lines.as_bytes());
    Ok(Some(digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Steps and folders of all checkpoints of a run, the oldest first. Only reads. They are complete, but a run that goes on
/// may delete one at any time.
pub fn list_checkpoints(run: &Path) -> Result<Vec<(usize, PathBuf)>, TrainError> {
    let checkpoints = crate::run_folder::checkpoints_in(run);
    Ok(steps(&checkpoints)?.into_iter().map(|step| (step, folder(&checkpoints, step))).collect())
}

/// What the live check left in the newest complete checkpoint of the run folder `run`, if there is one.
pub fn saved_validation(run: &Path) -> Result<Option<serde_json::Value>, TrainError> {
    let (latest, _) = newest(&crate::run_folder::checkpoints_in(run))?;
    latest.map_or(Ok(None), |latest| validation_in(&latest))
}

fn validation_in(folder: &Path) -> Result<Option<serde_json::Value>, TrainError> {
    let path = folder.join(VALIDATION);
    if path.exists() { parse(&path).map(Some) } else { Ok(None) }
}

/// Finds the checkpoints of the run folder `run`.
pub fn run_checkpoints(run: &Path) -> Result<RunCheckpoints, TrainError> {
    let checkpoints = crate::run_folder::checkpoints_in(run);
    let (latest, _) = newest(&checkpoints)?;
    let Some(latest) = latest else {
        return Err(TrainError::RunFolder { path: run.to_path_buf(), problem: "has no complete checkpoint".into() });
    };
    let state: State = parse(&latest.join(STATE))?;
    let best = state.best.map(|best| folder(&checkpoints, best.step)).filter(|best| verify(best).is_ok());
    Ok(RunCheckpoints { latest, best })
}
