//! The prompts of an evaluation, as tokens.

use std::path::Path;

use anyhow::{Context, bail};
use draftsman_eval::{EvalPrompt, Selection, Suite, load_suite, read_suite};

use crate::args::EvalArgs;
use crate::model::Model;

/// `--prompts builtin`: the suite that is part of the program (assets/suite).
const BUILT_IN: &str = "builtin";

/// Reads the suite that the arguments name.
pub(super) fn suite(args: &EvalArgs) -> anyhow::Result<Option<Suite>> {
    let Some(path) = args.prompts.as_deref() else { return Ok(None) };
    let selection = Selection { limit: args.limit, seed: args.shuffle_seed };
    Ok(Some(if path == Path::new(BUILT_IN) {
        read_suite(path, include_bytes!("../../../assets/suite/builtin.jsonl").as_slice(), &selection)?
    } else {
        load_suite(path, &selection)?
    }))
}

pub(super) fn prompt_ids(model: &Model, path: &Path, suite: &Suite) -> anyhow::Result<Vec<EvalPrompt>> {
    let ids = suite.prompts.iter().map(|prompt| {
        let ids = model
            .suite_prompt_ids(&prompt.source)
            .with_context(|| format!("`{}` line {} (`{}`)", path.display(), prompt.line, prompt.id))?;
        let place = || format!("{}:{} ({})", path.display(), prompt.line, prompt.id);
        let spec = model.target.spec();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= spec.vocab_size) {
            bail!("{}: token {id} is outside the target's vocabulary of {}\n\nhint: these ids come from another tokenizer", place(), spec.vocab_size);
        }
        if ids.len() >= spec.max_positions {
            bail!("{}: {} tokens leave no room for an answer in a context of {}\n\nhint: shorten the prompt", place(), ids.len(), spec.max_positions);
        }
        Ok(EvalPrompt { id: prompt.id.clone(), ids })
    });
    ids.collect()
}
