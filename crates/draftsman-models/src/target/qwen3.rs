//! Qwen3: a llama with norms on the heads of q and k.

use serde_json::json;

use super::architecture::{Architecture, Gguf};
use super::config::Config;
use super::decoder::Layer;
use super::rope_config::RopeDefaults;
use super::spec::{AttentionParts, TargetSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    model_types: &["qwen3"],
    classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    nested: false,
    read_config,
    gguf: Some(Gguf {
        name: "qwen3",
        read: |_, spec| {
            spec.attention.qk_norm = true;
            Ok(())
        },
        renames: &[],
    }),
    zero_centred_norms: false,
    layer: Layer::load_attention,
    ignored: |_, _| false,
};

fn read_config(config: &Config<'_>) -> TargetSpec {
    let fields = &config.fields;
    fields.only("use_qk_norm", &[json!(true)]);
    for key in ["quantization_config", "num_experts"] {
        fields.only(key, &[]);
    }
    let mut spec = config.decoder("qwen3", Some(HEAD_DIM), &RopeDefaults::PLAIN);
    spec.attention = AttentionParts { qk_norm: true, ..config.attention_bias(false) };
    spec.intermediate_size = fields.required_usize("intermediate_size");
    config.qwen_windows(&mut spec);
    spec
}

/// Where the key is missing.
pub(super) const HEAD_DIM: usize = 128;
