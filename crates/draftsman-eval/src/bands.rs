//! Acceptance by where in the sequence a block stands.

use serde::Serialize;

/// Width of the first bands, tokens.
const FIRST_WIDTH: usize = 16;

/// Passes whose anchor lies in one part of the sequence, prompt included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PositionBand {
    /// First position.
    pub from: usize,
    /// The position after the last.
    pub to: usize,
    /// Verify passes.
    pub cycles: u64,
    /// Tokens they committed.
    pub decoded_tokens: u64,
    /// Tokens per pass.
    pub acceptance_length_micro: f64,
}

/// Counts by band.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bands(Vec<(u64, u64)>);

impl Bands {
    /// A pass at `position` that committed `tokens`.
    pub fn record(&mut self, position: usize, tokens: usize) {
        let band = (0..).find(|&band| position < end(band)).unwrap_or(0);
        if self.0.len() <= band {
            self.0.resize(band + 1, (0, 0));
        }
        self.0[band].0 += 1;
        self.0[band].1 += tokens as u64;
    }

    /// The bands that have passes, from the beginning on.
    pub fn report(&self) -> Vec<PositionBand> {
        let filled = self.0.iter().enumerate().filter(|(_, (cycles, _))| *cycles > 0);
        filled
            .map(|(band, &(cycles, decoded_tokens))| PositionBand {
                from: band.checked_sub(1).map_or(0, end),
                to: end(band),
                cycles,
                decoded_tokens,
                acceptance_length_micro: decoded_tokens as f64 / cycles as f64,
            })
            .collect()
    }
}

/// Where a band ends: 16, 32, 48, 64, then two to every doubling (96, 128, 192, 256, ...).
fn end(band: usize) -> usize {
    if band < 4 {
        return FIRST_WIDTH * (band + 1);
    }
    let (doublings, half) = ((band - 4) / 2, (band - 4) % 2);
    let start = (4 * FIRST_WIDTH) << doublings;
    if half == 0 { start + start / 2 } else { start * 2 }
}
