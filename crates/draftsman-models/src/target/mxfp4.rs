//! MXFP4: blocks of 32 four-bit floats (E2M1) that share one power of two.

use rayon::prelude::*;

/// Values of a block.
pub(super) const BLOCK: usize = 32;
/// Blocks of one unit of work.
const CHUNK: usize = 1 << 11;

/// The sixteen four-bit floats: sign, two bits of exponent, one of mantissa.
const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Values of blocks of 16 bytes each, low nibble first; a scale s stands for 2^(s − 127).
pub(super) fn dequantise(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
    let mut values = vec![0f32; scales.len() * BLOCK];
    (values.par_chunks_mut(CHUNK * BLOCK))
        .zip(blocks.par_chunks(CHUNK * BLOCK / 2))
        .zip(scales.par_chunks(CHUNK))
        .for_each(|((values, blocks), scales)| {
            let blocks = values.chunks_exact_mut(BLOCK).zip(blocks.chunks_exact(BLOCK / 2)).zip(scales);
            for ((values, bytes), &scale) in blocks {
                let scale = power_of_two(scale);
                for (pair, byte) in values.chunks_exact_mut(2).zip(bytes) {
                    pair[0] = VALUES[usize::from(byte & 15)] * scale;
                    pair[1] = VALUES[usize::from(byte >> 4)] * scale;
                }
            }
        });
    values
}

/// 2^(s − 127); the two lowest have no normal f32.
fn power_of_two(scale: u8) -> f32 {
    (f64::from(scale) - 127.0).exp2() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_and_scales_are_read_in_order() {
        let mut blocks = [0u8; 32];
        blocks[0] = 0x71; // 0.5, then 6
        blocks[16] = 0xf9; // -0.5, then -6
        let values = dequantise(&blocks, &[128, 125]);
        assert_eq!((values[0], values[1], values[32], values[33]), (1.0, 12.0, -0.125, -1.5));
        assert!(values.iter().enumerate().all(|(i, v)| matches!(i, 0 | 1 | 32 | 33) || *v == 0.0));
        assert_eq!(power_of_two(0), f32::from_bits(1 << 22));
    }
}
