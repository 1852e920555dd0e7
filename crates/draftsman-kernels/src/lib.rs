//! Tensor operations of Draftsman.
//!
//! Every operation has a *reference* written with burn's own differentiable primitives (any device, oracle of the
//! tests) and a hand-written CPU path whose output rows are bit-identical whatever rows, chunks or threads
//! accompany them (ARCHITECTURE.md, "Row invariance").
#![expect(unsafe_code, reason = "the one crate that may: SIMD and mapped files; each block says why it is sound")]

mod attention;
mod causal_conv;
mod cross_entropy;
mod device;
mod error;
mod flex;
mod gated_delta;
mod kv_cache;
mod linear;
mod mapped;
mod memory;
mod rms_norm;
mod rope;
mod simd;
mod swiglu;
mod weight;

pub use attention::*;
pub use causal_conv::*;
pub use cross_entropy::*;
pub use device::*;
pub use error::*;
pub use gated_delta::*;
pub use kv_cache::*;
pub use linear::*;
pub use mapped::*;
pub use memory::*;
pub use rms_norm::*;
pub use rope::*;
pub use swiglu::*;
pub use weight::*;
