//! The recipe of a run: one TOML file, `section.key=value` overrides, and what is left open filled in from the target.
//!
//! ```toml
//! [drafter]
//! block_size = 8
//! num_hidden_layers = 3
//! mask_token_id = 16
//! init = "target"
//!
//! [train]
//! steps = 3000
//! learning_rate = 1e-3
//! schedule = "linear-tail"
//! ```

mod diff;
mod overrides;
mod read;
mod resolve;

use std::collections::BTreeSet;
use std::path::Path;

use draftsman_contract::HoleRule;
use serde::{Serialize, Serializer};
use toml::Table;

pub(crate) use self::diff::deciding_lines;
pub use self::diff::{Difference, HARMLESS_KEYS};
use self::read::{Choice, Section, choice_in_recipe, nearest, shown};
pub use self::resolve::default_target_layer_ids;
use crate::error::RecipeError;
use crate::optim::AdamWOptions;
use crate::schedule::{Course, Schedule};

/// Version of the recipe format.
pub const RECIPE_VERSION: u32 = 1;

/// Where the drafter's first weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The target's last layers (see `draftsman_models::drafter::init`).
    Target,
    /// Normal noise.
    Random,
}

/// What the summed loss is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalise {
    /// The sum of the loss weights.
    Weights,
    /// The number of sequences (documents).
    Sequences,
}

/// Attention of one drafter layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerType {
    /// Sees the whole context.
    Full,
    /// Sees `sliding_window` tokens.
    Sliding,
}

impl Choice for Start {
    const ALL: &'static [(&'static str, Self)] = &[("target", Self::Target), ("random", Self::Random)];
}
impl Choice for Normalise {
    const ALL: &'static [(&'static str, Self)] = &[("weights", Self::Weights), ("sequences", Self::Sequences)];
}
impl Choice for LayerType {
    const ALL: &'static [(&'static str, Self)] =
        &[("full_attention", Self::Full), ("sliding_attention", Self::Sliding)];
}
impl Choice for HoleRule {
    const ALL: &'static [(&'static str, Self)] = &[("cut", Self::Cut), ("skip", Self::Skip)];
}
impl Choice for Course {
    const ALL: &'static [(&'static str, Self)] =
        &[("cosine", Self::Cosine), ("linear-tail", Self::LinearTail), ("constant", Self::Constant)];
}
choice_in_recipe!(Start, Normalise, LayerType, HoleRule, Course);

fn word<T: Choice, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.word())
}

fn words<S: Serializer>(value: &Option<Vec<LayerType>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(value.iter().flatten().map(|kind| kind.word()))
}

/// A whole recipe. Keys that are `None` follow the target; [`Recipe::resolve`] fills them in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recipe {
    /// Format of the file.
    pub recipe_version: u32,
    /// The drafter that is built.
    pub drafter: DrafterRecipe,
    /// Which tokens are trained on.
    pub data: DataRecipe,
    /// Target features.
    pub features: FeaturesRecipe,
    /// The training itself.
    pub train: TrainRecipe,
}

/// Section `[drafter]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DrafterRecipe {
    /// Rows of a block: the anchor and `block_size - 1` drafts.
    pub block_size: usize,
    /// Drafter layers.
    pub num_hidden_layers: usize,
    /// 0-based target layers whose outputs the drafter sees; default: the published rule, five taps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_layer_ids: Option<Vec<usize>>,
    /// Token whose embedding fills the slots to be drafted; must not occur in the data.
    pub mask_token_id: u32,
    /// First weights.
    #[serde(serialize_with = "word")]
    pub init: Start,
    /// Attention of each layer; default: all full.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "words")]
    pub layer_types: Option<Vec<LayerType>>,
    /// Window of the sliding layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<usize>,
    /// Whether block rows see only earlier block rows; default: the published rule (sliding layers do, full layers don't).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_causal: Option<bool>,
    /// Width of the MLP; default: the target's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intermediate_size: Option<usize>,
    /// Query heads; default: the target's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_attention_heads: Option<usize>,
    /// Key and value heads; default: the target's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// Width of a head; default: the target's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Epsilon of the norms; default: the target's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rms_norm_eps: Option<f64>,
    /// RoPE base; default: the target's RoPE with its scaling. A value given here means no scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
}

/// Section `[data]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataRecipe {
    /// Documents are cut to this many tokens; default: the target's context, where a longer document is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// Documents held out for validation, by count ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_count: Option<usize>,
    /// ... or by share of all documents (default 0.02 when neither is given).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_share: Option<f64>,
    /// Random anchors drawn once in each validation document.
    pub validation_anchors_per_sequence: usize,
    /// Held-out prompts that the target answers at the start and every validation walks; 0: none.
    pub walk_prompts: usize,
    /// Most tokens of such an answer.
    pub walk_new_tokens: usize,
}

/// Section `[features]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FeaturesRecipe {
    /// Memory for kept target features, GiB. What does not fit is computed anew every epoch.
    pub memory_gib: f64,
}

/// Section `[train]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainRecipe {
    /// Optimizer updates of the whole run.
    pub steps: usize,
    /// Documents in one forward pass.
    pub sequences_per_step: usize,
    /// Forward passes in one optimizer update.
    pub accumulation: usize,
    /// Random anchors in each document, redrawn every epoch.
    pub anchors_per_sequence: usize,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Updates until it is reached.
    pub warmup_steps: usize,
    /// Course after the warmup.
    #[serde(serialize_with = "word")]
    pub schedule: Course,
    /// Share of the steps that the linear tail takes.
    pub tail_share: f64,
    /// Lowest learning rate, as a share of the highest.
    pub floor_share: f64,
    /// AdamW's decays.
    pub betas: Vec<f64>,
    /// AdamW's epsilon.
    pub epsilon: f64,
    /// Decoupled weight decay, matrices only.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 switches clipping off.
    pub clip_norm: f64,
    /// Decay of the loss over the slots; default by block size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// What the summed loss is divided by.
    #[serde(serialize_with = "word")]
    pub normalise: Normalise,
    /// What a hole in the loss mask does to a block.
    #[serde(serialize_with = "word")]
    pub holes: HoleRule,
    /// Seed of everything random.
    pub seed: u64,
    /// Updates between two log lines.
    pub log_every: usize,
    /// Updates between two validations; 0: never.
    pub validate_every: usize,
    /// Updates between two checkpoints; 0: only at the end.
    pub checkpoint_every: usize,
    /// Checkpoints kept besides the best.
    pub keep_checkpoints: usize,
}

/// Share of the documents held out when a recipe says nothing.
pub(crate) const VALIDATION_SHARE: f64 = 0.02;

/// The sections, in file order.
const SECTIONS: &[&str] = &["drafter", "data", "features", "train"];

/// The keys of each section, for suggestions; a test holds them against what [`Recipe::parse`] asks for.
const KEYS: &[(&str, &[&str])] = &[
    (
        "drafter",
        &[
            "block_size",
            "num_hidden_layers",
            "target_layer_ids",
            "mask_token_id",
            "init",
            "layer_types",
            "sliding_window",
            "is_causal",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "rope_theta",
        ],
    ),
    (
        "data",
        &[
            "max_length",
            "validation_count",
            "validation_share",
            "validation_anchors_per_sequence",
            "walk_prompts",
            "walk_new_tokens",
        ],
    ),
    ("features", &["memory_gib"]),
    (
        "train",
        &[
            "steps",
            "sequences_per_step",
            "accumulation",
            "anchors_per_sequence",
            "learning_rate",
            "warmup_steps",
            "schedule",
            "tail_share",
            "floor_share",
            "betas",
            "epsilon",
            "weight_decay",
            "clip_norm",
            "gamma",
            "normalise",
            "holes",
            "seed",
            "log_every",
            "validate_every",
            "checkpoint_every",
            "keep_checkpoints",
        ],
    ),
];

impl Recipe {
    /// Reads a recipe file and lays `section.key=value` overrides over it.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        let source_name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| RecipeError {
            source_name: source_name.clone(),
            problems: vec![format!("cannot read: {error}")],
        })?;
        Self::parse(&text, &source_name, overrides)
    }

    /// Reads a recipe from `text`; `source_name` stands in messages.
    pub fn parse(text: &str, source_name: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        let fail = |problems| RecipeError { source_name: source_name.to_owned(), problems };
        let mut whole: Table =
            toml::from_str(text).map_err(|error| fail(vec![format!("not TOML: {}", error.to_string().trim_end())]))?;
        let mut problems = Vec::new();
        let overridden = overrides::apply(&mut whole, overrides, &mut problems);
        match whole.remove("recipe_version") {
            None => {}
            Some(value) if value.as_integer() == Some(i64::from(RECIPE_VERSION)) => {}
            Some(value) => problems
                .push(format!("recipe_version {} is unknown (this program reads {RECIPE_VERSION})", shown(&value))),
        }
        let recipe = Self {
            recipe_version: RECIPE_VERSION,
            drafter: read_drafter(&mut whole, &overridden, &mut problems),
            data: read_data(&mut whole, &overridden, &mut problems),
            features: read_features(&mut whole, &overridden, &mut problems),
            train: read_train(&mut whole, &overridden, &mut problems),
        };
        for (key, value) in &whole {
            let what = if value.is_table() { format!("section [{key}]") } else { format!("{key} outside a section") };
            problems.push(format!("{what} is unknown{}", nearest(key, SECTIONS.iter().copied())));
        }
        if problems.is_empty() { Ok(recipe) } else { Err(fail(problems)) }
    }

    /// The recipe as TOML; [`Recipe::parse`] reads it back to an equal value.
    pub fn to_toml(&self) -> Result<String, RecipeError> {
        toml::to_string(self).map_err(|error| RecipeError {
            source_name: "to be written".into(),
            problems: vec![format!("cannot be written as TOML: {error}")],
        })
    }

    /// The learning-rate schedule.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule {
            course: self.train.schedule,
            peak: self.train.learning_rate,
            warmup_steps: self.train.warmup_steps,
            steps: self.train.steps,
            tail_share: self.train.tail_share,
            floor_share: self.train.floor_share,
        }
    }

    /// The optimizer's constants.
    #[must_use]
    pub fn adamw(&self) -> AdamWOptions {
        let beta = |index: usize, default| self.train.betas.get(index).copied().unwrap_or(default);
        AdamWOptions {
            beta1: beta(0, 0.9),
            beta2: beta(1, 0.95),
            epsilon: self.train.epsilon,
            weight_decay: self.train.weight_decay,
        }
    }
}

/// Most layers of a drafter, and most of anything that is counted: above it a number is a slip, and memory for it would
/// be asked for.
const MAX_LAYERS: usize = 256;
const MAX_SEQUENCES: usize = 1 << 16;
const MAX_COUNT: usize = 1 << 30;

fn read_drafter(whole: &mut Table, overridden: &BTreeSet<String>, problems: &mut Vec<String>) -> DrafterRecipe {
    let mut section = Section::take(whole, "drafter", overridden, problems);
    let read = DrafterRecipe {
        block_size: section.or("block_size", 16),
        num_hidden_layers: section.or("num_hidden_layers", 5),
        target_layer_ids: section.optional("target_layer_ids"),
        mask_token_id: section.required("mask_token_id", "a token that never occurs in the data; SmolLM2: 16", 0),
        init: section.or("init", Start::Random),
        layer_types: section.optional("layer_types"),
        sliding_window: section.optional("sliding_window"),
        is_causal: section.optional("is_causal"),
        intermediate_size: section.optional("intermediate_size"),
        num_attention_heads: section.optional("num_attention_heads"),
        num_key_value_heads: section.optional("num_key_value_heads"),
        head_dim: section.optional("head_dim"),
        rms_norm_eps: section.optional("rms_norm_eps"),
        rope_theta: section.optional("rope_theta"),
    };
    section.require(
        (2..=256).contains(&read.block_size),
        "block_size",
        format!("must be 2 to 256, not {}", read.block_size),
    );
    section.require(
        (1..=MAX_LAYERS).contains(&read.num_hidden_layers),
        "num_hidden_layers",
        format!("must be 1 to {MAX_LAYERS}"),
    );
    for (key, value) in [
        ("sliding_window", read.sliding_window),
        ("intermediate_size", read.intermediate_size),
        ("num_attention_heads", read.num_attention_heads),
        ("num_key_value_heads", read.num_key_value_heads),
        ("head_dim", read.head_dim),
    ] {
        section.require(
            value.is_none_or(|value| (1..=MAX_COUNT).contains(&value)),
            key,
            format!("must be 1 to {MAX_COUNT}"),
        );
    }
    for (key, value) in [("rms_norm_eps", read.rms_norm_eps), ("rope_theta", read.rope_theta)] {
        section.require(value.is_none_or(|value| value > 0.0 && value.is_finite()), key, "must be above 0");
    }
    if let Some(kinds) = &read.layer_types {
        section.require(
            kinds.len() == read.num_hidden_layers,
            "layer_types",
            format!("lists {} layers, drafter.num_hidden_layers says {}", kinds.len(), read.num_hidden_layers),
        );
        let slides = kinds.contains(&LayerType::Sliding);
        section.require(
            !slides || read.sliding_window.is_some(),
            "sliding_window",
            "is missing (drafter.layer_types has a sliding layer)",
        );
    }
    let slides = read.layer_types.as_ref().is_some_and(|kinds| kinds.contains(&LayerType::Sliding));
    section.require(
        slides || read.sliding_window.is_none(),
        "sliding_window",
        "has no effect: no \"sliding_attention\" in drafter.layer_types",
    );
    section.finish();
    read
}

fn read_data(whole: &mut Table, overridden: &BTreeSet<String>, problems: &mut Vec<String>) -> DataRecipe {
    let mut section = Section::take(whole, "data", overridden, problems);
    let read = DataRecipe {
        max_length: section.optional("max_length"),
        validation_count: section.optional("validation_count"),
        validation_share: section.optional("validation_share"),
        validation_anchors_per_sequence: section.or("validation_anchors_per_sequence", 8),
        walk_prompts: section.or("walk_prompts", 8),
        walk_new_tokens: section.or("walk_new_tokens", 64),
    };
    section.require(read.max_length.is_none_or(|length| length >= 2), "max_length", "must be 2 or more");
    section.require(
        read.validation_count.is_none() || read.validation_share.is_none(),
        "validation_share",
        "and data.validation_count are both given: give one",
    );
    section.require(
        read.validation_share.is_none_or(|share| (0.0..1.0).contains(&share)),
        "validation_share",
        "must be 0 or more and below 1",
    );
    section.require(read.validation_anchors_per_sequence >= 1, "validation_anchors_per_sequence", "must be 1 or more");
    section.require(read.walk_prompts <= MAX_SEQUENCES, "walk_prompts", format!("must be 0 to {MAX_SEQUENCES}"));
    section.require(
        (2..=MAX_COUNT).contains(&read.walk_new_tokens),
        "walk_new_tokens",
        format!("must be 2 to {MAX_COUNT}: the first token needs no drafter"),
    );
    section.finish();
    read
}

fn read_features(whole: &mut Table, overridden: &BTreeSet<String>, problems: &mut Vec<String>) -> FeaturesRecipe {
    let mut section = Section::take(whole, "features", overridden, problems);
    let read = FeaturesRecipe { memory_gib: section.or("memory_gib", 8.0) };
    section.require(read.memory_gib >= 0.0 && read.memory_gib.is_finite(), "memory_gib", "must be 0 or more");
    section.finish();
    read
}

fn read_train(whole: &mut Table, overridden: &BTreeSet<String>, problems: &mut Vec<String>) -> TrainRecipe {
    let mut section = Section::take(whole, "train", overridden, problems);
    let read = TrainRecipe {
        steps: section.required("steps", "optimizer updates of the whole run", 1),
        sequences_per_step: section.or("sequences_per_step", 4),
        accumulation: section.or("accumulation", 1),
        anchors_per_sequence: section.or("anchors_per_sequence", 512),
        learning_rate: section.or("learning_rate", 6e-4),
        warmup_steps: section.or("warmup_steps", 50),
        schedule: section.or("schedule", Course::Cosine),
        tail_share: section.or("tail_share", 0.4),
        floor_share: section.or("floor_share", 0.0),
        betas: section.or("betas", vec![0.9, 0.95]),
        epsilon: section.or("epsilon", 1e-8),
        weight_decay: section.or("weight_decay", 0.0),
        clip_norm: section.or("clip_norm", 1.0),
        gamma: section.optional("gamma"),
        normalise: section.or("normalise", Normalise::Weights),
        holes: section.or("holes", HoleRule::Cut),
        seed: section.or("seed", 0),
        log_every: section.or("log_every", 10),
        validate_every: section.or("validate_every", 500),
        checkpoint_every: section.or("checkpoint_every", 500),
        keep_checkpoints: section.or("keep_checkpoints", 2),
    };
    for (key, value) in [
        ("steps", read.steps),
        ("accumulation", read.accumulation),
        ("anchors_per_sequence", read.anchors_per_sequence),
        ("log_every", read.log_every),
        ("keep_checkpoints", read.keep_checkpoints),
    ] {
        section.require((1..=MAX_COUNT).contains(&value), key, format!("must be 1 to {MAX_COUNT}"));
    }
    section.require(
        (1..=MAX_SEQUENCES).contains(&read.sequences_per_step),
        "sequences_per_step",
        format!("must be 1 to {MAX_SEQUENCES}"),
    );
    section.require(read.learning_rate > 0.0 && read.learning_rate.is_finite(), "learning_rate", "must be above 0");
    section.require(read.tail_share > 0.0 && read.tail_share <= 1.0, "tail_share", "must be above 0 and at most 1");
    section.require((0.0..=1.0).contains(&read.floor_share), "floor_share", "must be 0 to 1");
    let betas_good = read.betas.len() == 2 && read.betas.iter().all(|beta| (0.0..1.0).contains(beta));
    section.require(betas_good, "betas", "must be two numbers, each 0 or more and below 1");
    section.require(read.epsilon > 0.0 && read.epsilon.is_finite(), "epsilon", "must be above 0");
    section.require(read.weight_decay >= 0.0 && read.weight_decay.is_finite(), "weight_decay", "must be 0 or more");
    section.require(
        read.clip_norm >= 0.0 && read.clip_norm.is_finite(),
        "clip_norm",
        "must be 0 or more (0: no clipping)",
    );
    section.require(read.gamma.is_none_or(|gamma| gamma > 0.0 && gamma.is_finite()), "gamma", "must be above 0");
    section.finish();
    read
}
