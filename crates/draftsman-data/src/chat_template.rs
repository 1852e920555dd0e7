//! Chat templates: the Jinja text that comes with a model, rendered as Hugging Face renders it.
//!
//! A template comes from a model file, so it is not trusted: it can load nothing, sees no clock, and is stopped by limits on
//! work and memory (fuel), recursion and output. What it is given is the chat, a fixed date and the names of special tokens.

mod functions;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Map;
use sha2::{Digest, Sha256};

use crate::DataError;
use crate::files::read_bounded;
use crate::records::Message;
use crate::tokenizer::hex;

pub use functions::TemplateDate;

/// Work and memory a rendering may use: instructions and allocated bytes.
const FUEL: u64 = 16 << 20;
/// Bytes a rendering may give out.
const MAX_OUTPUT: usize = 64 << 20;
/// Bytes a template may have.
const MAX_TEMPLATE: u64 = 1 << 20;
const RECURSION: usize = 128;

/// What a template sees beside the messages.
#[derive(Debug, Clone, Default)]
pub struct TemplateOptions {
    /// The spelling of the beginning-of-sequence token.
    pub bos_token: Option<String>,
    /// The spelling of the end-of-sequence token.
    pub eos_token: Option<String>,
    /// What `strftime_now` says. It is fixed, so that the same chat gives the same ids tomorrow.
    pub date: TemplateDate,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, serde_json::Value>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    name: String,
    source: String,
    options: TemplateOptions,
}

/// The name under which the one template is kept; its own name is used in messages only.
const KEY: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template; `name` is the file or metadata key it came from.
    pub fn new(source: &str, name: &str, options: TemplateOptions) -> Result<Self, DataError> {
        if source.len() as u64 > MAX_TEMPLATE {
            return Err(DataError::Template {
                name: name.into(),
                line: None,
                message: format!("the template has {} bytes (at most {MAX_TEMPLATE})", source.len()),
            });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| template_error(name, &e))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        functions::add(&mut environment, options.date);
        environment.add_template_owned(KEY, without_generation_tags(source)).map_err(|e| template_error(name, &e))?;
        Ok(Self { environment, name: name.into(), source: source.into(), options })
    }

    /// Reads the template of a model folder: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`
    /// (of several templates, the one named `default`). `None` if the folder has none.
    pub fn from_folder(folder: &Path, options: TemplateOptions) -> Result<Option<Self>, DataError> {
        let file = folder.join("chat_template.jinja");
        if file.exists() {
            let name = file.display().to_string();
            let source = String::from_utf8(read_bounded(&file, MAX_TEMPLATE)?).map_err(|_| DataError::Template {
                name: name.clone(),
                line: None,
                message: "the file isn't UTF-8".into(),
            })?;
            return Self::new(&source, &name, options).map(Some);
        }
        let config = folder.join("tokenizer_config.json");
        if !config.exists() {
            return Ok(None);
        }
        let name = format!("{} (chat_template)", config.display());
        let fail = |message: String| DataError::Template { name: name.clone(), line: None, message };
        let value: serde_json::Value = serde_json::from_slice(&read_bounded(&config, 64 << 20)?)
            .map_err(|e| fail(format!("malformed JSON: {e}")))?;
        let source = match &value["chat_template"] {
            serde_json::Value::Null => return Ok(None),
            serde_json::Value::String(s) => s.as_str(),
            serde_json::Value::Array(list) => {
                let default = list.iter().find(|t| t["name"] == "default").or(list.first());
                default.and_then(|t| t["template"].as_str()).ok_or_else(|| fail("the list holds no template".into()))?
            }
            _ => return Err(fail("expected a string or a list of named templates".into())),
        };
        Self::new(source, &name, options).map(Some)
    }

    /// The text of a chat. With `add_generation_prompt` it ends where the assistant's answer starts.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, DataError> {
        let fail = |e: minijinja::Error| template_error(&self.name, &e);
        let template = self.environment.get_template(KEY).map_err(fail)?;
        let mut context: BTreeMap<&str, Value> =
            self.options.variables.iter().map(|(k, v)| (k.as_str(), Value::from(Serde(v)))).collect();
        context.insert("messages", Value::from(Serde(messages)));
        context.insert("add_generation_prompt", Value::from(add_generation_prompt));
        context.insert("tools", tools.map_or(Value::from(()), |t| Value::from(Serde(t))));
        for (key, token) in [("bos_token", &self.options.bos_token), ("eos_token", &self.options.eos_token)] {
            if let Some(token) = token {
                context.insert(key, Value::from(token.as_str()));
            }
        }
        let mut out = Bounded { bytes: Vec::new(), full: false };
        let done = template.render_captured_to(Value::from(context), &mut out).map(|_| ());
        if out.full {
            return Err(DataError::Template {
                name: self.name.clone(),
                line: None,
                message: format!("the output is longer than {} MiB", MAX_OUTPUT >> 20),
            });
        }
        done.map_err(fail)?;
        String::from_utf8(out.bytes).map_err(|_| DataError::Template {
            name: self.name.clone(),
            line: None,
            message: "the output isn't UTF-8".into(),
        })
    }

    /// Where the template came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// A hash of the template's text.
    pub fn sha256(&self) -> String {
        hex(&Sha256::digest(self.source.as_bytes()))
    }
}

/// An output that takes so much and no more.
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + buffer.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error with the template's own name, its line and, for the usual traps, a hint.
fn template_error(name: &str, error: &minijinja::Error) -> DataError {
    let mut message = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => message = "stopped: it needs more work or memory than a chat template may use".into(),
        ErrorKind::UnknownTest | ErrorKind::UnknownFilter | ErrorKind::UnknownFunction | ErrorKind::UnknownMethod => {
            message = format!("{message} (a name of Python's Jinja that isn't supported here)");
        }
        _ => {}
    }
    DataError::Template { name: name.into(), line: error.line(), message }
}

/// Takes out `{% generation %}` and `{% endgeneration %}`, which only mark the assistant's text for Hugging Face's own mask.
/// A condition that holds stands in their place, so that the white-space rules stay the same.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(length) = rest[at..].find("%}") else { break };
        let inner = &rest[at + 2..at + length];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..at + 2]);
        match word {
            "generation" => out.push_str(&inner.replace(word, "if true")),
            "endgeneration" => out.push_str(&inner.replace(word, "endif")),
            _ => out.push_str(inner),
        }
        out.push_str("%}");
        rest = &rest[at + length + 2..];
    }
    out + rest
}
