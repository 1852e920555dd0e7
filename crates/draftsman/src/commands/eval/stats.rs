//! `eval --stats`: moments of what flows through target and drafters.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use draftsman_eval::{
    DrafterStats, EvalPrompt, FailedPrompt, StatsDocument, StatsReport, TensorStats, first_non_finite, tensor_stats,
};
use draftsman_models::Dflash;
use draftsman_train::default_target_layer_ids;

use super::answers::Answers;
use super::prompts::Prompts;
use super::walk::settings;
use super::{answers, replay_rows, write_out};
use crate::Outcome;
use crate::args::EvalArgs;
use crate::interrupt;
use crate::model::Model;
use crate::printer::Printer;
use crate::proposers::Proposers;
use crate::provenance;

/// Taps of a drafter whose recipe names none: described where no drafter says which matter.
const DEFAULT_TAPS: usize = 5;

pub(super) fn run(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let suites = Prompts::read(args)?;
    let model = Model::open_for_data(&args.target)?;
    let target = model.target.as_ref();
    let opened = Proposers::open(&args.drafter, &args.opening, target, None, printer)?;
    let drafters: Vec<(String, &Dflash)> =
        opened.drafters().iter().map(|(path, drafter)| (path.display().to_string(), drafter)).collect();
    for (name, drafter) in &drafters {
        provenance::warn(name, &drafter.config().contract, &model, &args.target.run, printer);
    }
    for argument in args.drafter.iter().filter(|argument| matches!(argument.as_str(), "none" | "ngram")) {
        printer.note(format!("`{argument}` has no tensors and no statistics"));
    }

    let Some((documents, refused)) = documents(args, &suites, &model, printer)? else {
        printer.warning("interrupted while the target answered: there are no statistics");
        return Ok(Outcome::Interrupted(interrupt::SIGINT));
    };
    let taps = match drafters.is_empty() {
        true => default_target_layer_ids(target.spec().num_layers, DEFAULT_TAPS),
        false => Vec::new(),
    };
    let report = tensor_stats(target, &taps, &drafters, &documents, replay_rows(target))?;
    print(&model.name(), &report, printer);
    for failed in &refused {
        printer.warning(format!("`{}` was not evaluated: {}", failed.id, failed.problem));
    }
    printer.document(&report)?;
    write_out(args.out.as_deref(), &report)?;
    Ok(if refused.is_empty() { Outcome::Done } else { Outcome::GateFailed })
}

/// Every question with its answer, and those that the target cannot be asked; `None` where the user interrupts. A question counts alone where the target
/// has no answer because its logits are no numbers: such a target is what this command is for.
fn documents(
    args: &EvalArgs,
    suites: &Prompts,
    model: &Model,
    printer: &Printer,
) -> anyhow::Result<Option<(Vec<StatsDocument>, Vec<FailedPrompt>)>> {
    let target = model.target.as_ref();
    let options = settings(args, model, printer)?.options;
    let document = |prompt: &EvalPrompt, answer: &[u32]| StatsDocument {
        ids: [&prompt.ids, answer].concat(),
        prompt_tokens: prompt.ids.len(),
    };
    if args.answers.is_some() {
        let Answers { answered, failed: refused, .. } = answers::wanted(args, suites, model, &options, printer)?;
        let documents = answered.iter().map(|(prompt, answer)| document(prompt, &answer.output_ids));
        return Ok(Some((documents.collect(), refused)));
    }
    let (prompts, refused) = suites.questions(model)?;
    printer.note(format!("{}, at most {} new tokens each", suites.describe(), args.max_new_tokens));
    let mut next = |prompt: &EvalPrompt, so_far: &[Vec<u32>]| suites.next(model, prompt, so_far);
    let interrupted = interrupt::flag()?;
    let Answers { answered, failed, unasked } =
        answers::target_answers(target, &prompts, &options, &mut next, &interrupted)?;
    if unasked > 0 {
        return Ok(None);
    }
    let mut documents: Vec<StatsDocument> =
        answered.iter().map(|(prompt, answer)| document(prompt, &answer.output_ids)).collect();
    let unanswered = prompts.iter().filter(|prompt| !answered.iter().any(|(other, _)| other.index == prompt.index));
    documents.extend(unanswered.map(|prompt| document(prompt, &[])));
    if let Some(first) = failed.first() {
        printer.note(format!(
            "{} questions have no answer (prompts count without one, later turns not at all); the first, `{}`: {}",
            failed.len(),
            first.id,
            first.problem
        ));
    }
    Ok(Some((documents, refused)))
}

fn print(target: &str, report: &StatsReport, printer: &Printer) {
    let StatsReport { documents, documents_without_answer, .. } = report;
    printer.line(format!(
        "target {target}: all rows of {documents} documents (prompt and answer; {documents_without_answer} without an answer)"
    ));
    printer.line(table(&report.target).to_string());
    for DrafterStats { name, block_size, blocks, tensors, .. } in &report.drafters {
        printer.line(format!("drafter {name}: {blocks} blocks of {block_size} rows"));
        printer.line(table(tensors).to_string());
    }
    if let Some(DrafterStats { anchors, .. }) = report.drafters.first() {
        printer.line(format!("blocks begin at {anchors}"));
    }
    // What the target gives to a drafter makes the drafter's tensors odd too: one warning for one cause.
    if let Some(first) = first_non_finite(&report.target) {
        printer.warning(format!("target: {}", describe(first)));
        return;
    }
    for DrafterStats { name, tensors, .. } in &report.drafters {
        if let Some(first) = first_non_finite(tensors) {
            printer.warning(format!("drafter {name}: {}", describe(first)));
        }
    }
}

fn describe(first: &TensorStats) -> String {
    format!(
        "the first tensor with NaN or infinite values is `{}` ({} of {} values)",
        first.name,
        first.moments.non_finite(),
        first.moments.count()
    )
}

fn table(tensors: &[TensorStats]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(vec!["tensor", "rows", "dim", "mean", "std", "rms", "min", "max", "non-finite"]);
    for TensorStats { name, rows, dim, moments } in tensors {
        let numbers = [moments.mean(), moments.std(), moments.rms(), moments.min(), moments.max()];
        let mut cells = vec![name.clone(), rows.to_string(), dim.to_string()];
        cells.extend(numbers.map(|value| value.map_or("–".into(), number)));
        cells.push(match moments.non_finite_share() {
            0.0 => "0".into(),
            share => format!("{} %", number(100.0 * share)),
        });
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Four significant digits.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..5.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    format!("{value:.*}", (3.0 - magnitude).max(0.0) as usize)
}
