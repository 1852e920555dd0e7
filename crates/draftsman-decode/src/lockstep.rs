//! Batched generation: many answers at once, one token per row and step.
//!
//! Rows share the linear layers' forward pass and nothing else. Each has its own cache, its own positions and its own
//! draws, so an answer is the same whichever rows run beside it (on the CPU to the bit: the kernels are row-invariant).

use std::ops::ControlFlow;
use std::time::Instant;

use draftsman_models::{LogitRows, Target, TargetCache, TargetInput, Want};

use crate::DecodeError;
use crate::generate::{Finish, check_prompt};
use crate::rows::LogitTable;
use crate::sampling::{GenerateOptions, Sampler};

/// Most prompt tokens that are prefilled within one step, new rows waiting beyond it: bounds the activations of a step and
/// the pause of the rows already running. A longer prompt runs as the only new one of its step.
const PREFILL_TOKENS_PER_STEP: usize = 2048;

/// A finished answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Index of the request.
    pub index: usize,
    /// The produced tokens, prompt excluded, stop token included.
    pub output_ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// Counts of a run so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LockstepStats {
    /// Answers handed to [`LockstepHooks::finished`].
    pub finished: usize,
    /// Tokens produced, those cut off by an early end included.
    pub produced_tokens: usize,
    /// Prompt tokens prefilled.
    pub prompt_tokens: usize,
    /// Forward passes.
    pub steps: usize,
    /// Wall time since the start.
    pub seconds: f64,
    /// Whether a hook ended the run before all requests were answered.
    pub interrupted: bool,
}

/// What the caller of [`lockstep`] wants to see and decide.
pub trait LockstepHooks {
    /// Called after every new token that does not stop the answer. `Some(n)` ends the answer here and keeps its first `n`
    /// tokens (the loop rule). Must depend on its arguments only, or answers depend on the batch.
    fn early_end(&mut self, index: usize, produced: &[u32]) -> Option<usize> {
        let _ = (index, produced);
        None
    }

    /// Called once for each finished answer, in the order they finish; persist it here. `Break` ends the run at once.
    fn finished(&mut self, answer: Answer) -> ControlFlow<()>;

    /// Called where one answer cannot go on: its prompt is refused, or its logits are not finite. `Ok` drops it and leaves
    /// the others running. The default ends the run.
    fn refused(&mut self, index: usize, error: DecodeError) -> Result<(), DecodeError> {
        let _ = index;
        Err(error)
    }

    /// Called after every step, for progress and interruption. `Break` ends the run at once; answers under way are dropped.
    fn stepped(&mut self, stats: &LockstepStats) -> ControlFlow<()> {
        let _ = stats;
        ControlFlow::Continue(())
    }
}

/// One running answer.
struct Row {
    index: usize,
    /// What the next forward pass reads: the whole prompt first, then the last token.
    pending: Vec<u32>,
    produced: Vec<u32>,
    prompt_len: usize,
    cache: TargetCache,
}

/// Answers every request `(index, prompt_ids)`, up to `rows` at a time. A finished row is replaced by the next request in the
/// next step, whose prompt runs in the same forward pass as the other rows' single tokens.
///
/// All requests are checked before the first forward pass. `options.stream` is replaced by each request's index.
pub fn lockstep(
    target: &dyn Target,
    requests: impl IntoIterator<Item = (usize, Vec<u32>)>,
    rows: usize,
    options: &GenerateOptions,
    hooks: &mut dyn LockstepHooks,
) -> Result<LockstepStats, DecodeError> {
    options.check()?;
    if rows == 0 {
        return Err(DecodeError::Option {
            key: "rows",
            problem: "0 rows cannot answer anything; use 1 or more".into(),
        });
    }
    let mut accepted: Vec<(usize, Vec<u32>)> = Vec::new();
    for (index, prompt) in requests {
        match check_prompt(target.spec(), &format!("request {index}"), &prompt, options.max_new_tokens) {
            Ok(()) => accepted.push((index, prompt)),
            Err(error) => hooks.refused(index, error)?,
        }
    }

    let sampler = Sampler::new(options);
    let started = Instant::now();
    let mut stats = LockstepStats::default();
    let mut waiting = accepted.into_iter().peekable();
    let mut running: Vec<Row> = Vec::with_capacity(rows);
    let mut spare: Vec<TargetCache> = Vec::new();

    if options.max_new_tokens == 0 {
        for (index, _) in waiting.by_ref() {
            stats.finished += 1;
            if hooks.finished(Answer { index, output_ids: Vec::new(), finish: Finish::Length }).is_break() {
                stats.interrupted = true;
                break;
            }
        }
        return Ok(stats);
    }

    loop {
        let mut new_tokens = 0;
        while running.len() < rows
            && let Some((_, prompt)) = waiting.peek()
            && (new_tokens == 0 || new_tokens + prompt.len() <= PREFILL_TOKENS_PER_STEP)
        {
            new_tokens += prompt.len();
            let Some((index, prompt)) = waiting.next() else { break };
            let cache = spare.pop().unwrap_or_else(|| target.new_cache());
            running.push(Row { index, prompt_len: prompt.len(), pending: prompt, produced: Vec::new(), cache });
        }
        if running.is_empty() {
            break;
        }
        stats.prompt_tokens += new_tokens;

        let mut batch: Vec<TargetInput<'_>> =
            running.iter_mut().map(|row| TargetInput { ids: &row.pending, cache: &mut row.cache }).collect();
        let count = batch.len();
        let want = Want { taps: Vec::new(), logits: LogitRows::Last };
        let logits = LogitTable::read(target.forward(&mut batch, &want, None)?.logits, count)?;
        drop(batch);
        stats.steps += 1;

        // Rows keep their order; finished ones leave.
        let mut still_running = Vec::with_capacity(rows);
        let mut stop = false;
        for (i, mut row) in running.drain(..).enumerate() {
            let position = row.prompt_len + row.produced.len();
            let token = match sampler.with_stream(row.index as u64).pick(logits.row(i), position) {
                Ok(pick) => pick.token,
                Err(error) => {
                    hooks.refused(row.index, error)?;
                    continue;
                }
            };
            row.produced.push(token);
            stats.produced_tokens += 1;
            let finish = if options.stops(token) {
                Some(Finish::Stop)
            } else if let Some(keep) = hooks.early_end(row.index, &row.produced) {
                row.produced.truncate(keep);
                Some(Finish::Early)
            } else if row.produced.len() == options.max_new_tokens {
                Some(Finish::Length)
            } else {
                None
            };
            let Some(finish) = finish else {
                row.pending.clear();
                row.pending.push(token);
                still_running.push(row);
                continue;
            };
            row.cache.truncate(0)?;
            spare.push(row.cache);
            stats.finished += 1;
            stats.seconds = started.elapsed().as_secs_f64();
            // Later rows of this step may be finished too: they are handed over even when an earlier one asked to end.
            stop |= hooks.finished(Answer { index: row.index, output_ids: row.produced, finish }).is_break();
        }
        running = still_running;
        stats.seconds = started.elapsed().as_secs_f64();
        stop |= hooks.stepped(&stats).is_break();
        if stop {
            stats.interrupted = !running.is_empty() || waiting.peek().is_some();
            break;
        }
    }
    stats.seconds = started.elapsed().as_secs_f64();
    Ok(stats)
}
