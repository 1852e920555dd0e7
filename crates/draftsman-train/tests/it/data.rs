//! Data that cannot be trained on, and the split.

use draftsman_train::{Recipe, Sample, SampleSet};

use crate::tiny;

fn recipe(extra: &str) -> Recipe {
    Recipe::parse(&format!("[drafter]\nmask_token_id = 39\n[train]\nsteps = 1\n[data]\n{extra}"), "t", &[]).unwrap()
}

fn sample(id: &str, ids: Vec<u32>, supervised_from: usize) -> Sample {
    let loss_mask = (0..ids.len()).map(|index| index >= supervised_from).collect();
    Sample { id: id.into(), ids, loss_mask }
}

fn check(samples: Vec<Sample>, extra: &str, expected: &str) {
    let target = tiny::target(1);
    let error = SampleSet::prepare(&recipe(extra), target.spec(), samples).unwrap_err().to_string();
    assert!(error.contains(expected), "got:      {error}\nexpected: {expected}");
}

#[test]
fn refused() {
    check(vec![], "", "training data: there is no document");
    let good = || sample("good", vec![1, 2, 3, 4], 1);
    check(vec![sample("a", vec![1, 2, 3], 3)], "", "no supervised token in 1 documents");
    check(vec![sample("a", vec![1, 2, 3], 2)], "", "no block can start in any of the 1 documents");
    check(
        vec![good(), sample("bad", vec![1, 39, 3], 0)],
        "",
        "document \"bad\": token 1 is the mask token (drafter.mask_token_id = 39), which the data must not hold",
    );
    check(
        vec![sample("far", vec![1, 40, 3], 0)],
        "",
        "document \"far\": token 1 has id 40, outside the target's vocabulary of 40",
    );
    check(vec![sample("long", vec![1; 193], 0)], "", "document \"long\": 193 tokens, and the target's context is 192");
    check(
        vec![Sample { id: "odd".into(), ids: vec![1, 2], loss_mask: vec![true] }],
        "",
        "document \"odd\": 2 tokens and 1 loss mask entries",
    );
    check(
        vec![good(), good()],
        "validation_count = 2\n",
        "2 usable documents leave nothing to train on with 2 held out",
    );
}

#[test]
fn all_bad_documents_are_named() {
    let samples = (0..15).map(|index| sample(&format!("d{index}"), vec![39], 0)).collect();
    let target = tiny::target(1);
    let error = SampleSet::prepare(&recipe(""), target.spec(), samples).unwrap_err().to_string();
    assert!(error.contains("15 problems:") && error.contains("\"d9\"") && error.contains("and 5 more"), "{error}");
}

#[test]
fn split_and_hash() {
    let target = tiny::target(1);
    let samples: Vec<Sample> =
        (0..20).map(|index| sample(&format!("d{index}"), vec![index, 2, 3, 4, 5, 6], 2)).collect();
    let set =
        SampleSet::prepare(&recipe("validation_count = 4\nmax_length = 5\n"), target.spec(), samples.clone()).unwrap();
    assert_eq!((set.train.len(), set.validation.len()), (16, 4));
    let mut all: Vec<&str> = set.train.iter().chain(&set.validation).map(|sample| sample.id.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 20);
    assert!(set.train.iter().all(|sample| sample.ids.len() == 5 && sample.loss_mask.len() == 5));
    assert_eq!((set.report.cut, set.report.train_tokens, set.report.supervised_tokens), (20, 16 * 5, 16 * 3));
    let again =
        SampleSet::prepare(&recipe("validation_count = 4\nmax_length = 5\n"), target.spec(), samples.clone()).unwrap();
    assert_eq!(again, set);
    let mut other = samples;
    other[3].loss_mask[2] = false;
    let other = SampleSet::prepare(&recipe("validation_count = 4\nmax_length = 5\n"), target.spec(), other).unwrap();
    assert_ne!(other.sha256, set.sha256, "the loss mask is part of the data");
}
