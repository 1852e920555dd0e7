//! The safetensors files that `trace` reads and writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use burn::tensor::{Device, Tensor};
use draftsman_kernels::MappedFile;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::json;

use crate::output::write_atomically;
use crate::printer::Printer;

/// The tensors of an input file; every accessor names the file and the key in its error.
pub(crate) struct Input {
    path: PathBuf,
    bytes: MappedFile,
}

impl Input {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let bytes = MappedFile::open(path)?;
        let input = Self { path: path.to_owned(), bytes };
        input.parse()?;
        Ok(input)
    }

    fn parse(&self) -> anyhow::Result<SafeTensors<'_>> {
        SafeTensors::deserialize(self.bytes.bytes())
            .with_context(|| format!("`{}` is not a valid safetensors file", self.path.display()))
    }

    pub(crate) fn has(&self, name: &str) -> anyhow::Result<bool> {
        Ok(self.parse()?.names().contains(&name))
    }

    /// Shape and row-major values of a floating-point tensor with `rank` dimensions.
    pub(crate) fn floats(&self, name: &str, rank: usize) -> anyhow::Result<(Vec<usize>, Vec<f32>)> {
        let file = self.parse()?;
        let view = self.view(&file, name, rank)?;
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F64 => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
            other => return Err(self.wrong_dtype(name, other, "F32")),
        };
        Ok((view.shape().to_vec(), values))
    }

    /// Like [`Self::floats`], as a tensor of two dimensions.
    pub(crate) fn matrix(&self, name: &str, device: &Device) -> anyhow::Result<Tensor<2>> {
        let (shape, values) = self.floats(name, 2)?;
        Ok(Tensor::<1>::from_floats(values.as_slice(), device).reshape([shape[0], shape[1]]))
    }

    /// Shape and values of an integer tensor with `rank` dimensions.
    pub(crate) fn integers(&self, name: &str, rank: usize) -> anyhow::Result<(Vec<usize>, Vec<i64>)> {
        let file = self.parse()?;
        let view = self.view(&file, name, rank)?;
        let data = view.data();
        let values = match view.dtype() {
            Dtype::I64 => data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            Dtype::I32 => data.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
            other => return Err(self.wrong_dtype(name, other, "I64")),
        };
        Ok((view.shape().to_vec(), values))
    }

    /// Integers that must be token ids below `vocab_size`.
    pub(crate) fn token_ids(
        &self,
        name: &str,
        rank: usize,
        vocab_size: usize,
    ) -> anyhow::Result<(Vec<usize>, Vec<u32>)> {
        let (shape, values) = self.integers(name, rank)?;
        let ids = values
            .iter()
            .enumerate()
            .map(|(i, &id)| match u32::try_from(id) {
                Ok(id) if (id as usize) < vocab_size => Ok(id),
                _ => Err(anyhow!(
                    "`{}`: `{name}` holds {id} at index {i}, the vocabulary has {vocab_size} rows\n\nhint: token ids run from 0 to {}",
                    self.path.display(),
                    vocab_size - 1
                )),
            })
            .collect::<anyhow::Result<_>>()?;
        Ok((shape, ids))
    }

    /// Integers that must not be negative.
    pub(crate) fn counts(&self, name: &str, rank: usize) -> anyhow::Result<(Vec<usize>, Vec<usize>)> {
        let (shape, values) = self.integers(name, rank)?;
        let counts = values
            .iter()
            .enumerate()
            .map(|(i, &v)| {
                usize::try_from(v).map_err(|_| {
                    anyhow!("`{}`: `{name}` holds {v} at index {i}, expected 0 or more", self.path.display())
                })
            })
            .collect::<anyhow::Result<_>>()?;
        Ok((shape, counts))
    }

    /// As [`Input::floats`], for logits or log-probabilities: NaN and +inf are refused, and rows without any finite value.
    pub(crate) fn scores(&self, name: &str, rank: usize) -> anyhow::Result<(Vec<usize>, Vec<f32>)> {
        let (shape, values) = self.floats(name, rank)?;
        if let Some(at) = values.iter().position(|v| v.is_nan() || *v == f32::INFINITY) {
            return Err(
                self.mismatch(&format!("`{name}` holds {} at flat index {at}, a score is finite or -inf", values[at]))
            );
        }
        let width = shape.last().copied().unwrap_or(0).max(1);
        if let Some(row) = values.chunks(width).position(|row| row.iter().all(|v| !v.is_finite())) {
            return Err(self.mismatch(&format!("`{name}` has no finite score in row {row}")));
        }
        Ok((shape, values))
    }

    /// A mask of one dimension: f32, u8, i64 or bool; anything but 0 is true.
    pub(crate) fn mask(&self, name: &str) -> anyhow::Result<Vec<bool>> {
        let file = self.parse()?;
        let view = self.view(&file, name, 1)?;
        Ok(match view.dtype() {
            Dtype::BOOL | Dtype::U8 => view.data().iter().map(|&b| b != 0).collect(),
            Dtype::I64 | Dtype::I32 => self.integers(name, 1)?.1.iter().map(|&v| v != 0).collect(),
            _ => self.floats(name, 1)?.1.iter().map(|&v| v != 0.0).collect(),
        })
    }

    fn view<'a>(&self, file: &SafeTensors<'a>, name: &str, rank: usize) -> anyhow::Result<TensorView<'a>> {
        let Ok(view) = file.tensor(name) else {
            let mut names = file.names();
            names.sort_unstable();
            bail!("`{}` has no tensor `{name}`\n\nhint: it holds {}", self.path.display(), names.join(", "));
        };
        if view.shape().len() != rank {
            bail!("`{}`: `{name}` has shape {:?}, expected {rank} dimension(s)", self.path.display(), view.shape());
        }
        Ok(view)
    }

    fn wrong_dtype(&self, name: &str, found: Dtype, expected: &str) -> anyhow::Error {
        anyhow!("`{}`: `{name}` has dtype {found:?}, expected {expected}", self.path.display())
    }

    /// The error for two tensors of this file that do not fit together.
    pub(crate) fn mismatch(&self, what: &str) -> anyhow::Error {
        anyhow!("`{}`: {what}", self.path.display())
    }
}

/// Tensors to be written, f32, by name.
#[derive(Default)]
pub(crate) struct Output(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Output {
    pub(crate) fn put(&mut self, name: impl Into<String>, shape: Vec<usize>, values: Vec<f32>) {
        self.0.insert(name.into(), (shape, values));
    }

    /// Stores `[rows, width]` under another shape with the same number of values.
    pub(crate) fn put_tensor(&mut self, name: impl Into<String>, shape: Vec<usize>, tensor: Tensor<2>) {
        self.put(name, shape, tensor.into_data().iter::<f32>().collect());
    }

    /// Writes the file whole or not at all, and says what is in it. Values that are no numbers are traced as they
    /// are, with a warning.
    pub(crate) fn write(self, path: &Path, printer: &Printer) -> anyhow::Result<()> {
        for (name, (_, values)) in &self.0 {
            let odd = values.iter().filter(|v| !v.is_finite()).count();
            if odd > 0 {
                printer.warning(format!("`{name}`: {odd} of {} values are NaN or infinite", values.len()));
            }
        }
        let bytes: BTreeMap<&str, (&[usize], Vec<u8>)> = self
            .0
            .iter()
            .map(|(name, (shape, values))| {
                let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                (name.as_str(), (shape.as_slice(), bytes))
            })
            .collect();
        let views = bytes
            .iter()
            .map(|(name, (shape, bytes))| Ok((*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let file = safetensors::serialize(views, None)?;
        write_atomically(path, &file)?;
        printer.note(format!("wrote `{}`", path.display()));
        let shapes: BTreeMap<&str, &[usize]> =
            self.0.iter().map(|(name, (shape, _))| (name.as_str(), shape.as_slice())).collect();
        printer.document(&json!({ "out": path, "tensors": shapes }))
    }
}
