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
    /// Only the so many most probable tokens are drawn, and those as probable as the last of them; 0 = all.
    pub top_k: usize,
    /// Of what `top_k` leaves only the fewest most probable tokens are drawn that have at least this share of the
    /// probability; 1 = all.
    pub top_p: f32,
    /// Seed of the draws.
    pub seed: u64,
    /// Most blocks that a proposer drafts for an answer, which ends there ([`crate::Finish::Early`]); plain decoding goes on.
    pub max_blocks: Option<usize>,
    /// Which prompt this is. A draw depends on (seed, stream, position) alone, so an answer does not depend on what was
    /// decoded before or beside it. `lockstep` replaces it by the request's index.
    pub stream: u64,
}

impl GenerateOptions {
    /// Greedy decoding of at most `max_new_tokens`, ending at `stop_ids`.
    pub fn greedy(max_new_tokens: usize, stop_ids: &[u32]) -> Self {
        let stop_ids = stop_ids.to_vec();
        Self { max_new_tokens, stop_ids, temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0, max_blocks: None, stream: 0 }
    }

    /// Refuses numbers that no answer can be decoded with.
    pub fn check(&self) -> Result<(), DecodeError> {
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return Err(DecodeError::Option {
                key: "temperature",
                problem: format!("{} is not a finite number >= 0 (0 = greedy)", self.temperature),
            });
        }
        // Written so that NaN fails.
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(DecodeError::Option {
                key: "top_p",
                problem: format!("{} is not a number above 0 and up to 1 (1 = all tokens)", self.top_p),
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
    top_k: usize,
    top_p: f32,
    seed: u64,
    stream: u64,
}

impl Sampler {
    /// The sampler of `options`.
    pub fn new(options: &GenerateOptions) -> Self {
        let GenerateOptions { temperature, top_k, top_p, seed, stream, .. } = *options;
        Self { temperature, top_k, top_p, seed, stream }
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
        let weights = self.weights(logits, first_logit);
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        if !total.is_finite() {
            return Err(DecodeError::NotFinite { position });
        }
        let mut left = CounterRng::new(self.seed, &[self.stream, position as u64]).uniform() * total;
        for &(id, weight) in &weights {
            left -= weight;
            if left < 0.0 {
                return Ok(Pick { token: id, gap });
            }
        }
        // Rounding can leave a crumb after the last token; the most likely one takes it.
        Ok(Pick { token: first, gap })
    }

    /// Tokens that may be drawn with their probabilities up to one factor, by rising id. `greatest` is the greatest
    /// logit.
    fn weights(&self, logits: &[f32], greatest: f32) -> Vec<(u32, f64)> {
        let scale = 1.0 / f64::from(self.temperature);
        let weight = |logit: f32| ((f64::from(logit) - f64::from(greatest)) * scale).exp();
        let least = match self.top_k {
            0 => f32::NEG_INFINITY,
            k => top_k(logits, k).last().map_or(f32::NEG_INFINITY, |(_, logit)| *logit),
        };
        // A NaN stays, for the sum to show it.
        let mut weights: Vec<(u32, f64)> = (0..)
            .zip(logits)
            .filter(|(_, logit)| **logit >= least || logit.is_nan())
            .map(|(id, &logit)| (id, weight(logit)))
            .collect();
        if self.top_p < 1.0 {
            weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let enough = f64::from(self.top_p) * weights.iter().map(|(_, weight)| weight).sum::<f64>();
            let mut sum = 0.0;
            let needed = weights.iter().position(|(_, weight)| {
                sum += weight;
                sum >= enough
            });
            weights.truncate(needed.map_or(weights.len(), |last| last + 1));
            weights.sort_by_key(|(id, _)| *id);
        }
        weights
    }
}
