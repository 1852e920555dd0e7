//! Configurations: both rope spellings, defaults, everything unsupported refused at once, both formats the same spec.

use std::path::Path;

use draftsman_contract::RopeScaling;
use draftsman_models::{ModelError, TargetSpec, read_target_spec, spec_from_config};
use serde_json::{Value, json};

use super::testdata;

/// The golden config of `llama_plain` with `changes` applied (null removes a key).
fn spec_with(changes: &[(&str, Value)]) -> Result<TargetSpec, ModelError> {
    let text = std::fs::read_to_string(testdata("llama_plain/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let map = config.as_object_mut().unwrap();
    for (key, value) in changes {
        if value.is_null() {
            map.remove(*key);
        } else {
            map.insert(key.to_string(), value.clone());
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    spec_from_config(&path)
}

#[test]
fn golden_configs_are_read_whole() {
    let spec = read_target_spec(&testdata("llama_scaled")).unwrap();
    assert_eq!(
        (spec.num_layers, spec.hidden_size, spec.vocab_size, spec.num_heads, spec.num_kv_heads, spec.head_dim),
        (3, 32, 130, 4, 2, 24)
    );
    assert_eq!((spec.intermediate_size, spec.max_positions, spec.tied), (64, 512, false));
    assert_eq!((spec.rms_norm_eps, spec.rope.theta), (1e-5, 5e5));
    assert_eq!((spec.eos_token_ids.as_slice(), spec.bos_token_id), ([2, 5].as_slice(), Some(1)));
    assert_eq!(spec.unread_keys, Vec::<String>::new());
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };
    assert_eq!(spec.rope.scaling, Some(scaling));
}

#[test]
fn both_rope_spellings_give_the_same_rope() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16});
    for scaling in [
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"type": "linear", "factor": 2}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}),
        yarn.clone(),
    ] {
        let mut new = scaling.clone();
        new["rope_theta"] = json!(123.0);
        let new = spec_with(&[("rope_parameters", new)]).unwrap().rope;
        let old = [("rope_parameters", Value::Null), ("rope_theta", json!(123)), ("rope_scaling", scaling.clone())];
        assert_eq!(spec_with(&old).unwrap().rope, new, "{scaling}");
        assert_eq!(new.theta, 123.0);
        assert!(new.scaling.is_some());
    }
    let both = |theta: f64, factor: f64| {
        let mut new = yarn.clone();
        new["rope_theta"] = json!(5e4);
        let mut old = yarn.clone();
        old["factor"] = json!(factor);
        spec_with(&[("rope_parameters", new), ("rope_theta", json!(theta)), ("rope_scaling", old)])
    };
    assert!(both(5e4, 4.0).is_ok());
    for (theta, factor) in [(1e4, 4.0), (5e4, 3.0)] {
        let error = both(theta, factor).unwrap_err().to_string();
        assert!(error.contains("`rope_parameters`: disagrees with `rope_theta`"), "{error}");
    }
}

#[test]
fn missing_keys_have_the_defaults_of_transformers() {
    let spec = spec_with(&[
        ("num_key_value_heads", Value::Null),
        ("head_dim", Value::Null),
        ("rope_parameters", Value::Null),
        ("tie_word_embeddings", Value::Null),
        ("surprise", json!(1)),
    ])
    .unwrap();
    assert_eq!((spec.num_kv_heads, spec.head_dim, spec.rope.theta, spec.tied), (3, 12, 1e4, false));
    assert_eq!(spec.unread_keys, ["surprise"]);
}

#[test]
fn what_changes_the_mathematics_is_refused() {
    let check = |changes: &[(&str, Value)], expected: &[&str]| {
        let error = spec_with(changes).expect_err(&format!("{changes:?} was accepted")).to_string();
        for part in [&["config.json"], expected].concat() {
            assert!(error.contains(part), "{changes:?}: {error:?} does not say {part:?}");
        }
    };
    check(&[("attention_bias", json!(true))], &["`attention_bias`: true changes the mathematics"]);
    check(&[("mlp_bias", json!(true)), ("hidden_act", json!("gelu"))], &["2 problems", "`mlp_bias`", "`hidden_act`"]);
    check(&[("quantization_config", json!({"bits": 4}))], &["`quantization_config`"]);
    check(&[("sliding_window", json!(64))], &["`sliding_window`: 64"]);
    check(&[("partial_rotary_factor", json!(0.5))], &["`partial_rotary_factor`: 0.5"]);
    check(&[("layer_types", json!(["full_attention", "sliding_attention"]))], &["`layer_types`"]);
    check(&[("rope_parameters", json!({"rope_type": "longrope"}))], &["`rope_parameters.rope_type`", "longrope"]);
    check(
        &[("rope_parameters", json!({"rope_type": "llama3", "factor": 0.0, "low_freq_factor": 1}))],
        &["`rope_parameters.high_freq_factor`: it is missing", "`rope_parameters.original_max_position_embeddings`"],
    );
    check(
        &[("model_type", json!("mistral"))],
        &["`model_type` \"mistral\" is not supported", "hint: supported: llama, qwen2, qwen3, qwen3_moe"],
    );
    check(&[("layer_types", json!(["full_attention"]))], &["`layer_types`: 1 entries, the model has 4 layers"]);
    check(&[("architectures", json!(["LlamaForCausalLMEagle3"]))], &["LlamaForCausalLMEagle3"]);
    check(
        &[("hidden_size", Value::Null), ("vocab_size", json!("many"))],
        &["`hidden_size`: it is missing", "`vocab_size`: expected a whole number", "found \"many\""],
    );
    check(&[("num_key_value_heads", json!(2))], &["2 key/value heads do not divide 3"]);
    check(&[("head_dim", json!(13))], &["head_dim 13 is odd"]);
    check(&[("num_hidden_layers", json!(0)), ("vocab_size", json!(1u64 << 60))], &["2 problems"]);
    check(&[("rms_norm_eps", json!(-1))], &["rms_norm_eps -1"]);
}

#[test]
fn a_broken_config_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    for (text, expected) in
        [("{", "not a JSON object"), ("[]", "not a JSON object"), ("{}", "`model_type`: it is missing")]
    {
        std::fs::write(&path, text).unwrap();
        let error = spec_from_config(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("config.json"), "{error}");
    }
    let deep = "[".repeat(100_000);
    std::fs::write(&path, format!("{{\"model_type\": {deep}")).unwrap();
    assert!(spec_from_config(&path).is_err());
    let error = spec_from_config(Path::new("/no/such/config.json")).unwrap_err().to_string();
    assert!(error.contains("/no/such/config.json"), "{error}");
}
