//! From chat records to token ids with a loss mask, and back to files.
//!
//! * [`records`] reads JSONL: chats, ready-made ids, and answers whose exact ids were kept.
//! * [`chat_template`] renders a chat as the target expects it, [`tokenizer`] turns the text into ids.
//! * [`loss_mask`] says which tokens are the assistant's, [`dataset`] makes documents of all that.
//! * [`answers`] is the resumable store behind `data regenerate`, [`loop_rule`] says where an answer starts to loop.
//!
//! This crate knows nothing of models and uses no tensors. It reads and writes only the files that it is given.

pub mod answers;
pub mod chat_template;
pub mod dataset;
mod error;
mod files;
pub mod loop_rule;
pub mod loss_mask;
pub mod records;
pub mod tokenizer;

pub use answers::{Answer, AnswerSettings, AnswerStore, AnswerSummary, Finish};
pub use chat_template::{ChatTemplate, TemplateDate, TemplateOptions};
pub use dataset::{Dataset, Document, EncodeOptions, Split, TooLong, build_dataset, load_dataset};
pub use error::{DataError, ProblemList};
pub use loop_rule::{LoopDetector, LoopRule};
pub use loss_mask::{ChatEncoder, ChatSample, Turns};
pub use records::{Message, Prompt, Record, RecordContent, read_prompts, read_records};
pub use tokenizer::{GgufTokenizer, TextStream, Tokenizer};
