//! Choosing a token from one row of logits.

use draftsman_contract::{CounterRng, top_k};

use crate::DecodeError;

/// How an answer is decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// Most tokens to produce. With 1 (or a first token that stops) no cycle runs.
    pub max_new_tokens: usize,
    /// Tokens that end an answer; the stop token itself is kept.
    pub stop_ids: Vec<u32>,
    /// 0 = greedy (first maximum); above 0 tokens are drawn from `softmax(logits / temperature)`.
    pub temperature: f32,
    /// Seed of the draws.
    pub seed: u64,
    /// Which prompt this is. A draw depends on (seed, stream, position) alone, so an answer does not depend on what was
    /// decoded before or beside it. `lockstep` replaces it by the request's index.
    pub stream: u64,
}

impl GenerateOptions {
    /// Greedy decoding of at most `max_new_tokens`, ending at `stop_ids`.
    pub fn greedy(max_new_tokens: usize, stop_ids: &[u32]) -> Self {
        Self { max_new_tokens, stop_ids: stop_ids.to_vec(), temperature: 0.0, seed: 0, stream: 0 }
    }

    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return Err(DecodeError::Option {
                key: "temperature",
                problem: format!("{} is not a finite number >= 0 (0 = greedy)", self.temperature),
            });
        }
        Ok(())
    }

    /// Whether `token` ends an answer.
    pub fn stops(&self, token: u32) -> bool {
        self.stop_ids.contains(&token)
    }
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    /// The token.
    pub token: u32,
    /// Largest minus second largest logit of the row: how near a tie the row was.
    pub gap: f32,
}

/// Chooses tokens for one prompt.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    temperature: f32,
    seed: u64,
    stream: u64,
}

impl Sampler {
    /// The sampler of `options`.
    pub fn new(options: &GenerateOptions) -> Self {
        Self { temperature: options.temperature, seed: options.seed, stream: options.stream }
    }

    /// The same sampler for another prompt.
    pub fn with_stream(self, stream: u64) -> Self {
        Self { stream, ..self }
    }

    /// Chooses the token for `position` (index in prompt + answer) from that row's `logits` `[vocab]`.
    pub fn pick(&self, logits: &[f32], position: usize) -> Result<Pick, DecodeError> {
        let top = top_k(logits, 2);
        let (first, first_logit) = *top.first().ok_or(DecodeError::NotFinite { position })?;
        if !first_logit.is_finite() {
            return Err(DecodeError::NotFinite { position });
        }
        let gap = top.get(1).map_or(f32::INFINITY, |(_, second)| first_logit - second);
        if self.temperature == 0.0 {
            return Ok(Pick { token: first, gap });
        }
        // Inverse distribution function in f64, in id order: one draw per token, the same on every machine.
        let scale = 1.0 / f64::from(self.temperature);
        let weight = |logit: f32| ((f64::from(logit) - f64::from(first_logit)) * scale).exp();
        let total: f64 = logits.iter().map(|&l| weight(l)).sum();
        if !total.is_finite() {
            return Err(DecodeError::NotFinite { position });
        }
        let mut left = CounterRng::new(self.seed, &[self.stream, position as u64]).uniform() * total;
        for (id, &logit) in logits.iter().enumerate() {
            left -= weight(logit);
            if left < 0.0 {
                return Ok(Pick { token: id as u32, gap });
            }
        }
        // Rounding can leave a crumb after the last token; the most likely one takes it.
        Ok(Pick { token: first, gap })
    }
}
