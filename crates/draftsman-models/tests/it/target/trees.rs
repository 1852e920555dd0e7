//! Draft trees: every row has the numbers of its path run alone, and the kept path leaves the caches of a pass that
//! never saw the other rows, to the bit.

use burn::tensor::Device;
use draftsman_contract::{CounterRng, TreeShape};
use draftsman_kernels::{DeltaRule, WeightDtype};
use draftsman_models::{
    LogitRows, Target, TargetCache, TargetOptions, TreeInput, Want, open_target_streamed, open_target_with,
};

use super::{MODELS, all_layers, open, random_ids, run, testdata};
use crate::compare::{assert_close, values};

/// A tree of random parents; `deep` of ten rows follow the row before them.
fn random_shape(rng: &mut CounterRng, rows: usize, deep: usize) -> TreeShape {
    let parents = (0..rows - 1).map(|i| if rng.below(10) < deep { i } else { rng.below(i + 1) }).collect();
    TreeShape::new(parents).unwrap()
}

/// Rows that no row follows: their paths cover the tree.
fn leaves(shape: &TreeShape) -> Vec<usize> {
    (0..shape.rows()).filter(|row| shape.children()[*row].is_empty()).collect()
}

fn run_tree(
    target: &dyn Target,
    ids: &[u32],
    shape: &TreeShape,
    cache: &mut TargetCache,
    want: &Want,
) -> (Vec<f32>, Vec<f32>) {
    let out = target.forward_trees(&mut [TreeInput { ids, shape, cache }], want, None).unwrap();
    (out.features.map(values).unwrap_or_default(), out.logits.map(values).unwrap_or_default())
}

fn prefilled(target: &dyn Target, prefix: &[u32]) -> TargetCache {
    let mut cache = target.new_cache();
    if !prefix.is_empty() {
        run(target, prefix, &mut cache, &all_layers(target));
    }
    cache
}

/// `rows` of `[all rows, width]`.
fn pick_rows(table: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    rows.iter().flat_map(|row| &table[row * width..(row + 1) * width]).copied().collect()
}

#[track_caller]
fn assert_bits(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    let wrong = got.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(wrong, None, "{what}: {:?}", wrong.map(|i| (got[i], expected[i])));
}

#[test]
fn every_row_is_its_path_alone_and_the_kept_path_is_a_fresh_pass() {
    for model in MODELS {
        let target = open(model);
        let target = &*target;
        let want = all_layers(target);
        let (vocab, width) = (target.spec().vocab_size, want.taps.len() * target.spec().hidden_size);
        let mut rng = CounterRng::new(21, &[model.len() as u64]);
        for round in 0..8 {
            let (prefix, rows, deep) = ([0, 40, 3, 61, 17, 1, 90, 25][round], 1 + rng.below(40), rng.below(11));
            let shape = random_shape(&mut rng, rows, deep);
            let prefix = random_ids(&mut rng, prefix, vocab);
            let ids = random_ids(&mut rng, rows, vocab);
            let what = format!("{model}: {rows} rows after {}, parents {:?}", prefix.len(), shape.parents());
            let mut cache = prefilled(target, &prefix);
            let (features, logits) = run_tree(target, &ids, &shape, &mut cache, &want);
            assert_eq!(cache.len(), prefix.len(), "{what}: rows count once they are kept");
            for leaf in leaves(&shape) {
                let path = shape.path(leaf);
                let alone: Vec<u32> = path.iter().map(|&row| ids[row]).collect();
                let (f, l) = run(target, &alone, &mut prefilled(target, &prefix), &want);
                assert_bits(&format!("{what}: features on the way to {leaf}"), &pick_rows(&features, width, &path), &f);
                assert_bits(&format!("{what}: logits on the way to {leaf}"), &pick_rows(&logits, vocab, &path), &l);
            }

            // A path, or a beginning of one, or nothing.
            let mut path = shape.path(rng.below(rows));
            path.truncate(rng.below(path.len() + 1).max(usize::from(round % 4 != 0)));
            cache.keep(&path).unwrap();
            assert_eq!(cache.len(), prefix.len() + path.len());
            let all = [prefix, path.iter().map(|&row| ids[row]).collect()].concat();
            let next = random_ids(&mut rng, 9, vocab);
            let mut fresh = prefilled(target, &all);
            let (f, l) = run(target, &next, &mut cache, &want);
            let (fresh_f, fresh_l) = run(target, &next, &mut fresh, &want);
            assert_bits(&format!("{what}, kept {path:?}: features after it"), &f, &fresh_f);
            assert_bits(&format!("{what}, kept {path:?}: logits after it"), &l, &fresh_l);

            // Tree after tree after rollback, as decoding does.
            cache.truncate(all.len() + 4).unwrap();
            fresh.truncate(all.len() + 4).unwrap();
            let shape = random_shape(&mut rng, rows, deep);
            let of = |cache: &mut TargetCache| run_tree(target, &ids, &shape, cache, &want).1;
            assert_bits(&format!("{what}: the next tree"), &of(&mut cache), &of(&mut fresh));
        }
    }
}

#[test]
fn a_kept_path_can_be_cut_and_an_undecided_tree_dropped() {
    for model in ["llama_plain", "gpt_oss", "qwen3_5", "qwen3_5_moe"] {
        let target = open(model);
        let target = &*target;
        let want = all_layers(target);
        let mut rng = CounterRng::new(22, &[]);
        let vocab = target.spec().vocab_size;
        let (prefix, ids) = (random_ids(&mut rng, 30, vocab), random_ids(&mut rng, 7, vocab));
        let shape = TreeShape::new(vec![0, 0, 2, 3, 1, 4]).unwrap();
        let path = [0, 2, 3, 4];
        let along: Vec<u32> = path.iter().map(|&row| ids[row]).collect();
        for (keep, len) in [(Some(4), 32), (Some(4), 30), (Some(4), 33), (Some(1), 30), (None, 30), (None, 28)] {
            let mut cache = prefilled(target, &prefix);
            run_tree(target, &ids, &shape, &mut cache, &want);
            if let Some(keep) = keep {
                cache.keep(&path[..keep]).unwrap();
            }
            cache.truncate(len).unwrap();
            assert_eq!(cache.len(), len, "{model}");
            let all = [&prefix[..], &along].concat();
            let expected = run(target, &[7, 8], &mut prefilled(target, &all[..len]), &want).1;
            let got = run(target, &[7, 8], &mut cache, &want).1;
            assert_bits(&format!("{model}: kept {keep:?}, cut to {len}"), &got, &expected);
        }
    }
}

#[test]
fn trees_side_by_side_and_streamed_layers_are_the_same() {
    for model in ["qwen3_moe", "qwen3_5", "gpt_oss"] {
        let target = open(model);
        let streamed = open_target_streamed(&testdata(model), &Device::flex(), WeightDtype::F32).unwrap();
        let want = all_layers(&*target);
        let mut rng = CounterRng::new(23, &[]);
        let vocab = target.spec().vocab_size;
        let trees: Vec<(Vec<u32>, TreeShape)> = [9, 1, 17]
            .map(|rows| (random_ids(&mut rng, rows, vocab), random_shape(&mut rng, rows, 5)))
            .into_iter()
            .collect();
        let prefixes = [12, 40, 0].map(|rows| random_ids(&mut rng, rows, vocab));
        let mut expected = Vec::new();
        for ((ids, shape), prefix) in trees.iter().zip(&prefixes) {
            expected.extend(run_tree(&*target, ids, shape, &mut prefilled(&*target, prefix), &want).1);
        }
        for target in [&*target, &*streamed] {
            let mut caches: Vec<TargetCache> = prefixes.iter().map(|prefix| prefilled(target, prefix)).collect();
            let mut batch: Vec<_> =
                (trees.iter().zip(&mut caches)).map(|((ids, shape), cache)| TreeInput { ids, shape, cache }).collect();
            let out = target.forward_trees(&mut batch, &want, None).unwrap();
            assert_bits(model, &values(out.logits.unwrap()), &expected);
        }
    }
}

#[test]
fn other_delta_rules_are_their_paths_but_for_rounding() {
    let mut rng = CounterRng::new(24, &[]);
    // Measured: chunked 1.2e-6, rounded 1.2e-2 (a row of its own and a chunk of several round differently).
    for (rule, tolerance) in [(DeltaRule::Chunked { chunk: 8 }, 1e-5), (DeltaRule::FlaRounding, 5e-2)] {
        let options = TargetOptions { delta_rule: rule, ..TargetOptions::default() };
        let target = open_target_with(&testdata("qwen3_5"), &Device::flex(), &options).unwrap();
        let (want, vocab) = (all_layers(&*target), target.spec().vocab_size);
        let shape = random_shape(&mut rng, 24, 6);
        let (prefix, ids) = (random_ids(&mut rng, 33, vocab), random_ids(&mut rng, 24, vocab));
        let mut cache = prefilled(&*target, &prefix);
        let logits = run_tree(&*target, &ids, &shape, &mut cache, &want).1;
        for leaf in leaves(&shape) {
            let path = shape.path(leaf);
            let alone: Vec<u32> = path.iter().map(|&row| ids[row]).collect();
            let (_, expected) = run(&*target, &alone, &mut prefilled(&*target, &prefix), &want);
            assert_close(&format!("{rule:?}, {leaf}"), &pick_rows(&logits, vocab, &path), &expected, tolerance);
        }
        // What is kept is read again in one piece, as a forward over the path alone reads it.
        let path = shape.path(23);
        cache.keep(&path).unwrap();
        let mut alone = prefilled(&*target, &prefix);
        run(&*target, &path.iter().map(|&row| ids[row]).collect::<Vec<_>>(), &mut alone, &want);
        let (got, expected) = (run(&*target, &[3], &mut cache, &want).1, run(&*target, &[3], &mut alone, &want).1);
        assert_close(&format!("{rule:?}, after it"), &got, &expected, tolerance);
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let target = open("qwen3_5");
    let target = &*target;
    let last = Want { taps: vec![], logits: LogitRows::Last };
    let shape = TreeShape::new(vec![0, 0, 1]).unwrap();
    let mut cache = prefilled(target, &[1, 2, 3]);
    let error = |result: Result<(), draftsman_models::ModelError>, expected: &str| {
        let error = result.expect_err(expected).to_string();
        assert!(error.contains(expected), "`{error}` should say `{expected}`");
    };
    let tree = |ids: &[u32], shape: &TreeShape, cache: &mut TargetCache| {
        target.forward_trees(&mut [TreeInput { ids, shape, cache }], &last, None).map(drop)
    };
    error(tree(&[1, 2, 3], &shape, &mut cache), "a draft tree of 4 rows has 3 tokens");
    error(cache.keep(&[0]), "holds no draft tree");
    let max_positions = target.spec().max_positions;
    let long = TreeShape::new((0..max_positions).collect()).unwrap();
    error(tree(&vec![1; max_positions + 1], &long, &mut cache), &format!("is {max_positions}"));
    // Many rows that share their positions are no long sequence.
    let wide = TreeShape::new(vec![0; max_positions]).unwrap();
    tree(&vec![1; max_positions + 1], &wide, &mut cache).unwrap();
    cache.keep(&[]).unwrap();
    tree(&[4, 5, 6, 7], &shape, &mut cache).unwrap();
    error(tree(&[4, 5, 6, 7], &shape, &mut cache), "no path was kept");
    error(cache.keep(&[0, 3]), "no path");
    error(cache.keep(&[1]), "no path");
    cache.keep(&[0, 1, 3]).unwrap();
    let expected = run(target, &[9], &mut prefilled(target, &[1, 2, 3, 4, 5, 7]), &last).1;
    assert_bits("after errors", &run(target, &[9], &mut cache, &last).1, &expected);
    // A forward that stops below some layers fills and keeps only those that ran.
    let mut cache = target.new_cache();
    let tap = Want { taps: vec![0], logits: LogitRows::None };
    target
        .forward_trees(&mut [TreeInput { ids: &[4, 5, 6, 7], shape: &shape, cache: &mut cache }], &tap, None)
        .unwrap();
    cache.keep(&[0, 2]).unwrap();
    let (f, _) = run(target, &[9], &mut cache, &tap);
    let mut fresh = target.new_cache();
    run(target, &[4, 6], &mut fresh, &tap);
    assert_bits("below the last tap", &f, &run(target, &[9], &mut fresh, &tap).0);
}
