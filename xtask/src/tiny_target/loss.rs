//! Cross-entropy with its gradient written out: one pass over the logits instead of a graph of operations on them.

use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

/// The mean loss in nats, and a tensor whose gradients are the loss's.
pub(crate) fn cross_entropy(logits: Tensor<2>, labels: &[u32]) -> (f64, Tensor<1>) {
    let [rows, vocab] = logits.dims();
    let device = logits.device();
    let mut gradient: Vec<f32> = logits.clone().inner().into_data().iter::<f32>().collect();
    let scale = 1.0 / rows as f32;
    let losses: Vec<f64> = gradient
        .par_chunks_exact_mut(vocab)
        .zip(labels)
        .map(|(row, &label)| {
            let loss = softmax_less_label(row, label as usize);
            row.iter_mut().for_each(|value| *value *= scale);
            loss
        })
        .collect();
    let gradient = Tensor::<2>::from_data(TensorData::new(gradient, [rows, vocab]), &device);
    (losses.iter().sum::<f64>() / rows as f64, (logits * gradient).sum())
}

/// Turns a row of logits into the gradient of its loss; returns the loss.
fn softmax_less_label(row: &mut [f32], label: usize) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let chosen = row[label] - max;
    let mut sum = 0f64;
    for value in row.iter_mut() {
        *value = (*value - max).exp();
        sum += f64::from(*value);
    }
    let scale = (1.0 / sum) as f32;
    row.iter_mut().for_each(|value| *value *= scale);
    row[label] -= 1.0;
    sum.ln() - f64::from(chosen)
}

/// Losses of rows of logits in nats, without gradients.
pub(crate) fn losses(logits: Tensor<2>, labels: &[u32]) -> Vec<f64> {
    let [_, vocab] = logits.dims();
    let mut values: Vec<f32> = logits.into_data().iter::<f32>().collect();
    values.chunks_exact_mut(vocab).zip(labels).map(|(row, &label)| softmax_less_label(row, label as usize)).collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, activation};

    use super::*;

    #[test]
    fn gradient_is_that_of_log_softmax() {
        let device = Device::flex().autodiff();
        let (rows, vocab, labels) = (5, 7, [3u32, 0, 6, 6, 1]);
        let values: Vec<f32> = (0..rows * vocab).map(|i| ((i * 37 % 19) as f32 - 9.0) * 0.7).collect();
        let leaf = || Tensor::<2>::from_data(TensorData::new(values.clone(), [rows, vocab]), &device).require_grad();
        let floats = |x: Tensor<2>| x.into_data().iter::<f32>().collect::<Vec<_>>();

        let logits = leaf();
        let chosen = labels.iter().enumerate().fold(vec![0f32; rows * vocab], |mut mask, (row, &label)| {
            mask[row * vocab + label as usize] = -1.0 / rows as f32;
            mask
        });
        let chosen = Tensor::<2>::from_data(TensorData::new(chosen, [rows, vocab]), &device);
        let expected = (activation::log_softmax(logits.clone(), 1) * chosen).sum();
        let expected_loss = expected.clone().into_data().iter::<f64>().sum::<f64>();
        let expected = floats(logits.grad(&expected.backward()).expect("a gradient"));

        let logits = leaf();
        let (loss, graph) = cross_entropy(logits.clone(), &labels);
        let gradient = floats(logits.grad(&graph.backward()).expect("a gradient"));
        assert!((loss - expected_loss).abs() < 1e-6, "{loss} against {expected_loss}");
        let worst = gradient.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "gradients differ by {worst}");
    }
}
