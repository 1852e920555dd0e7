//! What a drafter *means*, with no tensors and no files in it: plain integers, enums and serde structs.
//!
//! * [`Contract`]: the versioned statement of how a drafter was trained, stored in its `config.json`.
//! * [`BlockLayout`]: from documents, loss mask and anchors to context ranges, positions, labels, loss weights and the
//!   visible keys of every row. Training, evaluation, decoding and diagnosis all call it; nobody else computes a
//!   position or a mask, and kernels take only [`Visible`].
//! * [`DraftTree`], [`best_first`] and [`TreeShape`]: draft trees, their order and ties, positions and visible keys of
//!   their rows.
//! * [`AcceptanceStats`], [`chain`], [`tree_accepted`], [`top_k_streak`]: accepted drafts and their statistics.
//! * [`CounterRng`]: random numbers as a function of (seed, stream, counter), so that resuming needs no generator state.

mod acceptance;
mod contract;
mod layout;
mod rng;
mod rope;
mod stats;
mod top_k;
mod tree;
mod tree_shape;
mod visible;

pub use acceptance::*;
pub use contract::*;
pub use layout::*;
pub use rng::*;
pub use rope::*;
pub use stats::*;
pub use top_k::*;
pub use tree::*;
pub use tree_shape::*;
pub use visible::*;
