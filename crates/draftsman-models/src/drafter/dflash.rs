//! DFlash, version 1: context features become extra keys and values of a small transformer over the block.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use draftsman_contract::{BlockLayout, LayerAttention, Visible};
use draftsman_kernels::{
    HeadOptions, KvCache, RopeTable, Weight, attention, attention_cached, linear, rms_norm, rope, swiglu,
};

use super::cache::DrafterCache;
use super::config::DrafterConfig;
use super::parameters::{LAYER_TENSORS, NamedTensor, Parameter};
use crate::error::ModelError;
use crate::target::Observer;
use crate::weights::TensorExpectation;

/// Where a forward finds the context of its blocks.
#[expect(clippy::large_enum_variant, reason = "made once per forward")]
pub enum Context<'a> {
    /// Training and evaluation: the context rows themselves, differentiable.
    Rows {
        /// `[S, hidden]`, as [`Dflash::context`] makes them.
        context: Tensor<2>,
        /// Position of each context row (`BlockLayout::context_positions`).
        positions: &'a [u32],
    },
    /// Decoding: keys and values kept from earlier calls; not differentiable. The block's own keys and values are in
    /// it during the forward and gone after it.
    Cached(&'a mut DrafterCache),
}

/// One decoder layer. Linear weights are `[out, in]`, as published.
#[derive(Module, Debug)]
struct DflashLayer {
    input_norm: Param<Tensor<1>>,
    q: Param<Tensor<2>>,
    k: Param<Tensor<2>>,
    v: Param<Tensor<2>>,
    o: Param<Tensor<2>>,
    q_norm: Param<Tensor<1>>,
    k_norm: Param<Tensor<1>>,
    post_attention_norm: Param<Tensor<1>>,
    gate: Param<Tensor<2>>,
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
}

/// A DFlash drafter. Embedding and head are the target's and not part of it.
#[derive(Module, Debug)]
pub struct Dflash {
    fc: Param<Tensor<2>>,
    hidden_norm: Param<Tensor<1>>,
    layers: Vec<DflashLayer>,
    norm: Param<Tensor<1>>,
    #[module(skip)]
    config: Arc<DrafterConfig>,
    #[module(skip)]
    rope: Arc<RopeTable>,
}

/// A parameter in place.
enum Slot<P1, P2> {
    Vector(P1),
    Matrix(P2),
}

/// Lists the parameters of a drafter with their published names, in the order of `DrafterConfig::tensors`. A macro,
/// because the same list is needed over `&self` and `&mut self`.
macro_rules! slots {
    ($drafter:expr, $($mutability:tt)?) => {{
        let drafter = $drafter;
        let mut slots = vec![
            ("fc.weight".to_string(), Slot::Matrix(&$($mutability)? drafter.fc)),
            ("hidden_norm.weight".to_string(), Slot::Vector(&$($mutability)? drafter.hidden_norm)),
        ];
        for (i, layer) in (0..).zip(&$($mutability)? drafter.layers) {
            let tensors = [
                Slot::Vector(&$($mutability)? layer.input_norm),
                Slot::Matrix(&$($mutability)? layer.q),
                Slot::Matrix(&$($mutability)? layer.k),
                Slot::Matrix(&$($mutability)? layer.v),
                Slot::Matrix(&$($mutability)? layer.o),
                Slot::Vector(&$($mutability)? layer.q_norm),
                Slot::Vector(&$($mutability)? layer.k_norm),
                Slot::Vector(&$($mutability)? layer.post_attention_norm),
                Slot::Matrix(&$($mutability)? layer.gate),
                Slot::Matrix(&$($mutability)? layer.up),
                Slot::Matrix(&$($mutability)? layer.down),
            ];
            slots.extend(LAYER_TENSORS.iter().zip(tensors).map(|(name, slot)| (format!("layers.{i}.{name}"), slot)));
        }
        slots.push(("norm.weight".to_string(), Slot::Vector(&$($mutability)? drafter.norm)));
        slots
    }};
}

/// Gives the row-major values of a tensor by its published name and shape.
pub type Provide<'a> = &'a mut dyn FnMut(&str, &[usize]) -> Result<Vec<f32>, ModelError>;

/// Makes the parameters one after the other, in the order of `DrafterConfig::tensors`.
struct Builder<'a> {
    tensors: std::vec::IntoIter<TensorExpectation>,
    device: &'a Device,
    provide: Provide<'a>,
}

impl Builder<'_> {
    fn parameter<const D: usize>(&mut self) -> Result<Param<Tensor<D>>, ModelError> {
        let Some(TensorExpectation { name, shape }) = self.tensors.next() else {
            return Err(ModelError::InvalidInput("drafter: tensor list too short".into()));
        };
        let values = (self.provide)(&name, &shape)?;
        let Ok(dims) = <[usize; D]>::try_from(shape.as_slice()) else {
            return Err(ModelError::InvalidInput(format!("tensor `{name}`: shape {shape:?} is not of rank {D}")));
        };
        if values.len() != dims.iter().product::<usize>() {
            return Err(ModelError::InvalidInput(format!(
                "tensor `{name}`: {} values for shape {shape:?}",
                values.len()
            )));
        }
        Ok(Param::from_tensor(Tensor::from_data(TensorData::new(values, dims), self.device)))
    }

    fn layer(&mut self) -> Result<DflashLayer, ModelError> {
        // Fields are evaluated as written: the order of LAYER_TENSORS.
        Ok(DflashLayer {
            input_norm: self.parameter()?,
            q: self.parameter()?,
            k: self.parameter()?,
            v: self.parameter()?,
            o: self.parameter()?,
            q_norm: self.parameter()?,
            k_norm: self.parameter()?,
            post_attention_norm: self.parameter()?,
            gate: self.parameter()?,
            up: self.parameter()?,
            down: self.parameter()?,
        })
    }
}

impl Dflash {
    /// Builds a drafter from the values that `provide` returns for every tensor (published name and shape, in the
    /// order of [`DrafterConfig::tensors`]). The configuration is validated first.
    pub fn from_tensors(config: DrafterConfig, device: &Device, provide: Provide<'_>) -> Result<Self, ModelError> {
        config
            .validate()
            .into_result()
            .map_err(|problems| ModelError::InvalidInput(format!("drafter configuration: {problems}")))?;
        let mut builder = Builder { tensors: config.tensors().into_iter(), device, provide };
        Ok(Self {
            fc: builder.parameter()?,
            hidden_norm: builder.parameter()?,
            layers: (0..config.num_hidden_layers).map(|_| builder.layer()).collect::<Result<_, _>>()?,
            norm: builder.parameter()?,
            rope: Arc::new(RopeTable::new(&config.contract.rope, config.head_dim)),
            config: Arc::new(config),
        })
    }

    /// What this drafter is.
    pub fn config(&self) -> &DrafterConfig {
        &self.config
    }

    /// The same weights under another contract or other scales (the doctor's sweeps). Sizes must stay.
    pub fn with_config(&self, config: DrafterConfig) -> Result<Self, ModelError> {
        config
            .validate()
            .into_result()
            .map_err(|problems| ModelError::InvalidInput(format!("drafter configuration: {problems}")))?;
        if config.tensors() != self.config.tensors() {
            return Err(ModelError::InvalidInput(
                "drafter configuration: the sizes differ from those of the loaded weights".into(),
            ));
        }
        let mut changed = self.clone();
        changed.rope = Arc::new(RopeTable::new(&config.contract.rope, config.head_dim));
        changed.config = Arc::new(config);
        Ok(changed)
    }

    /// Where it is, with autodiff in training.
    pub fn device(&self) -> Device {
        self.fc.val().device()
    }

    /// The same weights, ready for a backward pass.
    pub fn trainable(self) -> Self {
        Module::train(self)
    }

    /// A copy without autodiff, for evaluation and decoding. Tensors are shared, not copied.
    pub fn inference(&self) -> Self {
        Module::valid(self)
    }

    /// Options of the target's head for this drafter's rows.
    pub fn head_options(&self, top_k: usize) -> HeadOptions {
        HeadOptions {
            output_multiplier: self.config.output_multiplier,
            final_logit_softcapping: self.config.final_logit_softcapping,
            top_k,
            temperature: 1.0,
        }
    }

    /// Context rows `[T, hidden]` from target features `[T, F * hidden]` (the tapped layers side by side, in the
    /// order of `target_layer_ids`): `hidden_norm(fc(features))`.
    pub fn context(&self, features: Tensor<2>) -> Result<Tensor<2>, ModelError> {
        let expected = self.config.contract.target_layer_ids.len() * self.config.hidden_size;
        let [rows, width] = features.dims();
        if width != expected {
            return Err(ModelError::InvalidInput(format!(
                "features have shape [{rows}, {width}], expected [{rows}, {expected}]: {} tapped layers of width {}\n  \
                 hint: the features were made with other target_layer_ids or for another target",
                self.config.contract.target_layer_ids.len(),
                self.config.hidden_size
            )));
        }
        let projected = linear(features, &Weight::Tensor(self.fc.val()));
        Ok(self.norm_rows(projected, &self.hidden_norm))
    }

    /// Input rows `[ids, hidden]` of a block: rows of the target's embedding times `input_embedding_scale`. `ids` come
    /// from `BlockLayout::block_ids` (the anchor, then mask tokens).
    pub fn embed(&self, ids: &[u32], embedding: &Weight) -> Result<Tensor<2>, ModelError> {
        let [vocab_size, width] = embedding.shape();
        if width != self.config.hidden_size {
            return Err(ModelError::InvalidInput(format!(
                "the embedding has shape [{vocab_size}, {width}], the drafter's hidden_size is {}",
                self.config.hidden_size
            )));
        }
        if let Some((index, &id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= vocab_size) {
            return Err(ModelError::TokenOutOfRange { id, index, vocab_size });
        }
        let rows = embedding.rows(ids, &self.device());
        Ok(if self.config.input_embedding_scale == 1.0 { rows } else { rows * self.config.input_embedding_scale })
    }

    /// Runs the rows of all blocks of `layout`, `[rows, hidden]`, and returns them after the final norm,
    /// `[rows, hidden]`. One function for many blocks over packed documents and for one block after a cached context:
    /// what differs is only `layout` and where the context lies. `observe` sees `layer.{i}` and `final_norm`.
    pub fn forward(
        &self,
        block: Tensor<2>,
        layout: &BlockLayout,
        context: Context<'_>,
        mut observe: Option<Observer<'_>>,
    ) -> Result<Tensor<2>, ModelError> {
        let positions = layout.positions();
        self.check_input(&block, layout, &context, positions.len())?;
        let masks = self.masks(layout);
        let mut x = block;
        match context {
            Context::Rows { context, positions: context_positions } => {
                let mut all_positions = context_positions.to_vec();
                all_positions.extend_from_slice(&positions);
                for (i, layer) in self.layers.iter().enumerate() {
                    let input = self.norm_rows(x.clone(), &layer.input_norm);
                    let q = self.queries(layer, input.clone(), &positions);
                    // Context rows are normed by hidden_norm alone; keys and values of both come from the same weights.
                    let source =
                        if context_positions.is_empty() { input } else { Tensor::cat(vec![context.clone(), input], 0) };
                    let (k, v) = self.keys_values(layer, source, &all_positions);
                    let attended = attention(q, k, v, &masks[self.mask_of(i)], self.scale());
                    x = self.finish_layer(layer, x, attended);
                    see(&mut observe, || format!("layer.{i}"), &x);
                }
            }
            Context::Cached(cache) => {
                let context_rows = cache.len();
                for (i, layer) in self.layers.iter().enumerate() {
                    let input = self.norm_rows(x.clone(), &layer.input_norm);
                    let q = self.queries(layer, input.clone(), &positions);
                    let (k, v) = self.keys_values(layer, input, &positions);
                    let kept = &mut cache.layers[i];
                    kept.append(k, v);
                    let attended = attention_cached(q, kept, &masks[self.mask_of(i)], self.scale());
                    kept.truncate(context_rows);
                    x = self.finish_layer(layer, x, attended);
                    see(&mut observe, || format!("layer.{i}"), &x);
                }
            }
        }
        let rows = self.norm_rows(x, &self.norm);
        see(&mut observe, || "final_norm".to_string(), &rows);
        Ok(rows)
    }

    /// An empty context cache on this drafter's device.
    pub fn new_cache(&self) -> DrafterCache {
        let device = self.inner_device();
        DrafterCache {
            layers: (0..self.config.num_hidden_layers)
                .map(|_| KvCache::new(self.config.num_key_value_heads, self.config.head_dim, &device))
                .collect(),
        }
    }

    /// Appends context rows to the cache: features `[T, F * hidden]` of committed tokens, which stand at `positions`.
    /// How the rows are cut into calls changes nothing.
    pub fn extend_context(
        &self,
        cache: &mut DrafterCache,
        features: Tensor<2>,
        positions: &[u32],
    ) -> Result<(), ModelError> {
        let [rows, _] = features.dims();
        if rows != positions.len() {
            return Err(ModelError::InvalidInput(format!("{rows} feature rows for {} positions", positions.len())));
        }
        if rows == 0 {
            return Ok(());
        }
        if cache.layers.len() != self.layers.len() {
            return Err(self.wrong_cache(cache));
        }
        let context = self.context(features)?;
        for (layer, kept) in self.layers.iter().zip(&mut cache.layers) {
            let (k, v) = self.keys_values(layer, context.clone(), positions);
            kept.append(k, v);
        }
        Ok(())
    }

    /// All trainable tensors by published name, in the order of [`DrafterConfig::tensors`].
    pub fn parameters(&self) -> Vec<(String, Parameter)> {
        let values = |slot| match slot {
            Slot::Vector(p) => Parameter::Vector(Param::val(p)),
            Slot::Matrix(p) => Parameter::Matrix(Param::val(p)),
        };
        slots!(self,).into_iter().map(|(name, slot)| (name, values(slot))).collect()
    }

    /// All tensors read back to the host, in the order of [`Dflash::parameters`].
    pub fn named_tensors(&self) -> Vec<NamedTensor> {
        self.parameters()
            .into_iter()
            .map(|(name, parameter)| NamedTensor { name, shape: parameter.shape(), values: parameter.to_vec() })
            .collect()
    }

    /// Replaces every tensor by what `f` makes of it (an optimizer step). `f` gets and returns tensors without
    /// autodiff, of the same rank and shape; a trainable drafter stays trainable, its parameters being new leaves.
    ///
    /// # Panics
    /// If `f` returns another rank or shape: the drafter would no longer be what its configuration says.
    pub fn map_parameters(mut self, mut f: impl FnMut(&str, Parameter) -> Parameter) -> Self {
        fn replace<const D: usize>(
            param: &mut Param<Tensor<D>>,
            name: &str,
            f: &mut dyn FnMut(&str, Tensor<D>) -> Tensor<D>,
        ) {
            let old = param.val();
            let (autodiff, shape) = (old.is_autodiff(), old.dims());
            let new = f(name, old.without_autodiff());
            assert_eq!(new.dims(), shape, "map_parameters must keep the shape of `{name}`");
            *param = Param::from_tensor(if autodiff { new.autodiff() } else { new });
        }
        for (name, slot) in slots!(&mut self, mut) {
            match slot {
                Slot::Vector(p) => replace(p, &name, &mut |name, t| match f(name, Parameter::Vector(t)) {
                    Parameter::Vector(t) => t,
                    Parameter::Matrix(_) => panic!("map_parameters must keep the rank of `{name}`"),
                }),
                Slot::Matrix(p) => replace(p, &name, &mut |name, t| match f(name, Parameter::Matrix(t)) {
                    Parameter::Matrix(t) => t,
                    Parameter::Vector(_) => panic!("map_parameters must keep the rank of `{name}`"),
                }),
            }
        }
        self
    }

    /// Gradients by published name, row-major, in the order of [`Dflash::parameters`]; `None` where the loss does not
    /// depend on a tensor.
    pub fn gradients(&self, gradients: &Gradients) -> Vec<(String, Option<Vec<f32>>)> {
        self.parameters()
            .into_iter()
            .map(|(name, parameter)| {
                let gradient = match parameter {
                    Parameter::Vector(t) => t.grad(gradients).map(Parameter::Vector),
                    Parameter::Matrix(t) => t.grad(gradients).map(Parameter::Matrix),
                };
                (name, gradient.map(|g| g.to_vec()))
            })
            .collect()
    }
}

/// The steps of a layer.
impl Dflash {
    fn scale(&self) -> f32 {
        (self.config.head_dim as f32).powf(-0.5)
    }

    fn norm_rows(&self, x: Tensor<2>, weight: &Param<Tensor<1>>) -> Tensor<2> {
        rms_norm(x, weight.val(), self.config.rms_norm_eps)
    }

    /// `[rows, heads * head_dim]` → normed per head and rotated `[rows, heads, head_dim]`.
    fn heads(&self, projected: Tensor<2>, heads: usize, norm: &Param<Tensor<1>>, positions: &[u32]) -> Tensor<3> {
        let head_dim = self.config.head_dim;
        let rows = positions.len();
        let normed = self.norm_rows(projected.reshape([rows * heads, head_dim]), norm);
        rope(normed.reshape([rows, heads, head_dim]), &self.rope, positions)
    }

    fn queries(&self, layer: &DflashLayer, input: Tensor<2>, positions: &[u32]) -> Tensor<3> {
        let projected = linear(input, &Weight::Tensor(layer.q.val()));
        self.heads(projected, self.config.num_attention_heads, &layer.q_norm, positions)
    }

    /// Keys (normed, rotated) and values `[rows, kv_heads, head_dim]` of context or block rows `[rows, hidden]`.
    fn keys_values(&self, layer: &DflashLayer, source: Tensor<2>, positions: &[u32]) -> (Tensor<3>, Tensor<3>) {
        let heads = self.config.num_key_value_heads;
        let k = linear(source.clone(), &Weight::Tensor(layer.k.val()));
        let v = linear(source, &Weight::Tensor(layer.v.val()));
        (self.heads(k, heads, &layer.k_norm, positions), v.reshape([positions.len(), heads, self.config.head_dim]))
    }

    /// Output projection, residuals and MLP: attention output `[rows, heads, head_dim]` → layer output
    /// `[rows, hidden]`.
    fn finish_layer(&self, layer: &DflashLayer, x: Tensor<2>, attended: Tensor<3>) -> Tensor<2> {
        let [rows, heads, head_dim] = attended.dims();
        let attended = attended.reshape([rows, heads * head_dim]);
        let x = x + linear(attended, &Weight::Tensor(layer.o.val()));
        let input = self.norm_rows(x.clone(), &layer.post_attention_norm);
        let gate = linear(input.clone(), &Weight::Tensor(layer.gate.val()));
        let up = linear(input, &Weight::Tensor(layer.up.val()));
        x + linear(swiglu(gate, up), &Weight::Tensor(layer.down.val()))
    }

    /// One visibility per distinct attention rule of the contract, in order of first use.
    fn masks(&self, layout: &BlockLayout) -> Vec<Visible> {
        self.rules().into_iter().map(|rule| layout.visible(rule)).collect()
    }

    fn rules(&self) -> Vec<LayerAttention> {
        let mut rules = Vec::new();
        for &rule in &self.config.contract.attention {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules
    }

    /// Index into [`Dflash::masks`] of a layer. `validate` has made sure that every layer has a rule.
    fn mask_of(&self, layer: usize) -> usize {
        let rule = self.config.contract.attention[layer];
        self.rules().iter().position(|r| *r == rule).unwrap_or(0)
    }

    fn inner_device(&self) -> Device {
        self.fc.val().without_autodiff().device()
    }

    fn wrong_cache(&self, cache: &DrafterCache) -> ModelError {
        ModelError::InvalidInput(format!(
            "the cache has {} layers, the drafter {}: it belongs to another drafter",
            cache.layers.len(),
            self.layers.len()
        ))
    }

    fn check_input(
        &self,
        block: &Tensor<2>,
        layout: &BlockLayout,
        context: &Context<'_>,
        rows: usize,
    ) -> Result<(), ModelError> {
        let hidden = self.config.hidden_size;
        if rows == 0 {
            return Err(ModelError::InvalidInput("the layout holds no block: nothing to draft".into()));
        }
        if block.dims() != [rows, hidden] {
            return Err(ModelError::InvalidInput(format!(
                "block rows have shape {:?}, expected [{rows}, {hidden}]",
                block.dims()
            )));
        }
        match context {
            Context::Rows { context, positions } => {
                let expected = [layout.context_rows, hidden];
                if context.dims() != expected || positions.len() != layout.context_rows {
                    return Err(ModelError::InvalidInput(format!(
                        "context rows have shape {:?} and {} positions, the layout expects {expected:?}",
                        context.dims(),
                        positions.len()
                    )));
                }
            }
            Context::Cached(cache) => {
                if cache.layers.len() != self.layers.len() {
                    return Err(self.wrong_cache(cache));
                }
                if cache.len() != layout.context_rows {
                    return Err(ModelError::InvalidInput(format!(
                        "the cache holds {} context rows, the layout expects {}",
                        cache.len(),
                        layout.context_rows
                    )));
                }
            }
        }
        Ok(())
    }
}

fn see(observe: &mut Option<Observer<'_>>, name: impl FnOnce() -> String, value: &Tensor<2>) {
    if let Some(observe) = observe {
        observe(&name(), value);
    }
}
