//! The drafting contract: how a drafter was trained, as data.

use serde::{Deserialize, Serialize};

use crate::RopeSpec;

/// Version of [`Contract`] that this build reads and writes.
pub const CONTRACT_VERSION: u32 = 1;

/// Everything that must be the same on the side that trains a drafter and on the side that runs it.
///
/// Stored as `draftsman_contract` in the drafter's `config.json`. Reading checks `version` before anything else, then
/// the values ([`Contract::problems`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct Contract {
    /// Version of this structure, [`CONTRACT_VERSION`].
    pub version: u32,
    /// The family of drafter.
    pub algorithm: Algorithm,
    /// Rows of a draft block, the anchor's row included.
    pub block_size: usize,
    /// Row of the target's embedding that stands for a token not yet known.
    pub mask_token_id: u32,
    /// 0-based decoder layers whose un-normed outputs are the features, in concatenation order.
    pub target_layer_ids: Vec<usize>,
    /// Which rows of the document a block sees as context.
    pub context: ContextRule,
    /// Which token each slot of a block predicts.
    pub slots: SlotLayout,
    /// Attention of every drafter layer.
    pub attention: Vec<LayerAttention>,
    /// Position of a document's first token. Context and block share it, so 0 and 1 mean the same to RoPE.
    pub position_origin: i64,
    /// The drafter's rotary embedding.
    pub rope: RopeSpec,
    /// Where the training labels came from.
    pub labels: LabelSource,
    /// Standard deviation of the noise added to the features in training.
    pub feature_noise: f64,
    /// Who computed the features.
    pub features: FeatureOrigin,
    /// The target the drafter was trained for.
    pub target: TargetIdentity,
    /// SHA-256 of the tokenizer file, if known.
    pub tokenizer_sha256: Option<String>,
    /// SHA-256 of the chat template, if known.
    pub chat_template_sha256: Option<String>,
    /// Whether the answers it was trained on begin with a reasoning trace; none = unknown or the model has no such mode.
    pub thinking: Option<ThinkingMode>,
    /// What was not stated by the file this contract was derived from, one sentence per guess.
    pub guesses: Vec<String>,
}

/// The family of drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// DFlash v1: one bidirectional block pass over tapped features.
    Dflash,
}

/// Which rows of its document a block sees as context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextRule {
    /// Rows strictly before the anchor: what decoding has, since the target has not processed the anchor yet.
    BeforeAnchor,
    /// The anchor's own row too. Such training leaks: decoding can't provide that row.
    ThroughAnchor,
}

/// Which token each slot of a block predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotLayout {
    /// Slot k predicts the token at anchor + k; slot 0 holds the anchor and its output is discarded.
    AnchorUnused,
    /// Slot k predicts the token at anchor + 1 + k; slot 0 predicts too.
    Shifted,
}

impl SlotLayout {
    /// The first slot whose output is used.
    pub fn first_slot(self) -> usize {
        match self {
            Self::AnchorUnused => 1,
            Self::Shifted => 0,
        }
    }

    /// Distance from the anchor to the token that `slot` predicts; none for a discarded slot.
    pub fn label_offset(self, slot: usize) -> Option<usize> {
        match self {
            Self::AnchorUnused => (slot > 0).then_some(slot),
            Self::Shifted => Some(slot + 1),
        }
    }

    /// Drafts that a block of `rows` rows makes.
    pub fn drafts(self, rows: usize) -> usize {
        rows.saturating_sub(self.first_slot())
    }
}

/// Attention of one drafter layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerAttention {
    /// Block rows see only block rows at or before themselves.
    pub causal: bool,
    /// A key is visible iff `q_pos - k_pos < window` (the query itself counts) and, if not causal, also
    /// `k_pos - q_pos < window`. None = no limit.
    pub window: Option<usize>,
}

impl LayerAttention {
    /// The whole context and the whole block.
    pub const FULL: Self = Self { causal: false, window: None };

    /// The rule of the published DFlash code: `is_causal` holds for every layer where the config has it; otherwise a
    /// sliding layer is causal inside the block and a full layer is not.
    pub fn published(window: Option<usize>, is_causal: Option<bool>) -> Self {
        Self { causal: is_causal.unwrap_or(window.is_some()), window }
    }
}

/// Where training labels came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelSource {
    /// Tokens that the target itself wrote.
    TargetToken,
    /// Tokens of the data set, written by someone else.
    DataToken,
    /// The target's distribution at each position.
    TargetDistribution,
}

/// Whether answers begin with a reasoning trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingMode {
    /// They do.
    On,
    /// They don't.
    Off,
}

/// Who computed the training features; other engines round differently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureOrigin {
    /// Program and version.
    pub engine: Option<String>,
    /// Compute dtype of the target.
    pub dtype: Option<String>,
    /// Kernel of the linear-attention layers (chunked, recurrent, ...), for hybrid targets.
    pub linear_attention: Option<String>,
}

/// The target a drafter was trained for. None = not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetIdentity {
    /// Name for people.
    pub name: Option<String>,
    /// Revision of the repository it came from.
    pub revision: Option<String>,
    /// SHA-256 of the embedding table.
    pub embedding_sha256: Option<String>,
    /// SHA-256 of the output head (the embedding's when tied).
    pub head_sha256: Option<String>,
    /// SHA-256 over samples of everything between them, as the target's files store it.
    pub layers_sha256: Option<String>,
}

/// Why a contract was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// No `version`, so nothing else can be trusted.
    #[error(
        "the contract has no `version` (a whole number)\nhint: this build writes version {CONTRACT_VERSION}; \
         remove the contract to have it derived from the published keys"
    )]
    NoVersion,
    /// A version this build does not know.
    #[error(
        "contract version {found} is not known, this build reads version {CONTRACT_VERSION}\n\
         hint: the drafter was made by another version of Draftsman"
    )]
    UnknownVersion {
        /// What the file says.
        found: String,
    },
    /// A missing, unknown or mistyped field.
    #[error("contract: {0}")]
    Malformed(String),
    /// Values that can't be.
    #[error("contract: {}", .0.join("; "))]
    Invalid(Vec<String>),
}

impl Contract {
    /// A DFlash contract with the published defaults: context strictly before the anchor, slot 0 unused, positions
    /// from 0, labels written by the target, no feature noise, nothing known about the features' and the target's origin.
    pub fn dflash(
        block_size: usize,
        mask_token_id: u32,
        target_layer_ids: Vec<usize>,
        attention: Vec<LayerAttention>,
        rope: RopeSpec,
    ) -> Self {
        Self {
            version: CONTRACT_VERSION,
            algorithm: Algorithm::Dflash,
            block_size,
            mask_token_id,
            target_layer_ids,
            context: ContextRule::BeforeAnchor,
            slots: SlotLayout::AnchorUnused,
            attention,
            position_origin: 0,
            rope,
            labels: LabelSource::TargetToken,
            feature_noise: 0.0,
            features: FeatureOrigin::default(),
            target: TargetIdentity::default(),
            tokenizer_sha256: None,
            chat_template_sha256: None,
            thinking: None,
            guesses: Vec::new(),
        }
    }

    /// What is wrong with the values, one sentence per problem (empty = nothing).
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.block_size == 0 {
            problems.push("block_size is 0, expected at least 1".to_owned());
        }
        if self.target_layer_ids.is_empty() {
            problems.push("target_layer_ids is empty, expected at least one layer".to_owned());
        }
        for (index, id) in self.target_layer_ids.iter().enumerate() {
            if self.target_layer_ids[..index].contains(id) {
                problems.push(format!("target_layer_ids names layer {id} twice"));
            }
        }
        if self.attention.is_empty() {
            problems.push("attention is empty, expected one entry for every drafter layer".to_owned());
        }
        for (layer, attention) in self.attention.iter().enumerate() {
            if attention.window == Some(0) {
                problems.push(format!("attention[{layer}].window is 0, expected at least 1 (the query itself counts)"));
            }
        }
        if !(0..=i64::from(u16::MAX)).contains(&self.position_origin) {
            problems.push(format!("position_origin is {}, expected 0 to {}", self.position_origin, u16::MAX));
        }
        if !(self.feature_noise.is_finite() && self.feature_noise >= 0.0) {
            problems.push(format!("feature_noise is {}, expected a finite number from 0", self.feature_noise));
        }
        problems.extend(self.rope.problems());
        problems
    }
}

impl TryFrom<serde_json::Value> for Contract {
    type Error = ContractError;

    /// The version is looked at before any other field, so that a newer contract is refused for being newer and not
    /// for the first field this build doesn't know.
    fn try_from(value: serde_json::Value) -> Result<Self, ContractError> {
        let version = value.get("version").ok_or(ContractError::NoVersion)?;
        if version.as_u64() != Some(u64::from(CONTRACT_VERSION)) {
            return Err(ContractError::UnknownVersion { found: version.to_string() });
        }
        let fields: Fields = serde_json::from_value(value).map_err(|e| ContractError::Malformed(e.to_string()))?;
        let contract = Self::from(fields);
        let problems = contract.problems();
        if problems.is_empty() { Ok(contract) } else { Err(ContractError::Invalid(problems)) }
    }
}

/// The fields of version 1 as they stand in a file: what serde derives, without the checks around it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    version: u32,
    algorithm: Algorithm,
    block_size: usize,
    mask_token_id: u32,
    target_layer_ids: Vec<usize>,
    context: ContextRule,
    slots: SlotLayout,
    attention: Vec<LayerAttention>,
    #[serde(default)]
    position_origin: i64,
    rope: RopeSpec,
    labels: LabelSource,
    #[serde(default)]
    feature_noise: f64,
    #[serde(default)]
    features: FeatureOrigin,
    #[serde(default)]
    target: TargetIdentity,
    #[serde(default)]
    tokenizer_sha256: Option<String>,
    #[serde(default)]
    chat_template_sha256: Option<String>,
    #[serde(default)]
    thinking: Option<ThinkingMode>,
    #[serde(default)]
    guesses: Vec<String>,
}

impl From<Fields> for Contract {
    fn from(fields: Fields) -> Self {
        Self {
            version: fields.version,
            algorithm: fields.algorithm,
            block_size: fields.block_size,
            mask_token_id: fields.mask_token_id,
            target_layer_ids: fields.target_layer_ids,
            context: fields.context,
            slots: fields.slots,
            attention: fields.attention,
            position_origin: fields.position_origin,
            rope: fields.rope,
            labels: fields.labels,
            feature_noise: fields.feature_noise,
            features: fields.features,
            target: fields.target,
            tokenizer_sha256: fields.tokenizer_sha256,
            chat_template_sha256: fields.chat_template_sha256,
            thinking: fields.thinking,
            guesses: fields.guesses,
        }
    }
}
