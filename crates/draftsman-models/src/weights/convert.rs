//! Stored floats to f32.

use half::{bf16, f16};
use rayon::prelude::*;

/// Elements converted per task; fixed so that conversion is the same for any number of threads.
const CHUNK: usize = 1 << 16;

/// A stored float type, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Float {
    F32,
    F16,
    Bf16,
    F64,
}

impl Float {
    /// All elements that `bytes` hold.
    pub(super) fn read(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => convert(bytes, f32::from_le_bytes),
            Self::F16 => convert(bytes, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => convert(bytes, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F64 => convert(bytes, |b| f64::from_le_bytes(b) as f32),
        }
    }

    /// The elements with these indices, none of them beyond `bytes`.
    pub(super) fn gather(self, bytes: &[u8], indices: impl Iterator<Item = usize>) -> Vec<f32> {
        match self {
            Self::F32 => pick(bytes, indices, f32::from_le_bytes),
            Self::F16 => pick(bytes, indices, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => pick(bytes, indices, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F64 => pick(bytes, indices, |b| f64::from_le_bytes(b) as f32),
        }
    }
}

/// The bytes of each element.
pub(super) fn elements<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
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

fn pick<const N: usize>(bytes: &[u8], indices: impl Iterator<Item = usize>, one: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let all = bytes.as_chunks::<N>().0;
    indices.map(|i| one(all[i])).collect()
}
