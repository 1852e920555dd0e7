//! What a drafter is: its sizes, its optional scales and its contract.

use draftsman_contract::Contract;
use serde_json::{Map, Value};

use super::parameters::LAYER_TENSORS;
use crate::error::Problems;
use crate::target::TargetSpec;
use crate::weights::TensorExpectation;

/// Configuration of a DFlash drafter. Sizes are those of the published `config.json`; every meaning (block size, taps,
/// attention of each layer, rope, mask token, slots) is a field of `contract`.
#[derive(Clone, Debug, PartialEq)]
pub struct DrafterConfig {
    /// Width of the residual stream; equals the target's.
    pub hidden_size: usize,
    /// Width of the MLP; free.
    pub intermediate_size: usize,
    /// Layers of the drafter.
    pub num_hidden_layers: usize,
    /// Query heads; free.
    pub num_attention_heads: usize,
    /// Key/value heads; free, a divisor of the query heads.
    pub num_key_value_heads: usize,
    /// Dimensions of a head, all of them rotated.
    pub head_dim: usize,
    /// Rows of the target's embedding and head.
    pub vocab_size: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// Positions the drafter was made for (informative: rope has no table of that length).
    pub max_position_embeddings: usize,
    /// Layers of the target, where the file says so.
    pub num_target_layers: Option<usize>,
    /// Factor on the embedding rows of the block; 1 when absent.
    pub input_embedding_scale: f32,
    /// Factor on the logits; 1 when absent.
    pub output_multiplier: f32,
    /// `cap * tanh(logits / cap)` after the multiplier, when positive.
    pub final_logit_softcapping: Option<f32>,
    /// What the drafter means.
    pub contract: Contract,
    /// Keys of the file that are not interpreted; written back unchanged.
    pub extra: Map<String, Value>,
}

impl DrafterConfig {
    /// A drafter for `target`: its sizes and norm epsilon, no scales, `num_hidden_layers` layers with the attention
    /// rules of `contract`.
    pub fn for_target(target: &TargetSpec, num_hidden_layers: usize, contract: Contract) -> Self {
        Self {
            hidden_size: target.hidden_size,
            intermediate_size: target.intermediate_size,
            num_hidden_layers,
            num_attention_heads: target.num_heads,
            num_key_value_heads: target.num_kv_heads,
            head_dim: target.head_dim,
            vocab_size: target.vocab_size,
            rms_norm_eps: target.rms_norm_eps,
            max_position_embeddings: target.max_positions,
            num_target_layers: Some(target.num_layers),
            input_embedding_scale: 1.0,
            output_multiplier: 1.0,
            final_logit_softcapping: None,
            contract,
            extra: Map::new(),
        }
    }

    /// Every tensor of the published file with its shape: `fc`, `hidden_norm`, the layers, `norm`; 11·L + 3 of them.
    pub fn tensors(&self) -> Vec<TensorExpectation> {
        let hidden = self.hidden_size;
        let q = self.num_attention_heads * self.head_dim;
        let kv = self.num_key_value_heads * self.head_dim;
        let taps = self.contract.target_layer_ids.len();
        let mut tensors = vec![
            TensorExpectation::new("fc.weight", [hidden, taps * hidden]),
            TensorExpectation::new("hidden_norm.weight", [hidden]),
        ];
        for i in 0..self.num_hidden_layers {
            let shapes: [Vec<usize>; 11] = [
                vec![hidden],
                vec![q, hidden],
                vec![kv, hidden],
                vec![kv, hidden],
                vec![hidden, q],
                vec![self.head_dim],
                vec![self.head_dim],
                vec![hidden],
                vec![self.intermediate_size, hidden],
                vec![self.intermediate_size, hidden],
                vec![hidden, self.intermediate_size],
            ];
            tensors.extend(
                LAYER_TENSORS
                    .iter()
                    .zip(shapes)
                    .map(|(name, shape)| TensorExpectation::new(format!("layers.{i}.{name}"), shape)),
            );
        }
        tensors.push(TensorExpectation::new("norm.weight", [hidden]));
        tensors
    }

    /// Everything that makes this configuration unusable by itself; [`check_pair`] adds what only the target shows.
    pub fn validate(&self) -> Problems {
        let mut problems = Problems::default();
        for (key, value) in [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
        ] {
            if value == 0 {
                problems.push(format!("`{key}` must be positive"));
            } else if value > MAX_SIZE {
                problems.push(format!("`{key}` is {value}, above any real model ({MAX_SIZE})"));
            }
        }
        if self.num_key_value_heads > 0 && !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            problems.push(format!(
                "`num_attention_heads` {} is not a multiple of `num_key_value_heads` {}",
                self.num_attention_heads, self.num_key_value_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            problems.push(format!("`head_dim` {} is odd: rope rotates pairs", self.head_dim));
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps > 0.0) {
            problems.push(format!("`rms_norm_eps` must be positive, got {}", self.rms_norm_eps));
        }
        for (key, value) in
            [("input_embedding_scale", self.input_embedding_scale), ("output_multiplier", self.output_multiplier)]
        {
            if !value.is_finite() || value == 0.0 {
                problems.push(format!("`{key}` must be finite and not 0, got {value}"));
            }
        }
        self.validate_contract(&mut problems);
        problems
    }

    fn validate_contract(&self, problems: &mut Problems) {
        let contract = &self.contract;
        if contract.block_size > 0 && contract.slots.drafts(contract.block_size) == 0 {
            problems.push(format!(
                "`block_size` {} leaves no row to draft\n    hint: the anchor counts; at least 2",
                contract.block_size
            ));
        }
        if contract.mask_token_id as usize >= self.vocab_size {
            problems.push(format!(
                "`mask_token_id` {} is outside the embedding of {} rows\n    hint: it must be a real row of the \
                 target's embedding, best one that no text uses",
                contract.mask_token_id, self.vocab_size
            ));
        }
        if let Some(layers) = self.num_target_layers {
            check_layer_ids(&contract.target_layer_ids, layers, problems);
        }
        if contract.attention.len() != self.num_hidden_layers {
            problems.push(format!(
                "the contract gives attention rules for {} layers, `num_hidden_layers` is {}",
                contract.attention.len(),
                self.num_hidden_layers
            ));
        }
        problems.0.extend(contract.problems());
    }
}

/// No dimension of a real model comes near; products of two stay far from overflow.
const MAX_SIZE: usize = 1 << 24;

/// Layer ids are 0-based and mean the layer's un-normed output. The last layer is refused: engines hand out its
/// output before the final norm and Hugging Face after it, so the id alone does not say what the features were.
fn check_layer_ids(ids: &[usize], num_layers: usize, problems: &mut Problems) {
    for &id in ids {
        if id >= num_layers {
            problems.push(format!(
                "`target_layer_ids` holds {id}: the target has {num_layers} layers, ids 0..={}\n    hint: engines \
                 that count boundaries write id + 1",
                num_layers.saturating_sub(1)
            ));
        } else if id + 1 == num_layers {
            problems.push(format!(
                "`target_layer_ids` holds {id}, the last layer: its output is handed out before the final norm by \
                 some tools and after it by others\n    hint: tap layer {} or below",
                num_layers.saturating_sub(2)
            ));
        }
    }
}

/// Checks that `drafter` can draft for `target`; everything that does not fit, together.
pub fn check_pair(drafter: &DrafterConfig, target: &TargetSpec) -> Result<(), Problems> {
    let mut problems = drafter.validate();
    for (key, ours, theirs) in [
        ("hidden_size", drafter.hidden_size, target.hidden_size),
        ("vocab_size", drafter.vocab_size, target.vocab_size),
    ] {
        if ours != theirs {
            problems.push(format!(
                "`{key}` is {ours} in the drafter and {theirs} in the target\n    hint: embedding and head are the \
                 target's; this drafter was trained for another model"
            ));
        }
    }
    match drafter.num_target_layers {
        Some(layers) if layers != target.num_layers => problems.push(format!(
            "`num_target_layers` is {layers} in the drafter, the target has {} layers",
            target.num_layers
        )),
        // `validate` has checked the ids against the same number.
        Some(_) => {}
        None => check_layer_ids(&drafter.contract.target_layer_ids, target.num_layers, &mut problems),
    }
    if (drafter.contract.mask_token_id as usize) < drafter.vocab_size
        && drafter.contract.mask_token_id as usize >= target.vocab_size
    {
        problems.push(format!(
            "`mask_token_id` {} is outside the target's embedding of {} rows",
            drafter.contract.mask_token_id, target.vocab_size
        ));
    }
    problems.into_result()
}
