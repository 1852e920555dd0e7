//! AdamW by tensor name, and clipping by the global gradient norm.
//!
//! burn's optimizer keys its state by parameter ids, which are drawn anew in every process, and clips each
//! tensor by its own norm. Here the state is keyed by published tensor names, so that a checkpoint resumes
//! anywhere, and the norm is over all tensors in a fixed order, so that 1 and 2 threads give the same bits.

use std::collections::BTreeMap;

use rayon::prelude::*;

/// Elements handled by one task. Fixed, so that sums never depend on the number of threads.
const CHUNK: usize = 1 << 15;

/// Constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWOptions {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, for matrices only: norm weights are scales around their own value, not around 0.
    pub weight_decay: f64,
}

/// First and second moment of one tensor, in its element order.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Running mean of the gradient.
    pub first: Vec<f32>,
    /// Running mean of its square.
    pub second: Vec<f32>,
}

/// AdamW with decoupled weight decay, f32 state.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    options: AdamWOptions,
    updates: u64,
    moments: BTreeMap<String, Moments>,
}

/// The factors of one update that are equal for all tensors.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// Every gradient element is multiplied by this first (1 / denominator, and clipping).
    pub gradient_scale: f32,
    /// Learning rate.
    pub learning_rate: f64,
}

impl AdamW {
    /// An optimizer that has seen nothing.
    #[must_use]
    pub fn new(options: AdamWOptions) -> Self {
        Self { options, updates: 0, moments: BTreeMap::new() }
    }

    /// An optimizer with the state of a checkpoint.
    #[must_use]
    pub fn with_state(options: AdamWOptions, updates: u64, moments: BTreeMap<String, Moments>) -> Self {
        Self { options, updates, moments }
    }

    /// Completed updates.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// State by tensor name.
    #[must_use]
    pub fn moments(&self) -> &BTreeMap<String, Moments> {
        &self.moments
    }

    /// Counts one update; call before [`AdamW::apply`] of its tensors.
    pub fn begin_update(&mut self) {
        self.updates += 1;
    }

    /// Updates one tensor in place. `parameter` and `gradient` have the elements of `shape`.
    pub fn apply(&mut self, name: &str, shape: &[usize], parameter: &mut [f32], gradient: &[f32], update: Update) {
        let AdamWOptions { beta1, beta2, epsilon, weight_decay } = self.options;
        let state = self.moments.entry(name.to_owned()).or_insert_with(|| Moments {
            shape: shape.to_vec(),
            first: vec![0.0; parameter.len()],
            second: vec![0.0; parameter.len()],
        });
        let steps = self.updates.max(1) as f64;
        let step_size = (update.learning_rate / (1.0 - beta1.powf(steps))) as f32;
        let second_root = (1.0 - beta2.powf(steps)).sqrt() as f32;
        let decay = if shape.len() >= 2 { (1.0 - update.learning_rate * weight_decay) as f32 } else { 1.0 };
        let (keep1, new1) = (beta1 as f32, (1.0 - beta1) as f32);
        let (keep2, new2) = (beta2 as f32, (1.0 - beta2) as f32);
        let (epsilon, scale) = (epsilon as f32, update.gradient_scale);
        parameter
            .par_chunks_mut(CHUNK)
            .zip(gradient.par_chunks(CHUNK))
            .zip(state.first.par_chunks_mut(CHUNK))
            .zip(state.second.par_chunks_mut(CHUNK))
            .for_each(|(((parameter, gradient), first), second)| {
                for (((p, g), m), v) in parameter.iter_mut().zip(gradient).zip(first).zip(second) {
                    let g = g * scale;
                    *m = keep1 * *m + new1 * g;
                    *v = keep2 * *v + new2 * (g * g);
                    *p = *p * decay - step_size * (*m / (v.sqrt() / second_root + epsilon));
                }
            });
    }
}

/// Square root of the sum of squares over all `tensors`, in f64.
///
/// Each tensor is cut into fixed chunks, whose sums are combined one after the other: same bits for any number of threads.
#[must_use]
pub fn global_norm<'a>(tensors: impl IntoIterator<Item = &'a [f32]>) -> f64 {
    let mut total = 0.0;
    for tensor in tensors {
        let sums: Vec<f64> = tensor.par_chunks(CHUNK).map(sum_of_squares).collect();
        for sum in sums {
            total += sum;
        }
    }
    total.sqrt()
}

fn sum_of_squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    let (whole, rest) = values.as_chunks::<8>();
    for eight in whole {
        for (lane, value) in lanes.iter_mut().zip(eight) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(*value) * f64::from(*value);
    }
    lanes.iter().sum()
}

/// Factor that brings a gradient of norm `norm` down to at most `clip` (as PyTorch: clip / (norm + 1e-6), never above 1).
/// A `clip` of 0 or less switches clipping off.
#[must_use]
pub fn clip_factor(norm: f64, clip: f64) -> f64 {
    if clip <= 0.0 { 1.0 } else { (clip / (norm + 1e-6)).min(1.0) }
}

/// A copy made by all threads: the time goes into touching new pages, not into copying.
pub(crate) fn parallel_copy(values: &[f32]) -> Vec<f32> {
    let mut copy = vec![0.0; values.len()];
    copy.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK)).for_each(|(copy, values)| copy.copy_from_slice(values));
    copy
}
