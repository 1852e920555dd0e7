//! `--html`: the report of an evaluation as a page.

use std::path::Path;

use draftsman_eval::html::{Page, SampleAnswer, TrainingPoint, shown_tokens};
use draftsman_eval::{EvalReport, PromptRun};

use crate::model::Model;
use crate::output::write_atomically;

/// Answers shown token by token.
const SAMPLES: usize = 4;

/// Answers of the last proposer, which is usually the one that matters, with what it drafted.
pub(crate) fn samples(model: &Model, runs: &[PromptRun], names: &[(String, usize)]) -> Vec<SampleAnswer> {
    let words = |ids: &[u32]| {
        let text = model.text().ok().and_then(|text| text.tokenizer().decode(ids, false).ok());
        text.unwrap_or_else(|| ids.iter().map(|id| format!("<{id}>")).collect())
    };
    let shown = runs.iter().take(SAMPLES).filter_map(|run| {
        let (generation, (name, _)) = (run.speculative.last()?, names.last()?);
        Some(SampleAnswer {
            id: run.prompt.name(),
            prompt: words(&run.prompt.ids),
            proposer: name.clone(),
            tokens: shown_tokens(&generation.ids, generation.prompt_len, &generation.cycles, &|id| words(&[id])),
        })
    });
    shown.collect()
}

/// Writes the page.
pub(crate) fn write(
    path: &Path,
    title: &str,
    report: &EvalReport,
    training: &[TrainingPoint],
    samples: &[SampleAnswer],
    facts: &[(String, String)],
) -> anyhow::Result<()> {
    let page = Page { title, report, training, samples, facts };
    write_atomically(path, page.render().as_bytes())
}

/// The validations of a training run, from its metrics.jsonl.
pub(crate) fn training_points(metrics: &Path) -> Vec<TrainingPoint> {
    let text = std::fs::read_to_string(metrics).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let points = lines.filter(|line| line["kind"] == "validation").filter_map(|line| {
        Some(TrainingPoint {
            step: usize::try_from(line["step"].as_u64()?).ok()?,
            chain_accepted_drafts: line["val/chain_accepted_drafts"].as_f64()?,
        })
    });
    points.collect()
}
