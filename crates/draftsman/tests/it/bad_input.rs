//! Bad input: one clear error with file and key, exit code 2, nothing written.

use std::fs;
use std::path::Path;

use crate::run::{draftsman, root, stderr};

/// Runs the program on bad input and demands exit code 2, every expected word in the error, and no new file.
fn check(scratch: &Path, arguments: &[&str], expected: &[&str]) {
    let before = listing(scratch);
    let output = draftsman(arguments);
    let text = stderr(&output, scratch);
    assert_eq!(output.status.code(), Some(2), "{arguments:?} ended with {:?}:\n{text}", output.status);
    for word in expected {
        assert!(text.contains(word), "{arguments:?} does not say {word:?}:\n{text}");
    }
    assert_eq!(text.matches("error:").count(), 1, "one error is one error:\n{text}");
    assert_eq!(listing(scratch), before, "{arguments:?} wrote something");
}

fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("scratch folder")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A copy of the tiny llama with one file changed.
fn broken_llama(scratch: &Path, name: &str, change: impl Fn(&Path)) -> String {
    let folder = scratch.join(name);
    fs::create_dir(&folder).expect("folder");
    for entry in fs::read_dir(root().join("testdata/llama_plain")).expect("testdata").flatten() {
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("copy");
    }
    change(&folder);
    folder.display().to_string()
}

#[test]
fn models() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let ids = scratch.join("ids.json");
    fs::write(&ids, "[1, 2, 3]").expect("ids");
    let ids = ids.display().to_string();

    let truncated = broken_llama(scratch, "truncated", |folder| {
        let path = folder.join("model-00001-of-00002.safetensors");
        let bytes = fs::read(&path).expect("read");
        fs::write(path, &bytes[..bytes.len() / 2]).expect("write");
    });
    check(scratch, &["generate", "-t", &truncated, "--prompt-ids", &ids], &["model-00001-of-00002.safetensors"]);

    let gguf = scratch.join("short.gguf");
    let bytes = fs::read(root().join("testdata/llama_scaled.gguf")).expect("gguf");
    fs::write(&gguf, &bytes[..bytes.len() / 3]).expect("write");
    check(scratch, &["generate", "-t", &gguf.display().to_string(), "--prompt-ids", &ids], &["short.gguf"]);

    let wrong = broken_llama(scratch, "wrong", |folder| {
        let path = folder.join("config.json");
        let text = fs::read_to_string(&path).expect("read");
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let old = json["intermediate_size"].as_u64().expect("a size");
        json["intermediate_size"] = (old + 8).into();
        fs::write(path, json.to_string()).expect("write");
    });
    check(
        scratch,
        &["generate", "-t", &wrong, "--prompt-ids", &ids],
        &["mlp.gate_proj.weight", "mlp.down_proj.weight", "model-0000"],
    );

    check(scratch, &["inspect", "no/such/model"], &["no/such/model", "hint:"]);
    check(
        scratch,
        &["generate", "-t", "testdata/llama_plain", "-d", "testdata/llama_plain", "--prompt-ids", &ids],
        &["testdata/llama_plain"],
    );
}

#[test]
fn prompts() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let write = |name: &str, text: &str| {
        let path = scratch.join(name);
        fs::write(&path, text).expect("write");
        path.display().to_string()
    };
    let generate = |ids: &str, expected: &[&str]| {
        check(scratch, &["generate", "-t", "testdata/llama_plain", "--prompt-ids", ids], expected);
    };
    generate(&write("words.json", "[\"a\"]"), &["words.json"]);
    generate(&write("large.json", "[999999999]"), &["999999999"]);
    generate(&write("long.json", &format!("{:?}", vec![1; 4096])), &["4096"]);
    generate(&write("empty.json", "[]"), &["empty"]);
}

#[test]
fn recipes() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let recipe = scratch.join("r.toml");
    fs::write(&recipe, "[train]\nlearning_rat = 1e-3\n").expect("write");
    let recipe = recipe.display().to_string();
    let data = scratch.join("d.jsonl");
    fs::write(&data, "{\"input_ids\": [1, 2], \"loss_mask\": [0, 1]}\n").expect("write");
    let data = data.display().to_string();
    let out = scratch.join("run").display().to_string();
    let train = |recipe: &str, more: &[&str], expected: &[&str]| {
        let mut arguments =
            vec!["train", "-t", "testdata/llama_plain", "--recipe", recipe, "--data", &data, "--out", &out];
        arguments.extend(more);
        check(scratch, &arguments, expected);
    };
    train(&recipe, &[], &["r.toml", "learning_rat", "learning_rate"]);
    train("recipes/smollm2.toml", &["train.stepss=3"], &["train.stepss", "steps"]);
    train("recipes/smollm2.toml", &["train.steps=many"], &["train.steps"]);
}
