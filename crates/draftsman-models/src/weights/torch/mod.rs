//! Checkpoints of `torch.save` (`.pt`, `.pth`, `.bin`, `.ckpt`), read without executing anything in them.
//!
//! Such a file is a zip archive of one pickle, which describes the tensors, and one entry a storage, which is mapped.
//! Everything that is no tensor is skipped; nested dictionaries become dotted names.

mod dtype;
mod pickle;
mod zip;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use draftsman_kernels::MappedFile;

use super::index::{ShardedTensors, open_index};
use super::source::WeightSource;
use crate::error::{ModelError, Problems};

use dtype::Dtype;
use pickle::{Id, Pickle, PickleError, Tensor, Value, shown};

/// Largest pickle read; the storages are not part of it.
const MAX_PICKLE_BYTES: usize = 64 << 20;
/// Most tensors of a file.
const MAX_TENSORS: usize = 1 << 17;
/// Longest dotted name.
const MAX_NAME: usize = 512;
/// Dictionaries and lists inside each other.
const MAX_NESTING: usize = 32;
/// The magic number of the format before torch 1.6, which is the first thing pickled in such a file.
const LEGACY: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const SAVE_AGAIN: &str = "load it in Python and save the tensors alone, with safetensors or with torch.save";

/// One tensor: a view of a storage that lies inside the file, checked when the file was opened.
#[derive(Debug, Clone)]
struct View {
    dtype: &'static Dtype,
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// First element.
    offset: usize,
    /// The whole storage.
    storage: Range<usize>,
}

struct TorchFile {
    path: PathBuf,
    file: MappedFile,
}

/// Memory-mapped torch checkpoints read as one set of names.
pub struct TorchSource {
    path: PathBuf,
    tensors: ShardedTensors<TorchFile, View>,
}

impl TorchSource {
    /// Opens one file.
    pub fn open_file(path: &Path) -> Result<Self, ModelError> {
        let (file, views) = open(path)?;
        Ok(Self { path: path.to_path_buf(), tensors: ShardedTensors::single(file, views) })
    }

    /// Opens exactly the files that an index in `folder` names (`pytorch_model.bin.index.json`).
    pub fn open_index(folder: &Path, index: &Path) -> Result<Self, ModelError> {
        Ok(Self { path: folder.to_path_buf(), tensors: open_index(folder, index, ".bin", open)? })
    }
}

impl WeightSource for TorchSource {
    fn path(&self) -> &Path {
        &self.path
    }

    fn file_of(&self, name: &str) -> PathBuf {
        self.tensors.get(name).map_or(&self.path, |(file, _)| &file.path).clone()
    }

    fn names(&self) -> Vec<String> {
        self.tensors.names()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, view)| view.shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<(String, bool)> {
        self.tensors.get(name).map(|(_, view)| (view.dtype.name.to_string(), view.dtype.float.is_some()))
    }

    fn load_f32(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let Some((TorchFile { path, file }, view)) = self.tensors.get(name) else {
            return Err(ModelError::missing_tensor(&self.path, name));
        };
        let Some(float) = view.dtype.float else {
            return Err(ModelError::malformed(
                path,
                format!("tensor `{name}` is stored as {}, which does not hold floats", view.dtype.name),
                "weights are read from float32, float16, bfloat16 and float64",
            ));
        };
        file.check()?;
        let storage = &file.bytes()[view.storage.clone()];
        Ok(match view.contiguous() {
            Some(range) => float.read(&storage[range]),
            None => float.gather(storage, view.indices()),
        })
    }
}

impl View {
    /// The view of a storage of `len` bytes that the file calls `tensor`, or what is wrong with it.
    fn new(tensor: &Tensor<'_>, storage: Range<usize>) -> Result<Self, String> {
        let Tensor { dtype, offset, shape, strides, .. } = tensor;
        let held = storage.len() / dtype.bytes;
        let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        // One past the last element that the view reaches.
        let reach = shape
            .iter()
            .zip(strides)
            .try_fold(*offset, |last, (&size, &stride)| last.checked_add(size.saturating_sub(1).checked_mul(stride)?));
        match (elements, reach) {
            // A view of nothing reaches nothing.
            (Some(0), _) => {}
            (Some(elements), Some(last)) if last < held && elements <= held => {}
            _ => {
                return Err(format!(
                    "shape {shape:?} with strides {strides:?} at element {offset} does not fit its storage of {held} \
                     elements"
                ));
            }
        }
        Ok(Self { dtype, shape: shape.clone(), strides: strides.clone(), offset: *offset, storage })
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes of the view in its storage, where it is row-major and without gaps.
    fn contiguous(&self) -> Option<Range<usize>> {
        let elements = self.elements();
        if elements == 0 {
            return Some(0..0);
        }
        let mut dense = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != dense {
                return None;
            }
            dense *= size;
        }
        let start = self.offset * self.dtype.bytes;
        Some(start..start + elements * self.dtype.bytes)
    }

    /// Index in the storage of every element, in row-major order.
    fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        let mut position = vec![0; self.shape.len()];
        let mut index = self.offset;
        (0..self.elements()).map(move |_| {
            let current = index;
            for dim in (0..position.len()).rev() {
                position[dim] += 1;
                // Wrapping: the stride of a dimension of one element is never used and may be anything.
                index = index.wrapping_add(self.strides[dim]);
                if position[dim] < self.shape[dim] {
                    break;
                }
                index = index.wrapping_sub(self.strides[dim].wrapping_mul(self.shape[dim]));
                position[dim] = 0;
            }
            current
        })
    }
}

fn open(path: &Path) -> Result<(TorchFile, BTreeMap<String, View>), ModelError> {
    let file = MappedFile::open(path)?;
    let views = read_views(path, file.bytes())?;
    Ok((TorchFile { path: path.to_path_buf(), file }, views))
}

fn read_views(path: &Path, file: &[u8]) -> Result<BTreeMap<String, View>, ModelError> {
    if file[..file.len().min(32)].windows(LEGACY.len()).any(|bytes| bytes == LEGACY) {
        return Err(ModelError::unsupported(
            path,
            "a torch checkpoint in the format before torch 1.6",
            "write it again with a current torch: `torch.save(torch.load(path, weights_only=True), new_path)`",
        ));
    }
    if !zip::is_zip(file) {
        return Err(ModelError::malformed(
            path,
            format!("not a torch checkpoint ({} bytes, no zip file)", file.len()),
            "torch.save writes .pt, .pth and .bin files; a .safetensors or .gguf file needs its own ending",
        ));
    }
    let entries = zip::entries(file).map_err(|what| {
        ModelError::malformed(
            path,
            what,
            "the file is truncated or damaged; copy it again, or save it again with torch.save",
        )
    })?;
    let archive = Archive::new(path, file, &entries)?;
    let pickle = archive.pickle()?;
    archive.views(&pickle)
}

/// The archive inside a checkpoint: all its entries lie in one folder.
struct Archive<'a> {
    path: &'a Path,
    file: &'a [u8],
    entries: &'a BTreeMap<String, Range<usize>>,
    folder: &'a str,
}

impl<'a> Archive<'a> {
    fn new(path: &'a Path, file: &'a [u8], entries: &'a BTreeMap<String, Range<usize>>) -> Result<Self, ModelError> {
        let mut folders = entries.keys().filter_map(|name| name.strip_suffix("data.pkl"));
        let (Some(folder), None) = (folders.next(), folders.next()) else {
            return Err(ModelError::malformed(
                path,
                "not a torch checkpoint: a zip file without exactly one data.pkl",
                "torch.save writes .pt, .pth and .bin files",
            ));
        };
        let archive = Self { path, file, entries, folder };
        match archive.entry("byteorder").map(|range| &file[range]) {
            None | Some(b"little") => Ok(archive),
            Some(_) => Err(ModelError::unsupported(path, "big-endian tensors", SAVE_AGAIN)),
        }
    }

    fn entry(&self, name: &str) -> Option<Range<usize>> {
        self.entries.get(&format!("{}{name}", self.folder)).cloned()
    }

    fn pickle(&self) -> Result<Pickle<'a>, ModelError> {
        let range = self.entry("data.pkl").unwrap_or(0..0);
        if range.len() > MAX_PICKLE_BYTES {
            return Err(ModelError::malformed(
                self.path,
                format!("data.pkl has {} bytes, at most {MAX_PICKLE_BYTES} are read", range.len()),
                SAVE_AGAIN,
            ));
        }
        Pickle::read(&self.file[range]).map_err(|error| match error {
            PickleError::Global(name) => ModelError::unsupported(
                self.path,
                format!("data.pkl holds `{name}`, which is no tensor and could run anything"),
                SAVE_AGAIN,
            ),
            PickleError::Broken(what) => {
                ModelError::malformed(self.path, format!("data.pkl: {what}"), "the file is damaged, or a hostile one")
            }
        })
    }

    /// Every tensor under its dotted name.
    fn views(&self, pickle: &Pickle<'_>) -> Result<BTreeMap<String, View>, ModelError> {
        let tensors = flatten(pickle)
            .map_err(|what| ModelError::malformed(self.path, format!("data.pkl: {what}"), SAVE_AGAIN))?;
        let mut problems = Problems::default();
        let mut views = BTreeMap::new();
        for (name, tensor) in tensors {
            match self.storage(tensor).and_then(|storage| View::new(tensor, storage)) {
                Ok(view) => {
                    views.insert(name, view);
                }
                Err(problem) => problems.push(format!("tensor `{}`: {problem}", shown(&name))),
            }
        }
        problems.into_model_result(self.path)?;
        if views.is_empty() {
            return Err(ModelError::malformed(
                self.path,
                "it holds no named tensor",
                "save a state_dict, or a dictionary of state_dicts",
            ));
        }
        Ok(views)
    }

    /// Bytes of the storage that a tensor is a view of.
    fn storage(&self, tensor: &Tensor<'_>) -> Result<Range<usize>, String> {
        let storage = &tensor.storage;
        let entry = self.entry(&format!("data/{}", storage.key));
        let entry = entry.ok_or_else(|| format!("its storage `{}` is not in the file", shown(storage.key)))?;
        let bytes = storage.len.checked_mul(storage.dtype.map_or(1, |dtype| dtype.bytes));
        match bytes {
            Some(bytes) if bytes <= entry.len() => Ok(entry.start..entry.start + bytes),
            _ => Err(format!(
                "its storage of {} elements is not inside the {} bytes of data/{}",
                storage.len,
                entry.len(),
                shown(storage.key)
            )),
        }
    }
}

/// Walks dictionaries and lists. Each is visited once: a pickle may refer to one from many places, or from inside
/// itself.
fn flatten<'p, 'a>(pickle: &'p Pickle<'a>) -> Result<BTreeMap<String, &'p Tensor<'a>>, String> {
    let mut walk = Walk {
        pickle,
        tensors: BTreeMap::new(),
        visits: vec![Visit::No; pickle.len()],
        waiting: vec![(String::new(), 0, pickle.root())],
    };
    while let Some((name, depth, id)) = walk.waiting.pop() {
        walk.visit(name, depth, id)?;
    }
    Ok(walk.tensors)
}

struct Walk<'p, 'a> {
    pickle: &'p Pickle<'a>,
    tensors: BTreeMap<String, &'p Tensor<'a>>,
    visits: Vec<Visit>,
    /// Name, nesting and value.
    waiting: Vec<(String, usize, Id)>,
}

#[derive(Clone, Copy)]
enum Visit {
    No,
    /// It led to nothing: picklers share the small tuples of options.
    Barren,
    /// Tensors may lie below it.
    Fruitful,
}

impl Walk<'_, '_> {
    fn visit(&mut self, name: String, depth: usize, id: Id) -> Result<(), String> {
        let pickle = self.pickle;
        let value = pickle.value(id);
        if let Value::Tensor(tensor) = value {
            if name.is_empty() {
                return Err("it is a tensor without a name".into());
            }
            if let Some(_first) = self.tensors.insert(name.clone(), tensor) {
                return Err(format!("tensor `{}` is there twice", shown(&name)));
            }
            return Ok(());
        }
        match self.visits[id as usize] {
            Visit::No => {}
            Visit::Barren => return Ok(()),
            Visit::Fruitful => return Err(format!("`{}` is in two places, or inside itself", shown(&name))),
        }
        if depth == MAX_NESTING {
            return Err(format!("`{}` is nested deeper than {MAX_NESTING}", shown(&name)));
        }
        let before = self.waiting.len();
        match value {
            Value::Dict(pairs) => {
                for &(key, value) in pairs {
                    match pickle.value(key) {
                        Value::Str(key) => self.wait(&name, key, depth, value)?,
                        Value::Int(key) => self.wait(&name, &key.to_string(), depth, value)?,
                        // Keyed by something that is no name: nothing that a model could ask for.
                        _ => {}
                    }
                }
            }
            Value::List(items) | Value::Tuple(items) => {
                for (i, &item) in items.iter().enumerate() {
                    self.wait(&name, &i.to_string(), depth, item)?;
                }
            }
            _ => {}
        }
        self.visits[id as usize] = if self.waiting.len() == before { Visit::Barren } else { Visit::Fruitful };
        Ok(())
    }

    /// Notes something to visit, if tensors can lie there.
    fn wait(&mut self, name: &str, key: &str, depth: usize, id: Id) -> Result<(), String> {
        if !matches!(self.pickle.value(id), Value::Tensor(_) | Value::Dict(_) | Value::List(_) | Value::Tuple(_)) {
            return Ok(());
        }
        if name.len() + key.len() >= MAX_NAME {
            return Err(format!("a name is longer than {MAX_NAME} bytes: `{}.{}`", shown(name), shown(key)));
        }
        if self.waiting.len() + self.tensors.len() >= MAX_TENSORS {
            return Err(format!("more than {MAX_TENSORS} tensors"));
        }
        let name = if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
        self.waiting.push((name, depth + 1, id));
        Ok(())
    }
}
