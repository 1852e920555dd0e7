//! `eval --validation`: checkpoints at the validation anchors, and along the walked answers, saved in them.

use anyhow::{Context, bail};
use draftsman_eval::{AnchoredReport, PreparedWalk, Validation, WalkedReport, validate};
use serde::Serialize;

use super::{replay_rows, write_out};
use crate::Outcome;
use crate::args::EvalArgs;
use crate::live_check::{numbers, walk_numbers};
use crate::model::Model;
use crate::printer::Printer;
use crate::proposers::Proposers;

/// One line of `eval --validation`.
#[derive(Serialize)]
struct ValidationLine {
    drafter: String,
    #[serde(flatten)]
    report: AnchoredReport,
    /// Absent where the checkpoint holds no walk set.
    walk: Option<WalkLine>,
}

/// The saved prompts walked: a mean over the anchors that decoding visits.
#[derive(Serialize)]
struct WalkLine {
    prompts: usize,
    outside_loops: WalkedReport,
    all_tokens: WalkedReport,
}

pub(super) fn run(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    if args.drafter.is_empty() {
        bail!("`--validation` needs `--drafter CHECKPOINT`");
    }
    if let Some(other) = args.drafter.iter().find(|drafter| *drafter == "none" || drafter.starts_with("ngram")) {
        bail!("`{other}` has no validation anchors\n\nhint: give checkpoints or runs of `draftsman train`");
    }
    let model = Model::open_without_text(&args.target)?;
    let target = model.target.as_ref();
    let opened = Proposers::open(&args.drafter, &args.opening, target, None, printer)?;
    let mut lines = Vec::new();
    let mut shown_lines = Vec::new();
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
        shown_lines.push(format!("{}: {}", path.display(), describe(&report)));
        let walk = match &validation.walk {
            None => None,
            Some(set) => {
                let taps = &drafter.config().contract.target_layer_ids;
                let walked = PreparedWalk::new(target, set, taps, replay_rows(target))?.judge(drafter)?;
                shown_lines.push(format!(
                    "{}: {} prompts walked:{}",
                    path.display(),
                    set.answers.len(),
                    shown(&walk_numbers(&walked))
                ));
                Some(WalkLine {
                    prompts: set.answers.len(),
                    outside_loops: WalkedReport::new(&walked.outside_loops),
                    all_tokens: WalkedReport::new(&walked.all),
                })
            }
        };
        lines.push(ValidationLine { drafter: path.display().to_string(), report, walk });
    }
    // The file first: whoever reads stdout may go away in the middle.
    let written = write_out(args.out.as_deref(), &lines);
    shown_lines.iter().for_each(|line| printer.line(line));
    printer.document(&lines)?;
    written?;
    Ok(Outcome::Done)
}

fn describe(report: &AnchoredReport) -> String {
    let numbers = shown(&numbers(report));
    format!("{} anchors in {} documents, {}:{numbers}", report.anchors, report.documents, report.statistic)
}

/// Numbers under the names of the training log, in full precision so that the two can be compared.
fn shown(numbers: &[(String, f64)]) -> String {
    numbers.iter().map(|(name, value)| format!(" {name} {value}")).collect()
}
