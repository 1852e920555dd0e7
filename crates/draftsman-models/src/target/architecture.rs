//! The supported architectures. A file each says what is its own; this is what they have to say.

use super::config::Config;
use super::decoder::Layer;
use super::gguf_config::GgufConfig;
use super::spec::TargetSpec;
use super::tensors::Tensors;
use super::{gpt_oss, llama, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe};
use crate::error::ModelError;

/// One supported architecture.
pub(super) struct Architecture {
    /// [`TargetSpec::architecture`].
    pub(super) name: &'static str,
    /// Values of `model_type` in config.json.
    pub(super) model_types: &'static [&'static str],
    /// Names under `architectures` in config.json.
    pub(super) classes: &'static [&'static str],
    /// The language model may stand inside `text_config`.
    pub(super) nested: bool,
    /// Reads config.json; problems are collected there.
    pub(super) read_config: fn(&Config<'_>) -> TargetSpec,
    /// How GGUF files hold it, where they are read.
    pub(super) gguf: Option<Gguf>,
    /// Norm weights of Hugging Face files are stored as w, and 1 + w is meant.
    pub(super) zero_centred_norms: bool,
    /// Reads decoder layer `index`; the names it asks for are the table of tensors.
    pub(super) layer: fn(&TargetSpec, &Tensors<'_>, usize) -> Result<Layer, ModelError>,
    /// Tensors of the file that are rightly not read.
    pub(super) ignored: fn(&TargetSpec, &str) -> bool,
}

/// An architecture in GGUF files.
pub(super) struct Gguf {
    /// `general.architecture`, the prefix of its keys.
    pub(super) name: &'static str,
    /// Completes the spec that the keys common to all give.
    pub(super) read: fn(&GgufConfig<'_>, &mut TargetSpec) -> Result<(), ModelError>,
    /// Names of tensors where they differ from the common ones: stem in Hugging Face files, stem here.
    pub(super) renames: &'static [(&'static str, &'static str)],
}

const ALL: [&Architecture; 7] = [
    &llama::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &qwen3_moe::ARCHITECTURE,
    &qwen3_5::ARCHITECTURE,
    &qwen3_5_moe::ARCHITECTURE,
    &gpt_oss::ARCHITECTURE,
];

impl Architecture {
    pub(super) fn of_model_type(model_type: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|a| a.model_types.contains(&model_type))
    }

    pub(super) fn of_name(name: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|a| a.name == name)
    }

    pub(super) fn of_gguf(name: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|a| a.gguf.as_ref().is_some_and(|gguf| gguf.name == name))
    }

    /// Every supported `model_type`.
    pub(super) fn model_types() -> Vec<&'static str> {
        ALL.iter().flat_map(|a| a.model_types).copied().collect()
    }

    /// Every supported `general.architecture`.
    pub(super) fn gguf_names() -> Vec<&'static str> {
        ALL.iter().filter_map(|a| a.gguf.as_ref()).map(|gguf| gguf.name).collect()
    }
}
