//! Llama targets: every layer against transformers, caches against a fresh pass, both file formats, bad input.

mod config;
mod golden;
mod refused;
mod smollm2;

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use draftsman_kernels::WeightDtype;
use draftsman_models::{
    LogitRows, SafetensorsSource, Target, TargetCache, TargetInput, Want, WeightSource, open_target,
};

use crate::compare::values;

/// The two golden models (`scripts/golden/llama.py`).
const MODELS: [&str; 2] = ["llama_scaled", "llama_plain"];

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn open(name: &str) -> Box<dyn Target> {
    open_target(&testdata(name), &Device::flex(), WeightDtype::F32).unwrap()
}

fn reference(name: &str) -> SafetensorsSource {
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

/// Features and logits of one forward of one sequence.
fn run(target: &dyn Target, ids: &[u32], cache: &mut TargetCache, want: &Want) -> (Vec<f32>, Vec<f32>) {
    let out = target.forward(&mut [TargetInput { ids, cache }], want, None).unwrap();
    let values = |t: Option<Tensor<2>>| t.map(values).unwrap_or_default();
    (values(out.features), values(out.logits))
}
