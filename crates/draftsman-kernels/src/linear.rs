//! Matrix product with a weight.

use burn::tensor::Tensor;

use crate::Weight;

/// x·Wᵀ: `[rows, in]` with a weight `[out, in]` gives `[rows, out]`.
///
/// Differentiable in `x`, and in the weight where it is a tracked tensor. On the CPU an output row has the same bits
/// whatever other rows are computed with it.
///
/// # Panics
/// If the inner sizes differ.
pub fn linear(x: Tensor<2>, w: &Weight) -> Tensor<2> {
    linear_reference(x, w)
}

/// [`linear`] in burn's own operations, on every device.
pub fn linear_reference(x: Tensor<2>, w: &Weight) -> Tensor<2> {
    let w = w.to_tensor(&x.device());
    x.matmul(w.transpose())
}
