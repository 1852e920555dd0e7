//! A byte-level BPE tokenizer trained on the text itself, and the chat template.

use anyhow::anyhow;
use draftsman_data::Tokenizer;
use serde_json::json;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as Cut, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::corpus::{Chat, Corpus, Sample, Split, TRAINING};
use super::recipe::{TOKENIZER_DOCUMENTS, VOCAB};

pub(crate) const END_OF_TEXT: &str = "<|endoftext|>";
pub(crate) const START: &str = "<|im_start|>";
pub(crate) const END: &str = "<|im_end|>";
/// No text has it: a row for the mask of a block drafter.
pub(crate) const MASK: &str = "<|mask|>";

/// Words with the space before them, single digits, runs of signs, runs of spaces (the last space goes with the word).
const PATTERN: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub(crate) const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The text of `tokenizer.json`.
pub(crate) fn train(corpus: &Corpus) -> anyhow::Result<String> {
    let failed = |error: tokenizers::Error| anyhow!("the tokenizer could not be trained: {error}");
    let cut = Cut::new(SplitPattern::Regex(PATTERN.into()), SplitDelimiterBehavior::Isolated, false).map_err(failed)?;
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![cut.into(), ByteLevel::new(false, true, false).into()])));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, false)));
    let special = [END_OF_TEXT, START, END, MASK].map(|token| AddedToken::from(token, true));
    let mut trainer: tokenizers::models::TrainerWrapper = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(VOCAB)
        .min_frequency(2)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(special.to_vec())
        .build()
        .into();
    let texts: Vec<String> = (0..TOKENIZER_DOCUMENTS)
        .map(|index| match corpus.sample(TRAINING, index, Split::Train) {
            Sample::Function(function) => function.text(),
            Sample::Chat(Chat { request, answer, .. }) => format!("{request}\n{answer}"),
        })
        .collect();
    tokenizer.train(&mut trainer, texts.iter()).map_err(failed)?;
    tokenizer.to_string(true).map_err(failed)
}

/// The text of `tokenizer_config.json`.
pub(crate) fn config() -> serde_json::Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": false,
        "bos_token": null,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "mask_token": MASK,
        "clean_up_tokenization_spaces": false,
        "model_max_length": super::recipe::MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    })
}

/// Ids of a document, and the index from which on they are learnt.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    pub(crate) learnt_from: usize,
}

/// Encodes samples as the trained model will meet them.
pub(crate) struct Encoder {
    pub(crate) tokenizer: Tokenizer,
    end_of_text: u32,
    end: u32,
}

impl Encoder {
    pub(crate) fn new(json: &str) -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::from_json(json.as_bytes(), "tokenizer.json")?;
        let id = |token: &str| tokenizer.id(token).ok_or_else(|| anyhow!("the tokenizer has no {token}"));
        let (end_of_text, end) = (id(END_OF_TEXT)?, id(END)?);
        Ok(Self { tokenizer, end_of_text, end })
    }

    /// The ids that end an answer.
    pub(crate) fn stop_ids(&self) -> [u32; 2] {
        [self.end, self.end_of_text]
    }

    /// Ids of a request, up to where its answer begins.
    pub(crate) fn prompt(&self, request: &str) -> anyhow::Result<Vec<u32>> {
        Ok(self.tokenizer.encode(&format!("{START}user\n{request}{END}\n{START}assistant\n"))?)
    }

    /// A function is learnt from its second token on, a chat from its answer's first.
    pub(crate) fn encode(&self, sample: &Sample) -> anyhow::Result<Encoded> {
        match sample {
            Sample::Function(function) => {
                let mut ids = self.tokenizer.encode(&(function.text() + "\n"))?;
                ids.push(self.end_of_text);
                Ok(Encoded { ids, learnt_from: 1 })
            }
            Sample::Chat(chat) => {
                let mut ids = self.prompt(&chat.request)?;
                let learnt_from = ids.len();
                ids.extend(self.tokenizer.encode(&chat.answer)?);
                ids.push(self.end);
                Ok(Encoded { ids, learnt_from })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny_target::corpus::{Corpus, REQUESTS};

    fn committed() -> Encoder {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tiny-target/tokenizer.json");
        Encoder::new(&std::fs::read_to_string(path).expect("the committed tokenizer")).expect("a tokenizer")
    }

    #[test]
    fn the_committed_tokenizer_gives_every_text_back() {
        let encoder = committed();
        let mask = encoder.tokenizer.id(MASK).expect("a mask token");
        assert_eq!(encoder.tokenizer.vocab_size(), VOCAB);
        let corpus = Corpus::new(9);
        for index in 0..300 {
            let sample = corpus.sample(TRAINING, index, Split::Train);
            let Encoded { ids, learnt_from } = encoder.encode(&sample).expect("ids");
            assert!(!ids.contains(&mask), "a text holds the mask's id");
            let (from, expected) = match &sample {
                Sample::Function(function) => (0, function.text() + "\n"),
                Sample::Chat(chat) => (learnt_from, chat.answer.clone()),
            };
            assert_eq!(encoder.tokenizer.decode(&ids[from..ids.len() - 1], false).expect("text"), expected);
        }
    }

    #[test]
    fn the_chat_template_renders_what_was_trained() {
        let encoder = committed();
        let template = draftsman_data::ChatTemplate::new(CHAT_TEMPLATE, "template", Default::default()).expect("valid");
        let chat = Corpus::new(9).chat(REQUESTS, 0, Split::HeldOut);
        let text = template.render(&[draftsman_data::Message::user(&chat.request)], None, true).expect("text");
        assert_eq!(encoder.tokenizer.encode(&text).expect("ids"), encoder.prompt(&chat.request).expect("ids"));
    }
}
