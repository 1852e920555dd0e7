//! Drafters of any trainer: the folder's weights, found and renamed to the published names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use draftsman_kernels::Weight;

use super::config::DrafterConfig;
use super::dflash::Dflash;
use crate::error::{ModelError, Problems};
use crate::weights::{
    NameMap, RenamedSource, SafetensorsSource, TensorExpectation, TorchSource, WeightSource, check_tensors,
};

const CONFIG: &str = "config.json";
const TORCH_FILE: &str = "pytorch_model.bin";
const TORCH_INDEX: &str = "pytorch_model.bin.index.json";
const TORCH_EXTENSIONS: [&str; 4] = ["pt", "pth", "bin", "ckpt"];
/// Files that trainers write beside the weights, by the start of the name.
const TRAINING_FILES: [&str; 7] =
    ["optimizer", "scheduler", "training_args", "training_state", "trainer_state", "rng_state", "scaler"];

/// The target's matrices, which some trainers save with the drafter: copies, if nobody trained them.
const EMBEDDING: &str = "embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
/// Other names for parts of DFlash (TorchSpec).
const OTHER_NAMES: [(&str, &str); 3] = [
    ("context_proj.weight", "fc.weight"),
    ("context_norm.weight", "hidden_norm.weight"),
    ("final_norm.weight", "norm.weight"),
];
/// ‖copy − target‖ / ‖target‖ up to which a matrix counts as a copy: above the rounding of a 4-bit target, far below
/// the distance of two different models.
const COPY_TOLERANCE: f64 = 0.2;
/// Rows compared at a time.
const ROWS: usize = 4096;

/// A drafter with what is to be told about its file.
pub struct OpenedDrafter {
    /// The drafter.
    pub drafter: Dflash,
    source: RenamedSource,
}

impl OpenedDrafter {
    /// Pairs (published name, name in the file) that differ.
    pub fn renamed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.source.renamed()
    }

    /// Tensors of the file that are no part of the drafter: states of training, and what the name map ignores.
    pub fn ignored(&self) -> &[String] {
        self.source.ignored()
    }

    /// Matrices of the target that the file holds too (`embed_tokens.weight`, `lm_head.weight`). They are not used, so
    /// [`OpenedDrafter::check_copies`] must find that they are the target's.
    pub fn copies(&self) -> Vec<&'static str> {
        [EMBEDDING, HEAD].into_iter().filter(|name| self.source.shape(name).is_some()).collect()
    }

    /// Compares the file's own embedding and head with the target's: name and relative error ‖copy − target‖ /
    /// ‖target‖ of each. A matrix of another shape, or one that was trained, is refused.
    pub fn check_copies(
        &self,
        embedding: &Weight,
        head: &Weight,
        device: &Device,
    ) -> Result<Vec<(&'static str, f64)>, ModelError> {
        let mut errors = Vec::new();
        let mut problems = Problems::default();
        for name in self.copies() {
            let target = if name == EMBEDDING { embedding } else { head };
            let shape = self.source.shape(name).unwrap_or_default();
            if shape != target.shape() {
                problems.push(format!("tensor `{name}` has shape {shape:?}, the target's has {:?}", target.shape()));
                continue;
            }
            let error = relative_error(&self.source.load_f32(name)?, target, device);
            // Not a number is no copy either.
            if error <= COPY_TOLERANCE {
                errors.push((name, error));
            } else {
                problems.push(format!(
                    "tensor `{name}` is not the target's (relative error {error:.3})\n    hint: this drafter was \
                     trained for another target, or with an embedding or head of its own, which cannot be used"
                ));
            }
        }
        problems.into_model_result(self.source.path())?;
        Ok(errors)
    }
}

/// Opens a drafter folder, or one weight file beside its `config.json`. Weights are `model.safetensors` or its shards,
/// `pytorch_model.bin` or its shards, or the folder's only torch file; `names` says which tensor is which where the
/// trainer's names are not understood. Missing, unknown and mis-shaped tensors are reported together.
pub fn open_drafter(path: &Path, names: Option<&NameMap>, device: &Device) -> Result<OpenedDrafter, ModelError> {
    let is_folder = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?.is_dir();
    let folder = if is_folder { path } else { path.parent().unwrap_or(Path::new("")) };
    let config = DrafterConfig::read(&folder.join(CONFIG))?;
    let weights = if is_folder { open_folder(path)? } else { open_file(path)? };
    let mut known: BTreeSet<String> = config.tensors().into_iter().map(|tensor| tensor.name).collect();
    known.extend([EMBEDDING, HEAD].map(str::to_string));
    let source = RenamedSource::new(weights, &known, &OTHER_NAMES, names)?;
    let mut expected = config.tensors();
    for name in [EMBEDDING, HEAD] {
        if source.shape(name).is_some() {
            expected.push(TensorExpectation::new(name, [config.vocab_size, config.hidden_size]));
        }
    }
    check_tensors(&source, &expected, &|_| false)?;
    let drafter = Dflash::from_tensors(config, device, &mut |name, _| {
        let values = source.load_f32(name)?;
        match values.iter().find(|v| !v.is_finite()) {
            None => Ok(values),
            Some(odd) => Err(ModelError::malformed(
                &source.file_of(name),
                format!("tensor `{name}` holds {odd}"),
                "its training diverged, or the file is damaged; take an earlier checkpoint",
            )),
        }
    })?;
    Ok(OpenedDrafter { drafter, source })
}

/// Loads a drafter with its published names, or names that [`open_drafter`] understands without a map. A file with an
/// embedding or head of its own is refused, because nothing here can tell whether they are the target's.
pub fn load_drafter(path: &Path, device: &Device) -> Result<Dflash, ModelError> {
    let opened = open_drafter(path, None, device)?;
    let mut problems = Problems::default();
    for name in opened.copies() {
        problems.push(format!(
            "tensor `{name}` is a matrix of the target, which only the target can confirm\n    hint: open the drafter \
             together with its target"
        ));
    }
    problems.into_model_result(opened.source.path())?;
    Ok(opened.drafter)
}

fn open_file(path: &Path) -> Result<Box<dyn WeightSource>, ModelError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => Ok(Box::new(SafetensorsSource::open_file(path)?)),
        Some(extension) if TORCH_EXTENSIONS.contains(&extension) => Ok(Box::new(TorchSource::open_file(path)?)),
        _ => Err(ModelError::unsupported(
            path,
            "not a drafter's weight file",
            "give a folder with config.json, or the .safetensors, .pt or .bin file in it",
        )),
    }
}

fn open_folder(folder: &Path) -> Result<Box<dyn WeightSource>, ModelError> {
    let has = |name: &str| folder.join(name).is_file();
    if has("model.safetensors") || has("model.safetensors.index.json") {
        return Ok(Box::new(SafetensorsSource::open_folder(folder)?));
    }
    if has(TORCH_INDEX) {
        return Ok(Box::new(TorchSource::open_index(folder, &folder.join(TORCH_INDEX))?));
    }
    if has(TORCH_FILE) {
        return open_file(&folder.join(TORCH_FILE));
    }
    let files = torch_files(folder)?;
    match files.as_slice() {
        [one] => open_file(one),
        [] if is_distributed(folder)? => Err(ModelError::unsupported(
            folder,
            "a checkpoint of torch.distributed, in pieces",
            "join it: `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER drafter.pt`",
        )),
        // The error that says what a folder should hold.
        [] => Ok(Box::new(SafetensorsSource::open_folder(folder)?)),
        several => {
            let names: Vec<String> =
                several.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into()).collect();
            Err(ModelError::malformed(
                folder,
                format!("several files could be the weights: {}", names.join(", ")),
                "give the path of one of them",
            ))
        }
    }
}

/// Torch files of a folder that may hold weights, sorted.
fn torch_files(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let mut files = entries(folder)?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| TORCH_EXTENSIONS.contains(&extension))
            && !TRAINING_FILES.iter().any(|start| name.starts_with(start))
            && path.is_file()
    });
    files.sort();
    Ok(files)
}

/// True when the folder, or the folder `model` in it, is what torch.distributed.checkpoint writes.
fn is_distributed(folder: &Path) -> Result<bool, ModelError> {
    let model = folder.join("model");
    let mut files = entries(folder)?;
    if model.is_dir() {
        files.extend(entries(&model)?);
    }
    Ok(files.iter().any(|path| path.extension().is_some_and(|extension| extension == "distcp")))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|e| ModelError::io(folder, e))
}

/// ‖values − target‖ / ‖target‖, both `[rows, width]`.
fn relative_error(values: &[f32], target: &Weight, device: &Device) -> f64 {
    let [rows, width] = target.shape();
    let (mut difference, mut norm) = (0.0f64, 0.0f64);
    for start in (0..rows).step_by(ROWS) {
        let ids: Vec<u32> = (start..rows.min(start + ROWS)).map(|row| row as u32).collect();
        let theirs = target.rows(&ids, device).into_data();
        for (ours, theirs) in values[start * width..].iter().zip(theirs.iter::<f32>()) {
            difference += (f64::from(*ours) - f64::from(theirs)).powi(2);
            norm += f64::from(theirs).powi(2);
        }
    }
    (difference / norm).sqrt()
}
