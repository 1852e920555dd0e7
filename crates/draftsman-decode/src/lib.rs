//! Decoding: plain, speculative (propose, verify, accept, commit) and batched.
//!
//! One meaning of a cycle lives here ([`generate`]) and evaluation reads it; positions, masks and acceptance come from
//! `draftsman-contract`. On the CPU the kernels below are row-invariant, so speculative output equals plain output and
//! batched output equals single output by construction, not by luck.

mod block;
mod drafter;
mod error;
mod generate;
mod lockstep;
mod ngram;
mod proposer;
mod rows;
mod sampling;

pub use block::Block;
pub use drafter::DflashProposer;
pub use error::DecodeError;
pub use generate::{Cycle, CycleTime, Finish, Generation, committed_tokens, generate, generate_streaming};
pub use lockstep::{Answer, LockstepHooks, LockstepStats, lockstep};
pub use ngram::NgramProposer;
pub use proposer::{LookupThenDraft, Proposer};
pub use rows::LogitTable;
pub use sampling::{GenerateOptions, Pick, Sampler};
