//! The drafter and the target on the software GPU device: the same code from the same weights as on the CPU, the
//! drafter's backward too. One binary, because the first use of every kernel compiles it.

#![cfg(feature = "wgpu")]

#[path = "../it/compare.rs"]
#[expect(dead_code, reason = "shared with the CPU tests, which use more of it")]
mod compare;
#[path = "../it/drafter/fixture.rs"]
#[expect(dead_code, reason = "shared with the CPU tests, which use more of it")]
mod fixture;
mod target;

use burn::tensor::Device;
use draftsman_contract::BlockLayout;
use draftsman_kernels::{DeviceKind, head_logits, linear_cross_entropy, open};
use draftsman_models::{Context, SafetensorsSource, WeightSource};

use compare::{assert_close, values};
use fixture::{CASES, Case};

const TOLERANCE: f64 = 1e-4;

/// Named values of one case on one device.
type Named = Vec<(String, Vec<f32>)>;

/// Every stage of the packed forward, the logits, loss and gradients, and the blocks again after a context cache.
fn run(case: &Case) -> Named {
    let features = case.features();
    let mut named: Named = Vec::new();
    let seen = case.train_forward(&case.layout, &features, &case.ids);
    named.extend(seen.0.into_iter().map(|(name, _, values)| (name, values)));

    let drafter = case.drafter.clone().trainable();
    let context = drafter.context(case.feature_rows(&features, 0..case.ids.len())).unwrap();
    let block = case.block(&drafter, &case.layout, &case.ids);
    let positions = case.positions();
    let rows = drafter.forward(block, &case.layout, Context::Rows { context, positions: &positions }, None).unwrap();
    named.push(("logits".into(), values(head_logits(rows.clone().inner(), &case.head, &drafter.head_options(0)))));
    let labels = case.layout.labels(&case.ids);
    let loss = linear_cross_entropy(rows, &case.head, &labels, &case.layout.weights(), &drafter.head_options(0));
    let mean = loss.numerator / loss.denominator;
    named.push(("loss".into(), values(mean.clone().inner())));
    for (name, gradient) in drafter.gradients(&mean.backward()) {
        named.push((format!("grad.{name}"), gradient.unwrap_or_else(|| panic!("no gradient for {name}"))));
    }

    for block in &case.layout.blocks {
        let document = block.document.clone();
        let mut cache = case.drafter.new_cache();
        // Two pieces, so that the cache grows.
        let middle = document.start + (block.anchor - document.start) / 2;
        for piece in [document.start..middle, middle..block.anchor].into_iter().filter(|piece| !piece.is_empty()) {
            let rows = case.feature_rows(&features, piece.clone());
            case.drafter.extend_context(&mut cache, rows, &positions[piece]).unwrap();
        }
        let layout = BlockLayout::decode(&case.rules, block.anchor - document.start, block.rows());
        let input = case.block(&case.drafter, &layout, &case.ids[document.start..]);
        let rows = case.drafter.forward(input, &layout, Context::Cached(&mut cache), None).unwrap();
        named.push((format!("cached block at {}", block.anchor), values(rows)));
    }
    named
}

#[test]
fn the_drafter_computes_the_same_on_the_software_gpu() {
    let gpu = open(DeviceKind::Wgpu).expect("a Vulkan driver (mesa-vulkan-drivers) is needed for this test");
    for name in CASES {
        let cpu = run(&Case::open(name, Device::flex()));
        let case = Case::open(name, gpu.clone());
        assert_ne!(case.drafter.device(), Device::flex(), "the drafter is on the GPU device");
        let on_gpu = run(&case);
        assert_eq!(on_gpu.len(), cpu.len());
        for ((stage, got), (expected_stage, expected)) in on_gpu.iter().zip(&cpu) {
            assert_eq!(stage, expected_stage);
            assert_close(&format!("{name}, GPU: {stage}"), got, expected, TOLERANCE);
            // Against the reference too, where it has the tensor: the two devices could be wrong alike.
            let golden = golden_values(&case.golden, stage);
            if let Some(golden) = golden {
                assert_close(&format!("{name}, GPU against golden: {stage}"), got, &golden, TOLERANCE);
            }
        }
        // A packed block and the same block after a cache.
        let packed = on_gpu.iter().find(|(stage, _)| stage == "output").map(|(_, values)| values.clone()).unwrap();
        let hidden = case.drafter.config().hidden_size;
        for (block, rows) in case.layout.blocks.iter().zip(case.layout.row_ranges()) {
            let stage = format!("cached block at {}", block.anchor);
            let (_, got) = on_gpu.iter().find(|(name, _)| *name == stage).unwrap();
            let expected = &packed[rows.start * hidden..rows.end * hidden];
            assert_close(&format!("{name}, GPU: {stage} against the packed one"), got, expected, TOLERANCE);
        }
    }
}

fn golden_values(golden: &SafetensorsSource, stage: &str) -> Option<Vec<f32>> {
    golden.shape(stage)?;
    Some(golden.load_f32(stage).unwrap())
}
