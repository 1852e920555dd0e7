//! `draftsman`: trains, evaluates, diagnoses and runs drafters for speculative decoding.

mod args;
mod commands;
mod hints;
mod interrupt;
mod live_check;
mod model;
mod models_by_name;
mod output;
mod page;
mod printer;
mod proposers;
mod provenance;
mod published;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, DataCommand, TraceCommand};
use printer::Printer;

/// How a command ended when it did not fail (exit codes: docs/commands.md).
pub(crate) enum Outcome {
    /// Done: exit 0.
    Done,
    /// It worked and the answer is "no", e.g. the output was not lossless: exit 1.
    GateFailed,
    /// Stopped by a signal after saving: exit 128 + signal.
    Interrupted(u8),
}

/// Stack of a worker thread: commands run on one, and autodiff graphs are walked recursively.
const STACK_BYTES: usize = 32 << 20;

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    let printer = Printer::new(cli.json, cli.quiet);
    draftsman_kernels::keep_freed_memory();
    let mut pool = rayon::ThreadPoolBuilder::new().stack_size(STACK_BYTES);
    if let Some(threads) = cli.threads {
        pool = pool.num_threads(threads);
    }
    // The command runs on a thread of the pool that its kernels use: a caller from outside would be put to sleep and
    // woken at every operation.
    let result = match pool.build() {
        Ok(pool) => pool.install(|| {
            models_by_name::resolve(&mut cli.command, cli.download, &printer)?;
            run(cli.command, &printer)
        }),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::GateFailed) => ExitCode::from(1),
        Ok(Outcome::Interrupted(signal)) => ExitCode::from(128 + signal),
        Err(error) => {
            printer.error(&error);
            ExitCode::from(2)
        }
    }
}

fn run(command: Command, printer: &Printer) -> anyhow::Result<Outcome> {
    match command {
        Command::Quickstart(a) => commands::quickstart::run(&a, printer),
        Command::Inspect(a) => commands::inspect::run(&a, printer),
        Command::Data(DataCommand::Inspect(a)) => commands::data_inspect::run(&a, printer),
        Command::Data(DataCommand::Regenerate(a)) => commands::data_regenerate::run(&a, printer),
        Command::Train(a) => commands::train::run(&a, printer),
        Command::Eval(a) => commands::eval::run(&a, printer),
        Command::Compare(a) => commands::compare::run(&a, printer),
        Command::Generate(a) => commands::generate::run(&a, printer),
        Command::Trace(TraceCommand::Target(a)) => commands::trace::target::run(&a, printer),
        Command::Trace(TraceCommand::Drafter(a)) => commands::trace::drafter::run(&a, printer),
        Command::Trace(TraceCommand::Loss(a)) => commands::trace::loss::run(&a, printer),
        Command::Trace(TraceCommand::Tree(a)) => commands::trace::tree::run(&a, printer),
        Command::Trace(TraceCommand::Acceptance(a)) => commands::trace::acceptance::run(&a, printer),
    }
}
