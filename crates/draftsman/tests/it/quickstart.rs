//! The whole job on the embedded target, with the smallest budget.

use std::fs;

use crate::run::draftsman;

#[test]
fn the_smallest_budget_runs_to_a_report_and_may_run_again() {
    let scratch = tempfile::tempdir().expect("scratch");
    let out = scratch.path().join("quick");
    let folder = out.display().to_string();
    for _ in 0..2 {
        let output = draftsman(&["quickstart", "--smoke", "--out", &folder]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(stdout.contains("replay = live") && stdout.contains("Next:"), "{stdout}");
        let page = fs::read_to_string(out.join("report.html")).expect("a page");
        assert!(page.len() < 1_000_000 && page.contains("Growth in training"));
        for outside in ["http:", "https:", "<script", "url("] {
            assert!(!page.contains(outside), "the page asks for {outside}");
        }
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("eval.json")).expect("a result")).expect("JSON");
        for line in report["proposers"].as_array().expect("lines") {
            assert_eq!(line["lossless"]["verdict"], "identical", "{}", line["name"]);
        }
    }
}

#[test]
fn a_folder_of_somebody_else_is_left_alone() {
    let scratch = tempfile::tempdir().expect("scratch");
    let file = scratch.path().join("thesis.txt");
    fs::write(&file, "years of work").expect("write");
    let output = draftsman(&["quickstart", "--smoke", "--out", &scratch.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint:"));
    assert_eq!(fs::read_to_string(file).expect("still there"), "years of work");
}
