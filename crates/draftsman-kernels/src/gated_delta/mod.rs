//! The gated delta rule, the linear attention of Qwen3-Next and Qwen3.5.
//!
//! A value head keeps a matrix S `[K, V]` and reads and writes it row by row. With k and q normalised to length 1 and
//! q scaled by K^-½:
//!
//! ```text
//! S ← exp(g)·S            forget
//! d = β·(v − Sᵀk)         what S does not yet answer to k
//! S ← S + k·dᵀ            write
//! o = Sᵀq                 read, after the write
//! ```
//!
//! Three forms compute it ([`DeltaRule`]). They are equal but for rounding. The recurrent one is the definition, and on
//! the CPU the fast one: its cost per row is that of passing over S, and a row's bits depend on the state before it and
//! on its own inputs alone.

mod chunked;
mod fla;
mod gates;
mod op;
mod recurrent;
mod reverse;

use std::fmt;
use std::str::FromStr;

use burn::tensor::Tensor;

pub use gates::{delta_gates, gated_rms_norm};

use crate::KernelError;
use crate::flex::on_flex;

/// Added to the squared length of q and k before they are divided by its root.
const NORM_EPS: f32 = 1e-6;

/// How the gated delta rule is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeltaRule {
    /// Row by row, in f32. n rows in one call have the bits of n calls with one row (CPU device).
    #[default]
    Recurrent,
    /// Matrix products over chunks of rows, in f32, by burn's own operations. The last chunk may be shorter.
    Chunked {
        /// Rows of a chunk, at least 1.
        chunk: usize,
    },
    /// What the flash-linear-attention kernels make of bf16 tensors, by emulation: inputs (but g) rounded to bf16, then
    /// chunks of 64 rows with bf16 wherever those kernels store or multiply bf16, then the output rounded to bf16.
    /// The state stays f32. A call with one row is their fused recurrent kernel, f32 inside, so that a decode mixes
    /// two roundings as it does there. It needs a device with bf16 arithmetic (the CPU has it).
    FlaRounding,
}

impl DeltaRule {
    /// `recurrent`, `chunked` or `fla-rounding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recurrent => "recurrent",
            Self::Chunked { .. } => "chunked",
            Self::FlaRounding => "fla-rounding",
        }
    }
}

impl fmt::Display for DeltaRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunked { chunk } => write!(f, "chunked:{chunk}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// The names, `chunked` with 64 rows or as many as follow in `chunked:32`.
impl FromStr for DeltaRule {
    type Err = KernelError;
    fn from_str(s: &str) -> Result<Self, KernelError> {
        let unknown = || KernelError::UnknownDeltaRule(s.to_owned());
        match s.split_once(':') {
            None if s == "recurrent" => Ok(Self::Recurrent),
            None if s == "chunked" => Ok(Self::Chunked { chunk: fla::CHUNK }),
            None if s == "fla-rounding" => Ok(Self::FlaRounding),
            Some(("chunked", rows)) => {
                let chunk = rows.parse().ok().filter(|&rows| rows > 0).ok_or_else(unknown)?;
                Ok(Self::Chunked { chunk })
            }
            _ => Err(unknown()),
        }
    }
}

/// What the rows of a sequence bring to the gated delta rule.
#[derive(Debug, Clone)]
pub struct DeltaInputs {
    /// `[rows, key_heads, K]`, before its normalisation.
    pub q: Tensor<3>,
    /// `[rows, key_heads, K]`, before its normalisation.
    pub k: Tensor<3>,
    /// `[rows, value_heads, V]`; value head h reads key head `h / (value_heads / key_heads)`.
    pub v: Tensor<3>,
    /// `[rows, value_heads]`, logarithm of the decay, not above 0 ([`delta_gates`]).
    pub g: Tensor<2>,
    /// `[rows, value_heads]`, strength of the write, 0 to 1.
    pub beta: Tensor<2>,
}

impl DeltaInputs {
    /// Value heads per key head, after all shapes were compared.
    fn check(&self, state: [usize; 3]) -> usize {
        let ([rows, key_heads, key_dim], [_, heads, value_dim]) = (self.q.dims(), self.v.dims());
        let (q, k, v) = (self.q.dims(), self.k.dims(), self.v.dims());
        assert_eq!(q, k, "gated_delta_rule: q is {q:?}, k {k:?}");
        assert_eq!(v[0], rows, "gated_delta_rule: q is {q:?}, v {v:?}: their rows differ");
        assert!(key_dim > 0, "gated_delta_rule: q is {q:?}, keys have no values");
        assert!(
            key_heads > 0 && heads.is_multiple_of(key_heads),
            "gated_delta_rule: q is {q:?}, v {v:?}: {heads} value heads can't be shared out to {key_heads} key heads"
        );
        for (name, gate) in [("g", &self.g), ("beta", &self.beta)] {
            assert_eq!(gate.dims(), [rows, heads], "gated_delta_rule: v is {v:?}, {name} must be [rows, value_heads]");
        }
        let expected = [heads, key_dim, value_dim];
        assert_eq!(state, expected, "gated_delta_rule: q is {q:?}, v {v:?}: the state must be [value_heads, K, V]");
        heads / key_heads
    }

    fn on_flex(&self) -> bool {
        [&self.q, &self.k, &self.v].into_iter().all(on_flex) && on_flex(&self.g) && on_flex(&self.beta)
    }
}

/// The gated delta rule over the rows of one sequence, differentiable in all inputs and the state.
///
/// * `state` `[value_heads, K, V]`, zeros at the start of a sequence
///
/// Returns the output `[rows, value_heads, V]` and the state after the last row, f32; without rows the state given.
///
/// # Panics
/// When the shapes don't fit each other, or a chunk has no rows.
pub fn gated_delta_rule(inputs: DeltaInputs, state: Tensor<3>, rule: DeltaRule) -> (Tensor<3>, Tensor<3>) {
    let group = inputs.check(state.dims());
    if inputs.v.dims().contains(&0) {
        return (inputs.v, state);
    }
    match rule {
        DeltaRule::Recurrent if inputs.on_flex() && on_flex(&state) => op::gated_delta_rule(inputs, state),
        DeltaRule::Recurrent => recurrence(inputs, state, group),
        DeltaRule::Chunked { chunk } => chunked::gated_delta_rule(inputs, state, chunk, group),
        DeltaRule::FlaRounding => fla::gated_delta_rule(inputs, state, group),
    }
}

/// [`DeltaRule::Recurrent`] in burn's own operations: any device, the oracle of the tests.
///
/// # Panics
/// As [`gated_delta_rule`].
pub fn gated_delta_rule_reference(inputs: DeltaInputs, state: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
    let group = inputs.check(state.dims());
    if inputs.v.dims().contains(&0) {
        return (inputs.v, state);
    }
    recurrence(inputs, state, group)
}

fn recurrence(inputs: DeltaInputs, mut state: Tensor<3>, group: usize) -> (Tensor<3>, Tensor<3>) {
    let Heads { q, k, v, g, beta } = Heads::new(inputs, group);
    let [heads, rows, key_dim] = k.dims();
    let scale = (key_dim as f64).powf(-0.5);
    let outputs = (0..rows).map(|t| {
        let column = |x: &Tensor<3>| x.clone().narrow(1, t, 1).reshape([heads, key_dim, 1]);
        let gate = |x: &Tensor<2>| x.clone().narrow(1, t, 1).reshape([heads, 1, 1]);
        let (q, k) = (column(&q) * scale, column(&k));
        let kept = state.clone() * gate(&g).exp();
        let answer = (kept.clone() * k.clone()).sum_dim(1);
        let write = (v.clone().narrow(1, t, 1) - answer) * gate(&beta);
        state = kept + k * write;
        (state.clone() * q).sum_dim(1)
    });
    let out = Tensor::cat(outputs.collect(), 1).swap_dims(0, 1);
    (out, state)
}

/// The inputs by value head: what the forms in burn's own operations share.
struct Heads {
    /// `[value_heads, rows, K]`, of length 1.
    q: Tensor<3>,
    /// `[value_heads, rows, K]`, of length 1.
    k: Tensor<3>,
    /// `[value_heads, rows, V]`
    v: Tensor<3>,
    /// `[value_heads, rows]`
    g: Tensor<2>,
    /// `[value_heads, rows]`
    beta: Tensor<2>,
}

impl Heads {
    fn new(inputs: DeltaInputs, group: usize) -> Self {
        let DeltaInputs { q, k, v, g, beta } = inputs;
        Self {
            q: for_value_heads(normalised(q), group),
            k: for_value_heads(normalised(k), group),
            v: v.swap_dims(0, 1),
            g: g.swap_dims(0, 1),
            beta: beta.swap_dims(0, 1),
        }
    }
}

/// `x / sqrt(Σx² + eps)` over the last dimension.
fn normalised(x: Tensor<3>) -> Tensor<3> {
    let length = (x.clone().powi_scalar(2).sum_dim(2) + NORM_EPS).sqrt();
    x / length
}

/// `[rows, key_heads, K]` to `[key_heads · group, rows, K]`.
fn for_value_heads(x: Tensor<3>, group: usize) -> Tensor<3> {
    let [rows, key_heads, key_dim] = x.dims();
    let x: Tensor<4> = x.swap_dims(0, 1).unsqueeze_dim(1);
    x.expand([key_heads, group, rows, key_dim]).reshape([key_heads * group, rows, key_dim])
}
