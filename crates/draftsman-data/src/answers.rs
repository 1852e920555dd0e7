//! The answers that a target writes to training prompts: a store that loses nothing when the writer is killed.
//!
//! Three files belong to a store `OUT`:
//! * `OUT.settings.json`: what the answers were made with. A store is only continued with equal settings.
//! * `OUT.part`: finished answers in the order in which they were finished, one JSON line each, synced one by one.
//!   A last line that is torn (the writer was killed in the middle of it) is dropped when the store is opened again.
//! * `OUT`: all answers in the order of their prompts, written in one step by [`AnswerStore::finish`], which then removes `OUT.part`.
//!
//! `OUT.lock` is held while the store is open. A finished store can be opened again to answer further prompts.

mod store;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::loop_rule::LoopRule;
use crate::records::Message;

pub use store::AnswerStore;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// With a stop token.
    Stop,
    /// At the limit of new tokens.
    Length,
    /// Where it began to loop; the loop is cut off.
    Loop,
}

/// One answer, as it stands in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The prompt's place in its file, from 0: the order of the finished store.
    pub index: usize,
    /// The prompt's id.
    pub id: String,
    /// Where the prompt comes from, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The chat in words, the answer included.
    pub messages: Vec<Message>,
    /// How it ended.
    pub finish: Finish,
    /// The exact ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// The exact ids of the answer, a stop token included, a loop cut off.
    pub response_ids: Vec<u32>,
}

/// Everything that decides about an answer beside its prompt. All fields must be equal for a store to be continued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerSettings {
    /// The target as a person names it; not compared, since the same model may lie elsewhere.
    pub model: String,
    /// A hash that tells the target's weights from others.
    pub model_sha256: String,
    /// The tokenizer's hash.
    pub tokenizer_sha256: String,
    /// The chat template's hash.
    pub chat_template_sha256: String,
    /// The type in which the weights were used.
    pub dtype: String,
    /// 0 means greedy.
    pub temperature: f32,
    /// The seed of sampling.
    pub seed: u64,
    /// The most tokens an answer may have.
    pub max_new_tokens: usize,
    /// The tokens that end an answer.
    pub stop_ids: Vec<u32>,
    /// The rule by which loops are cut.
    pub loop_rule: Option<LoopRule>,
    /// Further settings (top-p, date of the template, …).
    #[serde(default)]
    pub further: Map<String, Value>,
}

impl AnswerSettings {
    /// The settings that differ, as `key: theirs, ours`.
    fn differences(stored: &Value, ours: &Value) -> Vec<String> {
        let empty = Map::new();
        let (stored, ours) = (stored.as_object().unwrap_or(&empty), ours.as_object().unwrap_or(&empty));
        let mut keys: Vec<&String> = stored.keys().chain(ours.keys().filter(|k| !stored.contains_key(*k))).collect();
        keys.retain(|k| *k != "model" && stored.get(*k) != ours.get(*k));
        let show = |v: Option<&Value>| v.map_or("nothing".to_owned(), Value::to_string);
        keys.into_iter()
            .map(|k| format!("{k}: {} in the store, {} now", show(stored.get(k)), show(ours.get(k))))
            .collect()
    }
}

/// Counts over the answers of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AnswerSummary {
    /// All answers.
    pub answers: usize,
    /// Answers that ended with a stop token.
    pub stopped: usize,
    /// Answers that reached the limit.
    pub at_limit: usize,
    /// Answers cut where they began to loop.
    pub looped: usize,
    /// Tokens of all answers.
    pub response_tokens: usize,
}

impl AnswerSummary {
    /// The share of answers that looped, 0 of none.
    pub fn loop_share(&self) -> f64 {
        if self.answers == 0 { 0.0 } else { self.looped as f64 / self.answers as f64 }
    }

    fn add(&mut self, answer: &Answer) {
        self.answers += 1;
        self.response_tokens += answer.response_ids.len();
        match answer.finish {
            Finish::Stop => self.stopped += 1,
            Finish::Length => self.at_limit += 1,
            Finish::Loop => self.looped += 1,
        }
    }
}
