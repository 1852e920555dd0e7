//! `draftsman quickstart`: the main job on the embedded tiny target, from nothing to a report, without a download.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};

use super::{data_regenerate, eval, train};
use crate::Outcome;
use crate::args::{EvalArgs, QuickstartArgs, RegenerateArgs, TargetArgs, TrainArgs};
use crate::output::write_atomically;
use crate::printer::Printer;

/// The tiny target and the prompts for it; `cargo xtask tiny-target` makes them.
const ASSETS: [(&str, &[u8]); 7] = [
    ("tiny-target/config.json", include_bytes!("../../assets/tiny-target/config.json")),
    ("tiny-target/generation_config.json", include_bytes!("../../assets/tiny-target/generation_config.json")),
    ("tiny-target/model.safetensors", include_bytes!("../../assets/tiny-target/model.safetensors")),
    ("tiny-target/tokenizer.json", include_bytes!("../../assets/tiny-target/tokenizer.json")),
    ("tiny-target/tokenizer_config.json", include_bytes!("../../assets/tiny-target/tokenizer_config.json")),
    ("prompts.jsonl", include_bytes!("../../assets/tiny-target/prompts-train.jsonl")),
    ("held-out.jsonl", include_bytes!("../../assets/tiny-target/prompts-held-out.jsonl")),
];
const RECIPE: &str = include_str!("../../assets/quickstart.toml");

/// How much is done.
struct Budget {
    prompts: usize,
    new_tokens: usize,
    steps: usize,
    held_out: usize,
}

const FULL: Budget = Budget { prompts: 1500, new_tokens: 96, steps: 1600, held_out: 50 };
const SMOKE: Budget = Budget { prompts: 48, new_tokens: 32, steps: 12, held_out: 4 };

/// The folder's own mark: only a folder with it is replaced.
const MARK: &str = "quickstart.txt";

pub(crate) fn run(args: &QuickstartArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let budget = if args.smoke { SMOKE } else { FULL };
    let started = Instant::now();
    let folder = &args.out;
    start_folder(folder)?;
    let path = |name: &str| folder.join(name);
    for (name, bytes) in ASSETS {
        write_atomically(&path(name), bytes)?;
    }
    write_atomically(&path("recipe.toml"), RECIPE.as_bytes())?;
    let target = || TargetArgs::plain(path("tiny-target"));
    let step = |number: usize, what: &str| {
        printer.note(format!("\n[{number}/3] {what}  ({:.0} s so far)", started.elapsed().as_secs_f64()));
    };

    step(1, "the target writes its own training answers");
    let answers = RegenerateArgs {
        target: target(),
        prompts: path("prompts.jsonl"),
        out: path("answers.jsonl"),
        limit: Some(budget.prompts),
        max_new_tokens: budget.new_tokens,
        rows: 64,
        temperature: 0.0,
        seed: 0,
        keep_loops: false,
    };
    if let interrupted @ Outcome::Interrupted(_) = data_regenerate::run(&answers, printer)? {
        return Ok(interrupted);
    }

    step(2, "a drafter learns to foretell the target");
    let training = TrainArgs {
        target: target(),
        recipe: path("recipe.toml"),
        data: path("answers.jsonl"),
        out: path("train"),
        resume: false,
        overwrite: true,
        normalise: None,
        stop_after: None,
        overrides: vec![
            format!("train.steps={}", budget.steps),
            format!("train.validate_every={}", budget.steps.div_ceil(5)),
            format!("train.log_every={}", budget.steps.div_ceil(10)),
        ],
    };
    if let interrupted @ Outcome::Interrupted(_) = train::run(&training, printer)? {
        return Ok(interrupted);
    }

    step(3, "held-out prompts: plain decoding, lookup, the drafter before and after training");
    let before = path("train/checkpoints/step-00000000").display().to_string();
    let after = path(&format!("train/checkpoints/step-{:08}", budget.steps)).display().to_string();
    let evaluation = EvalArgs {
        drafter: vec!["ngram".into(), before, after.clone(), format!("ngram+{after}")],
        labels: ["ngram (the floor)", "drafter, untrained", "drafter", "ngram, then drafter"]
            .map(str::to_owned)
            .to_vec(),
        prompts: vec![path("held-out.jsonl")],
        num_prompts: vec![budget.held_out],
        max_new_tokens: budget.new_tokens,
        what_if: vec![2, 4, 8],
        check_replay: true,
        out: Some(path("eval.json")),
        html: Some(path("report.html")),
        brief: true,
        ..EvalArgs::greedy(target())
    };
    let outcome = eval::run(&evaluation, printer)?;

    let program = std::env::args().next().unwrap_or_else(|| "draftsman".into());
    printer.line(format!(
        "\nDone in {:.0} s. The report: {}\n\nNext:\n  \
         {program} generate -t {target} -d {after} \"Create a function that returns 'even' or 'odd'. Call it check_number(value).\"\n  \
         {program} inspect {after}\n  \
         bash scripts/smollm2.sh        # the same on a real model, SmolLM2-135M",
        started.elapsed().as_secs_f64(),
        path("report.html").display(),
        target = path("tiny-target").display(),
    ));
    Ok(outcome)
}

/// An empty folder, or one that an earlier quickstart made, emptied.
fn start_folder(folder: &Path) -> anyhow::Result<()> {
    let entries: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", folder.display())),
    };
    if !entries.is_empty() {
        if !folder.join(MARK).is_file() {
            bail!(
                "`{}` holds files that no quickstart wrote\n\nhint: give another folder with `--out`",
                folder.display()
            );
        }
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty `{}`", folder.display()))?;
    }
    fs::create_dir_all(folder.join("tiny-target")).with_context(|| format!("cannot make `{}`", folder.display()))?;
    write_atomically(&folder.join(MARK), b"Written by `draftsman quickstart`, which may replace this folder.\n")
}
