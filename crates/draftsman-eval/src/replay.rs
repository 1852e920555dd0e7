//! The walk of speculative decoding, from the target's finished answer.
//!
//! The target's choices along its own answer are known, so one pass over prompt + answer gives every feature, and only the
//! proposer runs cycle by cycle. The same anchors are visited with the same features and the same blocks as in live
//! decoding, so the cycles are the same.

use std::ops::ControlFlow;

use burn::tensor::Tensor;
use draftsman_decode::{Block, Cycle, Finish, GenerateOptions, LogitTable, Proposer, Sampler, committed_tokens};
use draftsman_models::{LogitRows, Target, TargetCache, TargetInput, Want};

use crate::{EvalError, EvalPrompt, FailedPrompt};

/// What the target itself answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetAnswer {
    /// The answer, stop token included.
    pub output_ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// The target's features over prompt and answer, and its choices beyond a stop token.
///
/// Walks change nothing but how far those choices are known, so one reading serves any number of them.
pub(crate) struct TeacherForced<'a> {
    target: &'a dyn Target,
    /// `[rows, F * hidden]` of the layers in `taps`.
    features: Option<Tensor<2>>,
    taps: &'a [usize],
    cache: TargetCache,
    sampler: Sampler,
    /// Prompt, answer, and the target's own continuation as far as it was asked for.
    truth: Vec<u32>,
    /// The newest entry of `truth` that the target has not read yet is known to be its choice.
    may_extend: bool,
    /// The target's logits after the answer, `[vocab]`, until its choice there is asked for.
    beyond: Option<Vec<f32>>,
}

/// A prompt with the target's answer to it, and how that was made.
pub(crate) struct Answered<'a> {
    pub(crate) prompt: &'a EvalPrompt,
    pub(crate) answer: &'a TargetAnswer,
    pub(crate) options: GenerateOptions,
}

impl Answered<'_> {
    /// Drafts after an accepted stop token are judged by what the target would say after it; only then is its choice
    /// beyond the answer needed, and with it the layers above the last tap.
    fn may_extend(&self) -> bool {
        self.answer.finish == Finish::Stop
    }

    /// The prefill's token ended the answer: no cycle ran.
    fn has_no_cycle(&self) -> bool {
        self.answer.output_ids.len() < 2
    }

    /// Tokens that the target reads.
    fn rows(&self) -> usize {
        self.prompt.ids.len() + self.answer.output_ids.len() - usize::from(!self.may_extend())
    }
}

impl<'a> TeacherForced<'a> {
    /// Reads prompts and answers in one forward.
    pub(crate) fn read(
        target: &'a dyn Target,
        taps: &'a [usize],
        answered: &[Answered<'_>],
    ) -> Result<Vec<Self>, EvalError> {
        let mut known: Vec<Self> = answered
            .iter()
            .map(|one| Self {
                target,
                features: None,
                taps,
                cache: target.new_cache(),
                sampler: Sampler::new(&one.options),
                truth: [&one.prompt.ids[..], &one.answer.output_ids].concat(),
                may_extend: one.may_extend(),
                beyond: None,
            })
            .collect();
        // Without taps only the choices after stop tokens are wanted.
        let needed: Vec<bool> =
            answered.iter().map(|one| !one.has_no_cycle() && (one.may_extend() || !taps.is_empty())).collect();
        let mut inputs = Vec::new();
        let mut last_rows = Vec::new();
        let mut end = 0;
        for ((known, one), _) in known.iter_mut().zip(answered).zip(&needed).filter(|(_, needed)| **needed) {
            let rows = one.rows();
            end += rows;
            if one.may_extend() {
                last_rows.push(end - 1);
            }
            inputs.push(TargetInput { ids: &known.truth[..rows], cache: &mut known.cache });
        }
        if inputs.is_empty() {
            return Ok(known);
        }
        let choices = last_rows.len();
        let logits = if choices == 0 { LogitRows::None } else { LogitRows::Rows(last_rows) };
        let output = target.forward(&mut inputs, &Want { taps: taps.to_vec(), logits }, None)?;
        drop(inputs);
        let logits = (choices > 0).then(|| LogitTable::read(output.logits, choices)).transpose()?;
        let (mut start, mut choice) = (0, 0);
        for ((known, one), _) in known.iter_mut().zip(answered).zip(&needed).filter(|(_, needed)| **needed) {
            let rows = one.rows();
            known.features = output.features.as_ref().map(|all| all.clone().narrow(0, start, rows));
            start += rows;
            if let (true, Some(logits)) = (one.may_extend(), &logits) {
                known.beyond = Some(logits.row(choice).to_vec());
                choice += 1;
            } else {
                // Nothing is read after it any more: a cache may be larger than all features.
                known.cache = target.new_cache();
            }
        }
        Ok(known)
    }

    /// The target's choice for position `at`. `None` if the answer ends before it and not by a stop token.
    fn choice(&mut self, at: usize) -> Result<Option<u32>, EvalError> {
        while self.may_extend && at >= self.truth.len() {
            let Some(&newest) = self.truth.last() else { break };
            let logits = match self.beyond.take() {
                Some(logits) => logits,
                None => {
                    let output = self.target.forward(
                        &mut [TargetInput { ids: &[newest], cache: &mut self.cache }],
                        &Want { taps: Vec::new(), logits: LogitRows::Last },
                        None,
                    )?;
                    LogitTable::read(output.logits, 1)?.row(0).to_vec()
                }
            };
            self.truth.push(self.sampler.pick(&logits, self.truth.len())?.token);
        }
        Ok(self.truth.get(at).copied())
    }

    /// Outputs of the layers `taps` at `rows` rows from `from` on, side by side; `None` without taps.
    fn features(&self, taps: &[usize], from: usize, rows: usize) -> Option<Tensor<2>> {
        let all = self.features.clone().filter(|_| !taps.is_empty())?.narrow(0, from, rows);
        if taps == self.taps {
            return Some(all);
        }
        let hidden = self.target.spec().hidden_size;
        let column = |tap: &usize| self.taps.iter().position(|t| t == tap).map(|at| at * hidden);
        let columns: Option<Vec<Tensor<2>>> =
            taps.iter().map(|tap| column(tap).map(|from| all.clone().narrow(1, from, hidden))).collect();
        columns.map(|columns| Tensor::cat(columns, 1))
    }
}

/// The cycles that live decoding of `prompt` with `proposer` runs, given the target's own `answer`.
///
/// `options` are those of the answer, its `stream` included. An answer that a rule of the caller ended early is walked as if
/// its length had been the budget.
pub fn replay(
    target: &dyn Target,
    proposer: &mut dyn Proposer,
    prompt: &EvalPrompt,
    answer: &TargetAnswer,
    options: &GenerateOptions,
) -> Result<Vec<Cycle>, EvalError> {
    let answered = Answered { prompt, answer, options: options.clone() };
    answered.check()?;
    let taps = proposer.taps().to_vec();
    let mut known = TeacherForced::read(target, &taps, std::slice::from_ref(&answered))?;
    known[0].walk(proposer, &answered)
}

impl Answered<'_> {
    /// The answer must be one that these options give.
    pub(crate) fn check(&self) -> Result<(), EvalError> {
        let Self { prompt, answer, options } = self;
        let produced = answer.output_ids.len();
        let refuse = |problem: String| EvalError::Replay { id: prompt.name(), problem };
        if prompt.ids.is_empty() {
            return Err(refuse("the prompt is empty".into()));
        }
        if produced == 0 && options.max_new_tokens > 0 {
            return Err(refuse("the answer is empty".into()));
        }
        let stop_at = answer.output_ids.iter().position(|&id| options.stops(id));
        let consistent = match answer.finish {
            Finish::Stop => produced <= options.max_new_tokens && stop_at.is_some_and(|at| at + 1 == produced),
            Finish::Length => produced == options.max_new_tokens && stop_at.is_none(),
            Finish::Early => stop_at.is_none(),
        };
        if !consistent {
            return Err(refuse(format!(
                "{produced} answer tokens that ended by {:?}, first stop token at {stop_at:?}, do not come from a budget of {} \
                 and these stop ids",
                answer.finish, options.max_new_tokens
            )));
        }
        Ok(())
    }

    /// Most tokens of prompt and answer.
    fn max_length(&self) -> usize {
        let budget = match self.answer.finish {
            Finish::Stop => self.options.max_new_tokens,
            Finish::Length | Finish::Early => self.answer.output_ids.len(),
        };
        self.prompt.ids.len() + budget
    }
}

impl TeacherForced<'_> {
    /// The cycles of one proposer.
    pub(crate) fn walk(
        &mut self,
        proposer: &mut dyn Proposer,
        answered: &Answered<'_>,
    ) -> Result<Vec<Cycle>, EvalError> {
        let mut cycles = Vec::new();
        proposer.begin();
        if answered.has_no_cycle() {
            return Ok(cycles);
        }
        let taps = proposer.taps().to_vec();
        let max_length = answered.max_length();
        let mut start = answered.prompt.ids.len();
        proposer.observe(self.features(&taps, 0, start), &answered.prompt.ids)?;
        let mut stopped = false;
        let most_blocks = answered.options.max_blocks.unwrap_or(usize::MAX);
        while start + 1 < max_length && !stopped && cycles.len() < most_blocks {
            let room = max_length - start - 1;
            let vocab_size = self.target.spec().vocab_size;
            let block = Block::ask(proposer, &self.truth[..=start], self.truth[start], room, vocab_size)?;
            let mut truth = Vec::new();
            let path = block.tree.try_walk(|_| -> Result<_, EvalError> {
                let token = self.choice(start + truth.len() + 1)?;
                truth.extend(token);
                Ok(token)
            })?;
            // The budget may end the answer where the block does: then the bonus token is unknown and would be cut
            // anyway.
            let (committed, stop) = committed_tokens(&truth, room, &answered.options);
            stopped = stop;
            start += committed;
            if start + 1 < max_length && !stopped {
                proposer
                    .observe(self.features(&taps, start - committed, committed), &block.path_ids(&path[..committed]))?;
            }
            cycles.push(Cycle::new(start - committed, block, path.len() - 1, committed));
        }
        Ok(cycles)
    }
}

/// One question with the target's answer, and the cycles of every proposer.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayRun {
    /// The question.
    pub prompt: EvalPrompt,
    /// The target's own answer.
    pub answer: TargetAnswer,
    /// The cycles of each proposer, in the order given.
    pub cycles: Vec<Vec<Cycle>>,
}

/// A replayed evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplayWalk {
    /// Every question that was walked by all.
    pub runs: Vec<ReplayRun>,
    /// The others.
    pub failed: Vec<FailedPrompt>,
    /// Questions that were not reached because the caller ended the walk.
    pub unasked: usize,
}

/// [`replay`] over a suite. `options.stream` is replaced by the prompt's.
///
/// The target reads as many prompts in one forward as `rows_per_pass` tokens hold, at least one: a streamed target reads
/// its weights once a pass. The number changes no cycle. `on_run` sees each walked question; `Break` ends the walk after it.
pub fn replay_walk(
    target: &dyn Target,
    proposers: &mut [Box<dyn Proposer + '_>],
    answers: &[(EvalPrompt, TargetAnswer)],
    options: &GenerateOptions,
    rows_per_pass: usize,
    on_run: &mut dyn FnMut(&ReplayRun) -> ControlFlow<()>,
) -> Result<ReplayWalk, EvalError> {
    let mut taps: Vec<usize> = Vec::new();
    for tap in proposers.iter().flat_map(|proposer| proposer.taps()) {
        if !taps.contains(tap) {
            taps.push(*tap);
        }
    }
    let mut walk = ReplayWalk::default();
    teacher_forced(target, &taps, answers, options, rows_per_pass, &mut |answered, known| {
        let cycles = known.and_then(|known| {
            proposers.iter_mut().map(|proposer| known.walk(proposer.as_mut(), answered)).collect::<Result<_, _>>()
        });
        match cycles {
            Ok(cycles) => {
                let (prompt, answer) = (answered.prompt.clone(), answered.answer.clone());
                let run = ReplayRun { prompt, answer, cycles };
                let flow = on_run(&run);
                walk.runs.push(run);
                flow
            }
            Err(error) => {
                walk.failed.push(FailedPrompt::new(answered.prompt, error.to_string()));
                ControlFlow::Continue(())
            }
        }
    })?;
    walk.unasked = answers.len() - walk.runs.len() - walk.failed.len();
    Ok(walk)
}

/// What is done with an answer and what is known of it, or with why it is none.
pub(crate) type Each<'a> =
    &'a mut dyn FnMut(&Answered<'_>, Result<&mut TeacherForced<'_>, EvalError>) -> ControlFlow<()>;

/// Reads prompts and answers, as many in a forward as `rows_per_pass` tokens hold, and hands each on with what is known of
/// it, or with why it cannot be an answer to its prompt. `Break` ends the reading.
pub(crate) fn teacher_forced(
    target: &dyn Target,
    taps: &[usize],
    answers: &[(EvalPrompt, TargetAnswer)],
    options: &GenerateOptions,
    rows_per_pass: usize,
    each: Each<'_>,
) -> Result<(), EvalError> {
    let mut answered = Vec::with_capacity(answers.len());
    for (prompt, answer) in answers {
        let options = GenerateOptions { stream: prompt.stream(), ..options.clone() };
        let one = Answered { prompt, answer, options };
        match one.check() {
            Ok(()) => answered.push(one),
            Err(error) => {
                if each(&one, Err(error)).is_break() {
                    return Ok(());
                }
            }
        }
    }
    for pass in passes(&answered, rows_per_pass) {
        for (mut known, answered) in TeacherForced::read(target, taps, pass)?.into_iter().zip(pass) {
            if each(answered, Ok(&mut known)).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Consecutive answers that the target reads in one forward: as many as `rows_per_pass` tokens hold, at least one.
pub(crate) fn passes<'s, 'a>(mut rest: &'s [Answered<'a>], rows_per_pass: usize) -> Vec<&'s [Answered<'a>]> {
    let mut passes = Vec::new();
    while !rest.is_empty() {
        let mut rows = 0;
        let fitting = rest.iter().take_while(|one| {
            rows += one.rows();
            rows <= rows_per_pass
        });
        let (pass, later) = rest.split_at(fitting.count().max(1));
        passes.push(pass);
        rest = later;
    }
    passes
}

/// The first cycle in which two walks differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CycleDifference {
    /// Index of the cycle.
    pub cycle: usize,
    /// The cycle of the live walk; absent if it had ended.
    pub live: Option<Cycle>,
    /// The cycle of the replay; absent if it had ended.
    pub replayed: Option<Cycle>,
}

/// Compares a live walk with its replay.
pub fn first_cycle_difference(live: &[Cycle], replayed: &[Cycle]) -> Option<CycleDifference> {
    (0..live.len().max(replayed.len())).find(|&i| live.get(i) != replayed.get(i)).map(|cycle| CycleDifference {
        cycle,
        live: live.get(cycle).cloned(),
        replayed: replayed.get(cycle).cloned(),
    })
}
