//! Evaluation while training: the validation of `draftsman-eval` behind the trait that the trainer knows.

use std::error::Error;

use draftsman_contract::HoleRule;
use draftsman_eval::{AnchoredReport, PreparedValidation, Validation};
use draftsman_models::{Dflash, Target};
use draftsman_train::{Better, LiveCheck, Recipe, Sample};
use serde_json::Value;

/// The number that chooses the best checkpoint: training loss may fall while acceptance does.
const CHOOSES: &str = "val/chain_accepted_drafts";

/// Judges the drafter on the held-out documents, at anchors drawn once for the whole run.
pub(crate) struct HeldOut<'a> {
    prepared: PreparedValidation<'a>,
    saved: Value,
}

/// The validation set of a run: the held-out documents with anchors drawn from the recipe's seed.
pub(crate) fn draw(recipe: &Recipe, held_out: &[Sample], gamma: f64, holes: HoleRule) -> Validation {
    let documents = held_out.iter().map(|sample| (sample.ids.clone(), sample.loss_mask.clone()));
    Validation::draw(documents, recipe.data.validation_anchors_per_sequence, recipe.train.seed, holes, gamma)
}

impl<'a> HeldOut<'a> {
    /// Runs the target over the documents once; every check reuses the features.
    pub(crate) fn new(target: &'a dyn Target, validation: &'a Validation, taps: &[usize]) -> anyhow::Result<Self> {
        Ok(Self {
            prepared: PreparedValidation::new(target, validation, taps)?,
            saved: serde_json::to_value(validation)?,
        })
    }
}

impl LiveCheck for HeldOut<'_> {
    fn saved(&self) -> Value {
        self.saved.clone()
    }

    fn chooses_best(&self) -> (String, Better) {
        (CHOOSES.into(), Better::Higher)
    }

    fn check(
        &mut self,
        _step: usize,
        drafter: &Dflash,
        _target: &dyn Target,
    ) -> Result<Vec<(String, f64)>, Box<dyn Error + Send + Sync>> {
        Ok(numbers(&self.prepared.judge(drafter)?))
    }
}

/// The named numbers of a validation, the same in the training log and in `eval --validation`. Means over random anchors.
pub(crate) fn numbers(report: &AnchoredReport) -> Vec<(String, f64)> {
    let mut numbers = vec![("val/loss".to_owned(), report.loss)];
    let means = [
        ("chain_accepted_drafts", report.chain_accepted_drafts),
        ("ddtree8_accepted_drafts", report.ddtree8_accepted_drafts),
        ("top8_streak_drafts", report.top8_streak_drafts),
    ];
    numbers.extend(means.into_iter().filter_map(|(name, mean)| Some((format!("val/{name}"), mean?))));
    for (slot, rate) in report.slot_hit_rate.iter().enumerate() {
        numbers.extend(rate.map(|rate| (format!("val/slot_hit_rate/{}", slot + 1), rate)));
    }
    numbers
}
