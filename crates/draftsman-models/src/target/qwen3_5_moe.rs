//! The sparse Qwen3.5 and 3.6: the hybrid with a choice of experts, and one that every token uses, as its MLP.

use serde_json::json;

use super::architecture::Architecture;
use super::config::Config;
use super::qwen3_5::{ignored, layer, read_hybrid};
use super::spec::{ExpertSpec, Routing, TargetSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3_5_moe",
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    classes: &["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextModel", "Qwen3_5MoeModel"],
    nested: true,
    read_config,
    gguf: None,
    zero_centred_norms: true,
    layer,
    ignored,
};

fn read_config(config: &Config<'_>) -> TargetSpec {
    let fields = &config.fields;
    for key in ["output_router_logits", "router_aux_loss_coef"] {
        fields.value(key);
    }
    // Fixed by the architecture; a file that says otherwise would be read in two ways.
    fields.only("norm_topk_prob", &[json!(true)]);
    fields.only("decoder_sparse_step", &[json!(1)]);
    fields.only("mlp_only_layers", &[json!([])]);
    let mut spec = read_hybrid(config, "qwen3_5_moe");
    let shared = fields.required_usize("shared_expert_intermediate_size");
    let experts = ExpertSpec {
        shared_intermediate_size: Some(shared),
        ..config.experts(Routing::SoftmaxTopK { renormalise: true })
    };
    spec.intermediate_size = fields
        .usize("intermediate_size")
        .unwrap_or(experts.per_token.saturating_mul(experts.intermediate_size) + shared);
    spec.experts = Some(experts);
    spec.layers.iter_mut().for_each(|layer| layer.sparse = true);
    spec
}
