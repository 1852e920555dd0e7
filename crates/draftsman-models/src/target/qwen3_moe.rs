//! Qwen3-MoE: Qwen3 with a choice of experts in place of the MLP.

use serde_json::{Value, json};

use super::architecture::Architecture;
use super::config::Config;
use super::decoder::Layer;
use super::rope_config::RopeDefaults;
use super::spec::{AttentionParts, ExpertActivation, ExpertSpec, MixerKind, Routing, TargetSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3_moe",
    model_types: &["qwen3_moe"],
    classes: &["Qwen3MoeForCausalLM", "Qwen3MoeModel"],
    nested: false,
    read_config,
    gguf: None,
    zero_centred_norms: false,
    layer: Layer::load_attention,
    ignored: |_, _| false,
};

fn read_config(config: &Config<'_>) -> TargetSpec {
    let fields = &config.fields;
    for key in ["max_window_layers", "output_router_logits", "router_aux_loss_coef"] {
        fields.value(key);
    }
    fields.only("quantization_config", &[]);
    fields.only("shared_expert_intermediate_size", &[json!(0)]);
    fields.only("use_qk_norm", &[json!(true)]);
    fields.only("qkv_bias", &[json!(false)]);
    // `head_dim` is not a key of its own to this model in the library.
    let mut spec = config.decoder("qwen3_moe", None, &RopeDefaults::PLAIN);
    spec.attention = AttentionParts { qk_norm: true, ..config.attention_bias(false) };
    if let Some(window) = config.window() {
        spec.layers.iter_mut().for_each(|layer| layer.mixer = MixerKind::Sliding { window });
    }
    let renormalise = fields.bool("norm_topk_prob").unwrap_or(false);
    let experts = config.experts(Routing::SoftmaxTopK { renormalise });
    sparse_layers(config, &mut spec);
    let has_dense = spec.layers.iter().any(|layer| !layer.sparse);
    spec.intermediate_size = match fields.usize("intermediate_size") {
        Some(size) => size,
        None if has_dense => fields.required_usize("intermediate_size"),
        None => experts.per_token * experts.intermediate_size,
    };
    spec.experts = Some(experts);
    spec
}

/// Every `decoder_sparse_step`-th layer, without those of `mlp_only_layers`.
fn sparse_layers(config: &Config<'_>, spec: &mut TargetSpec) {
    const DENSE: &str = "mlp_only_layers";
    let step = config.fields.usize("decoder_sparse_step").unwrap_or(1);
    let dense: Option<Vec<u64>> = match config.fields.value(DENSE) {
        None => Some(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(Value::as_u64).collect(),
        Some(_) => None,
    };
    let Some(dense) = dense else {
        return config.fields.problem(DENSE, "expected a list of layer ids");
    };
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.sparse = (index + 1).is_multiple_of(step) && !dense.contains(&(index as u64));
    }
}

impl Config<'_> {
    /// The experts of a Qwen MoE; a shared one is the caller's.
    pub(super) fn experts(&self, routing: Routing) -> ExpertSpec {
        let fields = &self.fields;
        // The library knows the number of experts by two names.
        let count = fields.usize("num_experts");
        let other = fields.usize("num_local_experts");
        if let (Some(count), Some(other)) = (count, other)
            && count != other
        {
            fields.problem("num_experts", format!("{count}, and `num_local_experts` is {other}"));
        }
        ExpertSpec {
            count: count.or(other).unwrap_or_else(|| fields.required_usize("num_experts")),
            per_token: fields.required_usize("num_experts_per_tok"),
            intermediate_size: fields.required_usize("moe_intermediate_size"),
            shared_intermediate_size: None,
            routing,
            activation: ExpertActivation::Swiglu,
            biased: false,
        }
    }
}
