//! Writing drafter folders: `config.json` and `model.safetensors` under the published names.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use draftsman_kernels::WeightDtype;
use half::{bf16, f16};
use safetensors::{Dtype, View};

use super::dflash::Dflash;
use super::parameters::Parameter;
use crate::error::ModelError;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// Writes a drafter folder with its tensors in `dtype`. Every file is written under a temporary name, synced and
/// renamed, the configuration last: a folder that is new has no `config.json` until its weights are whole, and in one
/// that is overwritten each file is either the old or the new one.
pub fn save_drafter(drafter: &Dflash, dir: &Path, dtype: WeightDtype) -> Result<(), ModelError> {
    let config_path = dir.join(CONFIG);
    let mut config =
        drafter.config().to_json().map_err(|problems| ModelError::Problems { path: config_path.clone(), problems })?;
    config["dtype"] = dtype_name(dtype).into();
    let mut text =
        serde_json::to_string_pretty(&config).map_err(|e| ModelError::InvalidInput(format!("{CONFIG}: {e}")))?;
    text.push('\n');

    std::fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
    let tensors: Vec<(String, StoredTensor)> = drafter
        .parameters()
        .into_iter()
        .map(|(name, parameter)| (name, StoredTensor::new(parameter.plain(), dtype)))
        .collect();
    // As other tools write it; some readers refuse files that do not say which framework's layout they hold.
    let metadata = [("format".to_string(), "pt".to_string())].into();
    write_atomically(&dir.join(WEIGHTS), |path| {
        safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|error| match error {
            safetensors::SafeTensorError::IoError(e) => ModelError::io(path, e),
            other => ModelError::InvalidInput(format!("{}: {other}", path.display())),
        })
    })?;
    write_atomically(&config_path, |path| {
        File::create(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| ModelError::io(path, e))
    })?;
    sync(dir)
}

/// Lets `write` fill a temporary file beside `path`, syncs it and renames it to `path`. On any failure the temporary
/// file is removed and `path` is as it was.
fn write_atomically(path: &Path, write: impl FnOnce(&Path) -> Result<(), ModelError>) -> Result<(), ModelError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(name);
    let result = write(&temporary)
        .and_then(|()| sync(&temporary))
        .and_then(|()| std::fs::rename(&temporary, path).map_err(|e| ModelError::io(path, e)));
    if result.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

/// Makes a file, or the names in a folder, survive a power failure.
fn sync(path: &Path) -> Result<(), ModelError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|e| ModelError::io(path, e))
}

fn dtype_name(dtype: WeightDtype) -> &'static str {
    match dtype {
        WeightDtype::F32 => "float32",
        WeightDtype::Bf16 => "bfloat16",
        WeightDtype::F16 => "float16",
    }
}

/// A tensor that is converted only while it is written.
struct StoredTensor {
    parameter: Parameter,
    shape: Vec<usize>,
    dtype: WeightDtype,
}

impl StoredTensor {
    fn new(parameter: Parameter, dtype: WeightDtype) -> Self {
        Self { shape: parameter.shape(), parameter, dtype }
    }
}

impl View for StoredTensor {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            WeightDtype::F32 => Dtype::F32,
            WeightDtype::Bf16 => Dtype::BF16,
            WeightDtype::F16 => Dtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let values = self.parameter.to_vec();
        let values = values.iter();
        Cow::Owned(match self.dtype {
            WeightDtype::F32 => values.flat_map(|v| v.to_le_bytes()).collect(),
            WeightDtype::Bf16 => values.flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            WeightDtype::F16 => values.flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        })
    }

    fn data_len(&self) -> usize {
        let width = match self.dtype {
            WeightDtype::F32 => 4,
            WeightDtype::Bf16 | WeightDtype::F16 => 2,
        };
        self.shape.iter().product::<usize>() * width
    }
}
