//! `eval --watch`: every checkpoint of a training run, as they come.
//!
//! The target answers once; each checkpoint is walked over the same answers, which is what decoding with it would do. The
//! run is only read, so it may be another process's, or lie on another machine's disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use draftsman_contract::{Interval, ThinkingMode, TreeRule};
use draftsman_eval::{Settings, replay_walk, summarise_replay};
use draftsman_models::Target;
use draftsman_train::{Recipe, checkpoints_in, list_checkpoints, recipe_in, run_identity};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::answers::{self, Answered, Answers};
use super::prompts::Prompts;
use super::walk::{replay_rows, settings};
use crate::Outcome;
use crate::args::EvalArgs;
use crate::interrupt;
use crate::model::Model;
use crate::output::write_atomically;
use crate::printer::Printer;
use crate::proposers::{Proposers, tree_suffix};

/// A curve file: JSON lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum CurveLine {
    /// The first line: what all points have in common.
    Settings(Common),
    /// A checkpoint.
    Point(Point),
}

/// Version of a curve file.
const CURVE_VERSION: u32 = 1;

/// Points with other settings are no part of the same curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Common {
    curve_version: u32,
    statistic: String,
    /// What decides the run: recipe and data.
    run_sha256: String,
    target: String,
    target_layers_sha256: Option<String>,
    dtype: String,
    delta_rule: String,
    thinking: Option<ThinkingMode>,
    max_new_tokens: usize,
    max_blocks: Option<usize>,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    seed: u64,
    /// Questions.
    prompts: usize,
    /// Of the questions and the target's answers, as tokens.
    answers_sha256: String,
}

/// One checkpoint with one way to draft.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Point {
    step: usize,
    /// `chain`, or the tree: `ddtree8`.
    draft: String,
    acceptance_length_micro: Option<f64>,
    acceptance_length_micro_interval_95: Option<Interval>,
    acceptance_length_macro: Option<f64>,
    acceptance_length_micro_all_tokens: Option<f64>,
    cycles: u64,
    seconds: f64,
}

impl Point {
    fn describe(&self) -> String {
        let interval = self.acceptance_length_micro_interval_95.as_ref();
        format!(
            "step {:>8}  {:<10} {}{}",
            self.step,
            self.draft,
            self.acceptance_length_micro.map_or("–".into(), |length| format!("{length:.3}")),
            interval.map_or_else(String::new, |i| format!(" ({:.2}–{:.2})", i.low, i.high))
        )
    }
}

/// How often a checkpoint that cannot be evaluated is looked at again: somebody may still be copying it.
const ATTEMPTS: usize = 3;

pub(super) fn run(run: &Path, args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let no_run = || format!("`{}` is no run of `draftsman train`", run.display());
    if !checkpoints_in(run).is_dir() {
        bail!("{}\n\nhint: a run folder holds `recipe.toml` and `checkpoints`", no_run());
    }
    let last_step = Recipe::load(&recipe_in(run), &[]).with_context(no_run)?.train.steps;
    let suites = Prompts::read(args)?;
    let out = args.out.as_deref().context("`--watch` needs `--out`")?;
    let folder = fs::canonicalize(out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    if folder.starts_with(fs::canonicalize(run)?) {
        bail!("`{}` lies in the run, which is only read\n\nhint: keep the curve elsewhere", out.display());
    }
    let model = Model::open_for_data(&args.target)?;
    let settings = settings(args, &model, printer)?;
    let interrupted = interrupt::flag()?;
    let Answers { answered, failed, .. } = answers::wanted(args, &suites, &model, &settings.options, printer)?;
    for failed in &failed {
        printer.warning(format!("`{}` is not evaluated: {}", failed.id, failed.problem));
    }
    if answered.is_empty() && !interrupted.load(Ordering::Relaxed) {
        bail!("no prompt could be answered");
    }
    let mut curve: Option<Curve<'_>> = None;
    let watch = Watch { args, printer, model: &model, settings, answers: answered };
    let rules = args.tree_rules();
    let mut attempts = Attempts { once: args.once, failed: BTreeMap::new(), deleted: BTreeSet::new() };
    while !interrupted.load(Ordering::Relaxed) {
        if let Some(identity) = run_identity(run)? {
            let common = watch.common(identity);
            let curve = match &mut curve {
                None => curve.insert(Curve::open(out, common, printer)?),
                Some(curve) if curve.common.run_sha256 != common.run_sha256 => {
                    bail!("`{}` was started anew\n\nhint: give `--out` another file", run.display())
                }
                Some(curve) => curve,
            };
            let checkpoints = list_checkpoints(run)?;
            for (step, folder) in &checkpoints {
                let step = *step;
                if interrupted.load(Ordering::Relaxed) {
                    break;
                }
                let missing = curve.missing(step, &rules);
                if missing.is_empty() || attempts.ended(step) {
                    continue;
                }
                match watch.evaluate(step, folder, &missing) {
                    Ok(points) => {
                        attempts.failed.remove(&step);
                        curve.add(points, printer)?;
                    }
                    // A run deletes its older checkpoints.
                    Err(_) if !folder.exists() => {
                        attempts.deleted.insert(step);
                        printer.note(format!("step {step} was deleted by the run before it was read"));
                    }
                    Err(error) => match attempts.fail(step, folder) {
                        _ if attempts.ended(step) => printer.warning(format!("step {step} is passed over: {error:#}")),
                        1 => printer.note(format!("step {step} is tried again later: {error:#}")),
                        _ => {}
                    },
                }
            }
            // One that was to be tried again may have been deleted meanwhile.
            attempts.failed.retain(|step, _| checkpoints.iter().any(|(listed, _)| listed == step));
            let open = |step: usize| !curve.missing(step, &rules).is_empty() && !attempts.ended(step);
            if !open(last_step) && !checkpoints.iter().any(|(step, _)| open(*step)) {
                break;
            }
        }
        if args.once {
            break;
        }
        sleep(Duration::from_secs(args.poll_seconds), &interrupted);
    }
    match &curve {
        Some(curve) => {
            curve.tell_best(printer);
            printer.document(&curve.lines())?;
        }
        None if interrupted.load(Ordering::Relaxed) => printer.document(&json!([]))?,
        None => {
            printer.line(format!("`{}` has no checkpoint yet", run.display()));
            printer.document(&json!([]))?;
        }
    }
    if interrupted.load(Ordering::Relaxed) {
        return Ok(Outcome::Interrupted(interrupt::SIGINT));
    }
    Ok(if failed.is_empty() && attempts.failed.is_empty() { Outcome::Done } else { Outcome::GateFailed })
}

/// Checkpoints that could not be evaluated.
struct Attempts {
    /// One attempt is all.
    once: bool,
    /// By step: how often it failed at its present size, and that size.
    failed: BTreeMap<usize, (usize, u64)>,
    /// Steps that the run deleted.
    deleted: BTreeSet<usize>,
}

impl Attempts {
    /// Counts a failure and returns how many there are; a checkpoint that grows is still being copied, and starts anew.
    fn fail(&mut self, step: usize, folder: &Path) -> usize {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let size = files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum();
        let known = self.failed.entry(step).or_insert((0, size));
        *known = if known.1 == size { (known.0 + 1, size) } else { (2, size) };
        known.0
    }

    /// Whether nothing is tried again with that step.
    fn ended(&self, step: usize) -> bool {
        self.deleted.contains(&step) || self.failed.get(&step).is_some_and(|(tried, _)| self.once || *tried >= ATTEMPTS)
    }
}

/// Waits, and hears an interruption meanwhile.
fn sleep(time: Duration, interrupted: &AtomicBool) {
    let start = Instant::now();
    while start.elapsed() < time && !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100).min(time));
    }
}

/// What every checkpoint is evaluated with.
struct Watch<'a> {
    args: &'a EvalArgs,
    printer: &'a Printer,
    model: &'a Model,
    settings: Settings,
    answers: Answered,
}

impl Watch<'_> {
    fn common(&self, run_sha256: String) -> Common {
        let options = &self.settings.options;
        let run = &self.args.target.run;
        let mut hasher = Sha256::new();
        for (prompt, answer) in &self.answers {
            for ids in [&prompt.ids, &answer.output_ids] {
                hasher.update((ids.len() as u64).to_le_bytes());
                ids.iter().for_each(|id| hasher.update(id.to_le_bytes()));
            }
        }
        Common {
            curve_version: CURVE_VERSION,
            statistic: "walked anchors, outside loops".into(),
            run_sha256,
            target: self.model.name(),
            target_layers_sha256: self.model.target.layers_sha256().map(str::to_owned),
            dtype: run.dtype.to_string(),
            delta_rule: run.delta_rule.to_string(),
            thinking: self.settings.thinking,
            max_new_tokens: options.max_new_tokens,
            max_blocks: options.max_blocks,
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            seed: options.seed,
            prompts: self.answers.len(),
            answers_sha256: hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// The points of one checkpoint for these ways to draft.
    fn evaluate(&self, step: usize, folder: &Path, rules: &[TreeRule]) -> anyhow::Result<Vec<Point>> {
        let started = Instant::now();
        let target: &dyn Target = self.model.target.as_ref();
        let name = folder.display().to_string();
        let opened = Proposers::open(std::slice::from_ref(&name), &self.args.opening, target, None, self.printer)?
            .with_trees(rules);
        let mut proposers = opened.build(target)?;
        let options = &self.settings.options;
        let walk = replay_walk(target, &mut proposers, &self.answers, options, replay_rows(target), &mut |_| {
            ControlFlow::Continue(())
        })?;
        if let Some(failed) = walk.failed.first() {
            bail!("`{}`: {}", failed.id, failed.problem);
        }
        let report = summarise_replay(&walk, &opened.names(), &self.settings);
        let seconds = started.elapsed().as_secs_f64();
        let points = report.proposers.iter().zip(rules).map(|(line, rule)| Point {
            step,
            draft: draft(rule),
            acceptance_length_micro: line.outside_loops.acceptance_length_micro,
            acceptance_length_micro_interval_95: line.outside_loops.acceptance_length_micro_interval_95,
            acceptance_length_macro: line.outside_loops.acceptance_length_macro,
            acceptance_length_micro_all_tokens: line.all_tokens.acceptance_length_micro,
            cycles: line.outside_loops.cycles,
            seconds,
        });
        let points = points.collect();
        self.printer.note(format!("step {step}: {seconds:.1} s"));
        Ok(points)
    }
}

/// A way to draft, as a point names it.
fn draft(rule: &TreeRule) -> String {
    match tree_suffix(rule).trim() {
        "" => "chain".to_owned(),
        tree => tree.to_owned(),
    }
}

/// The curve and its file.
struct Curve<'a> {
    path: &'a Path,
    common: Common,
    /// Each with its line: numbers that were read are written again as they stood.
    points: Vec<(Point, String)>,
}

impl<'a> Curve<'a> {
    /// A new curve, or the one that the file holds.
    fn open(path: &'a Path, common: Common, printer: &Printer) -> anyhow::Result<Self> {
        const HINT: &str = "hint: give `--out` another file";
        let mut points = Vec::new();
        let text = if path.exists() {
            fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?
        } else {
            String::new()
        };
        for (number, line) in text.lines().enumerate() {
            let place = format!("`{}:{}`", path.display(), number + 1);
            let parsed = match serde_json::from_str::<CurveLine>(line) {
                Ok(parsed) => parsed,
                // Somebody's copy ended here.
                Err(_) if number > 0 && text.lines().count() == number + 1 && !text.ends_with('\n') => {
                    printer.warning(format!("{place} is cut off and left out"));
                    break;
                }
                Err(error) => bail!("{place} is no line of a curve: {error}\n\n{HINT}"),
            };
            match parsed {
                CurveLine::Settings(there) if number > 0 || there != common => bail!(
                    "the curve in `{}` was made with other settings, of another run or on other prompts:\n  there {}\n  here  {}\n\n{HINT}",
                    path.display(),
                    serde_json::to_string(&there)?,
                    serde_json::to_string(&common)?
                ),
                CurveLine::Settings(_) => {}
                CurveLine::Point(_) if number == 0 => bail!("{place} is no curve: its settings are missing\n\n{HINT}"),
                CurveLine::Point(point) => points.push((point, line.to_owned())),
            }
        }
        Ok(Self { path, common, points })
    }

    /// The ways to draft for which `step` has no point.
    fn missing(&self, step: usize, rules: &[TreeRule]) -> Vec<TreeRule> {
        let has =
            |rule: &TreeRule| self.points.iter().any(|(point, _)| point.step == step && point.draft == draft(rule));
        rules.iter().filter(|rule| !has(rule)).copied().collect()
    }

    fn add(&mut self, points: Vec<Point>, printer: &Printer) -> anyhow::Result<()> {
        let shown: Vec<String> = points.iter().map(Point::describe).collect();
        for point in points {
            let line = serde_json::to_string(&CurveLine::Point(point.clone()))?;
            self.points.push((point, line));
        }
        // Steps may be found out of order: a run that was resumed from an older checkpoint.
        self.points.sort_by_key(|(point, _)| point.step);
        let first = serde_json::to_string(&CurveLine::Settings(self.common.clone()))?;
        let lines = std::iter::once(first.as_str()).chain(self.points.iter().map(|(_, line)| line.as_str()));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        write_atomically(self.path, text.as_bytes())?;
        shown.iter().for_each(|line| printer.line(line));
        Ok(())
    }

    fn lines(&self) -> Vec<serde_json::Value> {
        let points = self.points.iter().map(|(point, _)| CurveLine::Point(point.clone()));
        std::iter::once(CurveLine::Settings(self.common.clone())).chain(points).map(|line| json!(line)).collect()
    }

    fn tell_best(&self, printer: &Printer) {
        let length = |point: &Point| point.acceptance_length_micro.unwrap_or(0.0);
        if let Some(best) = self.points.iter().map(|(point, _)| point).max_by(|a, b| length(a).total_cmp(&length(b))) {
            printer.line(format!(
                "best: {:.3} ({}) at step {}; acceptance_length of walked anchors, outside loops, {} prompts",
                length(best),
                best.draft,
                best.step,
                self.common.prompts
            ));
        }
    }
}
