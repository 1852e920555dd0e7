//! Numbers that others published, shown where target and suite match. They were measured elsewhere, otherwise.

use serde::Deserialize;

/// A published table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedTable {
    /// Where it stands.
    pub source: String,
    /// What it was measured on.
    pub hardware: String,
    /// Engine, precision, lengths, and which mean is reported.
    pub protocol: String,
    /// Its numbers.
    pub rows: Vec<PublishedRow>,
}

/// One published number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRow {
    /// Target, in lower case, as the end of its repository's name.
    pub target: String,
    /// Suite: `humaneval`, `gsm8k`, …
    pub suite: String,
    /// Who drafted.
    pub drafter: String,
    /// 0 = greedy; absent where the source does not say.
    pub temperature: Option<f32>,
    /// Accepted drafts + 1.
    pub acceptance_length: f64,
    /// Against plain decoding on the same machine.
    pub speedup: f64,
}

#[derive(Deserialize)]
struct File {
    table: Vec<PublishedTable>,
}

/// Reads a file of published tables.
pub fn published_tables(text: &str) -> Result<Vec<PublishedTable>, String> {
    toml::from_str::<File>(text).map(|file| file.table).map_err(|e| e.to_string())
}

/// The rows for a target of that name on a suite of that file name, with their tables. A name matches when it is the
/// published one with nothing but a suffix like `-instruct` or a file ending: `qwen3-4b` is not `qwen3-4b-base`.
pub fn published_for<'a>(
    tables: &'a [PublishedTable],
    target: &str,
    suite: &str,
    temperature: f32,
) -> Vec<(&'a PublishedTable, &'a PublishedRow)> {
    const SUFFIXES: [&str; 4] = ["", "-instruct", "-it", "-chat"];
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let (target, suite) = (plain(target), plain(suite).replace('-', ""));
    let is_target = |name: &str| SUFFIXES.iter().any(|suffix| target == format!("{name}{suffix}"));
    let is_suite = |name: &str| suite.starts_with(&name.replace('-', ""));
    tables
        .iter()
        .flat_map(|table| table.rows.iter().map(move |row| (table, row)))
        .filter(|(_, row)| {
            is_target(&row.target) && is_suite(&row.suite) && row.temperature.is_none_or(|t| t == temperature)
        })
        .collect()
}
