//! Emulated rounding of the flash-linear-attention kernels on bf16 tensors.
//!
//! Inside them q and k are stored in bf16 after their normalisation; the inverse, u, w, the state that a chunk reads,
//! the scores and the new values are bf16 operands of products that add up in f32; gates, norms, the inversion and the
//! carried state are f32. Not emulated: the order of additions inside a product, TF32 in the blocks of the inversion,
//! exp2 in place of exp, and what a GPU's units do with each.

use burn::tensor::{DType, Tensor};

use super::{DeltaInputs, Heads, chunked, gated_delta_rule as by_rule};
use crate::DeltaRule;

/// Rows of a chunk.
pub(super) const CHUNK: usize = 64;

/// Rounds to the nearest bf16, ties to even, and keeps the type.
fn bf16<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    x.cast(DType::BF16).cast(dtype)
}

pub(super) fn gated_delta_rule(inputs: DeltaInputs, state: Tensor<3>, group: usize) -> (Tensor<3>, Tensor<3>) {
    let device = state.device();
    assert!(device.supports_dtype(DType::BF16), "gated_delta_rule: fla-rounding needs bf16, which {device:?} lacks");
    let DeltaInputs { q, k, v, g, beta } = inputs;
    let inputs = DeltaInputs { q: bf16(q), k: bf16(k), v: bf16(v), g, beta: bf16(beta) };
    let (out, state) = if inputs.q.dims()[0] == 1 {
        by_rule(inputs, state, DeltaRule::Recurrent)
    } else {
        let heads = Heads::new(inputs, group);
        let heads = Heads { q: bf16(heads.q), k: bf16(heads.k), ..heads };
        chunked::in_chunks(heads, state, CHUNK, bf16)
    };
    (bf16(out), state)
}
