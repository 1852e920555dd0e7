//! The result of a walk on the terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use draftsman_eval::{EvalReport, ProposerReport, Verdict};

use crate::printer::Printer;

pub(super) fn print(report: &EvalReport, printer: &Printer) {
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
