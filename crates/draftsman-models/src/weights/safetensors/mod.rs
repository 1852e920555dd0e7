//! Safetensors: one file, or a folder whose index names its shards.

mod header;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use draftsman_kernels::MappedFile;
use half::{bf16, f16};
use rayon::prelude::*;

use crate::error::{ModelError, Problems};
use crate::weights::source::WeightSource;

use header::{Dtype, Entry, read_header};

/// Largest index file read.
const MAX_INDEX_BYTES: u64 = 64 << 20;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Elements converted per task; fixed so that conversion is the same for any number of threads.
const CHUNK: usize = 1 << 16;

struct Shard {
    path: PathBuf,
    file: MappedFile,
}

/// Memory-mapped safetensors files read as one set of names.
pub struct SafetensorsSource {
    path: PathBuf,
    shards: Vec<Shard>,
    /// Name to (index into `shards`, entry of its header).
    tensors: BTreeMap<String, (usize, Entry)>,
}

impl SafetensorsSource {
    /// Opens one `.safetensors` file.
    pub fn open_file(path: &Path) -> Result<Self, ModelError> {
        let (shard, entries) = open_shard(path)?;
        Ok(Self {
            path: path.to_path_buf(),
            shards: vec![shard],
            tensors: entries.into_iter().map(|(n, e)| (n, (0, e))).collect(),
        })
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
        Self::open_index(folder, &index)
    }

    fn open_index(folder: &Path, index: &Path) -> Result<Self, ModelError> {
        let map = read_index(index)?;
        let mut problems = Problems::default();
        let mut files: Vec<&String> = map.values().collect();
        files.sort();
        files.dedup();
        let mut shards = Vec::new();
        let mut headers: BTreeMap<&str, (usize, BTreeMap<String, Entry>)> = BTreeMap::new();
        for file in files {
            match open_shard(&folder.join(file)) {
                Ok((shard, entries)) => {
                    headers.insert(file, (shards.len(), entries));
                    shards.push(shard);
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        let mut tensors = BTreeMap::new();
        for (name, file) in &map {
            let Some((shard, entries)) = headers.get_mut(file.as_str()) else {
                continue; // its file is reported already
            };
            match entries.remove(name) {
                Some(entry) => {
                    tensors.insert(name.clone(), (*shard, entry));
                }
                None => problems.push(format!("tensor `{name}` is not in {file}, where the index puts it")),
            }
        }
        problems.into_model_result(index)?;
        Ok(Self { path: folder.to_path_buf(), shards, tensors })
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
        let Some((shard, entry)) = self.tensors.get(name) else {
            return Err(ModelError::malformed(
                &self.path,
                format!("tensor `{name}` is missing"),
                "the file belongs to another model, or its export was incomplete",
            ));
        };
        let Shard { path, file } = &self.shards[*shard];
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
        match self.tensors.get(name) {
            Some((shard, _)) => self.shards[*shard].path.clone(),
            None => self.path.clone(),
        }
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, e)| e.shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<(String, bool)> {
        self.tensors.get(name).map(|(_, e)| {
            let readable = matches!(e.dtype, Some(Dtype::F32 | Dtype::F16 | Dtype::Bf16));
            (e.dtype_name.clone(), readable)
        })
    }

    fn load_f32(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let (entry, bytes) = self.bytes(name)?;
        match entry.dtype {
            Some(Dtype::F32) => Ok(convert(bytes, f32::from_le_bytes)),
            Some(Dtype::F16) => Ok(convert(bytes, |b| f16::from_le_bytes(b).to_f32())),
            Some(Dtype::Bf16) => Ok(convert(bytes, |b| bf16::from_le_bytes(b).to_f32())),
            _ => Err(self.wrong_dtype(name, entry, "hold floats")),
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
            self.shards[*shard].file.release(entry.bytes.clone());
        }
    }
}

fn open_shard(path: &Path) -> Result<(Shard, BTreeMap<String, Entry>), ModelError> {
    let file = MappedFile::open(path)?;
    let entries = read_header(path, file.bytes())?;
    Ok((Shard { path: path.to_path_buf(), file }, entries))
}

fn elements<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}

fn convert<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> f32 + Sync) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / N];
    out.par_chunks_mut(CHUNK).zip(bytes.par_chunks(CHUNK * N)).for_each(|(out, bytes)| {
        for (value, bytes) in out.iter_mut().zip(elements::<N>(bytes)) {
            *value = one(bytes);
        }
    });
    out
}

/// The `weight_map` of an index: tensor name to shard file, each a plain file name in the same folder.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, ModelError> {
    let size = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?.len();
    if size > MAX_INDEX_BYTES {
        return Err(ModelError::malformed(
            path,
            format!("the index has {size} bytes, at most {MAX_INDEX_BYTES} are read"),
            "this is not a safetensors index",
        ));
    }
    let text = std::fs::read(path).map_err(|e| ModelError::io(path, e))?;
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } = serde_json::from_slice(&text).map_err(|e| {
        ModelError::malformed(
            path,
            format!("not a safetensors index: {e}"),
            "it needs an object `weight_map` of tensor name to file name",
        )
    })?;
    let mut problems = Problems::default();
    for (name, file) in &weight_map {
        let plain = file.ends_with(".safetensors") && !file.starts_with('.') && !file.contains(['/', '\\', ':', '\0']);
        if !plain {
            problems.push(format!("`weight_map.{name}` names {file:?}, which is not a plain .safetensors file name"));
        }
    }
    if weight_map.is_empty() {
        problems.push("`weight_map` names no tensor");
    }
    problems.into_model_result(path)?;
    Ok(weight_map)
}
