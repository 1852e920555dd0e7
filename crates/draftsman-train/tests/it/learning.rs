//! That training teaches.

use draftsman_models::load_drafter;
use draftsman_train::{FeatureStore, Pack, PackedDocument, RunMode, pack_loss};

use crate::fixture::{Bench, Ears, documents};
use crate::tiny;

#[test]
fn the_loss_falls() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(documents(6), &["train.steps=150", "train.log_every=25"]);
    let mut ears = Ears::default();
    let outcome = bench.run_with(&folder.path().join("run"), RunMode::New, None, &mut ears, None).unwrap();
    assert_eq!(outcome.step, 150);
    assert_eq!(ears.lines.iter().map(|line| line.step).collect::<Vec<_>>(), [25, 50, 75, 100, 125, 150]);
    let (first, last) = (&ears.lines[0], &ears.lines[5]);
    assert!(last.loss < 0.5 * first.loss, "{} → {}", first.loss, last.loss);
    assert!(last.chain > first.chain && last.ddtree8 >= last.chain, "{last}");
    assert!(last.rss_bytes.is_none_or(|bytes| bytes > 1 << 20));
}

/// One document, learnt by heart: every block is drafted whole.
#[test]
fn one_document_is_learnt_by_heart() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(
        documents(1),
        &[
            "train.steps=250",
            "train.sequences_per_step=1",
            "train.anchors_per_sequence=64",
            "train.log_every=50",
            "train.learning_rate=1e-2",
        ],
    );
    let outcome = bench.run(&folder.path().join("run"), RunMode::New, None).unwrap();
    let drafter = load_drafter(&outcome.checkpoint, bench.target.device()).unwrap();
    let sample = &bench.samples.train[0];
    let features = FeatureStore::new(&tiny::TAPS, 32, 1, 1.0).get(&*bench.target, &bench.samples.train, &[0]).unwrap();
    let anchors = sample.eligible_anchors();
    let document =
        PackedDocument { ids: &sample.ids, loss_mask: &sample.loss_mask, anchors: &anchors, features: &features[0] };
    let rules = bench.recipe.layout_rules(&drafter.config().contract);
    let pack = Pack::new(&rules, tiny::MASK, 64, &[document], bench.target.device()).unwrap();
    let loss = pack_loss(&drafter, bench.target.embedding(), bench.target.head(), &pack).unwrap();
    for (block, anchor) in loss.blocks.iter().zip(&anchors) {
        assert_eq!(
            (block.chain(), block.tree()),
            (block.valid, block.valid),
            "block at anchor {anchor}: {:?}",
            block.truth
        );
    }
    assert!(loss.blocks.iter().filter(|block| block.valid == 3).count() > 3);
}

/// The target's own layers are a start, and training goes on from there.
#[test]
fn starts_from_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(documents(3), &["drafter.init=target", "train.steps=20", "train.log_every=5"]);
    let mut ears = Ears::default();
    bench.run_with(&folder.path().join("run"), RunMode::New, None, &mut ears, None).unwrap();
    assert!(ears.lines[3].loss < ears.lines[0].loss);
}
