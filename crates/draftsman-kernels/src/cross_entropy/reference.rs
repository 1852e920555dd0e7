//! The head in burn's own operations: every device, differentiable, some rows at a time.

use burn::tensor::{Int, Tensor, TensorData, activation};

use super::{CrossEntropy, HeadOptions};
use crate::flex::to_vec;
use crate::{Weight, linear_reference};

/// Rows whose logits are held at a time.
const ROWS: usize = 64;

/// [`crate::head_logits`] in burn's own operations; differentiable.
pub fn head_logits_reference(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Tensor<2> {
    let logits = linear_reference(h, head) * opts.output_multiplier;
    let logits = match opts.final_logit_softcapping {
        Some(cap) => (logits / cap).tanh() * cap,
        None => logits,
    };
    logits / opts.temperature
}

/// [`crate::linear_cross_entropy`] in burn's own operations.
pub fn linear_cross_entropy_reference(
    h: Tensor<2>,
    head: &Weight,
    labels: &[Option<u32>],
    weights: &[f32],
    opts: &HeadOptions,
) -> CrossEntropy {
    let device = h.device();
    let rows = h.dims()[0];
    let mut numerator = Tensor::<1>::zeros([1], &device);
    let (mut top, mut label_log_prob) = (Vec::new(), vec![f32::NAN; rows]);
    for start in (0..rows).step_by(ROWS) {
        let end = rows.min(start + ROWS);
        let logits = head_logits_reference(h.clone().slice([start..end]), head, opts);
        let log_prob = activation::log_softmax(logits, 1);
        if opts.top_k > 0 {
            top.extend(top_rows(log_prob.clone().detach(), opts.top_k));
        }
        let labelled: Vec<usize> = (start..end).filter(|row| labels[*row].is_some()).collect();
        if labelled.is_empty() {
            continue;
        }
        let n = labelled.len();
        let index = |values: Vec<i32>| Tensor::<1, Int>::from_data(TensorData::new(values, [n]), &device);
        let picked = log_prob
            .select(0, index(labelled.iter().map(|row| (row - start) as i32).collect()))
            .gather(
                1,
                index(labelled.iter().filter_map(|row| labels[*row]).map(|id| id as i32).collect()).reshape([n, 1]),
            )
            .reshape([n]);
        for (row, value) in labelled.iter().zip(to_vec(picked.clone().detach())) {
            label_log_prob[*row] = value;
        }
        let weights: Vec<f32> = labelled.iter().map(|row| weights[*row]).collect();
        numerator = numerator - (picked * Tensor::<1>::from_floats(weights.as_slice(), &device)).sum();
    }
    if opts.top_k == 0 {
        top = vec![Vec::new(); rows];
    }
    CrossEntropy { numerator, denominator: super::fast::denominator(labels, weights), top, label_log_prob }
}

pub(super) fn head_top_k(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Vec<Vec<(u32, f32)>> {
    let rows = h.dims()[0];
    let mut top = Vec::with_capacity(rows);
    for start in (0..rows).step_by(ROWS) {
        let logits = head_logits_reference(h.clone().slice([start..rows.min(start + ROWS)]), head, opts).detach();
        top.extend(top_rows(activation::log_softmax(logits, 1), opts.top_k));
    }
    top
}

/// Per row the k largest, ties by lower id.
fn top_rows(log_prob: Tensor<2>, k: usize) -> Vec<Vec<(u32, f32)>> {
    let vocab = log_prob.dims()[1];
    let mut order: Vec<u32> = Vec::new();
    to_vec(log_prob)
        .chunks(vocab)
        .map(|row| {
            order.clear();
            order.extend(0..vocab as u32);
            let better = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
            let k = k.min(vocab);
            if k > 0 && k < vocab {
                order.select_nth_unstable_by(k - 1, better);
            }
            order.truncate(k);
            order.sort_unstable_by(better);
            order.iter().map(|id| (*id, row[*id as usize])).collect()
        })
        .collect()
}
