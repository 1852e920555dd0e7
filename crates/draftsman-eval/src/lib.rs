//! Evaluation of drafters: suites of prompts, the walk of live decoding, the same walk from one teacher-forced pass, and
//! validation at random anchors.
//!
//! Two statistics never share a name here. A *walked* number is a mean over the anchors that decoding visits; a *random
//! anchor* number is a mean over anchors drawn from finished answers. Every report says which it is.

mod anchored;
mod bands;
mod compare;
mod error;
pub mod html;
mod lossless;
mod moments;
mod own_answers;
mod prepared_walk;
mod prompt;
mod published;
mod replay;
mod report;
mod suite;
mod summary;
mod tensor_stats;
mod walk;
mod walked;
mod what_if;

pub use anchored::{AnchoredReport, PreparedValidation, VALIDATION_VERSION, Validation, ValidationDocument, validate};
pub use bands::{Bands, PositionBand};
pub use compare::{Comparison, SavedLine, SavedReport, compare};
pub use error::EvalError;
pub use lossless::{Difference, Lossless, Verdict, compare_answers};
pub use moments::Moments;
pub use own_answers::{ForeignToken, first_foreign_token};
pub use prepared_walk::{PreparedWalk, WalkAnswer, WalkSet};
pub use prompt::EvalPrompt;
pub use published::{PublishedRow, PublishedTable, published_for, published_tables};
pub use replay::{CycleDifference, ReplayRun, ReplayWalk, TargetAnswer, first_cycle_difference, replay, replay_walk};
pub use report::{
    CycleSpeed, EvalReport, GroupReport, PromptCounts, ProposerReport, REPORT_VERSION, Speed, SpeedReport, WalkedReport,
};
pub use suite::{
    PromptSource, Selection, Suite, SuitePrompt, alpaca_prompt, humaneval_prompt, load_suite, maths_prompt, read_suite,
};
pub use summary::{Settings, plain_report, summarise, summarise_replay};
pub use tensor_stats::{
    DrafterStats, STATS_VERSION, StatsDocument, StatsReport, TensorStats, first_non_finite, tensor_stats,
};
pub use walk::{FailedPrompt, LiveWalk, PromptRun, WalkHooks, walk_live};
pub use walked::Walked;
pub use what_if::{WhatIf, WhatIfBudget, what_if};
