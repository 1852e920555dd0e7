//! The safetensors files that `trace` reads and writes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use burn::tensor::{Device, Tensor};
use draftsman_kernels::MappedFile;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

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

    /// Writes the file whole or not at all.
    pub(crate) fn write(self, path: &Path, input: &Input) -> anyhow::Result<()> {
        if fs::canonicalize(path).is_ok_and(|out| fs::canonicalize(&input.path).is_ok_and(|source| out == source)) {
            bail!("the output `{}` is the input file", path.display());
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
        write_atomically(path, &file)
    }
}

/// Temporary name, sync, rename: a reader never sees half a file and a full disk leaves the old one.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| anyhow!("`{}` is not a file name", path.display()))?.to_string_lossy();
    let temporary = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| fs::File::open(folder)?.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("cannot write `{}`", path.display()))
}
