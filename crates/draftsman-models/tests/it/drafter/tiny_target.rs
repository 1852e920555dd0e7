//! A random llama written as a model folder and loaded as a user would.

use burn::tensor::Device;
use draftsman_contract::CounterRng;
use draftsman_kernels::WeightDtype;
use draftsman_models::{Target, open_target};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;

pub(crate) const HIDDEN: usize = 24;
pub(crate) const MLP: usize = 20;
pub(crate) const VOCAB: usize = 30;
pub(crate) const LAYERS: usize = 5;
pub(crate) const HEADS: usize = 3;
pub(crate) const HEAD_DIM: usize = 8;

pub(crate) fn tiny_target() -> Box<dyn Target> {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": MLP, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "eos_token_id": 1,
    });
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let q = HEADS * HEAD_DIM;
    let mut shapes: Vec<(String, Vec<usize>)> =
        vec![("model.embed_tokens".into(), vec![VOCAB, HIDDEN]), ("model.norm".into(), vec![HIDDEN])];
    for i in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![q, HIDDEN]),
            ("self_attn.k_proj", vec![HEAD_DIM, HIDDEN]),
            ("self_attn.v_proj", vec![HEAD_DIM, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, q]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![MLP, HIDDEN]),
            ("mlp.up_proj", vec![MLP, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, MLP]),
        ] {
            shapes.push((format!("model.layers.{i}.{name}"), shape));
        }
    }
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .enumerate()
        .map(|(stream, (name, shape))| {
            let mut rng = CounterRng::new(5, &[stream as u64]);
            let mean = if shape.len() == 1 { 1.0 } else { 0.0 };
            let bytes = (0..shape.iter().product()).flat_map(|_| (mean + 0.3 * rng.normal()).to_le_bytes()).collect();
            (format!("{name}.weight"), shape, bytes)
        })
        .collect();
    let views: Vec<(String, TensorView<'_>)> = tensors
        .iter()
        .map(|(name, shape, data)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()))
        .collect();
    serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    open_target(dir.path(), &Device::flex(), WeightDtype::F32).unwrap()
}
