//! The model in its trainable form, with the published tensor names.

use std::collections::BTreeMap;

use burn::tensor::{Device, Gradients, Int, Tensor, TensorData, activation};
use draftsman_contract::{CounterRng, RopeSpec};
use draftsman_kernels::{
    DeltaInputs, DeltaRule, RopeTable, Weight, attention, causal_conv, delta_gates, gated_delta_rule, gated_rms_norm,
    linear, rms_norm, rope, swiglu,
};

use super::batch::Batch;
use super::recipe::{
    CHANNELS, CONV_WIDTH, DELTA_KEY_DIM, DELTA_KEY_HEADS, DELTA_VALUE_DIM, DELTA_VALUE_HEADS, EPS, HEAD_DIM, HEADS,
    HIDDEN, INTERMEDIATE, KEY_WIDTH, KV_HEADS, LAYERS, PARTIAL_ROTARY, ROPE_THETA, VALUE_WIDTH, VOCAB, is_full,
};

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
const FINAL_NORM: &str = "model.norm.weight";

/// A trained tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// One or two dimensions; the convolution's is `[channels, width]`.
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// Untrained parameters, in a fixed order.
pub(crate) fn initial(seed: u64) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    let mut add = |name: String, shape: &[usize], start: Start| {
        let mut rng = CounterRng::new(seed, &[u64::MAX, parameters.len() as u64]);
        let values = (0..shape.iter().product()).map(|_| start.value(&mut rng)).collect();
        parameters.push(Parameter { name, shape: shape.to_vec(), values });
    };
    let projection = |inputs: usize| Start::Normal((inputs as f32).powf(-0.5) * 0.7);
    // What is added to the residual stream starts smaller, the more layers add to it.
    let output = |inputs: usize| Start::Normal((inputs as f32).powf(-0.5) * 0.7 * (2.0 * LAYERS as f32).powf(-0.5));
    add(EMBEDDING.into(), &[VOCAB, HIDDEN], Start::Normal(0.04));
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[usize], start| add(format!("model.layers.{layer}.{name}"), shape, start);
        add("input_layernorm.weight", &[HIDDEN], Start::Constant(0.0));
        if is_full(layer) {
            add("self_attn.q_proj.weight", &[2 * HEADS * HEAD_DIM, HIDDEN], projection(HIDDEN));
            add("self_attn.k_proj.weight", &[KV_HEADS * HEAD_DIM, HIDDEN], projection(HIDDEN));
            add("self_attn.v_proj.weight", &[KV_HEADS * HEAD_DIM, HIDDEN], projection(HIDDEN));
            add("self_attn.o_proj.weight", &[HIDDEN, HEADS * HEAD_DIM], output(HEADS * HEAD_DIM));
            add("self_attn.q_norm.weight", &[HEAD_DIM], Start::Constant(0.0));
            add("self_attn.k_norm.weight", &[HEAD_DIM], Start::Constant(0.0));
        } else {
            add("linear_attn.in_proj_qkv.weight", &[CHANNELS, HIDDEN], projection(HIDDEN));
            add("linear_attn.in_proj_z.weight", &[VALUE_WIDTH, HIDDEN], projection(HIDDEN));
            add("linear_attn.in_proj_a.weight", &[DELTA_VALUE_HEADS, HIDDEN], projection(HIDDEN));
            add("linear_attn.in_proj_b.weight", &[DELTA_VALUE_HEADS, HIDDEN], projection(HIDDEN));
            add("linear_attn.conv1d.weight", &[CHANNELS, CONV_WIDTH], Start::Normal(0.4));
            add("linear_attn.A_log", &[DELTA_VALUE_HEADS], Start::Rate);
            add("linear_attn.dt_bias", &[DELTA_VALUE_HEADS], Start::Step);
            add("linear_attn.norm.weight", &[DELTA_VALUE_DIM], Start::Constant(1.0));
            add("linear_attn.out_proj.weight", &[HIDDEN, VALUE_WIDTH], output(VALUE_WIDTH));
        }
        add("post_attention_layernorm.weight", &[HIDDEN], Start::Constant(0.0));
        add("mlp.gate_proj.weight", &[INTERMEDIATE, HIDDEN], projection(HIDDEN));
        add("mlp.up_proj.weight", &[INTERMEDIATE, HIDDEN], projection(HIDDEN));
        add("mlp.down_proj.weight", &[HIDDEN, INTERMEDIATE], output(INTERMEDIATE));
    }
    add(FINAL_NORM.into(), &[HIDDEN], Start::Constant(0.0));
    parameters
}

#[derive(Clone, Copy)]
enum Start {
    Constant(f32),
    Normal(f32),
    /// The logarithm of a rate from 1 to 16.
    Rate,
    /// What softplus turns into a step from 0.001 to 0.1, evenly by its logarithm.
    Step,
}

impl Start {
    fn value(self, rng: &mut CounterRng) -> f32 {
        match self {
            Self::Constant(value) => value,
            Self::Normal(deviation) => rng.normal() * deviation,
            Self::Rate => (1.0 + 15.0 * rng.uniform()).ln() as f32,
            Self::Step => {
                let step = 1e-3 * 100f64.powf(rng.uniform());
                step.exp_m1().ln() as f32
            }
        }
    }
}

/// The parameters as tensors of one step's gradient graph.
pub(crate) struct Model {
    vectors: BTreeMap<String, Tensor<1>>,
    matrices: BTreeMap<String, Tensor<2>>,
    device: Device,
    rope: RopeTable,
}

impl Model {
    /// `trained`: with gradients.
    pub(crate) fn new(parameters: &[Parameter], trained: bool) -> Self {
        let device = if trained { Device::flex().autodiff() } else { Device::flex() };
        let (mut vectors, mut matrices) = (BTreeMap::new(), BTreeMap::new());
        for Parameter { name, shape, values } in parameters {
            match shape[..] {
                [rows, columns] => {
                    let tensor = Tensor::from_data(TensorData::new(values.clone(), [rows, columns]), &device);
                    matrices.insert(name.clone(), if trained { tensor.require_grad() } else { tensor });
                }
                _ => {
                    let tensor = Tensor::from_data(TensorData::new(values.clone(), [values.len()]), &device);
                    vectors.insert(name.clone(), if trained { tensor.require_grad() } else { tensor });
                }
            }
        }
        let rope = RopeTable::new(&RopeSpec::plain(ROPE_THETA), (HEAD_DIM as f64 * PARTIAL_ROTARY) as usize);
        Self { vectors, matrices, device, rope }
    }

    /// The gradient that a backward pass left for a parameter.
    pub(crate) fn gradient(&self, name: &str, gradients: &mut Gradients) -> Option<Vec<f32>> {
        let data = match self.matrices.get(name) {
            Some(tensor) => tensor.grad_remove(gradients)?.into_data(),
            None => self.vectors[name].grad_remove(gradients)?.into_data(),
        };
        Some(data.iter::<f32>().collect())
    }

    /// Logits of the predicting rows, `[predicting, vocab]`.
    pub(crate) fn forward(&self, batch: &Batch) -> Tensor<2> {
        let rows = batch.rows();
        let ids: Vec<i32> = batch.ids.iter().map(|&id| id as i32).collect();
        let column = |values: &[f32]| Tensor::<2>::from_data(TensorData::new(values.to_vec(), [rows, 1]), &self.device);
        let (real, forget) = (column(&batch.real), column(&batch.forget));
        let mut x = self.matrices[EMBEDDING].clone().select(0, Tensor::<1, Int>::from_ints(&ids[..], &self.device));
        for layer in 0..LAYERS {
            let layer = LayerView { model: self, prefix: format!("model.layers.{layer}."), full: is_full(layer) };
            let h = layer.norm(x.clone(), "input_layernorm.weight");
            x = x + if layer.full { layer.attention(h, batch) } else { layer.delta(h, &real, &forget) };
            let h = layer.norm(x.clone(), "post_attention_layernorm.weight");
            let inner = swiglu(layer.linear(&h, "mlp.gate_proj.weight"), layer.linear(&h, "mlp.up_proj.weight"));
            x = x + layer.linear(&inner, "mlp.down_proj.weight");
        }
        let chosen: Vec<i32> = batch.predicting.iter().map(|&(row, _)| row as i32).collect();
        let x = x.select(0, Tensor::<1, Int>::from_ints(&chosen[..], &self.device));
        let x = rms_norm(x, self.vectors[FINAL_NORM].clone() + 1.0, EPS);
        linear(x, &Weight::Tensor(self.matrices[EMBEDDING].clone()))
    }
}

struct LayerView<'a> {
    model: &'a Model,
    prefix: String,
    full: bool,
}

impl LayerView<'_> {
    fn vector(&self, name: &str) -> Tensor<1> {
        self.model.vectors[&format!("{}{name}", self.prefix)].clone()
    }

    fn matrix(&self, name: &str) -> Tensor<2> {
        self.model.matrices[&format!("{}{name}", self.prefix)].clone()
    }

    fn linear(&self, x: &Tensor<2>, name: &str) -> Tensor<2> {
        linear(x.clone(), &Weight::Tensor(self.matrix(name)))
    }

    /// Its weight is stored less 1.
    fn norm(&self, x: Tensor<2>, name: &str) -> Tensor<2> {
        rms_norm(x, self.vector(name) + 1.0, EPS)
    }

    fn attention(&self, h: Tensor<2>, batch: &Batch) -> Tensor<2> {
        let [rows, _] = h.dims();
        let both = self.linear(&h, "self_attn.q_proj.weight").reshape([rows, HEADS, 2 * HEAD_DIM]);
        let query = both.clone().narrow(2, 0, HEAD_DIM);
        let gate = both.narrow(2, HEAD_DIM, HEAD_DIM).reshape([rows, HEADS * HEAD_DIM]);
        let normed = |x: Tensor<2>, heads: usize, name: &str| {
            self.norm(x.reshape([rows * heads, HEAD_DIM]), name).reshape([rows, heads, HEAD_DIM])
        };
        let query = normed(query.reshape([rows, HEADS * HEAD_DIM]), HEADS, "self_attn.q_norm.weight");
        let key = normed(self.linear(&h, "self_attn.k_proj.weight"), KV_HEADS, "self_attn.k_norm.weight");
        let value = self.linear(&h, "self_attn.v_proj.weight").reshape([rows, KV_HEADS, HEAD_DIM]);
        let turned = |x: Tensor<3>| rope(x, &self.model.rope, &batch.positions);
        let scale = (HEAD_DIM as f32).powf(-0.5);
        let out = attention(turned(query), turned(key), value, &batch.visible, scale);
        let out = out.reshape([rows, HEADS * HEAD_DIM]) * activation::sigmoid(gate);
        self.linear(&out, "self_attn.o_proj.weight")
    }

    fn delta(&self, h: Tensor<2>, real: &Tensor<2>, forget: &Tensor<2>) -> Tensor<2> {
        let [rows, _] = h.dims();
        let device = &self.model.device;
        let mixed = self.linear(&h, "linear_attn.in_proj_qkv.weight") * real.clone();
        let tail = Tensor::zeros([CONV_WIDTH - 1, CHANNELS], device);
        let mixed = causal_conv(mixed, self.matrix("linear_attn.conv1d.weight"), tail);
        let heads = |first: usize, heads: usize, dim: usize| {
            mixed.clone().narrow(1, first, heads * dim).reshape([rows, heads, dim])
        };
        let (g, beta) = delta_gates(
            self.linear(&h, "linear_attn.in_proj_a.weight"),
            self.linear(&h, "linear_attn.in_proj_b.weight"),
            self.vector("linear_attn.A_log"),
            self.vector("linear_attn.dt_bias"),
        );
        let inputs = DeltaInputs {
            q: heads(0, DELTA_KEY_HEADS, DELTA_KEY_DIM),
            k: heads(KEY_WIDTH, DELTA_KEY_HEADS, DELTA_KEY_DIM),
            v: heads(2 * KEY_WIDTH, DELTA_VALUE_HEADS, DELTA_VALUE_DIM),
            g: g + forget.clone(),
            beta,
        };
        let state = Tensor::zeros([DELTA_VALUE_HEADS, DELTA_KEY_DIM, DELTA_VALUE_DIM], device);
        let (out, _) = gated_delta_rule(inputs, state, DeltaRule::Recurrent);
        let flat = [rows * DELTA_VALUE_HEADS, DELTA_VALUE_DIM];
        let z = self.linear(&h, "linear_attn.in_proj_z.weight").reshape(flat);
        let out = gated_rms_norm(out.reshape(flat), self.vector("linear_attn.norm.weight"), z, EPS);
        self.linear(&out.reshape([rows, VALUE_WIDTH]), "linear_attn.out_proj.weight")
    }
}
