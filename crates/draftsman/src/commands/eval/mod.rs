//! `draftsman eval`: decoding with and without drafters, the same walk replayed, a run watched, the saved validation
//! anchors, or moments of what flows through the models.

mod answers;
mod csv;
mod prompts;
mod stats;
mod table;
mod validation;
mod walk;
mod watch;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub(crate) use self::answers::target_answers;
pub(crate) use self::walk::replay_rows;
use crate::Outcome;
use crate::args::EvalArgs;
use crate::model;
use crate::output::{self, write_atomically};
use crate::printer::Printer;

pub(crate) fn run(args: &EvalArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    for out in args.out.iter().chain(&args.html).chain(&args.csv) {
        let drafters = args.drafter.iter().map(|d| PathBuf::from(d.strip_prefix("ngram+").unwrap_or(d)));
        let runs = args.drafter.iter().filter_map(|drafter| walk::run_of(drafter));
        let settings = args.answers.iter().map(|answers| model::answer_settings_path(answers));
        let files = std::iter::once(&args.target.target).chain(&args.prompts).chain(&args.answers).chain(&args.watch);
        let inputs: Vec<PathBuf> = files.cloned().chain(drafters).chain(runs).chain(settings).collect();
        output::check(out, inputs.iter().map(PathBuf::as_path))?;
    }
    output::check_apart(args.out.iter().chain(&args.html).chain(&args.csv).map(PathBuf::as_path))?;
    match args {
        EvalArgs { watch: Some(run), .. } => watch::run(run, args, printer),
        EvalArgs { validation: true, .. } => validation::run(args, printer),
        EvalArgs { stats: true, .. } => stats::run(args, printer),
        _ => walk::run(args, printer),
    }
}

fn write_out(path: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    match path {
        Some(path) => write_atomically(path, serde_json::to_string_pretty(value)?.as_bytes()),
        None => Ok(()),
    }
}
