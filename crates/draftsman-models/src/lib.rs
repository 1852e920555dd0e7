//! Target models, drafters and their weight files.
//!
//! `weights` reads files from elsewhere without trusting them, `target` runs the frozen model (taps after any layer,
//! caches that roll back), `drafter` holds the trained part. Nothing here knows of training or decoding.

pub mod drafter;
mod error;
pub mod target;
pub mod weights;

pub use drafter::*;
pub use error::{ModelError, Problems};
pub use target::*;
pub use weights::{
    GgufFile, GgufMetadata, GgufValue, SafetensorsSource, TensorExpectation, TorchSource, WeightSource, check_tensors,
};
