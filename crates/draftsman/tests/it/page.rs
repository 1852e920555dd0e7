//! The page that `eval --html` writes.

use std::fs;
use std::path::Path;

use crate::run::draftsman;
use crate::trees::write_drafter;

#[test]
fn the_page_shows_every_suite_the_run_and_a_tree() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = |file: &str| scratch.path().join(file).display().to_string();
    fs::create_dir(path("run")).expect("a folder");
    write_drafter("llama_plain", Path::new(&path("run/drafter")));
    // The log of the run that the drafter lies in; walked only in the end.
    let metrics = r#"{"kind": "step", "step": 1}
{"kind": "validation", "step": 0, "val/chain_accepted_drafts": 0.25}
{"kind": "validation", "step": 5, "val/chain_accepted_drafts": 0.5, "walk/acceptance_length": 1.5}
{"kind": "validation", "step": 9, "val/chain_accepted_drafts": 0.75, "walk/acceptance_length": 1.75}
"#;
    fs::write(path("run/metrics.jsonl"), metrics).expect("write");
    let prompts = |count: usize| -> String {
        (0..count).map(|i| format!("{{\"id\": \"q{i}\", \"prompt_ids\": [3, {}, 9]}}\n", i + 4)).collect()
    };
    fs::write(path("many.jsonl"), prompts(5)).expect("write");
    fs::write(path("one.jsonl"), prompts(1)).expect("write");

    let (many, one, drafter, html) = (path("many.jsonl"), path("one.jsonl"), path("run/drafter"), path("page.html"));
    for (budget, trees) in [("0", false), ("0,4", true)] {
        let output = draftsman(&[
            "eval",
            "-t",
            "testdata/llama_plain",
            "-p",
            &many,
            "-p",
            &one,
            "-d",
            &drafter,
            "--tree-budget",
            budget,
            "--max-new-tokens",
            "12",
            "--quiet",
            "--html",
            &html,
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page = fs::read_to_string(&html).expect("a page");
        let samples: Vec<&str> =
            page.split("<summary>").skip(1).map(|rest| rest.split(" <small>").next().expect("a name")).collect();
        assert_eq!(samples, ["many · q0", "many · q1", "many · q2", "one · q0"]);
        assert_eq!(page.contains("<h2>A draft tree"), trees);
        let points = ["0.25 after 0 updates", "0.75 after 9 updates", "1.50 after 5 updates", "1.75 after 9 updates"];
        for text in points.into_iter().chain(["Acceptance by suite and category", "<h2>Speed"]) {
            assert!(page.contains(text), "{text}");
        }
    }
}
