//! Published numbers: the file parses, and a row is shown for its own target and suite only.

use std::path::Path;

use draftsman_eval::{published_for, published_tables};

#[test]
fn rows_match_their_own_target_and_suite_only() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/published.toml");
    let tables = published_tables(&std::fs::read_to_string(path).unwrap()).unwrap();
    let check = |target: &str, suite: &str, temperature: f32, expected: &[f64]| {
        let found: Vec<f64> =
            published_for(&tables, target, suite, temperature).iter().map(|(_, row)| row.acceptance_length).collect();
        assert_eq!(found, expected, "{target} on {suite} at {temperature}");
    };
    check("Qwen3-4B", "HumanEval.jsonl", 0.0, &[6.64, 3.05, 3.47]);
    check("Qwen3-4B", "HumanEval.jsonl", 1.0, &[6.04, 3.39]);
    check("Qwen3-4B", "HumanEval.jsonl", 0.7, &[]);
    check("Qwen3-4B-Base", "humaneval", 0.0, &[]);
    check("Qwen3-4B", "mt_bench", 0.0, &[4.35, 3.02, 3.49]);
    check("Qwen3.5-27B", "MATH-500", 1.0, &[7.7]);
    check("smollm2", "HumanEval", 0.0, &[]);
}
