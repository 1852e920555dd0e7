//! The documents of a run: checked, cut to length, split into training and validation, hashed.

use std::fmt::Write as _;

use draftsman_contract::{CounterRng, Documents, eligible_anchors};
use draftsman_models::TargetSpec;
use sha2::{Digest, Sha256};

use crate::anchors::stream;
use crate::error::TrainError;
use crate::recipe::{Recipe, VALIDATION_SHARE};

/// One tokenised document (a conversation).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Name for messages and saved validation sets.
    pub id: String,
    /// Token ids.
    pub ids: Vec<u32>,
    /// Which tokens are supervised (the assistant's), one a token.
    pub loss_mask: Vec<bool>,
}

impl Sample {
    /// Positions at which a block may start (see [`eligible_anchors`]).
    #[must_use]
    pub fn eligible_anchors(&self) -> Vec<usize> {
        let bounds = [0..self.ids.len()];
        eligible_anchors(&Documents { len: self.ids.len(), bounds: &bounds, loss_mask: &self.loss_mask })
    }
}

/// What became of the documents that were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleReport {
    /// Documents given.
    pub given: usize,
    /// Documents cut to `data.max_length`.
    pub cut: usize,
    /// Documents left out because no block can start in them.
    pub without_anchor: usize,
    /// Tokens of the training documents.
    pub train_tokens: usize,
    /// Supervised tokens among them.
    pub supervised_tokens: usize,
}

/// Documents ready to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleSet {
    /// Documents that are trained on. A document's index here is its identity for the random numbers.
    pub train: Vec<Sample>,
    /// Documents held out.
    pub validation: Vec<Sample>,
    /// Hash over both, with their order: a resumed run must have the same.
    pub sha256: String,
    /// What was cut and left out.
    pub report: SampleReport,
}

/// Problems named one by one before the rest is only counted.
const SHOWN: usize = 10;

impl SampleSet {
    /// Checks and splits `samples`. Every problem of every document is found before anything is reported.
    pub fn prepare(recipe: &Recipe, spec: &TargetSpec, samples: Vec<Sample>) -> Result<Self, TrainError> {
        let given = samples.len();
        if given == 0 {
            return Err(TrainError::Data("there is no document (hint: is the file empty?)".into()));
        }
        let limit = recipe.data.max_length.unwrap_or(spec.max_positions);
        let mut problems = Vec::new();
        for sample in &samples {
            if let Some(problem) = problem_of(recipe, spec, sample) {
                problems.push(format!("document \"{}\": {problem}", sample.id));
            }
        }
        if !problems.is_empty() {
            return Err(TrainError::Data(joined(&problems)));
        }
        if !samples.iter().any(|sample| sample.loss_mask.contains(&true)) {
            return Err(TrainError::Data(format!(
                "no supervised token in {given} documents: every loss mask is empty (hint: documents need an assistant turn)"
            )));
        }
        let mut cut = 0;
        let mut usable = Vec::with_capacity(given);
        for mut sample in samples {
            if sample.ids.len() > limit {
                sample.ids.truncate(limit);
                sample.loss_mask.truncate(limit);
                cut += 1;
            }
            if !sample.eligible_anchors().is_empty() {
                usable.push(sample);
            }
        }
        let without_anchor = given - usable.len();
        if usable.is_empty() {
            return Err(TrainError::Data(format!(
                "no block can start in any of the {given} documents: a block needs two supervised tokens in a row (hint: {cut} documents \
                 were cut at {limit} tokens, see data.max_length)"
            )));
        }
        let held_out = held_out(recipe, usable.len())?;
        let mut train = Vec::with_capacity(usable.len() - held_out.len());
        let mut validation = Vec::with_capacity(held_out.len());
        for (index, sample) in usable.into_iter().enumerate() {
            if held_out.binary_search(&index).is_ok() { validation.push(sample) } else { train.push(sample) }
        }
        let report = SampleReport {
            given,
            cut,
            without_anchor,
            train_tokens: train.iter().map(|sample| sample.ids.len()).sum(),
            supervised_tokens: train.iter().map(|sample| sample.loss_mask.iter().filter(|on| **on).count()).sum(),
        };
        Ok(Self { sha256: hash(&train, &validation), train, validation, report })
    }
}

fn problem_of(recipe: &Recipe, spec: &TargetSpec, sample: &Sample) -> Option<String> {
    let length = sample.ids.len();
    if length != sample.loss_mask.len() {
        return Some(format!("{length} tokens and {} loss mask entries", sample.loss_mask.len()));
    }
    if let Some(index) = sample.ids.iter().position(|id| *id as usize >= spec.vocab_size) {
        let id = sample.ids[index];
        return Some(format!(
            "token {index} has id {id}, outside the target's vocabulary of {} (hint: made with another tokenizer?)",
            spec.vocab_size
        ));
    }
    let mask = recipe.drafter.mask_token_id;
    if let Some(index) = sample.ids.iter().position(|id| *id == mask) {
        return Some(format!(
            "token {index} is the mask token (drafter.mask_token_id = {mask}), which the data must not hold"
        ));
    }
    if recipe.data.max_length.is_none() && length > spec.max_positions {
        return Some(format!(
            "{length} tokens, and the target's context is {} (hint: set data.max_length to cut long documents)",
            spec.max_positions
        ));
    }
    None
}

fn joined(problems: &[String]) -> String {
    if let [one] = problems {
        return one.clone();
    }
    let mut text = format!("{} problems:", problems.len());
    for problem in problems.iter().take(SHOWN) {
        let _ = write!(text, "\n  - {problem}");
    }
    if problems.len() > SHOWN {
        let _ = write!(text, "\n  - and {} more", problems.len() - SHOWN);
    }
    text
}

/// Ascending indices of the documents held out for validation.
fn held_out(recipe: &Recipe, documents: usize) -> Result<Vec<usize>, TrainError> {
    let count = match (recipe.data.validation_count, recipe.data.validation_share) {
        (Some(count), _) => count,
        (None, share) => (share.unwrap_or(VALIDATION_SHARE) * documents as f64).round() as usize,
    };
    if count >= documents {
        return Err(TrainError::Data(format!(
            "{documents} usable documents leave nothing to train on with {count} held out for validation \
             (hint: data.validation_count, data.validation_share)"
        )));
    }
    Ok(CounterRng::new(recipe.train.seed, &[stream::VALIDATION_DOCUMENTS]).sample_indices(documents, count))
}

fn hash(train: &[Sample], validation: &[Sample]) -> String {
    let mut hasher = Sha256::new();
    for part in [train, validation] {
        hasher.update((part.len() as u64).to_le_bytes());
        for sample in part {
            hasher.update((sample.ids.len() as u64).to_le_bytes());
            for (id, supervised) in sample.ids.iter().zip(&sample.loss_mask) {
                hasher.update(id.to_le_bytes());
                hasher.update([u8::from(*supervised)]);
            }
        }
    }
    hasher.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
