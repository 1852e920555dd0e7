//! The real tokenizer and template of SmolLM2-135M-Instruct against answers that PyTorch and transformers made.
//!
//! Opt-in, since the model isn't in the repository:
//! `DRAFTSMAN_SMOLLM2=model.gguf DRAFTSMAN_SMOLLM2_ANSWERS=answers.jsonl cargo test --release -p draftsman-data -- --ignored smollm2`

#![expect(clippy::print_stderr, reason = "the figures are what these tests are run for")]

use std::collections::HashMap;
use std::path::PathBuf;

use draftsman_data::{
    ChatEncoder, ChatTemplate, GgufTokenizer, LoopRule, Record, RecordContent, TemplateOptions, Tokenizer, Turns,
    read_records,
};

/// As much of a GGUF reader as this test needs: the metadata, from a file that is trusted.
enum Field {
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<i64>),
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, n: usize) -> &[u8] {
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head
    }
    fn number(&mut self, n: usize) -> i64 {
        let mut bytes = [0; 8];
        bytes[..n].copy_from_slice(self.take(n));
        i64::from_le_bytes(bytes)
    }
    fn text(&mut self) -> String {
        let n = self.number(8) as usize;
        String::from_utf8(self.take(n).to_vec()).unwrap()
    }
    fn field(&mut self, kind: i64) -> Field {
        let width = |kind: i64| match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            other => panic!("GGUF type {other}"),
        };
        match kind {
            8 => Field::Text(self.text()),
            9 => {
                let (kind, n) = (self.number(4), self.number(8));
                if kind == 8 {
                    Field::Texts((0..n).map(|_| self.text()).collect())
                } else {
                    Field::Numbers((0..n).map(|_| self.number(width(kind))).collect())
                }
            }
            kind => Field::Numbers(vec![self.number(width(kind))]),
        }
    }
}

fn encoder(path: PathBuf) -> ChatEncoder {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader(&bytes[16..]);
    let n = reader.number(8);
    let mut fields: HashMap<String, Field> = HashMap::new();
    for _ in 0..n {
        let key = reader.text();
        let kind = reader.number(4);
        fields.insert(key, reader.field(kind));
    }
    let mut text = |key: &str| match fields.remove(key) {
        Some(Field::Text(t)) => t,
        _ => panic!("{key}"),
    };
    let (model, pre, template) =
        (text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"), text("tokenizer.chat_template"));
    let mut texts = |key: &str| match fields.remove(key) {
        Some(Field::Texts(t)) => t,
        _ => panic!("{key}"),
    };
    let (tokens, merges) = (texts("tokenizer.ggml.tokens"), texts("tokenizer.ggml.merges"));
    let numbers = |key: &str| match fields.get(key) {
        Some(Field::Numbers(n)) => n.clone(),
        _ => panic!("{key}"),
    };
    let id = |key: &str| Some(numbers(key)[0] as u32);
    let token_types = numbers("tokenizer.ggml.token_type").into_iter().map(|t| t as i32).collect();
    let pieces = GgufTokenizer {
        model,
        pre: Some(pre),
        tokens,
        token_types,
        merges,
        bos_id: id("tokenizer.ggml.bos_token_id"),
        eos_id: id("tokenizer.ggml.eos_token_id"),
        unk_id: None,
        add_bos: false,
    };
    let tokenizer = Tokenizer::from_gguf(pieces, "smollm2").unwrap();
    let stop = tokenizer.eos_id().unwrap();
    let options = TemplateOptions {
        bos_token: tokenizer.bos_id().and_then(|i| tokenizer.token(i)),
        eos_token: tokenizer.token(stop),
        ..TemplateOptions::default()
    };
    ChatEncoder::new(tokenizer, ChatTemplate::new(&template, "smollm2", options).unwrap(), vec![stop])
}

fn inputs() -> (ChatEncoder, Vec<Record>) {
    let variable = |name: &str| {
        PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("set {name} (see the top of this file)")))
    };
    (encoder(variable("DRAFTSMAN_SMOLLM2")), read_records(&variable("DRAFTSMAN_SMOLLM2_ANSWERS")).unwrap())
}

#[test]
#[ignore = "needs the real SmolLM2 GGUF file and its answers"]
fn smollm2_ids_are_reproduced() {
    let (encoder, records) = inputs();
    let mut canonical = 0;
    for record in &records {
        let RecordContent::Answer { prompt_ids, response_ids, messages } = &record.content else {
            panic!("{}", record.id)
        };
        assert_eq!(&encoder.prompt_ids(&messages[..1], None).unwrap(), prompt_ids, "{}: prompt", record.id);
        // What the model generated need not be the canonical spelling of its text (36 of the 396 aren't for transformers either),
        // but its text must be the message …
        let text = encoder.tokenizer().decode(response_ids, true).unwrap();
        assert_eq!(text, messages[1].content, "{}: text", record.id);
        let mut stream = encoder.tokenizer().stream(true);
        let pieces: String = response_ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        assert_eq!(pieces + &stream.finish().unwrap(), text, "{}: stream", record.id);
        // … and where it is, the ids of the chat are the ids of the answer.
        let samples = encoder.samples(messages, None, Turns::Last).unwrap();
        let mut expected = response_ids.clone();
        if expected.last() != Some(&2) {
            expected.push(2);
        }
        canonical += usize::from(samples[0].response_ids == expected);
    }
    assert!(
        canonical * 100 >= records.len() * 90,
        "only {canonical} of {} answers have the ids of their text",
        records.len()
    );
    eprintln!("{canonical} of {} answers have the ids of their text", records.len());
}

#[test]
#[ignore = "needs the real SmolLM2 GGUF file and its answers"]
fn smollm2_loops() {
    let (_, records) = inputs();
    let (mut loops, mut tokens, mut kept) = (0, 0, 0);
    for record in &records {
        let RecordContent::Answer { response_ids, .. } = &record.content else { panic!("{}", record.id) };
        let start = LoopRule::default().loop_start(response_ids);
        loops += usize::from(start.is_some());
        tokens += response_ids.len();
        kept += start.unwrap_or(response_ids.len());
    }
    eprintln!("{loops} of {} answers loop; {kept} of {tokens} tokens are before a loop", records.len());
    assert!(loops * 3 > records.len(), "{loops}");
}
