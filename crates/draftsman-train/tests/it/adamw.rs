//! AdamW and clipping against PyTorch (`scripts/golden/adamw.py`).

use draftsman_train::{AdamW, AdamWOptions, Update, clip_factor, global_norm};
use safetensors::SafeTensors;

const LR: f64 = 3e-2;
const STEPS: usize = 12;

fn golden() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/adamw.safetensors")).unwrap()
}

fn values(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    tensor.data().as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn assert_close(name: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{name}: number of values");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{name}[{index}]: {got}, PyTorch {want}");
    }
}

#[test]
fn follows_pytorch() {
    let bytes = golden();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let options = AdamWOptions { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let mut optimizer = AdamW::new(options);
    let mut matrix = values(&file, "matrix.start");
    let mut vector = values(&file, "vector.start");
    let norms = values(&file, "norms");
    assert_eq!(norms.len(), STEPS);
    for (step, golden_norm) in norms.iter().enumerate() {
        let matrix_gradient = values(&file, &format!("matrix.gradient.{step}"));
        let vector_gradient = values(&file, &format!("vector.gradient.{step}"));
        let norm = global_norm([&matrix_gradient[..], &vector_gradient[..]]);
        assert_close(&format!("norm of step {step}"), &[norm as f32], &[*golden_norm]);
        let update = Update { gradient_scale: clip_factor(norm, 1.0) as f32, learning_rate: LR / (1.0 + step as f64) };
        optimizer.begin_update();
        optimizer.apply("matrix", &[5, 7], &mut matrix, &matrix_gradient, update);
        optimizer.apply("vector", &[6], &mut vector, &vector_gradient, update);
        assert_close(&format!("matrix.after.{step}"), &matrix, &values(&file, &format!("matrix.after.{step}")));
        assert_close(&format!("vector.after.{step}"), &vector, &values(&file, &format!("vector.after.{step}")));
    }
    // The sequence must hold both kinds of step, or it would not test clipping.
    assert!(norms.iter().any(|norm| *norm < 1.0) && norms.iter().any(|norm| *norm > 1.0));
}

#[test]
fn norm_has_the_same_bits_for_any_number_of_threads() {
    let values: Vec<f32> = (0..200_001).map(|index| ((index * 7919) % 1009) as f32 * 1e-3 - 0.5).collect();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| global_norm([&values[..150_000], &values[150_000..]])).to_bits()
    };
    assert_eq!(with(1), with(2));
}

#[test]
fn clipping_never_raises_a_gradient() {
    for (norm, clip, expected) in [(0.5, 1.0, 1.0), (4.0, 1.0, 1.0 / (4.0 + 1e-6)), (4.0, 0.0, 1.0), (0.0, 1.0, 1.0)] {
        assert_eq!(clip_factor(norm, clip), expected, "norm {norm}, clip {clip}");
    }
}
