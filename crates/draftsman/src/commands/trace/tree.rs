//! `trace tree`: the best-first draft tree of given logits.

use anyhow::bail;
use draftsman_contract::{best_first, log_sum_exp, top_k};
use serde_json::json;

use super::tensors::Input;
use crate::Outcome;
use crate::args::TraceTreeArgs;
use crate::printer::Printer;

pub(crate) fn run(args: &TraceTreeArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let input = Input::open(&args.input)?;
    let slots = if input.has("log_probs")? {
        let (shape, values) = input.scores("log_probs", 2)?;
        slots_of(&shape, &values, args.budget, false)?
    } else {
        let (shape, values) = input.scores("logits", 2)?;
        slots_of(&shape, &values, args.budget, true)?
    };
    let tree = best_first(&slots, args.budget);
    let nodes: Vec<_> = tree
        .nodes
        .iter()
        .map(|node| {
            json!({
                "token": node.token,
                "depth": node.depth,
                "parent": node.parent,
                "log_prob": node.log_prob,
            })
        })
        .collect();
    printer.json_line(&json!({ "nodes": nodes }))?;
    Ok(Outcome::Done)
}

/// Per slot the `budget` most probable tokens with their log-probabilities over the full vocabulary.
fn slots_of(shape: &[usize], values: &[f32], budget: usize, normalise: bool) -> anyhow::Result<Vec<Vec<(u32, f32)>>> {
    let vocab = shape[1];
    if vocab == 0 {
        bail!("the vocabulary of the input is empty: shape {shape:?}");
    }
    Ok(values.chunks(vocab).map(|row| top_log_probs(row, budget, normalise)).collect())
}

/// The `k` best tokens of one row; `logits` are turned into log-probabilities first.
pub(super) fn top_log_probs(row: &[f32], k: usize, normalise: bool) -> Vec<(u32, f32)> {
    let total = if normalise { log_sum_exp(row) } else { 0.0 };
    top_k(row, k).into_iter().map(|(id, v)| (id, (f64::from(v) - total) as f32)).collect()
}
