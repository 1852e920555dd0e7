//! What people read, as snapshots: a change of the words is a change to look at.

use std::fs;

use crate::run::{draftsman, stderr};

/// stdout and stderr of a run, as one text.
fn shown(arguments: &[&str]) -> String {
    let scratch = tempfile::tempdir().expect("scratch");
    let output = draftsman(arguments);
    format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        output.status.code().expect("an exit code"),
        String::from_utf8_lossy(&output.stdout),
        stderr(&output, scratch.path())
    )
}

#[test]
fn inspect() {
    for name in ["llama_plain", "llama_scaled.gguf", "drafter_sliding"] {
        insta::assert_snapshot!(format!("inspect_{name}"), shown(&["inspect", &format!("testdata/{name}")]));
    }
    insta::assert_snapshot!("inspect_json", shown(&["--json", "inspect", "testdata/llama_plain"]));
}

#[test]
fn help() {
    insta::assert_snapshot!("help", shown(&["--help"]));
}

#[test]
fn errors() {
    let scratch = tempfile::tempdir().expect("scratch");
    let ids = scratch.path().join("ids.json");
    fs::write(&ids, "[1, 2, 3]").expect("write");
    let ids = ids.display().to_string();
    insta::assert_snapshot!(
        "drafter_of_another_target",
        shown(&["generate", "-t", "testdata/llama_plain", "-d", "testdata/drafter_full", "--prompt-ids", &ids])
    );
    insta::assert_snapshot!(
        "typo_in_an_override",
        shown(&[
            "train",
            "-t",
            "testdata/llama_plain",
            "-r",
            "recipes/smollm2.toml",
            "-d",
            "d",
            "-o",
            "o",
            "train.stepps=3"
        ])
    );
}

#[test]
fn speculative_generation_is_machine_readable() {
    let scratch = tempfile::tempdir().expect("scratch");
    let ids = scratch.path().join("ids.json");
    fs::write(&ids, "[1, 9, 4, 9, 4, 9]").expect("write");
    let ids = ids.display().to_string();
    insta::assert_snapshot!(
        "generate_ngram_json",
        shown(&[
            "generate",
            "-t",
            "testdata/llama_plain",
            "-d",
            "ngram",
            "--prompt-ids",
            &ids,
            "--max-new-tokens",
            "12",
            "--json",
            "--quiet"
        ])
    );
}
