//! `eval --watch`: every checkpoint of a training run, as they come.
//!
//! The target answers once; each checkpoint is walked over the same answers, which is what decoding with it would do. The
//! run is only read, so it may be another process's, or lie on another machine's disk.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use draftsman_contract::Interval;
use draftsman_eval::{ProposerReport, Settings, replay_walk, summarise_replay};
use draftsman_models::Target;
use draftsman_train::{Recipe, list_checkpoints, recipe_in};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answers::{self, Answered};
use super::prompts::Prompts;
use super::walk::{replay_rows, settings};
use crate::Outcome;
use crate::args::EvalArgs;
use crate::interrupt;
use crate::model::Model;
use crate::output::write_atomically;
use crate::printer::Printer;
use crate::proposers::Proposers;

/// A curve file: JSON lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum CurveLine {
    /// The first line: what all points have in common.
    Settings(Common),
    /// A checkpoint.
    Point(Point),
}

/// Points with other settings are no part of the same curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Common {
    curve_version: u32,
    statistic: String,
    target: String,
    target_layers_sha256: Option<String>,
    max_new_tokens: usize,
    max_blocks: Option<usize>,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    seed: u64,
    /// Questions, their tokens, and the tokens of the target's answers: these tell suites apart.
    prompts: usize,
    prompt_tokens: usize,
    answer_tokens: usize,
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

pub(super) fn run(run: &Path, args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let recipe = recipe_in(run);
    let last_step = Recipe::load(&recipe, &[])
        .with_context(|| format!("`{}` is no run of `draftsman train`", run.display()))?
        .train
        .steps;
    let suites = Prompts::read(args)?;
    let out = args.out.as_deref().context("`--watch` needs `--out`")?;
    let folder = fs::canonicalize(out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    if folder.starts_with(fs::canonicalize(run)?) {
        bail!("`{}` lies in the run, which is only read\n\nhint: keep the curve elsewhere", out.display());
    }
    let model = Model::open_for_data(&args.target)?;
    let settings = settings(args, &model);
    let (answers, failed) = answers::wanted(args, &suites, &model, &settings.options, printer)?;
    for failed in &failed {
        printer.warning(format!("`{}` is not evaluated: {}", failed.id, failed.problem));
    }
    if answers.is_empty() {
        bail!("no prompt could be answered");
    }
    let mut curve = Curve::open(out, common(&model, &settings, &answers))?;
    let watch = Watch { run, args, printer, model: &model, settings, answers };
    let interrupted = interrupt::flag()?;
    let mut passed_over = BTreeSet::new();
    while !interrupted.load(Ordering::Relaxed) {
        for (step, folder) in list_checkpoints(run)? {
            if interrupted.load(Ordering::Relaxed) {
                break;
            }
            if curve.has(step) || passed_over.contains(&step) {
                continue;
            }
            match watch.evaluate(step, &folder) {
                Ok(points) => curve.add(points, printer)?,
                Err(error) => {
                    passed_over.insert(step);
                    // A run deletes its older checkpoints.
                    if folder.exists() {
                        printer.warning(format!("step {step} is passed over: {error:#}"));
                    } else {
                        printer.note(format!("step {step} was deleted by the run before it was read"));
                    }
                }
            }
        }
        if args.once || curve.has(last_step) || passed_over.contains(&last_step) {
            break;
        }
        sleep(Duration::from_secs(args.poll_seconds), &interrupted);
    }
    curve.tell_best(printer);
    printer.document(&curve.lines())?;
    if interrupted.load(Ordering::Relaxed) {
        return Ok(Outcome::Interrupted(interrupt::SIGINT));
    }
    Ok(if failed.is_empty() && passed_over.is_empty() { Outcome::Done } else { Outcome::GateFailed })
}

/// Waits, and hears an interruption meanwhile.
fn sleep(time: Duration, interrupted: &AtomicBool) {
    let start = Instant::now();
    while start.elapsed() < time && !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100).min(time));
    }
}

fn common(model: &Model, settings: &Settings, answers: &Answered) -> Common {
    let options = &settings.options;
    Common {
        curve_version: 1,
        statistic: "walked anchors, outside loops".into(),
        target: model.name(),
        target_layers_sha256: model.target.layers_sha256().map(str::to_owned),
        max_new_tokens: options.max_new_tokens,
        max_blocks: options.max_blocks,
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        seed: options.seed,
        prompts: answers.len(),
        prompt_tokens: answers.iter().map(|(prompt, _)| prompt.ids.len()).sum(),
        answer_tokens: answers.iter().map(|(_, answer)| answer.output_ids.len()).sum(),
    }
}

/// What every checkpoint is evaluated with.
struct Watch<'a> {
    run: &'a Path,
    args: &'a EvalArgs,
    printer: &'a Printer,
    model: &'a Model,
    settings: Settings,
    answers: Answered,
}

impl Watch<'_> {
    fn evaluate(&self, step: usize, folder: &Path) -> anyhow::Result<Vec<Point>> {
        let started = Instant::now();
        let target: &dyn Target = self.model.target.as_ref();
        let name = folder.display().to_string();
        let rules: Vec<_> = self.args.tree_budget.iter().map(|&budget| self.args.trees.rule(budget)).collect();
        let opened = Proposers::open(std::slice::from_ref(&name), &self.args.opening, target, None, self.printer)?
            .with_trees(&rules);
        let mut proposers = opened.build(target)?;
        let walk = replay_walk(target, &mut proposers, &self.answers, &self.settings.options, replay_rows(target))?;
        if let Some(failed) = walk.failed.first() {
            bail!("`{}`: {}", failed.id, failed.problem);
        }
        let report = summarise_replay(&walk, &opened.names(), &self.settings);
        let seconds = started.elapsed().as_secs_f64();
        let draft = |line: &ProposerReport| match line.name.strip_prefix(&name).map(str::trim) {
            None | Some("") => "chain".to_owned(),
            Some(tree) => tree.to_owned(),
        };
        let points = report.proposers.iter().map(|line| Point {
            step,
            draft: draft(line),
            acceptance_length_micro: line.outside_loops.acceptance_length_micro,
            acceptance_length_micro_interval_95: line.outside_loops.acceptance_length_micro_interval_95,
            acceptance_length_macro: line.outside_loops.acceptance_length_macro,
            acceptance_length_micro_all_tokens: line.all_tokens.acceptance_length_micro,
            cycles: line.outside_loops.cycles,
            seconds,
        });
        let points = points.collect();
        self.printer.note(format!("step {step} of `{}`: {seconds:.1} s", self.run.display()));
        Ok(points)
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
    fn open(path: &'a Path, common: Common) -> anyhow::Result<Self> {
        let mut points = Vec::new();
        if path.exists() {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
            for (number, text) in text.lines().enumerate() {
                let line: CurveLine = serde_json::from_str(text).with_context(|| {
                    format!(
                        "`{}:{}` is no line of a curve\n\nhint: give `--out` another file",
                        path.display(),
                        number + 1
                    )
                })?;
                match line {
                    CurveLine::Settings(there) if there != common => bail!(
                        "the curve in `{}` was made with other settings:\n  there {}\n  here  {}\n\nhint: give `--out` another file",
                        path.display(),
                        serde_json::to_string(&there)?,
                        serde_json::to_string(&common)?
                    ),
                    CurveLine::Settings(_) => {}
                    CurveLine::Point(point) => points.push((point, text.to_owned())),
                }
            }
        }
        Ok(Self { path, common, points })
    }

    fn has(&self, step: usize) -> bool {
        self.points.iter().any(|(point, _)| point.step == step)
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
