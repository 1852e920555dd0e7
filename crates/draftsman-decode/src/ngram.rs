//! Prompt lookup: copy what followed the last time. The floor that a drafter must beat.

use burn::tensor::Tensor;

use crate::{DecodeError, Proposer};

/// Lengths of the looked-up suffix, tried in this order.
const NGRAM_LENGTHS: [usize; 2] = [3, 2];

/// Finds the most recent earlier occurrence of the last three tokens (then two) and drafts what followed it.
#[derive(Debug, Clone)]
pub struct NgramProposer {
    block_size: usize,
}

impl NgramProposer {
    /// Lookup of at most `block_size - 1` drafts.
    pub fn new(block_size: usize) -> Self {
        Self { block_size }
    }
}

impl Proposer for NgramProposer {
    fn name(&self) -> String {
        "ngram".into()
    }

    fn taps(&self) -> &[usize] {
        &[]
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn begin(&mut self) {}

    fn observe(&mut self, _features: Option<Tensor<2>>, _ids: &[u32]) -> Result<(), DecodeError> {
        Ok(())
    }

    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let most = max_drafts.min(self.block_size.saturating_sub(1));
        if most == 0 {
            return Ok(Vec::new());
        }
        for n in NGRAM_LENGTHS {
            let Some(suffix_at) = ids.len().checked_sub(n) else { continue };
            let suffix = &ids[suffix_at..];
            // The earlier occurrence may overlap the suffix but must start before it, so at least one token follows it.
            if let Some(at) = (0..suffix_at).rev().find(|&at| &ids[at..at + n] == suffix) {
                let from = at + n;
                return Ok(ids[from..ids.len().min(from + most)].to_vec());
            }
        }
        Ok(Vec::new())
    }
}
