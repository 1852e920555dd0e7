//! The target's own answers, where only they are wanted: written now, or recorded.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::bail;
use draftsman_data::{RecordContent, read_records};
use draftsman_decode::{Answer, DecodeError, Finish, GenerateOptions, LockstepHooks, lockstep};
use draftsman_eval::{EvalPrompt, FailedPrompt, TargetAnswer};
use draftsman_models::Target;

use super::prompts::Prompts;
use crate::args::EvalArgs;
use crate::model::Model;
use crate::printer::Printer;

/// Rows decoded side by side.
const ANSWER_ROWS: usize = 16;

/// Questions with the target's own answers.
pub(super) type Answered = Vec<(EvalPrompt, TargetAnswer)>;

/// The answers that the arguments ask for, and the questions that have none: recorded ones, or the target's to the suites.
pub(super) fn wanted(
    args: &EvalArgs,
    suites: &Prompts,
    model: &Model,
    options: &GenerateOptions,
    printer: &Printer,
) -> anyhow::Result<(Answered, Vec<FailedPrompt>)> {
    let target = model.target.as_ref();
    if let Some(path) = &args.answers {
        let answers = recorded(path, args.num_prompts.first().copied(), target.spec().vocab_size, options)?;
        printer.note(format!("{} recorded answers from `{}`", answers.len(), path.display()));
        return Ok((answers, Vec::new()));
    }
    let (prompts, refused) = suites.questions(model)?;
    printer.note(format!("{}, at most {} new tokens each", suites.describe(), options.max_new_tokens));
    let mut next = |prompt: &EvalPrompt, so_far: &[Vec<u32>]| suites.next(model, prompt, so_far);
    let (answers, failed) = target_answers(target, &prompts, options, &mut next)?;
    Ok((answers, [refused, failed].concat()))
}

/// What follows the answers so far in a conversation.
type Next<'a> = &'a mut dyn FnMut(&EvalPrompt, &[Vec<u32>]) -> Result<Vec<u32>, String>;

/// Every question of every conversation with the target's answer, in order, and the questions that have none. Answers are
/// written side by side; row invariance makes them those of single decoding.
pub(crate) fn target_answers(
    target: &dyn Target,
    prompts: &[EvalPrompt],
    options: &GenerateOptions,
    next: Next<'_>,
) -> anyhow::Result<(Answered, Vec<FailedPrompt>)> {
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    let mut history: BTreeMap<usize, Vec<Vec<u32>>> = BTreeMap::new();
    let mut round = prompts.to_vec();
    while !round.is_empty() {
        let mut collected = Collect::default();
        // A question's stream is its name here, so draws are those of live decoding.
        let requests = round.iter().map(|prompt| (prompt.stream() as usize, prompt.ids.clone()));
        lockstep(target, requests, ANSWER_ROWS, options, &mut collected)?;
        let mut later = Vec::new();
        for prompt in round {
            let key = prompt.stream() as usize;
            let Some(answer) = collected.answers.remove(&key) else {
                let problem = collected.refused.remove(&key).unwrap_or_else(|| "no answer came".into());
                failed.push(FailedPrompt::new(&prompt, problem));
                continue;
            };
            if prompt.has_next() {
                let so_far = history.entry(prompt.index).or_default();
                so_far.push(answer.output_ids.clone());
                match next(&prompt, so_far) {
                    Ok(ids) => later.push(prompt.followed_by(ids)),
                    Err(problem) => failed.push(FailedPrompt::new(&prompt.followed_by(Vec::new()), problem)),
                }
            }
            answered.push((prompt, TargetAnswer { output_ids: answer.output_ids, finish: answer.finish }));
        }
        round = later;
    }
    answered.sort_by_key(|(prompt, _)| (prompt.index, prompt.turn));
    Ok((answered, failed))
}

/// Answers and refusals by request.
#[derive(Default)]
struct Collect {
    answers: BTreeMap<usize, Answer>,
    refused: BTreeMap<usize, String>,
}

impl LockstepHooks for Collect {
    fn refused(&mut self, index: usize, error: DecodeError) -> Result<(), DecodeError> {
        self.refused.insert(index, error.to_string());
        Ok(())
    }

    fn finished(&mut self, answer: Answer) -> ControlFlow<()> {
        self.answers.insert(answer.index, answer);
        ControlFlow::Continue(())
    }
}

/// The first `limit` recorded answers of a file, with their prompts, cut to the budget of `options`.
fn recorded(
    path: &Path,
    limit: Option<usize>,
    vocab_size: usize,
    options: &GenerateOptions,
) -> anyhow::Result<Answered> {
    let suite = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
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
        let prompt = EvalPrompt { suite: suite.clone(), ..EvalPrompt::new(answers.len(), record.id, prompt_ids) };
        let finish = if stopped { Finish::Stop } else { Finish::Early };
        answers.push((prompt, TargetAnswer { output_ids: response_ids, finish }));
    }
    if answers.is_empty() {
        bail!("`{}` holds no answers", path.display());
    }
    Ok(answers)
}
