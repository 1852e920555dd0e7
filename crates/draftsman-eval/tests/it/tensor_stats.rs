//! Moments against two passes in f64, and the whole against tensors gathered one by one.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use draftsman_contract::{BlockLayout, CounterRng, HoleRule, LayoutRules, default_gamma};
use draftsman_eval::{DrafterStats, Moments, StatsDocument, StatsReport, TensorStats, first_non_finite, tensor_stats};
use draftsman_kernels::head_logits;
use draftsman_models::{Context, Dflash, LogitRows, Target, TargetInput, Want};

use crate::tiny;

/// Mean, std, rms, min, max of the finite values, and the share of the others, by definition.
fn by_definition(values: &[f32]) -> (Option<[f64; 5]>, f64) {
    let finite: Vec<f64> = values.iter().filter(|v| v.is_finite()).map(|&v| f64::from(v)).collect();
    let share = (values.len() - finite.len()) as f64 / values.len().max(1) as f64;
    if finite.is_empty() {
        return (None, share);
    }
    let n = finite.len() as f64;
    let mean = finite.iter().sum::<f64>() / n;
    let variance = finite.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let rms = (finite.iter().map(|v| v * v).sum::<f64>() / n).sqrt();
    let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (Some([mean, variance.sqrt(), rms, min, max]), share)
}

fn found(moments: &Moments) -> (Option<[f64; 5]>, f64) {
    let all = || Some([moments.mean()?, moments.std()?, moments.rms()?, moments.min()?, moments.max()?]);
    (all(), moments.non_finite_share())
}

/// Every number within a billionth: of the spread where it is one of location or spread, of itself otherwise.
fn assert_same(what: &str, found: (Option<[f64; 5]>, f64), expected: (Option<[f64; 5]>, f64)) {
    assert_eq!(found.1, expected.1, "{what}: share of values that are not finite");
    assert_eq!(found.0.is_some(), expected.0.is_some(), "{what}");
    let (Some(found), Some(expected)) = (found.0, expected.0) else { return };
    let rounding = 1e-15 * expected[2];
    for (at, tolerance) in [1e-9 * expected[1] + rounding, 1e-9 * expected[1] + rounding, 1e-9 * expected[2], 0.0, 0.0]
        .into_iter()
        .enumerate()
    {
        assert!((found[at] - expected[at]).abs() <= tolerance, "{what}: {found:?}, expected {expected:?}");
    }
}

#[test]
fn moments_are_those_of_the_definition() {
    let mut rng = CounterRng::new(1, &[5]);
    let mut normal =
        |count: usize, mean: f32, std: f32| -> Vec<f32> { (0..count).map(|_| mean + std * rng.normal()).collect() };
    let check = |what: &str, values: &[f32]| {
        assert_same(what, found(&Moments::of(values)), by_definition(values));
        // However the values are cut.
        for part in [1, 7, 4096, 5000] {
            let mut merged = Moments::EMPTY;
            values.chunks(part).for_each(|part| merged.merge(&Moments::of(part)));
            assert_same(&format!("{what} in parts of {part}"), found(&merged), by_definition(values));
            assert_eq!(merged.count(), values.len() as u64);
        }
    };
    check("nothing", &[]);
    check("one", &[-3.5]);
    check("equal", &[0.1; 9000]);
    check("zeros", &[0.0; 10]);
    check("usual", &normal(20_001, 0.3, 2.0));
    check("huge mean", &normal(20_001, 3e6, 1.0));
    check("huge", &normal(9001, 0.0, 1e37));
    check("tiny", &normal(9001, 0.0, 1e-40));
    check("two scales", &[normal(5000, -1e8, 1.0), normal(3, 0.0, 1e-3), normal(5000, 1e8, 1.0)].concat());
    check("only odd", &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let mut odd = normal(9001, 1.0, 1.0);
    for (at, value) in [(0, f32::NAN), (17, f32::INFINITY), (4096, f32::NEG_INFINITY), (9000, f32::NAN)] {
        odd[at] = value;
    }
    check("some odd", &odd);
    assert_eq!((Moments::of(&odd).nan(), Moments::of(&odd).non_finite()), (2, 4));
    // A first part without a finite value leaves no trace in the moments.
    check("odd first", &[vec![f32::NAN; 5000], normal(100, 5.0, 1.0)].concat());
    let json = serde_json::to_value(Moments::of(&[f32::NAN, f32::INFINITY])).unwrap();
    let expected = serde_json::json!({ "mean": null, "std": null, "rms": null, "min": null, "max": null, "nan": 1,
        "infinite": 1, "non_finite_share": 1.0 });
    assert_eq!(json, expected);
}

/// Values by the tensor's name.
type Gathered = BTreeMap<String, (usize, Vec<f32>)>;

fn gather(into: &mut Gathered, name: &str, tensor: &Tensor<2>) {
    let (rows, values) = into.entry(name.to_owned()).or_default();
    *rows += tensor.dims()[0];
    values.extend(tensor.clone().into_data().iter::<f32>());
}

/// All layers, final norm and logits of one forward a document, and each block drafted alone from what precedes it.
fn gather_all(
    target: &dyn Target,
    drafters: &[(&Dflash, Vec<Vec<usize>>)],
    documents: &[StatsDocument],
) -> (Gathered, Vec<Gathered>) {
    let mut of_target = Gathered::new();
    let mut of_drafters: Vec<Gathered> = drafters.iter().map(|_| Gathered::new()).collect();
    for (index, document) in documents.iter().enumerate() {
        let mut layers: BTreeMap<usize, Tensor<2>> = BTreeMap::new();
        let mut observe = |name: &str, tensor: &Tensor<2>| match name.strip_prefix("layer.") {
            Some(layer) => {
                layers.insert(layer.parse().unwrap(), tensor.clone());
                gather(&mut of_target, &format!("aux_hidden.{name}"), tensor);
            }
            None if name == "final_norm" => gather(&mut of_target, "last_hidden", tensor),
            None => {}
        };
        let mut inputs = [TargetInput { ids: &document.ids, cache: &mut target.new_cache() }];
        let want = Want { taps: Vec::new(), logits: LogitRows::All };
        let logits = target.forward(&mut inputs, &want, Some(&mut observe)).unwrap().logits.unwrap();
        gather(&mut of_target, "logits", &logits);
        for ((drafter, anchors), into) in drafters.iter().zip(&mut of_drafters) {
            let contract = &drafter.config().contract;
            let features = contract.target_layer_ids.iter().map(|layer| layers[layer].clone()).collect();
            let context = drafter.context(Tensor::cat(features, 1)).unwrap();
            gather(into, "context", &context);
            let rules = LayoutRules::from(contract, HoleRule::Cut, default_gamma(contract.block_size));
            for &anchor in &anchors[index] {
                let layout = BlockLayout::decode(&rules, anchor, contract.block_size);
                let ids = layout.block_ids(&document.ids, contract.mask_token_id);
                let block = drafter.embed(&ids, target.embedding()).unwrap();
                let positions: Vec<u32> = (0..anchor as u32).collect();
                // burn narrows to no rows at all only by a panic.
                let before = match anchor {
                    0 => Tensor::zeros([0, drafter.config().hidden_size], target.device()),
                    rows => context.clone().narrow(0, 0, rows),
                };
                let context = Context::Rows { context: before, positions: &positions };
                let mut observe = |name: &str, x: &Tensor<2>| gather(into, &format!("drafter.{name}"), x);
                let hidden = drafter.forward(block, &layout, context, Some(&mut observe)).unwrap();
                let logits = head_logits(hidden, target.head(), &drafter.head_options(0));
                gather(into, "drafter.logits", &logits);
            }
        }
    }
    (of_target, of_drafters)
}

fn assert_stats(found_stats: &[TensorStats], names: &[&str], gathered: &Gathered) {
    let found_names: Vec<&str> = found_stats.iter().map(|stats| stats.name.as_str()).collect();
    assert_eq!(found_names, names);
    for stats in found_stats {
        let (rows, values) = &gathered[&stats.name];
        assert_eq!((stats.rows as usize, stats.rows as usize * stats.dim), (*rows, values.len()), "{}", stats.name);
        assert_same(&stats.name, found(&stats.moments), by_definition(values));
    }
}

const TARGET_NAMES: [&str; 5] =
    ["aux_hidden.layer.0", "aux_hidden.layer.1", "aux_hidden.layer.2", "last_hidden", "logits"];
const DRAFTER_NAMES: [&str; 5] =
    ["context", "drafter.layer.0", "drafter.layer.1", "drafter.final_norm", "drafter.logits"];

#[test]
fn every_tensor_has_the_moments_of_its_values() {
    let target = tiny::target(11);
    let six = tiny::drafter(target.as_ref(), 6, 3);
    let mut config = tiny::drafter_config(4);
    config.contract.target_layer_ids = vec![2, 1];
    let four = tiny::drafter(target.as_ref(), 4, 4).with_config(config).unwrap();
    let document = |seed: u64, tokens: usize, prompt_tokens: usize| StatsDocument {
        ids: tiny::prompt(seed, tokens),
        prompt_tokens,
    };
    // Usual; an answer of one token; no answer; one token in all; longer than the rows of a chunk of logits.
    let documents =
        [document(1, 25, 5), document(2, 9, 8), document(3, 12, 12), document(4, 1, 1), document(5, 190, 3)];
    let steps = |first: usize, last: usize, step: usize| (first..last).step_by(step).collect::<Vec<usize>>();
    let of_six = vec![vec![5, 10, 15, 20], vec![8], vec![1, 6], vec![0], steps(3, 189, 5)];
    let of_four = vec![vec![5, 8, 11, 14, 17, 20, 23], vec![8], vec![1, 4, 7, 10], vec![0], steps(3, 189, 3)];
    let blocks = [&of_six, &of_four].map(|anchors| anchors.iter().map(Vec::len).sum::<usize>() as u64);
    let (of_target, of_drafters) = gather_all(target.as_ref(), &[(&six, of_six), (&four, of_four)], &documents);
    let drafters = [("six".to_owned(), &six), ("four".to_owned(), &four)];
    for rows_per_pass in [0, 7, 25, 100, 10_000] {
        let report = tensor_stats(target.as_ref(), &[1], &drafters, &documents, rows_per_pass).unwrap();
        assert_eq!((report.documents, report.documents_without_answer), (5, 2));
        assert_stats(&report.target, &TARGET_NAMES, &of_target);
        for ((group, gathered), blocks) in report.drafters.iter().zip(&of_drafters).zip(blocks) {
            assert_eq!(group.blocks, blocks, "{}", group.name);
            assert_stats(&group.tensors, &DRAFTER_NAMES, gathered);
        }
        let ids: Vec<_> = report.drafters.iter().map(|d| (d.name.as_str(), d.target_layer_ids.clone())).collect();
        assert_eq!(ids, [("six", vec![0, 2]), ("four", vec![2, 1])]);
        assert_eq!(first_non_finite(&report.target), None);
    }
    // Without a drafter the target's rows alone.
    let report = tensor_stats(target.as_ref(), &[1, 1, 2], &[], &documents, 64).unwrap();
    assert_stats(&report.target, &[&TARGET_NAMES[1..]].concat(), &of_target);
    assert!(report.drafters.is_empty());
    // The last layer as a tap, and no document with a token.
    let empty = StatsDocument { ids: Vec::new(), prompt_tokens: 0 };
    let report = tensor_stats(target.as_ref(), &[3], &drafters[..1], &[empty], 64).unwrap();
    let counts = |tensors: &[TensorStats]| tensors.iter().map(|t| (t.rows, t.moments.mean())).collect::<Vec<_>>();
    assert_eq!(counts(&report.target), [(0, None); 5]);
    assert_eq!(counts(&report.drafters[0].tensors), [(0, None); 5]);
    assert!(tensor_stats(target.as_ref(), &[4], &[], &documents, 64).is_err());
}

#[test]
fn the_first_tensor_that_is_no_number_is_named() {
    let target = tiny::target(11);
    let documents = [StatsDocument { ids: tiny::prompt(1, 20), prompt_tokens: 4 }];
    // Weights too large for a float.
    let check = |tensor: &str, expected: &str| {
        let drafter = tiny::drafter(target.as_ref(), 6, 3).map_parameters(|name, parameter| match parameter {
            draftsman_models::Parameter::Matrix(t) if name == tensor => {
                draftsman_models::Parameter::Matrix(t.mul_scalar(f32::INFINITY))
            }
            other => other,
        });
        let StatsReport { target: tensors, drafters, .. } =
            tensor_stats(target.as_ref(), &[], &[("d".to_owned(), &drafter)], &documents, 64).unwrap();
        assert_eq!(first_non_finite(&tensors), None);
        let DrafterStats { tensors, .. } = &drafters[0];
        let first = first_non_finite(tensors).expect(tensor);
        assert_eq!(first.name, expected, "{tensor}");
        assert!(first.moments.non_finite_share() > 0.5, "{tensor}");
    };
    check("fc.weight", "context");
    check("layers.0.mlp.up_proj.weight", "drafter.layer.0");
    check("layers.1.mlp.up_proj.weight", "drafter.layer.1");
}
