//! Published numbers beside our own.

use draftsman_eval::{published_for, published_tables};

use crate::printer::Printer;

const TABLES: &str = include_str!("../assets/published.toml");

/// What others published for this target on this suite, a line each; nothing where nothing matches.
pub(crate) fn show(target: &str, suite: &str, temperature: f32, printer: &Printer) {
    let Ok(tables) = published_tables(TABLES) else { return };
    for (table, row) in published_for(&tables, target, suite, temperature) {
        printer.line(format!(
            "published elsewhere: {} acceptance_length {} (macro), {}x; {}, {}, {}",
            row.drafter, row.acceptance_length, row.speedup, table.source, table.hardware, table.protocol
        ));
    }
}
