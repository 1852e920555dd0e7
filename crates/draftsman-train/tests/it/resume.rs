//! Stopped, killed and resumed runs against uninterrupted ones, to the last bit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use draftsman_train::{LogLine, Progress, RunMode, train};

use crate::fixture::{Bench, Ears, assert_same, documents, traces};

const FOLDER: &str = "DRAFTSMAN_TEST_RUN";
const MODE: &str = "DRAFTSMAN_TEST_MODE";
const STOP: &str = "DRAFTSMAN_TEST_STOP";
const PAUSE: &str = "DRAFTSMAN_TEST_PAUSE_MS";

/// 12 steps over 5 documents (several epochs), log windows and accumulation that no checkpoint boundary respects.
fn bench() -> Bench {
    Bench::new(
        documents(5),
        &[
            "train.steps=12",
            "train.accumulation=2",
            "train.log_every=3",
            "train.checkpoint_every=2",
            "train.keep_checkpoints=1",
        ],
    )
}

fn with_threads<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

fn uninterrupted(threads: usize) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    with_threads(threads, || bench().run(&run, RunMode::New, None).unwrap());
    (folder, run)
}

#[test]
fn one_and_two_threads_are_the_same_run() {
    let (_first, one) = uninterrupted(1);
    let (_second, two) = uninterrupted(2);
    assert_same(&traces(&one), &traces(&two));
}

#[test]
fn stopped_and_resumed_is_uninterrupted() {
    let (_keep, whole) = uninterrupted(2);
    let whole = traces(&whole);
    for stop in [1, 4, 7, 11] {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        with_threads(1, || bench().run(&run, RunMode::New, Some(stop)).unwrap());
        with_threads(2, || bench().run(&run, RunMode::Resume, None).unwrap());
        assert_same(&whole, &traces(&run));
    }
}

/// Features that do not fit into memory are computed anew, which changes nothing.
#[test]
fn features_that_are_not_kept_change_nothing() {
    let (_keep, whole) = uninterrupted(2);
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut forgetful = bench();
    forgetful.recipe.features.memory_gib = 0.0;
    forgetful.run(&run, RunMode::New, None).unwrap();
    let recipe_differs = |name: &String, _: &mut String| !name.ends_with("recipe.toml");
    let (mut kept, mut computed) = (traces(&whole), traces(&run));
    kept.retain(recipe_differs);
    computed.retain(recipe_differs);
    assert_same(&kept, &computed);
}

#[test]
fn new_processes_with_one_and_two_threads() {
    let (_keep, whole) = uninterrupted(2);
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    for (mode, stop, threads) in [("new", 5, 2), ("resume", 8, 1), ("resume", 12, 2)] {
        let status = child(&run, mode, stop, threads, 0).wait().unwrap();
        assert!(status.success(), "{mode} to step {stop}: {status}");
    }
    assert_same(&traces(&whole), &traces(&run));
}

/// SIGKILL at several moments; each time a new process goes on from the newest complete checkpoint.
#[test]
fn killed_and_resumed_is_uninterrupted() {
    let (_keep, whole) = uninterrupted(2);
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut mode = "new";
    for (steps, grace) in [(3, 0), (6, 7), (9, 23)] {
        let mut process = child(&run, mode, 12, 2, 30);
        wait_for_metrics(&run, steps, &mut process);
        std::thread::sleep(Duration::from_millis(grace));
        assert!(process.try_wait().unwrap().is_none(), "the run ended before it was killed");
        process.kill().unwrap();
        process.wait().unwrap();
        mode = "resume";
    }
    let status = child(&run, "resume", 12, 1, 0).wait().unwrap();
    assert!(status.success(), "{status}");
    assert_same(&traces(&whole), &traces(&run));
}

fn wait_for_metrics(run: &Path, step: usize, process: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let needle = format!("\"step\":{step},");
    while !fs::read_to_string(run.join("metrics.jsonl")).is_ok_and(|text| text.contains(&needle)) {
        assert!(process.try_wait().unwrap().is_none(), "the run ended before step {step}");
        assert!(Instant::now() < deadline, "no step {step} within two minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// This test binary again, as a process that trains.
fn child(run: &Path, mode: &str, stop: usize, threads: usize, pause_ms: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resume::trains_in_a_process_of_its_own", "--ignored", "--test-threads=1"])
        .env(FOLDER, run)
        .env(MODE, mode)
        .env(STOP, stop.to_string())
        .env(PAUSE, pause_ms.to_string())
        .env("RAYON_NUM_THREADS", threads.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Slow enough to be killed between two steps or in a save.
struct Slow(Duration);

impl Progress for Slow {
    fn logged(&mut self, _: &LogLine) {
        std::thread::sleep(self.0);
    }
}

#[test]
#[ignore = "the process that the other tests of this module start"]
fn trains_in_a_process_of_its_own() {
    let Ok(run) = std::env::var(FOLDER) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let mode = if std::env::var(MODE).unwrap() == "new" { RunMode::New } else { RunMode::Resume };
    let bench = bench();
    let job = bench.job(Path::new(&run), mode, Some(number(STOP) as usize));
    let never = std::sync::atomic::AtomicBool::new(false);
    train(&job, &mut Slow(Duration::from_millis(number(PAUSE))), None, &never).unwrap();
}

/// Resuming a finished run does nothing and says where it stands.
#[test]
fn a_finished_run_resumes_to_itself() {
    let (_keep, run) = uninterrupted(2);
    let before = traces(&run);
    let mut ears = Ears::default();
    let outcome = bench().run_with(&run, RunMode::Resume, None, &mut ears, None).unwrap();
    assert_eq!(outcome.step, 12);
    assert!(ears.lines.is_empty() && ears.saved.is_empty());
    assert_same(&before, &traces(&run));
}
