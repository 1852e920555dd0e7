//! The target's own answers, where only they are wanted: written now, or recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use draftsman_data::{RecordContent, read_records};
use draftsman_decode::{Answer, DecodeError, Finish, GenerateOptions, LockstepHooks, LockstepStats, lockstep};
use draftsman_eval::{EvalPrompt, FailedPrompt, TargetAnswer, first_foreign_token};
use draftsman_models::Target;

use super::prompts::Prompts;
use crate::args::EvalArgs;
use crate::interrupt;
use crate::model::{self, Model};
use crate::printer::Printer;

/// Rows decoded side by side.
const ANSWER_ROWS: usize = 16;

/// Questions with the target's own answers.
pub(super) type Answered = Vec<(EvalPrompt, TargetAnswer)>;

/// What a round of answering left.
#[derive(Default)]
pub(crate) struct Answers {
    /// Questions with answers, in order.
    pub(crate) answered: Answered,
    /// Questions that cannot be answered.
    pub(crate) failed: Vec<FailedPrompt>,
    /// Questions that were not reached when the user interrupted.
    pub(crate) unasked: usize,
}

/// The answers that the arguments ask for: recorded ones, or the target's to the suites.
pub(super) fn wanted(
    args: &EvalArgs,
    suites: &Prompts,
    model: &Model,
    options: &GenerateOptions,
    printer: &Printer,
) -> anyhow::Result<Answers> {
    let target = model.target.as_ref();
    if let Some(path) = &args.answers {
        let limit = args.num_prompts.first().copied();
        let (mut answered, mut failed) = (recorded(path, limit, target.spec().vocab_size, options)?, Vec::new());
        printer.note(format!("{} recorded answers from `{}`", answered.len(), path.display()));
        let most = target.spec().max_positions;
        answered.retain(|(prompt, answer)| {
            let tokens = prompt.ids.len() + answer.output_ids.len();
            let problem = match tokens {
                _ if tokens > most => format!("{tokens} tokens of prompt and answer in a context of {most}"),
                // Statistics need no answer.
                _ if answer.output_ids.is_empty() && !args.stats => "the answer is empty".to_owned(),
                _ => return true,
            };
            failed.push(FailedPrompt::new(prompt, problem));
            false
        });
        // Sampled answers without their settings look the same, and are worth a walk: no error.
        if options.temperature == 0.0
            && !args.stats
            && let Some(foreign) = first_foreign_token(target, &answered)?
        {
            printer.warning(format!("`{}`: {foreign}: this is not what decoding would walk", path.display()));
        }
        return Ok(Answers { answered, failed, unasked: 0 });
    }
    let (prompts, refused) = suites.questions(model)?;
    printer.note(format!("{}, at most {} new tokens each", suites.describe(), options.max_new_tokens));
    let mut next = |prompt: &EvalPrompt, so_far: &[Vec<u32>]| suites.next(model, prompt, so_far);
    let mut answers = target_answers(target, &prompts, options, &mut next, &*interrupt::flag()?)?;
    answers.failed.splice(0..0, refused);
    Ok(answers)
}

/// How recorded answers were decoded, by the settings that `data regenerate` wrote beside them. Refused where they are
/// another target's.
pub(super) fn recorded_options(
    args: &EvalArgs,
    path: &Path,
    model: &Model,
    printer: &Printer,
) -> anyhow::Result<GenerateOptions> {
    let stop_ids = model.stop_ids();
    let Some(settings) = model::answer_settings(path) else {
        printer
            .warning(format!("nothing beside `{}` tells how these answers were made: taken as greedy", path.display()));
        return Ok(GenerateOptions::greedy(args.max_new_tokens, &stop_ids));
    };
    let dtype = args.target.run.dtype.to_string();
    let tokenizer = model.tokenizer_sha256();
    let other_tokenizer =
        tokenizer.is_some_and(|here| settings["tokenizer_sha256"].as_str().is_some_and(|was| was != here));
    if settings["dtype"].as_str() != Some(&dtype) && !other_tokenizer {
        printer.warning(format!("`{}` was written in {}, and is read in {dtype}", path.display(), settings["dtype"]));
    } else if other_tokenizer || !model.wrote(path) {
        let what = if other_tokenizer { "tokenizer_sha256" } else { "model_sha256" };
        let problem = format!("`{}` was written by another target ({what} in its settings)", path.display());
        if !args.opening.other_target {
            bail!("{problem}\n\nhint: give that target, or `--other-target` to take the answers all the same");
        }
        printer.warning(problem);
    }
    let made_with = settings["max_new_tokens"].as_u64().map_or(usize::MAX, |most| most as usize);
    let options = GenerateOptions::greedy(args.max_new_tokens.min(made_with), &stop_ids);
    let temperature = settings["temperature"].as_f64().unwrap_or(0.0) as f32;
    Ok(GenerateOptions { temperature, seed: settings["seed"].as_u64().unwrap_or(0), ..options })
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
    interrupted: &AtomicBool,
) -> anyhow::Result<Answers> {
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    let asked: usize = prompts.iter().map(|prompt| prompt.turns.max(1)).sum();
    let mut history: BTreeMap<usize, Vec<Vec<u32>>> = BTreeMap::new();
    let mut round = prompts.to_vec();
    while !round.is_empty() {
        let mut collected = Collect { interrupted, answers: BTreeMap::new(), refused: BTreeMap::new() };
        // A question's stream is its name here, so draws are those of live decoding.
        let requests = round.iter().map(|prompt| (prompt.stream() as usize, prompt.ids.clone()));
        lockstep(target, requests, ANSWER_ROWS, options, &mut collected)?;
        let mut later = Vec::new();
        for prompt in round {
            let key = prompt.stream() as usize;
            let Some(answer) = collected.answers.remove(&key) else {
                if let Some(problem) = collected.refused.remove(&key) {
                    failed.extend(FailedPrompt::with_rest(&prompt, problem));
                }
                continue;
            };
            if prompt.has_next() {
                let so_far = history.entry(prompt.index).or_default();
                so_far.push(answer.output_ids.clone());
                match next(&prompt, so_far) {
                    Ok(ids) => later.push(prompt.followed_by(ids)),
                    Err(problem) => failed.extend(FailedPrompt::with_rest(&prompt.followed_by(Vec::new()), problem)),
                }
            }
            answered.push((prompt, TargetAnswer { output_ids: answer.output_ids, finish: answer.finish }));
        }
        round = later;
    }
    answered.sort_by_key(|(prompt, _)| (prompt.index, prompt.turn));
    let unasked = asked - answered.len() - failed.len();
    Ok(Answers { answered, failed, unasked })
}

/// Answers and refusals by request.
struct Collect<'a> {
    interrupted: &'a AtomicBool,
    answers: BTreeMap<usize, Answer>,
    refused: BTreeMap<usize, String>,
}

impl LockstepHooks for Collect<'_> {
    fn refused(&mut self, index: usize, error: DecodeError) -> Result<(), DecodeError> {
        self.refused.insert(index, error.to_string());
        Ok(())
    }

    fn finished(&mut self, answer: Answer) -> ControlFlow<()> {
        self.answers.insert(answer.index, answer);
        ControlFlow::Continue(())
    }

    fn stepped(&mut self, _: &LockstepStats) -> ControlFlow<()> {
        if self.interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
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
    let (mut answers, mut ids) = (Vec::new(), BTreeSet::new());
    for record in read_records(path)?.into_iter().take(limit.unwrap_or(usize::MAX)) {
        let place = format!("{}:{} ({})", path.display(), record.line, record.id);
        let RecordContent::Answer { prompt_ids, mut response_ids, .. } = record.content else {
            bail!(
                "{place}: no recorded answer\n\nhint: a line holds `prompt_ids` and `response_ids`, as `draftsman data regenerate` writes them"
            );
        };
        if !ids.insert(record.id.clone()) {
            bail!("{place}: the id occurs twice\n\nhint: ids name prompts in reports; make them differ");
        }
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
