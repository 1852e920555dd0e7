//! Output head, softmax and loss in one pass that never holds all logits.

use burn::tensor::Tensor;

use crate::Weight;

/// How hidden states become logits: `softcap(h·headᵀ · output_multiplier) / temperature`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadOptions {
    /// Factor on the raw product.
    pub output_multiplier: f32,
    /// c in `c·tanh(logit / c)`.
    pub final_logit_softcapping: Option<f32>,
    /// How many of the most probable tokens to return per row (0: none).
    pub top_k: usize,
    /// Divides the logits.
    pub temperature: f32,
}

impl Default for HeadOptions {
    fn default() -> Self {
        Self { output_multiplier: 1.0, final_logit_softcapping: None, top_k: 0, temperature: 1.0 }
    }
}

/// What [`linear_cross_entropy`] gives.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// Σ weight·cross-entropy over the rows with a label, `[1]`; differentiable in the hidden states.
    pub numerator: Tensor<1>,
    /// Σ weight over the rows with a label.
    pub denominator: f64,
    /// Per row the `top_k` most probable tokens with log-probabilities over the whole vocabulary: most probable
    /// first, ties by lower id.
    pub top: Vec<Vec<(u32, f32)>>,
    /// Per row log p(label); NaN without a label.
    pub label_log_prob: Vec<f32>,
}

/// Cross-entropy of `h` `[rows, hidden]` through a frozen head `[vocab, hidden]`.
///
/// # Panics
/// If sizes differ or a label is not below `vocab`.
pub fn linear_cross_entropy(
    h: Tensor<2>,
    head: &Weight,
    labels: &[Option<u32>],
    weights: &[f32],
    opts: &HeadOptions,
) -> CrossEntropy {
    let _ = (h, head, labels, weights, opts);
    unimplemented!()
}

/// All logits: `[rows, vocab]`.
pub fn head_logits(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Tensor<2> {
    let _ = (h, head, opts);
    unimplemented!()
}

/// The `opts.top_k` most probable tokens of every row with their log-probabilities, as in [`CrossEntropy::top`].
pub fn head_top_k(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Vec<Vec<(u32, f32)>> {
    let _ = (h, head, opts);
    unimplemented!()
}
