//! A tiny target, documents, a recipe, and a run of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use draftsman_models::{Target, target_identity};
use draftsman_train::{
    LiveCheck, LogLine, Progress, Provenance, Recipe, RunMode, Sample, SampleSet, TrainError, TrainJob, TrainOutcome,
    ValidationLine, checkpoints_in, train,
};
use serde_json::Value;

use crate::tiny;

/// Everything of a run but its folder.
pub(crate) struct Bench {
    pub(crate) target: Box<dyn Target>,
    pub(crate) recipe: Recipe,
    pub(crate) samples: SampleSet,
}

/// A small drafter, small steps.
const BASE: &str = "[drafter]\nblock_size = 4\nnum_hidden_layers = 2\ntarget_layer_ids = [0, 2]\nmask_token_id = 39\ninit = \"random\"\n\
    [data]\nvalidation_count = 0\n[train]\nsteps = 8\nsequences_per_step = 2\nanchors_per_sequence = 4\nlearning_rate = 5e-3\nwarmup_steps = 2\n\
    log_every = 1\nvalidate_every = 0\ncheckpoint_every = 0\n";

/// `count` documents of random tokens and different lengths; the answers begin after a few tokens.
pub(crate) fn documents(count: usize) -> Vec<Sample> {
    (0..count)
        .map(|index| {
            let ids = tiny::prompt(100 + index as u64, 14 + 5 * (index % 4));
            let loss_mask = (0..ids.len()).map(|at| at >= 3 + index % 3).collect();
            Sample { id: format!("d{index}"), ids, loss_mask }
        })
        .collect()
}

impl Bench {
    pub(crate) fn new(documents: Vec<Sample>, overrides: &[&str]) -> Self {
        let target = tiny::target(1);
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let recipe = Recipe::parse(BASE, "base", &overrides).unwrap().resolve(target.spec(), "base").unwrap();
        let samples = SampleSet::prepare(&recipe, target.spec(), documents).unwrap();
        Self { target, recipe, samples }
    }

    pub(crate) fn job(&self, run: &Path, mode: RunMode, stop_after: Option<usize>) -> TrainJob<'_> {
        let provenance =
            Provenance { target: target_identity(&*self.target, Some("tiny".into())), ..Provenance::default() };
        TrainJob {
            recipe: self.recipe.clone(),
            target: &*self.target,
            provenance,
            samples: &self.samples,
            run: run.to_path_buf(),
            mode,
            stop_after,
        }
    }

    pub(crate) fn run(&self, run: &Path, mode: RunMode, stop_after: Option<usize>) -> Result<TrainOutcome, TrainError> {
        self.run_with(run, mode, stop_after, &mut Ears::default(), None)
    }

    pub(crate) fn run_with(
        &self,
        run: &Path,
        mode: RunMode,
        stop_after: Option<usize>,
        ears: &mut Ears,
        check: Option<&mut dyn LiveCheck>,
    ) -> Result<TrainOutcome, TrainError> {
        train(&self.job(run, mode, stop_after), ears, check, &AtomicBool::new(false))
    }
}

/// Remembers what it hears.
#[derive(Default)]
pub(crate) struct Ears {
    pub(crate) lines: Vec<LogLine>,
    pub(crate) validations: Vec<ValidationLine>,
    pub(crate) saved: Vec<usize>,
}

impl Progress for Ears {
    fn logged(&mut self, line: &LogLine) {
        self.lines.push(line.clone());
    }
    fn validated(&mut self, line: &ValidationLine) {
        self.validations.push(line.clone());
    }
    fn saved(&mut self, step: usize, _: &PathBuf) {
        self.saved.push(step);
    }
}

/// Every file that a run leaves, without what a clock or the machine decides.
pub(crate) fn traces(run: &Path) -> BTreeMap<String, String> {
    let mut traces = BTreeMap::new();
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    for (index, line) in metrics.lines().enumerate() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        strip(&mut value);
        traces.insert(format!("metrics line {index:03}"), value.to_string());
    }
    for step in checkpoint_names(run) {
        let folder = checkpoints_in(run).join(&step);
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let bytes = fs::read(&path).unwrap();
            let shown = match name.as_str() {
                // Holds sums of state.json, which has clocks in it.
                "checksums.json" => continue,
                "state.json" => {
                    let mut value: Value = serde_json::from_slice(&bytes).unwrap();
                    strip(&mut value);
                    value.to_string()
                }
                _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            };
            traces.insert(format!("{step}/{name}"), shown);
        }
    }
    traces
}

/// The names of all checkpoints of a run.
pub(crate) fn checkpoint_names(run: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(checkpoints_in(run))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

/// Says which file differs, not 50 KB of hex.
pub(crate) fn assert_same(first: &BTreeMap<String, String>, second: &BTreeMap<String, String>) {
    let names = |traces: &BTreeMap<String, String>| traces.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(first), names(second), "different files");
    assert!(first.len() > 5, "{:?}", names(first));
    for (name, value) in first {
        let other = &second[name];
        if value != other {
            let at = value.bytes().zip(other.bytes()).position(|(a, b)| a != b);
            let cut = |text: &str| text.chars().take(400).collect::<String>();
            panic!("{name} differs first at character {at:?} of its text:\n  {}\n  {}", cut(value), cut(other));
        }
    }
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| {
                !matches!(
                    key.as_str(),
                    "elapsed_seconds"
                        | "eta_seconds"
                        | "step_seconds"
                        | "document_tokens_per_second"
                        | "rss_bytes"
                        | "seconds"
                        | "validation_seconds"
                )
            });
            object.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}
