//! Attention over visible key ranges.
//!
//! On the CPU a query row sees a *virtual list*: its visible keys, ascending, counted from 0. A score is one chain of
//! additions over the head dimension; the maximum has no order; the sum of the exponentials takes lanes by virtual
//! index; the weighted sum of the values is one chain over the virtual list. So a row's bits depend on its query and
//! that sequence of keys and values alone: not on absolute key indices, on other rows, on threads, nor on whether the
//! keys stand in a tensor or in a [`KvCache`]. Tiles of rows only share loads.

mod backward;
mod forward;
mod op;
mod pack;
mod plan;
mod tile;

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData, activation};
use draftsman_contract::Visible;

pub(crate) use pack::PackedRows;

use crate::flex::{on_flex, to_vec};
use crate::kv_cache::{KvCache, Store};
use crate::simd::{Simd, math};
use plan::Plan;

/// What turns scores into weights. A plain scale converts into it.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOptions<'a> {
    /// Factor on the scores, usually `1/sqrt(head_dim)`.
    pub scale: f32,
    /// `[heads]`: one more logit for every query head, which takes part in the softmax of each row and has no value,
    /// so that the weights of the keys sum to less than 1 (gpt-oss). Not scaled, and frozen: no gradient goes there.
    pub sinks: Option<&'a Tensor<1>>,
}

impl From<f32> for AttentionOptions<'_> {
    fn from(scale: f32) -> Self {
        Self { scale, sinks: None }
    }
}

/// Grouped-query attention: query head h reads key head `h / (heads / kv_heads)`. Differentiable in q, k and v.
///
/// * `q` `[rows, heads, head_dim]`
/// * `k`, `v` `[keys, kv_heads, head_dim]`
/// * `visible` the keys of every row
/// * `options` a factor on the scores, usually `1/sqrt(head_dim)`, or [`AttentionOptions`]
///
/// Returns `[rows, heads, head_dim]`; a row that sees nothing gives zeros and takes no part in any gradient.
///
/// # Panics
/// When the shapes don't fit each other, `visible` has another number of rows, or names a key that is not there.
pub fn attention<'a>(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    visible: &Visible,
    options: impl Into<AttentionOptions<'a>>,
) -> Tensor<3> {
    let options = options.into();
    let group = check(q.dims(), k.dims(), v.dims(), visible, &options);
    if on_flex(&q) && on_flex(&k) && on_flex(&v) {
        op::attention(q, k, v, Plan::new(visible, group), Softmax::of(&options))
    } else {
        attention_reference(q, k, v, visible, options)
    }
}

/// [`AttentionOptions`] in plain memory.
#[derive(Debug, Clone)]
struct Softmax {
    scale: f32,
    /// One per query head, or none at all.
    sinks: Option<Arc<[f32]>>,
}

impl Softmax {
    fn of(options: &AttentionOptions) -> Self {
        let sinks = options.sinks.map(|sinks| to_vec(sinks.clone().inner()).into());
        Self { scale: options.scale, sinks }
    }

    /// Scores to weights before their division by the returned sum, which has the sink of query head `head` in it.
    /// 0 and no weight without a key.
    #[inline(always)]
    fn exponentials<S: Simd>(&self, s: S, scores: &mut [f32], head: usize) -> f32 {
        let max = math::max(s, scores);
        match &self.sinks {
            Some(sinks) if !scores.is_empty() => {
                let mut sink = [sinks[head]];
                let max = if sink[0] > max { sink[0] } else { max };
                math::exp_shifted_sum(s, scores, max) + math::exp_shifted_sum(s, &mut sink, max)
            }
            _ => math::exp_shifted_sum(s, scores, max),
        }
    }
}

/// [`attention`] over the keys and values of a cache, for inference: the result is not part of any gradient graph.
///
/// # Panics
/// As [`attention`].
pub fn attention_cached<'a>(
    q: Tensor<3>,
    cache: &KvCache,
    visible: &Visible,
    options: impl Into<AttentionOptions<'a>>,
) -> Tensor<3> {
    let options = options.into();
    let kv = [cache.len(), cache.kv_heads(), cache.head_dim()];
    let group = check(q.dims(), kv, kv, visible, &options);
    let (q, autodiff) = (q.clone().inner(), q.is_autodiff());
    let out = match cache.store() {
        Store::Host { keys, values } => {
            let (shape, device) = (q.dims(), q.device());
            let inputs = forward::Inputs {
                q: &to_vec(q),
                keys,
                values,
                heads: shape[1],
                softmax: &Softmax::of(&options),
                plan: &Plan::new(visible, group),
            };
            Tensor::from_data(TensorData::new(forward::forward(&inputs), shape), &device)
        }
        Store::Device { .. } => match cache.tensors() {
            Some((k, v)) => attention_reference(q, k, v, visible, options),
            None => q.zeros_like(),
        },
    };
    if autodiff { out.autodiff() } else { out }
}

/// [`attention`] in burn's own operations, with a dense mask: any device, the oracle of the tests.
///
/// # Panics
/// As [`attention`].
pub fn attention_reference<'a>(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    visible: &Visible,
    options: impl Into<AttentionOptions<'a>>,
) -> Tensor<3> {
    /// Low enough that exp of it is 0, and finite: -inf would make NaN of a row that sees nothing.
    const HIDDEN: f32 = -1e30;
    let AttentionOptions { scale, sinks } = options.into();
    let group = check(q.dims(), k.dims(), v.dims(), visible, &AttentionOptions { scale, sinks });
    let ([rows, heads, head_dim], [keys, kv_heads, _]) = (q.dims(), k.dims());
    if rows == 0 || keys == 0 {
        return q.zeros_like();
    }
    let mut seen = vec![0f32; rows * keys];
    for (row, seen) in seen.chunks_exact_mut(keys).enumerate() {
        for range in visible.row(row) {
            seen[range.start as usize..range.end as usize].fill(1.0);
        }
    }
    let seen = Tensor::<3>::from_data(TensorData::new(seen, [1, rows, keys]), &q.device()).cast(q.dtype());
    let seen = seen.expand([heads, rows, keys]);
    let sinks = sinks.map(|sinks| {
        let sinks = sinks.clone().inner().cast(q.dtype());
        let sinks = if q.is_autodiff() { sinks.autodiff() } else { sinks };
        sinks.reshape([heads, 1, 1]).expand([heads, rows, 1])
    });
    // The heads of a group stand next to each other: fold them into the rows instead of repeating the keys.
    let q = q.swap_dims(0, 1).reshape([kv_heads, group * rows, head_dim]);
    let scores = q.matmul(k.permute([1, 2, 0])) * scale;
    let scores = scores.reshape([heads, rows, keys]).mask_fill(seen.clone().equal_scalar(0.0), HIDDEN);
    // The product clears the uniform weights of a row that sees nothing.
    let weights = match sinks {
        None => activation::softmax(scores, 2),
        Some(sinks) => activation::softmax(Tensor::cat(vec![scores, sinks], 2), 2).narrow(2, 0, keys),
    } * seen;
    let out = weights.reshape([kv_heads, group * rows, keys]).matmul(v.swap_dims(0, 1));
    out.reshape([heads, rows, head_dim]).swap_dims(0, 1)
}

/// Query heads per key head, after all shapes were compared.
fn check(q: [usize; 3], k: [usize; 3], v: [usize; 3], visible: &Visible, options: &AttentionOptions) -> usize {
    let ([rows, heads, head_dim], [keys, kv_heads, key_dim]) = (q, k);
    assert_eq!(k, v, "attention: keys are {k:?}, values {v:?}");
    assert_eq!(head_dim, key_dim, "attention: queries are {q:?}, keys {k:?}: their head_dim differs");
    assert!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "attention: queries are {q:?}, keys {k:?}: {heads} heads can't be shared out to {kv_heads}"
    );
    assert_eq!(
        rows,
        visible.rows(),
        "attention: queries are {q:?}, visible ranges are there for another number of rows"
    );
    if let Some(sinks) = options.sinks {
        let [sinks] = sinks.dims();
        assert_eq!(sinks, heads, "attention: queries are {q:?}, but there are {sinks} sinks for {heads} heads");
    }
    if let Err(error) = visible.check_keys(keys) {
        panic!("attention: {error}");
    }
    heads / kv_heads
}
