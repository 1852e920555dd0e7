//! Forward and loss of one pack.

use burn::tensor::{Int, Tensor, TensorData};
use draftsman_contract::{chain, tree_accepted};
use draftsman_kernels::{Weight, linear_cross_entropy};
use draftsman_models::{Context, Dflash, ModelError};

use crate::pack::Pack;

/// Nodes of the tree behind `ddtree8`, and candidates kept in every slot so that it is exact.
pub const TREE_BUDGET: usize = 8;

/// Loss of one pack, before it is divided by anything.
#[derive(Debug, Clone)]
pub struct PackLoss {
    /// Σ weight · cross-entropy, `[1]`, differentiable in the drafter's parameters.
    pub numerator: Tensor<1>,
    /// Σ weight.
    pub weight_sum: f64,
    /// Documents in the pack.
    pub documents: usize,
    /// What each block drafted, in layout order.
    pub blocks: Vec<BlockScore>,
}

/// The candidates of one block beside the truth.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockScore {
    /// Per predicting slot the most probable tokens with their log-probabilities, best first.
    pub slots: Vec<Vec<(u32, f32)>>,
    /// Per predicting slot the label, where there is one.
    pub truth: Vec<Option<u32>>,
    /// Per predicting slot whether the label is supervised, so that a hit can be counted there.
    pub judged: Vec<bool>,
    /// Leading slots over which acceptance may be counted.
    pub valid: usize,
}

impl BlockScore {
    /// Accepted drafts of the chain of first choices.
    #[must_use]
    pub fn chain(&self) -> usize {
        let drafts: Vec<u32> = self.slots.iter().map_while(|slot| slot.first().map(|(id, _)| *id)).collect();
        chain(&drafts, &self.known_truth(), self.valid)
    }

    /// Accepted drafts of the best-first tree of [`TREE_BUDGET`] nodes.
    #[must_use]
    pub fn tree(&self) -> usize {
        tree_accepted(&self.slots, &self.known_truth(), self.valid, TREE_BUDGET)
    }

    /// Per predicting slot whether the first choice was the label; `None` where there is none to compare with.
    pub fn hits(&self) -> impl Iterator<Item = Option<bool>> + '_ {
        self.slots.iter().zip(&self.truth).zip(&self.judged).map(|((slot, truth), judged)| {
            let truth = truth.filter(|_| *judged)?;
            Some(slot.first().is_some_and(|(id, _)| *id == truth))
        })
    }

    fn known_truth(&self) -> Vec<u32> {
        self.truth.iter().map_while(|token| *token).collect()
    }
}

/// Runs the drafter over `pack`: block rows after the final norm, `[block rows, hidden]`.
pub fn forward(drafter: &Dflash, embedding: &Weight, pack: &Pack) -> Result<Tensor<2>, ModelError> {
    let context = drafter.context(pack.features.clone())?;
    let block = drafter.embed(&pack.block_ids, embedding)?;
    drafter.forward(block, &pack.layout, Context::Rows { context, positions: &pack.context_positions }, None)
}

/// Runs the drafter over `pack` and judges its blocks. `head` is the target's.
pub fn pack_loss(drafter: &Dflash, embedding: &Weight, head: &Weight, pack: &Pack) -> Result<PackLoss, ModelError> {
    let hidden = forward(drafter, embedding, pack)?;
    // Discarded slots need no logits: one row in block_size of the dearest product of the step.
    let rows = pack.predicting_rows();
    let index: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [rows.len()]), &hidden.device());
    let hidden = hidden.select(0, index);
    let labels: Vec<Option<u32>> =
        rows.iter().map(|row| pack.labels[*row].filter(|_| pack.weights[*row] > 0.0)).collect();
    let weights: Vec<f32> = rows.iter().map(|row| pack.weights[*row]).collect();
    let scored = linear_cross_entropy(hidden, head, &labels, &weights, &drafter.head_options(TREE_BUDGET));
    let mut top = scored.top.into_iter();
    let blocks = pack
        .layout
        .blocks
        .iter()
        .zip(pack.layout.row_ranges())
        .map(|(block, rows)| {
            let predicting = (rows.start + pack.first_slot).min(rows.end)..rows.end;
            BlockScore {
                slots: top.by_ref().take(predicting.len()).collect(),
                truth: pack.labels[predicting.clone()].to_vec(),
                judged: predicting
                    .enumerate()
                    .map(|(slot, row)| slot < block.valid || pack.weights[row] > 0.0)
                    .collect(),
                valid: block.valid,
            }
        })
        .collect();
    Ok(PackLoss { numerator: scored.numerator, weight_sum: scored.denominator, documents: pack.documents, blocks })
}
