//! Key-value metadata of a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::reader::Reader;
use crate::error::ModelError;

/// Arrays inside arrays deeper than this are refused (none are used in practice).
const MAX_NESTING: usize = 4;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's own types")]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Vec<GgufValue>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl GgufValue {
    /// A non-negative whole number of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// A float of either width, or a whole number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            // Through the shortest decimal, so that 1e-5 stored as f32 reads as 1e-5; it is the same f32 again.
            Self::F32(v) => v.to_string().parse().ok(),
            Self::F64(v) => Some(v),
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v as f64),
            _ => self.as_u64().map(|v| v as f64),
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Bool(_) => "a boolean",
            Self::F32(_) | Self::F64(_) => "a float",
            _ => "a whole number",
        }
    }

    fn read(reader: &mut Reader<'_>, kind: u32, depth: usize) -> Result<Self, ModelError> {
        Ok(match kind {
            0 => Self::U8(u8::from_le_bytes(reader.array()?)),
            1 => Self::I8(i8::from_le_bytes(reader.array()?)),
            2 => Self::U16(u16::from_le_bytes(reader.array()?)),
            3 => Self::I16(i16::from_le_bytes(reader.array()?)),
            4 => Self::U32(reader.u32()?),
            5 => Self::I32(i32::from_le_bytes(reader.array()?)),
            6 => Self::F32(f32::from_le_bytes(reader.array()?)),
            7 => Self::Bool(u8::from_le_bytes(reader.array()?) != 0),
            8 => Self::String(reader.string()?.to_string()),
            9 => {
                if depth >= MAX_NESTING {
                    return Err(reader.error("arrays are nested too deep"));
                }
                let kind = reader.u32()?;
                let count = reader.array_len(smallest(kind))?;
                // Grown while reading: a value here is wider than its bytes in the file.
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(Self::read(reader, kind, depth + 1)?);
                }
                Self::Array(values)
            }
            10 => Self::U64(reader.u64()?),
            11 => Self::I64(i64::from_le_bytes(reader.array()?)),
            12 => Self::F64(f64::from_le_bytes(reader.array()?)),
            other => return Err(reader.error(format!("value type {other} does not exist"))),
        })
    }
}

/// Fewest bytes that a value of this type takes in the file.
fn smallest(kind: u32) -> usize {
    match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        9 => 12,
        _ => 8,
    }
}

/// The metadata of a GGUF file: what the model is, its tokenizer, its chat template.
#[derive(Debug, Clone)]
pub struct GgufMetadata {
    path: PathBuf,
    values: BTreeMap<String, GgufValue>,
}

impl GgufMetadata {
    pub(super) fn read(path: &Path, reader: &mut Reader<'_>, count: usize) -> Result<Self, ModelError> {
        let mut values = BTreeMap::new();
        for index in 0..count {
            reader.reading = format!("metadata entry {index}");
            let key = reader.string()?.to_string();
            reader.reading = format!("metadata `{key}`");
            let kind = reader.u32()?;
            let value = GgufValue::read(reader, kind, 0)?;
            if values.insert(key, value).is_some() {
                return Err(reader.error("the key occurs twice"));
            }
        }
        Ok(Self { path: path.to_path_buf(), values })
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// A value of any type.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.values.get(key)
    }

    /// A string; `None` when missing or of another type.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// A non-negative whole number; `None` when missing or of another type.
    pub fn get_u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// A non-negative whole number that fits 32 bits (token ids).
    pub fn get_u32(&self, key: &str) -> Option<u32> {
        self.get_u64(key)?.try_into().ok()
    }

    /// A number; `None` when missing or of another type.
    pub fn get_f64(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    /// A boolean; `None` when missing or of another type.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            GgufValue::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// An array of strings; `None` when missing or when an element is something else.
    pub fn get_str_array(&self, key: &str) -> Option<Vec<&str>> {
        self.elements(key)?.iter().map(GgufValue::as_str).collect()
    }

    /// An array of whole numbers that fit 32 bits.
    pub fn get_u32_array(&self, key: &str) -> Option<Vec<u32>> {
        let one = |v: &GgufValue| v.as_u64()?.try_into().ok();
        self.elements(key)?.iter().map(one).collect()
    }

    /// An array of numbers, as f32 (token scores).
    pub fn get_f32_array(&self, key: &str) -> Option<Vec<f32>> {
        let one = |v: &GgufValue| Some(v.as_f64()? as f32);
        self.elements(key)?.iter().map(one).collect()
    }

    /// Number of elements of an array.
    pub fn array_len(&self, key: &str) -> Option<usize> {
        Some(self.elements(key)?.len())
    }

    fn elements(&self, key: &str) -> Option<&[GgufValue]> {
        match self.get(key)? {
            GgufValue::Array(values) => Some(values),
            _ => None,
        }
    }

    /// A whole number that must be there.
    pub fn require_usize(&self, key: &str) -> Result<usize, ModelError> {
        self.require(key, "a whole number", |v| v.as_u64()?.try_into().ok())
    }

    /// A number that must be there.
    pub fn require_f64(&self, key: &str) -> Result<f64, ModelError> {
        self.require(key, "a number", GgufValue::as_f64)
    }

    /// A string that must be there.
    pub fn require_str(&self, key: &str) -> Result<&str, ModelError> {
        self.require(key, "a string", GgufValue::as_str)
    }

    fn require<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        convert: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<T, ModelError> {
        let found = match self.get(key) {
            None => "it is missing".to_string(),
            Some(value) => match convert(value) {
                Some(value) => return Ok(value),
                None => format!("it is {}", value.kind()),
            },
        };
        Err(ModelError::config(
            &self.path,
            key,
            format!("expected {wanted}, {found}"),
            "convert the model again with a current llama.cpp",
        ))
    }
}
