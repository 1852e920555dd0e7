//! Memory of a streamed run against a resident one, measured in processes of their own.

use std::path::Path;
use std::process::Command;

use burn::tensor::Device;
use draftsman_contract::CounterRng;
use draftsman_models::{LogitRows, TargetInput, TargetOptions, Want, open_target_with};
use serde_json::json;

const LAYERS: usize = 24;
const HIDDEN: usize = 384;
const INNER: usize = 1536;
/// Names the folder and the way to run in the child process.
const CHILD: &str = "DRAFTSMAN_TEST_MEMORY";

/// A llama of 24 layers, about 230 MB in f32, and hardly any vocabulary.
fn write_model(folder: &Path) {
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 64, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut shapes =
        vec![("model.embed_tokens.weight".to_string(), vec![64, HIDDEN]), ("model.norm.weight".into(), vec![HIDDEN])];
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.v_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![INNER, HIDDEN]),
            ("mlp.up_proj", vec![INNER, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INNER]),
        ] {
            shapes.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    let mut rng = CounterRng::new(5, &[]);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let count: usize = shape.iter().product();
            let bytes = (0..count).flat_map(|_| (rng.normal() * 0.05).to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

/// Kilobytes of a line of /proc/self/status.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Growth of the peak of resident memory, in kilobytes, by opening and running the model.
fn measure(folder: &Path, streamed: bool) -> u64 {
    let before = status("VmHWM:");
    let options = TargetOptions { streamed, ..TargetOptions::default() };
    let target = open_target_with(folder, &Device::flex(), &options).unwrap();
    let mut cache = target.new_cache();
    let want = Want { taps: vec![3], logits: LogitRows::Last };
    target.forward(&mut [TargetInput { ids: &[1, 2, 3, 4, 5, 6, 7, 8], cache: &mut cache }], &want, None).unwrap();
    status("VmHWM:") - before
}

#[cfg(target_os = "linux")]
#[test]
#[expect(clippy::print_stdout, reason = "how the child process tells what it measured")]
fn a_streamed_run_needs_a_sixth_of_the_memory() {
    if let Some(child) = std::env::var_os(CHILD) {
        let child = child.into_string().unwrap();
        let (way, folder) = child.split_once(':').unwrap();
        println!("grown by {} kB", measure(Path::new(folder), way == "streamed"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path());
    let grown = |way: &str| -> u64 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "target::memory::a_streamed_run_needs_a_sixth_of_the_memory", "--nocapture"])
            .env(CHILD, format!("{way}:{}", dir.path().display()))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, after) = text.split_once("grown by ").unwrap_or_else(|| panic!("no measurement in {text}"));
        after.split(' ').next().unwrap().parse().unwrap()
    };
    let (resident, streamed) = (grown("resident"), grown("streamed"));
    let weights = (LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER) * 4 / 1024) as u64;
    assert!(resident >= weights, "resident run: {resident} kB, its weights alone are {weights} kB");
    assert!(streamed * 6 <= resident, "streamed run: {streamed} kB, resident {resident} kB");
    // Nor does loading hold the file beside the weights.
    assert!(resident < weights * 6 / 5, "resident run: {resident} kB, its weights are {weights} kB");
}
