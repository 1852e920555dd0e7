//! The rotary embedding of a config.json, in both spellings.

use std::cell::RefCell;

use draftsman_contract::{RopeScaling, RopeSpec};
use serde_json::{Map, Value, json};

use super::json::Fields;
use crate::error::Problems;

/// What holds where a configuration is silent.
pub(super) struct RopeDefaults {
    pub(super) theta: f64,
    pub(super) scaling: Option<RopeScaling>,
    /// Share of a head that is rotated; `None`: the model knows no such key and rotates all of it.
    pub(super) partial_rotary_factor: Option<f64>,
}

impl RopeDefaults {
    pub(super) const PLAIN: Self = Self { theta: 10_000.0, scaling: None, partial_rotary_factor: None };
}

/// A drafter's rope: whole heads, the library's defaults.
pub(crate) fn read_rope<'a>(
    config: &Fields<'a>,
    map: &'a Map<String, Value>,
    problems: &'a RefCell<Problems>,
) -> RopeSpec {
    read_rope_with(config, map, problems, &RopeDefaults::PLAIN).0
}

/// Both spellings: `rope_parameters` (theta inside), and `rope_theta` + `rope_scaling`. The second value is the share
/// of a head that is rotated.
pub(super) fn read_rope_with<'a>(
    config: &Fields<'a>,
    map: &'a Map<String, Value>,
    problems: &'a RefCell<Problems>,
    defaults: &RopeDefaults,
) -> (RopeSpec, f64) {
    let top_theta = config.f64("rope_theta");
    let scaling = config.object("rope_scaling").map(|s| Fields::new("rope_scaling.", s, problems));
    let top_share = share(config, defaults).or(scaling.as_ref().and_then(|s| share(s, defaults)));
    let default_share = defaults.partial_rotary_factor.unwrap_or(1.0);
    let Some(parameters) = config.object("rope_parameters") else {
        let theta = top_theta.unwrap_or(defaults.theta);
        let scaling = scaling.map_or_else(|| defaults.scaling.clone(), |s| read_scaling(&s));
        return (RopeSpec { theta, scaling }, top_share.unwrap_or(default_share));
    };
    let fields = Fields::new("rope_parameters.", parameters, problems);
    for (key, _) in parameters.iter().filter(|(_, value)| value.is_object()) {
        fields.problem(key, "one rope for each kind of layer is not supported");
    }
    let theta = fields.f64("rope_theta").or(top_theta).unwrap_or(defaults.theta);
    let spec = RopeSpec { theta, scaling: read_scaling(&fields) };
    let inner_share = share(&fields, defaults);
    // Both spellings in one file: two readers must not see two models.
    let same_theta = top_theta.is_none_or(|t| t == theta);
    let same_scaling = scaling.is_none_or(|s| read_scaling(&s) == spec.scaling);
    if !(same_theta && same_scaling) {
        config.problem(
            "rope_parameters",
            format!(
                "disagrees with `rope_theta` {} and `rope_scaling` {} of the same file",
                map.get("rope_theta").unwrap_or(&Value::Null),
                map.get("rope_scaling").unwrap_or(&Value::Null)
            ),
        );
    }
    if let (Some(inner), Some(top)) = (inner_share, top_share)
        && inner != top
    {
        config.problem("partial_rotary_factor", format!("{top}, and {inner} in `rope_parameters`"));
    }
    (spec, inner_share.or(top_share).unwrap_or(default_share))
}

fn share(fields: &Fields<'_>, defaults: &RopeDefaults) -> Option<f64> {
    const KEY: &str = "partial_rotary_factor";
    if defaults.partial_rotary_factor.is_none() {
        fields.only(KEY, &[json!(1)]);
        return None;
    }
    let share = fields.f64(KEY)?;
    if share > 0.0 && share <= 1.0 {
        return Some(share);
    }
    fields.problem(KEY, format!("{share} is not a share of a head (above 0, at most 1)"));
    None
}

fn read_scaling(fields: &Fields<'_>) -> Option<RopeScaling> {
    // `type` is the older name of `rope_type`.
    let older = fields.str("type");
    let kind = fields.str("rope_type").or(older).unwrap_or("default");
    let original = || fields.required_usize("original_max_position_embeddings");
    let scaling = match kind {
        "default" => return None,
        "linear" => RopeScaling::Linear { factor: fields.required_f64("factor") },
        "llama3" => RopeScaling::Llama3 {
            factor: fields.required_f64("factor"),
            low_freq_factor: fields.required_f64("low_freq_factor"),
            high_freq_factor: fields.required_f64("high_freq_factor"),
            original_max_position_embeddings: original(),
        },
        "yarn" => RopeScaling::Yarn {
            factor: fields.required_f64("factor"),
            original_max_position_embeddings: original(),
            beta_fast: fields.f64("beta_fast").unwrap_or(32.0),
            beta_slow: fields.f64("beta_slow").unwrap_or(1.0),
            attention_factor: fields.f64("attention_factor"),
            mscale: fields.f64("mscale"),
            mscale_all_dim: fields.f64("mscale_all_dim"),
            truncate: fields.bool("truncate").unwrap_or(true),
        },
        other => {
            fields
                .problem("rope_type", format!("{other:?} is not supported (supported: default, linear, llama3, yarn)"));
            return None;
        }
    };
    Some(scaling)
}
