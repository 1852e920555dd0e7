//! Weight files: safetensors, GGUF and torch checkpoints behind one [`WeightSource`], under the names a model
//! knows.
//!
//! Files come from elsewhere, so nothing in them is believed before it is checked against the number of bytes the
//! file really has; no count or length from a file leads to an allocation larger than the file.

mod convert;
mod gguf;
mod index;
mod rename;
mod safetensors;
mod source;
mod torch;
mod truncation;

pub use gguf::{GgufFile, GgufMetadata, GgufTensorInfo, GgufType, GgufValue};
#[cfg(feature = "download")]
pub(crate) use index::read_index;
pub use rename::{NameMap, RenamedSource};
pub use safetensors::SafetensorsSource;
pub(crate) use source::file_prefix;
pub use source::{TensorExpectation, WeightSource, check_memory, check_tensors};
pub use torch::TorchSource;
