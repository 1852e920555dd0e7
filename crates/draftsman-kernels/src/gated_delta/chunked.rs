//! The chunked form: all rows of a chunk at once, by matrix products; only the state goes from chunk to chunk.
//!
//! Inside a chunk let G_i be the sum of g up to row i and Γ_ij = exp(G_i − G_j) for i ≥ j, else 0. Row i writes
//! d_i = β_i·(v_i − exp(G_i)·Sᵀk_i − Σ_{j<i} Γ_ij (k_i·k_j)·d_j), a triangular system for all d of the chunk:
//!
//! ```text
//! N = strictly lower part of diag(β)·K·Kᵀ∘Γ          T = (I + N)⁻¹
//! U = T·diag(β)·V       W = T·diag(β·exp(G))·K       D = U − W·S
//! O = diag(exp(G))·Q·S + (Q·Kᵀ∘Γ)·D                  S ← exp(G_C)·S + (diag(exp(G_C − G))·K)ᵀ·D
//! ```

use burn::tensor::Tensor;

use super::{DeltaInputs, Heads};

/// Rounding at the places where a kernel keeps an intermediate result in a narrower type.
pub(super) type Rounding = fn(Tensor<3>) -> Tensor<3>;

/// Rounds nothing.
fn exact(x: Tensor<3>) -> Tensor<3> {
    x
}

pub(super) fn gated_delta_rule(
    inputs: DeltaInputs,
    state: Tensor<3>,
    chunk: usize,
    group: usize,
) -> (Tensor<3>, Tensor<3>) {
    in_chunks(Heads::new(inputs, group), state, chunk, exact)
}

/// The output `[rows, value_heads, V]` and the state after it. `round` is applied to T, to the operands and results of
/// U and W, to the state that a chunk reads, to the scores, and to D in both of its uses.
pub(super) fn in_chunks(heads: Heads, mut state: Tensor<3>, chunk: usize, round: Rounding) -> (Tensor<3>, Tensor<3>) {
    assert!(chunk > 0, "gated_delta_rule: a chunk has no rows");
    let [_, rows, key_dim] = heads.k.dims();
    let scale = (key_dim as f64).powf(-0.5);
    let mut outputs = Vec::with_capacity(rows.div_ceil(chunk));
    for start in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - start);
        let part = |x: &Tensor<3>| x.clone().narrow(1, start, count);
        let (q, k, v) = (part(&heads.q), part(&heads.k), part(&heads.v));
        let gates = |x: &Tensor<2>| x.clone().narrow(1, start, count);
        let (g, beta) = (gates(&heads.g), gates(&heads.beta).unsqueeze_dim::<3>(2));

        let mask = Masks::new(&state, count);
        let decay = decay(g.clone(), &mask);
        // exp(G_i) and exp(G_C − G_i)
        let since_start = g.cumsum(1).exp().unsqueeze_dim::<3>(2);
        let until_end = decay.clone().narrow(1, count - 1, 1).swap_dims(1, 2);

        let overlap = k.clone().matmul(k.clone().swap_dims(1, 2)) * decay.clone() * beta.clone();
        let inverse = round(unit_lower_inverse(overlap * mask.before));
        let u = round(inverse.clone().matmul(round(v * beta.clone())));
        let w = round(inverse.matmul(round(k.clone() * (beta * since_start.clone()))));
        let seen = round(state.clone());
        let writes = u - w.matmul(seen.clone());

        let scores = round(q.clone().matmul(k.clone().swap_dims(1, 2)) * decay);
        let out = q.matmul(seen) * since_start.clone() + scores.matmul(round(writes.clone()));
        outputs.push(out * scale);
        let kept = state * since_start.narrow(1, count - 1, 1);
        state = kept + k.swap_dims(1, 2).matmul(round(writes * until_end));
    }
    (Tensor::cat(outputs, 1).swap_dims(0, 1), state)
}

/// `[1, rows, rows]` constants, 1 or 0.
struct Masks {
    /// j < i
    before: Tensor<3>,
    /// j ≤ i
    up_to: Tensor<3>,
}

impl Masks {
    fn new(like: &Tensor<3>, rows: usize) -> Self {
        let ones = Tensor::<2>::ones([rows, rows], &like.device()).cast(like.dtype());
        Self { before: ones.clone().tril(-1).unsqueeze(), up_to: ones.tril(0).unsqueeze() }
    }
}

/// Γ. The sum of g from row j + 1 to i is added up by itself: the difference of two sums from the chunk's start would
/// lose what small decays say after a large one.
///
/// * `g` `[heads, rows]`
fn decay(g: Tensor<2>, mask: &Masks) -> Tensor<3> {
    /// exp of it is 0. Masked before the exponential, which overflows above the diagonal.
    const NEVER: f32 = -1e30;
    let sums = (g.unsqueeze_dim::<3>(2) * mask.before.clone()).cumsum(1);
    let [heads, rows, _] = sums.dims();
    let hidden = mask.up_to.clone().equal_scalar(0.0).expand([heads, rows, rows]);
    sums.mask_fill(hidden, NEVER).exp()
}

/// `(I + N)⁻¹` of a strictly lower triangular N, row by row: T_i = e_i − N_i·T (forward substitution).
///
/// The product (I − N)(I + N²)(I + N⁴)… is the same in exact numbers and useless in f32: the powers of N grow by many
/// orders of magnitude before they cancel.
///
/// * `n` `[heads, rows, rows]`
fn unit_lower_inverse(n: Tensor<3>) -> Tensor<3> {
    let [heads, rows, _] = n.dims();
    let identity = Tensor::<2>::eye(rows, &n.device()).cast(n.dtype()).unsqueeze::<3>().expand([heads, rows, rows]);
    let mut inverse = identity.clone().narrow(1, 0, 1);
    for i in 1..rows {
        let row = n.clone().narrow(1, i, 1).narrow(2, 0, i);
        let row = identity.clone().narrow(1, i, 1) - row.matmul(inverse.clone());
        inverse = Tensor::cat(vec![inverse, row], 1);
    }
    inverse
}
