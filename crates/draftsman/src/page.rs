//! `--html`: the report of an evaluation as a page.

use std::path::Path;

use draftsman_eval::html::{DrawnTree, SampleAnswer, TrainingPoint, shown_tokens};
use draftsman_eval::{EvalPrompt, PromptRun};

use crate::model::Model;

/// Answers shown token by token.
const SAMPLES: usize = 4;

/// Answers of the last proposer, which is usually the one that matters, with what it drafted.
pub(crate) fn samples(model: &Model, runs: &[PromptRun], names: &[(String, usize)]) -> Vec<SampleAnswer> {
    let prompts: Vec<&EvalPrompt> = runs.iter().map(|run| &run.prompt).collect();
    let shown = chosen(&prompts).into_iter().filter_map(|index| {
        let run = &runs[index];
        let (generation, (name, _)) = (run.speculative.last()?, names.last()?);
        Some(SampleAnswer {
            suite: run.prompt.suite.clone(),
            id: run.prompt.name(),
            prompt: words(model, &run.prompt.ids),
            proposer: name.clone(),
            tokens: shown_tokens(&generation.ids, generation.prompt_len, &generation.cycles, &|id| word(model, id)),
        })
    });
    shown.collect()
}

/// The first prompt of every suite, then others from the beginning, in their order.
fn chosen(prompts: &[&EvalPrompt]) -> Vec<usize> {
    let first_of_suite = |index: &usize| prompts[..*index].iter().all(|other| other.suite != prompts[*index].suite);
    let (firsts, others): (Vec<usize>, Vec<usize>) = (0..prompts.len()).partition(first_of_suite);
    let mut chosen: Vec<usize> = firsts.into_iter().chain(others).take(SAMPLES).collect();
    chosen.sort_unstable();
    chosen
}

/// The most telling tree of the last proposer that drafted trees.
pub(crate) fn tree(model: &Model, runs: &[PromptRun], names: &[(String, usize)]) -> Option<DrawnTree> {
    let of = |(line, (name, _)): (usize, &(String, usize))| {
        let answers = runs.iter().filter_map(|run| Some((run.prompt.name(), run.speculative.get(line)?)));
        DrawnTree::choose(name, answers, &|id| word(model, id))
    };
    names.iter().enumerate().rev().find_map(of)
}

fn words(model: &Model, ids: &[u32]) -> String {
    let text = model.text().ok().and_then(|text| text.tokenizer().decode(ids, false).ok());
    text.unwrap_or_else(|| ids.iter().map(|id| format!("<{id}>")).collect())
}

/// A token in the middle of a text: tokenizers drop the blank of a word that begins one.
fn word(model: &Model, id: u32) -> String {
    let (once, twice) = (words(model, &[id]), words(model, &[id, id]));
    twice.strip_prefix(&once).map_or_else(|| once.clone(), str::to_owned)
}

/// The validations of a training run, from its metrics.jsonl.
pub(crate) fn training_points(metrics: &Path) -> Vec<TrainingPoint> {
    let text = std::fs::read_to_string(metrics).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let points = lines.filter(|line| line["kind"] == "validation").filter_map(|line| {
        Some(TrainingPoint {
            step: usize::try_from(line["step"].as_u64()?).ok()?,
            chain_accepted_drafts: line["val/chain_accepted_drafts"].as_f64(),
            walk_acceptance_length: line["walk/acceptance_length"].as_f64(),
        })
    });
    points.collect()
}
