//! Tensors under the names a model knows, whatever the trainer called them.

mod name_map;
mod wrappers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::source::WeightSource;
use crate::error::ModelError;

pub use name_map::NameMap;
use wrappers::{candidates, is_flat_parameter, is_training_state};

/// A weight source whose names are looked up, in this order: in a [`NameMap`]; as they are; without the parts that
/// wrappers (compilation, data parallelism, sharding, checkpointing) and enclosing modules and dictionaries put there;
/// in the model's list of other names. Tensors that none of these know keep their names, so that
/// [`check_tensors`](super::check_tensors) reports them; optimizer and scheduler states are left out.
pub struct RenamedSource {
    inner: Box<dyn WeightSource>,
    /// New name to old name.
    names: BTreeMap<String, String>,
    ignored: Vec<String>,
}

impl RenamedSource {
    /// Renames the tensors of `inner` to names in `known`; `other_names` are pairs (other, known) that need no map.
    ///
    /// Two tensors with the same new name are refused, and so are rules of the map that match nothing or lead to an
    /// unknown name; everything wrong is reported together.
    pub fn new(
        inner: Box<dyn WeightSource>,
        known: &BTreeSet<String>,
        other_names: &[(&str, &str)],
        map: Option<&NameMap>,
    ) -> Result<Self, ModelError> {
        let mut problems = map.map(|map| map.unknown_targets(known)).unwrap_or_default();
        let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut ignored = Vec::new();
        let mut used = map.map(NameMap::usage).unwrap_or_default();
        for old in inner.names() {
            let candidates = candidates(&old);
            let mapped = map.and_then(|map| candidates.iter().find_map(|name| map.apply(name, &mut used)));
            let new = match mapped {
                Some(Err(problem)) => {
                    problems.push(format!("tensor `{old}`: {problem}"));
                    continue;
                }
                Some(Ok(None)) => {
                    ignored.push(old);
                    continue;
                }
                Some(Ok(Some(new))) if !known.contains(&new) => {
                    problems.push(format!("tensor `{old}` would become `{new}`, which this model does not have"));
                    continue;
                }
                Some(Ok(Some(new))) => new,
                None => match find_known(&candidates, known, other_names) {
                    Some(new) => new,
                    None if is_training_state(&candidates) => {
                        ignored.push(old);
                        continue;
                    }
                    None => {
                        if is_flat_parameter(&old) {
                            problems.push(format!(
                                "tensor `{old}` holds many parameters that FSDP flattened into one\n    hint: save a \
                                 full state_dict (StateDictType.FULL_STATE_DICT), not a local one"
                            ));
                            continue;
                        }
                        old.clone()
                    }
                },
            };
            sources.entry(new).or_default().push(old);
        }
        if let Some(map) = map {
            problems.0.extend(map.unused(&used));
        }
        let mut names = BTreeMap::new();
        for (new, mut old) in sources {
            if old.len() > 1 {
                problems.push(format!(
                    "tensors `{}` would all become `{new}`\n    hint: a name map with `ignore = [\"...\"]` leaves the \
                     others out",
                    old.join("`, `")
                ));
            }
            names.extend(old.pop().map(|old| (new, old)));
        }
        problems.into_model_result(inner.path())?;
        Ok(Self { inner, names, ignored })
    }

    /// Pairs (new name, old name) that differ, sorted by the new one.
    pub fn renamed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().filter(|(new, old)| new != old).map(|(new, old)| (new.as_str(), old.as_str()))
    }

    /// Tensors left out: states of training, and what the map ignores. Under their old names.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The name of a tensor in the file.
    pub fn old_name(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }
}

impl WeightSource for RenamedSource {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn file_of(&self, name: &str) -> PathBuf {
        self.inner.file_of(self.old_name(name).unwrap_or(name))
    }

    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.inner.shape(self.old_name(name)?)
    }

    fn dtype(&self, name: &str) -> Option<(String, bool)> {
        self.inner.dtype(self.old_name(name)?)
    }

    fn load_f32(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        match self.old_name(name) {
            Some(old) => self.inner.load_f32(old),
            None => Err(ModelError::missing_tensor(self.path(), name)),
        }
    }
}

fn find_known(candidates: &[String], known: &BTreeSet<String>, other_names: &[(&str, &str)]) -> Option<String> {
    let other = |name: &String| other_names.iter().find(|(other, _)| other == name).map(|(_, known)| known.to_string());
    candidates.iter().find_map(|name| if known.contains(name) { Some(name.clone()) } else { other(name) })
}
