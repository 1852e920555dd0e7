//! The JSON header of one safetensors file, checked against the bytes that follow it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{ModelError, Problems};
use crate::weights::truncation::{TRUNCATED, Truncation};

/// Largest header read. 100,000 tensors need about 15 MB; more is an attack on memory.
const MAX_HEADER_BYTES: usize = 32 << 20;
/// Most dimensions of a tensor.
const MAX_RANK: usize = 8;

/// Stored element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
    F64,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F64" => Self::F64,
            "I64" => Self::I64,
            "I32" => Self::I32,
            "I16" => Self::I16,
            "I8" => Self::I8,
            "U64" => Self::U64,
            "U32" => Self::U32,
            "U16" => Self::U16,
            "U8" => Self::U8,
            "BOOL" => Self::Bool,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }
}

/// One tensor of the file; `bytes` is a range of the whole file and lies inside it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) dtype_name: String,
    /// `None`: a type this version cannot read (its length was not checked, so it is never read).
    pub(crate) dtype: Option<Dtype>,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Range<usize>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

struct RawHeader(BTreeMap<String, RawEntry>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let entry = map
                            .next_value::<RawEntry>()
                            .map_err(|e| de::Error::custom(format!("tensor `{name}`: {e}")))?;
                        // Two readers that disagree on which one counts would see two models.
                        if entries.contains_key(&name) {
                            return Err(de::Error::custom(format!("`{name}` is listed twice")));
                        }
                        entries.insert(name, entry);
                    }
                }
                Ok(RawHeader(entries))
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// Reads and checks the header of a file whose bytes are `file`.
pub(crate) fn read_header(path: &Path, file: &[u8]) -> Result<BTreeMap<String, Entry>, ModelError> {
    let len = file.len();
    let Some(prefix) = file.first_chunk::<8>() else {
        return Err(ModelError::malformed(
            path,
            format!("not a safetensors file: {len} bytes, the header length alone takes 8"),
            TRUNCATED,
        ));
    };
    let header_len = u64::from_le_bytes(*prefix);
    if header_len > MAX_HEADER_BYTES as u64 {
        return Err(ModelError::malformed(
            path,
            format!("the header claims {header_len} bytes, at most {MAX_HEADER_BYTES} are read"),
            "this is not a safetensors file, or a hostile one",
        ));
    }
    let data_start = 8 + header_len as usize;
    let Some(header) = file.get(8..data_start) else {
        return Err(ModelError::malformed(
            path,
            format!("the header ends at byte {data_start}, the file has {len}"),
            TRUNCATED,
        ));
    };
    let RawHeader(raw) = serde_json::from_slice(header).map_err(|e| {
        ModelError::malformed(
            path,
            format!("the header is not valid: {e}"),
            "this is not a safetensors file, or it was damaged",
        )
    })?;
    check_entries(path, raw, data_start, len)
}

fn check_entries(
    path: &Path,
    raw: BTreeMap<String, RawEntry>,
    data_start: usize,
    len: usize,
) -> Result<BTreeMap<String, Entry>, ModelError> {
    let data_len = (len - data_start) as u64;
    let mut problems = Problems::default();
    let mut truncation = Truncation::default();
    let mut entries = BTreeMap::new();
    let mut spans: Vec<(u64, u64, String)> = Vec::with_capacity(raw.len());
    for (name, RawEntry { dtype: dtype_name, shape, data_offsets: [start, end] }) in raw {
        let dtype = Dtype::parse(&dtype_name);
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let needed = match (dtype, elements) {
            (_, None) => None,
            (None, Some(_)) => Some(end.saturating_sub(start)),
            (Some(dtype), Some(elements)) => elements.checked_mul(dtype.bytes() as u64),
        };
        if shape.len() > MAX_RANK {
            problems.push(format!("tensor `{name}` has {} dimensions", shape.len()));
        } else if end < start {
            problems.push(format!("tensor `{name}` ends at byte {end}, before its start {start}"));
        } else if needed != Some(end - start) {
            problems.push(format!(
                "tensor `{name}`: shape {shape:?} of {dtype_name} does not take the {} bytes the header gives it",
                end - start
            ));
        } else if end > data_len {
            truncation.add(&name, (data_start as u64).saturating_add(end));
        } else {
            spans.push((start, end, name.clone()));
            entries.insert(
                name,
                Entry {
                    dtype_name,
                    dtype,
                    shape: shape.iter().map(|&d| d as usize).collect(),
                    bytes: data_start + start as usize..data_start + end as usize,
                },
            );
        }
    }
    spans.sort();
    let mut reached = 0;
    for (start, end, name) in &spans {
        if *start < reached {
            problems.push(format!("tensor `{name}` overlaps the one before it"));
        }
        reached = reached.max(*end);
    }
    if problems.is_empty() && truncation.is_empty() && reached != data_len {
        problems.push(format!("{} bytes after the last tensor belong to nothing", data_len - reached));
    }
    truncation.finish(path, len, problems)?;
    Ok(entries)
}
