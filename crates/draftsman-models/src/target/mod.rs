//! Frozen target models: what they are, how they are run, what they give to a drafter.

mod cache;
pub(crate) mod config;
mod gguf_config;
mod identity;
pub(crate) mod json;
mod llama;
mod llama_load;
mod open;

use burn::tensor::{Device, Tensor};
use draftsman_contract::RopeSpec;
use draftsman_kernels::Weight;

use crate::error::ModelError;

pub use cache::TargetCache;
pub use config::spec_from_config;
pub use gguf_config::spec_from_gguf;
pub use identity::{target_identity, weight_sha256};
pub use llama::Llama;
pub use open::{open_gguf_target, open_target, read_target_spec};

/// What a target is, read from its own configuration; the fields that a drafter is checked against.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetSpec {
    /// Architecture family, e.g. `llama`.
    pub architecture: String,
    /// Decoder layers; taps are `0..num_layers`.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding (may exceed the tokenizer's ids).
    pub vocab_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Dimensions of a head (not always `hidden_size / num_heads`).
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// Rotary embedding.
    pub rope: RopeSpec,
    /// Longest sequence the model was made for.
    pub max_positions: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// Ids that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Id that starts a text, where there is one.
    pub bos_token_id: Option<u32>,
    /// Keys of the configuration that were not read (listed by `inspect`; keys known to change the mathematics are
    /// errors instead).
    pub unread_keys: Vec<String>,
}

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
    /// An empty cache.
    fn new_cache(&self) -> TargetCache;
    /// Tensors of a decoder layer; `None` when out of range or when the layer has no such parts.
    fn layer_weights(&self, layer: usize) -> Option<LayerWeights<'_>>;
    /// Runs new tokens of one or more sequences. Rows of all inputs are concatenated for everything but attention,
    /// which sees its own cache only. Inputs are checked before any cache changes.
    fn forward(
        &self,
        batch: &mut [TargetInput<'_>],
        want: &Want,
        observe: Option<Observer<'_>>,
    ) -> Result<TargetOutput, ModelError>;
}
