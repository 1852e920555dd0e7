//! gpt-oss: sliding and full attention in turn, a sink in every head, biases everywhere, experts with a clamped gate.

use draftsman_contract::RopeScaling;
use serde_json::json;

use super::architecture::Architecture;
use super::attention::Attention;
use super::config::{Config, set_mixers};
use super::decoder::{Layer, Mixer};
use super::mlp::{DenseMlp, Mlp};
use super::moe::{Expert, Moe};
use super::mxfp4;
use super::rope_config::RopeDefaults;
use super::spec::{AttentionParts, ExpertActivation, ExpertSpec, MixerKind, Routing, TargetSpec};
use super::tensors::Tensors;
use crate::error::ModelError;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gpt_oss",
    model_types: &["gpt_oss"],
    classes: &["GptOssForCausalLM", "GptOssModel"],
    nested: false,
    read_config,
    gguf: None,
    zero_centred_norms: false,
    layer,
    ignored: |_, _| false,
};

fn read_config(config: &Config<'_>) -> TargetSpec {
    let fields = &config.fields;
    // The window of pre-training stands in the rope too.
    for key in ["initial_context_length", "output_router_logits", "router_aux_loss_coef"] {
        fields.value(key);
    }
    if let Some(quantization) = fields.object("quantization_config") {
        let method = quantization.get("quant_method");
        if method != Some(&json!("mxfp4")) {
            let method = method.cloned().unwrap_or_default();
            fields.problem("quantization_config", format!("method {method} is not supported (supported: \"mxfp4\")"));
        }
    }
    let rope = RopeDefaults {
        theta: 150_000.0,
        scaling: Some(RopeScaling::Yarn {
            factor: 32.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: false,
        }),
        partial_rotary_factor: None,
    };
    let mut spec = config.decoder("gpt_oss", Some(64), &rope);
    spec.attention = AttentionParts { sinks: true, ..config.attention_bias(true) };
    spec.intermediate_size = fields.required_usize("intermediate_size");
    let window = fields.usize("sliding_window").unwrap_or(128);
    let (sliding, full) = (MixerKind::Sliding { window }, MixerKind::Full);
    let kinds = config
        .layer_types(spec.num_layers, &[("sliding_attention", sliding), ("full_attention", full)])
        .unwrap_or_else(|| (0..spec.layers.len()).map(|i| if i % 2 == 0 { sliding } else { full }).collect());
    set_mixers(&mut spec, kinds);
    spec.experts = Some(experts(config, spec.intermediate_size));
    spec.layers.iter_mut().for_each(|layer| layer.sparse = true);
    spec
}

fn experts(config: &Config<'_>, intermediate_size: usize) -> ExpertSpec {
    let fields = &config.fields;
    let per_token = fields.required_usize("num_experts_per_tok");
    if let Some(other) = fields.usize("experts_per_token")
        && other != per_token
    {
        fields.problem("experts_per_token", format!("{other}, and `num_experts_per_tok` is {per_token}"));
    }
    ExpertSpec {
        count: fields.required_usize("num_local_experts"),
        per_token,
        intermediate_size,
        shared_intermediate_size: None,
        routing: Routing::TopKSoftmax,
        activation: ExpertActivation::ClampedSwiglu {
            alpha: fields.f64("swiglu_alpha").unwrap_or(1.702) as f32,
            limit: fields.f64("swiglu_limit").unwrap_or(7.0) as f32,
        },
        biased: true,
    }
}

fn layer(spec: &TargetSpec, tensors: &Tensors<'_>, index: usize) -> Result<Layer, ModelError> {
    let mixer = Mixer::Attention(Attention::load(spec, tensors, index)?);
    match &spec.experts {
        Some(experts) => Layer::load_around(spec, tensors, mixer, Mlp::Moe(moe(spec, experts, tensors)?)),
        None => Layer::load(spec, tensors, index, mixer),
    }
}

fn moe(spec: &TargetSpec, experts: &ExpertSpec, tensors: &Tensors<'_>) -> Result<Moe, ModelError> {
    Ok(Moe {
        router: tensors.matrix("mlp.router.weight", [experts.count, spec.hidden_size])?,
        router_bias: Some(tensors.vector("mlp.router.bias", experts.count)?),
        experts: load_experts(tensors, experts, spec.hidden_size)?,
        shared: None,
        per_token: experts.per_token,
        routing: experts.routing,
        activation: experts.activation,
    })
}

/// Gate and up are interleaved: even outputs and odd ones.
fn load_experts(tensors: &Tensors<'_>, spec: &ExpertSpec, hidden: usize) -> Result<Vec<Expert>, ModelError> {
    let ExpertSpec { count, intermediate_size: inner, .. } = *spec;
    let gate_up_bias = tensors.values("mlp.experts.gate_up_proj_bias", &[count, 2 * inner])?;
    let down_bias = tensors.values("mlp.experts.down_proj_bias", &[count, hidden])?;
    let gate_up = Matrices::read(tensors, "mlp.experts.gate_up_proj", [count, 2 * inner, hidden])?;
    let mut halves = Vec::with_capacity(count);
    for id in 0..count {
        let rows = gate_up.expert(id)?;
        let half = |which: usize| {
            let rows =
                rows.as_ref().map(|v| v.chunks_exact(hidden).skip(which).step_by(2).flatten().copied().collect());
            tensors.weight(rows, [inner, hidden])
        };
        halves.push((half(0)?, half(1)?));
    }
    drop(gate_up);
    let down = Matrices::read(tensors, "mlp.experts.down_proj", [count, hidden, inner])?;
    let mut experts = Vec::with_capacity(count);
    for (id, (gate, up)) in halves.into_iter().enumerate() {
        let bias = |which: usize| {
            let all = gate_up_bias.as_ref().map(|v| &v[id * 2 * inner..(id + 1) * 2 * inner]);
            tensors.tensor(all.map(|v| v.iter().skip(which).step_by(2).copied().collect()), [inner])
        };
        let down_bias =
            tensors.tensor(down_bias.as_ref().map(|v| v[id * hidden..(id + 1) * hidden].to_vec()), [hidden]);
        let down = tensors.weight(down.expert(id)?, [hidden, inner])?;
        experts.push(Expert { mlp: DenseMlp { gate, up, down }, biases: Some([bias(0), bias(1), down_bias]) });
    }
    Ok(experts)
}

/// One matrix `[out, in]` an expert, as the file holds them all.
enum Matrices {
    /// Nothing is read while listing.
    Listed,
    /// `[experts, in, out]`
    Transposed { values: Vec<f32>, out: usize, input: usize },
    /// `[experts, out, in / 32]` blocks with their scales.
    Mxfp4 { blocks: Vec<u8>, scales: Vec<u8>, out: usize, input: usize },
}

impl Matrices {
    fn read(tensors: &Tensors<'_>, local: &str, [count, out, input]: [usize; 3]) -> Result<Self, ModelError> {
        let (block_name, scale_name) = (format!("{local}_blocks"), format!("{local}_scales"));
        if !tensors.has(&block_name) {
            let values = tensors.values(local, &[count, input, out])?;
            return Ok(values.map_or(Self::Listed, |values| Self::Transposed { values, out, input }));
        }
        let blocks = input.div_ceil(mxfp4::BLOCK);
        let scales = tensors.bytes(&scale_name, &[count, out, blocks])?;
        let blocks = tensors.bytes(&block_name, &[count, out, blocks, mxfp4::BLOCK / 2])?;
        Ok(match (blocks, scales) {
            (Some(blocks), Some(scales)) => Self::Mxfp4 { blocks, scales, out, input },
            _ => Self::Listed,
        })
    }

    /// The matrix of one expert, `[out, in]`.
    fn expert(&self, id: usize) -> Result<Option<Vec<f32>>, ModelError> {
        Ok(match self {
            Self::Listed => None,
            Self::Transposed { values, out, input } => {
                let stored = &values[id * out * input..(id + 1) * out * input];
                Some((0..*out).flat_map(|row| stored[row..].iter().step_by(*out).copied()).collect())
            }
            Self::Mxfp4 { blocks, scales, out, input } => {
                let count = out * input.div_ceil(mxfp4::BLOCK);
                let blocks = &blocks[id * count * mxfp4::BLOCK / 2..][..count * mxfp4::BLOCK / 2];
                Some(mxfp4::dequantise(blocks, &scales[id * count..(id + 1) * count]))
            }
        })
    }
}
