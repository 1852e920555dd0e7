//! Loss and gradients of packed documents.

use draftsman_contract::{LayoutRules, log_sum_exp};
use draftsman_kernels::head_logits;
use draftsman_models::{Dflash, LogitRows, TargetInput, Want};
use draftsman_train::{FeatureStore, Gradients, LogLine, Pack, PackedDocument, RunMode, Sample, forward, pack_loss};

use crate::fixture::{Bench, Ears, documents};
use crate::tiny;

struct Packer {
    bench: Bench,
    drafter: Dflash,
    rules: LayoutRules,
}

impl Packer {
    fn new(count: usize) -> Self {
        let bench = Bench::new(documents(count), &[]);
        let drafter = tiny::drafter(&*bench.target, 4, 5).trainable();
        let rules = bench.recipe.layout_rules(&drafter.config().contract);
        Self { bench, drafter, rules }
    }

    fn features(&self, sample: &Sample) -> Vec<f32> {
        let mut cache = self.bench.target.new_cache();
        let mut batch = [TargetInput { ids: &sample.ids, cache: &mut cache }];
        let want = Want { taps: tiny::TAPS.to_vec(), logits: LogitRows::None };
        let output = self.bench.target.forward(&mut batch, &want, None).unwrap();
        output.features.unwrap().into_data().iter::<f32>().collect()
    }

    /// Packs the training documents `which`, three anchors in each.
    fn pack(&self, which: &[usize]) -> Pack {
        let samples = &self.bench.samples.train;
        let parts: Vec<(Vec<usize>, Vec<f32>)> = which
            .iter()
            .map(|index| {
                let eligible = samples[*index].eligible_anchors();
                let anchors = vec![eligible[0], eligible[eligible.len() / 2], eligible[eligible.len() - 1]];
                (anchors, self.features(&samples[*index]))
            })
            .collect();
        let packed: Vec<PackedDocument<'_>> = which
            .iter()
            .zip(&parts)
            .map(|(index, (anchors, features))| {
                let Sample { ids, loss_mask, .. } = &samples[*index];
                PackedDocument { ids, loss_mask, anchors, features }
            })
            .collect();
        Pack::new(&self.rules, tiny::MASK, 64, &packed, &self.drafter.device()).unwrap()
    }

    fn gradients(&self, pack: &Pack) -> (Gradients, f64, f64) {
        let target = &self.bench.target;
        let loss = pack_loss(&self.drafter, target.embedding(), target.head(), pack).unwrap();
        let numerator = f64::from(loss.numerator.clone().into_scalar::<f32>());
        let mut gradients = Gradients::default();
        gradients.add(&self.drafter, loss.numerator.backward()).unwrap();
        (gradients, numerator, loss.weight_sum)
    }
}

#[test]
fn numerator_is_the_weighted_sum_over_all_logits() {
    let packer = Packer::new(3);
    let pack = packer.pack(&[0, 1, 2]);
    let target = &packer.bench.target;
    let loss = pack_loss(&packer.drafter, target.embedding(), target.head(), &pack).unwrap();
    let hidden = forward(&packer.drafter, target.embedding(), &pack).unwrap();
    let logits: Vec<f32> =
        head_logits(hidden, target.head(), &packer.drafter.head_options(0)).into_data().iter::<f32>().collect();
    let (mut numerator, mut weights) = (0.0, 0.0);
    for (row, logits) in logits.chunks(tiny::VOCAB as usize).enumerate() {
        let weight = f64::from(pack.weights[row]);
        if weight > 0.0 {
            let label = pack.labels[row].unwrap() as usize;
            numerator += weight * (log_sum_exp(logits) - f64::from(logits[label]));
            weights += weight;
        }
    }
    let got = f64::from(loss.numerator.clone().into_scalar::<f32>());
    assert!((got - numerator).abs() < 1e-5 * numerator, "numerator {got}, by hand {numerator}");
    assert!((loss.weight_sum - weights).abs() < 1e-9, "weights {}, by hand {weights}", loss.weight_sum);
    // What was drafted is what the logits say.
    for (block, rows) in loss.blocks.iter().zip(pack.layout.row_ranges()) {
        for (slot, candidates) in block.slots.iter().enumerate() {
            let row = &logits[(rows.start + 1 + slot) * 40..][..40];
            assert_eq!(candidates[0].0 as usize, draftsman_contract::argmax(row), "slot {slot}");
            assert_eq!(candidates.len(), 8);
        }
        assert_eq!(block.slots.len(), 3);
    }
}

/// A document is packed only up to its last block: what lies behind changes nothing.
#[test]
fn tokens_behind_the_last_block_change_nothing() {
    let packer = Packer::new(1);
    let sample = &packer.bench.samples.train[0];
    let features = packer.features(sample);
    let anchors = [4, 6];
    let whole =
        PackedDocument { ids: &sample.ids, loss_mask: &sample.loss_mask, anchors: &anchors, features: &features };
    let end = 6 + 4;
    let cut = PackedDocument {
        ids: &sample.ids[..end],
        loss_mask: &sample.loss_mask[..end],
        features: &features[..end * 64],
        ..whole
    };
    let [whole, cut] = [whole, cut].map(|document| {
        packer.gradients(&Pack::new(&packer.rules, tiny::MASK, 64, &[document], &packer.drafter.device()).unwrap())
    });
    assert_eq!((whole.1, whole.2), (cut.1, cut.2));
    for ((name, a), (_, b)) in whole.0.iter().zip(cut.0.iter()) {
        let error = relative(a.unwrap(), b.unwrap());
        assert!(error < 1e-6, "{name}: {error}");
    }
}

#[test]
fn two_packs_of_two_are_one_of_four() {
    let packer = Packer::new(4);
    let (one, numerator, weights) = packer.gradients(&packer.pack(&[0, 1, 2, 3]));
    let mut two = Gradients::default();
    let (mut two_numerator, mut two_weights) = (0.0, 0.0);
    for part in [[0, 1], [2, 3]] {
        let target = &packer.bench.target;
        let loss = pack_loss(&packer.drafter, target.embedding(), target.head(), &packer.pack(&part)).unwrap();
        two_numerator += f64::from(loss.numerator.clone().into_scalar::<f32>());
        two_weights += loss.weight_sum;
        two.add(&packer.drafter, loss.numerator.backward()).unwrap();
    }
    assert!((numerator - two_numerator).abs() < 1e-6 * numerator, "{numerator} {two_numerator}");
    assert!((weights - two_weights).abs() < 1e-9, "{weights} {two_weights}");
    let mut seen = 0;
    for ((name, a), (_, b)) in one.iter().zip(two.iter()) {
        let (a, b) = (a.unwrap(), b.unwrap());
        let error = relative(a, b);
        assert!(error < 1e-6, "{name}: relative error {error}");
        assert!(a.iter().any(|value| *value != 0.0), "{name}: no gradient at all");
        seen += 1;
    }
    assert_eq!(seen, 11 * 2 + 3);
    assert!((one.norm() - two.norm()).abs() < 1e-6 * one.norm());
}

fn first_line(overrides: &[&str]) -> LogLine {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(documents(4), overrides);
    let mut ears = Ears::default();
    bench.run_with(&folder.path().join("run"), RunMode::New, None, &mut ears, None).unwrap();
    ears.lines.remove(0)
}

/// The whole trainer: the same documents in one pack or over a window of two give the same loss and gradient norm.
#[test]
fn accumulation_divides_once() {
    for normalise in ["train.normalise=weights", "train.normalise=sequences"] {
        let one = first_line(&["train.steps=1", normalise, "train.sequences_per_step=4"]);
        let two = first_line(&["train.steps=1", normalise, "train.sequences_per_step=2", "train.accumulation=2"]);
        assert!((one.loss - two.loss).abs() < 1e-6 * one.loss, "{normalise}: {} {}", one.loss, two.loss);
        let (a, b) = (one.gradient_norm, two.gradient_norm);
        assert!((a - b).abs() < 1e-6 * a, "{normalise}: {a} {b}");
        assert_eq!((one.chain, one.ddtree8, one.blocks), (two.chain, two.ddtree8, 16));
    }
}

/// Both modes share the numerator; loss and gradient are divided by Σ weight or by the number of documents.
#[test]
fn normalise_modes() {
    let weights = first_line(&["train.steps=1", "train.normalise=weights", "train.sequences_per_step=4"]);
    let sequences = first_line(&["train.steps=1", "train.normalise=sequences", "train.sequences_per_step=4"]);
    let ratio = sequences.loss / weights.loss;
    // 4 anchors in each document, up to 3 slots with weights 1, e^(-1/1.4), e^(-2/1.4).
    assert!(ratio > 4.0 && ratio < 4.0 * 1.8, "{ratio}");
    let by_gradient = sequences.gradient_norm / weights.gradient_norm;
    assert!((by_gradient - ratio).abs() < 1e-9 * ratio, "{by_gradient} {ratio}");
}

/// What is kept in memory and what is computed anew are the same bits.
#[test]
fn kept_features_are_the_computed_ones() {
    let bench = Bench::new(documents(5), &[]);
    let samples = &bench.samples.train;
    let store = |gib| FeatureStore::new(&tiny::TAPS, 32, 5, gib);
    let (mut keeps, mut forgets) = (store(1.0), store(0.0));
    for wanted in [vec![0, 1, 2], vec![2, 0, 2], vec![4, 3]] {
        let kept = keeps.get(&*bench.target, samples, &wanted).unwrap();
        let fresh = forgets.get(&*bench.target, samples, &wanted).unwrap();
        for ((index, kept), fresh) in wanted.iter().zip(&kept).zip(&fresh) {
            assert_eq!(kept.len(), samples[*index].ids.len() * 64);
            assert!(kept.iter().zip(fresh.iter()).all(|(a, b)| a.to_bits() == b.to_bits()), "document {index}");
        }
    }
    assert_eq!(forgets.used_bytes(), 0);
    assert_eq!(keeps.used_bytes(), keeps.estimate(samples).all_bytes);
}

fn relative(a: &[f32], b: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let difference = square(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let size = square(&mut b.iter().map(|b| f64::from(*b)));
    if difference == 0.0 { 0.0 } else { (difference / size).sqrt() }
}
