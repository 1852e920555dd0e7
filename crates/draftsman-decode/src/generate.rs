//! Plain and chain-speculative decoding of one prompt: the cycle that every evaluated number refers to.
//!
//! A cycle starts at the anchor, the newest token, which the target has not read yet. The proposer drafts the tokens after
//! it, the target reads anchor and drafts in one pass, drafts are accepted while they equal the target's own choices, and
//! the target's next choice follows as the bonus token. Plain decoding is the same loop with no drafts.

use std::time::Instant;

use draftsman_contract::chain;
use draftsman_models::{LogitRows, Target, TargetInput, TargetSpec, Want};

use crate::rows::LogitTable;
use crate::sampling::{GenerateOptions, Sampler};
use crate::{DecodeError, Proposer};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// A stop token; it is the answer's last token.
    Stop,
    /// The budget of new tokens.
    Length,
    /// A rule of the caller (a loop began).
    Early,
}

/// One verify pass of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// Index of the anchor in prompt + answer.
    pub start: usize,
    /// The verified tokens: the anchor, then the drafts.
    pub block: Vec<u32>,
    /// Leading drafts that equal the target's choices; not cut at budget or stop.
    pub accepted: usize,
    /// New tokens the answer got from this cycle: `accepted + 1` cut at the budget and after a stop token.
    pub committed: usize,
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
    /// Seconds of each cycle.
    pub cycle_s: Vec<f64>,
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
        self.cycle_s.iter().sum()
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
        cycle_s: Vec::new(),
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
        // A block never passes the budget: the last one is shorter, which also changes what a block drafter drafts.
        let room = max_length - start - 1;
        let cycle = Instant::now();
        let mut block = vec![generation.ids[start]];
        if let Some(proposer) = proposer.as_deref_mut() {
            let most = room.min(proposer.block_size().saturating_sub(1));
            if most > 0 {
                block.extend(proposer.propose(&generation.ids, most)?);
            }
            check_drafts(proposer, &block[1..], most, target.spec().vocab_size)?;
        }
        let output = target.forward(
            &mut [TargetInput { ids: &block, cache: &mut cache }],
            &Want { taps: taps.clone(), logits: LogitRows::All },
            None,
        )?;
        let logits = LogitTable::read(output.logits, block.len())?;
        let mut picks = Vec::with_capacity(block.len());
        for row in 0..block.len() {
            let pick = sampler.pick(logits.row(row), start + row + 1)?;
            picks.push(pick);
            // Rows after the first wrong draft answer a question nobody asked.
            if block.get(row + 1) != Some(&pick.token) {
                break;
            }
        }
        let truth: Vec<u32> = picks.iter().map(|p| p.token).collect();
        let accepted = chain(&block[1..], &truth, block.len() - 1);
        let (committed, stop) = committed_tokens(&truth[..accepted + 1], room, options);
        generation.ids.extend_from_slice(&truth[..committed]);
        generation.gaps.extend(picks[..committed].iter().map(|p| p.gap));
        stopped = stop;
        start += committed;
        cache.truncate(start)?;
        if let (Some(proposer), true) = (proposer.as_deref_mut(), start + 1 < max_length && !stopped) {
            // Features of accepted rows only: the old anchor and the accepted drafts.
            let features = output.features.map(|f| f.narrow(0, 0, committed));
            proposer.observe(features, &block[..committed])?;
        }
        generation.cycle_s.push(cycle.elapsed().as_secs_f64());
        on_tokens(&truth[..committed]);
        generation.cycles.push(Cycle { start: start - committed, block, accepted, committed });
    }
    generation.finish = if stopped { Finish::Stop } else { Finish::Length };
    Ok(generation)
}

/// A proposer from outside must not push ids at the target that it has no rows for, nor leave the block.
fn check_drafts(proposer: &dyn Proposer, drafts: &[u32], most: usize, vocab_size: usize) -> Result<(), DecodeError> {
    if drafts.len() > most {
        return Err(DecodeError::Proposer {
            proposer: proposer.name(),
            problem: format!("{} drafts where {most} were asked for", drafts.len()),
        });
    }
    match drafts.iter().find(|&&id| id as usize >= vocab_size) {
        Some(id) => Err(DecodeError::Proposer {
            proposer: proposer.name(),
            problem: format!("drafted token {id}, outside the target's vocabulary of {vocab_size}"),
        }),
        None => Ok(()),
    }
}
