//! Qwen2 and Qwen2.5: a llama with biases on q, k and v.

use serde_json::json;

use super::architecture::{Architecture, Gguf};
use super::config::Config;
use super::decoder::Layer;
use super::rope_config::RopeDefaults;
use super::spec::{AttentionParts, TargetSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    model_types: &["qwen2"],
    classes: &["Qwen2ForCausalLM", "Qwen2Model"],
    nested: false,
    read_config,
    gguf: Some(Gguf {
        name: "qwen2",
        read: |_, spec| {
            spec.attention = PARTS;
            Ok(())
        },
        renames: &[],
    }),
    zero_centred_norms: false,
    layer: Layer::load_attention,
    ignored: |_, name| name.ends_with("rotary_emb.inv_freq"),
};

const PARTS: AttentionParts =
    AttentionParts { qkv_bias: true, o_bias: false, qk_norm: false, output_gate: false, sinks: false };

fn read_config(config: &Config<'_>) -> TargetSpec {
    let fields = &config.fields;
    // The biases are part of the architecture; a file that says otherwise would be read in two ways.
    fields.only("attention_bias", &[json!(true)]);
    for key in ["use_mrope", "use_qk_norm"] {
        fields.only(key, &[json!(false)]);
    }
    for key in ["quantization_config", "num_experts"] {
        fields.only(key, &[]);
    }
    let mut spec = config.decoder("qwen2", None, &RopeDefaults::PLAIN);
    spec.attention = PARTS;
    spec.intermediate_size = fields.required_usize("intermediate_size");
    config.qwen_windows(&mut spec);
    spec
}
