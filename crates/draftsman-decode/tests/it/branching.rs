//! A proposer of trees that knows the answer.

#![allow(dead_code, reason = "included by the tests of two crates, each of which uses a part")]

use burn::tensor::Tensor;
use draftsman_contract::{CounterRng, DraftTree, TreeRule};
use draftsman_decode::{DecodeError, Proposer};

/// Candidates of a slot, and their log-probabilities.
const WIDTH: usize = 4;
const LOG_PROBS: [f32; WIDTH] = [-0.5, -1.5, -2.25, -3.0];

/// Puts the answer's token at a rank that depends on its position, or leaves it out, among other tokens.
pub(crate) struct Branching {
    answer: Vec<u32>,
    vocab: u32,
    depth: usize,
    taps: Vec<usize>,
    rule: TreeRule,
    /// What it was fed since [`Proposer::begin`].
    pub(crate) observed: Vec<u32>,
    pub(crate) features: Vec<f32>,
}

impl Branching {
    pub(crate) fn new(answer: &[u32], vocab: usize, depth: usize, taps: &[usize], rule: TreeRule) -> Self {
        let (answer, taps) = (answer.to_vec(), taps.to_vec());
        Self { answer, vocab: vocab as u32, depth, taps, rule, observed: Vec::new(), features: Vec::new() }
    }

    fn slots(&self, from: usize, count: usize) -> Vec<Vec<(u32, f32)>> {
        (from..from + count)
            .map(|at| {
                let mut rng = CounterRng::new(17, &[at as u64]);
                let truth = self.answer.get(at).copied().unwrap_or(0);
                // Of eight tokens five are first, one each second and third, one is missing.
                let rank = [0, 0, 0, 0, 0, 1, 2, WIDTH][rng.below(8)];
                let first_other = 1 + rng.below(self.vocab as usize - WIDTH - 1) as u32;
                let mut tokens: Vec<u32> = (first_other..).take(WIDTH).map(|n| (truth + n) % self.vocab).collect();
                if rank < WIDTH {
                    tokens[rank] = truth;
                }
                tokens.into_iter().zip(LOG_PROBS).collect()
            })
            .collect()
    }
}

impl Proposer for Branching {
    fn name(&self) -> String {
        format!("branching {:?}", self.rule)
    }
    fn taps(&self) -> &[usize] {
        &self.taps
    }
    fn block_size(&self) -> usize {
        self.depth + 1
    }
    fn begin(&mut self) {
        self.observed.clear();
        self.features.clear();
    }
    fn observe(&mut self, features: Option<Tensor<2>>, ids: &[u32]) -> Result<(), DecodeError> {
        self.observed.extend_from_slice(ids);
        if let Some(features) = features {
            assert_eq!(features.dims()[0], ids.len());
            self.features.extend(features.into_data().iter::<f32>());
        }
        Ok(())
    }
    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let slots = self.slots(ids.len(), max_drafts.min(self.depth));
        Ok(slots.iter().map(|slot| slot[0].0).collect())
    }
    fn draft(&mut self, ids: &[u32], max_drafts: usize) -> Result<DraftTree, DecodeError> {
        let (anchor, before) = ids.split_last().unwrap();
        if !self.observed.is_empty() {
            assert_eq!(self.observed, before, "observed rows are exactly those before the anchor {anchor}");
        }
        Ok(self.rule.build(&self.slots(ids.len(), max_drafts.min(self.depth))))
    }
}
