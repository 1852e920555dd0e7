//! Tests of the data crate, one binary.

mod answers;
mod chat_template;
mod dataset;
mod loop_rule;
mod records;
mod smollm2;
mod tiny;
mod tokenizer;
