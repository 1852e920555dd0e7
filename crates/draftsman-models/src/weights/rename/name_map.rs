//! A file that says which tensor is which: `from = "to"`, in TOML or JSON.
//!
//! ```toml
//! "context_proj.weight" = "fc.weight"
//! "blocks.{i}.attention.*" = "layers.{i}.self_attn.*"
//! ignore = ["ema.*"]
//! ```
//!
//! `{i}` stands for a number and `*` for any text; the first of them in `from` fills the first in `to`, and so on. Tables
//! inside each other are read as dotted names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{ModelError, Problems};
use crate::weights::index::UniqueMap;

/// Largest file read.
const MAX_BYTES: u64 = 1 << 20;
/// Most `*` in a pattern: each multiplies the ways to match.
const MAX_STARS: usize = 2;
const IGNORE: &str = "ignore";
const FORMAT: &str = "a name map is a TOML or JSON table of `from = \"to\"`, with an optional list `ignore`";

/// Which tensor of a file is which tensor of the model.
#[derive(Debug, Clone)]
pub struct NameMap {
    path: PathBuf,
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    from: Pattern,
    /// `None`: left out.
    to: Option<Pattern>,
}

/// Which rules of a map have matched.
pub(super) type Usage = Vec<bool>;

impl NameMap {
    /// Reads a `.toml` or `.json` file. Everything wrong with it is reported together.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let size = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?.len();
        if size > MAX_BYTES {
            return Err(ModelError::malformed(path, format!("{size} bytes, at most {MAX_BYTES} are read"), FORMAT));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(|e| ModelError::io(path, e))?, path)
    }

    /// Reads the text of a file; its name says whether it is JSON, and errors mention it.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ModelError> {
        let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let table: Result<UniqueMap<Value>, String> = if json {
            serde_json::from_str(text).map_err(|e| e.to_string())
        } else {
            toml::from_str(text).map_err(|e| e.to_string())
        };
        let UniqueMap(table) = table.map_err(|e| ModelError::malformed(path, e, FORMAT))?;
        let mut rules = Vec::new();
        let mut problems = Problems::default();
        for (key, value) in &table {
            match value {
                Value::Array(patterns) if key == IGNORE => {
                    for pattern in patterns {
                        match pattern.as_str().ok_or_else(|| "not a string".to_string()).and_then(Pattern::parse) {
                            Ok(from) => rules.push(Rule { from, to: None }),
                            Err(problem) => problems.push(format!("`{IGNORE}`: {pattern}: {problem}")),
                        }
                    }
                }
                value => read_rules(key, value, &mut rules, &mut problems),
            }
        }
        if rules.is_empty() && problems.is_empty() {
            problems.push(format!("it names no tensor\n    hint: {FORMAT}"));
        }
        problems.into_model_result(path)?;
        Ok(Self { path: path.to_path_buf(), rules })
    }

    /// What becomes of a name: `None` where no rule matches, else the new name, or nothing where it is ignored.
    pub(super) fn apply(&self, name: &str, used: &mut Usage) -> Option<Result<Option<String>, String>> {
        let mut found: Option<(&Rule, Option<String>)> = None;
        for (rule, used) in self.rules.iter().zip(used) {
            let Some(matched) = rule.from.matches(name) else { continue };
            *used = true;
            let new = rule.to.as_ref().map(|to| to.fill(&matched));
            match &found {
                Some((first, other)) if *other != new => {
                    return Some(Err(format!(
                        "two rules of {} say different things about it: `{}` and `{}`",
                        self.path.display(),
                        first.from.text,
                        rule.from.text
                    )));
                }
                Some(_) => {}
                None => found = Some((rule, new)),
            }
        }
        found.map(|(_, new)| Ok(new))
    }

    /// Nothing used yet.
    pub(super) fn usage(&self) -> Usage {
        vec![false; self.rules.len()]
    }

    /// Rules that led nowhere.
    pub(super) fn unused<'a>(&'a self, used: &'a Usage) -> impl Iterator<Item = String> + 'a {
        self.rules
            .iter()
            .zip(used)
            .filter(|(_, used)| !**used)
            .map(|(rule, _)| format!("{}: `{}` matches no tensor of the file", self.path.display(), rule.from.text))
    }

    /// Rules whose target no model of this kind has, each with the name that was perhaps meant.
    pub(super) fn unknown_targets(&self, known: &BTreeSet<String>) -> Problems {
        let mut problems = Problems::default();
        for to in self.rules.iter().filter_map(|rule| rule.to.as_ref()) {
            if known.iter().any(|name| to.matches(name).is_some()) {
                continue;
            }
            let near = known
                .iter()
                .map(|name| if to.wildcards == 0 { name.clone() } else { generalise(name) })
                .map(|name| (strsim::normalized_levenshtein(&name, &to.text), name))
                .max_by(|a, b| a.0.total_cmp(&b.0));
            let hint = match near {
                Some((likeness, name)) if likeness > 0.5 => format!("\n    hint: did you mean `{name}`?"),
                _ => String::new(),
            };
            problems.push(format!("{}: this model has no tensor `{}`{hint}", self.path.display(), to.text));
        }
        problems
    }
}

fn read_rules(from: &str, value: &Value, rules: &mut Vec<Rule>, problems: &mut Problems) {
    match value {
        Value::String(to) => match (Pattern::parse(from), Pattern::parse(to)) {
            (Ok(from), Ok(to)) if from.wildcards == to.wildcards => rules.push(Rule { from, to: Some(to) }),
            (Ok(from), Ok(to)) => problems.push(format!(
                "`{}` has {} wildcards and `{}` has {}; each fills the one in its place",
                from.text, from.wildcards, to.text, to.wildcards
            )),
            (from, to) => {
                for problem in [from.err(), to.err()].into_iter().flatten() {
                    problems.push(problem);
                }
            }
        },
        // A dotted key without quotes is a table inside a table.
        Value::Object(table) => {
            for (key, value) in table {
                read_rules(&format!("{from}.{key}"), value, rules, problems);
            }
        }
        other => problems.push(format!("`{from}` is {other}, expected a name in quotes")),
    }
}

/// A published name with its layer number as a wildcard.
fn generalise(name: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "{i}".to_string() } else { part.to_string() };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// A name with wildcards.
#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    tokens: Vec<Token>,
    wildcards: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Text(String),
    /// `{i}`
    Number,
    /// `*`
    Any,
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let plain = rest.find(['*', '{', '}']).unwrap_or(rest.len());
            if plain > 0 {
                tokens.push(Token::Text(rest[..plain].to_string()));
                rest = &rest[plain..];
                continue;
            }
            let (token, after) = match (rest.strip_prefix('*'), rest.strip_prefix('{').and_then(|r| r.split_once('}')))
            {
                (Some(after), _) => (Token::Any, after),
                (None, Some((name, after))) if is_variable(name) => (Token::Number, after),
                _ => return Err(format!("`{text}`: a number is written as {{i}}, and any text as *")),
            };
            if tokens.last().is_some_and(|last| !matches!(last, Token::Text(_))) {
                return Err(format!("`{text}`: two wildcards need text between them"));
            }
            tokens.push(token);
            rest = after;
        }
        if tokens.is_empty() {
            return Err("a name is empty".into());
        }
        if tokens.iter().filter(|token| **token == Token::Any).count() > MAX_STARS {
            return Err(format!("`{text}`: more than {MAX_STARS} `*`"));
        }
        let wildcards = tokens.iter().filter(|token| !matches!(token, Token::Text(_))).count();
        Ok(Self { text: text.to_string(), tokens, wildcards })
    }

    /// What the wildcards stand for, if the whole name matches.
    fn matches<'n>(&self, name: &'n str) -> Option<Vec<&'n str>> {
        let mut found = Vec::with_capacity(self.wildcards);
        matches(&self.tokens, name, &mut found).then_some(found)
    }

    fn fill(&self, values: &[&str]) -> String {
        let mut values = values.iter();
        self.tokens
            .iter()
            .map(|token| match token {
                Token::Text(text) => text.as_str(),
                Token::Number | Token::Any => values.next().copied().unwrap_or_default(),
            })
            .collect()
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase())
}

fn matches<'n>(tokens: &[Token], name: &'n str, found: &mut Vec<&'n str>) -> bool {
    let Some((token, tokens)) = tokens.split_first() else { return name.is_empty() };
    match token {
        Token::Text(text) => name.strip_prefix(text.as_str()).is_some_and(|rest| matches(tokens, rest, found)),
        Token::Number => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            found.push(&name[..digits]);
            let matched = digits > 0 && matches(tokens, &name[digits..], found);
            if !matched {
                found.pop();
            }
            matched
        }
        Token::Any => name.char_indices().skip(1).map(|(at, _)| at).chain([name.len()]).any(|at| {
            found.push(&name[..at]);
            let matched = at > 0 && matches(tokens, &name[at..], found);
            if !matched {
                found.pop();
            }
            matched
        }),
    }
}
