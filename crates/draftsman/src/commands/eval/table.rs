//! The result of a walk on the terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use draftsman_eval::{EvalReport, ProposerReport, Verdict};

use crate::printer::{Printer, one_line};

/// Prints the table and, unless `brief`, what each line says beyond it.
pub(super) fn print(report: &EvalReport, brief: bool, printer: &Printer) {
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
    if report.unasked > 0 {
        printer.warning(format!("interrupted: {} more questions were not reached", report.unasked));
    }
    for line in &report.proposers {
        if !brief {
            printer.line(format!("\n{}", one_line(&line.name)));
            details(line).iter().for_each(|(what, text)| printer.line(format!("  {what:<22} {text}")));
        }
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
        one_line(&line.name),
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

/// What a line says beyond the table, each part with its name.
fn details(line: &ProposerReport) -> Vec<(&'static str, String)> {
    let outside = &line.outside_loops;
    let shares = |shares: &[f64]| shares.iter().map(|share| format!("{share:.3}")).collect::<Vec<_>>().join(" ");
    let mut details = vec![
        ("slot 1, 2, … accepted", shares(&outside.accepted_share_at_slot)),
        ("given the one before", shares(&outside.conditional_accepted_share_at_slot)),
        ("cycles by accepted", format!("{:?} (0, 1, …)", outside.cycles_by_accepted_drafts)),
    ];
    let bands: Vec<String> = line
        .by_position
        .iter()
        .map(|band| format!("{}–{} {:.2}", band.from, band.to - 1, band.acceptance_length_micro))
        .collect();
    details.push(("by position", bands.join(", ")));
    if line.inside_loops.cycles > 0 {
        let inside = &line.inside_loops;
        let length = number(inside.acceptance_length_micro, 3);
        details.push(("inside loops", format!("{length} over {} cycles", inside.cycles)));
    }
    if line.by_group.len() > 1 {
        details.extend(line.by_group.iter().filter(|group| group.cycles > 0).map(|group| {
            let interval = group.acceptance_length_micro_interval_95.as_ref();
            let interval = interval.map_or_else(String::new, |i| format!(" ({:.2}–{:.2})", i.low, i.high));
            let ratio = group.decode_speedup.map_or_else(String::new, |ratio| format!(", ratio {ratio:.2}"));
            let length = number(group.acceptance_length_micro, 3);
            match &group.category {
                None => (
                    "suite",
                    format!(
                        "{} {length}{interval}, macro {}{ratio}",
                        one_line(&group.suite),
                        number(group.acceptance_length_macro, 3)
                    ),
                ),
                Some(category) => ("", format!("  {} {length}{interval}{ratio}", one_line(category))),
            }
        }));
    }
    if let Some(cycle) = line.speed.as_ref().and_then(|speed| speed.cycle.map(|cycle| (cycle, speed))) {
        let (cycle, speed) = cycle;
        details.push((
            "time of a cycle",
            format!(
                "draft {:.2} + verify {:.2} + other {:.2} ms; {} ms a token",
                cycle.draft_ms,
                cycle.verify_ms,
                cycle.other_ms,
                number(speed.tpot_ms_outside_loops, 2)
            ),
        ));
    }
    if let Some(what_if) = &line.what_if {
        details.push(("what if (drafts)", format!("chain {}", number(what_if.chain_accepted_drafts, 3))));
        details.extend(what_if.budgets.iter().map(|one| {
            let oracle: Vec<String> = one.oracle_share_at_slot.iter().map(|share| number(*share, 2)).collect();
            let text = format!(
                "ddtree{n} {}, top-{n} streak {}, oracle top-{n} {}",
                number(one.ddtree_accepted_drafts, 3),
                number(one.top_k_streak, 3),
                oracle.join(" "),
                n = one.budget
            );
            ("", text)
        }));
    }
    details.retain(|(_, text)| !text.is_empty());
    details
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |v| format!("{v:.digits$}"))
}
