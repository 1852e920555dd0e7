//! Tiny random targets and drafters, written as real model folders and loaded as a user would.

#![allow(dead_code, reason = "included by the tests of two crates, each of which uses a part")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use draftsman_contract::CounterRng;
use draftsman_kernels::{DeviceKind, WeightDtype, open};
use draftsman_models::{Dflash, DrafterConfig, Init, Target, init, open_target};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;

pub(crate) const VOCAB: u32 = 40;
pub(crate) const MASK: u32 = 39;
pub(crate) const TAPS: [usize; 2] = [0, 2];
pub(crate) const MAX_POSITIONS: usize = 192;
const HIDDEN: usize = 32;
const LAYERS: usize = 4;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const MLP: usize = 48;

/// Writes a random llama with `seed` into `dir`.
pub(crate) fn write_target(dir: &Path, seed: u64) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": MLP, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS, "tie_word_embeddings": false,
        "bos_token_id": 1, "eos_token_id": 2,
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let v = VOCAB as usize;
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![v, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
        ("lm_head.weight".into(), vec![v, HIDDEN]),
    ];
    for i in 0..LAYERS {
        let mut add =
            |name: &str, shape: &[usize]| shapes.push((format!("model.layers.{i}.{name}.weight"), shape.to_vec()));
        add("input_layernorm", &[HIDDEN]);
        add("self_attn.q_proj", &[HEADS * HEAD_DIM, HIDDEN]);
        add("self_attn.k_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        add("self_attn.v_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        add("self_attn.o_proj", &[HIDDEN, HEADS * HEAD_DIM]);
        add("post_attention_layernorm", &[HIDDEN]);
        add("mlp.gate_proj", &[MLP, HIDDEN]);
        add("mlp.up_proj", &[MLP, HIDDEN]);
        add("mlp.down_proj", &[HIDDEN, MLP]);
    }
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .enumerate()
        .map(|(index, (name, shape))| {
            let mut rng = CounterRng::new(seed, &[index as u64]);
            let count: usize = shape.iter().product();
            // Norms near 1; matrices large enough that the layers, not the embedding alone, decide the next token.
            let (mean, std) = if shape.len() == 1 { (1.0, 0.1) } else { (0.0, 1.6 / (shape[1] as f32).sqrt()) };
            let bytes = (0..count).flat_map(|_| (mean + std * rng.normal()).to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views: HashMap<String, TensorView<'_>> = data
        .iter()
        .map(|(name, shape, bytes)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()))
        .collect();
    serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}

/// A random target on the CPU.
pub(crate) fn target(seed: u64) -> Box<dyn Target> {
    let dir = tempfile::tempdir().unwrap();
    write_target(dir.path(), seed);
    open_target(dir.path(), &open(DeviceKind::Flex).unwrap(), WeightDtype::F32).unwrap()
}

/// The configuration of a two-layer drafter for [`target`]; the second layer has a causal sliding window.
pub(crate) fn drafter_config(block_size: usize) -> DrafterConfig {
    let raw = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": MLP, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS, "num_target_layers": LAYERS,
        "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 11,
        "block_size": block_size,
        "dflash_config": { "target_layer_ids": TAPS, "mask_token_id": MASK },
    });
    DrafterConfig::from_json(&raw, Path::new("config.json of the tiny drafter")).unwrap()
}

/// A random drafter for `target`.
pub(crate) fn drafter(target: &dyn Target, block_size: usize, seed: u64) -> Dflash {
    init(&drafter_config(block_size), target, Init::Random, seed, target.device()).unwrap()
}

/// A random prompt of `len` tokens.
pub(crate) fn prompt(seed: u64, len: usize) -> Vec<u32> {
    let mut rng = CounterRng::new(seed, &[77]);
    (0..len).map(|_| rng.below(MASK as usize) as u32).collect()
}
