//! Published numbers beside our own.

use draftsman_eval::{published_for, published_tables};

const TABLES: &str = include_str!("../assets/published.toml");

/// What others published for this target on this suite, a line each; nothing where nothing matches.
pub(crate) fn lines(target: &str, suite: &str, temperature: f32) -> Vec<String> {
    let tables = published_tables(TABLES).unwrap_or_default();
    let found = published_for(&tables, target, suite, temperature);
    let line = |(table, row): &(&draftsman_eval::PublishedTable, &draftsman_eval::PublishedRow)| {
        format!(
            "{suite}: {} acceptance_length {} (macro), {}x; {}, {}, {}",
            row.drafter, row.acceptance_length, row.speedup, table.source, table.hardware, table.protocol
        )
    };
    found.iter().map(line).collect()
}
