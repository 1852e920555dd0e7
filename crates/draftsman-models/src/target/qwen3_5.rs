//! Qwen3.5 and 3.6: gated delta layers with a gated full-attention layer every fourth.

use draftsman_kernels::Weight;
use serde_json::json;

use super::architecture::{Architecture, Gguf};
use super::attention::Attention;
use super::config::{Config, set_mixers};
use super::decoder::{Layer, Mixer};
use super::gated_delta::GatedDelta;
use super::gguf_config::GgufConfig;
use super::rope_config::RopeDefaults;
use super::spec::{AttentionParts, DeltaSpec, MixerKind, TargetSpec};
use super::tensors::Tensors;
use crate::error::ModelError;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3_5",
    model_types: &["qwen3_5", "qwen3_5_text"],
    classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5TextModel", "Qwen3_5Model"],
    nested: true,
    read_config,
    gguf: Some(Gguf {
        name: "qwen35",
        read: read_gguf,
        renames: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("linear_attn.in_proj_qkv", "attn_qkv"),
            ("linear_attn.in_proj_z", "attn_gate"),
            ("linear_attn.in_proj_a", "ssm_alpha"),
            ("linear_attn.in_proj_b", "ssm_beta"),
            ("linear_attn.conv1d", "ssm_conv1d"),
            ("linear_attn.A_log", "ssm_a"),
            ("linear_attn.dt_bias", "ssm_dt.bias"),
            ("linear_attn.norm", "ssm_norm"),
            ("linear_attn.out_proj", "ssm_out"),
        ],
    }),
    zero_centred_norms: true,
    layer,
    ignored,
};

/// Where the key is missing.
const HEAD_DIM: usize = 256;
/// Where neither `layer_types` nor the key is there.
const FULL_ATTENTION_INTERVAL: usize = 4;
/// The parts of the full-attention layers.
const PARTS: AttentionParts =
    AttentionParts { qkv_bias: false, o_bias: false, qk_norm: true, output_gate: true, sinks: false };

fn read_config(config: &Config<'_>) -> TargetSpec {
    let mut spec = read_hybrid(config, "qwen3_5");
    config.fields.only("num_experts", &[]);
    spec.intermediate_size = config.fields.required_usize("intermediate_size");
    spec
}

/// What the dense and the sparse hybrid have in common: all but the MLP.
pub(super) fn read_hybrid(config: &Config<'_>, architecture: &str) -> TargetSpec {
    let fields = &config.fields;
    // The recurrence always runs in f32.
    for key in ["mamba_ssm_dtype", "mtp_use_dedicated_embeddings"] {
        fields.value(key);
    }
    fields.only("attention_bias", &[json!(false)]);
    fields.only("attn_output_gate", &[json!(true)]);
    fields.only("output_gate_type", &[json!("swish"), json!("silu")]);
    fields.only("quantization_config", &[]);
    let rope = RopeDefaults { partial_rotary_factor: Some(0.25), ..RopeDefaults::PLAIN };
    let mut spec = config.decoder(architecture, Some(HEAD_DIM), &rope);
    spec.attention = PARTS;
    let delta = DeltaSpec {
        key_heads: fields.usize("linear_num_key_heads").unwrap_or(16),
        value_heads: fields.usize("linear_num_value_heads").unwrap_or(32),
        key_dim: fields.usize("linear_key_head_dim").unwrap_or(128),
        value_dim: fields.usize("linear_value_head_dim").unwrap_or(128),
        conv_width: fields.usize("linear_conv_kernel_dim").unwrap_or(4),
    };
    spec.delta = Some(delta);
    let interval = fields.usize("full_attention_interval").unwrap_or(FULL_ATTENTION_INTERVAL);
    let known = [("linear_attention", MixerKind::GatedDelta), ("full_attention", MixerKind::Full)];
    match config.layer_types(spec.num_layers, &known) {
        Some(kinds) => set_mixers(&mut spec, kinds),
        None => every_nth_full(&mut spec, interval),
    }
    if fields.count("mtp_num_hidden_layers").is_some_and(|layers| layers > 0) {
        spec.notes.push("the layers for multi-token prediction (`mtp.*`) are not loaded".into());
    }
    if let Some(outer) = &config.outer {
        for key in
            ["image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "language_model_only"]
        {
            outer.value(key);
        }
        outer.only("quantization_config", &[]);
        if outer.value("vision_config").is_some() {
            spec.notes.push("the vision tower (`model.visual.*`) is not loaded: only text can be given".into());
        }
    }
    spec
}

fn every_nth_full(spec: &mut TargetSpec, interval: usize) {
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let full = (index + 1).is_multiple_of(interval);
        layer.mixer = if full { MixerKind::Full } else { MixerKind::GatedDelta };
    }
}

fn read_gguf(config: &GgufConfig<'_>, spec: &mut TargetSpec) -> Result<(), ModelError> {
    spec.attention = PARTS;
    let value_heads = config.require("ssm.time_step_rank")?;
    spec.delta = Some(DeltaSpec {
        key_heads: config.require("ssm.group_count")?,
        value_heads,
        key_dim: config.require("ssm.state_size")?,
        value_dim: config.require("ssm.inner_size")?.checked_div(value_heads).unwrap_or(0),
        conv_width: config.require("ssm.conv_kernel")?,
    });
    // Blocks for multi-token prediction are counted, and stand at the end.
    let extra = config.usize_or("nextn_predict_layers", 0)?;
    if extra > 0 {
        spec.num_layers = spec.num_layers.saturating_sub(extra);
        spec.layers.truncate(spec.num_layers);
        spec.notes.push(format!("{extra} blocks for multi-token prediction are not loaded"));
    }
    every_nth_full(spec, config.usize_or("full_attention_interval", FULL_ATTENTION_INTERVAL)?.max(1));
    Ok(())
}

/// The vision tower, and the layers for multi-token prediction.
pub(super) fn ignored(spec: &TargetSpec, name: &str) -> bool {
    let prediction_block =
        name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).and_then(|(n, _)| n.parse::<usize>().ok());
    ["model.visual.", "visual.", "mtp.", "model.mtp."].iter().any(|prefix| name.starts_with(prefix))
        || prediction_block.is_some_and(|block| block >= spec.num_layers)
}

/// Reads a layer of the hybrid; its MLP is what the spec says.
pub(super) fn layer(spec: &TargetSpec, tensors: &Tensors<'_>, index: usize) -> Result<Layer, ModelError> {
    let mixer = match (spec.layers[index].mixer, spec.delta) {
        (MixerKind::GatedDelta, Some(sizes)) => Mixer::GatedDelta(gated_delta(spec, sizes, tensors)?),
        _ => Mixer::Attention(gated_attention(spec, tensors, index)?),
    };
    Layer::load(spec, tensors, index, mixer)
}

/// q_proj holds queries and gates: per head first the rows of the query, then those of its gate.
fn gated_attention(spec: &TargetSpec, tensors: &Tensors<'_>, index: usize) -> Result<Attention, ModelError> {
    let TargetSpec { num_heads, num_kv_heads, head_dim, hidden_size, .. } = *spec;
    let both = tensors.values("self_attn.q_proj.weight", &[2 * num_heads * head_dim, hidden_size])?;
    let half = |which: usize| {
        let size = head_dim * hidden_size;
        let rows = both.as_ref().map(|v| v.chunks_exact(size).skip(which).step_by(2).flatten().copied().collect());
        tensors.weight(rows, [num_heads * head_dim, hidden_size])
    };
    let (q, gate) = (half(0)?, half(1)?);
    drop(both);
    let k = tensors.matrix("self_attn.k_proj.weight", [num_kv_heads * head_dim, hidden_size])?;
    Attention::load_with(spec, tensors, index, q, k, Some(gate))
}

fn gated_delta(spec: &TargetSpec, sizes: DeltaSpec, tensors: &Tensors<'_>) -> Result<GatedDelta, ModelError> {
    let hidden = spec.hidden_size;
    let DeltaSpec { value_heads, value_dim, conv_width, .. } = sizes;
    let (channels, value_width) = (sizes.channels(), sizes.value_width());
    // `block` values belong to a value head; a llama.cpp file has the heads in an order of its own.
    let in_order = |values: Option<Vec<f32>>, first: usize, block: usize| {
        values.map(|mut values| {
            if tensors.is_gguf() {
                consecutive_heads(&mut values[first..], &sizes, block);
            }
            values
        })
    };
    let matrix = |local: &str, first_row: usize, rows: usize| -> Result<Weight, ModelError> {
        let values = tensors.values(local, &[rows, hidden])?;
        let block = hidden * (rows - first_row) / value_heads;
        tensors.weight(in_order(values, first_row * hidden, block), [rows, hidden])
    };
    let keys = 2 * sizes.key_width();
    let conv_shape: &[usize] = if tensors.is_gguf() { &[channels, conv_width] } else { &[channels, 1, conv_width] };
    let conv = tensors.values("linear_attn.conv1d.weight", conv_shape)?;
    let conv = in_order(conv, keys * conv_width, value_dim * conv_width);
    let mut a_log = in_order(tensors.values("linear_attn.A_log", &[value_heads])?, 0, 1);
    if tensors.is_gguf() {
        // Stored as the rate itself, with its sign.
        a_log.iter_mut().flatten().for_each(|rate| *rate = (-*rate).ln());
    }
    let dt_bias = in_order(tensors.values("linear_attn.dt_bias", &[value_heads])?, 0, 1);
    let mut out = tensors.values("linear_attn.out_proj.weight", &[hidden, value_width])?;
    if tensors.is_gguf() {
        for row in out.iter_mut().flat_map(|v| v.chunks_exact_mut(value_width)) {
            consecutive_heads(row, &sizes, value_dim);
        }
    }
    Ok(GatedDelta {
        sizes,
        in_qkv: matrix("linear_attn.in_proj_qkv.weight", keys, channels)?,
        in_z: matrix("linear_attn.in_proj_z.weight", 0, value_width)?,
        in_a: matrix("linear_attn.in_proj_a.weight", 0, value_heads)?,
        in_b: matrix("linear_attn.in_proj_b.weight", 0, value_heads)?,
        conv: tensors.tensor(conv, [channels, conv_width]),
        a_log: tensors.tensor(a_log, [value_heads]),
        dt_bias: tensors.tensor(dt_bias, [value_heads]),
        // Not zero-centred, unlike the others.
        norm: tensors.vector("linear_attn.norm.weight", value_dim)?,
        out: tensors.weight(out, [hidden, value_width])?,
    })
}

/// Value heads of `block` values each, from llama.cpp's order (the first head of every key head, then the second of
/// each) to the model's (all heads of a key head next to each other).
fn consecutive_heads(values: &mut [f32], sizes: &DeltaSpec, block: usize) {
    let DeltaSpec { key_heads, value_heads, .. } = *sizes;
    let each = value_heads / key_heads;
    let stored = values.to_vec();
    for (head, out) in values.chunks_exact_mut(block).enumerate() {
        let from = (head % each) * key_heads + head / each;
        out.copy_from_slice(&stored[from * block..(from + 1) * block]);
    }
}
