//! The numbers of the model and of its training.

use draftsman_train::{AdamWOptions, Course, Schedule};

pub(crate) const SEED: u64 = 20_261_130;

pub(crate) const VOCAB: usize = 2048;
pub(crate) const HIDDEN: usize = 160;
pub(crate) const LAYERS: usize = 6;
/// Every third layer has full attention.
pub(crate) const FULL_ATTENTION_INTERVAL: usize = 3;
pub(crate) const INTERMEDIATE: usize = 384;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 32;
/// Share of a head that is rotated.
pub(crate) const PARTIAL_ROTARY: f64 = 0.5;
pub(crate) const ROPE_THETA: f64 = 10_000.0;
pub(crate) const DELTA_KEY_HEADS: usize = 2;
/// Three to a key head, as in Qwen3.6-27B.
pub(crate) const DELTA_VALUE_HEADS: usize = 6;
pub(crate) const DELTA_KEY_DIM: usize = 32;
pub(crate) const DELTA_VALUE_DIM: usize = 32;
pub(crate) const CONV_WIDTH: usize = 4;
pub(crate) const EPS: f64 = 1e-6;
pub(crate) const MAX_POSITIONS: usize = 1024;

/// Documents that the tokenizer is trained on.
pub(crate) const TOKENIZER_DOCUMENTS: u64 = 24_000;
/// Longer documents are left out.
pub(crate) const MAX_DOCUMENT: usize = 224;
/// Tokens of a batch at most.
pub(crate) const BATCH_TOKENS: usize = 1536;
pub(crate) const STEPS: usize = 4600;
/// Steps over which the learning rate falls to its floor at the end.
pub(crate) const TAIL_STEPS: usize = 1600;
pub(crate) const CLIP: f64 = 1.0;
/// Steps between checkpoints.
pub(crate) const SAVE_EVERY: usize = 100;
/// Steps between lines of the log.
pub(crate) const LOG_EVERY: usize = 20;
/// Steps whose losses are committed.
pub(crate) const COMMITTED_LOSSES: usize = 100;

pub(crate) const OPTIMIZER: AdamWOptions = AdamWOptions { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };

/// Warmup, the peak, and a straight line down over the last steps: unlike a cosine it does not depend on the length of
/// the run before its tail, so that a run can be cut short or made longer without starting again.
pub(crate) fn schedule() -> Schedule {
    Schedule {
        course: Course::LinearTail,
        peak: 3e-3,
        warmup_steps: 100,
        steps: STEPS,
        tail_share: TAIL_STEPS as f64 / STEPS as f64,
        floor_share: 0.03,
    }
}

/// Whether layer `index` has full attention.
pub(crate) fn is_full(index: usize) -> bool {
    (index + 1).is_multiple_of(FULL_ATTENTION_INTERVAL)
}

pub(crate) const KEY_WIDTH: usize = DELTA_KEY_HEADS * DELTA_KEY_DIM;
pub(crate) const VALUE_WIDTH: usize = DELTA_VALUE_HEADS * DELTA_VALUE_DIM;
pub(crate) const CHANNELS: usize = 2 * KEY_WIDTH + VALUE_WIDTH;
