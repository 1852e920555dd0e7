//! [`TargetSpec`] from the metadata of a GGUF file.

use draftsman_contract::{RopeScaling, RopeSpec};

use super::architecture::Architecture;
use super::spec::{AttentionParts, LayerSpec, TargetSpec};
use crate::error::{ModelError, Problems};
use crate::weights::{GgufFile, GgufMetadata, WeightSource};

/// The tensor that llama.cpp's converter makes from llama-3 RoPE scaling.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// The metadata of a GGUF file, seen from its architecture.
pub(super) struct GgufConfig<'a> {
    pub(super) file: &'a GgufFile,
    architecture: &'static str,
}

/// Reads the spec of a target from a GGUF file.
pub fn spec_from_gguf(file: &GgufFile) -> Result<TargetSpec, ModelError> {
    let meta = file.metadata();
    let name = meta.require_str("general.architecture")?;
    let found = Architecture::of_gguf(name).and_then(|a| a.gguf.as_ref().map(|gguf| (a.name, gguf)));
    let Some((architecture, gguf)) = found else {
        return Err(ModelError::unsupported(
            meta.path(),
            format!("`general.architecture` {name:?} is not supported"),
            format!("GGUF files of these are: {}", Architecture::gguf_names().join(", ")),
        ));
    };
    let config = GgufConfig { file, architecture: gguf.name };
    config.refuse_unsupported()?;
    let mut spec = config.decoder(architecture)?;
    (gguf.read)(&config, &mut spec)?;
    let mut problems = Problems::default();
    spec.check(&mut problems);
    problems.into_model_result(meta.path())?;
    // After the check: the frequencies of a llama are found again by its dimensions.
    spec.rope.scaling = config.scaling(spec.rope.theta, spec.rotary_dim)?;
    let mut problems = Problems::default();
    spec.check(&mut problems);
    problems.into_model_result(meta.path())?;
    Ok(spec)
}

impl GgufConfig<'_> {
    fn meta(&self) -> &GgufMetadata {
        self.file.metadata()
    }

    /// The architecture's own key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A whole number that must be there.
    pub(super) fn require(&self, name: &str) -> Result<usize, ModelError> {
        self.meta().require_usize(&self.key(name))
    }

    /// A whole number, or `default` where the key is missing.
    pub(super) fn usize_or(&self, name: &str, default: usize) -> Result<usize, ModelError> {
        match self.meta().get(&self.key(name)) {
            Some(_) => self.require(name),
            None => Ok(default),
        }
    }

    /// The keys that every decoder has, as a dense model with full attention everywhere.
    fn decoder(&self, architecture: &str) -> Result<TargetSpec, ModelError> {
        let meta = self.meta();
        let hidden_size = self.require("embedding_length")?;
        let num_heads = self.require("attention.head_count")?;
        let head_dim = self.usize_or("attention.key_length", hidden_size.checked_div(num_heads).unwrap_or(0))?;
        let table_rows = self.file.shape("token_embd.weight").and_then(|s| s.first().copied()).unwrap_or(0);
        let num_layers = self.require("block_count")?;
        let mut eos_token_ids: Vec<u32> = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]
            .iter()
            .filter_map(|key| meta.get_u32(key))
            .collect();
        eos_token_ids.dedup();
        let value_dim = self.usize_or("attention.value_length", head_dim)?;
        let mut problems = Problems::default();
        if value_dim != head_dim {
            problems.push(format!(
                "`{}` {value_dim} differs from the head dimension {head_dim}, which is not supported",
                self.key("attention.value_length")
            ));
        }
        let layers = TargetSpec::uniform(num_layers, LayerSpec::PLAIN, &mut problems);
        problems.into_model_result(meta.path())?;
        Ok(TargetSpec {
            architecture: architecture.into(),
            num_layers,
            hidden_size,
            vocab_size: self.usize_or("vocab_size", table_rows)?,
            num_heads,
            num_kv_heads: self.usize_or("attention.head_count_kv", num_heads)?,
            head_dim,
            rotary_dim: self.usize_or("rope.dimension_count", head_dim)?,
            attention: AttentionParts::default(),
            intermediate_size: self.require("feed_forward_length")?,
            layers,
            delta: None,
            experts: None,
            rms_norm_eps: meta.require_f64(&self.key("attention.layer_norm_rms_epsilon"))?,
            rope: RopeSpec::plain(meta.get_f64(&self.key("rope.freq_base")).unwrap_or(10_000.0)),
            max_positions: self.require("context_length")?,
            tied: self.file.shape("output.weight").is_none(),
            eos_token_ids,
            bos_token_id: meta.get_u32("tokenizer.ggml.bos_token_id"),
            notes: Vec::new(),
            unread_keys: Vec::new(),
        })
    }

    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        // Each with the value at which it does nothing.
        let harmless = [
            ("expert_count", 0.0),
            ("attention.sliding_window", 0.0),
            ("attention.scale", 0.0),
            ("attention.clamp_kqv", 0.0),
            ("rope.scale_linear", 1.0),
            ("logit_scale", 1.0),
            ("embedding_scale", 1.0),
            ("residual_scale", 1.0),
        ];
        let mut problems = Problems::default();
        for (name, nothing) in harmless {
            let key = self.key(name);
            if let Some(value) = self.meta().get(&key)
                && value.as_f64() != Some(nothing)
            {
                problems.push(format!("`{key}` {value:?} changes the mathematics and is not supported"));
            }
        }
        problems.into_model_result(self.meta().path())
    }

    fn scaling(&self, theta: f64, rotary_dim: usize) -> Result<Option<RopeScaling>, ModelError> {
        let meta = self.meta();
        let key = |name: &str| self.key(&format!("rope.scaling.{name}"));
        let original = key("original_context_length");
        let scaling = match meta.get_str(&key("type")).unwrap_or("none") {
            "none" => None,
            "linear" => Some(RopeScaling::Linear { factor: meta.require_f64(&key("factor"))? }),
            "yarn" => {
                let extra = meta.keys().find(|k| k.starts_with(&key("yarn_")) || *k == key("attn_factor"));
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
        if self.file.shape(ROPE_FREQS).is_none() {
            return Ok(scaling);
        }
        let factors = self.file.load_f32(ROPE_FREQS)?;
        match llama3_from_factors(&factors, theta, rotary_dim, meta.get_u64(&original)) {
            Some(found) if scaling.is_none() => Ok(found),
            _ => Err(ModelError::unsupported(
                meta.path(),
                format!("`{ROPE_FREQS}` {factors:?} is not the llama-3 scaling of any known original context"),
                "load the model from its Hugging Face folder",
            )),
        }
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
