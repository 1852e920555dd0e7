//! Output head, softmax and loss in one pass that never holds all logits.

mod fast;
mod reference;
mod row;

use burn::tensor::Tensor;

use crate::Weight;
use crate::flex::on_flex;

pub use reference::{head_logits_reference, linear_cross_entropy_reference};

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

/// Weighted cross-entropy of `h` `[rows, hidden]` through a frozen head `[vocab, hidden]`.
///
/// On the CPU the gradient is made in the same pass over the head and only scaled in the backward pass; a row's
/// numbers have the same bits whatever other rows are computed with it.
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
    check(&h, head);
    let (rows, vocab) = (h.dims()[0], head.shape()[0]);
    assert!(
        labels.len() == rows && weights.len() == rows,
        "linear_cross_entropy: {rows} rows, {} labels, {} weights",
        labels.len(),
        weights.len()
    );
    for (row, label) in labels.iter().enumerate() {
        assert!(
            label.is_none_or(|id| (id as usize) < vocab),
            "label {label:?} of row {row} in a vocabulary of {vocab}"
        );
    }
    if on_flex(&h) {
        fast::linear_cross_entropy(h, head, labels, weights, opts)
    } else {
        linear_cross_entropy_reference(h, head, labels, weights, opts)
    }
}

/// All logits: `[rows, vocab]`. For inference: on the CPU no gradient passes.
///
/// # Panics
/// If sizes differ.
pub fn head_logits(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Tensor<2> {
    check(&h, head);
    if on_flex(&h) { fast::head_logits(h, head, opts) } else { head_logits_reference(h, head, opts) }
}

/// The `opts.top_k` most probable tokens of every row with their log-probabilities, as in [`CrossEntropy::top`].
///
/// # Panics
/// If sizes differ.
pub fn head_top_k(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Vec<Vec<(u32, f32)>> {
    check(&h, head);
    if on_flex(&h) { fast::head_top_k(h, head, opts) } else { reference::head_top_k(h, head, opts) }
}

fn check(h: &Tensor<2>, head: &Weight) {
    let ([rows, hidden], [vocab, expected]) = (h.dims(), head.shape());
    assert!(hidden == expected, "head: hidden states are [{rows}, {hidden}] and the head is [{vocab}, {expected}]");
}
