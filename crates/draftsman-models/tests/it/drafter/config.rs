//! Published configurations: both nestings, the causality rule, both rope spellings, what is guessed, what is refused.

use std::path::Path;

use draftsman_contract::{Contract, LayerAttention, RopeScaling, RopeSpec, SlotLayout};
use draftsman_models::{AttentionParts, DrafterConfig, LayerSpec, ModelError, TargetSpec, check_pair};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A whole v1 config with `changes` applied: a value replaces a key, null removes it, dots go into objects.
fn raw(changes: &[(&str, Value)]) -> Value {
    let mut raw = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 8,
        "dflash_config": { "mask_token_id": 16, "target_layer_ids": [1, 3] },
        "num_target_layers": 6, "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 32,
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 1024,
        "vocab_size": 100, "eos_token_id": 2,
    });
    for (key, value) in changes {
        let (object, key) = match key.split_once('.') {
            Some((outer, inner)) => (raw[outer].as_object_mut().unwrap(), inner),
            None => (raw.as_object_mut().unwrap(), *key),
        };
        if value.is_null() {
            object.remove(key);
        } else {
            object.insert(key.to_string(), value.clone());
        }
    }
    raw
}

fn read(raw: &Value) -> Result<DrafterConfig, ModelError> {
    DrafterConfig::from_json(raw, Path::new("folder/config.json"))
}

fn rule(causal: bool, window: Option<usize>) -> LayerAttention {
    LayerAttention { causal, window }
}

#[test]
fn drafting_keys_are_read_nested_first_and_then_at_top_level() {
    let check = |changes: &[(&str, Value)], expected: (usize, u32, &[usize], f32, f32, Option<f32>)| {
        let config = read(&raw(changes)).unwrap();
        let contract = &config.contract;
        let got = (
            contract.block_size,
            contract.mask_token_id,
            contract.target_layer_ids.as_slice(),
            config.input_embedding_scale,
            config.output_multiplier,
            config.final_logit_softcapping,
        );
        assert_eq!(got, expected, "{changes:?}");
    };
    check(&[], (8, 16, &[1, 3], 1.0, 1.0, None));
    check(&[("dflash_config.block_size", json!(4))], (4, 16, &[1, 3], 1.0, 1.0, None));
    check(
        &[("dflash_config", Value::Null), ("mask_token_id", json!(7)), ("target_layer_ids", json!([0, 4]))],
        (8, 7, &[0, 4], 1.0, 1.0, None),
    );
    check(
        &[
            ("dflash_config.input_embedding_scale", json!(2.5)),
            ("input_embedding_scale", json!(9.0)),
            ("output_multiplier", json!(0.5)),
            ("final_logit_softcapping", json!(30)),
        ],
        (8, 16, &[1, 3], 2.5, 0.5, Some(30.0)),
    );
    // A softcap of 0 is none; an absent block size is 16.
    check(&[("final_logit_softcapping", json!(0.0)), ("block_size", Value::Null)], (16, 16, &[1, 3], 1.0, 1.0, None));
}

#[test]
fn causality_follows_is_causal_and_else_the_kind_of_layer() {
    let check = |changes: &[(&str, Value)], expected: [LayerAttention; 3]| {
        let config = read(&raw(changes)).unwrap();
        assert_eq!(config.contract.attention, expected, "{changes:?}");
    };
    let w = Some(32);
    check(&[], [rule(false, None), rule(true, w), rule(false, None)]);
    check(&[("is_causal", json!(false))], [rule(false, None), rule(false, w), rule(false, None)]);
    check(&[("is_causal", json!(true))], [rule(true, None), rule(true, w), rule(true, None)]);
    check(&[("dflash_config.causal", json!(false))], [rule(false, None), rule(false, w), rule(false, None)]);
    // The top level wins over vLLM's nested key.
    check(
        &[("dflash_config.causal", json!(false)), ("is_causal", json!(true))],
        [rule(true, None), rule(true, w), rule(true, None)],
    );
    check(&[("layer_types", Value::Null)], [rule(false, None); 3]);
    check(
        &[("layer_types", Value::Null), ("use_sliding_window", json!(true)), ("max_window_layers", json!(1))],
        [rule(false, None), rule(true, w), rule(true, w)],
    );
    // ModelOpt's export leaves layer_types full.
    check(
        &[
            ("dflash_config.use_swa", json!(true)),
            ("dflash_config.swa_window_size", json!(48)),
            ("dflash_config.causal", json!(false)),
            ("layer_types", json!(["full_attention", "full_attention", "full_attention"])),
        ],
        [rule(false, Some(48)); 3],
    );
}

#[test]
fn both_rope_spellings_are_read() {
    let check = |changes: &[(&str, Value)], expected: RopeSpec| {
        assert_eq!(read(&raw(changes)).unwrap().contract.rope, expected, "{changes:?}");
    };
    let linear = |theta| RopeSpec { theta, scaling: Some(RopeScaling::Linear { factor: 4.0 }) };
    check(&[], RopeSpec::plain(1e6));
    check(&[("rope_scaling", json!({ "type": "linear", "factor": 4.0 }))], linear(1e6));
    check(
        &[
            ("rope_theta", Value::Null),
            ("rope_parameters", json!({ "rope_type": "linear", "rope_theta": 5e5, "factor": 4.0 })),
        ],
        linear(5e5),
    );
    check(
        &[("rope_theta", Value::Null), ("rope_parameters", json!({ "rope_type": "default", "rope_theta": 1e7 }))],
        RopeSpec::plain(1e7),
    );
    check(&[("rope_theta", Value::Null)], RopeSpec::plain(1e4));
    let yarn = read(&raw(&[(
        "rope_scaling",
        json!({ "rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "mscale": null }),
    )]));
    assert!(
        matches!(
            yarn.unwrap().contract.rope.scaling,
            Some(RopeScaling::Yarn { factor: 64.0, original_max_position_embeddings: 4096, beta_fast: 32.0, .. })
        ),
        "yarn"
    );
}

#[test]
fn guesses_are_listed_only_without_a_contract() {
    let derived = read(&raw(&[("block_size", Value::Null), ("rope_theta", Value::Null)])).unwrap();
    let guesses = derived.contract.guesses.join("\n");
    for expected in
        ["`block_size` absent: 16", "`rope_theta` absent: 10000", "`is_causal` absent", "slot layout not stated"]
    {
        assert!(guesses.contains(expected), "{expected} in {guesses}");
    }
    let stated = read(&raw(&[])).unwrap();
    assert!(!stated.contract.guesses.join("\n").contains("block_size"));

    // The contract says what the published keys cannot.
    let mut contract = stated.contract.clone();
    contract.slots = SlotLayout::Shifted;
    contract.guesses.clear();
    let read = read(&raw(&[("draftsman_contract", serde_json::to_value(&contract).unwrap())]));
    assert_eq!(read.unwrap().contract, contract);
}

#[test]
fn what_is_written_reads_back_the_same() {
    for changes in [
        vec![],
        vec![("is_causal", json!(false))],
        vec![("is_causal", json!(true)), ("dflash_config.block_size", json!(4))],
        vec![("output_multiplier", json!(0.25)), ("dflash_config.input_embedding_scale", json!(3.0))],
        vec![("final_logit_softcapping", json!(30.0)), ("dflash_config.runtime_block_size", json!(4))],
        vec![("rope_scaling", json!({ "rope_type": "linear", "factor": 2.0 }))],
        vec![(
            "rope_scaling",
            json!({ "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_slow": 2.0 }),
        )],
    ] {
        let config = read(&raw(&changes)).unwrap();
        let mut written = config.to_json().unwrap();
        assert_eq!(written["eos_token_id"], json!(2), "a key that is not interpreted is kept");
        assert_eq!(read(&written).unwrap(), config, "{changes:?}");
        // Without the contract, other programs read the same meaning from the published keys.
        written.as_object_mut().unwrap().remove("draftsman_contract");
        let mut published = read(&written).unwrap();
        published.contract.guesses = config.contract.guesses.clone();
        assert_eq!(published, config, "{changes:?}, published keys");
    }
}

#[test]
fn a_meaning_that_the_published_keys_cannot_say_is_not_written() {
    let mut config = read(&raw(&[])).unwrap();
    config.contract.attention[2] = rule(true, Some(5));
    let error = config.to_json().unwrap_err().to_string();
    assert!(error.contains("{5, 32}") && error.contains("sliding_window"), "{error}");
    config.contract.attention = vec![rule(true, None), rule(true, Some(32)), rule(false, None)];
    let error = config.to_json().unwrap_err().to_string();
    assert!(error.contains("is_causal"), "{error}");
}

#[test]
fn bad_configurations_are_refused_with_their_key() {
    let check = |changes: &[(&str, Value)], expected: &[&str]| {
        let error = read(&raw(changes)).expect_err(&format!("{changes:?}")).to_string();
        for part in expected.iter().chain(&["folder/config.json"]) {
            assert!(error.contains(part), "{changes:?}: `{part}` is not in: {error}");
        }
    };
    check(&[("dflash_config.mask_token_id", json!(100))], &["mask_token_id", "100"]);
    check(&[("dflash_config.mask_token_id", Value::Null)], &["`mask_token_id` is missing"]);
    check(&[("dflash_config.mask_token_id", json!(-1))], &["`dflash_config.mask_token_id` is -1"]);
    check(&[("dflash_config.target_layer_ids", json!([1, 6]))], &["target_layer_ids", "holds 6", "0..=5"]);
    check(&[("dflash_config.target_layer_ids", json!([1, 5]))], &["holds 5, the last layer"]);
    check(&[("dflash_config.target_layer_ids", json!([]))], &["target_layer_ids is empty"]);
    check(&[("dflash_config.target_layer_ids", json!("1,3"))], &["target_layer_ids", "list"]);
    check(&[("block_size", json!(1))], &["block_size", "no row to draft"]);
    check(&[("block_size", json!("8"))], &["`block_size` is \"8\""]);
    check(&[("head_dim", json!(15))], &["head_dim", "odd"]);
    check(&[("hidden_size", Value::Null), ("vocab_size", Value::Null)], &["`hidden_size` is", "`vocab_size` is"]);
    check(&[("num_key_value_heads", json!(3))], &["not a multiple"]);
    check(&[("num_hidden_layers", json!(1_u64 << 40))], &["num_hidden_layers"]);
    check(&[("hidden_size", json!(1_u64 << 60))], &["hidden_size", "above any real model"]);
    check(&[("layer_types", json!(["full_attention"]))], &["1 entries for 3 layers"]);
    check(&[("sliding_window", Value::Null)], &["layer_types[1]", "sliding_window"]);
    check(&[("layer_types", json!(["full_attention", "linear_attention", "x"]))], &["layer_types[1]"]);
    check(
        &[("rope_scaling", json!({ "rope_type": "longrope", "factor": 2.0 }))],
        &["rope_scaling.rope_type", "longrope"],
    );
    check(&[("rope_theta", json!(0.0))], &["theta"]);
    check(&[("attention_bias", json!(true))], &["attention_bias"]);
    check(&[("architectures", json!(["DFlash2DraftModel"]))], &["DFlash2DraftModel"]);
    check(&[("dflash_config.selector_rank", json!(256))], &["dflash_config.selector_rank", "DFlash 2"]);
    check(&[("draft_vocab_size", json!(50))], &["reduced vocabulary"]);
    check(&[("output_multiplier", json!(0.0))], &["output_multiplier"]);

    let contract = read(&raw(&[])).unwrap().contract;
    let with = |change: &dyn Fn(&mut Contract)| {
        let mut contract = contract.clone();
        change(&mut contract);
        ("draftsman_contract", serde_json::to_value(contract).unwrap())
    };
    check(&[with(&|c| c.block_size = 4)], &["`block_size` is 8", "says 4"]);
    check(&[with(&|c| c.mask_token_id = 17)], &["mask_token_id", "says 17"]);
    check(&[with(&|c| c.attention[1].window = Some(33))], &["sliding_window", "33"]);
    check(&[with(&|c| c.rope.theta = 10.0), ("is_causal", json!(true))], &["rope_theta", "is_causal"]);
    check(&[with(&|c| c.version = 9)], &["draftsman_contract", "version 9"]);
}

#[test]
fn everything_that_does_not_fit_the_target_is_said_at_once() {
    let spec = TargetSpec {
        architecture: "llama".into(),
        num_layers: 6,
        hidden_size: 64,
        vocab_size: 100,
        num_heads: 8,
        num_kv_heads: 8,
        head_dim: 8,
        rotary_dim: 8,
        attention: AttentionParts::default(),
        intermediate_size: 200,
        layers: vec![LayerSpec::PLAIN; 6],
        delta: None,
        experts: None,
        rms_norm_eps: 1e-5,
        rope: RopeSpec::plain(1e4),
        max_positions: 256,
        tied: true,
        eos_token_ids: vec![2],
        bos_token_id: None,
        notes: Vec::new(),
        unread_keys: Vec::new(),
    };
    let config = |changes: &[(&str, Value)]| read(&raw(changes)).unwrap();
    // Heads and MLP are free.
    check_pair(&config(&[]), &spec).unwrap();
    let error = check_pair(
        &config(&[("hidden_size", json!(32)), ("vocab_size", json!(120)), ("num_target_layers", json!(7))]),
        &spec,
    )
    .unwrap_err();
    assert_eq!(error.0.len(), 3, "{error}");
    for part in ["`hidden_size` is 32", "`vocab_size` is 120", "`num_target_layers` is 7"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    // Without num_target_layers the ids are checked against the target itself.
    let error = check_pair(
        &config(&[("num_target_layers", Value::Null), ("dflash_config.target_layer_ids", json!([5, 9]))]),
        &spec,
    )
    .unwrap_err();
    assert!(error.to_string().contains("holds 5, the last layer") && error.to_string().contains("holds 9"), "{error}");
    let error = check_pair(&config(&[("vocab_size", json!(200)), ("dflash_config.mask_token_id", json!(150))]), &spec)
        .unwrap_err();
    assert!(error.to_string().contains("`mask_token_id` 150 is outside the target's embedding"), "{error}");
}

/// JSON values of every kind, small and absurd.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-4i64..40).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof!["full_attention", "sliding_attention", "yarn", "linear", "[a-z]{0,3}"].prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop_oneof!["rope_type", "factor", "version", "block_size"], inner), 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever stands in a config, reading it ends in a usable configuration or in an error, never in a panic.
    #[test]
    fn no_value_of_any_key_is_a_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4)
    ) {
        let mut changed = raw(&[("rope_scaling", json!({ "rope_type": "linear", "factor": 2.0 }))]);
        let contract = serde_json::to_value(&read(&changed).unwrap().contract).unwrap();
        let object = changed.as_object_mut().unwrap();
        object.insert("is_causal".into(), json!(false));
        object.insert("rope_parameters".into(), Value::Null);
        object.insert("draftsman_contract".into(), Value::Null);
        let keys: Vec<String> = object.keys().cloned().collect();
        for (key, value) in &changes {
            object.insert(key.get(&keys).clone(), value.clone());
        }
        if let Ok(config) = read(&changed) {
            prop_assert!(config.validate().is_empty());
            prop_assert_eq!(config.tensors().len(), 11 * config.num_hidden_layers + 3);
        }
        let mut with_contract = raw(&[]);
        with_contract["draftsman_contract"] = contract;
        for (key, value) in &changes {
            let contract = with_contract["draftsman_contract"].as_object_mut().unwrap();
            let keys: Vec<String> = contract.keys().cloned().collect();
            contract.insert(key.get(&keys).clone(), value.clone());
        }
        if let Ok(config) = read(&with_contract) {
            prop_assert!(config.validate().is_empty());
        }
    }
}
