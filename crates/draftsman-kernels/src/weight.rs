//! Weights: one type whatever holds them.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_flex::FlexTensor;
use half::{bf16, f16};

use crate::device::is_flex;
use crate::simd::Element;
use crate::simd::aligned::Aligned;
use crate::{KernelError, MappedFile, WeightDtype};

/// A weight matrix `[out, in]`, row-major. Cloning shares the memory.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one per matrix, which dwarfs it")]
pub enum Weight {
    /// A tensor: on a GPU, or a drafter's trainable parameter.
    Tensor(Tensor<2>),
    /// Frozen, in host memory.
    Packed(Arc<Packed>),
    /// Frozen, in a mapped file.
    Mapped(MappedWeight),
}

/// A frozen matrix in host memory.
#[derive(Debug)]
pub struct Packed {
    shape: [usize; 2],
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// At a cache line: the kernels read whole lines.
    F32(Aligned, usize),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

/// A frozen matrix inside a mapped file (little-endian).
#[derive(Debug, Clone)]
pub struct MappedWeight {
    file: Arc<MappedFile>,
    offset: usize,
    shape: [usize; 2],
    dtype: WeightDtype,
}

/// Borrowed values of a weight on the host.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slice<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

/// Runs `$body` with `$values` bound to the typed slice.
macro_rules! with_slice {
    ($slice:expr, |$values:ident| $body:expr) => {
        match $slice {
            $crate::weight::Slice::F32($values) => $body,
            $crate::weight::Slice::Bf16($values) => $body,
            $crate::weight::Slice::F16($values) => $body,
        }
    };
}
pub(crate) use with_slice;

/// A weight on the host: what the CPU kernels take.
#[derive(Debug, Clone)]
pub(crate) enum HostWeight {
    Packed(Arc<Packed>),
    Mapped(MappedWeight),
    /// Contiguous.
    Flex(FlexTensor),
}

impl Weight {
    /// A frozen weight in `dtype`: packed in host memory on the CPU, a tensor elsewhere. `values` is `[out, in]`.
    pub fn from_f32(
        values: Vec<f32>,
        shape: [usize; 2],
        dtype: WeightDtype,
        device: &Device,
    ) -> Result<Self, KernelError> {
        if Some(values.len()) != shape[0].checked_mul(shape[1]) {
            return Err(KernelError::WeightLength { values: values.len(), shape });
        }
        dtype.check(device)?;
        if !is_flex(device) {
            let tensor = Tensor::<2>::from_data(TensorData::new(values, shape), device);
            return Ok(Self::Tensor(if dtype == WeightDtype::F32 { tensor } else { tensor.cast(dtype.dtype()) }));
        }
        let values = match dtype {
            WeightDtype::F32 => {
                let mut aligned = Aligned::zeros(values.len());
                aligned[..values.len()].copy_from_slice(&values);
                Values::F32(aligned, values.len())
            }
            WeightDtype::Bf16 => Values::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            WeightDtype::F16 => Values::F16(values.into_iter().map(f16::from_f32).collect()),
        };
        Ok(Self::Packed(Arc::new(Packed { shape, values })))
    }

    /// A frozen weight that stays in its file: `offset` is its first byte. Needs a little-endian machine and an
    /// offset that is a multiple of the value size; CPU only.
    pub fn mapped(
        file: Arc<MappedFile>,
        offset: usize,
        shape: [usize; 2],
        dtype: WeightDtype,
    ) -> Result<Self, KernelError> {
        let bytes = shape[0].checked_mul(shape[1]).and_then(|n| n.checked_mul(dtype.bytes()));
        let bad = |problem| KernelError::MappedRange {
            path: file.path().to_owned(),
            offset,
            bytes: bytes.unwrap_or(usize::MAX),
            problem,
        };
        let end = bytes.and_then(|b| b.checked_add(offset)).ok_or_else(|| bad("is larger than any file"))?;
        if end > file.bytes().len() {
            return Err(bad("reaches past the end of the file"));
        }
        if !offset.is_multiple_of(dtype.bytes()) {
            return Err(bad("is not aligned to its value size"));
        }
        if cfg!(target_endian = "big") {
            return Err(bad("is little-endian and this machine is not"));
        }
        file.check()?;
        Ok(Self::Mapped(MappedWeight { file, offset, shape, dtype }))
    }

    /// `[out, in]`
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Tensor(t) => t.dims(),
            Self::Packed(p) => p.shape,
            Self::Mapped(m) => m.shape,
        }
    }

    /// Rows by index, as an embedding table is read: f32 `[ids, in]`.
    ///
    /// # Panics
    /// If an id is not below `out`: callers check ids against the vocabulary.
    pub fn rows(&self, ids: &[u32], device: &Device) -> Tensor<2> {
        let [out, width] = self.shape();
        for (i, id) in ids.iter().enumerate() {
            assert!((*id as usize) < out, "row {id} (index {i} of the ids) of a weight of shape [{out}, {width}]");
        }
        if let Self::Tensor(t) = self {
            let index: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
            let index = Tensor::<1, Int>::from_data(TensorData::new(index, [ids.len()]), &t.device());
            let rows = t.clone().select(0, index);
            return if rows.dtype() == DType::F32 { rows } else { rows.cast(DType::F32) };
        }
        let mut values = Vec::with_capacity(ids.len() * width);
        with_slice!(self.host_slice(), |all| for id in ids {
            let start = *id as usize * width;
            values.extend(all[start..start + width].iter().map(|v| v.widen()));
        });
        Tensor::from_data(TensorData::new(values, [ids.len(), width]), device)
    }

    /// All values, `[out, in]` row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::Tensor(t) => t.clone().into_data().iter::<f32>().collect(),
            _ => with_slice!(self.host_slice(), |all| all.iter().map(|v| v.widen()).collect()),
        }
    }

    /// The values as a plain f32 tensor on `device` (a copy unless it is an f32 tensor there already).
    pub fn to_tensor(&self, device: &Device) -> Tensor<2> {
        match self {
            Self::Tensor(t) if t.dtype() == DType::F32 => t.clone(),
            Self::Tensor(t) => t.clone().cast(DType::F32),
            _ => Tensor::from_data(TensorData::new(self.to_f32(), self.shape()), device),
        }
    }

    /// The weight for the CPU kernels. A tensor must be on the CPU device; its gradient tracking is left behind.
    pub(crate) fn to_host(&self) -> HostWeight {
        match self {
            Self::Tensor(t) => HostWeight::Flex(host::primitive(t.clone())),
            Self::Packed(p) => HostWeight::Packed(p.clone()),
            Self::Mapped(m) => HostWeight::Mapped(m.clone()),
        }
    }

    fn host_slice(&self) -> Slice<'_> {
        match self {
            Self::Packed(p) => p.slice(),
            Self::Mapped(m) => m.slice(),
            Self::Tensor(_) => Slice::F32(&[]),
        }
    }
}

impl Packed {
    fn slice(&self) -> Slice<'_> {
        match &self.values {
            Values::F32(v, len) => Slice::F32(&v[..*len]),
            Values::Bf16(v) => Slice::Bf16(v),
            Values::F16(v) => Slice::F16(v),
        }
    }
}

impl MappedWeight {
    fn slice(&self) -> Slice<'_> {
        let bytes = &self.file.bytes()[self.offset..][..self.shape[0] * self.shape[1] * self.dtype.bytes()];
        fn cast<T>(bytes: &[u8]) -> &[T] {
            // SAFETY: used with f32, bf16 and f16 only, of which every bit pattern is a value; the parts before and
            // after the aligned middle are empty, because `Weight::mapped` checked offset and length and a mapping
            // starts at a page.
            let (before, values, after) = unsafe { bytes.align_to::<T>() };
            debug_assert!(before.is_empty() && after.is_empty());
            values
        }
        match self.dtype {
            WeightDtype::F32 => Slice::F32(cast(bytes)),
            WeightDtype::Bf16 => Slice::Bf16(cast(bytes)),
            WeightDtype::F16 => Slice::F16(cast(bytes)),
        }
    }
}

impl HostWeight {
    pub(crate) fn shape(&self) -> [usize; 2] {
        match self {
            Self::Packed(p) => p.shape,
            Self::Mapped(m) => m.shape,
            Self::Flex(t) => t.shape().dims(),
        }
    }

    pub(crate) fn slice(&self) -> Slice<'_> {
        match self {
            Self::Packed(p) => p.slice(),
            Self::Mapped(m) => m.slice(),
            Self::Flex(t) => match t.dtype() {
                DType::BF16 => Slice::Bf16(t.as_slice::<bf16>().unwrap_or(&[])),
                DType::F16 => Slice::F16(t.as_slice::<f16>().unwrap_or(&[])),
                _ => Slice::F32(t.as_slice::<f32>().unwrap_or(&[])),
            },
        }
    }
}

/// From a tensor on the CPU device to its memory.
pub(crate) mod host {
    use burn::backend::{
        Autodiff, Backend, Dispatch, Flex, autodiff::checkpoint::strategy::CheckpointStrategy, backend_extension,
        tensor::FloatTensor,
    };
    use burn::tensor::Tensor;
    use burn_flex::FlexTensor;

    #[backend_extension(Autodiff, Flex)]
    trait HostOps: Backend {
        fn host_primitive(t: FloatTensor<Self>) -> FlexTensor;
    }

    impl HostOps for Flex {
        fn host_primitive(t: FlexTensor) -> FlexTensor {
            t.to_contiguous()
        }
    }

    impl<C: CheckpointStrategy> HostOps for Autodiff<Flex, C> {
        fn host_primitive(t: FloatTensor<Self>) -> FlexTensor {
            t.into_primitive().to_contiguous()
        }
    }

    /// The contiguous values of a tensor on the CPU device, shared where it is contiguous already.
    pub(crate) fn primitive<const D: usize>(t: Tensor<D>) -> FlexTensor {
        Dispatch::host_primitive(t.into_dispatch())
    }
}
