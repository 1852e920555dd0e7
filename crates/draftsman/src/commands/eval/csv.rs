//! `--csv`: a row for each prompt and drafter.

use std::path::Path;

use draftsman_eval::EvalReport;

use crate::output::write_atomically;
use crate::printer::one_line;

const HEADER: [&str; 15] = [
    "drafter",
    "suite",
    "category",
    "prompt",
    "status",
    "acceptance_length_outside_loops",
    "cycles_outside_loops",
    "accepted_drafts_outside_loops",
    "acceptance_length",
    "cycles",
    "accepted_drafts",
    "prompt_tokens",
    "answer_tokens",
    "loop_start",
    "decode_s",
];

/// Writes the rows of plain decoding, of every drafter, and of the prompts that failed.
pub(super) fn write(path: &Path, report: &EvalReport) -> anyhow::Result<()> {
    let mut csv = HEADER.join(",") + "\r\n";
    let mut push = |row: [String; HEADER.len()]| {
        csv.push_str(&row.map(|cell| quoted(&cell)).join(","));
        csv.push_str("\r\n");
    };
    for line in report.plain.iter().chain(&report.proposers) {
        for row in &line.per_prompt {
            let length = |accepted: u64, cycles: u64| match cycles {
                0 => String::new(),
                cycles => ((accepted + cycles) as f64 / cycles as f64).to_string(),
            };
            push([
                guarded(&line.name),
                guarded(&row.suite),
                guarded(row.category.as_deref().unwrap_or_default()),
                guarded(&row.id),
                "ok".to_owned(),
                length(row.accepted_drafts_outside_loops, row.cycles_outside_loops),
                row.cycles_outside_loops.to_string(),
                row.accepted_drafts_outside_loops.to_string(),
                length(row.accepted_drafts, row.cycles),
                row.cycles.to_string(),
                row.accepted_drafts.to_string(),
                row.prompt_tokens.to_string(),
                row.answer_tokens.to_string(),
                row.loop_start.map(|at| at.to_string()).unwrap_or_default(),
                row.decode_s.map(|seconds| seconds.to_string()).unwrap_or_default(),
            ]);
        }
    }
    for failed in &report.failed {
        let mut row: [String; HEADER.len()] = Default::default();
        row[1] = guarded(&failed.suite);
        row[3] = guarded(&failed.id);
        let problem: Vec<&str> = failed.problem.split_whitespace().collect();
        row[4] = guarded(&format!("failed: {}", problem.join(" ")));
        push(row);
    }
    write_atomically(path, csv.as_bytes())
}

/// A cell as RFC 4180 writes it.
fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

/// Text for a cell. Spreadsheets run what begins like a formula, and the text may be a stranger's: an apostrophe makes it
/// text again.
fn guarded(text: &str) -> String {
    let text = one_line(text);
    if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text }
}
