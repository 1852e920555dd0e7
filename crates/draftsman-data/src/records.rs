//! JSONL records: chats, ready-made ids, and answers with the exact ids that were generated.
//!
//! One JSON object a line, in one of three forms (the first that fits):
//! * `prompt_ids` and `response_ids`: an answer whose ids are kept as they were generated (`messages` may stand beside them);
//! * `input_ids` and `loss_mask` (0/1 or booleans): ids with a mask;
//! * `messages`: a chat (`role`, `content`), optionally with `tools`.
//!
//! `id` and `source` are optional everywhere; without an `id` the record is called `line-N`. Other keys are ignored.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::files::for_each_line;
use crate::{DataError, ProblemList};

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Whatever else the message holds, handed to the template as it is (`tool_calls`, `name`, …).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of a role, with a text and nothing else.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// True for the assistant's messages.
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }
}

/// One line of a data file.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The record's name; documents are split into training and validation by it.
    pub id: String,
    /// Where the record comes from, if it says so.
    pub source: Option<String>,
    /// The line it stands in, from 1.
    pub line: usize,
    /// What it holds.
    pub content: RecordContent,
}

/// The three forms of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordContent {
    /// A chat; the assistant's tokens are found with template and tokenizer.
    Chat {
        /// The messages in order.
        messages: Vec<Message>,
        /// Tools for the template.
        tools: Option<Value>,
    },
    /// Ids with a mask of the tokens to learn, both of the same length.
    Ids {
        /// The token ids.
        input_ids: Vec<u32>,
        /// True where a token is supervised.
        loss_mask: Vec<bool>,
    },
    /// A prompt and the answer that a target gave, ids kept exactly.
    Answer {
        /// The ids of the rendered prompt.
        prompt_ids: Vec<u32>,
        /// The ids the target generated, a stop token included where there was one.
        response_ids: Vec<u32>,
        /// The chat in words, empty if the line has none.
        messages: Vec<Message>,
    },
}

/// A prompt to be answered: a chat that ends with the user's (or a tool's) message.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The prompt's name, unique in its file.
    pub id: String,
    /// Where it comes from, if it says so.
    pub source: Option<String>,
    /// The messages, the last one not the assistant's.
    pub messages: Vec<Message>,
    /// Tools for the template.
    pub tools: Option<Value>,
}

/// Parses one line; the error says what is wrong, without the place.
pub fn parse_record(bytes: &[u8], line: usize) -> Result<Record, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8 (byte {})", e.valid_up_to() + 1))?;
    let value: Value = serde_json::from_str(text).map_err(|e| {
        // Its own "at line 1" would contradict the line of the file.
        let (column, what) = (e.column(), e.to_string());
        let what = what.split(" at line ").next().unwrap_or_default();
        format!("malformed JSON at column {column}: {what}")
    })?;
    let Value::Object(mut map) = value else {
        return Err(format!("expected a JSON object, got {}", kind(&value)));
    };
    let id = match map.remove("id") {
        None | Some(Value::Null) => format!("line-{line}"),
        Some(Value::String(id)) => id,
        Some(Value::Number(n)) => n.to_string(),
        Some(other) => return Err(format!("`id`: expected a string or a number, got {}", kind(&other))),
    };
    let source = match map.remove("source") {
        Some(Value::String(source)) => Some(source),
        _ => None,
    };
    let content = parse_content(&mut map)?;
    Ok(Record { id, source, line, content })
}

fn parse_content(map: &mut Map<String, Value>) -> Result<RecordContent, String> {
    let mut ids = |key: &str| map.remove(key).map(|v| parse_ids(v, key)).transpose();
    let (prompt_ids, response_ids, input_ids) = (ids("prompt_ids")?, ids("response_ids")?, ids("input_ids")?);
    match (prompt_ids, response_ids) {
        (Some(prompt_ids), Some(response_ids)) => {
            let messages = map.remove("messages").map(parse_messages).transpose()?.unwrap_or_default();
            return Ok(RecordContent::Answer { prompt_ids, response_ids, messages });
        }
        (Some(_), None) => return Err("`prompt_ids` without `response_ids`: a prompt without its answer".into()),
        (None, Some(_)) => return Err("`response_ids` without `prompt_ids`".into()),
        (None, None) => {}
    }
    match (input_ids, map.remove("loss_mask")) {
        (Some(input_ids), Some(mask)) => {
            let loss_mask = parse_mask(mask)?;
            if loss_mask.len() != input_ids.len() {
                return Err(format!("`loss_mask` has {} entries for {} `input_ids`", loss_mask.len(), input_ids.len()));
            }
            return Ok(RecordContent::Ids { input_ids, loss_mask });
        }
        (Some(_), None) => {
            return Err(
                "`input_ids` without `loss_mask`: say which tokens to learn, 1 or true for each of the assistant's"
                    .into(),
            );
        }
        (None, Some(_)) => return Err("`loss_mask` without `input_ids`".into()),
        (None, None) => {}
    }
    if let Some(messages) = map.remove("messages") {
        let messages = parse_messages(messages)?;
        if messages.is_empty() {
            return Err("`messages` is empty".into());
        }
        let tools = map.remove("tools").filter(|t| !t.is_null());
        return Ok(RecordContent::Chat { messages, tools });
    }
    let hint = if map.contains_key("conversations") {
        "; `conversations` (from/value) must be turned into `messages` (role/content)"
    } else {
        ""
    };
    Err(format!("none of `messages`, `input_ids` with `loss_mask`, `prompt_ids` with `response_ids`{hint}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn parse_ids(value: Value, key: &str) -> Result<Vec<u32>, String> {
    let Value::Array(items) = value else {
        return Err(format!("`{key}`: expected a list of token ids, got {}", kind(&value)));
    };
    let id = |(i, v): (usize, &Value)| {
        v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| format!("`{key}`[{i}]: {v} is no token id"))
    };
    items.iter().enumerate().map(id).collect()
}

fn parse_mask(value: Value) -> Result<Vec<bool>, String> {
    let Value::Array(items) = value else {
        return Err(format!("`loss_mask`: expected a list, got {}", kind(&value)));
    };
    let entry = |(i, v): (usize, &Value)| match (v.as_bool(), v.as_f64()) {
        (Some(b), _) => Ok(b),
        (_, Some(n)) if n == 0.0 || n == 1.0 => Ok(n == 1.0),
        _ => Err(format!("`loss_mask`[{i}]: {v} is neither 0 nor 1 nor a boolean")),
    };
    items.iter().enumerate().map(entry).collect()
}

fn parse_messages(value: Value) -> Result<Vec<Message>, String> {
    let Value::Array(items) = value else {
        return Err(format!("`messages`: expected a list, got {}", kind(&value)));
    };
    items.into_iter().enumerate().map(|(i, v)| parse_message(v).map_err(|e| format!("`messages`[{i}]{e}"))).collect()
}

fn parse_message(value: Value) -> Result<Message, String> {
    let Value::Object(mut extra) = value else {
        return Err(format!(": expected an object with `role` and `content`, got {}", kind(&value)));
    };
    let role = match extra.remove("role") {
        Some(Value::String(role)) if !role.is_empty() => role,
        Some(other) => return Err(format!(".role: expected a name, got {other}")),
        None => return Err(": no `role`".into()),
    };
    let content = match extra.remove("content") {
        Some(Value::String(text)) => text,
        // Messages that only call tools have no text.
        None | Some(Value::Null) => String::new(),
        Some(Value::Array(parts)) => {
            let text = |(i, part): (usize, &Value)| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                _ => Err(format!(".content[{i}]: only parts of the type `text` can be used")),
            };
            parts.iter().enumerate().map(text).collect::<Result<String, String>>()?
        }
        Some(other) => return Err(format!(".content: expected a string, got {}", kind(&other))),
    };
    Ok(Message { role, content, extra })
}

/// Reads a JSONL file (`.gz` too). All lines that are wrong are reported together.
pub fn read_records(path: &Path) -> Result<Vec<Record>, DataError> {
    let mut records = Vec::new();
    let mut problems = ProblemList::default();
    for_each_line(path, |number, bytes| {
        let parsed = match bytes {
            Some(bytes) => parse_record(bytes, number),
            None => Err("the line is longer than any record may be".into()),
        };
        match parsed {
            Ok(record) => records.push(record),
            Err(message) => problems.push(format!("{}:{number}: {message}", path.display())),
        }
    })?;
    if !problems.is_empty() {
        return Err(DataError::Problems { problems });
    }
    if records.is_empty() {
        return Err(DataError::Empty { path: path.to_owned() });
    }
    Ok(records)
}

/// Reads the prompts of a JSONL file: chats, less a closing answer of the assistant if there is one. Names must be unique.
pub fn read_prompts(path: &Path) -> Result<Vec<Prompt>, DataError> {
    let mut prompts = Vec::new();
    let mut problems = ProblemList::default();
    let mut lines: HashMap<String, usize> = HashMap::new();
    for Record { id, source, line, content } in read_records(path)? {
        let mut problem = |message: String| problems.push(format!("{}:{line}: {message}", path.display()));
        let (mut messages, tools) = match content {
            RecordContent::Chat { messages, tools } => (messages, tools),
            RecordContent::Answer { messages, .. } => (messages, None),
            RecordContent::Ids { .. } => (Vec::new(), None),
        };
        if messages.last().is_some_and(Message::is_assistant) {
            messages.pop();
        }
        if messages.is_empty() {
            problem("a prompt needs `messages` with at least one message that isn't the answer".into());
            continue;
        }
        if let Some(other) = lines.insert(id.clone(), line) {
            problem(format!("the id {id:?} stands in line {other} already; answers are kept by id"));
            continue;
        }
        prompts.push(Prompt { id, source, messages, tools });
    }
    if problems.is_empty() { Ok(prompts) } else { Err(DataError::Problems { problems }) }
}
