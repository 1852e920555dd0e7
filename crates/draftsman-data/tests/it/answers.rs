use std::fs;
use std::path::{Path, PathBuf};

use draftsman_data::{
    Answer, AnswerSettings, AnswerStore, DataError, EncodeOptions, Finish, Message, Prompt, load_dataset,
};
use proptest::prelude::*;

fn settings() -> AnswerSettings {
    AnswerSettings {
        model: "tiny".into(),
        model_sha256: "m".into(),
        tokenizer_sha256: "t".into(),
        chat_template_sha256: "c".into(),
        dtype: "f32".into(),
        temperature: 0.7,
        seed: 1,
        max_new_tokens: 9,
        stop_ids: vec![2],
        loop_rule: Some(draftsman_data::LoopRule::default()),
        further: serde_json::Map::new(),
    }
}

fn answer(index: usize) -> Answer {
    let finish = [Finish::Stop, Finish::Length, Finish::Loop][index % 3];
    Answer {
        index,
        id: format!("p{index}"),
        source: None,
        messages: vec![Message::user("q"), Message::new("assistant", "é\n\"a\"")],
        finish,
        prompt_ids: vec![1, index as u32],
        response_ids: vec![5, 2],
    }
}

fn prompts(n: usize) -> Vec<Prompt> {
    (0..n)
        .map(|i| Prompt { id: format!("p{i}"), source: None, messages: vec![Message::user("q")], tools: None })
        .collect()
}

fn missing(store: &AnswerStore, prompts: &[Prompt]) -> Vec<usize> {
    let with_ids: Vec<_> = prompts.iter().enumerate().map(|(i, p)| (p, vec![1, i as u32])).collect();
    store.missing(&with_ids).unwrap().into_iter().map(|(i, _)| i).collect()
}

fn part(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.part", path.display()))
}

#[test]
fn a_finished_store_is_in_the_order_of_its_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("answers.jsonl");
    let mut store = AnswerStore::open(&path, &settings()).unwrap();
    assert!(store.is_empty());
    for index in [2, 0, 1] {
        store.append(answer(index)).unwrap();
    }
    let message = store.append(answer(1)).unwrap_err().to_string();
    assert!(message.contains("p1"), "{message}");
    let summary = store.finish().unwrap();
    assert_eq!(
        (summary.answers, summary.stopped, summary.at_limit, summary.looped, summary.response_tokens),
        (3, 1, 1, 1, 6)
    );
    assert!((summary.loop_share() - 1.0 / 3.0).abs() < 1e-12);
    let text = fs::read_to_string(&path).unwrap();
    let indices: Vec<u64> = text
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2]);
    assert!(!part(&path).exists());
    // The store is training data as it stands.
    assert_eq!(load_dataset(&path, None, &EncodeOptions::new(9)).unwrap().documents.len(), 3);

    // More prompts: the store goes on where it stood.
    let mut store = AnswerStore::open(&path, &settings()).unwrap();
    assert_eq!(missing(&store, &prompts(5)), [3, 4]);
    store.append(answer(4)).unwrap();
    drop(store);
    let store = AnswerStore::open(&path, &settings()).unwrap();
    assert_eq!((store.len(), missing(&store, &prompts(5))), (4, vec![3]));
    assert_eq!(store.finish().unwrap().answers, 4);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 4);
}

#[test]
fn settings_must_match() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("answers.jsonl");
    drop(AnswerStore::open(&path, &settings()).unwrap());
    let check =
        |settings: AnswerSettings, expected: Option<&[&str]>| match (AnswerStore::open(&path, &settings), expected) {
            (Ok(_), None) => {}
            (Err(e), Some(parts)) => {
                let message = e.to_string();
                parts.iter().for_each(|p| assert!(message.contains(p), "{message:?} lacks {p:?}"));
            }
            (got, expected) => panic!("{got:?}, expected {expected:?}"),
        };
    check(settings(), None);
    check(AnswerSettings { model: "elsewhere/tiny".into(), ..settings() }, None);
    check(AnswerSettings { seed: 5, ..settings() }, Some(&["answers.jsonl", "seed: 1 in the store, 5 now"]));
    check(
        AnswerSettings { temperature: 0.0, model_sha256: "n".into(), ..settings() },
        Some(&["temperature: 0.7", "model_sha256"]),
    );
    check(AnswerSettings { loop_rule: None, ..settings() }, Some(&["loop_rule"]));
    let mut further = settings();
    further.further.insert("top_p".into(), 0.9.into());
    check(further, Some(&["further", "top_p"]));
}

#[test]
fn a_file_of_unknown_making_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.jsonl");
    fs::write(&path, "my data\n").unwrap();
    let message = AnswerStore::open(&path, &settings()).unwrap_err().to_string();
    assert!(message.contains("mine.jsonl") && message.contains("settings.json"), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "my data\n");
}

#[test]
fn a_store_in_use_is_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("answers.jsonl");
    let store = AnswerStore::open(&path, &settings()).unwrap();
    assert!(matches!(AnswerStore::open(&path, &settings()), Err(DataError::Locked { .. })));
    drop(store);
    AnswerStore::open(&path, &settings()).unwrap();
}

#[test]
fn a_changed_prompt_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = AnswerStore::open(&folder.path().join("a.jsonl"), &settings()).unwrap();
    store.append(answer(0)).unwrap();
    let prompts = prompts(1);
    let message = store.missing(&[(&prompts[0], vec![1, 77])]).unwrap_err().to_string();
    assert!(message.contains("p0") && message.contains("changed"), "{message}");
}

#[test]
fn damage_in_the_middle_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let mut store = AnswerStore::open(&path, &settings()).unwrap();
    (0..3).for_each(|i| store.append(answer(i)).unwrap());
    drop(store);
    let text = fs::read_to_string(part(&path)).unwrap();
    fs::write(part(&path), text.replacen("\"p1\"", "p1", 1)).unwrap();
    let message = AnswerStore::open(&path, &settings()).unwrap_err().to_string();
    assert!(message.contains("a.jsonl.part") && message.contains("line 2"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Cut the part file anywhere, as a kill would: every answer whose line is whole is there, the torn one is asked for again,
    /// and the store ends up as if nothing had happened.
    #[test]
    fn a_kill_at_any_byte_loses_no_finished_answer(n in 1usize..5, at in 0.0f64..1.0, junk: bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut store = AnswerStore::open(&path, &settings()).unwrap();
        (0..n).for_each(|i| store.append(answer(i)).unwrap());
        drop(store);
        let mut bytes = fs::read(part(&path)).unwrap();
        let whole = bytes.clone();
        bytes.truncate((at * whole.len() as f64) as usize);
        let lines = bytes.iter().filter(|b| **b == b'\n').count();
        if junk {
            // Some file systems leave zeros behind after a power cut.
            bytes.extend([0; 7]);
        }
        fs::write(part(&path), &bytes).unwrap();
        let mut store = AnswerStore::open(&path, &settings()).unwrap();
        let torn = bytes.len() - bytes.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
        prop_assert_eq!(store.dropped_bytes(), torn as u64);
        prop_assert_eq!(missing(&store, &prompts(n)), (lines..n).collect::<Vec<_>>());
        (lines..n).for_each(|i| store.append(answer(i)).unwrap());
        prop_assert_eq!(fs::read(part(&path)).unwrap(), whole.clone());
        store.finish().unwrap();
        prop_assert_eq!(fs::read(&path).unwrap(), whole);
    }
}
