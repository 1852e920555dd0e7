//! Block types of GGUF tensors, dequantised exactly as ggml's own reference does (one rounding per operation, no
//! fused multiply-add).

use half::{bf16, f16};
use rayon::prelude::*;

use super::k_quant;

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
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
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
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
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
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Other(9) => "Q8_1",
            Self::Other(15) => "Q8_K",
            Self::Other(16) => "IQ2_XXS",
            Self::Other(17) => "IQ2_XS",
            Self::Other(18) => "IQ3_XXS",
            Self::Other(19) => "IQ1_S",
            Self::Other(21) => "IQ3_S",
            Self::Other(22) => "IQ2_S",
            Self::Other(29) => "IQ1_M",
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
            Self::Q5_0 => Some((32, 22)),
            Self::Q5_1 => Some((32, 24)),
            Self::Q8_0 => Some((32, 34)),
            Self::Q2K => Some((k_quant::ELEMENTS, k_quant::Q2K_BYTES)),
            Self::Q3K => Some((k_quant::ELEMENTS, k_quant::Q3K_BYTES)),
            Self::Q4K => Some((k_quant::ELEMENTS, k_quant::Q4K_BYTES)),
            Self::Q5K => Some((k_quant::ELEMENTS, k_quant::Q5K_BYTES)),
            Self::Q6K => Some((k_quant::ELEMENTS, k_quant::Q6K_BYTES)),
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
            Self::Q5_0 => blocks::<22, 32>(bytes, |b, out| {
                let (d, fifth) = (half_at(b, 0), u32::from_le_bytes([b[2], b[3], b[4], b[5]]));
                for (j, &q) in b[6..].iter().enumerate() {
                    out[j] = (five_bits(q & 15, fifth >> j) - 16.0) * d;
                    out[j + 16] = (five_bits(q >> 4, fifth >> (j + 16)) - 16.0) * d;
                }
            }),
            Self::Q5_1 => blocks::<24, 32>(bytes, |b, out| {
                let (d, m) = (half_at(b, 0), half_at(b, 2));
                let fifth = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
                for (j, &q) in b[8..].iter().enumerate() {
                    out[j] = five_bits(q & 15, fifth >> j) * d + m;
                    out[j + 16] = five_bits(q >> 4, fifth >> (j + 16)) * d + m;
                }
            }),
            Self::Q8_0 => blocks::<34, 32>(bytes, |b, out| {
                let d = half_at(b, 0);
                for (out, &q) in out.iter_mut().zip(&b[2..]) {
                    *out = f32::from(q as i8) * d;
                }
            }),
            Self::Q2K => blocks(bytes, k_quant::q2_k),
            Self::Q3K => blocks(bytes, k_quant::q3_k),
            Self::Q4K => blocks(bytes, k_quant::q4_k),
            Self::Q5K => blocks(bytes, k_quant::q5_k),
            Self::Q6K => blocks(bytes, k_quant::q6_k),
            Self::Other(_) => return None,
        })
    }
}

/// Four low bits, and a fifth that is the lowest bit of `fifth`.
fn five_bits(low: u8, fifth: u32) -> f32 {
    f32::from(low | ((fifth & 1) << 4) as u8)
}

pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
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
