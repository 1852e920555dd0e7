//! A walk that is repeated with one drafter after another: what the target says is read once.
//!
//! A training run has its target answer a few held-out prompts at the start. Each check then replays the walk along these
//! answers with the drafter as it is, at the cost of the drafter's passes alone, and gives the acceptance that live decoding
//! of the prompts would have.

use draftsman_data::LoopRule;
use draftsman_decode::{Cycle, DflashProposer, Finish, GenerateOptions, Proposer};
use draftsman_models::{Dflash, Target};
use serde::{Deserialize, Serialize};

use crate::replay::{Answered, TeacherForced, passes};
use crate::{EvalError, EvalPrompt, TargetAnswer, Walked};

/// Prompts with the target's own greedy answers, and the rules under which they were written and are counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkSet {
    /// Budget of every answer.
    pub max_new_tokens: usize,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
    /// What counts as a loop.
    pub loop_rule: LoopRule,
    /// The prompts, in the order they are walked.
    pub answers: Vec<WalkAnswer>,
}

/// A prompt with the target's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkAnswer {
    /// Chat template applied, generation prompt included.
    pub prompt_ids: Vec<u32>,
    /// The answer, stop token included.
    pub output_ids: Vec<u32>,
    /// Why it ended.
    #[serde(with = "FinishName")]
    pub finish: Finish,
}

/// [`Finish`] as a word in JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Finish", rename_all = "snake_case")]
enum FinishName {
    Stop,
    Length,
    Early,
}

impl WalkSet {
    /// Prompts with the answers that the target gave under `options`, greedily.
    pub fn new(answers: impl IntoIterator<Item = (EvalPrompt, TargetAnswer)>, options: &GenerateOptions) -> Self {
        let answers = answers.into_iter().map(|(prompt, answer)| WalkAnswer {
            prompt_ids: prompt.ids,
            output_ids: answer.output_ids,
            finish: answer.finish,
        });
        Self {
            max_new_tokens: options.max_new_tokens,
            stop_ids: options.stop_ids.clone(),
            loop_rule: LoopRule::default(),
            answers: answers.collect(),
        }
    }

    /// Whether a walk of these answers has a cycle outside loops. It has one with every drafter or with none: the first
    /// cycle begins at the first token of an answer, and counts if the second one lies outside the loop.
    #[must_use]
    pub fn has_cycles_outside_loops(&self) -> bool {
        let outside = |ids: &[u32]| self.loop_rule.loop_start(ids).unwrap_or(ids.len());
        self.answers.iter().any(|answer| outside(&answer.output_ids) >= 2)
    }
}

/// A [`WalkSet`] with the target's features kept in memory, for walking it with many drafters of the same taps.
pub struct PreparedWalk<'a> {
    target: &'a dyn Target,
    taps: &'a [usize],
    options: GenerateOptions,
    loop_rule: LoopRule,
    entries: Vec<Entry<'a>>,
}

struct Entry<'a> {
    prompt: EvalPrompt,
    answer: TargetAnswer,
    known: TeacherForced<'a>,
}

impl<'a> PreparedWalk<'a> {
    /// Has the target read prompts and answers, as many in one forward as `rows_per_pass` tokens hold, at least one.
    pub fn new(
        target: &'a dyn Target,
        set: &WalkSet,
        taps: &'a [usize],
        rows_per_pass: usize,
    ) -> Result<Self, EvalError> {
        let options = GenerateOptions::greedy(set.max_new_tokens, &set.stop_ids);
        let pairs: Vec<(EvalPrompt, TargetAnswer)> = set
            .answers
            .iter()
            .enumerate()
            .map(|(index, WalkAnswer { prompt_ids, output_ids, finish })| {
                let prompt = EvalPrompt::new(index, format!("walk prompt {index}"), prompt_ids.clone());
                (prompt, TargetAnswer { output_ids: output_ids.clone(), finish: *finish })
            })
            .collect();
        let answered: Vec<Answered<'_>> =
            pairs.iter().map(|(prompt, answer)| Answered { prompt, answer, options: options.clone() }).collect();
        answered.iter().try_for_each(Answered::check)?;
        let mut known = Vec::with_capacity(pairs.len());
        for pass in passes(&answered, rows_per_pass) {
            known.extend(TeacherForced::read(target, taps, pass)?);
        }
        drop(answered);
        let entries =
            pairs.into_iter().zip(known).map(|((prompt, answer), known)| Entry { prompt, answer, known }).collect();
        Ok(Self { target, taps, options, loop_rule: set.loop_rule, entries })
    }

    /// Prompts walked.
    #[must_use]
    pub fn prompts(&self) -> usize {
        self.entries.len()
    }

    /// The cycles that live decoding of each prompt with `proposer` runs; the same as [`crate::replay`].
    pub fn cycles(&mut self, proposer: &mut dyn Proposer) -> Result<Vec<Vec<Cycle>>, EvalError> {
        if proposer.taps().iter().any(|tap| !self.taps.contains(tap)) {
            return Err(EvalError::ValidationFile(format!(
                "features were made with target_layer_ids {:?}, `{}` reads {:?}",
                self.taps,
                proposer.name(),
                proposer.taps()
            )));
        }
        self.entries
            .iter_mut()
            .map(|Entry { prompt, answer, known }| {
                known.walk(proposer, &Answered { prompt, answer, options: self.options.clone() })
            })
            .collect()
    }

    /// Walks every prompt with the chains of `drafter`.
    pub fn judge(&mut self, drafter: &Dflash) -> Result<Walked, EvalError> {
        // No graph is wanted here, also when a drafter in training is judged.
        let drafter = drafter.inference();
        let target = self.target;
        let walks = self.cycles(&mut DflashProposer::new("drafter", &drafter, target, None)?)?;
        let mut walked = Walked::default();
        for (Entry { prompt, answer, .. }, cycles) in self.entries.iter().zip(&walks) {
            walked.add_answer(cycles, prompt.ids.len(), self.loop_rule.loop_start(&answer.output_ids));
        }
        Ok(walked)
    }
}
