//! Live evaluation: plain and speculative decoding of the same prompts in one run.

use std::ops::ControlFlow;

use draftsman_decode::{Finish, GenerateOptions, Generation, Proposer, generate};
use draftsman_models::Target;
use serde::{Deserialize, Serialize};

use crate::{EvalError, EvalPrompt};

/// New tokens of the warm-up decodes, which are thrown away: first touches of memory are nobody's speed.
const WARM_UP_TOKENS: usize = 4;

/// What one question gave.
#[derive(Debug, Clone)]
pub struct PromptRun {
    /// The question, as the target alone was asked it.
    pub prompt: EvalPrompt,
    /// The target alone.
    pub plain: Generation,
    /// With each proposer, in the order given.
    pub speculative: Vec<Generation>,
}

/// A question without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedPrompt {
    /// Its suite.
    pub suite: String,
    /// Its name.
    pub id: String,
    /// What went wrong.
    pub problem: String,
}

impl FailedPrompt {
    /// `prompt` could not be answered.
    pub fn new(prompt: &EvalPrompt, problem: impl Into<String>) -> Self {
        Self { suite: prompt.suite.clone(), id: prompt.name(), problem: problem.into() }
    }

    /// The same, and the questions of its conversation that were to follow.
    pub fn with_rest(prompt: &EvalPrompt, problem: impl Into<String>) -> Vec<Self> {
        let mut failed = vec![Self::new(prompt, problem)];
        let mut later = prompt.clone();
        while later.has_next() {
            later = later.followed_by(Vec::new());
            failed.push(Self::new(&later, format!("not asked, because `{}` was not answered", prompt.name())));
        }
        failed
    }
}

/// A live evaluation.
#[derive(Debug, Clone, Default)]
pub struct LiveWalk {
    /// Every question that was answered by all.
    pub runs: Vec<PromptRun>,
    /// The others. They stop nobody.
    pub failed: Vec<FailedPrompt>,
    /// Questions that were not reached because the hooks ended the evaluation.
    pub unasked: usize,
}

impl LiveWalk {
    fn fail(&mut self, prompt: &EvalPrompt, problem: String, hooks: &mut dyn WalkHooks) {
        let failed = FailedPrompt::with_rest(prompt, problem);
        failed.iter().for_each(|failed| hooks.failed(failed));
        self.failed.extend(failed);
    }
}

/// What the caller of [`walk_live`] knows, sees and decides.
pub trait WalkHooks {
    /// The conversation of `prompt` with the next question, after these answers to the questions so far. Called where
    /// [`EvalPrompt::has_next`].
    fn next_turn(&mut self, prompt: &EvalPrompt, answers: &[Vec<u32>]) -> Result<Vec<u32>, String> {
        let _ = answers;
        Err(format!("nobody knows the next question of `{}`", prompt.id))
    }

    /// Sees each question that was answered; `Break` ends the evaluation after it.
    fn answered(&mut self, run: &PromptRun) -> ControlFlow<()> {
        let _ = run;
        ControlFlow::Continue(())
    }

    /// Sees each question that was not.
    fn failed(&mut self, failed: &FailedPrompt) {
        let _ = failed;
    }
}

/// Hooks that know, see and decide nothing.
impl WalkHooks for () {}

/// Decodes every prompt plainly and with every proposer, prompt by prompt, so that all meet the same state of the machine.
///
/// In a conversation everybody's own answers are the history of its next question. (One that `max_blocks` cut short goes
/// on from the target's.) `options.stream` is replaced by the prompt's. A short warm-up with every proposer is run first
/// and discarded.
pub fn walk_live(
    target: &dyn Target,
    proposers: &mut [Box<dyn Proposer + '_>],
    prompts: &[EvalPrompt],
    options: &GenerateOptions,
    hooks: &mut dyn WalkHooks,
) -> Result<LiveWalk, EvalError> {
    if let Some(first) = prompts.first() {
        // What fails here fails again below, where it is told.
        let short = GenerateOptions { max_new_tokens: options.max_new_tokens.min(WARM_UP_TOKENS), ..options.clone() };
        let _ = generate(target, None, &first.ids, &short);
        for proposer in proposers.iter_mut() {
            let _ = generate(target, Some(proposer.as_mut()), &first.ids, &short);
        }
    }
    let mut walk = LiveWalk::default();
    let asked: usize = prompts.iter().map(|prompt| prompt.turns.max(1)).sum();
    for prompt in prompts {
        let mut conversation = Conversation::begin(prompt, proposers.len());
        loop {
            match conversation.ask(target, proposers, options) {
                Ok(run) => {
                    let flow = hooks.answered(&run);
                    walk.runs.push(run);
                    if flow.is_break() {
                        walk.unasked = asked - walk.runs.len() - walk.failed.len();
                        return Ok(walk);
                    }
                }
                Err(problem) => {
                    walk.fail(&conversation.prompt, problem, hooks);
                    break;
                }
            }
            if !conversation.prompt.has_next() {
                break;
            }
            if let Err(problem) = conversation.go_on(hooks) {
                walk.fail(&conversation.prompt.followed_by(Vec::new()), problem, hooks);
                break;
            }
        }
    }
    Ok(walk)
}

/// One conversation, as the target alone and every proposer has it.
struct Conversation {
    /// The question at hand, as the target alone is asked it.
    prompt: EvalPrompt,
    /// The same for each proposer.
    prompts: Vec<Vec<u32>>,
    /// The target's own answers so far.
    plain: Vec<Vec<u32>>,
    /// Those with each proposer.
    speculative: Vec<Vec<Vec<u32>>>,
}

impl Conversation {
    fn begin(prompt: &EvalPrompt, proposers: usize) -> Self {
        Self {
            prompt: prompt.clone(),
            prompts: vec![prompt.ids.clone(); proposers],
            plain: Vec::new(),
            speculative: vec![Vec::new(); proposers],
        }
    }

    /// Asks everybody.
    fn ask(
        &mut self,
        target: &dyn Target,
        proposers: &mut [Box<dyn Proposer + '_>],
        options: &GenerateOptions,
    ) -> Result<PromptRun, String> {
        let options = GenerateOptions { stream: self.prompt.stream(), ..options.clone() };
        let plain = generate(target, None, &self.prompt.ids, &options).map_err(|error| error.to_string())?;
        let mut speculative = Vec::with_capacity(proposers.len());
        for (proposer, ids) in proposers.iter_mut().zip(&self.prompts) {
            let answer = generate(target, Some(proposer.as_mut()), ids, &options);
            speculative.push(answer.map_err(|error| format!("with `{}`: {error}", proposer.name()))?);
        }
        for (answers, generation) in self.speculative.iter_mut().zip(&speculative) {
            let whole = if generation.finish == Finish::Early { &plain } else { generation };
            answers.push(whole.output_ids().to_vec());
        }
        self.plain.push(plain.output_ids().to_vec());
        Ok(PromptRun { prompt: self.prompt.clone(), plain, speculative })
    }

    /// Moves to the next question.
    fn go_on(&mut self, hooks: &mut dyn WalkHooks) -> Result<(), String> {
        let next = hooks.next_turn(&self.prompt, &self.plain)?;
        for (ids, answers) in self.prompts.iter_mut().zip(&self.speculative) {
            // Lossless answers are the same, so the next question mostly is, too.
            *ids = if *answers == self.plain { next.clone() } else { hooks.next_turn(&self.prompt, answers)? };
        }
        self.prompt = self.prompt.followed_by(next);
        Ok(())
    }
}
