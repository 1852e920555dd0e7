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
    let (truth_shape, truth) = input.token_ids("truth", 2, vocab.max(1))?;
    let (valid_shape, valid) = input.counts("valid", 1)?;
    if truth_shape != [blocks, slots] || valid_shape != [blocks] {
        return Err(input.mismatch(&format!(
            "`logits` {shape:?}, `truth` {truth_shape:?} and `valid` {valid_shape:?} do not fit together, expected [N, L, V], [N, L] and [N]"
        )));
    }
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
        let valid = valid[n].min(slots);
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
