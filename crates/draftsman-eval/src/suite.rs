//! Prompts to evaluate on: JSON lines with `messages` or `prompt_ids`, or a published suite's own lines (plain or gzip).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use draftsman_contract::CounterRng;
use draftsman_data::records::parse_record;
use draftsman_data::{Message, RecordContent};
use serde_json::Value;

use crate::EvalError;

/// Longest line: far above any prompt that a context window takes, and a bound for a file that has no newline.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Most lines: a bound for what a small gzip file can unfold to.
const MAX_LINES: usize = 1_000_000;

/// Most bytes of all lines, after unzipping.
const MAX_SUITE_BYTES: u64 = 1 << 30;

/// Stream word of the shuffle, so that its draws are nobody else's.
const SELECTION_STREAM: u64 = 0x7375_6974;

/// What a prompt is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptSource {
    /// To be put through the chat template with a generation prompt.
    Messages {
        /// The chat; the last message is not the assistant's.
        messages: Vec<Message>,
        /// Tools for the template.
        tools: Option<Value>,
    },
    /// Exact tokens.
    Ids(Vec<u32>),
}

/// One prompt of a suite.
#[derive(Debug, Clone, PartialEq)]
pub struct SuitePrompt {
    /// `id` or `task_id` of the line, else its number.
    pub id: String,
    /// What kind of prompt the line says it is: its `category`, `source`, `subject` or `dataset`.
    pub category: Option<String>,
    /// 1-based line in the file.
    pub line: usize,
    /// The prompt.
    pub source: PromptSource,
    /// What the user says after the answer, and after the answer to that.
    pub follow_ups: Vec<String>,
}

/// Which prompts of a file are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// At most so many.
    pub limit: Option<usize>,
    /// Shuffle with this seed before the limit is applied; without it the first ones are taken.
    pub seed: Option<u64>,
}

/// The selected prompts of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Name of the file in lower case, without its endings.
    pub name: String,
    /// The selected prompts.
    pub prompts: Vec<SuitePrompt>,
    /// Prompts in the file.
    pub available: usize,
}

/// The user turn that a HumanEval problem becomes (the wording of the DFlash benchmark).
pub fn humaneval_prompt(problem: &str) -> String {
    format!(
        "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{problem}\n```"
    )
}

/// Reads a suite and selects from it. Every line is checked, also those not selected.
pub fn load_suite(path: &Path, selection: &Selection) -> Result<Suite, EvalError> {
    let file = File::open(path).map_err(|source| EvalError::Io { path: path.to_path_buf(), source })?;
    read_suite(path, file, selection)
}

/// As [`load_suite`], from a reader; `path` stands for it in errors.
pub fn read_suite(path: &Path, suite: impl Read, selection: &Selection) -> Result<Suite, EvalError> {
    let io = |source| EvalError::Io { path: path.to_path_buf(), source };
    let file_problem =
        |problem: String, hint: &str| EvalError::SuiteFile { path: path.to_path_buf(), problem, hint: hint.to_owned() };
    let mut reader = BufReader::new(suite);
    let is_gzip = reader.fill_buf().map_err(io)?.starts_with(&[0x1f, 0x8b]);
    let plain: Box<dyn Read + '_> =
        if is_gzip { Box::new(flate2::read::MultiGzDecoder::new(reader)) } else { Box::new(reader) };
    let mut lines = BufReader::new(plain.take(MAX_SUITE_BYTES + 1));

    let mut prompts = Vec::new();
    let mut ids = BTreeSet::new();
    let (mut number, mut bytes) = (0usize, 0u64);
    loop {
        let mut raw = Vec::new();
        let read = (&mut lines).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut raw).map_err(io)? as u64;
        if read == 0 {
            break;
        }
        number += 1;
        bytes += read;
        let refuse = |problem: String, hint: &str| EvalError::Suite {
            path: path.to_path_buf(),
            line: number,
            problem,
            hint: hint.to_owned(),
        };
        if read > MAX_LINE_BYTES {
            return Err(refuse(
                format!("the line is longer than {} MiB", MAX_LINE_BYTES >> 20),
                "one JSON object a line",
            ));
        }
        if bytes > MAX_SUITE_BYTES || number > MAX_LINES {
            return Err(refuse(
                format!("the suite is larger than {MAX_LINES} lines or {} GiB", MAX_SUITE_BYTES >> 30),
                "evaluate on a part of it",
            ));
        }
        let text = std::str::from_utf8(&raw)
            .map_err(|e| refuse(format!("not UTF-8: {e}"), "save the file as UTF-8"))?
            .trim_start_matches('\u{feff}')
            .trim();
        if text.is_empty() {
            continue;
        }
        let prompt = parse_line(text, number).map_err(|(problem, hint)| refuse(problem, hint))?;
        if !ids.insert(prompt.id.clone()) {
            return Err(refuse(
                format!("the id `{}` occurs twice", prompt.id),
                "ids name prompts in reports; make them differ",
            ));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(file_problem(
            "the suite holds no prompt".into(),
            "write one JSON object a line with `messages` or `prompt_ids`",
        ));
    }
    if selection.limit == Some(0) {
        return Err(file_problem("`limit` is 0, so no prompt is left".into(), "use a limit of 1 or more"));
    }
    let available = prompts.len();
    if let Some(seed) = selection.seed {
        CounterRng::new(seed, &[SELECTION_STREAM]).shuffle(&mut prompts);
    }
    prompts.truncate(selection.limit.unwrap_or(available));
    Ok(Suite { name: suite_name(path), prompts, available })
}

/// `HumanEval.jsonl.gz` is `humaneval`.
fn suite_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    [".gz", ".jsonl", ".json"].iter().fold(name, |name, end| match name.strip_suffix(end) {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => name,
    })
}

type Refusal = (String, &'static str);

fn parse_line(text: &str, line: usize) -> Result<SuitePrompt, Refusal> {
    let value: Value = serde_json::from_str(text).map_err(|e| (format!("not JSON: {e}"), "one JSON object a line"))?;
    let Value::Object(fields) = value else {
        return Err(("not a JSON object".into(), "one JSON object a line, in braces"));
    };
    let names = ["id", "task_id", "question_id", "unique_id", "prompt_id"];
    let id = match names.iter().find_map(|name| fields.get(*name)) {
        None | Some(Value::Null) => format!("line {line}"),
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) => id.to_string(),
        Some(_) => return Err(("`id` is neither text nor a number".into(), "ids name prompts in reports")),
    };
    let mut follow_ups = Vec::new();
    let user = |content: String| PromptSource::Messages { messages: vec![Message::user(content)], tools: None };
    let source = if let Some(ids) = fields.get("prompt_ids") {
        PromptSource::Ids(parse_ids(ids)?)
    } else if fields.contains_key("messages") {
        parse_chat(text, line)?
    } else if let Some(turns) = fields.get("turns").or_else(|| fields.get("prompt").filter(|prompt| prompt.is_array()))
    {
        let mut turns = parse_turns(turns)?;
        follow_ups = turns.split_off(1);
        user(turns.swap_remove(0))
    } else if let Some(content) = published_prompt(&fields)? {
        user(content)
    } else {
        return Err((
            "neither `messages` nor `prompt_ids`, nor a published suite's keys".into(),
            "for example {\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}; docs/eval.md lists the suites",
        ));
    };
    let kinds = ["category", "source", "subject", "dataset"];
    let category = kinds.iter().find_map(|kind| fields.get(*kind)?.as_str()).map(str::to_owned);
    Ok(SuitePrompt { id, category, line, source, follow_ups })
}

/// The user's turns of a conversation, at least one (`turns` in MT-Bench's own file, `prompt` in its copies).
fn parse_turns(turns: &Value) -> Result<Vec<String>, Refusal> {
    let hint = "`turns` lists what the user says, turn by turn: [\"first question\", \"second question\"]";
    let texts = turns.as_array().filter(|turns| !turns.is_empty()).map(|turns| {
        turns.iter().map(|turn| turn.as_str().filter(|turn| !turn.trim().is_empty()).map(str::to_owned)).collect()
    });
    match texts {
        Some(Some(texts)) => Ok(texts),
        _ => Err(("`turns` is not a list of texts".into(), hint)),
    }
}

/// The user turn of a line in a published suite's own format, worded as the DFlash benchmark does; `None` for another
/// line. Answers and tests that stand beside a problem are not read.
fn published_prompt(fields: &serde_json::Map<String, Value>) -> Result<Option<String>, Refusal> {
    let has = |key: &str| fields.contains_key(key);
    let text = |key: &'static str| match fields.get(key) {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.as_str()),
        _ => Err((format!("`{key}` is not text"), "docs/eval.md lists the keys of the published suites")),
    };
    Ok(Some(if has("task_id") && has("prompt") && has("entry_point") {
        humaneval_prompt(text("prompt")?)
    } else if has("task_id") && has("prompt") {
        // MBPP (sanitized) has tests in place of an entry point, and its text is given as it is.
        if has("test_list") { text("prompt")?.to_owned() } else { humaneval_prompt(text("prompt")?) }
    } else if has("question") && has("answer") {
        maths_prompt(text("question")?)
    } else if has("problem") && (has("solution") || has("answer")) {
        maths_prompt(text("problem")?)
    } else if has("instruction") {
        alpaca_prompt(text("instruction")?, fields.get("input").and_then(Value::as_str).unwrap_or_default())
    } else {
        return Ok(None);
    }))
}

/// The user turn of a GSM8K, MATH or AIME problem.
pub fn maths_prompt(problem: &str) -> String {
    format!("{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}.")
}

/// The user turn of an Alpaca instruction with its input, which may be empty.
pub fn alpaca_prompt(instruction: &str, input: &str) -> String {
    if input.trim().is_empty() { instruction.to_owned() } else { format!("{instruction}\n\nInput:\n{input}") }
}

fn parse_ids(value: &Value) -> Result<Vec<u32>, Refusal> {
    let hint = "`prompt_ids` is a list of token ids";
    let Value::Array(items) = value else {
        return Err(("`prompt_ids` is not a list".into(), hint));
    };
    if items.is_empty() {
        return Err(("`prompt_ids` is empty".into(), hint));
    }
    items
        .iter()
        .enumerate()
        .map(|(i, item)| {
            item.as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| (format!("`prompt_ids[{i}]` is {item}, not a token id"), hint))
        })
        .collect()
}

fn parse_chat(text: &str, line: usize) -> Result<PromptSource, Refusal> {
    let hint = "`messages` is a list of {\"role\": ..., \"content\": ...}";
    let record = parse_record(text.as_bytes(), line).map_err(|problem| (problem, hint))?;
    let RecordContent::Chat { mut messages, tools } = record.content else {
        return Err(("`messages` stands beside ids with a mask".into(), "a prompt has `messages` or `prompt_ids`"));
    };
    // An answer at the end is somebody's, not part of the prompt.
    while messages.last().is_some_and(Message::is_assistant) {
        messages.pop();
    }
    if messages.is_empty() {
        return Err((
            "`messages` holds nothing to answer".into(),
            "a prompt ends with a message that is not the assistant's",
        ));
    }
    Ok(PromptSource::Messages { messages, tools })
}
