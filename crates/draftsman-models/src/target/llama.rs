//! Llama: the plain decoder.

use draftsman_kernels::Weight;
use serde_json::json;

use super::architecture::{Architecture, Gguf};
use super::attention::Attention;
use super::config::Config;
use super::decoder::{Layer, Mixer};
use super::gguf_config::ROPE_FREQS;
use super::rope_config::RopeDefaults;
use super::spec::{MixerKind, TargetSpec};
use super::tensors::Tensors;
use crate::error::ModelError;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    model_types: &["llama"],
    classes: &["LlamaForCausalLM", "LlamaModel"],
    nested: false,
    read_config,
    gguf: Some(Gguf { name: "llama", read: |_, _| Ok(()), renames: &[] }),
    zero_centred_norms: false,
    layer,
    // Old exports carry the rotary frequencies, which follow from the config; a converter's ones are read with it.
    ignored: |_, name| name.ends_with("rotary_emb.inv_freq") || name == ROPE_FREQS,
};

fn read_config(config: &Config<'_>) -> TargetSpec {
    let fields = &config.fields;
    for key in ["is_llama_config", "pretraining_tp"] {
        fields.value(key);
    }
    for key in ["attention_bias", "use_sliding_window", "use_qk_norm"] {
        fields.only(key, &[json!(false)]);
    }
    for key in ["quantization_config", "sliding_window", "num_experts", "num_local_experts"] {
        fields.only(key, &[]);
    }
    let mut spec = config.decoder("llama", None, &RopeDefaults::PLAIN);
    spec.intermediate_size = fields.required_usize("intermediate_size");
    config.layer_types(spec.num_layers, &[("full_attention", MixerKind::Full)]);
    spec
}

fn layer(spec: &TargetSpec, tensors: &Tensors<'_>, index: usize) -> Result<Layer, ModelError> {
    let attention = if tensors.is_gguf() {
        let q = rotary_matrix(spec, tensors, "self_attn.q_proj.weight", spec.num_heads)?;
        let k = rotary_matrix(spec, tensors, "self_attn.k_proj.weight", spec.num_kv_heads)?;
        Attention::load_with(spec, tensors, index, q, k, None)?
    } else {
        Attention::load(spec, tensors, index)?
    };
    Layer::load(spec, tensors, index, Mixer::Attention(attention))
}

/// llama.cpp's converter stores rotary pairs as neighbours (2i, 2i+1) instead of halves (i, i + d/2).
fn rotary_matrix(spec: &TargetSpec, tensors: &Tensors<'_>, local: &str, heads: usize) -> Result<Weight, ModelError> {
    let shape = [heads * spec.head_dim, spec.hidden_size];
    let values = tensors.values(local, &shape)?;
    tensors.weight(values.map(|v| halves_from_pairs(&v, heads, spec.head_dim, spec.hidden_size)), shape)
}

/// Stored row 2i + s of a head is row i + s·d/2 of the model.
fn halves_from_pairs(values: &[f32], heads: usize, head_dim: usize, columns: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for row in 0..head_dim {
            let stored = head * head_dim + 2 * (row % half) + row / half;
            out.extend_from_slice(&values[stored * columns..(stored + 1) * columns]);
        }
    }
    out
}
