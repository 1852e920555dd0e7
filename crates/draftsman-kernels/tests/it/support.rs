//! What the tests of several operations share.

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::CounterRng;
use safetensors::{Dtype, SafeTensors};

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

/// A file of `testdata/`.
pub(crate) struct Golden(Vec<u8>);

pub(crate) fn golden(name: &str) -> Golden {
    let path = format!("{}/../../testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    Golden(std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}")))
}

impl Golden {
    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).expect("a safetensors file")
    }

    /// What stands before the last dot of the names.
    pub(crate) fn cases(&self) -> Vec<String> {
        let file = self.file();
        let names = file.names().into_iter().filter_map(|name| name.rsplit_once('.')).map(|(case, _)| case);
        let mut cases: Vec<String> = names.map(str::to_owned).collect();
        cases.sort();
        cases.dedup();
        cases
    }

    /// Shape and values of an f32 tensor.
    pub(crate) fn get(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        self.find(name).unwrap_or_else(|| panic!("{name} is not in the file"))
    }

    /// As [`Golden::get`] of what may be missing.
    pub(crate) fn find(&self, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let file = self.file();
        let tensor = file.tensor(name).ok()?;
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Some((tensor.shape().to_vec(), values.collect()))
    }

    /// Values of an i64 tensor that are positions.
    pub(crate) fn positions(&self, name: &str) -> Vec<u32> {
        let file = self.file();
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tensor.dtype(), Dtype::I64, "{name}");
        let values = tensor.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")));
        values.map(|x| u32::try_from(x).expect("a position")).collect()
    }
}
