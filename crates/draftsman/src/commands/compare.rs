//! `draftsman compare`: two evaluations of the same prompts, pair by pair.

use anyhow::{anyhow, bail};
use draftsman_eval::{SavedReport, compare};
use serde_json::json;

use crate::Outcome;
use crate::args::CompareArgs;
use crate::printer::Printer;

pub(crate) fn run(args: &CompareArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let (a, b) = (SavedReport::read(&args.a)?, SavedReport::read(&args.b)?);
    let (places, differences) = ((args.a.display(), args.b.display()), differences(&a, &b));
    if !differences.is_empty() {
        bail!(
            "`{}` and `{}` were made with other settings: {}\n\nhint: evaluate both with the same settings",
            places.0,
            places.1,
            differences.join("; ")
        );
    }
    if (&a.target, &a.target_layers_sha256) != (&b.target, &b.target_layers_sha256) {
        printer.warning(format!(
            "the targets differ: `{}` in the one, `{}` in the other, or another file of it",
            a.target, b.target
        ));
    }
    for (report, path) in [(&a, &args.a), (&b, &args.b)] {
        if report.unasked > 0 {
            printer.warning(format!("`{}` is a part: {} questions were not reached", path.display(), report.unasked));
        }
    }
    let line = |report: &SavedReport, path: &std::path::Path, name: Option<&str>| {
        report.line(name).cloned().map_err(|problem| anyhow!("`{}`: {problem}", path.display()))
    };
    let line_a = line(&a, &args.a, args.line_a.as_deref().or(args.line.as_deref()))?;
    let line_b = line(&b, &args.b, args.line_b.as_deref().or(args.line.as_deref()))?;
    let found = compare(&line_a, &line_b, args.seed)
        .map_err(|problem| anyhow!("{problem}\n\nhint: evaluate both on the same suite"))?;
    let Some(found) = found else {
        bail!("the reports have no prompt with a cycle in common\n\nhint: evaluate both on the same suite");
    };
    let interval = found
        .ratio_interval_95
        .map_or_else(|| "no interval".to_owned(), |i| format!("95 % {:.4}–{:.4}", i.low, i.high));
    printer.line(format!("A  {:.3}  `{}` in {}", found.a, line_a.name, args.a.display()));
    printer.line(format!("B  {:.3}  `{}` in {}", found.b, line_b.name, args.b.display()));
    printer.line(format!(
        "B / A  {:.4}, {interval} over {} prompts ({} left out): {}",
        found.ratio,
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

/// Settings that make two results incomparable, each with both values.
fn differences(a: &SavedReport, b: &SavedReport) -> Vec<String> {
    let settings = |report: &SavedReport| {
        let seed = if report.temperature > 0.0 { report.seed.to_string() } else { "none".to_owned() };
        [
            ("new tokens", report.max_new_tokens.to_string()),
            ("blocks", report.max_blocks.map_or("all".to_owned(), |most| most.to_string())),
            ("temperature", report.temperature.to_string()),
            ("top-k", report.top_k.to_string()),
            ("top-p", report.top_p.to_string()),
            ("seed", seed),
            ("thinking", report.thinking.map_or("untold".to_owned(), |mode| format!("{mode:?}").to_lowercase())),
            ("loop rule", format!("{:?}", report.loop_rule)),
        ]
    };
    let pairs = settings(a).into_iter().zip(settings(b)).filter(|((_, a), (_, b))| a != b);
    pairs.map(|((name, a), (_, b))| format!("{name} {a} and {b}")).collect()
}
