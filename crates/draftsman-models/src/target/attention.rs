//! Causal grouped-query attention with rotary positions, over a cache of keys and values.

use burn::tensor::{Tensor, activation};
use draftsman_kernels::{AttentionOptions, Weight, attention_cached, linear, rms_norm, rope};
use rayon::prelude::*;

use super::cache::LayerCache;
use super::decoder::{Rows, Segment};
use super::spec::{AttentionParts, MixerKind, TargetSpec};
use super::tensors::Tensors;
use crate::error::ModelError;

/// Weights and rules of one attention layer.
pub(super) struct Attention {
    /// `[heads * head_dim, hidden]`
    pub(super) q: Weight,
    /// `[kv_heads * head_dim, hidden]`
    pub(super) k: Weight,
    /// `[kv_heads * head_dim, hidden]`
    pub(super) v: Weight,
    /// `[hidden, heads * head_dim]`
    pub(super) o: Weight,
    /// Of q, k and v.
    pub(super) input_biases: Option<[Tensor<1>; 3]>,
    pub(super) output_bias: Option<Tensor<1>>,
    /// `[heads * head_dim, hidden]`: the output of every head times the sigmoid of this.
    pub(super) gate: Option<Weight>,
    /// `[head_dim]`
    pub(super) q_norm: Option<Tensor<1>>,
    /// `[head_dim]`
    pub(super) k_norm: Option<Tensor<1>>,
    /// `[heads]`
    pub(super) sinks: Option<Tensor<1>>,
    /// Keys a row sees at most.
    pub(super) window: Option<usize>,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Attention {
    /// Reads `self_attn.*`.
    pub(super) fn load(spec: &TargetSpec, tensors: &Tensors<'_>, index: usize) -> Result<Self, ModelError> {
        let q_width = spec.num_heads * spec.head_dim;
        let q = tensors.matrix("self_attn.q_proj.weight", [q_width, spec.hidden_size])?;
        let k = tensors.matrix("self_attn.k_proj.weight", [spec.num_kv_heads * spec.head_dim, spec.hidden_size])?;
        Self::load_with(spec, tensors, index, q, k, None)
    }

    /// As [`Attention::load`] where queries and keys are stored in a way of the architecture's own.
    pub(super) fn load_with(
        spec: &TargetSpec,
        tensors: &Tensors<'_>,
        index: usize,
        q: Weight,
        k: Weight,
        gate: Option<Weight>,
    ) -> Result<Self, ModelError> {
        let TargetSpec { num_heads, num_kv_heads, head_dim, hidden_size, .. } = *spec;
        let AttentionParts { qkv_bias, o_bias, qk_norm, sinks, output_gate: _ } = spec.attention;
        let (q_width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
        let input_biases = if qkv_bias {
            Some([
                tensors.vector("self_attn.q_proj.bias", q_width)?,
                tensors.vector("self_attn.k_proj.bias", kv_width)?,
                tensors.vector("self_attn.v_proj.bias", kv_width)?,
            ])
        } else {
            None
        };
        let head_norm = |name: &str| qk_norm.then(|| tensors.norm(name, head_dim)).transpose();
        Ok(Self {
            q,
            k,
            v: tensors.matrix("self_attn.v_proj.weight", [kv_width, hidden_size])?,
            o: tensors.matrix("self_attn.o_proj.weight", [hidden_size, q_width])?,
            input_biases,
            output_bias: tensors.vector_if(o_bias, "self_attn.o_proj.bias", hidden_size)?,
            gate,
            q_norm: head_norm("self_attn.q_norm.weight")?,
            k_norm: head_norm("self_attn.k_norm.weight")?,
            sinks: tensors.vector_if(sinks, "self_attn.sinks", num_heads)?,
            window: match spec.layers[index].mixer {
                MixerKind::Sliding { window } => Some(window),
                _ => None,
            },
            heads: num_heads,
            kv_heads: num_kv_heads,
            head_dim,
        })
    }

    /// Nothing but q, k, v, o and norms of the heads.
    pub(super) fn is_plain(&self) -> bool {
        self.input_biases.is_none() && self.output_bias.is_none() && self.gate.is_none() && self.sinks.is_none()
    }

    /// `[rows, hidden]` → `[rows, hidden]`. Every input sees its own cache only.
    pub(super) fn forward(&self, h: Tensor<2>, rows: &Rows<'_>, caches: &mut [&mut LayerCache]) -> Tensor<2> {
        let [count, _] = h.dims();
        let mut q = linear(h.clone(), &self.q);
        let mut k = linear(h.clone(), &self.k);
        let mut v = linear(h.clone(), &self.v);
        if let Some(biases) = &self.input_biases {
            let [q_bias, k_bias, v_bias] = biases.clone();
            (q, k, v) = (add_bias(q, q_bias), add_bias(k, k_bias), add_bias(v, v_bias));
        }
        let gate = self.gate.as_ref().map(|gate| linear(h, gate));
        let q = self.heads_of(q, self.heads, self.q_norm.as_ref(), rows.eps);
        let k = self.heads_of(k, self.kv_heads, self.k_norm.as_ref(), rows.eps);
        let v = self.heads_of(v, self.kv_heads, None, rows.eps);
        let q = rope(q, rows.rope, rows.positions);
        let k = rope(k, rows.rope, rows.positions);
        let attended = match (rows.segments, &mut *caches) {
            ([segment], [cache]) => self.attend(q, k, v, segment, cache),
            _ => {
                // Inputs share nothing, so threads take whole inputs; a single query row gives one thread too little.
                let parts: Vec<Tensor<3>> = rows
                    .segments
                    .par_iter()
                    .zip(caches.par_iter_mut())
                    .map(|(segment, cache)| {
                        let rows = |x: &Tensor<3>| x.clone().narrow(0, segment.rows.start, segment.rows.len());
                        self.attend(rows(&q), rows(&k), rows(&v), segment, cache)
                    })
                    .collect();
                Tensor::cat(parts, 0)
            }
        };
        let mut attended = attended.reshape([count, self.heads * self.head_dim]);
        if let Some(gate) = gate {
            attended = attended * activation::sigmoid(gate);
        }
        let out = linear(attended, &self.o);
        match &self.output_bias {
            Some(bias) => add_bias(out, bias.clone()),
            None => out,
        }
    }

    /// `[rows, heads * head_dim]` → `[rows, heads, head_dim]`, every head normed.
    fn heads_of(&self, x: Tensor<2>, heads: usize, norm: Option<&Tensor<1>>, eps: f64) -> Tensor<3> {
        let ([rows, _], dim) = (x.dims(), self.head_dim);
        match norm {
            Some(norm) => rms_norm(x.reshape([rows * heads, dim]), norm.clone(), eps).reshape([rows, heads, dim]),
            None => x.reshape([rows, heads, dim]),
        }
    }

    fn attend(
        &self,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
        segment: &Segment<'_>,
        cache: &mut LayerCache,
    ) -> Tensor<3> {
        let cache = cache.attention();
        cache.append(k, v);
        let visible = segment.visible(self.window);
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        attention_cached(q, cache, &visible, AttentionOptions { scale, sinks: self.sinks.as_ref() })
    }
}

/// `[rows, width]` + `[width]`
pub(super) fn add_bias(x: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    x + bias.unsqueeze::<2>()
}
