//! The llama forward: RMS norm, grouped-query attention with rotary positions, gated MLP.

use burn::tensor::{Device, Tensor};
use draftsman_contract::Visible;
use draftsman_kernels::{RopeTable, Weight, attention_cached, linear, rms_norm, rope, swiglu};
use rayon::prelude::*;

use super::{LayerWeights, LogitRows, Observer, Target, TargetCache, TargetInput, TargetOutput, TargetSpec, Want};
use crate::error::ModelError;

/// One decoder layer.
pub(super) struct Layer {
    pub(super) input_norm: Tensor<1>,
    pub(super) q: Weight,
    pub(super) k: Weight,
    pub(super) v: Weight,
    pub(super) o: Weight,
    pub(super) post_attention_norm: Tensor<1>,
    pub(super) gate: Weight,
    pub(super) up: Weight,
    pub(super) down: Weight,
}

/// A llama: the whole model, frozen.
pub struct Llama {
    pub(super) spec: TargetSpec,
    pub(super) device: Device,
    pub(super) embedding: Weight,
    pub(super) head: Weight,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Tensor<1>,
    pub(super) rope: RopeTable,
}

/// Rows of one input in the concatenation, and what each of them sees.
struct Segment {
    rows: std::ops::Range<usize>,
    visible: Visible,
}

impl Llama {
    /// Checks a whole call before anything changes; returns how many layers must run.
    fn check(&self, batch: &[TargetInput<'_>], want: &Want) -> Result<usize, ModelError> {
        let TargetSpec { num_layers, vocab_size, max_positions, .. } = self.spec;
        if let Some(&layer) = want.taps.iter().find(|&&t| t >= num_layers) {
            return Err(ModelError::LayerOutOfRange { layer, num_layers });
        }
        let last_tap = want.taps.iter().max().map_or(0, |t| t + 1);
        let needed = if want.logits == LogitRows::None { last_tap } else { num_layers };
        if needed == 0 {
            return Err(ModelError::InvalidInput("a target forward was asked for neither taps nor logits".into()));
        }
        if batch.is_empty() || batch.iter().any(|input| input.ids.is_empty()) {
            return Err(ModelError::InvalidInput(
                "a target forward needs at least one input, and every input at least one token".into(),
            ));
        }
        for TargetInput { ids, cache } in batch {
            if cache.layers.len() != num_layers {
                return Err(ModelError::InvalidInput(format!(
                    "the cache has {} layers, the target {num_layers}: it belongs to another target",
                    cache.layers.len()
                )));
            }
            cache.check_layers(needed)?;
            let needed = cache.len() + ids.len();
            if needed > max_positions {
                return Err(ModelError::ContextTooLong { needed, max_positions });
            }
            if let Some(index) = ids.iter().position(|&id| id as usize >= vocab_size) {
                return Err(ModelError::TokenOutOfRange { id: ids[index], index, vocab_size });
            }
        }
        let rows: usize = batch.iter().map(|input| input.ids.len()).sum();
        if let LogitRows::Rows(chosen) = &want.logits
            && let Some(row) = chosen.iter().find(|&&row| row >= rows)
        {
            return Err(ModelError::InvalidInput(format!(
                "logits of row {row} were asked for, the forward has {rows} rows"
            )));
        }
        Ok(needed)
    }

    /// Attention sub-layer: `[rows, hidden]` → `[rows, heads * head_dim]`. Every input sees its own cache only.
    fn attend(
        &self,
        index: usize,
        h: Tensor<2>,
        positions: &[u32],
        segments: &[Segment],
        batch: &mut [TargetInput<'_>],
    ) -> Tensor<2> {
        let layer = &self.layers[index];
        let (heads, kv_heads, dim) = (self.spec.num_heads, self.spec.num_kv_heads, self.spec.head_dim);
        let [rows, _] = h.dims();
        let q = linear(h.clone(), &layer.q).reshape([rows, heads, dim]);
        let k = linear(h.clone(), &layer.k).reshape([rows, kv_heads, dim]);
        let v = linear(h, &layer.v).reshape([rows, kv_heads, dim]);
        let q = rope(q, &self.rope, positions);
        let k = rope(k, &self.rope, positions);
        let scale = 1.0 / (dim as f32).sqrt();
        let one = |q, k, v, segment: &Segment, input: &mut TargetInput<'_>| {
            let cache = &mut input.cache.layers[index];
            cache.append(k, v);
            attention_cached(q, cache, &segment.visible, scale)
        };
        let attended = match (segments, &mut *batch) {
            ([segment], [input]) => one(q, k, v, segment, input),
            _ => {
                // Inputs share nothing, so threads take whole inputs; a single query row gives one thread too little.
                let parts: Vec<Tensor<3>> = segments
                    .par_iter()
                    .zip(batch.par_iter_mut())
                    .map(|(segment, input)| {
                        let rows = |x: &Tensor<3>| x.clone().narrow(0, segment.rows.start, segment.rows.len());
                        one(rows(&q), rows(&k), rows(&v), segment, input)
                    })
                    .collect();
                Tensor::cat(parts, 0)
            }
        };
        attended.reshape([rows, heads * dim])
    }
}

impl Target for Llama {
    fn spec(&self) -> &TargetSpec {
        &self.spec
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn embedding(&self) -> &Weight {
        &self.embedding
    }

    fn head(&self) -> &Weight {
        &self.head
    }

    fn final_norm(&self) -> Tensor<1> {
        self.final_norm.clone()
    }

    fn new_cache(&self) -> TargetCache {
        TargetCache::new(&self.spec, &self.device)
    }

    fn layer_weights(&self, layer: usize) -> Option<LayerWeights<'_>> {
        self.layers.get(layer).map(|l| LayerWeights {
            q: &l.q,
            k: &l.k,
            v: &l.v,
            o: &l.o,
            gate: &l.gate,
            up: &l.up,
            down: &l.down,
            input_norm: l.input_norm.clone(),
            post_attention_norm: l.post_attention_norm.clone(),
        })
    }

    fn forward(
        &self,
        batch: &mut [TargetInput<'_>],
        want: &Want,
        mut observe: Option<Observer<'_>>,
    ) -> Result<TargetOutput, ModelError> {
        let layers = self.check(batch, want)?;
        let mut see = |name: &str, x: &Tensor<2>| {
            if let Some(observe) = observe.as_deref_mut() {
                observe(name, x);
            }
        };
        let eps = self.spec.rms_norm_eps;
        let mut ids = Vec::new();
        let mut positions = Vec::new();
        let mut segments = Vec::new();
        for input in batch.iter() {
            let (start, past) = (ids.len(), input.cache.len());
            ids.extend_from_slice(input.ids);
            // Positions fit: max_positions is checked and capped far below u32::MAX.
            positions.extend((past..past + input.ids.len()).map(|p| p as u32));
            segments.push(Segment { rows: start..ids.len(), visible: Visible::causal(past, input.ids.len()) });
        }

        let mut x = self.embedding.rows(&ids, &self.device);
        see("embed", &x);
        let mut tapped: Vec<Option<Tensor<2>>> = vec![None; want.taps.len()];
        for (index, layer) in self.layers[..layers].iter().enumerate() {
            let h = rms_norm(x.clone(), layer.input_norm.clone(), eps);
            let attended = self.attend(index, h, &positions, &segments, batch);
            x = x + linear(attended, &layer.o);
            let h = rms_norm(x.clone(), layer.post_attention_norm.clone(), eps);
            let inner = swiglu(linear(h.clone(), &layer.gate), linear(h, &layer.up));
            x = x + linear(inner, &layer.down);
            see(&format!("layer.{index}"), &x);
            for (slot, &tap) in tapped.iter_mut().zip(&want.taps) {
                if tap == index {
                    *slot = Some(x.clone());
                }
            }
        }
        for input in batch.iter_mut() {
            input.cache.advance(input.ids.len());
        }

        let features: Vec<Tensor<2>> = tapped.into_iter().flatten().collect();
        let features = (!features.is_empty()).then(|| Tensor::cat(features, 1));
        let chosen = match &want.logits {
            LogitRows::None => {
                return Ok(TargetOutput { features, logits: None });
            }
            LogitRows::All => x,
            LogitRows::Last => {
                let last: Vec<usize> = segments.iter().map(|s| s.rows.end - 1).collect();
                self.select(x, &last)
            }
            LogitRows::Rows(rows) => self.select(x, rows),
        };
        let normed = rms_norm(chosen, self.final_norm.clone(), eps);
        see("final_norm", &normed);
        Ok(TargetOutput { features, logits: Some(linear(normed, &self.head)) })
    }
}

impl Llama {
    /// Rows of `[rows, hidden]`, in the order given.
    fn select(&self, x: Tensor<2>, rows: &[usize]) -> Tensor<2> {
        let [all, _] = x.dims();
        if rows.len() == all && rows.iter().enumerate().all(|(i, &row)| i == row) {
            return x;
        }
        match *rows {
            [row] => x.narrow(0, row, 1),
            _ => {
                let rows: Vec<i32> = rows.iter().map(|&r| r as i32).collect();
                x.select(0, Tensor::from_ints(rows.as_slice(), &self.device))
            }
        }
    }
}
