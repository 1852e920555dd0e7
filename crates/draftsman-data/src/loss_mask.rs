//! Which tokens of a chat are the assistant's.
//!
//! The boundary is found with the very ids that a prompt has in use: the chat up to the assistant's turn is rendered as a
//! prompt and encoded, the rest of the rendered text is encoded by itself and follows. So training sees the same prompt ids as
//! generation. The answer ends with its first stop token; what the template writes behind it isn't learnt and isn't kept.

use serde_json::Value;

use crate::records::Message;
use crate::{ChatTemplate, DataError, Tokenizer};

/// A tokenizer and a chat template that belong together.
#[derive(Debug)]
pub struct ChatEncoder {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stop_ids: Vec<u32>,
}

/// Which of the assistant's turns become samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Turns {
    /// One sample for each of the assistant's turns, each with the chat before it rendered as a prompt. Templates that drop
    /// earlier thinking make these prompts differ from a part of the whole chat, so the turns can't share one sample.
    #[default]
    Each,
    /// The last turn of the assistant only.
    Last,
}

/// A prompt and the answer to it, in ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatSample {
    /// The ids of the rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// The ids of the answer, its stop token included.
    pub response_ids: Vec<u32>,
    /// Which message is the answer.
    pub turn: usize,
}

impl ChatEncoder {
    /// Joins tokenizer and template. `stop_ids` are the ids at which the target ends an answer.
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate, stop_ids: Vec<u32>) -> Self {
        Self { tokenizer, template, stop_ids }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// The ids that end an answer.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The ids of a chat that the assistant is to continue.
    pub fn prompt_ids(&self, messages: &[Message], tools: Option<&Value>) -> Result<Vec<u32>, DataError> {
        self.tokenizer.encode(&self.template.render(messages, tools, true)?)
    }

    /// The samples of a chat: one for every turn of the assistant that is asked for.
    pub fn samples(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        turns: Turns,
    ) -> Result<Vec<ChatSample>, DataError> {
        let mut answers = messages.iter().enumerate().filter(|(_, m)| m.is_assistant()).map(|(i, _)| i);
        match turns {
            Turns::Each => answers.map(|turn| self.sample(messages, tools, turn)).collect(),
            Turns::Last => answers.next_back().map(|turn| self.sample(messages, tools, turn)).into_iter().collect(),
        }
    }

    fn sample(&self, messages: &[Message], tools: Option<&Value>, turn: usize) -> Result<ChatSample, DataError> {
        let prompt = self.template.render(&messages[..turn], tools, true)?;
        let whole = self.template.render(&messages[..=turn], tools, false)?;
        let Some(answer) = whole.strip_prefix(&prompt) else {
            return Err(DataError::Template {
                name: self.template.name().into(),
                line: None,
                message: format!(
                    "message {turn}: the chat with the answer doesn't start with the prompt for it, so the answer's tokens can't be told apart; let the target write the answers (`data regenerate`), which keeps their ids"
                ),
            });
        };
        let prompt_ids = self.tokenizer.encode(&prompt)?;
        let mut response_ids = self.tokenizer.encode(answer)?;
        if let Some(stop) = response_ids.iter().position(|id| self.stop_ids.contains(id)) {
            response_ids.truncate(stop + 1);
        }
        Ok(ChatSample { prompt_ids, response_ids, turn })
    }
}

/// The mask of a prompt followed by its answer: true for the answer.
pub fn answer_mask(prompt_len: usize, response_len: usize) -> Vec<bool> {
    let mut mask = vec![false; prompt_len];
    mask.resize(prompt_len + response_len, true);
    mask
}
