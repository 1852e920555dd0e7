//! `section.key=value` from the command line, laid over the file's table.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::read::nearest;
use super::{KEYS, SECTIONS};

/// Lays `overrides` over `table`; returns the full keys that were set.
///
/// A value is read as TOML; what is not TOML is a bare word, so that `drafter.init=random` needs no quotes.
pub(super) fn apply(table: &mut Table, overrides: &[String], problems: &mut Vec<String>) -> BTreeSet<String> {
    let mut set = BTreeSet::new();
    for text in overrides {
        let Some((full, value)) = text.split_once('=') else {
            problems.push(format!("override \"{text}\" must have the form section.key=value"));
            continue;
        };
        let (full, value) = (full.trim(), value.trim());
        let Some((section, key)) = full.split_once('.') else {
            let candidates: Vec<String> = all_keys().filter(|known| known.ends_with(&format!(".{full}"))).collect();
            let hint = match candidates.as_slice() {
                [one] => format!(" (did you mean \"{one}\"?)"),
                _ => nearest_full(full),
            };
            problems.push(format!("override \"{text}\" names no section{hint}"));
            continue;
        };
        if !SECTIONS.contains(&section) {
            problems.push(format!(
                "override \"{text}\": section {section} is unknown{}",
                nearest(section, SECTIONS.iter().copied())
            ));
            continue;
        }
        let known = KEYS.iter().find(|(name, _)| *name == section).map_or(&[][..], |(_, keys)| keys);
        if !known.contains(&key) {
            problems.push(format!("override \"{text}\": {full} is unknown{}", nearest(key, known.iter().copied())));
            continue;
        }
        let value = parse(value);
        match table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => {
                inner.insert(key.to_owned(), value);
                set.insert(full.to_owned());
            }
            _ => problems.push(format!("override \"{text}\": {section} is not a section in the file")),
        }
    }
    set
}

fn parse(text: &str) -> Value {
    let document = format!("value = {text}");
    match toml::from_str::<Table>(&document) {
        // One key only: `1\nother = 2` is not a value.
        Ok(mut table) if table.len() == 1 => table.remove("value").unwrap_or_else(|| Value::String(text.to_owned())),
        _ => Value::String(text.to_owned()),
    }
}

fn all_keys() -> impl Iterator<Item = String> {
    KEYS.iter().flat_map(|(section, keys)| keys.iter().map(move |key| format!("{section}.{key}")))
}

fn nearest_full(name: &str) -> String {
    let all: Vec<String> = all_keys().collect();
    let near = all
        .iter()
        .map(|full| (full.split_once('.').map_or(0.0, |(_, key)| strsim::jaro_winkler(name, key)), full))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match near {
        Some((score, full)) if score > 0.75 => format!(" (did you mean \"{full}\"?)"),
        _ => format!(" (sections: {})", SECTIONS.join(", ")),
    }
}
