//! `eval --validation`: checkpoints at the validation anchors saved in them.

use anyhow::{Context, bail};
use draftsman_eval::{AnchoredReport, Validation, validate};
use serde::Serialize;

use super::write_out;
use crate::Outcome;
use crate::args::EvalArgs;
use crate::model::Model;
use crate::printer::Printer;
use crate::proposers::Proposers;

/// One line of `eval --validation`.
#[derive(Serialize)]
struct ValidationLine {
    drafter: String,
    #[serde(flatten)]
    report: AnchoredReport,
}

pub(super) fn run(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    if args.drafter.is_empty() {
        bail!("`--validation` needs `--drafter CHECKPOINT`");
    }
    let model = Model::open_without_text(&args.target)?;
    let target = model.target.as_ref();
    let opened = Proposers::open(&args.drafter, &args.opening, target, None, printer)?;
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
