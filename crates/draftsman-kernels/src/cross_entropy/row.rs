//! Softmax of one row, a block of the vocabulary at a time.

use super::HeadOptions;
use crate::simd::{LANES, Simd, math};

/// Tokens of a block. Every row passes the same blocks in the same order, so its bits depend on nothing else.
pub(super) const BLOCK: usize = 192;

/// What raw products become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transform {
    /// Factor on the raw product, or on the raw product before the cap.
    factor: f32,
    /// tanh's argument is the raw product times `factor`, its result times this.
    cap: Option<f32>,
    /// d logit / d raw where there is no cap; with a cap the factor of (1 − tanh²).
    pub(super) slope: f32,
}

impl Transform {
    pub(super) fn new(opts: &HeadOptions) -> Self {
        let slope = opts.output_multiplier / opts.temperature;
        match opts.final_logit_softcapping {
            None => Self { factor: slope, cap: None, slope },
            Some(cap) => Self { factor: opts.output_multiplier / cap, cap: Some(cap / opts.temperature), slope },
        }
    }

    /// Raw products to logits in place.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(self, s: S, x: &mut [f32]) {
        let factor = s.splat(self.factor);
        match self.cap {
            None if self.factor == 1.0 => {}
            None => math::map(
                s,
                x,
                #[inline(always)]
                |v| s.mul(v, factor),
            ),
            Some(cap) => {
                let cap = s.splat(cap);
                math::map(
                    s,
                    x,
                    #[inline(always)]
                    |v| s.mul(cap, math::tanh(s, s.mul(v, factor))),
                );
            }
        }
    }

    /// (1 − tanh²) of a logit; 1 without a cap.
    fn relative_slope(self, logit: f32) -> f32 {
        self.cap.map_or(1.0, |cap| 1.0 - (logit / cap) * (logit / cap))
    }
}

/// The softmax of a row so far.
#[derive(Debug, Clone)]
pub(super) struct Row {
    label: Option<u32>,
    top_k: usize,
    max: f32,
    /// Σ exp(logit − max)
    sum: f64,
    /// Largest logits: descending, ties by lower id.
    top: Vec<(u32, f32)>,
    label_logit: f32,
}

impl Row {
    pub(super) fn new(label: Option<u32>, top_k: usize) -> Self {
        Self { label, top_k, max: f32::NEG_INFINITY, sum: 0.0, top: Vec::with_capacity(top_k), label_logit: f32::NAN }
    }

    /// Takes the raw products of the tokens from `first` on and leaves exp(logit − max)·(1 − tanh²) in their place:
    /// the gradient of log Σ exp up to a factor. Returns what earlier blocks' results must be multiplied with.
    #[inline(always)]
    pub(super) fn block<S: Simd>(&mut self, s: S, transform: Transform, first: usize, x: &mut [f32]) -> f32 {
        transform.apply(s, x);
        if let Some(label) = self.label
            && (first..first + x.len()).contains(&(label as usize))
        {
            self.label_logit = x[label as usize - first];
        }
        let largest = math::max(s, x);
        if self.top_k > 0 && (self.top.len() < self.top_k || largest > self.top[self.top_k - 1].1) {
            self.collect(s, first, x);
        }
        let mut rescale = 1.0;
        if largest > self.max {
            // exp(-inf) is 0 at the first block.
            rescale = (self.max - largest).exp();
            self.max = largest;
            self.sum *= f64::from(rescale);
        }
        let Some(cap) = transform.cap else {
            self.sum += f64::from(math::exp_shifted_sum(s, x, self.max));
            return rescale;
        };
        let mut logits = [0f32; BLOCK];
        let logits = &mut logits[..x.len()];
        logits.copy_from_slice(x);
        self.sum += f64::from(math::exp_shifted_sum(s, x, self.max));
        let (one, inverse) = (s.splat(1.0), s.splat(1.0 / cap));
        math::map2(
            s,
            logits,
            x,
            #[inline(always)]
            |logit, e| {
                let t = s.mul(logit, inverse);
                s.mul(e, s.sub(one, s.mul(t, t)))
            },
        );
        rescale
    }

    /// Puts a block's logits among the largest.
    #[inline(always)]
    fn collect<S: Simd>(&mut self, s: S, first: usize, x: &[f32]) {
        for (i, group) in x.chunks(LANES).enumerate() {
            let full = self.top.len() == self.top_k;
            if full && math::max(s, group) <= self.top[self.top_k - 1].1 {
                continue;
            }
            for (lane, logit) in group.iter().enumerate() {
                // Ids ascend, so an equal logit comes after those that are there.
                let place = self.top.partition_point(|(_, other)| other >= logit);
                if place < self.top_k && !logit.is_nan() {
                    self.top.truncate(self.top_k - 1);
                    self.top.insert(place, ((first + i * LANES + lane) as u32, *logit));
                }
            }
        }
    }

    /// log Σ exp(logit)
    fn log_sum(&self) -> f64 {
        f64::from(self.max) + self.sum.ln()
    }

    /// log p(label); NaN without a label.
    pub(super) fn label_log_prob(&self) -> f32 {
        (f64::from(self.label_logit) - self.log_sum()) as f32
    }

    /// The most probable tokens with their log-probabilities.
    pub(super) fn top(&self) -> Vec<(u32, f32)> {
        let log_sum = self.log_sum();
        self.top.iter().map(|(id, logit)| (*id, (f64::from(*logit) - log_sum) as f32)).collect()
    }

    /// Factors that turn Σ of the block results times head rows, and the label's head row, into the gradient of
    /// weight·cross-entropy.
    pub(super) fn gradient_factors(&self, transform: Transform, weight: f32) -> (f32, f32) {
        let slope = weight * transform.slope;
        ((f64::from(slope) / self.sum) as f32, -slope * transform.relative_slope(self.label_logit))
    }
}
