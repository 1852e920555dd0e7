//! Whether a checkpoint may be continued by a job: everything that decides what is computed must be the same.

use std::fmt::Write as _;
use std::path::Path;

use draftsman_contract::Contract;
use draftsman_models::{Dflash, DrafterConfig};
use serde_json::Value;

use crate::checkpoint::{Loaded, State};
use crate::error::TrainError;
use crate::recipe::{HARMLESS_KEYS, Recipe};
use crate::samples::SampleSet;

/// Compares a loaded checkpoint with what the job would train; all differences are reported together.
pub(crate) fn check(
    folder: &Path,
    loaded: &Loaded,
    drafter: &Dflash,
    recipe: &Recipe,
    config: &DrafterConfig,
    samples: &SampleSet,
    validation: Option<&Value>,
) -> Result<(), TrainError> {
    let recipe_name = folder.join("recipe.toml").display().to_string();
    let saved = Recipe::parse(&loaded.recipe_toml, &recipe_name, &[])?;
    let mut differences = String::new();
    for difference in saved.differences(recipe)? {
        if !HARMLESS_KEYS.contains(&difference.key.as_str()) {
            let why = if difference.key == "train.steps" {
                ": the learning rates already used followed a schedule of that length"
            } else {
                ""
            };
            let _ = writeln!(
                differences,
                "  - recipe {}: was {}, is {}{why}",
                difference.key, difference.was, difference.now
            );
        }
    }
    let State { data_sha256, seed, .. } = &loaded.state;
    if *data_sha256 != samples.sha256 {
        let _ = writeln!(
            differences,
            "  - data: was sha256 {data_sha256}, is {}: documents, their order or their loss masks changed, so \"the next document\" would \
             be another one",
            samples.sha256
        );
    }
    if *seed != recipe.train.seed {
        let _ = writeln!(differences, "  - seed: was {seed}, is {}", recipe.train.seed);
    }
    compare_contracts(&drafter.config().contract, &config.contract, &mut differences);
    if loaded.validation.as_ref() != validation {
        let _ = writeln!(
            differences,
            "  - validation documents, anchors or walked answers changed (validation.json): the best checkpoint would be chosen by two different tests"
        );
    }
    if differences.is_empty() {
        return Ok(());
    }
    let _ = write!(
        differences,
        "  hint: start a new run, or undo the change; only these keys may change: {}",
        HARMLESS_KEYS.join(", ")
    );
    Err(TrainError::Changed { checkpoint: folder.to_path_buf(), differences })
}

/// Contract fields that differ, apart from the target's name, which is for people.
fn compare_contracts(was: &Contract, now: &Contract, differences: &mut String) {
    let strip = |contract: &Contract| {
        let mut contract = contract.clone();
        contract.target.name = None;
        serde_json::to_value(contract).unwrap_or(Value::Null)
    };
    let (was, now) = (strip(was), strip(now));
    let (Some(was), Some(now)) = (was.as_object(), now.as_object()) else { return };
    for (key, before) in was {
        let after = now.get(key).unwrap_or(&Value::Null);
        if before != after {
            let _ = writeln!(differences, "  - {key}: was {before}, is {after}");
        }
    }
}
