//! Reading a TOML table key by key, collecting every problem instead of stopping at the first.

use std::collections::BTreeSet;

use toml::{Table, Value};

/// A value of a recipe, read from TOML.
pub(super) trait FromValue: Sized {
    /// What the key wants, for messages: "a whole number, 0 or more".
    fn wanted() -> String;
    /// `None` when the value is of another kind.
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for u64 {
    fn wanted() -> String {
        "a whole number, 0 or more".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        Self::try_from(value.as_integer()?).ok()
    }
}

impl FromValue for usize {
    fn wanted() -> String {
        u64::wanted()
    }
    fn from_value(value: &Value) -> Option<Self> {
        Self::try_from(value.as_integer()?).ok()
    }
}

impl FromValue for u32 {
    fn wanted() -> String {
        u64::wanted()
    }
    fn from_value(value: &Value) -> Option<Self> {
        Self::try_from(value.as_integer()?).ok()
    }
}

impl FromValue for f64 {
    fn wanted() -> String {
        "a number".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Float(number) => Some(*number),
            Value::Integer(number) => Some(*number as Self),
            _ => None,
        }
    }
}

impl FromValue for bool {
    fn wanted() -> String {
        "true or false".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    fn wanted() -> String {
        format!("a list, each {}", T::wanted())
    }
    fn from_value(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::from_value).collect()
    }
}

/// A key with a fixed set of words.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// The words and what they mean.
    const ALL: &'static [(&'static str, Self)];

    /// The word of this value.
    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, value)| *value == self).map_or("?", |(word, _)| word)
    }
}

/// Lets an enum with a [`Choice`] table be read and written as its word.
macro_rules! choice_in_recipe {
    ($($kind:ty),*) => {$(
        impl crate::recipe::read::FromValue for $kind {
            fn wanted() -> String {
                let words: Vec<String> =
                    <Self as crate::recipe::read::Choice>::ALL.iter().map(|(word, _)| format!("\"{word}\"")).collect();
                words.join(" or ")
            }
            fn from_value(value: &toml::Value) -> Option<Self> {
                let text = value.as_str()?;
                <Self as crate::recipe::read::Choice>::ALL.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
            }
        }
    )*};
}
pub(super) use choice_in_recipe;

/// One section while it is read: hands out keys, then reports what nobody asked for.
pub(super) struct Section<'a> {
    name: &'static str,
    table: Table,
    asked: Vec<&'static str>,
    overridden: &'a BTreeSet<String>,
    problems: &'a mut Vec<String>,
}

impl<'a> Section<'a> {
    /// Takes section `name` out of `whole`.
    pub(super) fn take(
        whole: &mut Table,
        name: &'static str,
        overridden: &'a BTreeSet<String>,
        problems: &'a mut Vec<String>,
    ) -> Self {
        let table = match whole.remove(name) {
            Some(Value::Table(table)) => table,
            Some(_) => {
                problems.push(format!("{name} must be a section: [{name}]"));
                Table::new()
            }
            None => Table::new(),
        };
        Self { name, table, asked: Vec::new(), overridden, problems }
    }

    /// A key that may be absent.
    pub(super) fn optional<T: FromValue>(&mut self, key: &'static str) -> Option<T> {
        self.asked.push(key);
        let value = self.table.remove(key)?;
        let read = T::from_value(&value);
        if read.is_none() {
            let place = self.place(key);
            self.problems.push(format!("{place} must be {}, not {}", T::wanted(), shown(&value)));
        }
        read
    }

    /// A key with a default.
    pub(super) fn or<T: FromValue>(&mut self, key: &'static str, default: T) -> T {
        self.optional(key).unwrap_or(default)
    }

    /// A key that must be given. `stand_in` keeps the reading going after the complaint.
    pub(super) fn required<T: FromValue>(&mut self, key: &'static str, hint: &str, stand_in: T) -> T {
        if !self.table.contains_key(key) {
            self.asked.push(key);
            let place = self.place(key);
            self.problems.push(format!("{place} is missing ({hint})"));
            return stand_in;
        }
        self.or(key, stand_in)
    }

    /// Complains about `key` unless `good`.
    pub(super) fn require(&mut self, good: bool, key: &str, problem: impl AsRef<str>) {
        if !good {
            let place = self.place(key);
            self.problems.push(format!("{place} {}", problem.as_ref()));
        }
    }

    /// Reports the keys that no reader asked for, with the nearest known name.
    pub(super) fn finish(self) {
        for key in self.table.keys() {
            let place = place(self.name, key, self.overridden);
            let hint = nearest(key, self.asked.iter().copied());
            self.problems.push(format!("{place} is unknown{hint}"));
        }
    }

    fn place(&self, key: &str) -> String {
        place(self.name, key, self.overridden)
    }
}

fn place(section: &str, key: &str, overridden: &BTreeSet<String>) -> String {
    let full = format!("{section}.{key}");
    if overridden.contains(&full) { format!("{full} (from the override)") } else { full }
}

/// The value as TOML, shortened.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
}

/// ` (did you mean "x"?)`, or the whole list when nothing is near.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let near = known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match near {
        Some((score, candidate)) if score > 0.75 => format!(" (did you mean \"{candidate}\"?)"),
        _ => format!(" (known: {})", known.join(", ")),
    }
}
