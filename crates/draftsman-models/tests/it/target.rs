//! Targets: every layer against transformers, caches against a fresh pass, both file formats, bad input.

mod architectures;
mod config;
mod golden;
mod memory;
mod refused;
mod rollback;
mod smollm2;
mod streamed;
mod trees;

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use draftsman_contract::CounterRng;
use draftsman_kernels::WeightDtype;
use draftsman_models::{
    LogitRows, SafetensorsSource, Target, TargetCache, TargetInput, Want, WeightSource, open_target,
};

use crate::compare::values;

/// The golden models (`scripts/golden/`): every architecture, each spelling of its configuration, each form of its
/// tensors.
const MODELS: [&str; 13] = [
    "llama_scaled",
    "llama_plain",
    "qwen2",
    "qwen2_untied",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_mixed",
    "qwen3_5",
    "qwen3_5_nested",
    "qwen3_5_moe",
    "qwen3_5_moe_split",
    "gpt_oss",
    "gpt_oss_mxfp4",
];

/// Golden models as GGUF, and the folder whose reference holds for them.
const GGUF: [(&str, &str); 4] = [
    ("llama_scaled.gguf", "llama_scaled"),
    ("qwen2.gguf", "qwen2"),
    ("qwen3.gguf", "qwen3"),
    ("qwen35.gguf", "qwen3_5_nested"),
];

/// Largest relative error of a layer: a hybrid's recurrence is summed in another order than its golden chunks.
fn tolerance(target: &dyn Target) -> f64 {
    if target.spec().delta.is_some() { 1e-4 } else { 1e-5 }
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn open(name: &str) -> Box<dyn Target> {
    open_target(&testdata(name), &Device::flex(), WeightDtype::F32).unwrap()
}

fn reference(name: &str) -> SafetensorsSource {
    // The same weights in another form.
    let name = name.trim_end_matches("_split");
    SafetensorsSource::open_file(&testdata(&format!("{name}.reference.safetensors"))).unwrap()
}

/// `input_ids` `[batch, length]`, row by row.
fn input_ids(reference: &SafetensorsSource) -> Vec<Vec<u32>> {
    let length = reference.shape("input_ids").unwrap()[1];
    let ids: Vec<u32> = reference.load_i64("input_ids").unwrap().iter().map(|&id| u32::try_from(id).unwrap()).collect();
    ids.chunks(length).map(<[u32]>::to_vec).collect()
}

fn all_layers(target: &dyn Target) -> Want {
    Want { taps: (0..target.spec().num_layers).collect(), logits: LogitRows::All }
}

/// Ids of no text in particular.
fn random_ids(rng: &mut CounterRng, count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|_| rng.below(vocab) as u32).collect()
}

/// Features and logits of one forward of one sequence.
fn run(target: &dyn Target, ids: &[u32], cache: &mut TargetCache, want: &Want) -> (Vec<f32>, Vec<f32>) {
    let out = target.forward(&mut [TargetInput { ids, cache }], want, None).unwrap();
    let values = |t: Option<Tensor<2>>| t.map(values).unwrap_or_default();
    (values(out.features), values(out.logits))
}
