//! Reading suites.

use std::fs;
use std::io::Write;

use draftsman_eval::{PromptSource, Selection, humaneval_prompt, load_suite};

fn write(text: &[u8], gzip: bool) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    if gzip {
        let mut encoder = flate2::write::GzEncoder::new(&mut file, flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap();
    } else {
        file.write_all(text).unwrap();
    }
    file
}

const MIXED: &str = r#"{"id": "chat", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "answer"}]}

{"prompt_ids": [5, 6, 7], "messages": [], "response_ids": [1]}
{"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "", "test": ""}
{"id": 17, "prompt_ids": [1]}
"#;

#[test]
fn the_three_kinds_of_line_are_read() {
    for gzip in [false, true] {
        let suite = load_suite(write(MIXED.as_bytes(), gzip).path(), &Selection::default()).unwrap();
        assert_eq!(suite.available, 4);
        let ids: Vec<&str> = suite.prompts.iter().map(|p| p.id.as_str()).collect();
        assert_eq!(ids, ["chat", "line 3", "HumanEval/0", "17"]);
        let PromptSource::Messages { messages, .. } = &suite.prompts[0].source else { panic!("messages") };
        let roles: Vec<&str> = messages.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["system", "user"], "the answer is not part of the prompt");
        assert_eq!(suite.prompts[1].source, PromptSource::Ids(vec![5, 6, 7]));
        let PromptSource::Messages { messages, .. } = &suite.prompts[2].source else { panic!("messages") };
        assert_eq!(messages[0].content, humaneval_prompt("def f():\n"));
        assert!(messages[0].content.ends_with("```python\ndef f():\n\n```"));
        assert_eq!(suite.prompts[3].line, 5);
    }
}

#[test]
fn published_suites_are_read_in_their_own_format() {
    let boxed = "\nPlease reason step by step, and put your final answer within \\boxed{}.";
    for (line, id, expected) in [
        (r#"{"question": "2+2?", "answer": "4 #### 4"}"#, "line 1", format!("2+2?{boxed}")),
        (
            r#"{"problem": "x?", "solution": "s", "answer": "1", "unique_id": "test/algebra/1.json"}"#,
            "test/algebra/1.json",
            format!("x?{boxed}"),
        ),
        (r#"{"id": 60, "problem": "y?", "answer": "204"}"#, "60", format!("y?{boxed}")),
        (r#"{"instruction": "Say hi.", "input": "", "output": "hi"}"#, "line 1", "Say hi.".to_owned()),
        (r#"{"instruction": "Sort.", "input": "3 1", "output": "1 3"}"#, "line 1", "Sort.\n\nInput:\n3 1".to_owned()),
        (r#"{"instruction": "Why?", "dataset": "helpful_base", "generator": "g"}"#, "line 1", "Why?".to_owned()),
        (
            r#"{"task_id": 2, "prompt": "Write f.", "code": "c", "test_list": ["assert f()"]}"#,
            "2",
            "Write f.".to_owned(),
        ),
    ] {
        let suite = load_suite(write(line.as_bytes(), false).path(), &Selection::default()).unwrap();
        let PromptSource::Messages { messages, .. } = &suite.prompts[0].source else { panic!("messages") };
        assert_eq!((suite.prompts[0].id.as_str(), messages.len()), (id, 1), "{line}");
        assert_eq!(messages[0].content, expected, "{line}");
    }
    for (line, problem) in [
        (r#"{"question": 4, "answer": "4"}"#, "`question` is not text"),
        (r#"{"instruction": " "}"#, "`instruction` is not text"),
    ] {
        let error = load_suite(write(line.as_bytes(), false).path(), &Selection::default()).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains(":1:"), "{error}");
    }
}

#[test]
fn a_conversation_has_its_questions_in_order() {
    let own =
        r#"{"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite.", "Again."], "reference": []}"#;
    let copy = r#"{"prompt_id": 81, "category": "writing", "prompt": ["Write.", "Rewrite.", "Again."]}"#;
    for line in [own, copy] {
        let suite = load_suite(write(line.as_bytes(), false).path(), &Selection::default()).unwrap();
        let prompt = &suite.prompts[0];
        assert_eq!((prompt.id.as_str(), prompt.category.as_deref()), ("81", Some("writing")));
        let PromptSource::Messages { messages, .. } = &prompt.source else { panic!("messages") };
        assert_eq!((messages.len(), messages[0].content.as_str()), (1, "Write."));
        assert_eq!(prompt.follow_ups, ["Rewrite.", "Again."]);
    }
    let one = load_suite(write(br#"{"turns": ["x"]}"#, false).path(), &Selection::default()).unwrap();
    assert!(one.prompts[0].follow_ups.is_empty());
}

#[test]
fn a_suite_is_named_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for (file, name) in
        [("HumanEval.jsonl.gz", "humaneval"), ("mt_bench.json", "mt_bench"), ("own.v2.jsonl", "own.v2"), ("X", "x")]
    {
        let path = folder.path().join(file);
        fs::write(&path, "{\"prompt_ids\": [1]}").unwrap();
        assert_eq!(load_suite(&path, &Selection::default()).unwrap().name, name);
    }
}

#[test]
fn selection_is_a_function_of_limit_and_seed() {
    let text: String = (0..50).map(|i| format!("{{\"id\": \"{i}\", \"prompt_ids\": [{i}]}}\n")).collect();
    let file = write(text.as_bytes(), false);
    let pick = |limit, seed| {
        let suite = load_suite(file.path(), &Selection { limit, seed }).unwrap();
        assert_eq!(suite.available, 50);
        suite.prompts.into_iter().map(|p| p.id).collect::<Vec<_>>()
    };
    assert_eq!(pick(Some(3), None), ["0", "1", "2"]);
    assert_eq!(pick(Some(99), None).len(), 50);
    let shuffled = pick(Some(10), Some(1));
    assert_eq!(shuffled, pick(Some(10), Some(1)));
    assert_eq!(shuffled, pick(None, Some(1))[..10]);
    assert_ne!(shuffled, pick(Some(10), Some(2)));
    assert_ne!(shuffled, pick(Some(10), None));
}

#[test]
fn bad_lines_are_named_by_file_and_line() {
    let check = |text: &[u8], line: Option<usize>, expected: &str| {
        let file = write(text, false);
        let error = load_suite(file.path(), &Selection::default()).expect_err(expected).to_string();
        let place = match line {
            Some(line) => format!("{}:{line}: ", file.path().display()),
            None => format!("{}: ", file.path().display()),
        };
        assert!(error.starts_with(&place) && error.contains(expected), "`{error}` should say `{place}…{expected}`");
        assert!(error.contains("hint: "), "{error}");
    };
    check(b"", None, "holds no prompt");
    check(b"\n\n", None, "holds no prompt");
    check(b"{\"prompt_ids\": [1]}\n{\"prompt_ids\": [1}\n", Some(2), "not JSON");
    check(b"[1]", Some(1), "not a JSON object");
    check(b"\n{\"prompt\": \"x\"}", Some(2), "neither `messages` nor `prompt_ids`");
    check(b"{\"prompt_ids\": []}", Some(1), "`prompt_ids` is empty");
    check(b"{\"prompt_ids\": [1, -2]}", Some(1), "`prompt_ids[1]` is -2");
    check(b"{\"prompt_ids\": [1, 4294967296]}", Some(1), "`prompt_ids[1]`");
    check(b"{\"prompt_ids\": \"1\"}", Some(1), "not a list");
    check(b"{\"messages\": []}", Some(1), "`messages` is empty");
    check(b"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}", Some(1), "nothing to answer");
    check(b"{\"messages\": [{\"content\": \"x\"}]}", Some(1), "`messages`[0]: no `role`");
    check(b"{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", Some(1), "`messages`[0].content[0]");
    check(b"{\"turns\": []}", Some(1), "`turns` is not a list of texts");
    check(b"{\"turns\": \"x\"}", Some(1), "`turns` is not a list of texts");
    check(b"{\"turns\": [\"x\", \" \"]}", Some(1), "`turns` is not a list of texts");
    check(b"{\"turns\": [\"x\", 4]}", Some(1), "`turns` is not a list of texts");
    check(b"{\"id\": [], \"prompt_ids\": [1]}", Some(1), "`id` is neither");
    check(b"{\"id\": 1, \"prompt_ids\": [1]}\n{\"id\": \"1\", \"prompt_ids\": [1]}", Some(2), "`1` occurs twice");
    check(b"{\"prompt_ids\": [1], \"x\": \"\xff\"}", Some(1), "not UTF-8");
    let missing = load_suite(std::path::Path::new("no/such/file.jsonl"), &Selection::default()).unwrap_err();
    assert!(missing.to_string().starts_with("no/such/file.jsonl: "));
}

#[test]
fn a_truncated_gzip_is_an_error() {
    let file = write(MIXED.as_bytes(), true);
    let bytes = fs::read(file.path()).unwrap();
    fs::write(file.path(), &bytes[..bytes.len() / 2]).unwrap();
    let error = load_suite(file.path(), &Selection::default()).unwrap_err().to_string();
    assert!(error.contains(&file.path().display().to_string()), "{error}");
}

#[test]
fn a_limit_of_zero_is_refused() {
    let file = write(MIXED.as_bytes(), false);
    let error = load_suite(file.path(), &Selection { limit: Some(0), seed: None }).unwrap_err().to_string();
    assert!(error.contains("`limit` is 0"), "{error}");
}
