//! Plain and speculative decoding of one prompt: the cycle that every evaluated number refers to.
//!
//! A cycle starts at the anchor, the newest token, which the target has not read yet. The proposer drafts the tokens after
//! it as a chain or a tree, the target reads anchor and drafts in one pass, drafts are accepted from the anchor down while
//! one equals the target's own choice, and the target's next choice follows as the bonus token. Plain decoding is the same
//! loop with no drafts.

use std::time::Instant;

use draftsman_models::{LogitRows, Target, TargetInput, TargetSpec, TreeInput, Want};

use crate::rows::{LogitTable, select_rows};
use crate::sampling::{GenerateOptions, Sampler};
use crate::{Block, DecodeError, Proposer};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// A stop token; it is the answer's last token.
    Stop,
    /// The budget of new tokens.
    Length,
    /// A rule of the caller: a loop began, or `max_blocks` were verified.
    Early,
}

/// One verify pass of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// Index of the anchor in prompt + answer.
    pub start: usize,
    /// The verified tokens, row by row: the anchor, then the drafts.
    pub block: Vec<u32>,
    /// Where the drafts branch: the rows that rows 1, 2, ... follow. Absent for a chain, where it is the row before.
    pub parents: Option<Vec<usize>>,
    /// Drafts from the anchor down that equal the target's choices; not cut at budget or stop.
    pub accepted: usize,
    /// New tokens the answer got from this cycle: `accepted + 1` cut at the budget and after a stop token.
    pub committed: usize,
}

impl Cycle {
    /// The cycle that began at `start` with `block`.
    pub fn new(start: usize, block: Block, accepted: usize, committed: usize) -> Self {
        let parents = (!block.shape.is_chain()).then(|| block.shape.parents().to_vec());
        Self { start, block: block.ids, parents, accepted, committed }
    }

    /// The rows from the anchor along `ids`, prompt and answer: the accepted ones, as far as `ids` goes.
    pub fn path(&self, ids: &[u32]) -> Vec<usize> {
        let mut path = vec![0];
        let mut row = 0;
        for &token in ids.iter().skip(self.start + 1).take(self.accepted) {
            let Some(next) = self.children(row).find(|&child| self.block[child] == token) else { break };
            path.push(next);
            row = next;
        }
        path
    }

    /// The first draft after the accepted ones, which the target did not choose; none where nothing was drafted, or where
    /// `ids`, prompt and answer, ends before.
    pub fn rejected(&self, ids: &[u32]) -> Option<u32> {
        let path = self.path(ids);
        let last = path.last().filter(|_| path.len() == self.accepted + 1)?;
        self.children(*last).next().map(|row| self.block[row])
    }

    /// Rows that follow `row`.
    fn children(&self, row: usize) -> impl Iterator<Item = usize> {
        let parent = move |child: usize| self.parents.as_ref().map_or(child - 1, |parents| parents[child - 1]);
        (row + 1..self.block.len()).filter(move |&child| parent(child) == row)
    }
}

/// Seconds of one cycle. Where a device works behind the program's back (a GPU), a part's seconds are those until its
/// results are read: only the verify pass and the whole are then to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CycleTime {
    /// From anchor to anchor.
    pub total_s: f64,
    /// The proposer's: drafting, and reading the features of what was accepted.
    pub draft_s: f64,
    /// The target's pass, its logits read back.
    pub verify_s: f64,
}

impl CycleTime {
    /// The rest: choosing tokens, cutting caches.
    pub fn other_s(&self) -> f64 {
        (self.total_s - self.draft_s - self.verify_s).max(0.0)
    }
}

/// A finished answer and how it came about.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Prompt and answer.
    pub ids: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// One per verify pass, in order; none if the first token ended the answer.
    pub cycles: Vec<Cycle>,
    /// Why it ended.
    pub finish: Finish,
    /// For each produced token the gap between the two largest logits of its row.
    pub gaps: Vec<f32>,
    /// Seconds for the prompt: the target's pass, the proposer's reading of its features and the first token.
    pub prefill_s: f64,
    /// Times of each cycle.
    pub cycle_times: Vec<CycleTime>,
}

impl Generation {
    /// The answer alone.
    pub fn output_ids(&self) -> &[u32] {
        &self.ids[self.prompt_len..]
    }

    /// Tokens made by cycles: the answer without its first token, which the prefill made.
    pub fn decoded_tokens(&self) -> usize {
        self.output_ids().len().saturating_sub(1)
    }

    /// Seconds of all cycles.
    pub fn decode_s(&self) -> f64 {
        self.cycle_times.iter().map(|time| time.total_s).sum()
    }
}

/// How many of `new` tokens (accepted drafts and bonus) an answer keeps that may take `room` more: cut at the budget and
/// after the first stop token. Returns the number and whether a stop token ends the answer.
pub fn committed_tokens(new: &[u32], room: usize, options: &GenerateOptions) -> (usize, bool) {
    let within = &new[..new.len().min(room)];
    match within.iter().position(|&token| options.stops(token)) {
        Some(at) => (at + 1, true),
        None => (within.len(), false),
    }
}

/// Checks a prompt against the target before anything runs.
pub(crate) fn check_prompt(
    spec: &TargetSpec,
    what: &str,
    prompt: &[u32],
    max_new_tokens: usize,
) -> Result<(), DecodeError> {
    if prompt.is_empty() {
        return Err(DecodeError::EmptyPrompt { what: what.into() });
    }
    if prompt.len().saturating_add(max_new_tokens) > spec.max_positions {
        return Err(DecodeError::TooLong {
            what: what.into(),
            prompt_tokens: prompt.len(),
            max_new_tokens,
            max_positions: spec.max_positions,
        });
    }
    if let Some((index, &id)) = prompt.iter().enumerate().find(|(_, id)| **id as usize >= spec.vocab_size) {
        return Err(DecodeError::TokenOutOfRange { what: what.into(), index, id, vocab_size: spec.vocab_size });
    }
    Ok(())
}

/// Decodes one prompt. Without a proposer this is plain decoding; with one the output is the same, in fewer passes.
///
/// With a temperature above 0 drafts stay the proposer's best guesses and the target *samples* every row; a draft is
/// accepted if it equals the sample. Every produced token is thus a sample of the target, and because draws depend on
/// (seed, stream, position) alone it is even the same sample as in plain decoding.
pub fn generate(
    target: &dyn Target,
    proposer: Option<&mut dyn Proposer>,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Result<Generation, DecodeError> {
    generate_streaming(target, proposer, prompt, options, &mut |_| {})
}

/// As [`generate`]; `on_tokens` gets the new tokens of the prefill and of each cycle as they are committed.
pub fn generate_streaming(
    target: &dyn Target,
    mut proposer: Option<&mut dyn Proposer>,
    prompt: &[u32],
    options: &GenerateOptions,
    on_tokens: &mut dyn FnMut(&[u32]),
) -> Result<Generation, DecodeError> {
    options.check()?;
    check_prompt(target.spec(), "prompt", prompt, options.max_new_tokens)?;
    let sampler = Sampler::new(options);
    let max_length = prompt.len() + options.max_new_tokens;
    let mut generation = Generation {
        ids: prompt.to_vec(),
        prompt_len: prompt.len(),
        cycles: Vec::new(),
        finish: Finish::Length,
        gaps: Vec::new(),
        prefill_s: 0.0,
        cycle_times: Vec::new(),
    };
    if options.max_new_tokens == 0 {
        return Ok(generation);
    }

    let taps = proposer.as_deref().map(|p| p.taps().to_vec()).unwrap_or_default();
    let mut cache = target.new_cache();
    let prefill = Instant::now();
    let output = target.forward(
        &mut [TargetInput { ids: prompt, cache: &mut cache }],
        &Want { taps: taps.clone(), logits: LogitRows::Last },
        None,
    )?;
    let first = sampler.pick(LogitTable::read(output.logits, 1)?.row(0), prompt.len())?;
    generation.ids.push(first.token);
    generation.gaps.push(first.gap);
    let mut stopped = options.stops(first.token);
    let runs_on = !stopped && prompt.len() + 1 < max_length;
    if let Some(proposer) = proposer.as_deref_mut() {
        proposer.begin();
        if runs_on {
            proposer.observe(output.features, prompt)?;
        }
    }
    generation.prefill_s = prefill.elapsed().as_secs_f64();
    on_tokens(&[first.token]);

    // Index of the anchor: the newest token, produced but not read by the target.
    let mut start = prompt.len();
    while start + 1 < max_length && !stopped {
        if proposer.is_some() && options.max_blocks.is_some_and(|most| generation.cycles.len() >= most) {
            generation.finish = Finish::Early;
            return Ok(generation);
        }
        let room = max_length - start - 1;
        let cycle = Instant::now();
        let anchor = generation.ids[start];
        let block = match proposer.as_deref_mut() {
            Some(proposer) => Block::ask(proposer, &generation.ids, anchor, room, target.spec().vocab_size)?,
            None => Block::alone(anchor),
        };
        let mut draft_s = cycle.elapsed().as_secs_f64();
        let verify = Instant::now();
        let want = Want { taps: taps.clone(), logits: LogitRows::All };
        let branches = !block.shape.is_chain();
        let output = if branches {
            let rows = TreeInput { ids: &block.ids, shape: &block.shape, cache: &mut cache };
            target.forward_trees(&mut [rows], &want, None)?
        } else {
            target.forward(&mut [TargetInput { ids: &block.ids, cache: &mut cache }], &want, None)?
        };
        let logits = LogitTable::read(output.logits, block.ids.len())?;
        let verify_s = verify.elapsed().as_secs_f64();
        // Only rows on the walk are looked at: the others answer a question nobody asked.
        let mut picks = Vec::new();
        let path = block.tree.try_walk(|row| -> Result<_, DecodeError> {
            let pick = sampler.pick(logits.row(row), start + picks.len() + 1)?;
            picks.push(pick);
            Ok(Some(pick.token))
        })?;
        let new: Vec<u32> = picks.iter().map(|p| p.token).collect();
        let (committed, stop) = committed_tokens(&new, room, options);
        generation.ids.extend_from_slice(&new[..committed]);
        generation.gaps.extend(picks[..committed].iter().map(|p| p.gap));
        stopped = stop;
        start += committed;
        if branches {
            cache.keep(&path[..committed])?;
        } else {
            cache.truncate(start)?;
        }
        if let (Some(proposer), true) = (proposer.as_deref_mut(), start + 1 < max_length && !stopped) {
            // Features of accepted rows only: the old anchor and the accepted drafts.
            let observe = Instant::now();
            let kept = &path[..committed];
            proposer.observe(output.features.map(|f| select_rows(f, kept)), &block.path_ids(kept))?;
            draft_s += observe.elapsed().as_secs_f64();
        }
        generation.cycle_times.push(CycleTime { total_s: cycle.elapsed().as_secs_f64(), draft_s, verify_s });
        on_tokens(&new[..committed]);
        generation.cycles.push(Cycle::new(start - committed, block, path.len() - 1, committed));
    }
    generation.finish = if stopped { Finish::Stop } else { Finish::Length };
    Ok(generation)
}
