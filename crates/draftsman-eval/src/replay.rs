//! The walk of speculative decoding, from the target's finished answer.
//!
//! The target's choices along its own answer are known, so one pass over prompt + answer gives every feature, and only the
//! proposer runs cycle by cycle. The same anchors are visited with the same features and the same blocks as in live
//! decoding, so the cycles are the same.

use burn::tensor::Tensor;
use draftsman_contract::chain;
use draftsman_decode::{Cycle, Finish, GenerateOptions, LogitTable, Proposer, Sampler, committed_tokens};
use draftsman_models::{LogitRows, Target, TargetCache, TargetInput, Want};

use crate::{EvalError, EvalPrompt};

/// What the target itself answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetAnswer {
    /// The answer, stop token included.
    pub output_ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// The target's features over prompt and answer, and its choices beyond a stop token.
struct TeacherForced<'a> {
    target: &'a dyn Target,
    features: Option<Tensor<2>>,
    cache: TargetCache,
    sampler: Sampler,
    /// Prompt, answer, and the target's own continuation as far as it was asked for.
    truth: Vec<u32>,
    /// The newest entry of `truth` that the target has not read yet is known to be its choice.
    may_extend: bool,
}

impl<'a> TeacherForced<'a> {
    fn run(
        target: &'a dyn Target,
        taps: &[usize],
        prompt: &[u32],
        answer: &TargetAnswer,
        options: &GenerateOptions,
    ) -> Result<Self, EvalError> {
        let mut truth = [prompt, &answer.output_ids].concat();
        let sampler = Sampler::new(options);
        let mut cache = target.new_cache();
        // Drafts after an accepted stop token are judged by what the target would say after it; only then is its choice
        // beyond the answer needed, and with it the layers above the last tap.
        let may_extend = answer.finish == Finish::Stop;
        let read = if may_extend { truth.len() } else { truth.len().saturating_sub(1) };
        let mut features = None;
        if may_extend || !taps.is_empty() {
            let logits = if may_extend { LogitRows::Last } else { LogitRows::None };
            let output = target.forward(
                &mut [TargetInput { ids: &truth[..read], cache: &mut cache }],
                &Want { taps: taps.to_vec(), logits },
                None,
            )?;
            features = output.features;
            if may_extend {
                let logits = LogitTable::read(output.logits, 1)?;
                truth.push(sampler.pick(logits.row(0), truth.len())?.token);
            }
        }
        Ok(Self { target, features, cache, sampler, truth, may_extend })
    }

    /// The target's choice for position `at`. `None` if the answer ends before it and not by a stop token.
    fn choice(&mut self, at: usize) -> Result<Option<u32>, EvalError> {
        while self.may_extend && at >= self.truth.len() {
            let Some(&newest) = self.truth.last() else { break };
            let output = self.target.forward(
                &mut [TargetInput { ids: &[newest], cache: &mut self.cache }],
                &Want { taps: Vec::new(), logits: LogitRows::Last },
                None,
            )?;
            let logits = LogitTable::read(output.logits, 1)?;
            self.truth.push(self.sampler.pick(logits.row(0), self.truth.len())?.token);
        }
        Ok(self.truth.get(at).copied())
    }

    fn features(&self, from: usize, rows: usize) -> Option<Tensor<2>> {
        self.features.clone().map(|f| f.narrow(0, from, rows))
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
    let produced = answer.output_ids.len();
    let refuse = |problem: String| EvalError::Replay { id: prompt.id.clone(), problem };
    if prompt.ids.is_empty() {
        return Err(refuse("the prompt is empty".into()));
    }
    let budget = match answer.finish {
        Finish::Stop => options.max_new_tokens,
        Finish::Length | Finish::Early => produced,
    };
    let stop_at = answer.output_ids.iter().position(|&id| options.stops(id));
    let consistent = match answer.finish {
        Finish::Stop => produced <= budget && stop_at.is_some_and(|at| at + 1 == produced),
        Finish::Length => produced == options.max_new_tokens && stop_at.is_none(),
        Finish::Early => stop_at.is_none(),
    };
    if !consistent {
        return Err(refuse(format!(
            "{produced} answer tokens that ended by {:?}, first stop token at {stop_at:?}, do not come from a budget of {} and \
             these stop ids",
            answer.finish, options.max_new_tokens
        )));
    }
    let max_length = prompt.ids.len() + budget;
    let mut start = prompt.ids.len();
    let mut cycles = Vec::new();
    proposer.begin();
    if produced < 2 {
        // The prefill's token ended the answer.
        return Ok(cycles);
    }
    let mut known = TeacherForced::run(target, proposer.taps(), &prompt.ids, answer, options)?;
    proposer.observe(known.features(0, start), &prompt.ids)?;
    let mut stopped = false;
    while start + 1 < max_length && !stopped {
        let room = max_length - start - 1;
        let mut block = vec![known.truth[start]];
        let most = room.min(proposer.block_size().saturating_sub(1));
        if most > 0 {
            block.extend(proposer.propose(&known.truth[..=start], most)?);
        }
        let mut truth = Vec::with_capacity(block.len());
        for row in 0..block.len() {
            let Some(token) = known.choice(start + row + 1)? else { break };
            truth.push(token);
            if block.get(row + 1) != Some(&token) {
                break;
            }
        }
        let accepted = chain(&block[1..], &truth, block.len() - 1);
        // The budget may end the answer where the block does: then the bonus token is unknown and would be cut anyway.
        let (committed, stop) = committed_tokens(&truth[..truth.len().min(accepted + 1)], room, options);
        stopped = stop;
        start += committed;
        if start + 1 < max_length && !stopped {
            proposer.observe(known.features(start - committed, committed), &block[..committed])?;
        }
        cycles.push(Cycle { start: start - committed, block, accepted, committed });
    }
    Ok(cycles)
}

/// [`replay`] over a suite: one entry per prompt, in each one the cycles of every proposer. `options.stream` is replaced by
/// the prompt's index.
pub fn replay_walk(
    target: &dyn Target,
    proposers: &mut [Box<dyn Proposer + '_>],
    prompts: &[EvalPrompt],
    answers: &[TargetAnswer],
    options: &GenerateOptions,
) -> Result<Vec<Vec<Vec<Cycle>>>, EvalError> {
    let mut walks = Vec::with_capacity(prompts.len());
    for (index, prompt) in prompts.iter().enumerate() {
        let answer = answers.get(index).ok_or_else(|| EvalError::Replay {
            id: prompt.id.clone(),
            problem: format!("no answer was given ({} answers for {} prompts)", answers.len(), prompts.len()),
        })?;
        let options = GenerateOptions { stream: index as u64, ..options.clone() };
        let walk = proposers
            .iter_mut()
            .map(|proposer| replay(target, proposer.as_mut(), prompt, answer, &options))
            .collect::<Result<_, _>>()?;
        walks.push(walk);
    }
    Ok(walks)
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
