//! The door between burn tensors and the hand-written CPU kernels.

use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use burn_flex::FlexTensor;

use crate::simd::{LANES, Simd};

/// Whether the hand-written path can take this tensor: on the CPU device (with or without autodiff), in f32.
pub(crate) fn on_flex<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && x.device() == Device::flex()
}

/// The values of a tensor made contiguous by [`FlexTensor::to_contiguous`].
pub(crate) fn values(x: &FlexTensor) -> &[f32] {
    x.as_slice::<f32>().expect("contiguous f32: the callers make it so and `on_flex` asked for the type")
}

/// A tensor of these values, row-major.
pub(crate) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Values of a tensor of any device as f32, row-major. Copies only what is shared or strided.
pub(crate) fn to_vec<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec_as::<f32>().expect("float tensors convert to f32")
}

/// Visits `0..n` as (offset, lanes) with 16 lanes until fewer are left. Called inside a [`crate::simd::Kernel`].
#[inline(always)]
pub(crate) fn each_vector(n: usize, mut f: impl FnMut(usize, usize)) {
    let mut i = 0;
    while i + LANES <= n {
        f(i, LANES);
        i += LANES;
    }
    if i < n {
        f(i, n - i);
    }
}

/// `n` lanes of `x` from `i`, the others 0.
#[inline(always)]
pub(crate) fn load<S: Simd>(s: S, x: &[f32], i: usize, n: usize) -> S::F {
    assert!(n <= LANES && i + n <= x.len());
    // SAFETY: the assertion.
    unsafe { if n == LANES { s.load(x.as_ptr().add(i)) } else { s.load_partial(x.as_ptr().add(i), n) } }
}

/// The first `n` lanes of `v` to `y` at `i`.
#[inline(always)]
pub(crate) fn store<S: Simd>(s: S, y: &mut [f32], i: usize, v: S::F, n: usize) {
    assert!(n <= LANES && i + n <= y.len());
    // SAFETY: the assertion.
    unsafe { if n == LANES { s.store(y.as_mut_ptr().add(i), v) } else { s.store_partial(y.as_mut_ptr().add(i), v, n) } }
}
