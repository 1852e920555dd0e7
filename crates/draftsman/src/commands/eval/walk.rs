//! Decoding with and without drafters, live and replayed.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use draftsman_contract::TreeRule;
use draftsman_data::LoopRule;
use draftsman_decode::{Cycle, GenerateOptions, Proposer};
use draftsman_eval::html::{DrawnTree, Page, SampleAnswer};
use draftsman_eval::{
    EvalPrompt, EvalReport, FailedPrompt, LiveWalk, PromptRun, ReplayRun, Settings, TargetAnswer, Verdict, WalkHooks,
    first_cycle_difference, replay_walk, summarise, summarise_replay, walk_live, what_if,
};
use draftsman_kernels::DeltaRule;
use draftsman_models::Target;

use super::prompts::Prompts;
use super::{answers, csv, table, write_out};
use crate::Outcome;
use crate::args::EvalArgs;
use crate::interrupt;
use crate::model::Model;
use crate::output::write_atomically;
use crate::page;
use crate::printer::{Printer, one_line};
use crate::proposers::Proposers;
use crate::provenance;
use crate::published;

pub(super) fn run(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    if args.answers.is_some() && !args.replay {
        bail!("`--answers` needs `--replay` or `--stats`\n\nhint: recorded answers are replayed, not decoded again");
    }
    let suites = Prompts::read(args)?;
    let model = Model::open_for_data(&args.target)?;
    let target = model.target.as_ref();
    let settings = settings(args, &model, printer)?;

    let arguments = if args.drafter.is_empty() { vec!["ngram".to_owned()] } else { args.drafter.clone() };
    let opened = Proposers::open(&arguments, &args.opening, target, args.ngram_drafts, printer)?
        .with_trees(&args.tree_budget.iter().map(|&budget| args.trees.rule(budget)).collect::<Vec<_>>());
    for (path, drafter) in opened.drafters() {
        provenance::warn(&path.display().to_string(), &drafter.config().contract, &model, &args.target.run, printer);
    }
    let names = named(&opened, &args.labels);
    if let Some((twice, _)) = names.iter().enumerate().find(|(at, name)| names[..*at].iter().any(|n| n.0 == name.0)) {
        bail!("two lines would be called `{}`\n\nhint: give each drafter and tree once", names[twice].0);
    }
    if !args.what_if.is_empty() && opened.chains(target)?.is_empty() {
        bail!(
            "`--what-if` judges the chain of a drafter, and none is asked for\n\nhint: give `--drafter FOLDER`, and 0 among `--tree-budget`"
        );
    }
    let interrupted = interrupt::flag()?;
    let evaluation =
        Evaluation { args, printer, model: &model, suites, opened, names, settings, interrupted: interrupted.clone() };
    let Evaluated { report, samples, tree, replay_is_live } =
        if args.replay { evaluation.replayed()? } else { evaluation.live()? };

    let published: Vec<String> = evaluation
        .suites
        .names()
        .flat_map(|suite| published::lines(&model.name(), suite, args.sampling.temperature))
        .collect();
    // Files first: whoever reads stdout may go away in the middle of the table. One that cannot be written keeps neither the
    // others nor the table back.
    let page = || {
        let training = args.drafter.iter().rev().find_map(|argument| run_of(argument));
        let training = training.map(|run| page::training_points(&run.join("metrics.jsonl"))).unwrap_or_default();
        let title = format!("Drafters for {}", model.name());
        let facts = facts(args, &model, &published);
        Page {
            title: &title,
            report: &report,
            training: &training,
            samples: &samples,
            tree: tree.as_ref(),
            facts: &facts,
        }
        .render()
    };
    let written = [
        args.out.as_deref().map(|_| write_out(args.out.as_deref(), &report)),
        args.csv.as_deref().map(|path| csv::write(path, &report)),
        args.html.as_deref().map(|path| write_atomically(path, page().as_bytes())),
    ];
    table::print(&report, args.brief, printer);
    for line in &published {
        printer.line(format!("published elsewhere: {line}"));
    }
    match replay_is_live {
        Some(true) => printer.line("replay = live: every cycle of every prompt is the same"),
        None if args.check_replay => printer.warning("interrupted: the replay was not compared"),
        _ => {}
    }
    for failed in &report.failed {
        printer.warning(format!("`{}` was not evaluated: {}", one_line(&failed.id), failed.problem));
    }
    printer.document(&report)?;
    let lost: Vec<String> =
        written.into_iter().flatten().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    if !lost.is_empty() {
        bail!("{}\n\nhint: what else was asked for is written", lost.join("\n"));
    }
    let lossless = report.proposers.iter().all(|p| p.lossless.as_ref().is_none_or(|l| l.verdict != Verdict::Different));
    if interrupted.load(Ordering::Relaxed) {
        return Ok(Outcome::Interrupted(interrupt::SIGINT));
    }
    Ok(if lossless && replay_is_live != Some(false) && report.failed.is_empty() {
        Outcome::Done
    } else {
        Outcome::GateFailed
    })
}

/// How answers are decoded and counted.
pub(super) fn settings(args: &EvalArgs, model: &Model, printer: &Printer) -> anyhow::Result<Settings> {
    let options = match &args.answers {
        Some(path) => answers::recorded_options(args, path, model, printer)?,
        None => args.sampling.options(args.max_new_tokens, &model.stop_ids()),
    };
    options.check()?;
    Ok(Settings {
        target: model.name(),
        target_layers_sha256: model.target.layers_sha256().map(str::to_owned),
        options: GenerateOptions { max_blocks: args.max_blocks, ..options },
        thinking: model.thinking(),
        loop_rule: LoopRule::default(),
    })
}

/// One evaluation, opened.
struct Evaluation<'a> {
    args: &'a EvalArgs,
    printer: &'a Printer,
    model: &'a Model,
    suites: Prompts,
    opened: Proposers,
    /// Name and block size of every proposer.
    names: Vec<(String, usize)>,
    settings: Settings,
    interrupted: Arc<AtomicBool>,
}

struct Evaluated {
    report: EvalReport,
    samples: Vec<SampleAnswer>,
    tree: Option<DrawnTree>,
    /// Absent where it was not compared to the end.
    replay_is_live: Option<bool>,
}

impl Evaluation<'_> {
    fn target(&self) -> &dyn Target {
        self.model.target.as_ref()
    }

    fn live(&self) -> anyhow::Result<Evaluated> {
        let (prompts, refused) = self.questions()?;
        let mut proposers = self.opened.build(self.target())?;
        let mut hooks = Console { of: self, total: prompts.iter().map(|prompt| prompt.turns).sum(), done: 0 };
        let mut walk = walk_live(self.target(), &mut proposers, &prompts, &self.settings.options, &mut hooks)?;
        walk.failed.splice(0..0, refused);
        if let (Some(first), true) = (walk.failed.first(), walk.runs.is_empty() && walk.unasked == 0) {
            bail!("no prompt could be evaluated; the first, `{}`: {}", first.id, first.problem);
        }
        let (samples, tree) = match self.args.html {
            Some(_) => {
                let samples = page::samples(self.model, &walk.runs, &self.names);
                (samples, page::tree(self.model, &walk.runs, &self.names))
            }
            None => (Vec::new(), None),
        };
        let replay_is_live = match self.args.check_replay && walk.unasked == 0 {
            true => self.replay_is_live(&mut proposers, &walk)?,
            false => None,
        };
        let mut report = summarise(&walk, &self.names, &self.settings);
        let answers: Vec<_> = walk.runs.iter().map(|run| (run.prompt.clone(), own_answer(run))).collect();
        self.what_if(&mut report, &answers)?;
        Ok(Evaluated { report, samples, tree, replay_is_live })
    }

    fn replayed(&self) -> anyhow::Result<Evaluated> {
        let target = self.target();
        let asked = answers::wanted(self.args, &self.suites, self.model, &self.settings.options, self.printer)?;
        let mut proposers = self.opened.build(target)?;
        let (total, mut done) = (asked.answered.len(), 0);
        let mut on_run = |run: &ReplayRun| {
            done += 1;
            self.printer.note(format!("{done}/{total} {}: replayed", one_line(&run.prompt.name())));
            self.flow()
        };
        let (options, rows) = (&self.settings.options, replay_rows(target));
        let mut walk = replay_walk(target, &mut proposers, &asked.answered, options, rows, &mut on_run)?;
        walk.failed.splice(0..0, asked.failed);
        walk.unasked += asked.unasked;
        if let (Some(first), true) = (walk.failed.first(), walk.runs.is_empty() && walk.unasked == 0) {
            bail!("no prompt could be evaluated; the first, `{}`: {}", first.id, first.problem);
        }
        let mut report = summarise_replay(&walk, &self.names, &self.settings);
        let answers: Vec<_> = walk.runs.into_iter().map(|run| (run.prompt, run.answer)).collect();
        self.what_if(&mut report, &answers)?;
        Ok(Evaluated { report, samples: Vec::new(), tree: None, replay_is_live: None })
    }

    /// The first question of every prompt, and those that cannot be asked.
    fn questions(&self) -> anyhow::Result<(Vec<EvalPrompt>, Vec<FailedPrompt>)> {
        let (prompts, refused) = self.suites.questions(self.model)?;
        self.printer.note(format!("{}, at most {} new tokens each", self.suites.describe(), self.args.max_new_tokens));
        Ok((prompts, refused))
    }

    /// Adds what other drafts would have brought, to every line whose drafter makes chains.
    fn what_if(&self, report: &mut EvalReport, answers: &[(EvalPrompt, TargetAnswer)]) -> anyhow::Result<()> {
        if self.args.what_if.is_empty() || self.flow().is_break() {
            return Ok(());
        }
        let trees: Vec<TreeRule> = self.args.what_if.iter().map(|&budget| self.args.trees.rule(budget)).collect();
        let (target, settings) = (self.target(), &self.settings);
        for (line, mut drafter) in self.opened.chains(target)? {
            let found = what_if(
                target,
                &mut drafter,
                answers,
                &settings.options,
                &settings.loop_rule,
                &trees,
                replay_rows(target),
            )?;
            report.proposers[line].what_if = Some(found);
        }
        Ok(())
    }

    /// Replays every answered question and compares cycle by cycle; `None` where the user interrupts.
    fn replay_is_live(
        &self,
        proposers: &mut [Box<dyn Proposer + '_>],
        walk: &LiveWalk,
    ) -> anyhow::Result<Option<bool>> {
        let target = self.target();
        let answers: Vec<_> = walk.runs.iter().map(|run| (run.prompt.clone(), own_answer(run))).collect();
        let (options, rows) = (&self.settings.options, replay_rows(target));
        let replayed = replay_walk(target, proposers, &answers, options, rows, &mut |_| self.flow())?;
        if replayed.unasked > 0 || self.flow().is_break() {
            return Ok(None);
        }
        let mut same = replayed.failed.is_empty();
        for failed in &replayed.failed {
            self.printer.warning(format!("`{}` was not replayed: {}", failed.id, failed.problem));
        }
        for run in &walk.runs {
            let Some(again) = replayed.runs.iter().find(|again| again.prompt == run.prompt) else { continue };
            for ((live, replayed), (name, _)) in run.speculative.iter().zip(&again.cycles).zip(&self.names) {
                // After a first answer that differs, a conversation's next question is another one.
                if live.ids.get(..live.prompt_len) != Some(&run.prompt.ids[..]) {
                    continue;
                }
                if let Some(difference) = first_cycle_difference(&live.cycles, replayed) {
                    same = false;
                    self.printer.warning(format!(
                        "`{name}` on `{}`: cycle {} is {} live and {} replayed",
                        one_line(&run.prompt.name()),
                        difference.cycle,
                        shown(difference.live.as_ref()),
                        shown(difference.replayed.as_ref())
                    ));
                }
            }
        }
        let rule = self.args.target.run.delta_rule;
        if !same && rule != DeltaRule::Recurrent && target.spec().delta_layers() > 0 {
            self.printer.note(format!(
                "with `--delta-rule {rule}` a replay may differ in rounding: only `recurrent` is the same to the bit (docs/targets.md)"
            ));
        }
        Ok(Some(same))
    }

    /// Goes on until the user interrupts.
    fn flow(&self) -> ControlFlow<()> {
        if self.interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// A cycle in few words.
fn shown(cycle: Option<&Cycle>) -> String {
    match cycle {
        None => "no cycle".to_owned(),
        Some(Cycle { start, block, accepted, committed, .. }) => {
            format!("[anchor {start}, rows {block:?}, {accepted} accepted, {committed} tokens]")
        }
    }
}

/// The target's own answer of a live run.
fn own_answer(run: &PromptRun) -> TargetAnswer {
    TargetAnswer { output_ids: run.plain.output_ids().to_vec(), finish: run.plain.finish }
}

/// Tells of every question, knows the next one, and ends when interrupted.
struct Console<'a, 'b> {
    of: &'a Evaluation<'b>,
    total: usize,
    done: usize,
}

impl WalkHooks for Console<'_, '_> {
    fn next_turn(&mut self, prompt: &EvalPrompt, answers: &[Vec<u32>]) -> Result<Vec<u32>, String> {
        self.of.suites.next(self.of.model, prompt, answers)
    }

    fn answered(&mut self, run: &PromptRun) -> ControlFlow<()> {
        self.done += 1;
        let (done, total) = (self.done, self.total);
        self.of.printer.note(format!(
            "{done}/{total} {}: {} tokens",
            one_line(&run.prompt.name()),
            run.plain.output_ids().len()
        ));
        self.of.flow()
    }

    fn failed(&mut self, failed: &FailedPrompt) {
        self.done += 1;
        self.of.printer.note(format!("{}/{} {}: failed", self.done, self.total, one_line(&failed.id)));
    }
}

/// Names and block sizes of the proposers; labels stand for the arguments, `none` included.
fn named(opened: &Proposers, labels: &[String]) -> Vec<(String, usize)> {
    let names = opened.names();
    if labels.len() != names.len() {
        return names;
    }
    names.into_iter().zip(labels).map(|((_, block_size), label)| (label.clone(), block_size)).collect()
}

/// The run folder that a drafter argument lies in.
pub(super) fn run_of(argument: &str) -> Option<PathBuf> {
    let path = Path::new(argument.strip_prefix("ngram+").unwrap_or(argument));
    path.ancestors().find(|folder| folder.join("metrics.jsonl").is_file()).map(Path::to_owned)
}

/// What a reader of the page must know to believe it.
fn facts(args: &EvalArgs, model: &Model, published: &[String]) -> Vec<(String, String)> {
    let spec = model.target.spec();
    let prompts: Vec<String> = args.prompts.iter().chain(&args.answers).map(|p| p.display().to_string()).collect();
    let thinking =
        model.thinking().map_or("as the template has it".to_owned(), |mode| format!("{mode:?}").to_lowercase());
    let facts = [
        ("target", format!("{}: {}, {} layers", model.name(), spec.architecture, spec.num_layers)),
        ("prompts", prompts.join(", ")),
        ("drafters", args.drafter.join(", ")),
        ("new tokens", format!("at most {}", args.max_new_tokens)),
        ("sampling", sampling(args)),
        ("draft trees", trees(args)),
        ("thinking", thinking),
        ("device, dtype", format!("{:?}, {}", args.target.run.device, args.target.run.dtype)),
        ("threads", rayon::current_num_threads().to_string()),
        ("machine", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("draftsman", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let published = published.iter().map(|line| ("published elsewhere", line.clone()));
    facts.into_iter().chain(published).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn trees(args: &EvalArgs) -> String {
    if args.tree_budget == [0] {
        return "none, chains only".to_owned();
    }
    let budgets: Vec<String> = args.tree_budget.iter().map(usize::to_string).collect();
    let seeded = if args.trees.tree_seeded { ", seeded with the chain" } else { "" };
    format!("budgets {}{seeded}, draft temperature {}", budgets.join(", "), args.trees.draft_temperature)
}

fn sampling(args: &EvalArgs) -> String {
    let sampling = &args.sampling;
    match sampling.temperature {
        0.0 => "greedy".to_owned(),
        t => format!("temperature {t}, top_k {}, top_p {}, seed {}", sampling.top_k, sampling.top_p, sampling.seed),
    }
}

/// Tokens that a replay reads in one pass: enough to keep the kernels busy, few enough to keep their features in memory.
const REPLAY_ROWS: usize = 2048;

/// The same for a streamed target, which reads its weights once a pass.
const STREAMED_REPLAY_ROWS: usize = 1 << 15;

/// Tokens of prompts and answers that `target` should read in one pass.
pub(crate) fn replay_rows(target: &dyn Target) -> usize {
    if target.is_streamed() { STREAMED_REPLAY_ROWS } else { REPLAY_ROWS }
}
