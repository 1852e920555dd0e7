//! Decoding with and without drafters, live and replayed.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
use draftsman_data::LoopRule;
use draftsman_decode::{GenerateOptions, lockstep};
use draftsman_eval::{
    EvalPrompt, PromptRun, TargetAnswer, Verdict, first_cycle_difference, replay_walk, summarise, summarise_replay,
    walk_live,
};
use draftsman_models::Target;

use super::{prompts, table, write_out};
use crate::Outcome;
use crate::answers::{self, Collect};
use crate::args::EvalArgs;
use crate::interrupt;
use crate::model::Model;
use crate::page;
use crate::printer::Printer;
use crate::proposers::Proposers;
use crate::published;

/// Rows decoded side by side where only the answers are wanted (`--replay`).
const ANSWER_ROWS: usize = 16;

pub(super) fn run(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let suite = prompts::suite(args)?;
    let model = Model::open_for_data(&args.target)?;
    let target = model.target.as_ref();
    let options = args.sampling.options(args.max_new_tokens, &model.stop_ids());
    let (prompts, recorded) = match (&args.answers, suite) {
        (Some(path), _) => {
            let (prompts, answers) = answers::recorded(path, args.limit, target.spec().vocab_size, &options)?;
            printer.note(format!("{} recorded answers from `{}`", prompts.len(), path.display()));
            (prompts, Some(answers))
        }
        (None, Some(suite)) => {
            let path = args.prompts.as_deref().unwrap_or(Path::new(""));
            let prompts = prompts::prompt_ids(&model, path, &suite)?;
            printer.note(format!(
                "{} of {} prompts from `{}`, at most {} new tokens each",
                prompts.len(),
                suite.available,
                path.display(),
                args.max_new_tokens
            ));
            (prompts, None)
        }
        (None, None) => bail!("`--prompts` is missing"),
    };

    let arguments = if args.drafter.is_empty() { vec!["ngram".to_owned()] } else { args.drafter.clone() };
    let opened = Proposers::open(&arguments, args.name_map.as_deref(), target, args.ngram_drafts, printer)?
        .with_trees(&args.tree_budget.iter().map(|&budget| args.trees.rule(budget)).collect::<Vec<_>>());
    let mut proposers = opened.build(target)?;

    let loop_rule = LoopRule::default();
    let interrupted = interrupt::flag()?;
    let mut replay_differs = false;
    let mut samples = Vec::new();
    let names = named(&opened, &args.labels);
    let report = if args.replay {
        let answers = recorded.map_or_else(|| target_answers(target, &prompts, &options), Ok)?;
        let walks = replay_walk(target, &mut proposers, &prompts, &answers, &options, replay_rows(target))?;
        summarise_replay(&walks, &prompts, &answers, &names, &options, &loop_rule)
    } else {
        let total = prompts.len();
        let mut done = 0;
        let mut on_prompt = |run: &PromptRun| {
            done += 1;
            printer.note(format!("{done}/{total} {}: {} tokens", run.id, run.plain.output_ids().len()));
            if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let runs = walk_live(target, &mut proposers, &prompts, &options, &mut on_prompt)?;
        if args.html.is_some() {
            samples = page::samples(&model, &prompts, &runs, &names);
        }
        if args.check_replay {
            replay_differs = !replay_is_live(target, &mut proposers, &prompts, &runs, &options, &opened, printer)?;
        }
        summarise(&runs, &names, &options, &loop_rule)
    };

    table::print(&report, printer);
    if let Some(suite) = &args.prompts {
        published::show(&model.name(), suite, args.sampling.temperature, printer);
    }
    if args.check_replay && !replay_differs {
        printer.line("replay = live: every cycle of every prompt is the same");
    }
    printer.document(&report)?;
    write_out(args.out.as_deref(), &report)?;
    if let Some(path) = &args.html {
        let training = args.drafter.iter().rev().find_map(|argument| run_of(argument));
        let training = training.map(|run| page::training_points(&run.join("metrics.jsonl"))).unwrap_or_default();
        page::write(
            path,
            &format!("Drafters for {}", model.name()),
            &report,
            &training,
            &samples,
            &facts(args, &model),
        )?;
        printer.note(format!("wrote `{}`", path.display()));
    }
    let lossless = report.proposers.iter().all(|p| p.lossless.as_ref().is_none_or(|l| l.verdict != Verdict::Different));
    if interrupted.load(Ordering::Relaxed) {
        return Ok(Outcome::Interrupted(interrupt::SIGINT));
    }
    Ok(if lossless && !replay_differs { Outcome::Done } else { Outcome::GateFailed })
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
fn run_of(argument: &str) -> Option<PathBuf> {
    let path = Path::new(argument.strip_prefix("ngram+").unwrap_or(argument));
    path.ancestors().find(|folder| folder.join("metrics.jsonl").is_file()).map(Path::to_owned)
}

/// What a reader of the page must know to believe it.
fn facts(args: &EvalArgs, model: &Model) -> Vec<(String, String)> {
    let spec = model.target.spec();
    let prompts = args.prompts.as_ref().or(args.answers.as_ref()).map(|p| p.display().to_string());
    let facts = [
        ("target", format!("{}: {}, {} layers", model.name(), spec.architecture, spec.num_layers)),
        ("prompts", prompts.unwrap_or_default()),
        ("drafters", args.drafter.join(", ")),
        ("new tokens", format!("at most {}", args.max_new_tokens)),
        ("temperature", args.sampling.temperature.to_string()),
        ("device, dtype", format!("{:?}, {}", args.target.run.device, args.target.run.dtype)),
        ("threads", rayon::current_num_threads().to_string()),
        ("draftsman", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Tokens that a replay reads in one pass: enough to keep the kernels busy, few enough to keep their features in memory.
const REPLAY_ROWS: usize = 2048;

/// The same for a streamed target, which reads its weights once a pass.
const STREAMED_REPLAY_ROWS: usize = 1 << 15;

fn replay_rows(target: &dyn Target) -> usize {
    if target.is_streamed() { STREAMED_REPLAY_ROWS } else { REPLAY_ROWS }
}

/// The target's own answers, written side by side; row invariance makes them those of single decoding.
fn target_answers(
    target: &dyn Target,
    prompts: &[EvalPrompt],
    options: &GenerateOptions,
) -> anyhow::Result<Vec<TargetAnswer>> {
    let mut collected = Collect::new(prompts.len());
    let requests = prompts.iter().enumerate().map(|(index, prompt)| (index, prompt.ids.clone()));
    lockstep(target, requests, ANSWER_ROWS, options, &mut collected)?;
    collected
        .into_answers()
        .into_iter()
        .map(|answer| {
            let answer = answer.context("a prompt was left without an answer")?;
            Ok(TargetAnswer { output_ids: answer.output_ids, finish: answer.finish })
        })
        .collect()
}

/// Replays every finished prompt and compares cycle by cycle.
fn replay_is_live(
    target: &dyn Target,
    proposers: &mut [Box<dyn draftsman_decode::Proposer + '_>],
    prompts: &[EvalPrompt],
    runs: &[PromptRun],
    options: &GenerateOptions,
    opened: &Proposers,
    printer: &Printer,
) -> anyhow::Result<bool> {
    let answers: Vec<TargetAnswer> = runs
        .iter()
        .map(|run| TargetAnswer { output_ids: run.plain.output_ids().to_vec(), finish: run.plain.finish })
        .collect();
    let walks = replay_walk(target, proposers, &prompts[..runs.len()], &answers, options, replay_rows(target))?;
    let mut same = true;
    for (run, walk) in runs.iter().zip(&walks) {
        for ((live, replayed), (name, _)) in run.speculative.iter().zip(walk).zip(opened.names()) {
            if let Some(difference) = first_cycle_difference(&live.cycles, replayed) {
                same = false;
                printer.warning(format!(
                    "`{name}` on `{}`: cycle {} is {:?} live and {:?} replayed",
                    run.id, difference.cycle, difference.live, difference.replayed
                ));
            }
        }
    }
    Ok(same)
}
