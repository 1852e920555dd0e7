//! `trace acceptance`: accepted drafts of given logits against the target's tokens.

use draftsman_contract::{chain, top_k_streak, tree_accepted};
use serde_json::json;

use super::tensors::Input;
use super::tree::top_log_probs;
use crate::Outcome;
use crate::args::TraceAcceptanceArgs;
use crate::printer::Printer;

/// Node budget of `ddtree8` and width of `top8_streak`.
const WIDTH: usize = 8;

pub(crate) fn run(args: &TraceAcceptanceArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let input = Input::open(&args.input)?;
    let (shape, logits) = input.scores("logits", 3)?;
    let [blocks, slots, vocab] = shape[..] else { unreachable!("`floats` checked the rank") };
    let (truth_shape, truth) = input.integers("truth", 2)?;
    let (valid_shape, valid) = input.counts("valid", 1)?;
    if truth_shape != [blocks, slots] || valid_shape != [blocks] {
        return Err(input.mismatch(&format!(
            "`logits` {shape:?}, `truth` {truth_shape:?} and `valid` {valid_shape:?} do not fit together, expected [N, L, V], [N, L] and [N]"
        )));
    }
    if let Some((n, most)) = valid.iter().enumerate().find(|(_, valid)| **valid > slots) {
        return Err(input.mismatch(&format!("`valid` holds {most} at index {n}, a block has {slots} slots")));
    }
    // Labels behind the usable ones mean nothing, often -100.
    let usable = |index: usize| index % slots < valid[index / slots];
    let token = |(index, &id): (usize, &i64)| match u32::try_from(id) {
        Ok(id) if (id as usize) < vocab => Ok(id),
        _ if !usable(index) => Ok(0),
        _ => Err(input.mismatch(&format!("`truth` holds {id} at flat index {index}, the vocabulary has {vocab} rows"))),
    };
    let truth: Vec<u32> = truth.iter().enumerate().map(token).collect::<anyhow::Result<_>>()?;
    let mut columns = Columns::default();
    for n in 0..blocks {
        let top: Vec<Vec<(u32, f32)>> = (0..slots)
            .map(|l| {
                let start = (n * slots + l) * vocab;
                top_log_probs(&logits[start..start + vocab], WIDTH, true)
            })
            .collect();
        let drafts: Vec<u32> = top.iter().map(|slot| slot[0].0).collect();
        let truth = &truth[n * slots..(n + 1) * slots];
        let valid = valid[n];
        columns.chain.push(chain(&drafts, truth, valid));
        columns.ddtree8.push(tree_accepted(&top, truth, valid, WIDTH));
        columns.top8_streak.push(top_k_streak(&top, truth, valid));
    }
    let rows: Vec<_> = (0..blocks)
        .map(|n| {
            json!({
                "chain": columns.chain[n],
                "ddtree8": columns.ddtree8[n],
                "top8_streak": columns.top8_streak[n],
            })
        })
        .collect();
    printer.json_line(&json!({
        "blocks": rows,
        "chain": columns.chain,
        "ddtree8": columns.ddtree8,
        "top8_streak": columns.top8_streak,
    }))?;
    Ok(Outcome::Done)
}

/// One entry per block.
#[derive(Default)]
struct Columns {
    chain: Vec<usize>,
    ddtree8: Vec<usize>,
    top8_streak: Vec<usize>,
}
