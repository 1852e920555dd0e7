//! What a training run is asked to do.

use std::path::PathBuf;

use draftsman_contract::{FeatureOrigin, LabelSource, TargetIdentity, ThinkingMode};
use draftsman_models::Target;

use crate::recipe::Recipe;
use crate::run_folder::RunMode;
use crate::samples::SampleSet;

/// Where features, labels and tokens come from; goes into the drafter's contract.
#[derive(Debug, Clone, PartialEq)]
pub struct Provenance {
    /// Who wrote the answers that are trained on.
    pub labels: LabelSource,
    /// Who computes the features.
    pub features: FeatureOrigin,
    /// Which target.
    pub target: TargetIdentity,
    /// Hash of the tokenizer, where there was one.
    pub tokenizer_sha256: Option<String>,
    /// Hash of the chat template, where there was one.
    pub chat_template_sha256: Option<String>,
    /// Thinking mode of the data.
    pub thinking: Option<ThinkingMode>,
}

impl Default for Provenance {
    fn default() -> Self {
        Self {
            labels: LabelSource::TargetToken,
            features: FeatureOrigin::default(),
            target: TargetIdentity::default(),
            tokenizer_sha256: None,
            chat_template_sha256: None,
            thinking: None,
        }
    }
}

/// One training run.
pub struct TrainJob<'a> {
    /// Recipe, resolved against the target ([`Recipe::resolve`]).
    pub recipe: Recipe,
    /// The frozen target; its device is the drafter's.
    pub target: &'a dyn Target,
    /// For the drafter's contract.
    pub provenance: Provenance,
    /// Documents ([`SampleSet::prepare`] with the same recipe).
    pub samples: &'a SampleSet,
    /// Run folder.
    pub run: PathBuf,
    /// How the run folder is entered.
    pub mode: RunMode,
    /// Stops cleanly, with a checkpoint, after this many completed updates, although the recipe has more.
    pub stop_after: Option<usize>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All steps of the recipe are done.
    Finished,
    /// Stopped at `stop_after`.
    StoppedAfter,
    /// The interrupt flag was raised; everything is saved.
    Interrupted,
}

/// What a run leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainOutcome {
    /// Why it ended.
    pub ending: Ending,
    /// Completed updates.
    pub step: usize,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
    /// The best one, if a live check chose one.
    pub best: Option<BestCheckpoint>,
    /// Seconds of training, resumed parts included.
    pub elapsed_seconds: f64,
}

/// The checkpoint that a live check liked best.
#[derive(Debug, Clone, PartialEq)]
pub struct BestCheckpoint {
    /// Its step.
    pub step: usize,
    /// The number that chose it.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// Its folder.
    pub folder: PathBuf,
}
