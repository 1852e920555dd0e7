//! Answers of the target: of a lock-step run, kept in memory, and recorded ones.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::bail;
use draftsman_data::{RecordContent, read_records};
use draftsman_decode::{Answer, Finish, GenerateOptions, LockstepHooks};
use draftsman_eval::{EvalPrompt, TargetAnswer};

/// Collects every finished answer by the index of its request.
pub(crate) struct Collect(Vec<Option<Answer>>);

impl Collect {
    pub(crate) fn new(requests: usize) -> Self {
        Self(vec![None; requests])
    }

    pub(crate) fn into_answers(self) -> Vec<Option<Answer>> {
        self.0
    }
}

impl LockstepHooks for Collect {
    fn finished(&mut self, answer: Answer) -> ControlFlow<()> {
        let index = answer.index;
        self.0[index] = Some(answer);
        ControlFlow::Continue(())
    }
}

/// The first `limit` recorded answers of a file, with their prompts, cut to the budget of `options`.
pub(crate) fn recorded(
    path: &Path,
    limit: Option<usize>,
    vocab_size: usize,
    options: &GenerateOptions,
) -> anyhow::Result<(Vec<EvalPrompt>, Vec<TargetAnswer>)> {
    let mut prompts = Vec::new();
    let mut answers = Vec::new();
    for record in read_records(path)?.into_iter().take(limit.unwrap_or(usize::MAX)) {
        let place = format!("{}:{} ({})", path.display(), record.line, record.id);
        let RecordContent::Answer { prompt_ids, mut response_ids, .. } = record.content else {
            bail!(
                "{place}: no recorded answer\n\nhint: a line holds `prompt_ids` and `response_ids`, as `draftsman data regenerate` writes them"
            );
        };
        if let Some(id) = prompt_ids.iter().chain(&response_ids).find(|&&id| id as usize >= vocab_size) {
            bail!(
                "{place}: token {id} is outside the target's vocabulary of {vocab_size}\n\nhint: these answers are another model's"
            );
        }
        response_ids.truncate(options.max_new_tokens);
        if let Some(stop) = response_ids.iter().position(|&id| options.stops(id)) {
            response_ids.truncate(stop + 1);
        }
        let stopped = response_ids.last().is_some_and(|&id| options.stops(id));
        prompts.push(EvalPrompt { id: record.id, ids: prompt_ids });
        answers.push(TargetAnswer {
            output_ids: response_ids,
            finish: if stopped { Finish::Stop } else { Finish::Early },
        });
    }
    if prompts.is_empty() {
        bail!("`{}` holds no answers", path.display());
    }
    Ok((prompts, answers))
}
