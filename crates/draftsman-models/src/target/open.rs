//! From a path to a running target.

use std::path::Path;

use burn::tensor::Device;
use draftsman_kernels::WeightDtype;

use super::json::{Fields, read_json_object};
use super::{Llama, Target, TargetSpec, spec_from_config, spec_from_gguf};
use crate::error::{ModelError, Problems};
use crate::weights::{GgufFile, SafetensorsSource};

/// Opens a Hugging Face folder (config.json beside safetensors) or a `.gguf` file and loads its weights in `dtype`.
pub fn open_target(path: &Path, device: &Device, dtype: WeightDtype) -> Result<Box<dyn Target>, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?;
    if metadata.is_dir() {
        let source = SafetensorsSource::open_folder(path)?;
        let spec = folder_spec(path)?;
        Ok(Box::new(Llama::from_safetensors(&source, spec, device, dtype)?))
    } else {
        open_gguf_target(&GgufFile::open(path)?, device, dtype)
    }
}

/// As [`open_target`], for a GGUF file that is open already (its metadata hold the tokenizer too).
pub fn open_gguf_target(file: &GgufFile, device: &Device, dtype: WeightDtype) -> Result<Box<dyn Target>, ModelError> {
    let spec = spec_from_gguf(file)?;
    Ok(Box::new(Llama::from_gguf(file, spec, device, dtype)?))
}

/// Reads what a target is without loading it.
pub fn read_target_spec(path: &Path) -> Result<TargetSpec, ModelError> {
    let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?;
    if metadata.is_dir() { folder_spec(path) } else { spec_from_gguf(&GgufFile::open(path)?) }
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
