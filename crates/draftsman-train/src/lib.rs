//! Drafter training: anchors, loss, optimizer, checkpoints, run folder.
//!
//! A run is [`train`]ed from a [`TrainJob`]: a resolved [`Recipe`], a frozen target, and a [`SampleSet`]. Documents are packed side
//! by side into one [`BlockLayout`](draftsman_contract::BlockLayout), whose positions, labels, weights and visible rows are the
//! contract's; the top-k behind the loss also gives the acceptance numbers of the log. Evaluation while training comes in through
//! [`LiveCheck`], what a run has to say goes out through [`Progress`].

mod anchors;
mod checkpoint;
mod error;
mod features;
mod files;
mod gradients;
mod job;
mod loss;
mod metrics;
mod optim;
mod pack;
mod progress;
mod recipe;
mod resume;
mod run_folder;
mod samples;
mod schedule;
mod trainer;
mod window;

pub use anchors::{Cursor, Turn, draw_anchors};
pub use checkpoint::{
    RunCheckpoints, list_checkpoints, run_checkpoints, run_identity, saved_validation, verify_checkpoint,
};
pub use error::{RecipeError, TrainError};
pub use features::{FeatureEstimate, FeatureStore};
pub use gradients::Gradients;
pub use job::{BestCheckpoint, Ending, Provenance, TrainJob, TrainOutcome};
pub use loss::{BlockScore, PackLoss, TREE_BUDGET, forward, pack_loss};
pub use optim::{AdamW, AdamWOptions, Moments, Update, clip_factor, global_norm};
pub use pack::{Pack, PackedDocument};
pub use progress::{Better, LiveCheck, LogLine, Progress, RunStart, Silent, ValidationLine};
pub use recipe::{
    DataRecipe, Difference, DrafterRecipe, FeaturesRecipe, HARMLESS_KEYS, LayerType, Normalise, RECIPE_VERSION, Recipe,
    Start, TrainRecipe, default_target_layer_ids,
};
pub use run_folder::{RunFolder, RunMode, checkpoints_in, recipe_in};
pub use samples::{Sample, SampleReport, SampleSet};
pub use schedule::{Course, Schedule};
pub use trainer::train;
