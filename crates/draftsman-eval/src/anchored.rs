//! Validation at random anchors: loss and acceptance of a drafter over finished answers.
//!
//! One function for the training log and for `eval --validation`, so that the two print the same number. It is a statistic
//! of its own: decoding visits other anchors (see `walked`).

use burn::tensor::Tensor;
use draftsman_contract::{
    AcceptanceStats, BlockLayout, CounterRng, Documents, HoleRule, LayoutRules, chain, eligible_anchors, top_k_streak,
    tree_accepted,
};
use draftsman_kernels::linear_cross_entropy;
use draftsman_models::{Context, Dflash, Target, document_features};
use serde::{Deserialize, Serialize};

use crate::{EvalError, WalkSet};

/// Newest version of [`Validation`] as JSON: 2 brought the walk set. A file without one is still written as version 1.
pub const VALIDATION_VERSION: u32 = 2;

/// Nodes of the tree behind `ddtree8` and candidates behind `top8_streak`.
const TREE_BUDGET: usize = 8;

/// Blocks of one forward pass: bounds memory. Rows do not depend on it.
const BLOCKS_PER_FORWARD: usize = 64;

/// Stream word of the anchors' draw, so that its draws are nobody else's.
const ANCHOR_STREAM: u64 = 0x7661_6c69;

/// Documents with drawn anchors, and the rules that turn them into a loss. Saved in checkpoints as `validation.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// 1, or 2 with a walk set ([`VALIDATION_VERSION`]).
    pub version: u32,
    /// What a hole in a loss mask does.
    pub holes: HoleRule,
    /// Decay of the loss weights.
    pub gamma: f64,
    /// The documents, in the order they are judged.
    pub documents: Vec<ValidationDocument>,
    /// Held-out prompts that drafters walk as well (see [`crate::PreparedWalk`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk: Option<WalkSet>,
}

/// A prompt with its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidationDocument {
    /// All tokens.
    pub ids: Vec<u32>,
    /// Which tokens are supervised, as 0 and 1 in JSON.
    #[serde(with = "bits")]
    pub loss_mask: Vec<bool>,
    /// Where blocks begin.
    pub anchors: Vec<usize>,
}

/// A list of booleans as 0 and 1: a fifth of the text.
mod bits {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(mask: &[bool], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(mask.iter().map(|&bit| u8::from(bit)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<bool>, D::Error> {
        Vec::<u8>::deserialize(deserializer)?
            .into_iter()
            .map(|bit| match bit {
                0 => Ok(false),
                1 => Ok(true),
                other => Err(D::Error::custom(format!("loss_mask holds {other}, expected 0 or 1"))),
            })
            .collect()
    }
}

impl Validation {
    /// Draws at most `anchors_per_document` anchors in each of `documents` (tokens, loss mask). Documents without an eligible
    /// anchor are left out; an anchor depends on the seed and the document's index alone.
    pub fn draw(
        documents: impl IntoIterator<Item = (Vec<u32>, Vec<bool>)>,
        anchors_per_document: usize,
        seed: u64,
        holes: HoleRule,
        gamma: f64,
    ) -> Self {
        let documents = documents
            .into_iter()
            .enumerate()
            .filter_map(|(index, (ids, loss_mask))| {
                let bounds = 0..ids.len();
                let docs = Documents { len: ids.len(), bounds: std::slice::from_ref(&bounds), loss_mask: &loss_mask };
                let eligible = eligible_anchors(&docs);
                let chosen = CounterRng::new(seed, &[ANCHOR_STREAM, index as u64])
                    .sample_indices(eligible.len(), anchors_per_document);
                let anchors: Vec<usize> = chosen.into_iter().map(|i| eligible[i]).collect();
                (!anchors.is_empty()).then_some(ValidationDocument { ids, loss_mask, anchors })
            })
            .collect();
        Self { version: 1, holes, gamma, documents, walk: None }
    }

    /// The same with a walk set.
    #[must_use]
    pub fn with_walk(self, walk: WalkSet) -> Self {
        Self { version: VALIDATION_VERSION, walk: Some(walk), ..self }
    }

    /// Anchors of all documents.
    pub fn anchors(&self) -> usize {
        self.documents.iter().map(|d| d.anchors.len()).sum()
    }

    fn check(&self) -> Result<(), EvalError> {
        if !(1..=VALIDATION_VERSION).contains(&self.version) {
            return Err(EvalError::ValidationFile(format!(
                "version {} is not known, this build reads versions 1 to {VALIDATION_VERSION}",
                self.version
            )));
        }
        if self.anchors() == 0 {
            return Err(EvalError::ValidationFile("there is no anchor to judge".into()));
        }
        Ok(())
    }
}

/// Loss and acceptance over random anchors. Acceptance counts are accepted drafts, bonus excluded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnchoredReport {
    /// Which statistic this is.
    pub statistic: &'static str,
    /// Documents judged.
    pub documents: usize,
    /// Blocks judged.
    pub anchors: usize,
    /// Decayed cross-entropy, `loss_numerator / loss_denominator`.
    pub loss: f64,
    /// Sum of weight × cross-entropy.
    pub loss_numerator: f64,
    /// Sum of weights.
    pub loss_denominator: f64,
    /// Per draft slot the share of blocks whose first choice is the target's token, whatever came before.
    pub slot_hit_rate: Vec<Option<f64>>,
    /// Mean accepted drafts of the chain of first choices.
    pub chain_accepted_drafts: Option<f64>,
    /// Mean accepted drafts of the best-first tree of 8 nodes.
    pub ddtree8_accepted_drafts: Option<f64>,
    /// Mean number of leading slots with the target's token among the 8 first choices.
    pub top8_streak_drafts: Option<f64>,
    /// Counts behind `chain`, with the per-slot hits; one response a document.
    pub chain: AcceptanceStats,
    /// Counts behind `ddtree8`.
    pub ddtree8: AcceptanceStats,
    /// Counts behind `top8_streak`.
    pub top8_streak: AcceptanceStats,
}

/// Validation documents with the target's features kept in memory, for judging many drafters of the same taps.
pub struct PreparedValidation<'a> {
    target: &'a dyn Target,
    validation: &'a Validation,
    taps: Vec<usize>,
    features: Vec<Tensor<2>>,
}

impl<'a> PreparedValidation<'a> {
    /// Runs the target over every document.
    pub fn new(target: &'a dyn Target, validation: &'a Validation, taps: &[usize]) -> Result<Self, EvalError> {
        validation.check()?;
        let ids: Vec<&[u32]> = validation.documents.iter().map(|document| document.ids.as_slice()).collect();
        let mut features = Vec::with_capacity(ids.len());
        document_features(target, taps, &ids, &mut |_, rows| -> Result<(), EvalError> {
            features.push(rows);
            Ok(())
        })?;
        Ok(Self { target, validation, taps: taps.to_vec(), features })
    }

    /// Judges `drafter`; the same numbers as [`validate`].
    pub fn judge(&self, drafter: &Dflash) -> Result<AnchoredReport, EvalError> {
        let taps = &drafter.config().contract.target_layer_ids;
        if *taps != self.taps {
            return Err(EvalError::ValidationFile(format!(
                "features were made with target_layer_ids {:?}, the drafter reads {taps:?}",
                self.taps
            )));
        }
        judge(self.target, drafter, self.validation, &mut |index| Ok(self.features[index].clone()))
    }
}

/// Judges `drafter` on `validation`. A pure function of its arguments.
pub fn validate(target: &dyn Target, drafter: &Dflash, validation: &Validation) -> Result<AnchoredReport, EvalError> {
    let taps = &drafter.config().contract.target_layer_ids;
    PreparedValidation::new(target, validation, taps)?.judge(drafter)
}

fn judge(
    target: &dyn Target,
    drafter: &Dflash,
    validation: &Validation,
    features: &mut dyn FnMut(usize) -> Result<Tensor<2>, EvalError>,
) -> Result<AnchoredReport, EvalError> {
    // No graph is wanted here, also when a drafter in training is judged.
    let drafter = drafter.inference();
    let contract = &drafter.config().contract;
    let rules = LayoutRules::from(contract, validation.holes, validation.gamma);
    let mut sums = Sums::default();
    for (index, document) in validation.documents.iter().enumerate() {
        sums.begin_document();
        let bounds = 0..document.ids.len();
        let documents = Documents {
            len: document.ids.len(),
            bounds: std::slice::from_ref(&bounds),
            loss_mask: &document.loss_mask,
        };
        let context = drafter.context(features(index)?)?;
        let positions = BlockLayout::context_positions(&documents, &rules);
        for anchors in document.anchors.chunks(BLOCKS_PER_FORWARD) {
            let layout = BlockLayout::build(&rules, &documents, anchors)
                .map_err(|source| EvalError::Layout { document: index, source })?;
            let block_ids = layout.block_ids(&document.ids, contract.mask_token_id);
            let block = drafter.embed(&block_ids, target.embedding())?;
            let context = Context::Rows { context: context.clone(), positions: &positions };
            let hidden = drafter.forward(block, &layout, context, None)?;
            let labels = layout.labels(&document.ids);
            let weights = layout.weights();
            let judged =
                linear_cross_entropy(hidden, target.head(), &labels, &weights, &drafter.head_options(TREE_BUDGET));
            sums.add(&layout, &labels, &weights, rules.slots.first_slot(), &judged.top, &judged.label_log_prob);
        }
    }
    Ok(sums.report(validation))
}

/// What is summed over blocks, in the order of documents and anchors.
#[derive(Default)]
struct Sums {
    numerator: f64,
    denominator: f64,
    chain: AcceptanceStats,
    ddtree8: AcceptanceStats,
    top8_streak: AcceptanceStats,
}

impl Sums {
    fn begin_document(&mut self) {
        self.chain.begin_response();
        self.ddtree8.begin_response();
        self.top8_streak.begin_response();
    }

    fn add(
        &mut self,
        layout: &BlockLayout,
        labels: &[Option<u32>],
        weights: &[f32],
        first_slot: usize,
        top: &[Vec<(u32, f32)>],
        label_log_prob: &[f32],
    ) {
        for (row, &weight) in weights.iter().enumerate() {
            // Rows without a label have no log-probability, and weigh nothing.
            if labels[row].is_some() && weight > 0.0 {
                self.numerator -= f64::from(weight) * f64::from(label_log_prob[row]);
                self.denominator += f64::from(weight);
            }
        }
        for (block, rows) in layout.blocks.iter().zip(layout.row_ranges()) {
            let rows = rows.start + first_slot.min(block.rows())..rows.end;
            let slots = &top[rows.clone()];
            let drafts: Vec<u32> = slots.iter().filter_map(|slot| slot.first()).map(|(id, _)| *id).collect();
            // A label that is missing lies beyond `valid`, so what stands in for it is never looked at.
            let truth: Vec<u32> = labels[rows.clone()].iter().map(|label| label.unwrap_or(u32::MAX)).collect();
            self.chain.record_cycle(chain(&drafts, &truth, block.valid));
            self.ddtree8.record_cycle(tree_accepted(slots, &truth, block.valid, TREE_BUDGET));
            self.top8_streak.record_cycle(top_k_streak(slots, &truth, block.valid));
            let supervised = |slot: usize| slot < block.valid || weights[rows.start + slot] > 0.0;
            self.chain.record_slots(
                drafts
                    .iter()
                    .zip(&truth)
                    .enumerate()
                    .map(|(slot, (draft, token))| supervised(slot).then_some(draft == token)),
            );
        }
    }

    fn report(self, validation: &Validation) -> AnchoredReport {
        AnchoredReport {
            statistic: "random anchors (drawn from the answers)",
            documents: validation.documents.len(),
            anchors: validation.anchors(),
            loss: self.numerator / self.denominator,
            loss_numerator: self.numerator,
            loss_denominator: self.denominator,
            slot_hit_rate: self.chain.slot_hit_rates(),
            chain_accepted_drafts: self.chain.micro(),
            ddtree8_accepted_drafts: self.ddtree8.micro(),
            top8_streak_drafts: self.top8_streak.micro(),
            chain: self.chain,
            ddtree8: self.ddtree8,
            top8_streak: self.top8_streak,
        }
    }
}
