//! [`TargetSpec`] from the metadata of a GGUF file.

use draftsman_contract::{RopeScaling, RopeSpec};

use super::TargetSpec;
use super::config::check_spec;
use crate::error::{ModelError, Problems};
use crate::weights::{GgufFile, GgufMetadata, WeightSource};

/// The tensor that llama.cpp's converter makes from llama-3 RoPE scaling.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Reads the spec of a `llama` from a GGUF file.
pub fn spec_from_gguf(file: &GgufFile) -> Result<TargetSpec, ModelError> {
    let meta = file.metadata();
    let architecture = meta.require_str("general.architecture")?;
    if architecture != "llama" {
        return Err(ModelError::unsupported(
            meta.path(),
            format!("`general.architecture` {architecture:?} is not supported"),
            "llama GGUF files are supported",
        ));
    }
    refuse_unsupported(meta)?;
    let hidden_size = meta.require_usize("llama.embedding_length")?;
    let num_heads = meta.require_usize("llama.attention.head_count")?;
    let head_dim = match meta.get("llama.attention.key_length") {
        Some(_) => meta.require_usize("llama.attention.key_length")?,
        None => hidden_size.checked_div(num_heads).unwrap_or(0),
    };
    let num_kv_heads = match meta.get("llama.attention.head_count_kv") {
        Some(_) => meta.require_usize("llama.attention.head_count_kv")?,
        None => num_heads,
    };
    let vocab_size = match meta.get("llama.vocab_size") {
        Some(_) => meta.require_usize("llama.vocab_size")?,
        None => file.shape("token_embd.weight").and_then(|s| s.first().copied()).unwrap_or(0),
    };
    let theta = meta.get_f64("llama.rope.freq_base").unwrap_or(10_000.0);
    let mut problems = Problems::default();
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        if let Some(value) = meta.get_u64(key)
            && value != head_dim as u64
        {
            problems
                .push(format!("`{key}` {value} differs from the head dimension {head_dim}, which is not supported"));
        }
    }
    let eos_token_ids: Vec<u32> = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]
        .iter()
        .filter_map(|key| meta.get_u32(key))
        .collect();
    let mut eos_token_ids = eos_token_ids;
    eos_token_ids.dedup();
    let spec = TargetSpec {
        architecture: "llama".into(),
        num_layers: meta.require_usize("llama.block_count")?,
        hidden_size,
        vocab_size,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size: meta.require_usize("llama.feed_forward_length")?,
        rms_norm_eps: meta.require_f64("llama.attention.layer_norm_rms_epsilon")?,
        rope: RopeSpec { theta, scaling: read_scaling(file, theta, head_dim)? },
        max_positions: meta.require_usize("llama.context_length")?,
        tied: file.shape("output.weight").is_none(),
        eos_token_ids,
        bos_token_id: meta.get_u32("tokenizer.ggml.bos_token_id"),
        unread_keys: Vec::new(),
    };
    if num_kv_heads == 0 || num_heads == 0 {
        problems.push("there are no attention heads");
    } else {
        check_spec(&spec, &mut problems);
    }
    problems.into_model_result(meta.path())?;
    Ok(spec)
}

fn refuse_unsupported(meta: &GgufMetadata) -> Result<(), ModelError> {
    // Each with the value at which it does nothing.
    let harmless = [
        ("llama.expert_count", 0.0),
        ("llama.attention.sliding_window", 0.0),
        ("llama.attention.scale", 0.0),
        ("llama.attention.clamp_kqv", 0.0),
        ("llama.rope.scale_linear", 1.0),
        ("llama.logit_scale", 1.0),
        ("llama.embedding_scale", 1.0),
        ("llama.residual_scale", 1.0),
    ];
    let mut problems = Problems::default();
    for (key, nothing) in harmless {
        if let Some(value) = meta.get(key)
            && value.as_f64() != Some(nothing)
        {
            problems.push(format!("`{key}` {value:?} changes the mathematics and is not supported"));
        }
    }
    problems.into_model_result(meta.path())
}

fn read_scaling(file: &GgufFile, theta: f64, head_dim: usize) -> Result<Option<RopeScaling>, ModelError> {
    let meta = file.metadata();
    let key = |name: &str| format!("llama.rope.scaling.{name}");
    let original = key("original_context_length");
    let scaling = match meta.get_str(&key("type")).unwrap_or("none") {
        "none" => None,
        "linear" => Some(RopeScaling::Linear { factor: meta.require_f64(&key("factor"))? }),
        "yarn" => {
            let extra = meta.keys().find(|k| k.starts_with("llama.rope.scaling.yarn_") || *k == key("attn_factor"));
            if let Some(extra) = extra {
                return Err(ModelError::config(
                    meta.path(),
                    extra,
                    "YaRN with own parameters is not supported",
                    "load the model from its Hugging Face folder",
                ));
            }
            Some(RopeScaling::Yarn {
                factor: meta.require_f64(&key("factor"))?,
                original_max_position_embeddings: meta.require_usize(&original)?,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: None,
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            })
        }
        other => {
            return Err(ModelError::config(
                meta.path(),
                key("type"),
                format!("{other:?} is not supported"),
                "none, linear and yarn are",
            ));
        }
    };
    if file.shape(ROPE_FREQS).is_none() {
        return Ok(scaling);
    }
    let factors = file.load_f32(ROPE_FREQS)?;
    match llama3_from_factors(&factors, theta, head_dim, meta.get_u64(&original)) {
        Some(found) if scaling.is_none() => Ok(found),
        _ => Err(ModelError::unsupported(
            meta.path(),
            format!("`{ROPE_FREQS}` {factors:?} is not the llama-3 scaling of any known original context"),
            "load the model from its Hugging Face folder",
        )),
    }
}

/// The converter stores, per rotary pair, the divisor that llama-3 scaling amounts to and forgets the parameters.
/// They are found again and believed only when they give every divisor back. `Some(None)`: all divisors are 1.
fn llama3_from_factors(
    factors: &[f32],
    theta: f64,
    head_dim: usize,
    stated_original: Option<u64>,
) -> Option<Option<RopeScaling>> {
    if factors.len() * 2 != head_dim {
        return None;
    }
    let factor = factors.iter().copied().fold(f32::MIN, f32::max);
    if factors.iter().all(|&f| f == 1.0) {
        return Some(None);
    }
    let (low, high) = (1.0, 4.0);
    let divisor = |pair: usize, original: f64| -> f64 {
        let frequency = theta.powf(-2.0 * pair as f64 / head_dim as f64);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            f64::from(factor)
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / f64::from(factor) + smooth)
        }
    };
    [stated_original, Some(8192)]
        .into_iter()
        .flatten()
        .find(|&original| {
            factors.iter().enumerate().all(|(pair, &f)| {
                let expected = divisor(pair, original as f64);
                (f64::from(f) - expected).abs() <= 1e-4 * expected
            })
        })
        .map(|original| {
            Some(RopeScaling::Llama3 {
                factor: f64::from(factor),
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original as usize,
            })
        })
}
