//! Rotary position embedding: the numbers that define it.

use serde::{Deserialize, Serialize};

/// Base and scaling of a rotary position embedding over the whole head dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// Base of the inverse frequencies (`rope_theta`).
    pub theta: f64,
    /// How the inverse frequencies are rescaled for long contexts; none = not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RopeScaling>,
}

impl RopeSpec {
    /// Unscaled frequencies of base `theta`.
    pub fn plain(theta: f64) -> Self {
        Self { theta, scaling: None }
    }

    /// What is wrong with these numbers, one sentence per problem (empty = nothing).
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut positive = |name: &str, value: f64| {
            if !(value.is_finite() && value > 0.0) {
                problems.push(format!("rope.{name} is {value}, expected a finite number above 0"));
            }
        };
        positive("theta", self.theta);
        match &self.scaling {
            None => {}
            Some(RopeScaling::Linear { factor }) => positive("scaling.factor", *factor),
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            }) => {
                positive("scaling.factor", *factor);
                positive("scaling.low_freq_factor", *low_freq_factor);
                positive("scaling.high_freq_factor", *high_freq_factor);
                positive("scaling.original_max_position_embeddings", *original_max_position_embeddings as f64);
                if high_freq_factor <= low_freq_factor {
                    problems.push(format!(
                        "rope.scaling.high_freq_factor {high_freq_factor} must be above low_freq_factor {low_freq_factor}"
                    ));
                }
            }
            Some(RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                attention_factor,
                ..
            }) => {
                positive("scaling.factor", *factor);
                positive("scaling.original_max_position_embeddings", *original_max_position_embeddings as f64);
                positive("scaling.beta_fast", *beta_fast);
                positive("scaling.beta_slow", *beta_slow);
                if let Some(attention_factor) = attention_factor {
                    positive("scaling.attention_factor", *attention_factor);
                }
            }
        }
        problems
    }
}

/// Rescaling of the inverse frequencies, with the field names of Hugging Face configs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor of the frequencies.
        factor: f64,
    },
    /// Llama 3: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the pre-training.
        original_max_position_embeddings: usize,
    },
    /// YaRN: interpolated and extrapolated frequencies blended by a ramp, and a factor on the attention.
    Yarn {
        /// Ratio of the new context length to the original one.
        factor: f64,
        /// Context length of the pre-training.
        original_max_position_embeddings: usize,
        /// Rotations above which a dimension is only extrapolated.
        #[serde(default = "default_beta_fast")]
        beta_fast: f64,
        /// Rotations below which a dimension is only interpolated.
        #[serde(default = "default_beta_slow")]
        beta_slow: f64,
        /// Factor on cos and sin; none = computed from `factor` and the two `mscale` fields.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
        /// DeepSeek's numerator of the attention factor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale: Option<f64>,
        /// DeepSeek's denominator of the attention factor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale_all_dim: Option<f64>,
        /// Whether the ends of the ramp are rounded to whole dimensions.
        #[serde(default = "default_truncate")]
        truncate: bool,
    },
}

fn default_beta_fast() -> f64 {
    32.0
}

fn default_beta_slow() -> f64 {
    1.0
}

fn default_truncate() -> bool {
    true
}
