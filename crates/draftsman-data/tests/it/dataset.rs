use std::path::Path;

use draftsman_data::records::parse_record;
use draftsman_data::{Dataset, Document, EncodeOptions, Record, TooLong, Turns, build_dataset};
use proptest::prelude::*;

use crate::tiny::encoder;

fn record(line: &str) -> Record {
    parse_record(line.as_bytes(), 4).unwrap()
}

fn build(line: &str, options: &EncodeOptions) -> Result<Dataset, String> {
    build_dataset(Path::new("data.jsonl"), vec![record(line)], Some(&encoder()), options).map_err(|e| e.to_string())
}

const CHAT: &str = r#"{"id": "c", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "a<|end|>b"}]}"#;

/// The supervised text and the whole text of every document.
fn check_chat(turns: Turns, expected: &[(&str, &str)]) {
    let dataset = build(CHAT, &EncodeOptions { turns, ..EncodeOptions::new(200) }).unwrap();
    let tokenizer = crate::tiny::tokenizer();
    let got: Vec<(String, String)> = dataset
        .documents
        .iter()
        .map(|d| {
            let supervised: Vec<u32> = d.ids.iter().zip(&d.loss_mask).filter(|(_, m)| **m).map(|(id, _)| *id).collect();
            (tokenizer.decode(&supervised, false).unwrap(), tokenizer.decode(&d.ids, false).unwrap())
        })
        .collect();
    let got: Vec<(&str, &str)> = got.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(got, expected);
}

#[test]
fn the_assistants_tokens_are_supervised_up_to_the_stop_token() {
    let first = ("hello<|end|>", "<|start|>user\nq<|end|>\n<|start|>assistant\nhello<|end|>");
    let last = (
        "a<|end|>",
        "<|start|>user\nq<|end|>\n<|start|>assistant\nhello<|end|>\n<|start|>user\nr<|end|>\n<|start|>assistant\na<|end|>",
    );
    check_chat(Turns::Each, &[first, last]);
    check_chat(Turns::Last, &[last]);
}

#[test]
fn a_prompt_has_the_ids_that_its_sample_starts_with() {
    let encoder = encoder();
    let draftsman_data::RecordContent::Chat { messages, .. } = record(CHAT).content else { panic!() };
    let prompt = encoder.prompt_ids(&messages[..1], None).unwrap();
    let samples = encoder.samples(&messages, None, Turns::Each).unwrap();
    assert_eq!(samples[0].prompt_ids, prompt);
    assert_eq!(samples.iter().map(|s| s.turn).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn given_ids_are_kept_exactly() {
    let dataset = build(r#"{"prompt_ids": [1, 9, 9], "response_ids": [5, 2]}"#, &EncodeOptions::new(10)).unwrap();
    let expected = Document {
        id: "line-4".into(),
        source: None,
        ids: vec![1, 9, 9, 5, 2],
        loss_mask: vec![false, false, false, true, true],
    };
    assert_eq!((dataset.documents, dataset.loops_cut), (vec![expected], 0));
    let dataset =
        build(r#"{"id": "m", "source": "s", "input_ids": [3, 4, 5], "loss_mask": [0, 1, 0]}"#, &EncodeOptions::new(3))
            .unwrap();
    assert_eq!(
        dataset.documents,
        [Document {
            id: "m".into(),
            source: Some("s".into()),
            ids: vec![3, 4, 5],
            loss_mask: vec![false, true, false]
        }]
    );
    assert_eq!((dataset.tokens(), dataset.supervised()), (3, 1));
}

#[test]
fn loops_are_cut() {
    let response: Vec<u32> = (100..110).chain((0..60).map(|i| i % 10)).collect();
    let line = format!("{{\"prompt_ids\": [1], \"response_ids\": {response:?}}}");
    let dataset = build(&line, &EncodeOptions::new(100)).unwrap();
    assert_eq!((dataset.documents[0].ids.len(), dataset.loops_cut, dataset.loop_tokens_cut), (21, 1, 50));
    let kept = build(&line, &EncodeOptions { loop_rule: None, ..EncodeOptions::new(100) }).unwrap();
    assert_eq!((kept.documents[0].ids.len(), kept.loops_cut), (71, 0));
}

fn check_refused(line: &str, options: &EncodeOptions, expected: &[&str]) {
    let message = build(line, options).unwrap_err();
    for part in expected.iter().chain(&["data.jsonl:4 ("]) {
        assert!(message.contains(part), "{line}: {message:?} lacks {part:?}");
    }
}

#[test]
fn bad_records_are_refused() {
    let options = EncodeOptions { mask_token_id: Some(7), vocab_size: Some(300), ..EncodeOptions::new(6) };
    check_refused(r#"{"input_ids": [1, 2], "loss_mask": [0, 0]}"#, &options, &["no supervised token"]);
    check_refused(
        r#"{"messages": [{"role": "user", "content": "x"}]}"#,
        &options,
        &["no supervised token", "regenerate"],
    );
    check_refused(r#"{"prompt_ids": [1], "response_ids": []}"#, &options, &["no supervised token"]);
    check_refused(r#"{"input_ids": [1, 7], "loss_mask": [1, 1]}"#, &options, &["token 1", "mask_token_id 7"]);
    check_refused(
        r#"{"input_ids": [1, 300], "loss_mask": [1, 1]}"#,
        &options,
        &["token 1 is 300", "vocabulary of 300"],
    );
    check_refused(
        r#"{"input_ids": [1,1,1,1,1,1,1], "loss_mask": [0,0,0,0,0,1,1]}"#,
        &options,
        &["7 tokens", "context of 6"],
    );
    let cut = EncodeOptions { too_long: TooLong::Cut, ..options };
    let dataset = build(r#"{"input_ids": [1,1,1,1,1,1,1], "loss_mask": [0,0,0,0,0,1,1]}"#, &cut).unwrap();
    assert_eq!((dataset.documents[0].ids.len(), dataset.documents[0].supervised(), dataset.shortened), (6, 1, 1));
    check_refused(
        r#"{"input_ids": [1,1,1,1,1,1,1], "loss_mask": [0,0,0,0,0,0,1]}"#,
        &cut,
        &["no supervised token is left"],
    );
    let chat = build_dataset(Path::new("data.jsonl"), vec![record(CHAT)], None, &EncodeOptions::new(99))
        .unwrap_err()
        .to_string();
    assert!(chat.contains("tokenizer and chat template"), "{chat}");
}

#[test]
fn a_template_that_hides_the_boundary_is_an_error() {
    use draftsman_data::{ChatEncoder, ChatTemplate, TemplateOptions};
    let template = ChatTemplate::new(
        "{% if add_generation_prompt %}prompt{% else %}chat{% endif %}",
        "odd",
        TemplateOptions::default(),
    )
    .unwrap();
    let encoder = ChatEncoder::new(crate::tiny::tokenizer(), template, vec![2]);
    let message = build_dataset(Path::new("d"), vec![record(CHAT)], Some(&encoder), &EncodeOptions::new(99))
        .unwrap_err()
        .to_string();
    assert!(message.contains("odd") && message.contains("regenerate"), "{message}");
}

fn documents(ids: &[String]) -> Dataset {
    let documents =
        ids.iter().map(|id| Document { id: id.clone(), source: None, ids: vec![1], loss_mask: vec![true] }).collect();
    Dataset { documents, ..Dataset::default() }
}

#[test]
fn the_split_is_the_same_everywhere() {
    let ids: Vec<String> = (0..200).map(|i| format!("r{i}")).collect();
    let split = documents(&ids).split(0.1, 3);
    let names: Vec<&str> = split.validation.iter().map(|d| d.id.as_str()).collect();
    // From Python: sha256(pack("<Q", 3) + id), first 8 bytes big-endian, below 0.1 * 2**64.
    assert_eq!(names, SPLIT_OF_PYTHON);
    assert_eq!(split.train.len() + split.validation.len(), 200);
}

const SPLIT_OF_PYTHON: &[&str] = &[
    "r1", "r4", "r14", "r27", "r28", "r29", "r34", "r70", "r74", "r76", "r77", "r80", "r89", "r90", "r106", "r111",
    "r116", "r144", "r145", "r156", "r158", "r184", "r186", "r187", "r188", "r191",
];

proptest! {
    #[test]
    fn a_record_stays_on_its_side(n in 2usize..60, share in 0.0f64..=1.0, seed: u64) {
        let ids: Vec<String> = (0..n).map(|i| format!("id-{}", i / 2)).collect();
        let split = documents(&ids).split(share, seed);
        let names = |d: &[Document]| d.iter().map(|d| d.id.clone()).collect::<std::collections::BTreeSet<_>>();
        let (train, validation) = (names(&split.train), names(&split.validation));
        prop_assert!(train.is_disjoint(&validation));
        prop_assert_eq!(split.train.len() + split.validation.len(), n);
        if n > 2 && share > 0.0 && share < 1.0 {
            prop_assert!(!train.is_empty() && !validation.is_empty());
        }
        // Order plays no part.
        let reversed: Vec<String> = ids.iter().rev().cloned().collect();
        prop_assert_eq!(names(&documents(&reversed).split(share, seed).validation), validation);
    }
}
