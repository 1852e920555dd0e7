//! Sharded weights: an index that names the file of every tensor, and the tensors of several files as one set.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{ModelError, Problems};

/// Largest index file read.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// The tensors of one or more files, each described by an `E`.
pub(super) struct ShardedTensors<F, E> {
    files: Vec<F>,
    /// Name to (index into `files`, description).
    tensors: BTreeMap<String, (usize, E)>,
}

impl<F, E> ShardedTensors<F, E> {
    /// The tensors of one file.
    pub(super) fn single(file: F, tensors: BTreeMap<String, E>) -> Self {
        Self { files: vec![file], tensors: tensors.into_iter().map(|(name, entry)| (name, (0, entry))).collect() }
    }

    /// A tensor and the file that holds it.
    pub(super) fn get(&self, name: &str) -> Option<(&F, &E)> {
        self.tensors.get(name).map(|(file, entry)| (&self.files[*file], entry))
    }

    /// All names, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}

/// Opens exactly the files that `index` names, each a plain name in `folder` that ends in `extension`.
///
/// Tensors of these files that the index leaves out belong to the set as well, because other readers load whole files;
/// what must not be there is for the model to say. A tensor in two files is refused.
pub(super) fn open_index<F, E>(
    folder: &Path,
    index: &Path,
    extension: &str,
    open: impl Fn(&Path) -> Result<(F, BTreeMap<String, E>), ModelError>,
) -> Result<ShardedTensors<F, E>, ModelError> {
    let map = read_index(index, extension)?;
    let mut problems = Problems::default();
    let mut names: Vec<&String> = map.values().collect();
    names.sort();
    names.dedup();
    let mut opened: Vec<&str> = Vec::new();
    let mut files = Vec::new();
    let mut tensors: BTreeMap<String, (usize, E)> = BTreeMap::new();
    for name in names {
        match open(&folder.join(name)) {
            Err(error) => problems.push(error.to_string()),
            Ok((file, entries)) => {
                for (tensor, entry) in entries {
                    if let Some((first, _)) = tensors.get(&tensor) {
                        problems.push(format!("tensor `{tensor}` is in two files, {} and {name}", opened[*first]));
                    } else {
                        tensors.insert(tensor, (files.len(), entry));
                    }
                }
                opened.push(name);
                files.push(file);
            }
        }
    }
    for (tensor, name) in &map {
        let Some(file) = opened.iter().position(|file| file == name) else {
            continue; // its file is reported already
        };
        if tensors.get(tensor).is_none_or(|(holder, _)| *holder != file) {
            problems.push(format!("tensor `{tensor}` is not in {name}, where the index puts it"));
        }
    }
    problems.into_model_result(index)?;
    Ok(ShardedTensors { files, tensors })
}

/// The `weight_map` of an index: tensor name to file.
pub(crate) fn read_index(path: &Path, extension: &str) -> Result<BTreeMap<String, String>, ModelError> {
    let size = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?.len();
    if size > MAX_INDEX_BYTES {
        return Err(ModelError::malformed(
            path,
            format!("the index has {size} bytes, at most {MAX_INDEX_BYTES} are read"),
            "this is not an index of weight files",
        ));
    }
    let text = std::fs::read(path).map_err(|e| ModelError::io(path, e))?;
    #[derive(Deserialize)]
    struct Index {
        weight_map: UniqueMap<String>,
    }
    let Index { weight_map: UniqueMap(weight_map) } = serde_json::from_slice(&text).map_err(|e| {
        ModelError::malformed(
            path,
            format!("not an index of weight files: {e}"),
            "it needs an object `weight_map` of tensor name to file name, each name once",
        )
    })?;
    let mut problems = Problems::default();
    for (name, file) in &weight_map {
        let plain = file.ends_with(extension) && !file.starts_with('.') && !file.contains(['/', '\\', ':', '\0']);
        if !plain {
            problems.push(format!("`weight_map.{name}` names {file:?}, which is not a plain {extension} file name"));
        }
    }
    if weight_map.is_empty() {
        problems.push("`weight_map` names no tensor");
    }
    problems.into_model_result(path)?;
    Ok(weight_map)
}

/// A JSON object in which no key may occur twice: two readers would see two different objects.
pub(super) struct UniqueMap<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for MapVisitor<V> {
            type Value = UniqueMap<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, V>()? {
                    if entries.contains_key(&name) {
                        return Err(de::Error::custom(format!("`{name}` is listed twice")));
                    }
                    entries.insert(name, value);
                }
                Ok(UniqueMap(entries))
            }
        }
        deserializer.deserialize_map(MapVisitor(PhantomData))
    }
}
