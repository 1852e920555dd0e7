//! GGUF, versions 2 and 3: metadata, and tensors dequantised on reading.

mod k_quant;
mod metadata;
mod quant;
mod reader;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use draftsman_kernels::MappedFile;

use crate::error::{ModelError, Problems};
use crate::weights::source::WeightSource;
use crate::weights::truncation::Truncation;

pub use metadata::{GgufMetadata, GgufValue};
pub use quant::GgufType;
use reader::Reader;

/// Most dimensions of a tensor (ggml's own limit).
const MAX_RANK: usize = 4;
/// Alignment of the data when the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment believed: beyond it, padding alone could hide most of a file.
const MAX_ALIGNMENT: u64 = 1 << 16;

/// One tensor of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensorInfo {
    /// Slowest dimension first (the file stores them reversed): `[out, in]` of a linear layer.
    pub shape: Vec<usize>,
    /// Element type.
    pub kind: GgufType,
    /// Where its data lie in the file; empty for a type that is not read.
    bytes: Range<usize>,
}

/// A memory-mapped GGUF file whose header was checked against its length.
pub struct GgufFile {
    file: MappedFile,
    metadata: GgufMetadata,
    tensors: BTreeMap<String, GgufTensorInfo>,
}

impl GgufFile {
    /// Opens a file and checks its whole header: every tensor's data lie inside the file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let file = MappedFile::open(path)?;
        let (metadata, tensors) = read_header(path, file.bytes())?;
        Ok(Self { file, metadata, tensors })
    }

    /// The metadata.
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// One tensor's description.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensorInfo> {
        self.tensors.get(name)
    }
}

impl WeightSource for GgufFile {
    fn path(&self) -> &Path {
        self.metadata.path()
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|t| t.shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<(String, bool)> {
        self.tensors.get(name).map(|t| (t.kind.name(), t.kind.block().is_some()))
    }

    fn load_f32(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let Some(tensor) = self.tensors.get(name) else {
            return Err(ModelError::missing_tensor(self.path(), name));
        };
        self.file.check()?;
        let bytes = self.file.bytes().get(tensor.bytes.clone()).ok_or_else(|| {
            ModelError::malformed(
                self.path(),
                format!("tensor `{name}` ends beyond the file"),
                "the file shrank while it was in use",
            )
        })?;
        tensor.kind.dequantise(bytes).ok_or_else(|| {
            ModelError::unsupported(
                self.path(),
                format!("tensor `{name}` is stored as {}", tensor.kind.name()),
                "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K are read",
            )
        })
    }

    fn release(&self, name: &str) {
        if let Some(tensor) = self.tensors.get(name) {
            self.file.release(tensor.bytes.clone());
        }
    }

    fn stored(&self, name: &str) -> Option<&[u8]> {
        self.file.bytes().get(self.tensors.get(name)?.bytes.clone())
    }
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<(GgufMetadata, BTreeMap<String, GgufTensorInfo>), ModelError> {
    let mut reader = Reader::new(path, bytes);
    if bytes.first_chunk::<4>() != Some(b"GGUF") {
        return Err(ModelError::malformed(
            path,
            format!("not a GGUF file ({} bytes, no GGUF magic)", bytes.len()),
            "a target is a .gguf file or a Hugging Face model folder",
        ));
    }
    reader.take(4)?;
    let version = reader.u32()?;
    if version != 2 && version != 3 {
        return Err(ModelError::unsupported(
            path,
            format!("GGUF version {version}"),
            "versions 2 and 3 (little-endian) are read; convert the model again",
        ));
    }
    // A tensor takes at least its name's length, rank, one dimension, type and offset; a key its length, type, value.
    reader.reading = "the tensor count".into();
    let tensor_count = reader.count(8 + 4 + 4 + 8)?;
    reader.reading = "the metadata count".into();
    let value_count = reader.count(8 + 4 + 1)?;
    let metadata = GgufMetadata::read(path, &mut reader, value_count)?;
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(value) => match value.as_u64() {
            Some(a) if a.is_power_of_two() && a <= MAX_ALIGNMENT => a,
            _ => {
                return Err(ModelError::config(
                    path,
                    "general.alignment",
                    format!("{value:?} is not a power of two up to {MAX_ALIGNMENT}"),
                    "the file is damaged",
                ));
            }
        },
    };
    let mut raw = BTreeMap::new();
    for index in 0..tensor_count {
        reader.reading = format!("tensor entry {index}");
        let name = reader.string()?.to_string();
        reader.reading = format!("tensor `{name}`");
        let rank = reader.u32()? as usize;
        if rank > MAX_RANK {
            return Err(reader.error(format!("{rank} dimensions, at most {MAX_RANK} exist")));
        }
        let mut shape = Vec::with_capacity(rank);
        for _ in 0..rank {
            shape.push(reader.u64()?);
        }
        let kind = GgufType::from_id(reader.u32()?);
        let offset = reader.u64()?;
        if raw.insert(name, (shape, kind, offset)).is_some() {
            return Err(reader.error("the name occurs twice"));
        }
    }
    let data_start = (reader.position() as u64).next_multiple_of(alignment);
    let tensors = place_tensors(path, raw, data_start, alignment, bytes.len())?;
    Ok((metadata, tensors))
}

type RawTensors = BTreeMap<String, (Vec<u64>, GgufType, u64)>;

fn place_tensors(
    path: &Path,
    raw: RawTensors,
    data_start: u64,
    alignment: u64,
    len: usize,
) -> Result<BTreeMap<String, GgufTensorInfo>, ModelError> {
    let mut problems = Problems::default();
    let mut truncation = Truncation::default();
    let mut tensors = BTreeMap::new();
    for (name, (dims, kind, offset)) in raw {
        match data_range(&dims, kind, offset, data_start, alignment) {
            Err(problem) => problems.push(format!("tensor `{name}`: {problem}")),
            Ok(bytes) if bytes.end > len as u64 => truncation.add(&name, bytes.end),
            Ok(bytes) => {
                let shape = dims.iter().rev().map(|&d| d as usize).collect();
                let bytes = bytes.start as usize..bytes.end as usize;
                tensors.insert(name, GgufTensorInfo { shape, kind, bytes });
            }
        }
    }
    let mut placed: Vec<(&String, &Range<usize>)> =
        tensors.iter().map(|(name, tensor)| (name, &tensor.bytes)).collect();
    placed.sort_by_key(|(_, bytes)| (bytes.start, bytes.end));
    for pair in placed.windows(2) {
        let [(first, a), (second, b)] = pair else { continue };
        if b.start < a.end && !b.is_empty() {
            problems.push(format!("tensors `{first}` and `{second}` share bytes {}..{}", b.start, a.end.min(b.end)));
        }
    }
    truncation.finish(path, len, problems)?;
    Ok(tensors)
}

/// Where the data of a tensor lie in the file, or what is wrong with its description; empty for a type that is not
/// read, whose size is not known.
fn data_range(
    dims: &[u64],
    kind: GgufType,
    offset: u64,
    data_start: u64,
    alignment: u64,
) -> Result<Range<u64>, String> {
    let overflow = || format!("dimensions {dims:?} at offset {offset} overflow");
    let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or_else(overflow)?;
    let Some((block, block_bytes)) = kind.block() else {
        return Ok(0..0);
    };
    let row = dims.first().copied().unwrap_or(1);
    if row % block as u64 != 0 {
        return Err(format!("rows of {row} elements are not whole {} blocks", kind.name()));
    }
    if !offset.is_multiple_of(alignment) {
        return Err(format!("offset {offset} is not aligned to {alignment}"));
    }
    let size = (elements / block as u64).checked_mul(block_bytes as u64).ok_or_else(overflow)?;
    let start = data_start.checked_add(offset).ok_or_else(overflow)?;
    Ok(start..start.checked_add(size).ok_or_else(overflow)?)
}
