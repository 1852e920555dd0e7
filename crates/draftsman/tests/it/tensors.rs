//! Reads and writes the safetensors files of `trace`.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Named tensors of a file, and those to write.
#[derive(Default)]
pub(crate) struct Tensors(Vec<(String, Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        Self(
            file.tensors()
                .into_iter()
                .map(|(name, t)| (name, t.dtype(), t.shape().to_vec(), t.data().to_vec()))
                .collect(),
        )
    }

    pub(crate) fn write(&self, path: &Path) {
        let views = self.0.iter().map(|(name, dtype, shape, data)| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("shape fits data"))
        });
        fs::write(path, safetensors::serialize(views, None).expect("serialize")).expect("write");
    }

    /// This tensor under another shape, added to `self` as `name`.
    pub(crate) fn take(&mut self, from: &Self, name: &str, shape: Option<&[usize]>) {
        let (_, dtype, old, data) = from.entry(name);
        let shape = shape.map_or_else(|| old.clone(), <[usize]>::to_vec);
        self.0.push((name.to_owned(), *dtype, shape, data.clone()));
    }

    pub(crate) fn put_ids(&mut self, name: &str, shape: &[usize], ids: &[i64]) {
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.0.push((name.to_owned(), Dtype::I64, shape.to_vec(), bytes));
    }

    pub(crate) fn put_floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.0.push((name.to_owned(), Dtype::F32, shape.to_vec(), bytes));
    }

    fn entry(&self, name: &str) -> &(String, Dtype, Vec<usize>, Vec<u8>) {
        self.0.iter().find(|(key, ..)| key == name).unwrap_or_else(|| panic!("`{name}` is missing"))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, ..)| name.as_str())
    }

    pub(crate) fn shape(&self, name: &str) -> &[usize] {
        &self.entry(name).2
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let (_, dtype, _, data) = self.entry(name);
        assert_eq!(*dtype, Dtype::F32, "`{name}`");
        data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<i64> {
        let (_, dtype, _, data) = self.entry(name);
        assert_eq!(*dtype, Dtype::I64, "`{name}`");
        data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
    }
}

/// ‖x − g‖ / ‖g‖
pub(crate) fn relative_error(found: &[f32], golden: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let difference: f64 = found.iter().zip(golden).map(|(a, b)| square(f64::from(a - b))).sum();
    let norm: f64 = golden.iter().map(|&b| square(f64::from(b))).sum();
    (difference / norm.max(f64::MIN_POSITIVE)).sqrt()
}

/// Demands that `found` equals `golden` up to a relative error.
pub(crate) fn assert_close(what: &str, found: &[f32], golden: &[f32], tolerance: f64) {
    assert_eq!(found.len(), golden.len(), "{what}: number of values");
    let error = relative_error(found, golden);
    let worst = (0..found.len()).max_by(|&a, &b| (found[a] - golden[a]).abs().total_cmp(&(found[b] - golden[b]).abs()));
    assert!(
        error <= tolerance,
        "{what} differs by {error:e}; most at {worst:?}: {:?}, expected {:?}",
        worst.map(|i| found[i]),
        worst.map(|i| golden[i])
    );
}
