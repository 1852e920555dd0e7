//! Results as plain data: names carry their unit, and every number says which statistic it is.

use draftsman_contract::{Interval, ThinkingMode};
use draftsman_data::LoopRule;
use serde::{Deserialize, Serialize};

use crate::{FailedPrompt, Lossless, PositionBand, WhatIf};

/// Version of [`EvalReport`] as JSON. A key may be added under the same version; none is taken away or changes its meaning.
pub const REPORT_VERSION: u32 = 3;

/// What every walked number is a mean over.
pub(crate) const WALKED: &str = "walked anchors (first answer token, then anchor + accepted + 1)";

/// The result of evaluating several proposers on the same prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalReport {
    /// [`REPORT_VERSION`].
    pub report_version: u32,
    /// Name of the target.
    pub target: String,
    /// Hash of its layers, where its file was hashed.
    pub target_layers_sha256: Option<String>,
    /// Which statistic the acceptance numbers are.
    pub statistic: &'static str,
    /// `live` or `replay`.
    pub mode: &'static str,
    /// Questions answered; a conversation of two counts twice.
    pub prompts: usize,
    /// Questions that were not reached because the evaluation was interrupted.
    pub unasked: usize,
    /// Questions that could not be answered, and why. No number counts them.
    pub failed: Vec<FailedPrompt>,
    /// Budget of every answer.
    pub max_new_tokens: usize,
    /// Most verify passes of a speculative answer, where limited.
    pub max_blocks: Option<usize>,
    /// 0 = greedy.
    pub temperature: f32,
    /// Tokens that may be drawn; 0 = all.
    pub top_k: usize,
    /// Share of the probability that may be drawn; 1 = all.
    pub top_p: f32,
    /// Seed of the sampling.
    pub seed: u64,
    /// Whether the chat template was told to let the target think; absent where it was told nothing.
    pub thinking: Option<ThinkingMode>,
    /// What counts as a loop.
    pub loop_rule: LoopRule,
    /// Answers of the target in which a loop begins.
    pub looping_answers: u64,
    /// The target alone (`none`). Absent in a replay, which does not decode.
    pub plain: Option<ProposerReport>,
    /// Every proposer, in the order given.
    pub proposers: Vec<ProposerReport>,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProposerReport {
    /// `none`, `ngram`, a drafter, `ngram+drafter`.
    pub name: String,
    /// Most tokens of a verified block, anchor included.
    pub block_size: usize,
    /// The headline: tokens outside loops.
    pub outside_loops: WalkedReport,
    /// All tokens.
    pub all_tokens: WalkedReport,
    /// Passes that began inside a loop.
    pub inside_loops: WalkedReport,
    /// The headline by where the anchor stands in prompt + answer.
    pub by_position: Vec<PositionBand>,
    /// The headline by suite, and by the suite's categories.
    pub by_group: Vec<GroupReport>,
    /// What other ways to draft would have brought at the same anchors; absent unless asked for.
    pub what_if: Option<WhatIf>,
    /// Times; absent in a replay.
    pub speed: Option<SpeedReport>,
    /// tokens/s outside loops over plain decoding's in the same run.
    pub decode_speedup_outside_loops: Option<f64>,
    /// tokens/s over all tokens over plain decoding's in the same run.
    pub decode_speedup_all_tokens: Option<f64>,
    /// Whether the answers are the target's own; absent for the target itself and in a replay.
    pub lossless: Option<Lossless>,
    /// The counts behind the headline, prompt by prompt.
    pub per_prompt: Vec<PromptCounts>,
}

/// Walked acceptance of one answer, outside loops and in all. acceptance_length is (accepted_drafts + cycles) / cycles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptCounts {
    /// Suite of the prompt.
    pub suite: String,
    /// What kind of prompt the suite calls it.
    pub category: Option<String>,
    /// Name of the prompt.
    pub id: String,
    /// The beginning of a hash of the prompt's tokens: the same name may hide another prompt.
    pub prompt_sha256: String,
    /// Verify passes outside loops.
    pub cycles_outside_loops: u64,
    /// Drafts they accepted.
    pub accepted_drafts_outside_loops: u64,
    /// Verify passes.
    pub cycles: u64,
    /// Drafts they accepted.
    pub accepted_drafts: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub answer_tokens: u64,
    /// Where in the answer a loop begins.
    pub loop_start: Option<u64>,
    /// Seconds of decoding; absent in a replay.
    pub decode_s: Option<f64>,
}

/// The headline over a part of the prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupReport {
    /// The suite.
    pub suite: String,
    /// One of its categories; absent for the whole suite.
    pub category: Option<String>,
    /// Answers with at least one pass outside loops.
    pub answers_with_cycles: usize,
    /// Verify passes outside loops.
    pub cycles: u64,
    /// As in [`WalkedReport`].
    pub acceptance_length_micro: Option<f64>,
    /// As in [`WalkedReport`].
    pub acceptance_length_macro: Option<f64>,
    /// As in [`WalkedReport`].
    pub acceptance_length_micro_interval_95: Option<Interval>,
    /// tokens/s of decoding outside loops; absent in a replay.
    pub decode_tokens_per_s: Option<f64>,
    /// The same over plain decoding's in the same run.
    pub decode_speedup: Option<f64>,
}

/// Walked acceptance. Absent values mean that no cycle ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WalkedReport {
    /// Tokens per verify pass (accepted drafts + 1), pooled over all passes.
    pub acceptance_length_micro: Option<f64>,
    /// Mean over answers of each one's tokens per verify pass.
    pub acceptance_length_macro: Option<f64>,
    /// 95 % bootstrap interval of the micro value over answers.
    pub acceptance_length_micro_interval_95: Option<Interval>,
    /// Share of passes that accepted at least the 1st, 2nd, ... draft.
    pub accepted_share_at_slot: Vec<f64>,
    /// Share of the passes that accepted the draft before it that also accepted the 1st, 2nd, ... draft. A draft that was
    /// not made, or was cut off with the answer, counts as refused.
    pub conditional_accepted_share_at_slot: Vec<f64>,
    /// Passes by accepted drafts: 0, 1, ...
    pub cycles_by_accepted_drafts: Vec<u64>,
    /// Verify passes.
    pub cycles: u64,
    /// Tokens these passes committed.
    pub decoded_tokens: u64,
    /// Answers with at least one pass.
    pub answers_with_cycles: usize,
}

/// Tokens and seconds of one part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Speed {
    /// Tokens made or read.
    pub tokens: u64,
    /// Seconds they took.
    pub seconds: f64,
    /// Their ratio; absent without tokens or time.
    pub tokens_per_s: Option<f64>,
}

/// Times of a proposer. Decoding starts after the first token; prompt reading is apart.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct SpeedReport {
    /// Decoding outside loops. A pass that reaches into a loop counts with its share of tokens.
    pub decode_outside_loops: Speed,
    /// Decoding of all tokens.
    pub decode_all_tokens: Speed,
    /// Reading the prompts, the proposer's reading of their features included.
    pub prefill: Speed,
    /// Milliseconds for an output token outside loops (TPOT), the prompt's excluded.
    pub tpot_ms_outside_loops: Option<f64>,
    /// The same over all tokens.
    pub tpot_ms_all_tokens: Option<f64>,
    /// Where the time of a mean verify pass goes; absent without passes.
    pub cycle: Option<CycleSpeed>,
}

/// Milliseconds of a mean verify pass, over all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct CycleSpeed {
    /// Drafting, the proposer's reading of the accepted features included.
    pub draft_ms: f64,
    /// The target's pass.
    pub verify_ms: f64,
    /// Choosing tokens, cutting caches.
    pub other_ms: f64,
}
