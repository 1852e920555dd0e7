//! Evaluation while training: the validation of `draftsman-eval` behind the trait that the trainer knows.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use draftsman_contract::HoleRule;
use draftsman_decode::GenerateOptions;
use draftsman_eval::{AnchoredReport, EvalPrompt, PreparedValidation, PreparedWalk, Validation, WalkSet, Walked};
use draftsman_models::{Dflash, Target};
use draftsman_train::{Better, LiveCheck, Recipe, Sample, saved_validation};
use serde_json::Value;

use crate::commands::eval::{replay_rows, target_answers};
use crate::printer::Printer;

/// The number that chooses the best checkpoint: what decoding gains, for training loss may fall while acceptance does.
const CHOOSES: &str = "walk/acceptance_length";

/// The same where nothing is walked.
const CHOOSES_WITHOUT_WALK: &str = "val/chain_accepted_drafts";

/// Judges the drafter on the held-out documents, at anchors drawn once for the whole run, and walks the target's answers to
/// some of their prompts, written once for the whole run.
pub(crate) struct HeldOut<'a> {
    prepared: PreparedValidation<'a>,
    walk: Option<PreparedWalk<'a>>,
    chooses: &'static str,
    saved: Value,
}

/// The validation set of a run: the held-out documents with anchors drawn from the recipe's seed.
pub(crate) fn draw(recipe: &Recipe, held_out: &[Sample], gamma: f64, holes: HoleRule) -> Validation {
    let documents = held_out.iter().map(|sample| (sample.ids.clone(), sample.loss_mask.clone()));
    Validation::draw(documents, recipe.data.validation_anchors_per_sequence, recipe.train.seed, holes, gamma)
}

/// The walk set of a new run: the target's greedy answers to the first held-out prompts that leave room for one.
pub(crate) fn answer_walk(
    recipe: &Recipe,
    held_out: &[Sample],
    target: &dyn Target,
    stop_ids: &[u32],
    printer: &Printer,
) -> anyhow::Result<Option<WalkSet>> {
    let new_tokens = recipe.data.walk_new_tokens;
    let room = target.spec().max_positions.saturating_sub(new_tokens);
    let prompts: Vec<EvalPrompt> = held_out
        .iter()
        .map(|sample| (sample, prompt(sample)))
        .filter(|(_, ids)| !ids.is_empty() && ids.len() <= room)
        .take(recipe.data.walk_prompts)
        .enumerate()
        .map(|(index, (sample, ids))| EvalPrompt::new(index, &sample.id, ids.to_vec()))
        .collect();
    if prompts.is_empty() {
        if recipe.data.walk_prompts > 0 {
            printer.note(format!("walk: no held-out prompt leaves room for {new_tokens} tokens"));
        }
        return Ok(None);
    }
    let started = Instant::now();
    let options = GenerateOptions::greedy(new_tokens, stop_ids);
    let mut no_next = |_: &EvalPrompt, _: &[Vec<u32>]| Err("a single question has no next one".to_owned());
    let never = std::sync::atomic::AtomicBool::new(false);
    let answers = target_answers(target, &prompts, &options, &mut no_next, &never)?;
    if let Some(first) = answers.failed.first() {
        bail!("held-out document `{}` cannot be answered: {}", first.id, first.problem);
    }
    printer.note(format!(
        "walk: the target answered {} held-out prompts with at most {new_tokens} tokens each [{:.1} s]",
        prompts.len(),
        started.elapsed().as_secs_f64()
    ));
    Ok(Some(WalkSet::new(answers.answered, &options)))
}

/// The walk set of the run in `run`. A run goes on with the one it began with, or without one: answers written anew might
/// differ where another machine rounds otherwise, and its best checkpoint was chosen by these.
pub(crate) fn saved_walk(run: &Path, printer: &Printer) -> anyhow::Result<Option<WalkSet>> {
    let Some(saved) = saved_validation(run)? else { return Ok(None) };
    let validation: Validation = serde_json::from_value(saved)
        .with_context(|| format!("`{}`: validation.json of the newest checkpoint cannot be read", run.display()))?;
    printer.note(match &validation.walk {
        Some(walk) => format!("walk: the {} answers of the run so far", walk.answers.len()),
        None => "walk: none, as in the run so far".into(),
    });
    Ok(validation.walk)
}

/// What stands before the first supervised token.
fn prompt(sample: &Sample) -> &[u32] {
    let end = sample.loss_mask.iter().position(|&supervised| supervised).unwrap_or(0);
    &sample.ids[..end]
}

impl<'a> HeldOut<'a> {
    /// Runs the target over documents and answers once; every check reuses the features.
    pub(crate) fn new(target: &'a dyn Target, validation: &'a Validation, taps: &'a [usize]) -> anyhow::Result<Self> {
        let walk = validation.walk.as_ref();
        Ok(Self {
            prepared: PreparedValidation::new(target, validation, taps)?,
            walk: walk.map(|set| PreparedWalk::new(target, set, taps, replay_rows(target))).transpose()?,
            chooses: if walk.is_some_and(WalkSet::has_cycles_outside_loops) { CHOOSES } else { CHOOSES_WITHOUT_WALK },
            saved: serde_json::to_value(validation)?,
        })
    }
}

impl LiveCheck for HeldOut<'_> {
    fn saved(&self) -> Value {
        self.saved.clone()
    }

    fn chooses_best(&self) -> (String, Better) {
        (self.chooses.into(), Better::Higher)
    }

    fn check(
        &mut self,
        _step: usize,
        drafter: &Dflash,
        _target: &dyn Target,
    ) -> Result<Vec<(String, f64)>, Box<dyn Error + Send + Sync>> {
        let mut numbers = numbers(&self.prepared.judge(drafter)?);
        if let Some(walk) = &mut self.walk {
            numbers.extend(walk_numbers(&walk.judge(drafter)?));
        }
        Ok(numbers)
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

/// The named numbers of a walk. Means over walked anchors; `cycles` are those outside loops, behind `acceptance_length`.
pub(crate) fn walk_numbers(walked: &Walked) -> Vec<(String, f64)> {
    let means = [
        ("acceptance_length", walked.outside_loops.acceptance_length_micro()),
        ("acceptance_length_all_tokens", walked.all.acceptance_length_micro()),
        ("cycles", Some(walked.outside_loops.cycles as f64)),
    ];
    means.into_iter().filter_map(|(name, value)| Some((format!("walk/{name}"), value?))).collect()
}
