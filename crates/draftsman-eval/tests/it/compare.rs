//! Paired comparison of two results.

use draftsman_contract::CounterRng;
use draftsman_eval::{PromptCounts, SavedLine, SavedReport, compare};

fn line(name: &str, answers: usize, mean: f64, seed: u64) -> SavedLine {
    let mut difficulty = CounterRng::new(1, &[]);
    let mut rng = CounterRng::new(seed, &[2]);
    let per_prompt = (0..answers)
        .map(|i| {
            // Prompts differ more than drafters do: pairing must take that out.
            let hard = difficulty.uniform();
            let accepted = (40.0 * (mean * (0.3 + 1.4 * hard) + 0.05 * (rng.uniform() - 0.5))).max(0.0) as u64;
            PromptCounts {
                suite: "s".into(),
                category: None,
                prompt_tokens: 9,
                prompt_sha256: "p".into(),
                answer_tokens: 90,
                loop_start: None,
                decode_s: None,
                id: i.to_string(),
                cycles_outside_loops: 40,
                accepted_drafts_outside_loops: accepted,
                cycles: 50,
                accepted_drafts: accepted + 30,
            }
        })
        .collect();
    SavedLine { name: name.into(), per_prompt }
}

#[test]
fn a_small_steady_difference_is_separated_and_none_is_not() {
    let (a, b) = (line("a", 30, 1.0, 3), line("b", 30, 0.9, 4));
    let found = compare(&a, &b, 0).unwrap().unwrap();
    assert_eq!((found.pairs, found.unpaired), (30, 0));
    assert!(found.is_separated() && found.ratio < 1.0, "{found:?}");
    let sum = |line: &SavedLine| {
        let accepted: u64 = line.per_prompt.iter().map(|row| row.accepted_drafts_outside_loops).sum();
        1.0 + accepted as f64 / (40.0 * line.per_prompt.len() as f64)
    };
    assert!((found.a - sum(&a)).abs() < 1e-12 && (found.b - sum(&b)).abs() < 1e-12);
    let interval = found.ratio_interval_95.unwrap();
    assert!(interval.low <= found.ratio && found.ratio <= interval.high);
    assert_eq!(found, compare(&a, &b, 0).unwrap().unwrap(), "a function of its arguments");

    let same = compare(&a, &a, 0).unwrap().unwrap();
    assert!(!same.is_separated());
    let interval = same.ratio_interval_95.unwrap();
    assert_eq!((same.ratio, interval.low, interval.high), (1.0, 1.0, 1.0));
}

#[test]
fn prompts_of_one_side_only_are_left_out() {
    let (a, mut b) = (line("a", 6, 1.0, 3), line("b", 9, 1.0, 4));
    b.per_prompt.reverse();
    let found = compare(&a, &b, 0).unwrap().unwrap();
    assert_eq!((found.pairs, found.unpaired), (6, 3));
    b.per_prompt.truncate(3);
    assert_eq!(compare(&a, &b, 0), Ok(None), "no prompt in common");
}

#[test]
fn one_prompt_says_nothing_about_others() {
    let found = compare(&line("a", 1, 0.5, 3), &line("b", 1, 1.5, 4), 0).unwrap().unwrap();
    assert!(found.ratio > 1.5 && found.ratio_interval_95.is_none() && !found.is_separated(), "{found:?}");
}

#[test]
fn one_name_for_two_prompts_is_refused() {
    let (a, mut b) = (line("a", 6, 1.0, 3), line("b", 6, 1.0, 4));
    b.per_prompt[2].prompt_sha256 = "other".into();
    assert!(compare(&a, &b, 0).unwrap_err().contains("`2` is another prompt"));
    b.per_prompt[2].suite = "elsewhere".into();
    assert_eq!(compare(&a, &b, 0).unwrap().unwrap().pairs, 5, "in another suite it is another name");
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    for (text, problem) in [
        ("[", "not JSON"),
        ("{}", "no `report_version`"),
        ("{\"report_version\": 2}", "report version 2"),
        ("{\"report_version\": 3}", "not a report"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = SavedReport::read(&path).unwrap_err().to_string();
        assert!(error.contains("r.json") && error.contains(problem) && error.contains("hint:"), "{error}");
    }
    assert!(SavedReport::read(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
}
