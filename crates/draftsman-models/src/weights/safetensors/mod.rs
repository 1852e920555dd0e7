//! Safetensors: one file, or a folder whose index names its shards.

mod header;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use draftsman_kernels::MappedFile;

use super::convert::{Float, elements};
use super::index::{ShardedTensors, open_index};
use super::source::WeightSource;
use crate::error::ModelError;

use header::{Dtype, Entry, read_header};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

struct Shard {
    path: PathBuf,
    file: MappedFile,
}

/// Memory-mapped safetensors files read as one set of names.
pub struct SafetensorsSource {
    path: PathBuf,
    tensors: ShardedTensors<Shard, Entry>,
}

impl SafetensorsSource {
    /// Opens one `.safetensors` file.
    pub fn open_file(path: &Path) -> Result<Self, ModelError> {
        let (shard, entries) = open_shard(path)?;
        Ok(Self { path: path.to_path_buf(), tensors: ShardedTensors::single(shard, entries) })
    }

    /// Opens a model folder: `model.safetensors`, or exactly the files that `model.safetensors.index.json` names.
    pub fn open_folder(folder: &Path) -> Result<Self, ModelError> {
        let single = folder.join(SINGLE);
        if single.is_file() {
            return Self::open_file(&single);
        }
        let index = folder.join(INDEX);
        if !index.is_file() {
            return Err(ModelError::malformed(
                folder,
                format!("neither {SINGLE} nor {INDEX} is here"),
                "give a model folder as Hugging Face lays it out, or a .gguf file",
            ));
        }
        Ok(Self { path: folder.to_path_buf(), tensors: open_index(folder, &index, ".safetensors", open_shard)? })
    }

    /// A tensor of whole numbers or booleans (`I64 I32 I16 I8 U64 U32 U16 U8 BOOL`), row-major.
    pub fn load_i64(&self, name: &str) -> Result<Vec<i64>, ModelError> {
        let (entry, bytes) = self.bytes(name)?;
        macro_rules! read {
            ($t:ty) => {
                elements(bytes).map(|b| <$t>::from_le_bytes(b) as i64).collect()
            };
        }
        match entry.dtype {
            Some(Dtype::I64) => Ok(read!(i64)),
            Some(Dtype::I32) => Ok(read!(i32)),
            Some(Dtype::I16) => Ok(read!(i16)),
            Some(Dtype::I8) => Ok(read!(i8)),
            Some(Dtype::U32) => Ok(read!(u32)),
            Some(Dtype::U16) => Ok(read!(u16)),
            Some(Dtype::U8) => Ok(read!(u8)),
            Some(Dtype::Bool) => Ok(bytes.iter().map(|&b| i64::from(b != 0)).collect()),
            Some(Dtype::U64) => elements(bytes)
                .map(u64::from_le_bytes)
                .map(|v| i64::try_from(v).map_err(|_| self.wrong_dtype(name, entry, "fit i64")))
                .collect(),
            _ => Err(self.wrong_dtype(name, entry, "hold whole numbers")),
        }
    }

    fn wrong_dtype(&self, name: &str, entry: &Entry, expected: &str) -> ModelError {
        ModelError::malformed(
            &self.file_of(name),
            format!("tensor `{name}` is stored as {}, which does not {expected}", entry.dtype_name),
            "floats are read from F32, F16 and BF16, whole numbers from integers and BOOL",
        )
    }

    fn bytes(&self, name: &str) -> Result<(&Entry, &[u8]), ModelError> {
        let Some((Shard { path, file }, entry)) = self.tensors.get(name) else {
            return Err(ModelError::missing_tensor(&self.path, name));
        };
        file.check()?;
        let bytes = file.bytes().get(entry.bytes.clone()).ok_or_else(|| {
            ModelError::malformed(
                path,
                format!("tensor `{name}` ends at byte {}, beyond the file", entry.bytes.end),
                "the file shrank while it was in use",
            )
        })?;
        Ok((entry, bytes))
    }
}

impl WeightSource for SafetensorsSource {
    fn path(&self) -> &Path {
        &self.path
    }

    fn file_of(&self, name: &str) -> PathBuf {
        self.tensors.get(name).map_or(&self.path, |(shard, _)| &shard.path).clone()
    }

    fn names(&self) -> Vec<String> {
        self.tensors.names()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, e)| e.shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<(String, bool)> {
        self.tensors.get(name).map(|(_, e)| (e.dtype_name.clone(), float(e).is_some()))
    }

    fn load_f32(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let (entry, bytes) = self.bytes(name)?;
        match float(entry) {
            Some(float) => Ok(float.read(bytes)),
            None => Err(self.wrong_dtype(name, entry, "hold floats")),
        }
    }

    fn load_u8(&self, name: &str) -> Result<Vec<u8>, ModelError> {
        let (entry, bytes) = self.bytes(name)?;
        match entry.dtype {
            Some(Dtype::U8) => Ok(bytes.to_vec()),
            _ => Err(self.wrong_dtype(name, entry, "hold bytes")),
        }
    }

    fn release(&self, name: &str) {
        if let Some((shard, entry)) = self.tensors.get(name) {
            shard.file.release(entry.bytes.clone());
        }
    }

    fn stored(&self, name: &str) -> Option<&[u8]> {
        self.bytes(name).ok().map(|(_, bytes)| bytes)
    }
}

/// How weights are read from this entry; `None` for a type that they are not read from.
fn float(entry: &Entry) -> Option<Float> {
    match entry.dtype {
        Some(Dtype::F32) => Some(Float::F32),
        Some(Dtype::F16) => Some(Float::F16),
        Some(Dtype::Bf16) => Some(Float::Bf16),
        _ => None,
    }
}

fn open_shard(path: &Path) -> Result<(Shard, BTreeMap<String, Entry>), ModelError> {
    let file = MappedFile::open(path)?;
    let entries = read_header(path, file.bytes())?;
    Ok((Shard { path: path.to_path_buf(), file }, entries))
}
