//! The forward of every architecture: embedding, layers with their taps, final norm, head.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use draftsman_contract::{TreeShape, Visible};
use draftsman_kernels::{DeltaRule, RopeTable, Weight, linear, rms_norm};

use super::attention::Attention;
use super::cache::{LayerCache, Mark};
use super::gated_delta::GatedDelta;
use super::mlp::{DenseMlp, Mlp};
use super::moe::Moe;
use super::spec::TargetSpec;
use super::tensors::Tensors;
use super::{LayerWeights, LogitRows, Observer, Target, TargetCache, TargetInput, TargetOutput, TreeInput, Want};
use crate::error::ModelError;

/// A frozen decoder-only language model.
pub struct Decoder {
    pub(super) spec: TargetSpec,
    pub(super) device: Device,
    pub(super) embedding: Weight,
    pub(super) head: Weight,
    pub(super) layers: Layers,
    pub(super) final_norm: Tensor<1>,
    pub(super) layers_sha256: String,
    pub(super) rope: RopeTable,
    pub(super) delta_rule: DeltaRule,
}

/// Where the layers are.
pub(super) enum Layers {
    /// In memory.
    Resident(Vec<Layer>),
    /// In the file: read when a forward comes to them and dropped after it.
    Streamed(Box<dyn Fn(usize) -> Result<Layer, ModelError> + Send + Sync>),
}

/// One decoder layer: `h = x + mixer(norm(x))`, then `h + mlp(norm(h))`.
pub(super) struct Layer {
    pub(super) input_norm: Tensor<1>,
    pub(super) mixer: Mixer,
    pub(super) post_attention_norm: Tensor<1>,
    pub(super) mlp: Mlp,
}

/// How rows of a sequence see each other.
#[expect(clippy::large_enum_variant, reason = "one per layer, whose weights dwarf it")]
pub(super) enum Mixer {
    Attention(Attention),
    GatedDelta(GatedDelta),
}

/// The rows of a forward: all inputs one after the other.
pub(super) struct Rows<'a> {
    /// Position of every row in its own sequence.
    pub(super) positions: &'a [u32],
    /// One an input.
    pub(super) segments: &'a [Segment<'a>],
    pub(super) rope: &'a RopeTable,
    pub(super) delta_rule: DeltaRule,
    /// Of every norm.
    pub(super) eps: f64,
}

/// Rows of one input in the concatenation, after `past` cached ones.
pub(super) struct Segment<'a> {
    pub(super) rows: Range<usize>,
    pub(super) past: usize,
    /// How the rows hang together, where they are no chain.
    pub(super) tree: Option<&'a TreeShape>,
}

impl Segment<'_> {
    /// The keys that each row sees: all before it on its path, or the last `window` of them.
    pub(super) fn visible(&self, window: Option<usize>) -> Visible {
        match self.tree {
            Some(shape) => shape.visible(self.past, window),
            None => Visible::causal_window(self.past, self.rows.len(), window.unwrap_or(usize::MAX)),
        }
    }
}

/// An input of a forward, chain or tree.
struct Input<'a> {
    ids: &'a [u32],
    tree: Option<&'a TreeShape>,
    cache: &'a mut TargetCache,
}

impl Input<'_> {
    /// Positions that the rows take up.
    fn length(&self) -> usize {
        self.tree.map_or(self.ids.len(), |shape| shape.height() + 1)
    }
}

impl Layer {
    /// Reads a layer around a mixer that has been read: its norms, and the MLP that the spec says it has.
    pub(super) fn load(
        spec: &TargetSpec,
        tensors: &Tensors<'_>,
        index: usize,
        mixer: Mixer,
    ) -> Result<Self, ModelError> {
        let mlp = match &spec.experts {
            Some(experts) if spec.layers[index].sparse => Mlp::Moe(Moe::load_qwen(spec, tensors, experts)?),
            _ => Mlp::Dense(DenseMlp::load(spec, tensors)?),
        };
        Self::load_around(spec, tensors, mixer, mlp)
    }

    /// Reads the norms of a layer whose parts have been read.
    pub(super) fn load_around(
        spec: &TargetSpec,
        tensors: &Tensors<'_>,
        mixer: Mixer,
        mlp: Mlp,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            input_norm: tensors.norm("input_layernorm.weight", spec.hidden_size)?,
            mixer,
            post_attention_norm: tensors.norm("post_attention_layernorm.weight", spec.hidden_size)?,
            mlp,
        })
    }

    /// Reads a layer with attention stored as everybody does.
    pub(super) fn load_attention(spec: &TargetSpec, tensors: &Tensors<'_>, index: usize) -> Result<Self, ModelError> {
        Self::load(spec, tensors, index, Mixer::Attention(Attention::load(spec, tensors, index)?))
    }

    /// `[rows, hidden]` → `[rows, hidden]`; `caches` holds this layer's of every input.
    fn forward(&self, x: Tensor<2>, rows: &Rows<'_>, caches: &mut [&mut LayerCache]) -> Tensor<2> {
        let h = rms_norm(x.clone(), self.input_norm.clone(), rows.eps);
        let x = x + match &self.mixer {
            Mixer::Attention(attention) => attention.forward(h, rows, caches),
            Mixer::GatedDelta(delta) => delta.forward(h, rows, caches),
        };
        let h = rms_norm(x.clone(), self.post_attention_norm.clone(), rows.eps);
        x + self.mlp.forward(h)
    }
}

impl Decoder {
    /// Checks a whole call before anything changes; returns how many layers must run.
    fn check(&self, batch: &[Input<'_>], want: &Want) -> Result<usize, ModelError> {
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
        for input in batch {
            let Input { ids, tree, cache } = input;
            cache.check_belongs(&self.spec)?;
            cache.check_layers(needed)?;
            if let Some(shape) = tree.filter(|shape| shape.rows() != ids.len()) {
                return Err(ModelError::InvalidInput(format!(
                    "a draft tree of {} rows has {} tokens",
                    shape.rows(),
                    ids.len()
                )));
            }
            let needed = cache.len() + input.length();
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

    /// Runs layer `index`. Reading a streamed one may fail; no cache has changed then.
    fn run_layer(
        &self,
        index: usize,
        x: Tensor<2>,
        rows: &Rows<'_>,
        batch: &mut [Input<'_>],
    ) -> Result<Tensor<2>, ModelError> {
        let read;
        let layer = match &self.layers {
            Layers::Resident(layers) => &layers[index],
            Layers::Streamed(load) => {
                read = load(index)?;
                &read
            }
        };
        let mut caches: Vec<&mut LayerCache> = batch.iter_mut().map(|input| &mut input.cache.layers[index]).collect();
        Ok(layer.forward(x, rows, &mut caches))
    }

    /// Every forward: chains and trees.
    fn run(
        &self,
        batch: &mut [Input<'_>],
        want: &Want,
        mut observe: Option<Observer<'_>>,
    ) -> Result<TargetOutput, ModelError> {
        let layers = self.check(batch, want)?;
        let mut see = |name: &str, x: &Tensor<2>| {
            if let Some(observe) = observe.as_deref_mut() {
                observe(name, x);
            }
        };
        let mut ids = Vec::new();
        let mut positions = Vec::new();
        let mut segments = Vec::new();
        for input in batch.iter() {
            let (start, past) = (ids.len(), input.cache.len());
            ids.extend_from_slice(input.ids);
            // Positions fit: max_positions is checked and capped far below u32::MAX.
            match input.tree {
                Some(shape) => positions.extend(shape.positions(past as u32)),
                None => positions.extend((past..past + input.ids.len()).map(|p| p as u32)),
            }
            segments.push(Segment { rows: start..ids.len(), past, tree: input.tree });
        }
        let eps = self.spec.rms_norm_eps;
        let rows =
            Rows { positions: &positions, segments: &segments, rope: &self.rope, delta_rule: self.delta_rule, eps };

        let mut x = self.embedding.rows(&ids, &self.device);
        see("embed", &x);
        let mut tapped: Vec<Option<Tensor<2>>> = vec![None; want.taps.len()];
        let mut undo = Undo::new(&self.layers);
        for index in 0..layers {
            undo.mark(batch, index);
            x = match self.run_layer(index, x, &rows, batch) {
                Ok(x) => x,
                Err(error) => {
                    undo.restore(batch);
                    return Err(error);
                }
            };
            see(&format!("layer.{index}"), &x);
            for (slot, &tap) in tapped.iter_mut().zip(&want.taps) {
                if tap == index {
                    *slot = Some(x.clone());
                }
            }
        }
        for input in batch.iter_mut() {
            match input.tree {
                Some(shape) => input.cache.hold(shape.clone()),
                None => input.cache.advance(input.ids.len()),
            }
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

impl Target for Decoder {
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

    fn is_streamed(&self) -> bool {
        matches!(self.layers, Layers::Streamed(_))
    }

    fn layers_sha256(&self) -> Option<&str> {
        Some(&self.layers_sha256)
    }

    fn new_cache(&self) -> TargetCache {
        TargetCache::new(&self.spec, &self.device)
    }

    fn layer_weights(&self, layer: usize) -> Option<LayerWeights<'_>> {
        let Layers::Resident(layers) = &self.layers else { return None };
        let layer = layers.get(layer)?;
        match (&layer.mixer, &layer.mlp) {
            (Mixer::Attention(attention), Mlp::Dense(mlp)) if attention.is_plain() => Some(LayerWeights {
                q: &attention.q,
                k: &attention.k,
                v: &attention.v,
                o: &attention.o,
                q_norm: attention.q_norm.clone(),
                k_norm: attention.k_norm.clone(),
                gate: &mlp.gate,
                up: &mlp.up,
                down: &mlp.down,
                input_norm: layer.input_norm.clone(),
                post_attention_norm: layer.post_attention_norm.clone(),
            }),
            _ => None,
        }
    }

    fn forward(
        &self,
        batch: &mut [TargetInput<'_>],
        want: &Want,
        observe: Option<Observer<'_>>,
    ) -> Result<TargetOutput, ModelError> {
        let inputs = batch.iter_mut().map(|i| Input { ids: i.ids, tree: None, cache: &mut *i.cache });
        self.run(&mut inputs.collect::<Vec<_>>(), want, observe)
    }

    fn forward_trees(
        &self,
        batch: &mut [TreeInput<'_>],
        want: &Want,
        observe: Option<Observer<'_>>,
    ) -> Result<TargetOutput, ModelError> {
        let inputs = batch.iter_mut().map(|i| Input { ids: i.ids, tree: Some(i.shape), cache: &mut *i.cache });
        self.run(&mut inputs.collect::<Vec<_>>(), want, observe)
    }
}

/// What undoes the layers that ran before one that could not be read. Resident layers need none of it.
struct Undo {
    marks: Option<Vec<Vec<Mark>>>,
}

impl Undo {
    fn new(layers: &Layers) -> Self {
        Self { marks: matches!(layers, Layers::Streamed(_)).then(Vec::new) }
    }

    /// Before layer `index` runs.
    fn mark(&mut self, batch: &[Input<'_>], index: usize) {
        if let Some(marks) = &mut self.marks {
            marks.push(batch.iter().map(|input| input.cache.layers[index].mark()).collect());
        }
    }

    fn restore(self, batch: &mut [Input<'_>]) {
        for (index, marks) in self.marks.into_iter().flatten().enumerate() {
            for (input, mark) in batch.iter_mut().zip(marks) {
                input.cache.layers[index].restore(mark);
            }
        }
    }
}
