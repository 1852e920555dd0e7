//! What stands before and after the gated delta rule in a layer: its gates, and the norm of its output.

use burn::tensor::{Tensor, activation};

use crate::{rms_norm, swiglu};

/// Decay and write strength of the gated delta rule: `g = −exp(a_log) · softplus(a + dt_bias)` and
/// `beta = sigmoid(b)`, differentiable in all four. softplus is x above 20.
///
/// * `a`, `b` `[rows, value_heads]`
/// * `a_log`, `dt_bias` `[value_heads]`
///
/// Returns g and beta, `[rows, value_heads]` each. An element depends on its own inputs alone.
///
/// # Panics
/// When the shapes don't fit each other.
pub fn delta_gates(a: Tensor<2>, b: Tensor<2>, a_log: Tensor<1>, dt_bias: Tensor<1>) -> (Tensor<2>, Tensor<2>) {
    let [rows, heads] = a.dims();
    assert_eq!(b.dims(), [rows, heads], "delta_gates: a is [{rows}, {heads}], b must have its shape");
    for (name, x) in [("a_log", &a_log), ("dt_bias", &dt_bias)] {
        assert_eq!(x.dims(), [heads], "delta_gates: a is [{rows}, {heads}], {name} must have {heads} values");
    }
    if rows == 0 || heads == 0 {
        return (a, b);
    }
    let step = activation::softplus(a + dt_bias.unsqueeze::<2>(), 1.0);
    (step * -a_log.exp().unsqueeze::<2>(), activation::sigmoid(b))
}

/// The norm of the gated delta rule's output: `rms_norm(x) · w · silu(z)`, all in f32, differentiable in x, w and z.
///
/// * `x`, `z` `[rows · value_heads, V]`
/// * `w` `[V]`
///
/// Returns `[rows · value_heads, V]`. On the CPU device a row's result depends on its own inputs alone, to the bit.
///
/// # Panics
/// When the shapes don't fit each other.
pub fn gated_rms_norm(x: Tensor<2>, w: Tensor<1>, z: Tensor<2>, eps: f64) -> Tensor<2> {
    assert_eq!(x.dims(), z.dims(), "gated_rms_norm: x and z have different shapes");
    swiglu(z, rms_norm(x, w, eps))
}
