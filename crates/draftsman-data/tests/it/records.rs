use draftsman_data::records::parse_record;
use draftsman_data::{DataError, RecordContent, read_prompts, read_records};
use proptest::prelude::*;

fn write(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.jsonl");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn the_three_forms_are_read() {
    let text = concat!(
        r#"{"id": "a", "source": "s", "messages": [{"role": "user", "content": "x", "name": "n"}, {"role": "assistant", "content": [{"type": "text", "text": "y"}, {"type": "text", "text": "z"}]}], "other": 1}"#,
        "\n\n",
        r#"{"id": 7, "input_ids": [1, 2, 3], "loss_mask": [0, true, 1.0]}"#,
        "\n",
        r#"{"prompt_ids": [1], "response_ids": [2, 3], "messages": [{"role": "user", "content": null}], "finish": "eos"}"#,
    );
    let (_folder, path) = write(text);
    let records = read_records(&path).unwrap();
    let ids: Vec<_> = records.iter().map(|r| (r.id.as_str(), r.line, r.source.as_deref())).collect();
    assert_eq!(ids, [("a", 1, Some("s")), ("7", 3, None), ("line-4", 4, None)]);
    let RecordContent::Chat { messages, tools: None } = &records[0].content else { panic!("{:?}", records[0]) };
    assert_eq!((messages[0].extra["name"].as_str(), messages[1].content.as_str()), (Some("n"), "yz"));
    assert_eq!(records[1].content, RecordContent::Ids { input_ids: vec![1, 2, 3], loss_mask: vec![false, true, true] });
    let RecordContent::Answer { prompt_ids, response_ids, messages } = &records[2].content else {
        panic!("{:?}", records[2])
    };
    assert_eq!(
        (prompt_ids.as_slice(), response_ids.as_slice(), messages[0].content.as_str()),
        ([1].as_slice(), [2, 3].as_slice(), "")
    );
}

fn check_bad(line: &str, expected: &[&str]) {
    let (_folder, path) = write(&format!("{}\n{line}\n", r#"{"messages": [{"role": "user", "content": "fine"}]}"#));
    let message = read_records(&path).unwrap_err().to_string();
    for part in expected.iter().chain(&["data.jsonl:2: "]) {
        assert!(message.contains(part), "{line}: {message:?} lacks {part:?}");
    }
}

#[test]
fn malformed_lines_name_file_line_and_key() {
    check_bad("{", &["malformed JSON"]);
    check_bad(r#"{"messages": [}"#, &["malformed JSON", "column"]);
    check_bad("[1]", &["JSON object", "a list"]);
    check_bad("{}", &["messages", "input_ids", "prompt_ids"]);
    check_bad(r#"{"conversations": []}"#, &["conversations", "role/content"]);
    check_bad(r#"{"messages": []}"#, &["`messages` is empty"]);
    check_bad(r#"{"messages": {}}"#, &["`messages`", "an object"]);
    check_bad(r#"{"messages": [{"content": "x"}]}"#, &["`messages`[0]", "role"]);
    check_bad(r#"{"messages": [{"role": "user", "content": 3}]}"#, &["`messages`[0].content", "a number"]);
    check_bad(r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#, &[".content[0]", "text"]);
    check_bad(r#"{"input_ids": [1, 2], "loss_mask": [1]}"#, &["1 entries", "2 `input_ids`"]);
    check_bad(r#"{"input_ids": [1, -2], "loss_mask": [1, 1]}"#, &["`input_ids`[1]", "-2"]);
    check_bad(r#"{"input_ids": [1, 4294967296], "loss_mask": [1, 1]}"#, &["4294967296"]);
    check_bad(r#"{"input_ids": [1], "loss_mask": [2]}"#, &["`loss_mask`[0]", "2"]);
    check_bad(r#"{"input_ids": [1]}"#, &["without `loss_mask`"]);
    check_bad(r#"{"prompt_ids": [1]}"#, &["without `response_ids`"]);
    check_bad(r#"{"id": [], "messages": []}"#, &["`id`"]);
    check_bad(&"[".repeat(10_000), &["malformed JSON"]);
}

#[test]
fn all_problems_are_reported_up_to_a_cap() {
    let (_folder, path) = write(&"oops\n".repeat(50));
    let DataError::Problems { problems } = read_records(&path).unwrap_err() else { panic!() };
    assert_eq!((problems.total(), problems.shown().len()), (50, 20));
    let text = problems.to_string();
    assert!(
        text.contains("data.jsonl:20:") && !text.contains("data.jsonl:21:") && text.contains("and 30 more"),
        "{text}"
    );
}

#[test]
fn an_empty_file_and_bytes_that_are_no_text_are_refused() {
    let (_folder, path) = write("\n  \n");
    assert!(matches!(read_records(&path), Err(DataError::Empty { .. })));
    std::fs::write(&path, b"{\"id\": \"\xff\"}\n").unwrap();
    let message = read_records(&path).unwrap_err().to_string();
    assert!(message.contains(":1: not UTF-8"), "{message}");
    let missing = path.with_file_name("missing.jsonl");
    assert!(read_records(&missing).unwrap_err().to_string().contains("missing.jsonl"));
}

#[test]
fn packed_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.jsonl.gz");
    let mut out = flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::fast());
    std::io::Write::write_all(
        &mut out,
        b"{\"id\": \"packed\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n",
    )
    .unwrap();
    out.finish().unwrap();
    assert_eq!(read_records(&path).unwrap()[0].id, "packed");
    std::fs::write(&path, b"\x1f\x8bbroken").unwrap();
    assert!(read_records(&path).unwrap_err().to_string().contains("data.jsonl.gz"));
}

#[test]
fn prompts_end_before_the_answer_and_have_names_of_their_own() {
    let user = r#"{"role": "user", "content": "q"}"#;
    let answer = r#"{"role": "assistant", "content": "a"}"#;
    let (_folder, path) = write(&format!(
        "{{\"id\": \"x\", \"messages\": [{user}, {answer}]}}\n{{\"id\": \"y\", \"messages\": [{user}, {answer}, {user}]}}\n"
    ));
    let prompts = read_prompts(&path).unwrap();
    assert_eq!(prompts.iter().map(|p| p.messages.len()).collect::<Vec<_>>(), [1, 3]);
    std::fs::write(&path, format!("{{\"id\": \"x\", \"messages\": [{answer}]}}\n{{\"id\": \"y\", \"messages\": [{user}]}}\n{{\"id\": \"y\", \"messages\": [{user}]}}\n")).unwrap();
    let message = read_prompts(&path).unwrap_err().to_string();
    assert!(message.contains(":1: ") && message.contains(":3: ") && message.contains("line 2"), "{message}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_record(&bytes, 1);
    }

    /// JSON of roughly the right shape: every line is either a record whose parts fit, or an error.
    #[test]
    fn records_that_parse_are_consistent(key in prop::sample::select(vec!["input_ids", "loss_mask", "messages", "prompt_ids", "response_ids", "id"]), value in "(null|1|-1|1e99|true|\"x\"|\\{\\}|\\[\\]|\\[1,2\\]|\\[true,0\\]|\\[\\{\"role\":\"user\"\\}\\])", other in "(\\[1\\]|\\[0,1\\]|\\[\\{\"role\":\"user\",\"content\":\"a\"\\}\\]|7)", second in prop::sample::select(vec!["input_ids", "loss_mask", "messages", "response_ids"])) {
        let line = format!("{{\"{key}\": {value}, \"{second}\": {other}}}");
        match parse_record(line.as_bytes(), 3) {
            Ok(record) => {
                prop_assert!(!record.id.is_empty());
                if let RecordContent::Ids { input_ids, loss_mask } = record.content {
                    prop_assert_eq!(input_ids.len(), loss_mask.len());
                }
            }
            Err(message) => prop_assert!(!message.is_empty()),
        }
    }
}

/// The prompts in the repository: enough of them, each with its own name and text, in a fair mix from the start.
#[test]
fn the_training_prompts_are_whole() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/prompts/train.jsonl");
    let prompts = read_prompts(&path).unwrap();
    assert!(prompts.len() >= 2000, "{}", prompts.len());
    let texts: std::collections::BTreeSet<&str> = prompts.iter().map(|p| p.messages[0].content.as_str()).collect();
    assert_eq!(texts.len(), prompts.len());
    let python =
        |n: usize| prompts[..n].iter().filter(|p| p.source.as_deref().is_some_and(|s| s.starts_with("python"))).count();
    let (some, all) = (python(300) as f64 / 300.0, python(prompts.len()) as f64 / prompts.len() as f64);
    assert!((0.5..0.7).contains(&all) && (some - all).abs() < 0.05, "{some} of the first 300 are Python, {all} of all");
}
