//! What a training run tells its caller while it runs. This crate prints nothing.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use draftsman_models::{Dflash, Target};

use crate::features::FeatureEstimate;
use crate::samples::SampleReport;

/// Told once, before the first step.
#[derive(Debug, Clone, PartialEq)]
pub struct RunStart {
    /// Completed updates this run starts from (0 unless resumed).
    pub step: usize,
    /// Newer checkpoints that were passed over when the run resumed, and why: one line each.
    pub damaged: Vec<String>,
    /// Updates of the whole run.
    pub steps: usize,
    /// What became of the documents.
    pub samples: SampleReport,
    /// Held-out documents.
    pub validation_documents: usize,
    /// Documents trained on.
    pub train_documents: usize,
    /// Memory for target features.
    pub features: FeatureEstimate,
    /// Trainable values of the drafter.
    pub parameters: usize,
}

impl fmt::Display for RunStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        for damaged in &self.damaged {
            writeln!(f, "passed over a damaged checkpoint: {damaged}")?;
        }
        if self.step > 0 {
            writeln!(f, "resuming from step {}", self.step)?;
        }
        let SampleReport { given, cut, without_anchor, train_tokens, supervised_tokens } = &self.samples;
        writeln!(
            f,
            "data: {given} documents, {} to train on ({train_tokens} tokens, {supervised_tokens} supervised), {} held out, {cut} cut to length, \
             {without_anchor} without a place for a block",
            self.train_documents, self.validation_documents
        )?;
        let FeatureEstimate { all_bytes, limit_bytes } = self.features;
        let rest = if all_bytes > limit_bytes { "; the rest is computed anew every epoch" } else { "" };
        writeln!(f, "features: {:.2} GiB for all, limit {:.2} GiB{rest}", gib(all_bytes), gib(limit_bytes))?;
        write!(f, "drafter: {:.2} M parameters; {} steps", self.parameters as f64 / 1e6, self.steps)
    }
}

/// One line of the training log: means over the updates since the line before, over **random anchors**.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// Completed updates.
    pub step: usize,
    /// Updates of the whole run.
    pub steps: usize,
    /// Epoch of the next document.
    pub epoch: u64,
    /// Weighted cross-entropy, nats.
    pub loss: f64,
    /// Share of slots whose first choice was the label, by slot (the first is the first predicting slot); `None` where no slot had a label.
    pub slot_hits: Vec<Option<f64>>,
    /// Accepted drafts of a chain, mean over blocks (bonus token not counted).
    pub chain: f64,
    /// Accepted drafts of a best-first tree of 8 nodes, mean over blocks (bonus token not counted).
    pub ddtree8: f64,
    /// Blocks behind these means.
    pub blocks: u64,
    /// Global gradient norm before clipping, of the last update.
    pub gradient_norm: f64,
    /// Learning rate of the last update.
    pub learning_rate: f64,
    /// Document tokens trained on, per second.
    pub tokens_per_second: f64,
    /// Seconds an update.
    pub step_seconds: f64,
    /// Resident memory of the process, where the system tells it.
    pub rss_bytes: Option<u64>,
    /// Seconds of training so far, resumed parts included.
    pub elapsed_seconds: f64,
    /// Seconds to the end at the present speed.
    pub eta_seconds: f64,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hits: Vec<String> = self
            .slot_hits
            .iter()
            .map(|hit| hit.map_or_else(|| "-".to_owned(), |hit| format!("{hit:.2}").trim_start_matches('0').to_owned()))
            .collect();
        write!(
            f,
            "step {}/{} loss {:.3} hits {} chain {:.2} ddtree8 {:.2} (random anchors) |g| {:.2} lr {:.1e} {:.0} tok/s",
            self.step,
            self.steps,
            self.loss,
            hits.join(" "),
            self.chain,
            self.ddtree8,
            self.gradient_norm,
            self.learning_rate,
            self.tokens_per_second
        )?;
        if let Some(bytes) = self.rss_bytes {
            write!(f, " rss {:.1} GiB", bytes as f64 / f64::from(1 << 30))?;
        }
        write!(f, " eta {}", Clock(self.eta_seconds))
    }
}

/// Seconds as `1h02m` or `3m20s`.
struct Clock(f64);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.max(0.0).round() as u64;
        match seconds {
            3600.. => write!(f, "{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
            60.. => write!(f, "{}m{:02}s", seconds / 60, seconds % 60),
            _ => write!(f, "{seconds}s"),
        }
    }
}

/// Result of a live check.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationLine {
    /// Completed updates.
    pub step: usize,
    /// Named numbers, in the check's order.
    pub numbers: Vec<(String, f64)>,
    /// Whether this is the best so far.
    pub best: bool,
    /// Seconds it took.
    pub seconds: f64,
}

impl fmt::Display for ValidationLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "validation at step {}:", self.step)?;
        for (name, value) in &self.numbers {
            write!(f, " {name} {value:.4}")?;
        }
        if self.best {
            write!(f, " (best)")?;
        }
        write!(f, " [{:.1} s]", self.seconds)
    }
}

/// Listener of a run.
pub trait Progress {
    /// Before the first step.
    fn started(&mut self, start: &RunStart) {
        let _ = start;
    }
    /// After every `train.log_every` updates.
    fn logged(&mut self, line: &LogLine) {
        let _ = line;
    }
    /// After every live check.
    fn validated(&mut self, line: &ValidationLine) {
        let _ = line;
    }
    /// A checkpoint was saved after `step` updates.
    fn saved(&mut self, step: usize, folder: &PathBuf) {
        let _ = (step, folder);
    }
}

/// A listener that hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}

/// Which way a number is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// More is better (acceptance).
    Higher,
    /// Less is better (loss).
    Lower,
}

/// Evaluation during training, implemented above this crate.
pub trait LiveCheck {
    /// What a checkpoint must keep so that the same check can be run from it elsewhere: documents, anchors, answers.
    /// It must not change during a run, and a resumed run must give the same.
    fn saved(&self) -> serde_json::Value;

    /// Name of the number that chooses the best checkpoint, the same during the whole run. A check that does not give it
    /// never makes its drafter the best one.
    fn chooses_best(&self) -> (String, Better);

    /// Named numbers of a drafter (without autodiff) after `step` updates.
    fn check(
        &mut self,
        step: usize,
        drafter: &Dflash,
        target: &dyn Target,
    ) -> Result<Vec<(String, f64)>, Box<dyn Error + Send + Sync>>;
}
