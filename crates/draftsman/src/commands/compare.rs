//! `draftsman compare`: two evaluations of the same prompts, pair by pair.

use anyhow::{anyhow, bail};
use draftsman_eval::{SavedReport, compare};
use serde_json::json;

use crate::Outcome;
use crate::args::CompareArgs;
use crate::printer::Printer;

pub(crate) fn run(args: &CompareArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let (a, b) = (SavedReport::read(&args.a)?, SavedReport::read(&args.b)?);
    let settings = |report: &SavedReport| (report.max_new_tokens, report.temperature, report.top_k, report.top_p);
    if settings(&a) != settings(&b) {
        bail!(
            "`{}` was made with {:?} (new tokens, temperature, top-k, top-p), `{}` with {:?}\n\nhint: evaluate both with the same settings",
            args.a.display(),
            settings(&a),
            args.b.display(),
            settings(&b)
        );
    }
    let line = |report: &SavedReport, path: &std::path::Path, name: Option<&str>| {
        report.line(name).cloned().map_err(|problem| anyhow!("`{}`: {problem}", path.display()))
    };
    let line_a = line(&a, &args.a, args.line_a.as_deref().or(args.line.as_deref()))?;
    let line_b = line(&b, &args.b, args.line_b.as_deref().or(args.line.as_deref()))?;
    let Some(found) = compare(&line_a, &line_b, args.seed) else {
        bail!("the reports have no prompt with a cycle in common\n\nhint: evaluate both on the same suite");
    };
    let interval = found.ratio_interval_95;
    printer.line(format!("A  {:.3}  `{}` in {}", found.a, line_a.name, args.a.display()));
    printer.line(format!("B  {:.3}  `{}` in {}", found.b, line_b.name, args.b.display()));
    printer.line(format!(
        "B / A  {:.4}, 95 % {:.4}–{:.4} over {} prompts ({} left out): {}",
        found.ratio,
        interval.low,
        interval.high,
        found.pairs,
        found.unpaired,
        match (found.is_separated(), found.ratio > 1.0) {
            (false, _) => "not separated",
            (true, true) => "B accepts more",
            (true, false) => "B accepts less",
        }
    ));
    printer.line("acceptance_length (micro) of walked anchors, outside loops");
    printer.document(&json!({
        "a": { "file": args.a, "line": line_a.name },
        "b": { "file": args.b, "line": line_b.name },
        "comparison": found,
        "separated": found.is_separated(),
    }))?;
    let failed = args.fail_under.is_some_and(|least| found.ratio < least);
    if failed {
        printer.warning(format!("B / A is below {}", args.fail_under.unwrap_or_default()));
    }
    Ok(if failed { Outcome::GateFailed } else { Outcome::Done })
}
