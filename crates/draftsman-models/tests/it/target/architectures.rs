//! What each architecture reads of its configuration, what it refuses, and the tensors that follow.

use burn::tensor::Device;
use draftsman_kernels::WeightDtype;
use draftsman_models::{
    ExpertActivation, LayerSpec, MixerKind, ModelError, Routing, TargetSpec, open_target, read_target_spec,
    spec_from_config, target_tensors,
};
use safetensors::tensor::{SafeTensors, TensorView, serialize_to_file};
use serde_json::{Value, json};

use super::{GGUF, MODELS, open, testdata};

/// Changes to a golden config: a dotted key and its new value, null to remove it.
type Changes<'a> = &'a [(&'a str, Value)];

fn write_config(config: &Value) -> Result<TargetSpec, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    spec_from_config(&path)
}

fn spec_with(model: &str, changes: Changes) -> Result<TargetSpec, ModelError> {
    let text = std::fs::read_to_string(testdata(model).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes {
        let (folder, key) = key.rsplit_once('.').map_or((None, *key), |(folder, key)| (Some(folder), key));
        let object = folder.into_iter().flat_map(|f| f.split('.')).fold(&mut config, |object, key| &mut object[key]);
        let map = object.as_object_mut().unwrap();
        match value {
            Value::Null => drop(map.remove(key)),
            value => drop(map.insert(key.to_string(), value.clone())),
        }
    }
    write_config(&config)
}

fn mixers(spec: &TargetSpec) -> Vec<MixerKind> {
    spec.layers.iter().map(|layer| layer.mixer).collect()
}

const FULL: MixerKind = MixerKind::Full;
const DELTA: MixerKind = MixerKind::GatedDelta;

#[test]
fn golden_configs_are_read_to_the_last_key() {
    for model in MODELS {
        let spec = read_target_spec(&testdata(model)).unwrap();
        assert_eq!(spec.unread_keys, Vec::<String>::new(), "{model}");
        assert_eq!(spec.layers.len(), spec.num_layers, "{model}");
    }
    let qwen2 = read_target_spec(&testdata("qwen2")).unwrap();
    assert_eq!((qwen2.head_dim, qwen2.attention.qkv_bias, qwen2.attention.o_bias, qwen2.tied), (12, true, false, true));
    let mixed = read_target_spec(&testdata("qwen3_moe_mixed")).unwrap();
    assert_eq!(mixed.layers.iter().map(|l| l.sparse).collect::<Vec<_>>(), [false, true, false, false, false, true]);
    let experts = mixed.experts.unwrap();
    assert_eq!((experts.count, experts.per_token, experts.intermediate_size), (6, 2, 18));
    assert_eq!(experts.routing, Routing::SoftmaxTopK { renormalise: false });
    let hybrid = read_target_spec(&testdata("qwen3_5")).unwrap();
    assert_eq!(mixers(&hybrid), [DELTA, FULL, DELTA, DELTA, FULL]);
    assert_eq!((hybrid.rotary_dim, hybrid.delta_layers()), (8, 3));
    let nested = read_target_spec(&testdata("qwen3_5_nested")).unwrap();
    assert_eq!(mixers(&nested), [DELTA, DELTA, FULL, DELTA, DELTA]);
    assert_eq!((nested.architecture.as_str(), nested.rotary_dim, nested.tied), ("qwen3_5", 6, true));
    let moe = read_target_spec(&testdata("qwen3_5_moe")).unwrap();
    assert_eq!(moe.experts.unwrap().shared_intermediate_size, Some(22));
    assert_eq!(moe.intermediate_size, 3 * 14 + 22);
    let oss = read_target_spec(&testdata("gpt_oss")).unwrap();
    let sliding = MixerKind::Sliding { window: 16 };
    assert_eq!(mixers(&oss), [sliding, FULL, sliding, FULL]);
    let experts = oss.experts.unwrap();
    assert_eq!(experts.activation, ExpertActivation::ClampedSwiglu { alpha: 1.702, limit: 7.0 });
    assert!(experts.biased && oss.attention.sinks && oss.layers.iter().all(|layer| layer.sparse));
}

#[test]
fn a_model_converted_to_gguf_is_the_same_model() {
    for (gguf, folder) in GGUF {
        let [mut gguf, mut folder] = [gguf, folder].map(|model| read_target_spec(&testdata(model)).unwrap());
        // What stays behind is another matter in another file, and a converter drops what a file needs not say.
        for spec in [&mut gguf, &mut folder] {
            spec.notes.clear();
            spec.bos_token_id = None;
        }
        assert_eq!(gguf, folder);
    }
}

#[test]
fn what_is_left_out_of_a_model_is_noted() {
    let config = read_target_spec(&testdata("qwen3_5_nested")).unwrap().notes.join("; ");
    for part in ["multi-token prediction", "vision tower", "only text"] {
        assert!(config.contains(part), "{config:?} does not say {part:?}");
    }
    let loaded = open("qwen3_5_nested").spec().notes.join("; ");
    assert!(loaded.contains("tensors of the file are not loaded (`model.visual."), "{loaded}");
    assert!(open("qwen3_5").spec().notes.is_empty());
}

#[test]
fn keys_that_are_missing_have_the_defaults_of_transformers() {
    let spec = spec_with("qwen3_5", &[("layer_types", Value::Null)]).unwrap();
    assert_eq!(mixers(&spec), [DELTA, DELTA, DELTA, FULL, DELTA]);
    let spec = spec_with("qwen3_5", &[("rope_parameters", Value::Null), ("head_dim", Value::Null)]).unwrap();
    assert_eq!((spec.head_dim, spec.rotary_dim, spec.rope.theta), (256, 64, 1e4));
    let spec = spec_with("qwen3", &[("head_dim", Value::Null)]).unwrap();
    assert_eq!(spec.head_dim, 128);
    let spec = spec_with("gpt_oss", &[("layer_types", Value::Null), ("rope_parameters", Value::Null)]).unwrap();
    assert_eq!(mixers(&spec), mixers(&read_target_spec(&testdata("gpt_oss")).unwrap()));
    assert!(spec.rope.scaling.is_some() && spec.rope.theta == 150_000.0);
    // A window counts only where it is switched on.
    let sliding = [("use_sliding_window", json!(true)), ("sliding_window", json!(9)), ("max_window_layers", json!(2))];
    let window = MixerKind::Sliding { window: 9 };
    assert_eq!(
        mixers(&spec_with("qwen3", &[&[("layer_types", Value::Null)], &sliding[..]].concat()).unwrap()),
        [FULL, FULL, window]
    );
    let off = [&[("layer_types", Value::Null)], &sliding[1..]].concat();
    assert_eq!(spec_with("qwen3", &off).unwrap().layers, [LayerSpec::PLAIN; 3]);
    assert!(mixers(&spec_with("qwen3_moe", &sliding).unwrap()).iter().all(|mixer| *mixer == window));
}

#[test]
fn what_an_architecture_does_not_know_is_refused_all_at_once() {
    let check = |model: &str, changes: Changes, expected: &[&str]| {
        let error = spec_with(model, changes).expect_err(&format!("{model}: {changes:?} was accepted")).to_string();
        for part in [&["config.json"], expected].concat() {
            assert!(error.contains(part), "{model}, {changes:?}: {error:?} does not say {part:?}");
        }
    };
    let other =
        "supported: llama, qwen2, qwen3, qwen3_moe, qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text, gpt_oss";
    check("qwen3", &[("model_type", json!("qwen3_next"))], &["\"qwen3_next\" is not supported", other]);
    check("qwen3", &[("model_type", json!("qwen2"))], &["Qwen3ForCausalLM", "these are: Qwen2ForCausalLM"]);
    for model in ["qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe"] {
        check(model, &[("quantization_config", json!({"quant_method": "fp8"}))], &["`quantization_config`"]);
        check(model, &[("hidden_act", json!("relu"))], &["`hidden_act`: \"relu\" changes the mathematics"]);
        let rope = [("rope_parameters", json!({"rope_type": "longrope"})), ("rope_theta", Value::Null)];
        check(model, &rope, &["`rope_parameters.rope_type`: \"longrope\" is not supported"]);
        check(
            model,
            &[("layer_types", json!(["full_attention"])), ("rms_norm_eps", Value::Null), ("vocab_size", Value::Null)],
            if model == "qwen3_moe" {
                &["2 problems", "`rms_norm_eps`: it is missing", "`vocab_size`: it is missing"]
            } else {
                &["3 problems", "`layer_types`: 1 entries, the model has", "`rms_norm_eps`", "`vocab_size`"]
            },
        );
    }
    check("qwen2", &[("attention_bias", json!(false))], &["`attention_bias`: false"]);
    check("qwen2", &[("partial_rotary_factor", json!(0.5))], &["`partial_rotary_factor`: 0.5"]);
    check(
        "qwen2",
        &[("layer_types", json!(["full_attention", "sliding_attention", "full_attention"]))],
        &["`layer_types`: expected a list of full_attention, found"],
    );
    check("qwen3", &[("use_sliding_window", json!(true))], &["`use_sliding_window`: true, and there is no"]);
    check("qwen3", &[("num_hidden_layers", json!(1 << 30))], &["1073741824 decoder layers"]);
    check("qwen3_moe", &[("num_experts", Value::Null)], &["`num_experts`: it is missing"]);
    check("qwen3_moe", &[("num_local_experts", json!(9))], &["`num_experts`: 7, and `num_local_experts` is 9"]);
    check("qwen3_moe", &[("num_experts_per_tok", json!(8))], &["8 experts a token are more than the 7"]);
    check("qwen3_moe", &[("num_experts", json!(1 << 30))], &["1073741824 experts in 3 layers are not believed"]);
    check("qwen3_moe", &[("mlp_only_layers", json!("all"))], &["`mlp_only_layers`: expected a list"]);
    check(
        "qwen3_5",
        &[("attn_output_gate", json!(false)), ("output_gate_type", json!("sigmoid"))],
        &["2 problems", "`attn_output_gate`: false", "`output_gate_type`: \"sigmoid\""],
    );
    check("qwen3_5", &[("rope_parameters.partial_rotary_factor", json!(1.5))], &["1.5 is not a share of a head"]);
    check("qwen3_5", &[("rope_parameters.partial_rotary_factor", json!(0.1))], &["3 rotated dimensions"]);
    check("qwen3_5", &[("linear_num_key_heads", json!(4))], &["4 linear key heads do not divide 6"]);
    check(
        "qwen3_5_nested",
        &[("text_config.vocab_size", Value::Null), ("text_config.head_dim", json!(7))],
        &["`text_config.vocab_size`: it is missing", "head_dim 7 is odd"],
    );
    check("qwen3_5_moe", &[("norm_topk_prob", json!(false))], &["`norm_topk_prob`: false"]);
    check("gpt_oss", &[("quantization_config", json!({"quant_method": "gptq"}))], &["method \"gptq\""]);
    check("gpt_oss", &[("experts_per_token", json!(4))], &["`experts_per_token`: 4, and"]);
    check(
        "gpt_oss",
        &[("layer_types", json!(vec!["linear_attention"; 4]))],
        &["`layer_types`: expected a list of sliding"],
    );
}

#[test]
fn keys_that_say_what_is_so_anyway_are_accepted() {
    let coder = [
        ("use_qk_norm", json!(true)),
        ("qkv_bias", json!(false)),
        ("shared_expert_intermediate_size", json!(0)),
        ("max_window_layers", json!(28)),
    ];
    assert!(spec_with("qwen3_moe", &coder).unwrap().unread_keys.is_empty());
    assert!(spec_with("qwen2", &[("use_mrope", json!(false))]).unwrap().unread_keys.is_empty());
    let published = [
        ("experts_per_token", json!(2)),
        ("initial_context_length", json!(4096)),
        ("quantization_config", json!({"quant_method": "mxfp4"})),
    ];
    assert!(spec_with("gpt_oss", &published).unwrap().unread_keys.is_empty());
}

#[test]
fn a_stored_head_of_a_tied_model_counts_where_it_is_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(testdata("qwen3").join("config.json"), dir.path().join("config.json")).unwrap();
    let stored = std::fs::read(testdata("qwen3").join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&stored).unwrap();
    let embedding = tensors.tensor("model.embed_tokens.weight").unwrap();
    let reversed: Vec<u8> = embedding.data().chunks_exact(4 * embedding.shape()[1]).rev().flatten().copied().collect();
    for (head, tied) in [(embedding.data(), true), (&reversed[..], false)] {
        let head = TensorView::new(embedding.dtype(), embedding.shape().to_vec(), head).unwrap();
        let views = tensors.tensors().into_iter().chain([("lm_head.weight".to_string(), head)]);
        serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
        let target = open_target(dir.path(), &Device::flex(), WeightDtype::F32).unwrap();
        assert_eq!(target.spec().tied, tied);
        assert_eq!(target.head().to_f32() == target.embedding().to_f32(), tied);
    }
}

/// The published configuration of Qwen3.6-27B, as far as it says what is computed.
fn qwen3_6_27b() -> Value {
    let kinds: Vec<&str> = (0..64).map(|i| if i % 4 == 3 { "full_attention" } else { "linear_attention" }).collect();
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": false,
        "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053,
        "vision_end_token_id": 248054, "vision_config": {"depth": 27},
        "text_config": {
            "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 5120, "intermediate_size": 17408,
            "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": false, "attn_output_gate": true,
            "full_attention_interval": 4, "layer_types": kinds, "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
            "tie_word_embeddings": false, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                "mrope_interleaved": true, "mrope_section": [11, 11, 10]},
            "eos_token_id": 248044, "output_gate_type": "swish",
        },
    })
}

#[test]
fn the_tensors_of_a_published_model_follow_from_its_configuration() {
    let spec = write_config(&qwen3_6_27b()).unwrap();
    assert_eq!((spec.delta_layers(), spec.rotary_dim, spec.unread_keys.len()), (48, 64, 0));
    let tensors = target_tensors(&spec).unwrap();
    let parameters: usize = tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
    assert_eq!((parameters + 500_000) / 1_000_000, 26_896, "{parameters} parameters");
    for (name, shape) in [
        ("model.embed_tokens.weight", &[248320, 5120][..]),
        ("lm_head.weight", &[248320, 5120]),
        ("model.layers.0.linear_attn.in_proj_qkv.weight", &[10240, 5120]),
        ("model.layers.0.linear_attn.in_proj_z.weight", &[6144, 5120]),
        ("model.layers.62.linear_attn.in_proj_a.weight", &[48, 5120]),
        ("model.layers.0.linear_attn.conv1d.weight", &[10240, 1, 4]),
        ("model.layers.0.linear_attn.A_log", &[48]),
        ("model.layers.0.linear_attn.norm.weight", &[128]),
        ("model.layers.0.linear_attn.out_proj.weight", &[5120, 6144]),
        ("model.layers.3.self_attn.q_proj.weight", &[12288, 5120]),
        ("model.layers.3.self_attn.k_proj.weight", &[1024, 5120]),
        ("model.layers.63.self_attn.q_norm.weight", &[256]),
        ("model.layers.63.mlp.down_proj.weight", &[5120, 17408]),
    ] {
        let found = tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no tensor {name}"));
        assert_eq!(found.shape, shape, "{name}");
    }
}
