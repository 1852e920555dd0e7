//! The one way a model reads its tensors, and the checks made before it reads any.

use std::path::{Path, PathBuf};

use crate::error::{ModelError, Problems};

/// A file or folder of named tensors.
pub trait WeightSource: Send + Sync {
    /// The file or folder, for messages.
    fn path(&self) -> &Path;

    /// The file that holds this tensor (a shard, where there are several).
    fn file_of(&self, name: &str) -> PathBuf {
        let _ = name;
        self.path().to_path_buf()
    }

    /// All tensor names, sorted.
    fn names(&self) -> Vec<String>;

    /// Shape of a tensor, slowest dimension first (`[out, in]` of a linear layer); `None` when it is not there.
    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// Stored type as the file spells it, and whether [`WeightSource::load_f32`] can read it.
    fn dtype(&self, name: &str) -> Option<(String, bool)>;

    /// One tensor, converted to f32, row-major.
    fn load_f32(&self, name: &str) -> Result<Vec<f32>, ModelError>;

    /// One tensor of bytes (`U8`), as it is stored.
    fn load_u8(&self, name: &str) -> Result<Vec<u8>, ModelError> {
        Err(ModelError::unsupported(
            self.path(),
            format!("tensor `{name}` holds no bytes"),
            "tensors of bytes are read from safetensors files",
        ))
    }

    /// The bytes of a tensor as they are stored, where the file shows them.
    fn stored(&self, name: &str) -> Option<&[u8]> {
        let _ = name;
        None
    }

    /// Says that a tensor will not be read again soon, so that memory which only caches the file can be given back.
    fn release(&self, name: &str) {
        let _ = name;
    }
}

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorExpectation {
    /// Name in the file.
    pub name: String,
    /// Shape it must have.
    pub shape: Vec<usize>,
}

impl TensorExpectation {
    /// A needed tensor.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }
}

/// The shard of a tensor, where the message does not name its file anyway: `FILE: ` or nothing.
pub(crate) fn file_prefix(source: &dyn WeightSource, name: &str) -> String {
    let file = source.file_of(name);
    if file == source.path() { String::new() } else { format!("{}: ", file.display()) }
}

/// Checks every needed tensor (there, right shape, readable type) and that nothing else is there but what `ignore`
/// accepts: a tensor that is present and never applied is a model that runs and is wrong. All problems at once.
pub fn check_tensors(
    source: &dyn WeightSource,
    expected: &[TensorExpectation],
    ignore: &dyn Fn(&str) -> bool,
) -> Result<(), ModelError> {
    let mut problems = Problems::default();
    let mut missing = Vec::new();
    for TensorExpectation { name, shape } in expected {
        let file = file_prefix(source, name);
        match source.shape(name) {
            None => missing.push(format!("`{name}` {shape:?}")),
            Some(found) if found != shape.as_slice() => {
                problems.push(format!("{file}tensor `{name}` has shape {found:?}, expected {shape:?}"))
            }
            Some(_) => {}
        }
        if let Some((dtype, false)) = source.dtype(name) {
            problems.push(format!("{file}tensor `{name}` is stored as {dtype}, which cannot be read"));
        }
    }
    let needed: std::collections::BTreeSet<&str> = expected.iter().map(|e| e.name.as_str()).collect();
    let mut unknown = source.names();
    unknown.retain(|name| !needed.contains(name.as_str()) && !ignore(name));
    if missing.len() <= LISTED {
        problems.0.extend(missing.iter().map(|tensor| format!("tensor {tensor} is missing")));
    } else {
        problems.push(format!("{} tensors are missing: {}", missing.len(), first(&missing)));
    }
    if unknown.len() <= LISTED {
        problems.0.extend(unknown.iter().map(|name| {
            format!(
                "{}tensor `{name}` is not part of this architecture (it would be loaded by nobody and the result would \
                 differ silently)",
                file_prefix(source, name)
            )
        }));
    } else {
        let unknown: Vec<String> = unknown.iter().map(|name| format!("`{name}`")).collect();
        problems.push(format!(
            "{} tensors are not part of this architecture (they would be loaded by nobody and the result would differ \
             silently): {}",
            unknown.len(),
            first(&unknown)
        ));
    }
    problems.into_model_result(source.path())
}

/// Missing or unknown tensors reported one by one: more would hide every other problem.
const LISTED: usize = 10;

fn first(tensors: &[String]) -> String {
    format!("{} and {} more", tensors[..LISTED].join(", "), tensors.len() - LISTED)
}

/// Refuses before loading when the weights cannot fit: resident bytes plus the largest tensor in f32 (tensors are
/// converted one at a time). Where the system does not say how much is free, nothing is refused.
pub fn check_memory(path: &Path, resident_bytes: u64, largest_elements: u64) -> Result<(), ModelError> {
    const GIB: f64 = (1u64 << 30) as f64;
    let need = resident_bytes.saturating_add(largest_elements.saturating_mul(4));
    match available_memory() {
        Some(have) if have < need => Err(ModelError::Memory {
            path: path.to_path_buf(),
            need_gib: need as f64 / GIB,
            have_gib: have as f64 / GIB,
        }),
        _ => Ok(()),
    }
}

/// Bytes the system could hand out without swapping (Linux; elsewhere unknown).
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}
