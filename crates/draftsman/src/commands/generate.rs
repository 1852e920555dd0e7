//! `draftsman generate`: an answer, plain or speculative, as text or as ids with every cycle.

use std::path::Path;

use anyhow::{Context, bail};
use draftsman_decode::{Cycle, Generation, generate_streaming};
use serde_json::json;

use crate::Outcome;
use crate::args::GenerateArgs;
use crate::model::Model;
use crate::printer::Printer;
use crate::proposers::Proposers;

pub(crate) fn run(args: &GenerateArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    // Ids need no tokenizer, so a folder without one will do.
    let (model, prompt) = match (&args.prompt_ids, &args.prompt) {
        (Some(path), _) => (Model::open_without_text(&args.target)?, read_ids(path)?),
        (None, Some(text)) => {
            let model = Model::open(&args.target)?;
            let ids = model.user_prompt_ids(text)?;
            (model, ids)
        }
        (None, None) => bail!("a prompt or `--prompt-ids` is needed"),
    };
    let target = model.target.as_ref();
    let opened = Proposers::open(std::slice::from_ref(&args.drafter), &args.opening, target, None, printer)?
        .with_trees(&[args.trees.rule(args.tree_budget)]);
    let mut proposers = opened.build(target)?;
    let stop_ids = args.stop_ids.clone().unwrap_or_else(|| model.stop_ids());
    let options = args.sampling.options(args.max_new_tokens, &stop_ids);
    let mut stream = model.text_stream();
    let mut on_tokens = |ids: &[u32]| {
        for &id in ids {
            // A piece that cannot be decoded is shown by the ids of `--json`, never by a crash in mid-answer.
            if let Some(Ok(piece)) = stream.as_mut().map(|stream| stream.push(id)) {
                printer.piece(piece);
            }
        }
    };
    let proposer = proposers.first_mut().map(|p| p.as_mut() as &mut dyn draftsman_decode::Proposer);
    let generation = generate_streaming(target, proposer, &prompt, &options, &mut on_tokens)?;
    match stream {
        Some(stream) => printer.line(stream.finish()?),
        None => printer.line(format!("{:?}", generation.output_ids())),
    }
    printer.note(summary(&generation));
    printer.document(&document(&generation))?;
    Ok(Outcome::Done)
}

/// One line about speed and acceptance.
fn summary(generation: &Generation) -> String {
    let (tokens, cycles) = (generation.decoded_tokens(), generation.cycles.len());
    let seconds = generation.decode_s();
    let mut text = format!(
        "{} prompt tokens in {:.2} s, {} answer tokens, {:.1} tok/s",
        generation.prompt_len,
        generation.prefill_s,
        generation.output_ids().len(),
        tokens as f64 / seconds.max(1e-9)
    );
    if cycles > 0 {
        text.push_str(&format!(", {cycles} cycles, {:.2} tokens a cycle", tokens as f64 / cycles as f64));
    }
    text
}

fn document(generation: &Generation) -> serde_json::Value {
    let cycles: Vec<_> = generation.cycles.iter().map(cycle).collect();
    json!({ "output_ids": generation.ids, "cycles": cycles })
}

/// `parents` stands where the drafts branch: for every token of the block the index of the one it follows, -1 for the
/// anchor.
fn cycle(cycle: &Cycle) -> serde_json::Value {
    let mut value = json!({ "start": cycle.start, "block": cycle.block, "accepted": cycle.accepted });
    if let Some(parents) = &cycle.parents {
        value["parents"] = std::iter::once(json!(-1)).chain(parents.iter().map(|&parent| json!(parent))).collect();
    }
    value
}

fn read_ids(path: &Path) -> anyhow::Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!("`{}` is not a list of token ids\n\nhint: it should look like [1, 42, 7]", path.display())
    })
}
