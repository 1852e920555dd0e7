//! What can go wrong below the models.

use std::path::PathBuf;

/// An error of this crate. Every message says what was expected and what came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A word that is no device.
    #[error("unknown device `{0}`: expected `flex` (CPU) or `wgpu` (GPU through Vulkan)")]
    UnknownDevice(String),
    /// A word that is no weight type.
    #[error("unknown weight type `{0}`: expected `f32`, `bf16` or `f16`")]
    UnknownDtype(String),
    /// A word that is no form of the gated delta rule.
    #[error("unknown delta rule `{0}`: expected `recurrent`, `chunked`, `chunked:ROWS` or `fla-rounding`")]
    UnknownDeltaRule(String),
    /// The device was left out of this build.
    #[error("this build has no `{device}` device; hint: build with `--features {feature}`")]
    DeviceNotBuilt {
        /// The device asked for.
        device: &'static str,
        /// The cargo feature that brings it.
        feature: &'static str,
    },
    /// The device is built in, but does not work on this machine.
    #[error("the `{device}` device does not start: {reason}; hint: {hint}")]
    DeviceUnavailable {
        /// The device asked for.
        device: &'static str,
        /// What was seen.
        reason: String,
        /// What helps.
        hint: &'static str,
    },
    /// The device would compute garbage with this type.
    #[error("the device does not support {dtype} weights; hint: use f32")]
    DtypeUnsupported {
        /// The type asked for.
        dtype: &'static str,
    },
    /// Values and shape disagree.
    #[error("{values} values do not fill a weight of shape [{}, {}] (out, in)", shape[0], shape[1])]
    WeightLength {
        /// Values given.
        values: usize,
        /// Shape asked for.
        shape: [usize; 2],
    },
    /// A file could not be opened or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A mapped file has become shorter than it was when it was opened.
    #[error("{}: the file had {mapped} bytes when it was opened and has {now} now; hint: don't change model files in use", path.display())]
    FileShrunk {
        /// The file.
        path: PathBuf,
        /// Length when mapped.
        mapped: u64,
        /// Length now.
        now: u64,
    },
    /// A weight does not lie inside its file, or not at an address its type can be read from.
    #[error("{}: a weight of {bytes} bytes at offset {offset} {problem}", path.display())]
    MappedRange {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: usize,
        /// Length.
        bytes: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}
