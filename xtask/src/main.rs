//! Makes what the repository embeds. `cargo xtask tiny-target` trains the embedded target model.
#![expect(clippy::print_stdout, reason = "a command of the repository, not a library")]

mod tiny_target;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains the embedded tiny target from nothing and writes it to `assets/tiny-target`.
    TinyTarget(tiny_target::Options),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::TinyTarget(options) => tiny_target::run(&options),
    }
}
