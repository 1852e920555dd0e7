//! [`TargetSpec`] from a Hugging Face config.json.

use std::cell::RefCell;
use std::path::Path;

use draftsman_contract::{RopeScaling, RopeSpec};
use serde_json::{Value, json};

use super::TargetSpec;
use super::json::{Fields, read_json_object};
use crate::error::{ModelError, Problems};

/// Keys without influence on a frozen forward.
const INERT: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "dtype",
    "initializer_range",
    "is_llama_config",
    "pad_token_id",
    "pretraining_tp",
    "torch_dtype",
    "transformers_version",
    "transformers.js_config",
    "use_cache",
];

/// Reads the spec of a llama from the config.json at `path`; every problem at once.
pub fn spec_from_config(path: &Path) -> Result<TargetSpec, ModelError> {
    let map = read_json_object(path)?;
    let problems = RefCell::new(Problems::default());
    let config = Fields::new("", &map, &problems);
    check_architecture(path, &config)?;
    for key in INERT {
        config.value(key);
    }
    refuse_unsupported(&config);

    let hidden_size = config.required_usize("hidden_size");
    let num_heads = config.required_usize("num_attention_heads");
    let num_kv_heads = config.usize("num_key_value_heads").unwrap_or(num_heads);
    let head_dim = config.usize("head_dim").unwrap_or_else(|| {
        if !hidden_size.is_multiple_of(num_heads) {
            config
                .problem("head_dim", format!("missing, and {num_heads} heads do not divide hidden_size {hidden_size}"));
        }
        (hidden_size / num_heads).max(1)
    });
    let max_positions = config.required_usize("max_position_embeddings");
    let rope = read_rope(&config, &map, &problems);
    let spec = TargetSpec {
        architecture: "llama".into(),
        num_layers: config.required_usize("num_hidden_layers"),
        hidden_size,
        vocab_size: config.required_usize("vocab_size"),
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size: config.required_usize("intermediate_size"),
        rms_norm_eps: config.required_f64("rms_norm_eps"),
        rope,
        max_positions,
        tied: config.bool("tie_word_embeddings").unwrap_or(false),
        eos_token_ids: config.ids("eos_token_id"),
        bos_token_id: config.ids("bos_token_id").first().copied(),
        unread_keys: Vec::new(),
    };
    let unread_keys = config.unread();
    drop(config);
    let mut problems = problems.into_inner();
    check_spec(&spec, &mut problems);
    problems.into_model_result(path)?;
    Ok(TargetSpec { unread_keys, ..spec })
}

fn check_architecture(path: &Path, config: &Fields<'_>) -> Result<(), ModelError> {
    let hint = "llama models are supported (LlamaForCausalLM)";
    match config.str("model_type") {
        Some("llama") => {}
        Some(other) => {
            return Err(ModelError::unsupported(path, format!("`model_type` {other:?} is not supported"), hint));
        }
        None => {
            return Err(ModelError::config(path, "model_type", "it is missing", hint));
        }
    }
    if let Some(Value::Array(names)) = config.value("architectures")
        && !names.is_empty()
        && !names.iter().any(|n| n == "LlamaForCausalLM" || n == "LlamaModel")
    {
        return Err(ModelError::unsupported(
            path,
            format!("`architectures` {} is not supported", Value::from(names.clone())),
            hint,
        ));
    }
    Ok(())
}

/// Keys that change what a llama computes and that this forward does not know.
fn refuse_unsupported(config: &Fields<'_>) {
    config.only("hidden_act", &[json!("silu"), json!("swish")]);
    for key in ["attention_bias", "mlp_bias", "use_sliding_window", "use_qk_norm", "qk_layernorm", "rope_interleaved"] {
        config.only(key, &[json!(false)]);
    }
    for key in [
        "attention_multiplier",
        "embedding_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "partial_rotary_factor",
    ] {
        config.only(key, &[json!(1)]);
    }
    for key in [
        "quantization_config",
        "compression_config",
        "sliding_window",
        "final_logit_softcapping",
        "attn_logit_softcapping",
        "clip_qkv",
        "no_rope_layers",
        "num_experts",
        "num_local_experts",
    ] {
        config.only(key, &[]);
    }
    if let Some(kinds) = config.value("layer_types") {
        let full = |v: &Value| v == "full_attention";
        if !kinds.as_array().is_some_and(|k| k.iter().all(full)) {
            config.problem("layer_types", "only full_attention layers are supported for a llama");
        }
    }
}

/// Both spellings: `rope_parameters` (theta inside), and `rope_theta` + `rope_scaling`.
pub(crate) fn read_rope<'a>(
    config: &Fields<'a>,
    map: &'a serde_json::Map<String, Value>,
    problems: &'a RefCell<Problems>,
) -> RopeSpec {
    const DEFAULT_THETA: f64 = 10_000.0;
    let top_theta = config.f64("rope_theta");
    let scaling = config.object("rope_scaling");
    let Some(parameters) = config.object("rope_parameters") else {
        return RopeSpec {
            theta: top_theta.unwrap_or(DEFAULT_THETA),
            scaling: scaling.and_then(|s| read_scaling(&Fields::new("rope_scaling.", s, problems))),
        };
    };
    let fields = Fields::new("rope_parameters.", parameters, problems);
    let theta = fields.f64("rope_theta").or(top_theta).unwrap_or(DEFAULT_THETA);
    let spec = RopeSpec { theta, scaling: read_scaling(&fields) };
    // Both spellings in one file: two readers must not see two models.
    let same_theta = top_theta.is_none_or(|t| t == theta);
    let same_scaling = scaling.is_none_or(|s| read_scaling(&Fields::new("rope_scaling.", s, problems)) == spec.scaling);
    if !(same_theta && same_scaling) {
        config.problem(
            "rope_parameters",
            format!(
                "disagrees with `rope_theta` {} and `rope_scaling` {} of the same file",
                map.get("rope_theta").unwrap_or(&Value::Null),
                map.get("rope_scaling").unwrap_or(&Value::Null)
            ),
        );
    }
    spec
}

fn read_scaling(fields: &Fields<'_>) -> Option<RopeScaling> {
    fields.only("partial_rotary_factor", &[json!(1)]);
    // `type` is the older name of `rope_type`.
    let older = fields.str("type");
    let kind = fields.str("rope_type").or(older).unwrap_or("default");
    let original = || fields.required_usize("original_max_position_embeddings");
    let scaling = match kind {
        "default" => return None,
        "linear" => RopeScaling::Linear { factor: fields.required_f64("factor") },
        "llama3" => RopeScaling::Llama3 {
            factor: fields.required_f64("factor"),
            low_freq_factor: fields.required_f64("low_freq_factor"),
            high_freq_factor: fields.required_f64("high_freq_factor"),
            original_max_position_embeddings: original(),
        },
        "yarn" => RopeScaling::Yarn {
            factor: fields.required_f64("factor"),
            original_max_position_embeddings: original(),
            beta_fast: fields.f64("beta_fast").unwrap_or(32.0),
            beta_slow: fields.f64("beta_slow").unwrap_or(1.0),
            attention_factor: fields.f64("attention_factor"),
            mscale: fields.f64("mscale"),
            mscale_all_dim: fields.f64("mscale_all_dim"),
            truncate: fields.bool("truncate").unwrap_or(true),
        },
        other => {
            fields
                .problem("rope_type", format!("{other:?} is not supported (supported: default, linear, llama3, yarn)"));
            return None;
        }
    };
    Some(scaling)
}

/// What must hold whatever file the numbers came from.
pub(super) fn check_spec(spec: &TargetSpec, problems: &mut Problems) {
    let TargetSpec { num_heads, num_kv_heads, head_dim, rms_norm_eps, .. } = *spec;
    if !num_heads.is_multiple_of(num_kv_heads) {
        problems.push(format!("{num_kv_heads} key/value heads do not divide {num_heads} query heads"));
    }
    if !head_dim.is_multiple_of(2) {
        problems.push(format!("head_dim {head_dim} is odd, rotary pairs need an even one"));
    }
    if !(rms_norm_eps > 0.0 && rms_norm_eps < 1.0) {
        problems.push(format!("rms_norm_eps {rms_norm_eps} is not between 0 and 1"));
    }
    // Products of these are computed later; a hostile file must not make them overflow.
    let widest = [
        spec.num_layers,
        spec.hidden_size,
        spec.vocab_size,
        num_heads,
        num_kv_heads,
        head_dim,
        spec.intermediate_size,
        spec.max_positions,
    ];
    if widest.iter().any(|&n| n == 0 || n > 1 << 31) {
        problems.push("a dimension is 0 or larger than 2^31");
    }
    for problem in spec.rope.problems() {
        problems.push(problem);
    }
}
