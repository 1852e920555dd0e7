//! Block types of GGUF tensors, dequantised exactly as ggml's own reference does (one rounding per operation, no
//! fused multiply-add).

use half::{bf16, f16};
use rayon::prelude::*;

/// Blocks per task; fixed, so that any number of threads does the same work.
const BLOCKS_PER_TASK: usize = 1 << 11;

/// Element type of a GGUF tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the format's own types")]
pub enum GgufType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q8_0,
    /// A type of the format that this version does not read.
    Other(u32),
}

impl GgufType {
    pub(super) fn from_id(id: u32) -> Self {
        match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            other => Self::Other(other),
        }
    }

    /// The name ggml gives it.
    pub fn name(self) -> String {
        let known = match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
            Self::Other(6) => "Q5_0",
            Self::Other(7) => "Q5_1",
            Self::Other(10) => "Q2_K",
            Self::Other(11) => "Q3_K",
            Self::Other(12) => "Q4_K",
            Self::Other(13) => "Q5_K",
            Self::Other(14) => "Q6_K",
            Self::Other(20) => "IQ4_NL",
            Self::Other(23) => "IQ4_XS",
            Self::Other(39) => "MXFP4",
            Self::Other(id) => return format!("type {id}"),
        };
        known.to_string()
    }

    /// Elements and bytes of one block; `None` for a type that is not read.
    pub(super) fn block(self) -> Option<(usize, usize)> {
        match self {
            Self::F32 => Some((1, 4)),
            Self::F16 | Self::Bf16 => Some((1, 2)),
            Self::Q4_0 => Some((32, 18)),
            Self::Q4_1 => Some((32, 20)),
            Self::Q8_0 => Some((32, 34)),
            Self::Other(_) => None,
        }
    }

    /// All elements of a tensor whose data are `bytes`; `None` for a type that is not read.
    pub(super) fn dequantise(self, bytes: &[u8]) -> Option<Vec<f32>> {
        Some(match self {
            Self::F32 => blocks::<4, 1>(bytes, |b, out| out[0] = f32::from_le_bytes(*b)),
            Self::F16 => blocks::<2, 1>(bytes, |b, out| out[0] = f16::from_le_bytes(*b).to_f32()),
            Self::Bf16 => blocks::<2, 1>(bytes, |b, out| out[0] = bf16::from_le_bytes(*b).to_f32()),
            Self::Q4_0 => blocks::<18, 32>(bytes, |b, out| {
                let d = half_at(b, 0);
                for (j, &q) in b[2..].iter().enumerate() {
                    out[j] = (f32::from(q & 15) - 8.0) * d;
                    out[j + 16] = (f32::from(q >> 4) - 8.0) * d;
                }
            }),
            Self::Q4_1 => blocks::<20, 32>(bytes, |b, out| {
                let (d, m) = (half_at(b, 0), half_at(b, 2));
                for (j, &q) in b[4..].iter().enumerate() {
                    out[j] = f32::from(q & 15) * d + m;
                    out[j + 16] = f32::from(q >> 4) * d + m;
                }
            }),
            Self::Q8_0 => blocks::<34, 32>(bytes, |b, out| {
                let d = half_at(b, 0);
                for (out, &q) in out.iter_mut().zip(&b[2..]) {
                    *out = f32::from(q as i8) * d;
                }
            }),
            Self::Other(_) => return None,
        })
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn blocks<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    one: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]) + Sync,
) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / BYTES * ELEMENTS];
    out.par_chunks_mut(BLOCKS_PER_TASK * ELEMENTS).zip(bytes.par_chunks(BLOCKS_PER_TASK * BYTES)).for_each(
        |(out, bytes)| {
            let blocks = bytes.as_chunks::<BYTES>().0;
            for (block, out) in blocks.iter().zip(out.as_chunks_mut::<ELEMENTS>().0) {
                one(block, out);
            }
        },
    );
    out
}
