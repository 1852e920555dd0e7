//! From the newest checkpoint to a model folder as Hugging Face lays it out, and proof that it loads as what was trained.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use burn::tensor::{Device, Tensor};
use draftsman_kernels::WeightDtype;
use draftsman_models::{LogitRows, Target, TargetInput, Want, open_target};
use half::f16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use super::batch::Batch;
use super::checkpoint::State;
use super::corpus::{Corpus, MEASURED, PROMPTS, Split};
use super::model::{Model, Parameter};
use super::recipe as r;
use super::tokenizer::{self, Encoded, Encoder};

pub(crate) const PROGRESS: &str = "training.json";
/// Prompts that come with the model: for a drafter's training, and for its evaluation.
const TRAIN_PROMPTS: u64 = 1500;
const HELD_OUT_PROMPTS: u64 = 200;
/// Relative error between the trained module's logits and the loaded target's.
const TOLERANCE: f64 = 1e-4;

pub(crate) fn export(work: &Path, out: &Path) -> anyhow::Result<()> {
    let state = State::newest(work)?;
    if state.progress.step == 0 {
        bail!("no checkpoint in `{}`", work.display());
    }
    let json = fs::read_to_string(out.join("tokenizer.json"))?;
    let encoder = Encoder::new(&json)?;
    let parameters = rounded(&state.parameters);
    write_json(&out.join("config.json"), &config(&encoder))?;
    write_json(
        &out.join("generation_config.json"),
        &json!({ "do_sample": false, "eos_token_id": encoder.stop_ids() }),
    )?;
    write_json(&out.join("tokenizer_config.json"), &tokenizer::config())?;
    write_json(&out.join(PROGRESS), &serde_json::to_value(state.progress)?)?;
    write(&out.join("model.safetensors"), &weights(&parameters)?)?;
    let corpus = Corpus::new(r::SEED);
    write(&out.join("prompts-train.jsonl"), prompts(&corpus, Split::Train, TRAIN_PROMPTS)?.as_bytes())?;
    write(&out.join("prompts-held-out.jsonl"), prompts(&corpus, Split::HeldOut, HELD_OUT_PROMPTS)?.as_bytes())?;
    let error = compare(&parameters, &corpus, &encoder, out)?;
    println!(
        "step {} exported to `{}`; logits of the loaded target against the trained module: relative error {error:.1e}",
        state.progress.step,
        out.display()
    );
    ensure!(error < TOLERANCE, "the loaded target is not what was trained: relative error {error:.1e}");
    Ok(())
}

fn config(encoder: &Encoder) -> serde_json::Value {
    let [end, end_of_text] = encoder.stop_ids();
    let kinds: Vec<&str> =
        (0..r::LAYERS).map(|i| if r::is_full(i) { "full_attention" } else { "linear_attention" }).collect();
    json!({
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": false,
        "attn_output_gate": true,
        "bos_token_id": null,
        "dtype": "float16",
        "eos_token_id": end,
        "full_attention_interval": r::FULL_ATTENTION_INTERVAL,
        "head_dim": r::HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": r::HIDDEN,
        "intermediate_size": r::INTERMEDIATE,
        "layer_types": kinds,
        "linear_conv_kernel_dim": r::CONV_WIDTH,
        "linear_key_head_dim": r::DELTA_KEY_DIM,
        "linear_num_key_heads": r::DELTA_KEY_HEADS,
        "linear_num_value_heads": r::DELTA_VALUE_HEADS,
        "linear_value_head_dim": r::DELTA_VALUE_DIM,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": r::MAX_POSITIONS,
        "num_attention_heads": r::HEADS,
        "num_hidden_layers": r::LAYERS,
        "num_key_value_heads": r::KV_HEADS,
        "pad_token_id": end_of_text,
        "rms_norm_eps": r::EPS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": r::ROPE_THETA,
            "partial_rotary_factor": r::PARTIAL_ROTARY,
        },
        "tie_word_embeddings": true,
        "vocab_size": r::VOCAB,
    })
}

/// The values that the file will hold: f16 keeps three more bits than bf16, and all weights are far inside its range.
fn rounded(parameters: &[Parameter]) -> Vec<Parameter> {
    parameters
        .iter()
        .map(|p| Parameter { values: p.values.iter().map(|&v| f16::from_f32(v).to_f32()).collect(), ..p.clone() })
        .collect()
}

fn weights(parameters: &[Parameter]) -> anyhow::Result<Vec<u8>> {
    let halves: Vec<(&str, Vec<usize>, Vec<u8>)> = parameters
        .iter()
        .map(|Parameter { name, shape, values }| {
            // A depthwise convolution has one input channel a filter.
            let shape = match shape[..] {
                [channels, width] if name.ends_with("conv1d.weight") => vec![channels, 1, width],
                _ => shape.clone(),
            };
            (name.as_str(), shape, values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect())
        })
        .collect();
    let views: Vec<(&str, TensorView<'_>)> = halves
        .iter()
        .map(|(name, shape, bytes)| Ok((*name, TensorView::new(Dtype::F16, shape.clone(), bytes)?)))
        .collect::<anyhow::Result<_>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok(safetensors::serialize(views, Some(metadata))?)
}

fn prompts(corpus: &Corpus, split: Split, count: u64) -> anyhow::Result<String> {
    let mut lines = String::new();
    let name = if split == Split::Train { "train" } else { "held-out" };
    for index in 0..count {
        let chat = corpus.chat(PROMPTS, index, split);
        let line = json!({
            "id": format!("{name}-{index:04}"),
            "source": chat.kind,
            "messages": [{ "role": "user", "content": chat.request }],
        });
        lines += &serde_json::to_string(&line)?;
        lines.push('\n');
    }
    Ok(lines)
}

/// Logits of the trained module, many documents in one pass, against the loaded target's, one document a pass: the
/// largest relative error of a document.
fn compare(parameters: &[Parameter], corpus: &Corpus, encoder: &Encoder, out: &Path) -> anyhow::Result<f64> {
    let target = open_target(out, &Device::flex(), WeightDtype::F32)?;
    let documents: Vec<Encoded> = (0..8)
        .map(|index| Ok(Encoded { learnt_from: 1, ..encoder.encode(&corpus.sample(MEASURED, index, Split::HeldOut))? }))
        .collect::<anyhow::Result<_>>()?;
    let packed = Model::new(parameters, false).forward(&Batch::new(&documents)?);
    let (mut first, mut worst) = (0, 0f64);
    for document in &documents {
        let rows = document.ids.len() - 1;
        let trained = floats(packed.clone().narrow(0, first, rows));
        first += rows;
        let loaded = floats(logits(target.as_ref(), &document.ids[..rows])?);
        let difference: f64 = trained.iter().zip(&loaded).map(|(a, b)| (a - b).powi(2)).sum();
        let size: f64 = trained.iter().map(|a| a * a).sum();
        let error = (difference / size).sqrt();
        ensure!(error.is_finite(), "the logits of a document are {size} in size");
        worst = worst.max(error);
    }
    Ok(worst)
}

/// Logits of all rows of a text.
pub(crate) fn logits(target: &dyn Target, ids: &[u32]) -> anyhow::Result<Tensor<2>> {
    let mut cache = target.new_cache();
    let want = Want { taps: Vec::new(), logits: LogitRows::All };
    let output = target.forward(&mut [TargetInput { ids, cache: &mut cache }], &want, None)?;
    output.logits.context("the target gave no logits")
}

fn floats(tensor: Tensor<2>) -> Vec<f64> {
    tensor.into_data().iter::<f32>().map(f64::from).collect()
}

fn write_json(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    write(path, (serde_json::to_string_pretty(value)? + "\n").as_bytes())
}

pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path).with_context(|| format!("cannot write `{}`", path.display()))
}
