//! Element types of torch and the storage classes that name them in a pickle.

use crate::weights::convert::Float;

/// An element type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dtype {
    /// As torch spells it, without `torch.`.
    pub(super) name: &'static str,
    /// Name of the typed storage class; newer types have none and lie in untyped storages.
    storage: Option<&'static str>,
    pub(super) bytes: usize,
    /// `None`: a type that weights are not read from.
    pub(super) float: Option<Float>,
}

impl Dtype {
    /// By the name of a storage class, e.g. `FloatStorage`.
    pub(super) fn of_storage(class: &str) -> Option<&'static Self> {
        DTYPES.iter().find(|dtype| dtype.storage == Some(class))
    }

    /// By its own name, e.g. `float32`.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        DTYPES.iter().find(|dtype| dtype.name == name)
    }
}

const fn dtype(name: &'static str, storage: &'static str, bytes: usize, float: Option<Float>) -> Dtype {
    Dtype { name, storage: Some(storage), bytes, float }
}

const fn untyped(name: &'static str, bytes: usize) -> Dtype {
    Dtype { name, storage: None, bytes, float: None }
}

static DTYPES: [Dtype; 20] = [
    dtype("float32", "FloatStorage", 4, Some(Float::F32)),
    dtype("float16", "HalfStorage", 2, Some(Float::F16)),
    dtype("bfloat16", "BFloat16Storage", 2, Some(Float::Bf16)),
    dtype("float64", "DoubleStorage", 8, Some(Float::F64)),
    dtype("int64", "LongStorage", 8, None),
    dtype("int32", "IntStorage", 4, None),
    dtype("int16", "ShortStorage", 2, None),
    dtype("int8", "CharStorage", 1, None),
    dtype("uint8", "ByteStorage", 1, None),
    dtype("bool", "BoolStorage", 1, None),
    dtype("complex64", "ComplexFloatStorage", 8, None),
    dtype("complex128", "ComplexDoubleStorage", 16, None),
    untyped("uint16", 2),
    untyped("uint32", 4),
    untyped("uint64", 8),
    untyped("float8_e4m3fn", 1),
    untyped("float8_e5m2", 1),
    untyped("float8_e4m3fnuz", 1),
    untyped("float8_e5m2fnuz", 1),
    untyped("float8_e8m0fnu", 1),
];
