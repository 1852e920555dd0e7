//! Checkpoints of the training: one safetensors file with parameters and moments, written under a temporary name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use draftsman_train::{AdamW, Moments};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::model::{Parameter, initial};
use super::recipe::{OPTIMIZER, SEED};

/// Where a training stands.
pub(crate) struct State {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) optimizer: AdamW,
    pub(crate) progress: Progress,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Progress {
    /// Completed updates.
    pub(crate) step: usize,
    /// Index of the next sample.
    pub(crate) next_sample: u64,
    /// Tokens read, and those of them that were learnt.
    pub(crate) tokens: u64,
    pub(crate) learnt_tokens: u64,
    pub(crate) seconds: f64,
}

impl State {
    pub(crate) fn initial() -> Self {
        Self { parameters: initial(SEED), optimizer: AdamW::new(OPTIMIZER), progress: Progress::default() }
    }

    /// The newest checkpoint of a folder, or the beginning.
    pub(crate) fn newest(folder: &Path) -> anyhow::Result<Self> {
        match newest_file(folder)? {
            None => Ok(Self::initial()),
            Some(path) => Self::read(&path).with_context(|| format!("cannot go on from `{}`", path.display())),
        }
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(path)?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
        let progress = metadata.metadata().as_ref().and_then(|map| map.get("progress"));
        let progress: Progress = serde_json::from_str(progress.ok_or_else(|| anyhow!("no progress in it"))?)?;
        let file = SafeTensors::deserialize(&bytes)?;
        let mut parameters = initial(SEED);
        let mut moments = BTreeMap::new();
        for Parameter { name, shape, values } in &mut parameters {
            *values = floats(&file, name, shape)?;
            let first = floats(&file, &format!("first.{name}"), shape)?;
            let second = floats(&file, &format!("second.{name}"), shape)?;
            moments.insert(name.clone(), Moments { shape: shape.clone(), first, second });
        }
        let optimizer = AdamW::with_state(OPTIMIZER, progress.step as u64, moments);
        Ok(Self { parameters, optimizer, progress })
    }

    pub(crate) fn save(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        for Parameter { name, shape, values } in &self.parameters {
            tensors.push((name.clone(), shape.clone(), bytes(values)));
            if let Some(moments) = self.optimizer.moments().get(name) {
                tensors.push((format!("first.{name}"), shape.clone(), bytes(&moments.first)));
                tensors.push((format!("second.{name}"), shape.clone(), bytes(&moments.second)));
            }
        }
        let views: Vec<(&String, TensorView<'_>)> = tensors
            .iter()
            .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
            .collect::<anyhow::Result<_>>()?;
        let metadata = [("progress".to_owned(), serde_json::to_string(&self.progress)?)].into();
        let all = safetensors::serialize(views, Some(metadata))?;
        let path = folder.join(format!("step-{:06}.safetensors", self.progress.step));
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, all)?;
        fs::File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, &path)?;
        Ok(())
    }
}

fn newest_file(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("step-") && name.ends_with(".safetensors")
    });
    files.sort();
    Ok(files.pop())
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> anyhow::Result<Vec<f32>> {
    let tensor = file.tensor(name)?;
    if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
        bail!("`{name}` is {:?} {:?}, expected F32 {shape:?}: the recipe has changed", tensor.dtype(), tensor.shape());
    }
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_back() {
        let folder = std::env::temp_dir().join(format!("xtask-checkpoint-{}", std::process::id()));
        let mut state = State::initial();
        let update = draftsman_train::Update { gradient_scale: 0.5, learning_rate: 0.1 };
        state.optimizer.begin_update();
        for Parameter { name, shape, values } in &mut state.parameters {
            let gradient: Vec<f32> = values.iter().enumerate().map(|(i, v)| v + i as f32).collect();
            state.optimizer.apply(name, shape, values, &gradient, update);
        }
        state.progress = Progress { step: 1, next_sample: 17, tokens: 300, learnt_tokens: 200, seconds: 0.1 };
        state.save(&folder).expect("saved");
        let read = State::newest(&folder).expect("read");
        fs::remove_dir_all(&folder).expect("removed");
        assert!(read.parameters == state.parameters, "parameters differ");
        assert!(read.optimizer == state.optimizer, "moments differ");
        assert_eq!(read.progress, state.progress);
    }
}
