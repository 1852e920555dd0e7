//! Frozen target models: what they are, how they are run, what they give to a drafter.

mod architecture;
mod attention;
mod cache;
mod config;
mod decoder;
mod delta_cache;
mod features;
mod gated_delta;
mod gguf_config;
mod gpt_oss;
mod identity;
pub(crate) mod json;
mod llama;
mod load;
mod mlp;
mod moe;
mod mxfp4;
mod open;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
pub(crate) mod rope_config;
mod spec;
mod tensors;

use burn::tensor::{Device, Tensor};
use draftsman_contract::TreeShape;
use draftsman_kernels::Weight;

use crate::error::ModelError;

pub use cache::TargetCache;
pub use config::spec_from_config;
pub use decoder::Decoder;
pub use delta_cache::ROLLBACK_ROWS;
pub use features::document_features;
pub use gguf_config::spec_from_gguf;
pub use identity::{target_identity, weight_sha256};
pub use load::target_tensors;
pub use open::{
    TargetOptions, check_target_files, open_gguf_target, open_target, open_target_streamed, open_target_with,
    read_target_spec,
};
pub use spec::*;

/// The tensors of one decoder layer, for a drafter that starts from them.
pub struct LayerWeights<'a> {
    /// `[num_heads * head_dim, hidden]`
    pub q: &'a Weight,
    /// `[num_kv_heads * head_dim, hidden]`
    pub k: &'a Weight,
    /// `[num_kv_heads * head_dim, hidden]`
    pub v: &'a Weight,
    /// `[hidden, num_heads * head_dim]`
    pub o: &'a Weight,
    /// Norm of the query heads, where there is one, `[head_dim]`.
    pub q_norm: Option<Tensor<1>>,
    /// Norm of the key heads, where there is one, `[head_dim]`.
    pub k_norm: Option<Tensor<1>>,
    /// `[intermediate, hidden]`
    pub gate: &'a Weight,
    /// `[intermediate, hidden]`
    pub up: &'a Weight,
    /// `[hidden, intermediate]`
    pub down: &'a Weight,
    /// Norm before attention, `[hidden]`.
    pub input_norm: Tensor<1>,
    /// Norm before the MLP, `[hidden]`.
    pub post_attention_norm: Tensor<1>,
}

/// One sequence of a forward: new tokens, and the cache of everything before them.
pub struct TargetInput<'a> {
    /// New tokens, at positions `cache.len()..`.
    pub ids: &'a [u32],
    /// Grows by `ids.len()`.
    pub cache: &'a mut TargetCache,
}

/// A draft tree of a forward: its rows, how they hang together, and the cache of everything before the root.
pub struct TreeInput<'a> {
    /// Tokens of the rows: the root's at position `cache.len()`, every other's one after its parent's.
    pub ids: &'a [u32],
    /// Which row follows which.
    pub shape: &'a TreeShape,
    /// Takes nothing else until [`TargetCache::keep`] says which path stays.
    pub cache: &'a mut TargetCache,
}

/// Which rows' logits a forward returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogitRows {
    /// None: the forward stops after the last tapped layer.
    None,
    /// The last row of every input, in batch order.
    Last,
    /// All rows, inputs concatenated.
    All,
    /// These rows of the concatenation, in this order.
    Rows(Vec<usize>),
}

/// What a forward returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Layers whose outputs are returned, in this order.
    pub taps: Vec<usize>,
    /// Rows that get logits.
    pub logits: LogitRows,
}

/// Result of a forward.
pub struct TargetOutput {
    /// `[rows, F * hidden]`: un-normed outputs of the tapped layers, side by side in the order of `taps`; `None`
    /// without taps.
    pub features: Option<Tensor<2>>,
    /// `[chosen rows, vocab]`; `None` with [`LogitRows::None`].
    pub logits: Option<Tensor<2>>,
}

/// Sees named intermediates `[rows, hidden]` of a forward: `embed`, `layer.{i}` (un-normed output), `final_norm` (the
/// rows that get logits).
pub type Observer<'a> = &'a mut dyn FnMut(&str, &Tensor<2>);

/// A frozen model that drafters are trained for.
pub trait Target: Send + Sync {
    /// What it is.
    fn spec(&self) -> &TargetSpec;
    /// Where it runs.
    fn device(&self) -> &Device;
    /// `[vocab, hidden]`
    fn embedding(&self) -> &Weight;
    /// `[vocab, hidden]`; the embedding itself when tied.
    fn head(&self) -> &Weight;
    /// Weight of the norm before the head, `[hidden]`.
    fn final_norm(&self) -> Tensor<1>;
    /// Whether the layers stay in their file and are read once a forward.
    fn is_streamed(&self) -> bool;
    /// SHA-256 over samples of the layers as their files store them, where the target came from files.
    fn layers_sha256(&self) -> Option<&str>;
    /// An empty cache.
    fn new_cache(&self) -> TargetCache;
    /// Tensors of a decoder layer; `None` when out of range, when the layer has other parts than these, or when it is
    /// not in memory.
    fn layer_weights(&self, layer: usize) -> Option<LayerWeights<'_>>;
    /// Runs new tokens of one or more sequences. Rows of all inputs are concatenated for everything but attention,
    /// which sees its own cache only. An error leaves every cache as it was.
    fn forward(
        &self,
        batch: &mut [TargetInput<'_>],
        want: &Want,
        observe: Option<Observer<'_>>,
    ) -> Result<TargetOutput, ModelError>;
    /// As [`Target::forward`] for draft trees: a row sees the cache, its ancestors and itself, so it has the numbers of
    /// its path run alone. Rows of gated delta layers run path by path, each from the state after its parent; of these
    /// states no more are held at a time, and in one layer, than the tree is deep.
    fn forward_trees(
        &self,
        batch: &mut [TreeInput<'_>],
        want: &Want,
        observe: Option<Observer<'_>>,
    ) -> Result<TargetOutput, ModelError>;
}
