//! Target models, drafters and their weight files.
//!
//! `hub` finds models by name, `weights` reads files from elsewhere without trusting them, `target` runs the frozen model
//! (taps after any layer, caches that roll back), `drafter` holds the trained part. Nothing here knows of training or
//! decoding.

pub mod drafter;
mod error;
pub mod hub;
pub mod target;
pub mod weights;

pub use drafter::*;
pub use error::{ModelError, Problems};
pub use hub::*;
pub use target::*;
pub use weights::{
    GgufFile, GgufMetadata, GgufValue, NameMap, RenamedSource, SafetensorsSource, TensorExpectation, TorchSource,
    WeightSource, check_tensors,
};
