//! Every stage, the loss and every gradient against PyTorch.

use burn::tensor::Device;
use draftsman_contract::BlockLayout;
use draftsman_kernels::{head_logits, linear_cross_entropy};
use draftsman_models::{Context, WeightSource};

use super::fixture::{CASES, Case, Observed};
use crate::compare::{assert_close, values};

#[test]
fn layout_is_what_the_reference_counted() {
    for name in CASES {
        let case = Case::open(name, Device::flex());
        let whole = |name: &str| case.golden.load_i64(name).unwrap();
        let mask = case.drafter.config().contract.mask_token_id;
        let positions: Vec<i64> = case.layout.positions().into_iter().map(i64::from).collect();
        assert_eq!(positions, whole("positions"), "{name}: positions");
        let ids: Vec<i64> = case.layout.block_ids(&case.ids, mask).into_iter().map(i64::from).collect();
        assert_eq!(ids, whole("block_ids"), "{name}: block ids");
        let labels: Vec<i64> = case.layout.labels(&case.ids).into_iter().map(|l| l.map_or(-1, i64::from)).collect();
        assert_eq!(labels, whole("labels"), "{name}: labels");
        assert_close(
            &format!("{name}: weights"),
            &case.layout.weights(),
            &case.golden.load_f32("weights").unwrap(),
            1e-6,
        );
    }
}

#[test]
fn every_stage_equals_the_reference() {
    for name in CASES {
        let case = Case::open(name, Device::flex());
        let seen = case.train_forward(&case.layout, &case.features(), &case.ids);
        let layers = case.drafter.config().num_hidden_layers;
        let mut expected: Vec<String> = vec!["context".into()];
        expected.extend((0..layers).map(|i| format!("layer.{i}")));
        expected.extend(["final_norm".into(), "output".into()]);
        let names: Vec<&str> = seen.0.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, expected, "{name}: observed stages");
        for (stage, _, got) in &seen.0 {
            let golden = if stage == "output" { "final_norm" } else { stage };
            assert_close(&format!("{name}: {stage}"), got, &case.golden.load_f32(golden).unwrap(), 1e-5);
        }
        let [rows, hidden] = [case.layout.rows(), case.drafter.config().hidden_size];
        let (_, _, last) = seen.0.last().unwrap();
        let last = burn::tensor::TensorData::new(last.clone(), [rows, hidden]);
        let last = burn::tensor::Tensor::from_data(last, &case.device);
        let logits = values(head_logits(last, &case.head, &case.drafter.head_options(0)));
        assert_close(&format!("{name}: logits"), &logits, &case.golden.load_f32("logits").unwrap(), 1e-5);
    }
}

#[test]
fn a_shortened_block_after_a_cached_context_equals_the_reference() {
    for name in CASES {
        let case = Case::open(name, Device::flex());
        let anchor = case.golden.load_i64("short_anchor").unwrap()[0] as usize;
        let rows = case.golden.shape("short.logits").unwrap()[0];
        assert!(rows < case.drafter.config().contract.block_size, "{name}: not a shortened block");
        let layout = BlockLayout::decode(&case.rules, anchor, rows);
        let mut cache = case.drafter.new_cache();
        let features = case.feature_rows(&case.features(), 0..anchor);
        case.drafter.extend_context(&mut cache, features, &case.positions()[..anchor]).unwrap();
        let block = case.block(&case.drafter, &layout, &case.ids);
        let mut seen = Observed::default();
        let output = case
            .drafter
            .forward(block, &layout, Context::Cached(&mut cache), Some(&mut |n, t| seen.record(n, t)))
            .unwrap();
        assert_eq!(cache.len(), anchor, "{name}: the block's keys must leave the cache");
        let golden = |stage: &str| case.golden.load_f32(&format!("short.{stage}")).unwrap();
        assert_close(&format!("{name}: short final_norm"), &values(output.clone()), &golden("final_norm"), 1e-5);
        let logits = values(head_logits(output, &case.head, &case.drafter.head_options(0)));
        assert_close(&format!("{name}: short logits"), &logits, &golden("logits"), 1e-5);
    }
}

#[test]
fn loss_and_every_gradient_equal_the_reference() {
    for name in CASES {
        let case = Case::open(name, Device::flex());
        let drafter = case.drafter.clone().trainable();
        let context = drafter.context(case.feature_rows(&case.features(), 0..case.ids.len())).unwrap();
        let block = case.block(&drafter, &case.layout, &case.ids);
        let positions = case.positions();
        let rows =
            drafter.forward(block, &case.layout, Context::Rows { context, positions: &positions }, None).unwrap();
        let labels = case.layout.labels(&case.ids);
        let loss = linear_cross_entropy(rows, &case.head, &labels, &case.layout.weights(), &drafter.head_options(0));
        let golden = |name: &str| case.golden.load_f32(name).unwrap();
        assert_close(
            &format!("{name}: loss numerator"),
            &values(loss.numerator.clone()),
            &golden("loss_numerator"),
            1e-5,
        );
        assert_close(
            &format!("{name}: loss denominator"),
            &[loss.denominator as f32],
            &golden("loss_denominator"),
            1e-6,
        );
        let gradients = drafter.gradients(&(loss.numerator / loss.denominator).backward());
        assert_eq!(gradients.len(), 11 * drafter.config().num_hidden_layers + 3, "{name}: number of gradients");
        for (parameter, gradient) in gradients {
            let gradient = gradient.unwrap_or_else(|| panic!("{name}: no gradient for {parameter}"));
            let what = format!("{name}: gradient of {parameter}");
            assert_close(&what, &gradient, &golden(&format!("grad.{parameter}")), 1e-4);
        }
    }
}
