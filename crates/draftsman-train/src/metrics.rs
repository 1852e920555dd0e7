//! `metrics.jsonl`: one flat object a line, keys with their unit, on disk as soon as it is written.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Number, Value};

use crate::error::TrainError;
use crate::files;
use crate::progress::{LogLine, ValidationLine};

/// The open metrics file of a run.
#[derive(Debug)]
pub(crate) struct Metrics {
    path: PathBuf,
    file: File,
}

impl Metrics {
    /// Opens the file of a run that has completed `step` updates: lines of later steps, which will be made again, and a last
    /// line that a crash cut off, are dropped.
    pub(crate) fn open(path: &Path, step: usize) -> Result<Self, TrainError> {
        if path.exists() {
            let text = String::from_utf8_lossy(&files::read(path)?).into_owned();
            let kept: String =
                text.split_inclusive('\n').filter(|line| line.ends_with('\n') && is_up_to(line, step)).collect();
            if kept.len() != text.len() {
                files::write_atomic(path, kept.as_bytes())?;
            }
        }
        let file = fs::OpenOptions::new().create(true).append(true).open(path).map_err(TrainError::io(path, "open"))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Writes a line of training.
    pub(crate) fn log(&mut self, line: &LogLine) -> Result<(), TrainError> {
        self.write(&log_object(line))
    }

    /// Writes a line of validation.
    pub(crate) fn validation(&mut self, line: &ValidationLine) -> Result<(), TrainError> {
        let mut object = Map::new();
        object.insert("kind".into(), "validation".into());
        object.insert("step".into(), line.step.into());
        for (name, value) in &line.numbers {
            object.insert(name.clone(), number(*value));
        }
        object.insert("validation_seconds".into(), number(line.seconds));
        self.write(&object)
    }

    fn write(&mut self, object: &Map<String, Value>) -> Result<(), TrainError> {
        let mut line =
            serde_json::to_string(object).map_err(|error| TrainError::file(&self.path, error.to_string()))?;
        line.push('\n');
        // One call, so that a crash cuts off at most the last line.
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.flush())
            .map_err(TrainError::io(&self.path, "write"))
    }
}

fn is_up_to(line: &str, step: usize) -> bool {
    serde_json::from_str::<Value>(line)
        .ok()
        .and_then(|value| value.get("step")?.as_u64())
        .is_some_and(|at| at <= step as u64)
}

fn log_object(line: &LogLine) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("kind".into(), "train".into());
    object.insert("step".into(), line.step.into());
    object.insert("epoch".into(), line.epoch.into());
    object.insert("loss_nats".into(), number(line.loss));
    for (index, hit) in line.slot_hits.iter().enumerate() {
        object.insert(format!("draft_{}_hit_share", index + 1), hit.map_or(Value::Null, number));
    }
    object.insert("chain_accepted_drafts_random_anchors".into(), number(line.chain));
    object.insert("ddtree8_accepted_drafts_random_anchors".into(), number(line.ddtree8));
    object.insert("blocks".into(), line.blocks.into());
    object.insert("gradient_norm".into(), number(line.gradient_norm));
    object.insert("learning_rate".into(), number(line.learning_rate));
    object.insert("document_tokens_per_second".into(), number(line.tokens_per_second));
    object.insert("step_seconds".into(), number(line.step_seconds));
    object.insert("rss_bytes".into(), line.rss_bytes.map_or(Value::Null, Value::from));
    object.insert("elapsed_seconds".into(), number(line.elapsed_seconds));
    object.insert("eta_seconds".into(), number(line.eta_seconds));
    object
}

/// NaN and infinity, which JSON does not know, become null.
fn number(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Resident memory of this process, where `/proc` tells it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
