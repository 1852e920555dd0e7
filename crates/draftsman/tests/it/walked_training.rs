//! Walked evaluation while training: in the log, in `eval --validation`, over a resume, and in runs from before it.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::run::draftsman;

const TARGET: &str = "assets/tiny-target";

fn success(arguments: &[&str]) -> String {
    let output = draftsman(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The validations of a run, without their times.
fn validations(run: &Path) -> Vec<Map<String, Value>> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let lines = text.lines().map(|line| serde_json::from_str::<Map<String, Value>>(line).expect("JSON"));
    lines
        .filter(|line| line["kind"] == "validation")
        .map(|mut line| {
            line.remove("validation_seconds");
            line
        })
        .collect()
}

struct Bench {
    scratch: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("scratch");
        let answers = scratch.path().join("answers.jsonl").display().to_string();
        let prompts = format!("{TARGET}/prompts-train.jsonl");
        success(&[
            "data",
            "regenerate",
            "-t",
            TARGET,
            "--prompts",
            &prompts,
            "--out",
            &answers,
            "--limit",
            "20",
            "--max-new-tokens",
            "32",
            "--quiet",
        ]);
        Self { scratch }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    /// Trains into `run`.
    fn train(&self, run: &str, flags: &[&str], overrides: &[&str]) -> Vec<Map<String, Value>> {
        let (data, out) = (self.path("answers.jsonl"), self.path(run));
        let recipe = "recipes/quickstart.toml";
        let mut arguments = vec!["train", "-t", TARGET, "--recipe", recipe, "--data", &data, "--out", &out, "--quiet"];
        arguments.extend(flags);
        arguments.extend([
            "train.steps=60",
            "train.validate_every=20",
            "train.checkpoint_every=20",
            "train.warmup_steps=5",
            "train.sequences_per_step=4",
            "data.validation_count=5",
            "data.walk_new_tokens=24",
        ]);
        arguments.extend(overrides);
        success(&arguments);
        validations(Path::new(&out))
    }
}

#[test]
fn the_log_and_eval_validation_say_the_same_to_the_last_digit_and_so_does_a_resumed_run() {
    let bench = Bench::new();
    let whole = bench.train("whole", &[], &["data.walk_prompts=3"]);
    assert_eq!(whole.iter().map(|line| line["step"].as_u64().expect("a step")).collect::<Vec<_>>(), [0, 20, 40, 60]);
    let mut lengths = Vec::new();
    for line in &whole {
        let keys: Vec<&str> = line.keys().map(String::as_str).collect();
        let walked = ["walk/acceptance_length", "walk/acceptance_length_all_tokens", "walk/cycles"];
        assert!(keys.ends_with(&walked) && keys.contains(&"val/loss"), "{keys:?}");
        lengths.push(line["walk/acceptance_length"].as_f64().expect("a number"));
    }
    assert!(lengths[0] >= 1.0 && lengths[3] > lengths[0], "{lengths:?}");

    for (name, line) in [("step-00000040", &whole[2]), ("step-00000060", &whole[3])] {
        let checkpoint = Path::new(&bench.path("whole")).join("checkpoints").join(name);
        assert_eq!(chosen_by(&checkpoint), "walk/acceptance_length");
        let drafter = checkpoint.display().to_string();
        let shown = success(&["eval", "-t", TARGET, "--validation", "--drafter", &drafter]);
        let words: Vec<&str> = shown.split_whitespace().collect();
        for (key, value) in line.iter().filter(|(key, _)| key.contains('/')) {
            let at = words.iter().position(|word| word == key).unwrap_or_else(|| panic!("{key} in {shown}"));
            assert_eq!(words[at + 1].parse().ok(), value.as_f64(), "{key} of {name}");
        }
        let json = success(&["eval", "-t", TARGET, "--validation", "--drafter", &drafter, "--json", "--quiet"]);
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json[0]["walk"]["outside_loops"]["acceptance_length_micro"], line["walk/acceptance_length"]);
        assert_eq!(json[0]["walk"]["prompts"], 3);
    }

    bench.train("parts", &["--stop-after", "30"], &["data.walk_prompts=3"]);
    // The answers in the checkpoint hold, whatever the recipe says now.
    assert_eq!(bench.train("parts", &["--resume"], &["data.walk_prompts=2"]), whole);
}

/// As with checkpoints from before there were walks: the best one was chosen by another number.
#[test]
fn a_run_without_a_walk_set_goes_on_without_one() {
    let bench = Bench::new();
    let whole = bench.train("whole", &[], &["data.walk_prompts=0"]);
    bench.train("parts", &["--stop-after", "30"], &["data.walk_prompts=0"]);
    assert_eq!(bench.train("parts", &["--resume"], &["data.walk_prompts=3"]), whole);
    assert!(whole.iter().all(|line| line.keys().all(|key| !key.starts_with("walk/"))), "{whole:?}");
    let checkpoint = Path::new(&bench.path("parts")).join("checkpoints/step-00000060");
    assert_eq!(chosen_by(&checkpoint), "val/chain_accepted_drafts");
    let validation: Value =
        serde_json::from_slice(&fs::read(checkpoint.join("validation.json")).expect("a file")).expect("JSON");
    assert_eq!(validation["version"], 1);
    let drafter = checkpoint.display().to_string();
    let shown = success(&["eval", "-t", TARGET, "--validation", "--drafter", &drafter]);
    assert!(shown.contains("val/loss") && !shown.contains("walk"), "{shown}");
}

/// The number that chose the best checkpoint so far.
fn chosen_by(checkpoint: &Path) -> String {
    let state = fs::read(checkpoint.join("state.json")).expect("a state");
    let state: Value = serde_json::from_slice(&state).expect("JSON");
    state["best"]["metric"].as_str().expect("a best checkpoint").to_owned()
}
