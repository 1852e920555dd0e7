//! The gated delta layer: a linear attention whose keys and values live in one matrix a head.

use burn::tensor::Tensor;
use draftsman_contract::TreeShape;
use draftsman_kernels::{Weight, delta_gates, gated_rms_norm, linear};
use rayon::prelude::*;

use super::cache::LayerCache;
use super::decoder::Rows;
use super::delta_cache::{DeltaRows, Recurrence};
use super::spec::DeltaSpec;

/// Weights of one gated delta layer.
pub(super) struct GatedDelta {
    pub(super) sizes: DeltaSpec,
    /// `[channels, hidden]`: queries, keys, values.
    pub(super) in_qkv: Weight,
    /// `[value_heads * V, hidden]`: gate of the output.
    pub(super) in_z: Weight,
    /// `[value_heads, hidden]`: step of the decay.
    pub(super) in_a: Weight,
    /// `[value_heads, hidden]`: strength of the write.
    pub(super) in_b: Weight,
    /// `[channels, width]`
    pub(super) conv: Tensor<2>,
    /// `[value_heads]`: logarithm of the decay's rate.
    pub(super) a_log: Tensor<1>,
    /// `[value_heads]`
    pub(super) dt_bias: Tensor<1>,
    /// `[V]`
    pub(super) norm: Tensor<1>,
    /// `[hidden, value_heads * V]`
    pub(super) out: Weight,
}

impl GatedDelta {
    /// `[rows, hidden]` → `[rows, hidden]`. Every input continues from its own state.
    pub(super) fn forward(&self, h: Tensor<2>, rows: &Rows<'_>, caches: &mut [&mut LayerCache]) -> Tensor<2> {
        let ([count, _], autodiff) = (h.dims(), h.is_autodiff());
        let DeltaSpec { value_heads, value_dim, .. } = self.sizes;
        let (a, b) = (linear(h.clone(), &self.in_a), linear(h.clone(), &self.in_b));
        let (g, beta) = delta_gates(a, b, self.a_log.clone(), self.dt_bias.clone());
        let brought = DeltaRows { qkv: linear(h.clone(), &self.in_qkv).inner(), g: g.inner(), beta: beta.inner() };
        let recurrence = Recurrence { sizes: self.sizes, conv: self.conv.clone().inner(), rule: rows.delta_rule };
        let mix = |cache: &mut LayerCache, rows: &DeltaRows, tree: Option<&TreeShape>| match tree {
            Some(shape) => cache.delta().append_tree(&recurrence, rows, shape),
            None => cache.delta().append(&recurrence, rows),
        };
        let mixed = match (rows.segments, &mut *caches) {
            ([segment], [cache]) => mix(cache, &brought, segment.tree),
            _ => {
                let parts: Vec<Tensor<3>> = rows
                    .segments
                    .par_iter()
                    .zip(caches.par_iter_mut())
                    .map(|(segment, cache)| {
                        mix(cache, &brought.narrow(segment.rows.start, segment.rows.len()), segment.tree)
                    })
                    .collect();
                Tensor::cat(parts, 0)
            }
        };
        let mixed = if autodiff { mixed.autodiff() } else { mixed };
        let heads = [count * value_heads, value_dim];
        let z = linear(h, &self.in_z).reshape(heads);
        let normed = gated_rms_norm(mixed.reshape(heads), self.norm.clone(), z, rows.eps);
        linear(normed.reshape([count, value_heads * value_dim]), &self.out)
    }
}
