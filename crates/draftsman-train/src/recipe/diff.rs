//! What differs between two recipes, key by key.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::Recipe;
use super::read::shown;
use crate::error::RecipeError;

/// Keys that change what is written and when, never what is computed: a resumed run may set them anew. Those of the walk
/// have no effect then, for its prompts and answers are in the checkpoint.
pub const HARMLESS_KEYS: &[&str] = &[
    "data.walk_prompts",
    "data.walk_new_tokens",
    "features.memory_gib",
    "train.log_every",
    "train.validate_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
];

/// One key with two values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `section.key`.
    pub key: String,
    /// Value in the first recipe, as TOML, or `absent`.
    pub was: String,
    /// Value in the second.
    pub now: String,
}

impl Recipe {
    /// The keys whose values differ between `self` (was) and `other` (now), in alphabetical order.
    pub fn differences(&self, other: &Self) -> Result<Vec<Difference>, RecipeError> {
        let (was, now) = (flat(self)?, flat(other)?);
        let keys: std::collections::BTreeSet<&String> = was.keys().chain(now.keys()).collect();
        let show = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), shown);
        Ok(keys
            .into_iter()
            .filter(|key| was.get(*key) != now.get(*key))
            .map(|key| Difference { key: key.clone(), was: show(was.get(key)), now: show(now.get(key)) })
            .collect())
    }
}

/// What of a recipe decides what is computed, as lines: two runs whose lines, data and target are the same compute the same.
pub(crate) fn deciding_lines(recipe: &Recipe) -> Result<String, RecipeError> {
    let deciding = flat(recipe)?.into_iter().filter(|(key, _)| !HARMLESS_KEYS.contains(&key.as_str()));
    Ok(deciding.map(|(key, value)| format!("{key} = {}\n", shown(&value))).collect())
}

fn flat(recipe: &Recipe) -> Result<BTreeMap<String, Value>, RecipeError> {
    let fail = |error: String| RecipeError { source_name: "to be compared".into(), problems: vec![error] };
    let table: Table = toml::from_str(&recipe.to_toml()?).map_err(|error| fail(error.to_string()))?;
    let mut flat = BTreeMap::new();
    for (section, value) in table {
        match value {
            Value::Table(inner) => {
                for (key, value) in inner {
                    flat.insert(format!("{section}.{key}"), value);
                }
            }
            other => {
                flat.insert(section, other);
            }
        }
    }
    Ok(flat)
}
