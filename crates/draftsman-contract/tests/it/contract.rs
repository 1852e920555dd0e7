//! The contract as JSON: round trips, versions, refusals.

use draftsman_contract::{
    CONTRACT_VERSION, ContextRule, Contract, FeatureOrigin, LabelSource, LayerAttention, RopeScaling, RopeSpec,
    SlotLayout, TargetIdentity, ThinkingMode,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn scaling() -> impl Strategy<Value = RopeScaling> {
    let positive = 1e-3f64..1e4;
    prop_oneof![
        positive.clone().prop_map(|factor| RopeScaling::Linear { factor }),
        (positive.clone(), 0.1f64..2.0, 0.1f64..9.0, 1usize..1 << 20).prop_map(|(factor, low, more, length)| {
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: low + more,
                original_max_position_embeddings: length,
            }
        }),
        (
            (positive.clone(), 1usize..1 << 20, 1.0f64..64.0, 0.1f64..4.0),
            (prop::option::of(positive.clone()), prop::option::of(positive.clone()), prop::option::of(positive)),
            any::<bool>(),
        )
            .prop_map(
                |((factor, length, fast, slow), (attention_factor, mscale, mscale_all_dim), truncate)| {
                    RopeScaling::Yarn {
                        factor,
                        original_max_position_embeddings: length,
                        beta_fast: fast,
                        beta_slow: slow,
                        attention_factor,
                        mscale,
                        mscale_all_dim,
                        truncate,
                    }
                }
            ),
    ]
}

fn contracts() -> impl Strategy<Value = Contract> {
    let text = || prop::option::of(".{0,12}");
    let layer = (any::<bool>(), prop::option::of(1usize..5000));
    let meaning = (
        1usize..64,
        any::<u32>(),
        prop::collection::btree_set(0usize..100, 1..8),
        prop::collection::vec(layer, 1..9),
        (1.0f64..1e8, prop::option::of(scaling())),
        0i64..100,
        0.0f64..1.0,
    );
    let choices = (
        prop_oneof![Just(ContextRule::BeforeAnchor), Just(ContextRule::ThroughAnchor)],
        prop_oneof![Just(SlotLayout::AnchorUnused), Just(SlotLayout::Shifted)],
        prop_oneof![
            Just(LabelSource::TargetToken),
            Just(LabelSource::DataToken),
            Just(LabelSource::TargetDistribution)
        ],
        prop::option::of(prop_oneof![Just(ThinkingMode::On), Just(ThinkingMode::Off)]),
    );
    let origins = ((text(), text(), text()), (text(), text(), text(), text(), text()), text(), text());
    (meaning, choices, origins, prop::collection::vec(".{0,20}", 0..3)).prop_map(
        |(
            (block_size, mask, ids, layers, (theta, scaling), position_origin, feature_noise),
            (context, slots, labels, thinking),
            (
                (engine, dtype, linear_attention),
                (name, revision, embedding_sha256, head_sha256, layers_sha256),
                tokenizer,
                template,
            ),
            guesses,
        )| {
            let attention = layers.into_iter().map(|(causal, window)| LayerAttention { causal, window }).collect();
            Contract {
                context,
                slots,
                labels,
                thinking,
                position_origin,
                feature_noise,
                features: FeatureOrigin { engine, dtype, linear_attention },
                target: TargetIdentity { name, revision, embedding_sha256, head_sha256, layers_sha256 },
                tokenizer_sha256: tokenizer,
                chat_template_sha256: template,
                guesses,
                ..Contract::dflash(
                    block_size,
                    mask,
                    ids.into_iter().rev().collect(),
                    attention,
                    RopeSpec { theta, scaling },
                )
            }
        },
    )
}

proptest! {
    #[test]
    fn read_back_as_written(contract in contracts()) {
        let text = serde_json::to_string(&contract).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Contract>(&text).unwrap(), &contract);
        let value = serde_json::to_value(&contract).unwrap();
        prop_assert_eq!(value.as_object().unwrap().keys().next().map(String::as_str), Some("version"));
        prop_assert_eq!(serde_json::from_value::<Contract>(value).unwrap(), contract);
    }

    #[test]
    fn any_other_version_is_refused(contract in contracts(), version in any::<i64>()) {
        prop_assume!(version != i64::from(CONTRACT_VERSION));
        let mut value = serde_json::to_value(&contract).unwrap();
        value["version"] = json!(version);
        let message = serde_json::from_value::<Contract>(value).unwrap_err().to_string();
        prop_assert!(message.contains(&format!("contract version {version} is not known")), "{}", message);
    }
}

fn plain() -> Value {
    let contract = Contract::dflash(8, 16, vec![1, 8], vec![LayerAttention::FULL; 3], RopeSpec::plain(1e5));
    serde_json::to_value(contract).unwrap()
}

#[test]
fn what_is_wrong_is_said() {
    let check = |change: fn(&mut Value), expected: &[&str]| {
        let mut value = plain();
        change(&mut value);
        let message = serde_json::from_value::<Contract>(value).unwrap_err().to_string();
        for part in expected {
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    };
    check(|v| drop(v.as_object_mut().unwrap().remove("version")), &["no `version`", "hint:"]);
    check(|v| *v = json!([1]), &["no `version`"]);
    check(|v| v["version"] = json!("1"), &["version \"1\" is not known"]);
    check(|v| v["version"] = json!(1.5), &["version 1.5 is not known"]);
    // The version comes before everything else that is wrong.
    check(|v| *v = json!({"invented": true, "version": 2}), &["version 2 is not known", "reads version 1", "hint:"]);
    check(|v| v["blocksize"] = json!(8), &["unknown field `blocksize`"]);
    check(|v| drop(v.as_object_mut().unwrap().remove("rope")), &["missing field `rope`"]);
    check(|v| v["slots"] = json!("diagonal"), &["unknown variant `diagonal`", "anchor_unused"]);
    check(|v| v["algorithm"] = json!("eagle"), &["unknown variant `eagle`"]);
    check(|v| v["mask_token_id"] = json!(-1), &["-1"]);
    check(|v| v["rope"]["scaling"] = json!({"rope_type": "new"}), &["unknown variant `new`"]);
    // All problems with values at once.
    check(
        |v| {
            v["block_size"] = json!(0);
            v["target_layer_ids"] = json!([3, 5, 3]);
            v["attention"][1]["window"] = json!(0);
            v["position_origin"] = json!(-1);
            v["feature_noise"] = json!(-0.5);
            v["rope"] = json!({"theta": 0.0, "scaling": {"rope_type": "linear", "factor": -2.0}});
        },
        &[
            "block_size is 0",
            "target_layer_ids names layer 3 twice",
            "attention[1].window is 0",
            "position_origin is -1",
            "feature_noise is -0.5",
            "rope.theta is 0",
            "rope.scaling.factor is -2",
        ],
    );
    check(
        |v| {
            v["target_layer_ids"] = json!([]);
            v["attention"] = json!([]);
        },
        &["target_layer_ids is empty", "attention is empty"],
    );
}

#[test]
fn scaling_reads_hugging_face_names() {
    let text = r#"{"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}"#;
    assert_eq!(
        serde_json::from_str::<RopeScaling>(text).unwrap(),
        RopeScaling::Yarn {
            factor: 64.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        }
    );
}

#[test]
fn the_published_causality_rule() {
    let check = |window, is_causal, causal| {
        assert_eq!(LayerAttention::published(window, is_causal), LayerAttention { causal, window });
    };
    check(None, None, false);
    check(Some(2048), None, true);
    check(Some(2048), Some(false), false);
    check(None, Some(false), false);
    check(None, Some(true), true);
    check(Some(2048), Some(true), true);
}

#[test]
fn slots_and_their_labels() {
    let check = |slots: SlotLayout, offsets: [Option<usize>; 3], drafts: [usize; 3]| {
        assert_eq!([0, 1, 2].map(|slot| slots.label_offset(slot)), offsets);
        assert_eq!([0, 1, 8].map(|rows| slots.drafts(rows)), drafts);
    };
    check(SlotLayout::AnchorUnused, [None, Some(1), Some(2)], [0, 0, 7]);
    check(SlotLayout::Shifted, [Some(1), Some(2), Some(3)], [0, 1, 8]);
}
