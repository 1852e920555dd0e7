//! From a path to a running target.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use draftsman_kernels::{DeltaRule, WeightDtype};

use super::json::{Fields, read_json_object};
use super::load::Blueprint;
use super::{Target, TargetSpec, spec_from_config, spec_from_gguf};
use crate::error::{ModelError, Problems};
use crate::weights::{GgufFile, SafetensorsSource, WeightSource};

/// How a target is held and run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TargetOptions {
    /// Type the matrices are held in.
    pub dtype: WeightDtype,
    /// Layers stay in the file: every forward reads one, runs all rows through it and drops it. For models larger than
    /// memory; results are the same to the bit.
    pub streamed: bool,
    /// How gated delta layers are computed. With the recurrent form a sequence has the same bits whatever the calls it
    /// comes in; the others depend on where their chunks begin.
    pub delta_rule: DeltaRule,
}

/// Opens a Hugging Face folder (config.json beside safetensors) or a `.gguf` file and loads its weights in `dtype`.
pub fn open_target(path: &Path, device: &Device, dtype: WeightDtype) -> Result<Box<dyn Target>, ModelError> {
    open_target_with(path, device, &TargetOptions { dtype, ..TargetOptions::default() })
}

/// As [`open_target`], with the layers left in the file ([`TargetOptions::streamed`]).
pub fn open_target_streamed(path: &Path, device: &Device, dtype: WeightDtype) -> Result<Box<dyn Target>, ModelError> {
    open_target_with(path, device, &TargetOptions { dtype, streamed: true, ..TargetOptions::default() })
}

/// As [`open_target`], with every option.
pub fn open_target_with(path: &Path, device: &Device, options: &TargetOptions) -> Result<Box<dyn Target>, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?;
    let (source, blueprint): (Arc<dyn WeightSource>, _) = if metadata.is_dir() {
        let source = SafetensorsSource::open_folder(path)?;
        let blueprint = Blueprint::hugging_face(folder_spec(path)?, Some(&source))?;
        (Arc::new(source), blueprint)
    } else {
        let file = GgufFile::open(path)?;
        let blueprint = Blueprint::gguf(spec_from_gguf(&file)?)?;
        (Arc::new(file), blueprint)
    };
    let target = if options.streamed {
        blueprint.stream(source, device, options)?
    } else {
        blueprint.load(&*source, device, options)?
    };
    Ok(Box::new(target))
}

/// As [`open_target`], for a GGUF file that is open already (its metadata hold the tokenizer too).
pub fn open_gguf_target(file: &GgufFile, device: &Device, dtype: WeightDtype) -> Result<Box<dyn Target>, ModelError> {
    let options = TargetOptions { dtype, ..TargetOptions::default() };
    Ok(Box::new(Blueprint::gguf(spec_from_gguf(file)?)?.load(file, device, &options)?))
}

/// Checks the headers of a target's weight files against its configuration, and counts its tensors by stored type; no
/// weight is read. `None` for a configuration alone.
pub fn check_target_files(path: &Path) -> Result<Option<BTreeMap<String, usize>>, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?;
    let (source, mut blueprint): (Box<dyn WeightSource>, _) = if metadata.is_dir() {
        let weights = ["model.safetensors", "model.safetensors.index.json"];
        if !weights.iter().any(|name| path.join(name).exists()) {
            return Ok(None);
        }
        let source = SafetensorsSource::open_folder(path)?;
        let blueprint = Blueprint::hugging_face(folder_spec(path)?, Some(&source))?;
        (Box::new(source), blueprint)
    } else if path.extension().is_some_and(|e| e == "json") {
        return Ok(None);
    } else {
        let file = GgufFile::open(path)?;
        let blueprint = Blueprint::gguf(spec_from_gguf(&file)?)?;
        (Box::new(file), blueprint)
    };
    blueprint.check_file(&*source)?;
    let mut types = BTreeMap::new();
    for (dtype, _) in source.names().iter().filter_map(|name| source.dtype(name)) {
        *types.entry(dtype).or_default() += 1;
    }
    Ok(Some(types))
}

/// Reads what a target is without loading it: a folder, a GGUF file, or a `.json` file that is a config.json.
pub fn read_target_spec(path: &Path) -> Result<TargetSpec, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?;
    if metadata.is_dir() {
        folder_spec(path)
    } else if path.extension().is_some_and(|e| e == "json") {
        spec_from_config(path)
    } else {
        spec_from_gguf(&GgufFile::open(path)?)
    }
}

fn folder_spec(folder: &Path) -> Result<TargetSpec, ModelError> {
    let config = folder.join("config.json");
    if !config.is_file() {
        return Err(ModelError::malformed(
            folder,
            "there is no config.json here",
            "give a model folder as Hugging Face lays it out, or a .gguf file",
        ));
    }
    let mut spec = spec_from_config(&config)?;
    // Chat models often name their end of turn only here.
    let generation = folder.join("generation_config.json");
    if generation.is_file() {
        let map = read_json_object(&generation)?;
        let problems = std::cell::RefCell::new(Problems::default());
        for id in Fields::new("", &map, &problems).ids("eos_token_id") {
            if !spec.eos_token_ids.contains(&id) {
                spec.eos_token_ids.push(id);
            }
        }
        problems.into_inner().into_model_result(&generation)?;
    }
    Ok(spec)
}
