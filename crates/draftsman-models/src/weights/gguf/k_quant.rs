//! The K block types of GGUF: 256 elements in sub-blocks whose scales are quantised themselves.
//!
//! A sub-block is 16 or 32 elements. Every type scales its integer scales first and multiplies by the element second,
//! one rounding each, as ggml's reference does.

use super::quant::half_at;

/// Elements of a block.
pub(super) const ELEMENTS: usize = 256;
pub(super) const Q2K_BYTES: usize = 84;
pub(super) const Q3K_BYTES: usize = 110;
pub(super) const Q4K_BYTES: usize = 144;
pub(super) const Q5K_BYTES: usize = 176;
pub(super) const Q6K_BYTES: usize = 210;

/// Scales and minima of 4 bits (16 bytes), 2-bit elements (64), f16 scale and minimum.
pub(super) fn q2_k(block: &[u8; Q2K_BYTES], out: &mut [f32; ELEMENTS]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (e, out) in out.iter_mut().enumerate() {
        let scale = block[e / 16];
        let (d, m) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
        *out = d * f32::from(two_bits(&block[16..80], e)) - m;
    }
}

/// The third bits (32 bytes; a set bit means that 4 is not subtracted), 2-bit elements (64), 6-bit scales (12), f16.
pub(super) fn q3_k(block: &[u8; Q3K_BYTES], out: &mut [f32; ELEMENTS]) {
    let d = half_at(block, 108);
    let scales = &block[96..108];
    for (e, out) in out.iter_mut().enumerate() {
        let sub = e / 16;
        let low = if sub < 8 { scales[sub] & 15 } else { scales[sub - 8] >> 4 };
        let high = (scales[8 + sub % 4] >> (2 * (sub / 4))) & 3;
        let scale = f32::from((low | high << 4) as i8 - 32);
        let third = (block[e % 32] >> (e / 32)) & 1;
        let q = two_bits(&block[32..96], e) as i8 - if third == 1 { 0 } else { 4 };
        *out = d * scale * f32::from(q);
    }
}

/// f16 scale and minimum, 6-bit scales and minima (12 bytes), 4-bit elements (128).
pub(super) fn q4_k(block: &[u8; Q4K_BYTES], out: &mut [f32; ELEMENTS]) {
    let subs = scaled_subs(&block[..16]);
    for (e, out) in out.iter_mut().enumerate() {
        let (d, m) = subs[e / 32];
        *out = d * f32::from(four_bits(&block[16..], e)) - m;
    }
}

/// As Q4_K, with the fifth bits (32 bytes) before the elements.
pub(super) fn q5_k(block: &[u8; Q5K_BYTES], out: &mut [f32; ELEMENTS]) {
    let subs = scaled_subs(&block[..16]);
    for (e, out) in out.iter_mut().enumerate() {
        let (d, m) = subs[e / 32];
        let fifth = (block[16 + e % 32] >> (e / 32)) & 1;
        *out = d * f32::from(four_bits(&block[48..], e) | fifth << 4) - m;
    }
}

/// Low four bits (128 bytes), high two bits (64), 8-bit scales (16), f16.
pub(super) fn q6_k(block: &[u8; Q6K_BYTES], out: &mut [f32; ELEMENTS]) {
    let d = half_at(block, 208);
    for (e, out) in out.iter_mut().enumerate() {
        // Halves of 128 elements: 64 bytes hold the low nibbles of the first 64 and the high ones of the rest.
        let (half, within) = (e / 128, e % 128);
        let low = (block[64 * half + within % 64] >> (4 * (within / 64))) & 15;
        let high = two_bits(&block[128..192], e);
        let scale = f32::from(block[192 + e / 16] as i8);
        *out = d * scale * f32::from((low | high << 4) as i8 - 32);
    }
}

/// Element `e` of 2-bit elements: every 32 bytes hold four planes of 32.
fn two_bits(packed: &[u8], e: usize) -> u8 {
    (packed[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4))) & 3
}

/// Element `e` of 4-bit elements: every 32 bytes hold two planes of 32.
fn four_bits(packed: &[u8], e: usize) -> u8 {
    (packed[32 * (e / 64) + e % 32] >> (4 * (e / 32 % 2))) & 15
}

/// Scale and minimum of the eight sub-blocks of Q4_K and Q5_K. Of twelve bytes, the first four hold the low scales,
/// the next four the low minima, and the last four the low nibbles of the high ones, whose upper two bits are the
/// upper two of the first eight bytes.
fn scaled_subs(header: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (half_at(header, 0), half_at(header, 2));
    let packed = &header[4..16];
    std::array::from_fn(|i| {
        let (scale, min) = match i {
            0..4 => (packed[i] & 63, packed[i + 4] & 63),
            _ => ((packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4, packed[i + 4] >> 4 | (packed[i] >> 6) << 4),
        };
        (d * f32::from(scale), dmin * f32::from(min))
    })
}
