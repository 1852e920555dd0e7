//! Checkpoints and run folders: whole or not there, kept, locked, refused.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use draftsman_models::{Dflash, Target, load_drafter};
use draftsman_train::{
    Better, Ending, LiveCheck, LogLine, Progress, RunFolder, RunMode, TrainError, checkpoints_in, recipe_in,
    run_checkpoints, saved_validation, train, verify_checkpoint,
};
use serde_json::{Value, json};

use crate::fixture::{Bench, Ears, checkpoint_names, documents};

/// A number for every step; the saved part is its name.
struct Scripted {
    name: &'static str,
    values: Vec<f64>,
}

impl LiveCheck for Scripted {
    fn saved(&self) -> Value {
        json!({ "anchors": self.name })
    }
    fn chooses_best(&self) -> (String, Better) {
        ("score".into(), Better::Higher)
    }
    fn check(
        &mut self,
        step: usize,
        drafter: &Dflash,
        target: &dyn Target,
    ) -> Result<Vec<(String, f64)>, Box<dyn Error + Send + Sync>> {
        assert_eq!(drafter.config().vocab_size, target.spec().vocab_size);
        Ok(vec![("other".into(), 7.0), ("score".into(), self.values[step / 2])])
    }
}

fn bench() -> Bench {
    Bench::new(
        documents(5),
        &["train.steps=8", "train.validate_every=2", "train.checkpoint_every=2", "train.keep_checkpoints=2"],
    )
}

#[test]
fn of_equals_the_later_one_is_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut check = Scripted { name: "a", values: vec![0.0, 0.0, 0.0, 0.0, 0.0] };
    let outcome = bench().run_with(&run, RunMode::New, None, &mut Ears::default(), Some(&mut check)).unwrap();
    assert_eq!(outcome.best.unwrap().step, 8, "a drafter that has learnt, not the untrained one");
}

#[test]
fn the_best_is_kept_besides_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut ears = Ears::default();
    let mut check = Scripted { name: "a", values: vec![1.0, 3.0, 2.0, f64::NAN, 2.5] };
    let outcome = bench().run_with(&run, RunMode::New, None, &mut ears, Some(&mut check)).unwrap();
    assert_eq!(checkpoint_names(&run), ["step-00000002", "step-00000006", "step-00000008"]);
    let best = outcome.best.unwrap();
    assert_eq!((best.step, best.metric.as_str(), best.value), (2, "score", 3.0));
    assert_eq!(
        ears.validations.iter().map(|line| (line.step, line.best)).collect::<Vec<_>>(),
        [(0, true), (2, true), (4, false), (6, false), (8, false)]
    );
    let found = run_checkpoints(&run).unwrap();
    assert_eq!(found.latest, outcome.checkpoint);
    assert_eq!(found.best, Some(best.folder.clone()));
    verify_checkpoint(&best.folder).unwrap();
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let validation: Vec<Value> = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|value: &Value| value["kind"] == "validation")
        .collect();
    assert_eq!(validation[1]["score"], 3.0);
    assert_eq!(validation[3]["score"], Value::Null);
    let saved: Value = serde_json::from_str(&fs::read_to_string(best.folder.join("validation.json")).unwrap()).unwrap();
    assert_eq!(saved, json!({ "anchors": "a" }));
    assert_eq!(saved_validation(&run).unwrap(), Some(saved));
    assert_eq!(saved_validation(folder.path()).unwrap(), None, "no run, nothing saved");
}

/// Two numbers a check, of which one chooses; it may be missing, and the other never stands in for it.
struct TwoNumbers {
    walked: Vec<Option<f64>>,
}

impl LiveCheck for TwoNumbers {
    fn saved(&self) -> Value {
        json!({})
    }
    fn chooses_best(&self) -> (String, Better) {
        ("walk/acceptance_length".into(), Better::Higher)
    }
    fn check(
        &mut self,
        step: usize,
        _: &Dflash,
        _: &dyn Target,
    ) -> Result<Vec<(String, f64)>, Box<dyn Error + Send + Sync>> {
        let walked = self.walked[step / 2].map(|value| ("walk/acceptance_length".into(), value));
        Ok([("val/chain_accepted_drafts".into(), step as f64)].into_iter().chain(walked).collect())
    }
}

#[test]
fn the_walked_number_chooses_and_a_missing_one_never_does() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut ears = Ears::default();
    let mut check = TwoNumbers { walked: vec![None, Some(1.5), Some(2.5), None, Some(2.0)] };
    let outcome = bench().run_with(&run, RunMode::New, None, &mut ears, Some(&mut check)).unwrap();
    let best = outcome.best.unwrap();
    assert_eq!((best.step, best.metric.as_str(), best.value), (4, "walk/acceptance_length", 2.5));
    assert_eq!(
        ears.validations.iter().map(|line| (line.step, line.best)).collect::<Vec<_>>(),
        [(0, false), (2, true), (4, true), (6, false), (8, false)]
    );
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let keys: Vec<Vec<String>> = metrics
        .lines()
        .filter(|line| line.contains("\"validation\""))
        .map(|line| serde_json::from_str::<serde_json::Map<String, Value>>(line).unwrap().keys().cloned().collect())
        .collect();
    assert!(!keys[3].contains(&"walk/acceptance_length".to_owned()), "{keys:?}");
    let fallen: Vec<Option<f64>> = vec![None; 5];
    let other = folder.path().join("other");
    let mut check = TwoNumbers { walked: fallen };
    let outcome = bench().run_with(&other, RunMode::New, None, &mut Ears::default(), Some(&mut check)).unwrap();
    assert_eq!(outcome.best, None);
}

#[test]
fn a_checkpoint_is_a_drafter_folder() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let bench = bench();
    let outcome = bench.run(&run, RunMode::New, None).unwrap();
    let copy = folder.path().join("copied elsewhere");
    fs::rename(&outcome.checkpoint, &copy).unwrap();
    let drafter = load_drafter(&copy, bench.target.device()).unwrap();
    let contract = &drafter.config().contract;
    assert_eq!((contract.block_size, contract.mask_token_id), (4, 39));
    assert_eq!(contract.target.name.as_deref(), Some("tiny"));
    assert!(contract.target.embedding_sha256.is_some());
    assert_eq!(drafter.config().num_target_layers, Some(4));
}

/// What a process leaves that dies while saving: a hidden folder, or nothing. Both leave the old checkpoint in force.
#[test]
fn half_a_save_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let bench = bench();
    let outcome = bench.run(&run, RunMode::New, Some(4)).unwrap();
    assert_eq!((outcome.ending, outcome.step), (Ending::StoppedAfter, 4));
    let half = checkpoints_in(&run).join(".saving-step-00000006");
    fs::create_dir(&half).unwrap();
    fs::copy(outcome.checkpoint.join("model.safetensors"), half.join("model.safetensors")).unwrap();
    assert_eq!(run_checkpoints(&run).unwrap().latest, outcome.checkpoint);
    let resumed = bench.run(&run, RunMode::Resume, None).unwrap();
    assert_eq!((resumed.ending, resumed.step), (Ending::Finished, 8));
    assert!(!half.exists(), "leftovers are swept");
}

/// A damaged newest checkpoint is passed over, whatever the damage.
#[test]
fn a_damaged_checkpoint_loses_to_the_one_before() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 4] = [
        ("cut off", |folder| {
            let path = folder.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
        }),
        ("one bit", |folder| {
            let path = folder.join("optimizer.safetensors");
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        }),
        ("no checksums", |folder| fs::remove_file(folder.join("checksums.json")).unwrap()),
        ("no state", |folder| fs::remove_file(folder.join("state.json")).unwrap()),
    ];
    let bench = bench();
    for (name, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        bench.run(&run, RunMode::New, Some(6)).unwrap();
        let newest = checkpoints_in(&run).join("step-00000006");
        damage(&newest);
        assert!(verify_checkpoint(&newest).is_err(), "{name}");
        assert_eq!(run_checkpoints(&run).unwrap().latest, checkpoints_in(&run).join("step-00000004"), "{name}");
        let resumed = bench.run(&run, RunMode::Resume, None).unwrap();
        assert_eq!(resumed.step, 8, "{name}");
        verify_checkpoint(&checkpoints_in(&run).join("step-00000006")).unwrap();
    }
}

fn refused(result: Result<impl Sized, TrainError>, expected: &str) {
    let error = result.err().expect("refused").to_string();
    assert!(error.contains(expected), "got:      {error}\nexpected: {expected}");
}

#[test]
fn run_folders_are_guarded() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let bench = bench();
    refused(bench.run(&run, RunMode::Resume, None), "holds no run to resume");
    assert!(!run.exists(), "a refused run writes nothing");
    bench.run(&run, RunMode::New, Some(2)).unwrap();
    refused(
        bench.run(&run, RunMode::New, None),
        "is not empty (hint: --resume continues its run, --overwrite deletes it)",
    );
    {
        let _lock = RunFolder::open(&run, RunMode::Resume).unwrap();
        refused(bench.run(&run, RunMode::Resume, None), "is in use by another process");
    }
    fs::write(run.join("thesis.txt"), "years of work").unwrap();
    refused(bench.run(&run, RunMode::Overwrite, None), "holds \"thesis.txt\", which no run wrote");
    assert!(recipe_in(&run).exists());
    fs::remove_file(run.join("thesis.txt")).unwrap();
    let outcome = bench.run(&run, RunMode::Overwrite, Some(2)).unwrap();
    assert_eq!(outcome.step, 2);
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().count(), 2, "the old metrics are gone");
    for name in checkpoint_names(&run) {
        fs::remove_dir_all(checkpoints_in(&run).join(name)).unwrap();
    }
    refused(bench.run(&run, RunMode::Resume, None), "has no complete checkpoint to resume from");
}

/// Raises the flag after three updates, as Ctrl-C would.
struct Interrupter<'a>(&'a AtomicBool);

impl Progress for Interrupter<'_> {
    fn logged(&mut self, line: &LogLine) {
        if line.step == 3 {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_interrupt_saves() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let bench = bench();
    let flag = AtomicBool::new(false);
    let outcome = train(&bench.job(&run, RunMode::New, None), &mut Interrupter(&flag), None, &flag).unwrap();
    assert_eq!((outcome.ending, outcome.step), (Ending::Interrupted, 3));
    verify_checkpoint(&outcome.checkpoint).unwrap();
    assert_eq!(bench.run(&run, RunMode::Resume, None).unwrap().step, 8);
}

#[test]
fn a_run_that_diverges_stops_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let bench = Bench::new(documents(3), &["train.learning_rate=1e38", "train.warmup_steps=0"]);
    refused(bench.run(&run, RunMode::New, None), "lower train.learning_rate");
    assert_eq!(run_checkpoints(&run).unwrap().latest, checkpoints_in(&run).join("step-00000000"));
}

#[test]
fn only_the_same_run_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let start = |overrides: &[&str], count: usize| {
        let mut all = vec!["train.steps=8", "train.validate_every=2", "train.checkpoint_every=2"];
        all.extend_from_slice(overrides);
        Bench::new(documents(count), &all)
    };
    let mut check = Scripted { name: "a", values: vec![1.0; 5] };
    start(&[], 5).run_with(&run, RunMode::New, Some(4), &mut Ears::default(), Some(&mut check)).unwrap();
    let before = crate::fixture::traces(&run);
    let resume = |overrides: &[&str], count: usize, name: &'static str| {
        let mut check = Scripted { name, values: vec![1.0; 5] };
        start(overrides, count).run_with(&run, RunMode::Resume, Some(4), &mut Ears::default(), Some(&mut check))
    };
    refused(resume(&["train.learning_rate=1e-3"], 5, "a"), "recipe train.learning_rate: was 0.005, is 0.001");
    refused(resume(&["train.steps=9"], 5, "a"), "recipe train.steps: was 8, is 9: the learning rates already used");
    refused(resume(&["drafter.block_size=3"], 5, "a"), "block_size: was 4, is 3");
    refused(resume(&[], 4, "a"), "data: was sha256");
    refused(resume(&[], 5, "b"), "validation documents, anchors or walked answers changed");
    crate::fixture::assert_same(&before, &crate::fixture::traces(&run));
    // These change what is written, not what is computed.
    resume(&["train.log_every=2", "train.keep_checkpoints=9", "features.memory_gib=0"], 5, "a").unwrap();
    // The walk set in the checkpoint holds, so these have no effect.
    resume(&["data.walk_prompts=0", "data.walk_new_tokens=9"], 5, "a").unwrap();
}
