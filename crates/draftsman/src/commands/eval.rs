//! `draftsman eval`: decoding with and without drafters, the same walk replayed, or the saved validation anchors.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use draftsman_data::LoopRule;
use draftsman_decode::{GenerateOptions, lockstep};
use draftsman_eval::{
    AnchoredReport, EvalPrompt, EvalReport, PromptRun, ProposerReport, Selection, Suite, TargetAnswer, Validation,
    Verdict, first_cycle_difference, load_suite, read_suite, replay_walk, summarise, summarise_replay, validate,
    walk_live,
};
use draftsman_models::Target;
use serde::Serialize;

use crate::Outcome;
use crate::answers::{self, Collect};
use crate::args::EvalArgs;
use crate::interrupt;
use crate::model::Model;
use crate::output::{self, write_atomically};
use crate::page;
use crate::printer::Printer;
use crate::proposers::Proposers;
use crate::published;

/// `--prompts builtin`: the suite that is part of the program (assets/suite).
const BUILT_IN: &str = "builtin";

/// Rows decoded side by side where only the answers are wanted (`--replay`).
const ANSWER_ROWS: usize = 16;

pub(crate) fn run(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    for out in args.out.iter().chain(&args.html) {
        let drafters = args.drafter.iter().map(|d| Path::new(d.strip_prefix("ngram+").unwrap_or(d)));
        let files = [Some(&args.target.target), args.prompts.as_ref(), args.answers.as_ref()];
        output::check(out, files.into_iter().flatten().map(PathBuf::as_path).chain(drafters))?;
    }
    if args.validation { validation(args, printer) } else { walk(args, printer) }
}

fn walk(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let suite = args.prompts.as_deref().map(|path| {
        let selection = Selection { limit: args.limit, seed: args.shuffle_seed };
        let suite = if path == Path::new(BUILT_IN) {
            read_suite(path, include_bytes!("../../assets/suite/builtin.jsonl").as_slice(), &selection)
        } else {
            load_suite(path, &selection)
        };
        suite.map(|suite| (path, suite))
    });
    let suite = suite.transpose()?;
    let model = Model::open_for_data(&args.target)?;
    let target = model.target.as_ref();
    let options = args.sampling.options(args.max_new_tokens, &model.stop_ids());
    let (prompts, recorded) = match (&args.answers, suite) {
        (Some(path), _) => {
            let (prompts, answers) = answers::recorded(path, args.limit, target.spec().vocab_size, &options)?;
            printer.note(format!("{} recorded answers from `{}`", prompts.len(), path.display()));
            (prompts, Some(answers))
        }
        (None, Some((path, suite))) => {
            let prompts = prompt_ids(&model, path, &suite)?;
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

    print_report(&report, printer);
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

fn prompt_ids(model: &Model, path: &Path, suite: &Suite) -> anyhow::Result<Vec<EvalPrompt>> {
    let ids = suite.prompts.iter().map(|prompt| {
        let ids = model
            .suite_prompt_ids(&prompt.source)
            .with_context(|| format!("`{}` line {} (`{}`)", path.display(), prompt.line, prompt.id))?;
        let place = || format!("{}:{} ({})", path.display(), prompt.line, prompt.id);
        let spec = model.target.spec();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= spec.vocab_size) {
            bail!("{}: token {id} is outside the target's vocabulary of {}\n\nhint: these ids come from another tokenizer", place(), spec.vocab_size);
        }
        if ids.len() >= spec.max_positions {
            bail!("{}: {} tokens leave no room for an answer in a context of {}\n\nhint: shorten the prompt", place(), ids.len(), spec.max_positions);
        }
        Ok(EvalPrompt { id: prompt.id.clone(), ids })
    });
    ids.collect()
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

/// One line of `eval --validation`.
#[derive(Serialize)]
struct ValidationLine {
    drafter: String,
    #[serde(flatten)]
    report: AnchoredReport,
}

fn validation(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    if args.drafter.is_empty() {
        bail!("`--validation` needs `--drafter CHECKPOINT`");
    }
    let model = Model::open_without_text(&args.target)?;
    let target = model.target.as_ref();
    let opened = Proposers::open(&args.drafter, args.name_map.as_deref(), target, None, printer)?;
    let mut lines = Vec::new();
    for (path, drafter) in opened.drafters() {
        let file = path.join("validation.json");
        let text = std::fs::read_to_string(&file).with_context(|| {
            format!(
                "cannot read `{}`\n\nhint: only checkpoints of `draftsman train` hold validation anchors",
                file.display()
            )
        })?;
        let validation: Validation =
            serde_json::from_str(&text).with_context(|| format!("`{}` is not a validation file", file.display()))?;
        let report = validate(target, drafter, &validation)?;
        printer.line(format!("{}: {}", path.display(), describe(&report)));
        lines.push(ValidationLine { drafter: path.display().to_string(), report });
    }
    printer.document(&lines)?;
    write_out(args.out.as_deref(), &lines)?;
    Ok(Outcome::Done)
}

/// The validation numbers under the names of the training log, in full precision so that the two can be compared.
fn describe(report: &AnchoredReport) -> String {
    let mut text = format!("{} anchors in {} documents, {}:", report.anchors, report.documents, report.statistic);
    for (name, value) in crate::live_check::numbers(report) {
        text.push_str(&format!(" {name} {value}"));
    }
    text
}

fn write_out(path: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    match path {
        Some(path) => write_atomically(path, serde_json::to_string_pretty(value)?.as_bytes()),
        None => Ok(()),
    }
}

fn print_report(report: &EvalReport, printer: &Printer) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(vec![
        "drafter",
        "acceptance_length\n(outside loops)",
        "95 %",
        "macro",
        "all tokens",
        "cycles",
        "plain tok/s",
        "tok/s",
        "ratio",
        "lossless",
    ]);
    let plain_speed =
        report.plain.as_ref().and_then(|p| p.speed.as_ref()).and_then(|s| s.decode_outside_loops.tokens_per_s);
    for line in report.plain.iter().chain(&report.proposers) {
        table.add_row(cells(line, plain_speed));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    printer.line(table.to_string());
    printer.line(format!(
        "{} ({}), {} prompts, {} answers loop; accepted drafts = acceptance_length − 1",
        report.statistic, report.mode, report.prompts, report.looping_answers
    ));
    for line in &report.proposers {
        let shares: Vec<String> =
            line.outside_loops.accepted_share_at_slot.iter().map(|share| format!("{share:.3}")).collect();
        printer.line(format!("{}: share of cycles that accept slot 1, 2, …: {}", line.name, shares.join(" ")));
        printer.line(format!(
            "{}: cycles by accepted drafts 0, 1, …: {:?}",
            line.name, line.outside_loops.cycles_by_accepted_drafts
        ));
        for difference in line.lossless.iter().flat_map(|l| &l.differences) {
            printer.warning(format!(
                "`{}` on `{}`: token {} of the answer is {:?} plain (gap {:?}) and {:?} speculative (gap {:?}){}",
                line.name,
                difference.prompt_id,
                difference.answer_index,
                difference.plain_token,
                difference.plain_logit_gap,
                difference.speculative_token,
                difference.speculative_logit_gap,
                if difference.near_tie { ", a near-tie" } else { "" }
            ));
        }
    }
}

fn cells(line: &ProposerReport, plain_speed: Option<f64>) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| value.map_or("–".into(), |v| format!("{v:.digits$}"));
    let outside = &line.outside_loops;
    let interval = outside
        .acceptance_length_micro_interval_95
        .as_ref()
        .map_or("–".into(), |i| format!("{:.2}–{:.2}", i.low, i.high));
    let speed = line.speed.as_ref().and_then(|s| s.decode_outside_loops.tokens_per_s);
    let lossless = line.lossless.as_ref().map_or("–".into(), |l| match l.verdict {
        Verdict::Identical => format!("yes, {}/{}", l.identical_answers, l.answers),
        Verdict::NearTies => format!("near-ties, {}/{}", l.identical_answers, l.answers),
        Verdict::Different => format!("NO, {}/{}", l.identical_answers, l.answers),
    });
    vec![
        line.name.clone(),
        number(outside.acceptance_length_micro, 3),
        interval,
        number(outside.acceptance_length_macro, 3),
        number(line.all_tokens.acceptance_length_micro, 3),
        outside.cycles.to_string(),
        number(plain_speed, 1),
        number(speed, 1),
        number(line.decode_speedup_outside_loops, 2),
        lossless,
    ]
}
