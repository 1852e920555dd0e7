//! What the tests of several operations share.

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::CounterRng;

/// Seeded normal numbers.
pub(crate) fn normal(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = CounterRng::new(seed, &[n as u64]);
    (0..n).map(|_| rng.normal()).collect()
}

/// A tensor on the CPU device, without autodiff.
pub(crate) fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

/// A leaf on the CPU device whose gradient is kept.
pub(crate) fn leaf<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex().autodiff()).require_grad()
}

pub(crate) fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec_as().expect("a float tensor")
}

/// Bits, so that a comparison sees signs of zero and NaN.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// `‖x − expected‖ / ‖expected‖ ≤ limit`; a failure names the worst value. NaN fails.
#[track_caller]
pub(crate) fn assert_close(name: &str, x: &[f32], expected: &[f32], limit: f64) {
    assert_eq!(x.len(), expected.len(), "{name}: another number of values");
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().map(|&x| f64::from(x)));
    let error = norm(&mut x.iter().zip(expected).map(|(&x, &y)| f64::from(x) - f64::from(y)));
    let fine = if size == 0.0 { error == 0.0 } else { error / size <= limit };
    let far = |i: usize| (f64::from(x[i]) - f64::from(expected[i])).abs();
    let worst = (0..x.len()).max_by(|&a, &b| far(a).total_cmp(&far(b)));
    assert!(
        fine,
        "{name}: relative error {:e} > {limit:e}; worst at {worst:?}: {:?}, expected {:?}",
        error / size,
        worst.map(|i| x[i]),
        worst.map(|i| expected[i])
    );
}

/// Gradient of `f` at `x` by central differences.
pub(crate) fn finite_differences(x: &[f32], mut f: impl FnMut(&[f32]) -> f64) -> Vec<f32> {
    const STEP: f32 = 1e-2;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let old = x[i];
            let (low, high) = (old - STEP, old + STEP);
            x[i] = high;
            let above = f(&x);
            x[i] = low;
            let below = f(&x);
            x[i] = old;
            ((above - below) / f64::from(high - low)) as f32
        })
        .collect()
}

/// Σ yᵢ·weightᵢ in f64.
pub(crate) fn weighted_sum(y: &[f32], weights: &[f32]) -> f64 {
    y.iter().zip(weights).map(|(&y, &w)| f64::from(y) * f64::from(w)).sum()
}

/// `f` in a pool of `threads` threads.
pub(crate) fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool").install(f)
}
