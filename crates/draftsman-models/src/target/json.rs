//! Reading a model's config.json: typed fields, which keys were looked at, all problems together.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{ModelError, Problems};

/// Largest config.json read.
const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// Reads `config.json` as an object.
pub(crate) fn read_json_object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let size = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?.len();
    if size > MAX_CONFIG_BYTES {
        return Err(ModelError::malformed(
            path,
            format!("{size} bytes, at most {MAX_CONFIG_BYTES} are read"),
            "this is not a model's config.json",
        ));
    }
    let text = std::fs::read(path).map_err(|e| ModelError::io(path, e))?;
    serde_json::from_slice(&text).map_err(|e| {
        ModelError::malformed(
            path,
            format!("not a JSON object: {e}"),
            "a model folder needs the config.json that Hugging Face writes",
        )
    })
}

/// The keys of one JSON object, with their dotted prefix in messages.
pub(crate) struct Fields<'a> {
    prefix: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
    problems: &'a RefCell<Problems>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(prefix: &str, map: &'a Map<String, Value>, problems: &'a RefCell<Problems>) -> Self {
        Self { prefix: prefix.to_string(), map, read: RefCell::default(), problems }
    }

    /// A value that is there and not null.
    pub(crate) fn value(&self, key: &str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key.to_string());
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn problem(&self, key: &str, what: impl std::fmt::Display) {
        self.problems.borrow_mut().push(format!("`{}{key}`: {what}", self.prefix));
    }

    fn optional<T>(&self, key: &str, wanted: &str, convert: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.value(key)?;
        let converted = convert(value);
        if converted.is_none() {
            self.problem(key, format!("expected {wanted}, found {value}"));
        }
        converted
    }

    fn present<T>(&self, key: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && self.map.get(key).is_none_or(Value::is_null) {
            self.problem(key, "it is missing");
        }
        value
    }

    pub(crate) fn usize(&self, key: &str) -> Option<usize> {
        // Dimensions beyond this cannot be real and would overflow products later.
        const MAX: u64 = 1 << 31;
        self.optional(key, "a whole number of at least 1", |v| {
            let number = v.as_u64().filter(|&n| (1..=MAX).contains(&n))?;
            usize::try_from(number).ok()
        })
    }

    /// As [`Fields::usize`], 0 included.
    pub(crate) fn count(&self, key: &str) -> Option<usize> {
        self.optional(key, "a whole number", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    pub(crate) fn f64(&self, key: &str) -> Option<f64> {
        self.optional(key, "a number", |v| v.as_f64().filter(|n| n.is_finite()))
    }

    pub(crate) fn bool(&self, key: &str) -> Option<bool> {
        self.optional(key, "true or false", Value::as_bool)
    }

    pub(crate) fn str(&self, key: &str) -> Option<&'a str> {
        self.optional(key, "a string", Value::as_str)
    }

    pub(crate) fn object(&self, key: &str) -> Option<&'a Map<String, Value>> {
        self.optional(key, "an object", Value::as_object)
    }

    /// One id or a list of ids.
    pub(crate) fn ids(&self, key: &str) -> Vec<u32> {
        let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        self.optional(key, "a token id or a list of them", |v| match v {
            Value::Array(list) => list.iter().map(one).collect::<Option<Vec<u32>>>(),
            v => one(v).map(|id| vec![id]),
        })
        .unwrap_or_default()
    }

    /// As [`Fields::usize`]; a missing key is a problem and reads as 1, so that checking can go on.
    pub(crate) fn required_usize(&self, key: &str) -> usize {
        self.present(key, self.usize(key)).unwrap_or(1)
    }

    /// As [`Fields::f64`]; a missing key is a problem and reads as 1.
    pub(crate) fn required_f64(&self, key: &str) -> f64 {
        self.present(key, self.f64(key)).unwrap_or(1.0)
    }

    /// A key that changes the mathematics and is not supported unless it holds one of the harmless values (null and
    /// missing always are).
    pub(crate) fn only(&self, key: &str, harmless: &[Value]) {
        if let Some(value) = self.value(key)
            && !harmless.iter().any(|h| same_value(h, value))
        {
            let all: Vec<String> = harmless.iter().map(Value::to_string).collect();
            let all = if all.is_empty() { "null".into() } else { all.join(" or ") };
            self.problem(key, format!("{value} changes the mathematics and is not supported (supported: {all})"));
        }
    }

    /// Keys that nobody looked at.
    pub(crate) fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        self.map.keys().filter(|k| !read.contains(*k)).map(|k| format!("{}{k}", self.prefix)).collect()
    }
}

/// Equality that takes 1 and 1.0 for the same number.
fn same_value(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}
