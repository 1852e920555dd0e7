//! Filling in what a recipe leaves to the target, and the drafter configuration it describes.

use draftsman_contract::{Contract, LayerAttention, LayoutRules, RopeSpec, default_gamma};
use draftsman_models::{DrafterConfig, TargetSpec, check_pair};

use super::{LayerType, Recipe};
use crate::error::RecipeError;
use crate::job::Provenance;

/// Taps when a recipe names none.
const DEFAULT_TAPS: usize = 5;

/// The published rule for feature layers: `count` of them spread evenly from layer 1 to layer N − 3.
#[must_use]
pub fn default_target_layer_ids(num_layers: usize, count: usize) -> Vec<usize> {
    if count <= 1 {
        return vec![num_layers / 2];
    }
    let span = num_layers.saturating_sub(4) as f64;
    let mut ids: Vec<usize> =
        (0..count).map(|index| (1.0 + index as f64 * span / (count - 1) as f64).round_ties_even() as usize).collect();
    // Targets with fewer layers than taps would name a layer twice, or the last one.
    ids.retain(|id| id + 1 < num_layers.max(2));
    ids.dedup();
    ids
}

impl Recipe {
    /// The recipe with every open key filled in from the target; everything that does not fit the target is reported together.
    pub fn resolve(&self, spec: &TargetSpec, source_name: &str) -> Result<Self, RecipeError> {
        let mut resolved = self.clone();
        let drafter = &mut resolved.drafter;
        let layers = drafter.num_hidden_layers;
        drafter.target_layer_ids.get_or_insert_with(|| default_target_layer_ids(spec.num_layers, DEFAULT_TAPS));
        drafter.layer_types.get_or_insert_with(|| vec![LayerType::Full; layers]);
        drafter.intermediate_size.get_or_insert(spec.intermediate_size);
        drafter.num_attention_heads.get_or_insert(spec.num_heads);
        drafter.num_key_value_heads.get_or_insert(spec.num_kv_heads);
        drafter.head_dim.get_or_insert(spec.head_dim);
        drafter.rms_norm_eps.get_or_insert(spec.rms_norm_eps);
        resolved.train.gamma.get_or_insert(default_gamma(drafter.block_size));

        let mut problems = Vec::new();
        if let Some(length) = resolved.data.max_length.filter(|length| *length > spec.max_positions) {
            problems.push(format!("data.max_length is {length}, and the target's context is {}", spec.max_positions));
        }
        let config = resolved.drafter_config(spec, &Provenance::default());
        if let Err(found) = check_pair(&config, spec) {
            problems.extend(found.0.into_iter().map(|problem| format!("drafter: {problem}")));
        }
        if problems.is_empty() {
            Ok(resolved)
        } else {
            Err(RecipeError { source_name: source_name.to_owned(), problems })
        }
    }

    /// The drafter this recipe describes, for a target. Open keys follow the target, as in [`Recipe::resolve`].
    #[must_use]
    pub fn drafter_config(&self, spec: &TargetSpec, provenance: &Provenance) -> DrafterConfig {
        let drafter = &self.drafter;
        let taps =
            drafter.target_layer_ids.clone().unwrap_or_else(|| default_target_layer_ids(spec.num_layers, DEFAULT_TAPS));
        let layers = drafter.layer_types.clone().unwrap_or_else(|| vec![LayerType::Full; drafter.num_hidden_layers]);
        let attention = layers
            .iter()
            .map(|kind| {
                let window = if *kind == LayerType::Sliding { drafter.sliding_window } else { None };
                LayerAttention::published(window, drafter.is_causal)
            })
            .collect();
        let rope = drafter.rope_theta.map_or_else(|| spec.rope.clone(), RopeSpec::plain);
        let mut contract = Contract::dflash(drafter.block_size, drafter.mask_token_id, taps, attention, rope);
        contract.labels = provenance.labels;
        contract.features = provenance.features.clone();
        contract.target = provenance.target.clone();
        contract.tokenizer_sha256 = provenance.tokenizer_sha256.clone();
        contract.chat_template_sha256 = provenance.chat_template_sha256.clone();
        contract.thinking = provenance.thinking;
        let mut config = DrafterConfig::for_target(spec, drafter.num_hidden_layers, contract);
        config.intermediate_size = drafter.intermediate_size.unwrap_or(config.intermediate_size);
        config.num_attention_heads = drafter.num_attention_heads.unwrap_or(config.num_attention_heads);
        config.num_key_value_heads = drafter.num_key_value_heads.unwrap_or(config.num_key_value_heads);
        config.head_dim = drafter.head_dim.unwrap_or(config.head_dim);
        config.rms_norm_eps = drafter.rms_norm_eps.unwrap_or(config.rms_norm_eps);
        config
    }

    /// Layout rules of training under `contract`.
    #[must_use]
    pub fn layout_rules(&self, contract: &Contract) -> LayoutRules {
        let gamma = self.train.gamma.unwrap_or_else(|| default_gamma(contract.block_size));
        LayoutRules::from(contract, self.train.holes, gamma)
    }
}
