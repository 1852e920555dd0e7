//! Batched answers equal single answers, whatever runs beside them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use draftsman_decode::{Answer, Finish, GenerateOptions, LockstepHooks, LockstepStats, generate, lockstep};

use crate::tiny;

/// Collects answers; may end answers or the run early.
#[derive(Default)]
struct Collect {
    answers: Vec<Answer>,
    end_after: Option<usize>,
    stop_after_answers: Option<usize>,
    stop_after_steps: Option<usize>,
}

impl LockstepHooks for Collect {
    fn early_end(&mut self, index: usize, produced: &[u32]) -> Option<usize> {
        // Even requests end after n tokens and keep all but the last.
        self.end_after.filter(|&n| index.is_multiple_of(2) && produced.len() == n).map(|n| n - 1)
    }
    fn finished(&mut self, answer: Answer) -> ControlFlow<()> {
        self.answers.push(answer);
        match self.stop_after_answers {
            Some(n) if self.answers.len() >= n => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
    fn stepped(&mut self, stats: &LockstepStats) -> ControlFlow<()> {
        match self.stop_after_steps {
            Some(n) if stats.steps >= n => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn requests() -> Vec<(usize, Vec<u32>)> {
    (0..9).map(|i| (100 + i, tiny::prompt(i as u64, 1 + (i * 5) % 13))).collect()
}

#[test]
fn lockstep_equals_single_decoding_for_every_number_of_rows() {
    let target = tiny::target(6);
    for temperature in [0.0, 1.1] {
        let options = GenerateOptions { temperature, seed: 21, ..GenerateOptions::greedy(18, &[2, 7, 11]) };
        let mut expected = BTreeMap::new();
        for (index, prompt) in requests() {
            let single = GenerateOptions { stream: index as u64, ..options.clone() };
            let got = generate(target.as_ref(), None, &prompt, &single).unwrap();
            expected.insert(index, (got.output_ids().to_vec(), got.finish));
        }
        let finishes: Vec<Finish> = expected.values().map(|(_, f)| *f).collect();
        assert!(finishes.contains(&Finish::Stop), "answers of different lengths are needed: {finishes:?}");
        for rows in [1, 2, 3, 5, 9, 20] {
            let mut collect = Collect::default();
            let stats = lockstep(target.as_ref(), requests(), rows, &options, &mut collect).unwrap();
            let got: BTreeMap<usize, _> =
                collect.answers.iter().map(|a| (a.index, (a.output_ids.clone(), a.finish))).collect();
            assert_eq!(got, expected, "rows {rows}, temperature {temperature}");
            assert_eq!(collect.answers.len(), 9, "each answer once");
            assert_eq!(stats.finished, 9);
            assert_eq!(stats.produced_tokens, expected.values().map(|(ids, _)| ids.len()).sum::<usize>());
            assert_eq!(stats.prompt_tokens, requests().iter().map(|(_, p)| p.len()).sum::<usize>());
            assert!(!stats.interrupted);
            if rows == 1 {
                assert_eq!(stats.steps, stats.produced_tokens);
            }
        }
    }
}

#[test]
fn a_rule_may_end_an_answer_early() {
    let target = tiny::target(6);
    let options = GenerateOptions::greedy(12, &[]);
    let mut collect = Collect { end_after: Some(5), ..Collect::default() };
    lockstep(target.as_ref(), requests(), 4, &options, &mut collect).unwrap();
    for answer in &collect.answers {
        let (tokens, finish) = if answer.index % 2 == 0 { (4, Finish::Early) } else { (12, Finish::Length) };
        assert_eq!((answer.output_ids.len(), answer.finish), (tokens, finish), "request {}", answer.index);
        let prompt = &requests()[answer.index - 100].1;
        let plain = generate(target.as_ref(), None, prompt, &options).unwrap();
        assert_eq!(answer.output_ids, plain.output_ids()[..tokens]);
    }
}

#[test]
fn a_run_can_be_interrupted_and_keeps_what_was_finished() {
    let target = tiny::target(6);
    let options = GenerateOptions::greedy(6, &[]);
    let mut collect = Collect { stop_after_answers: Some(3), ..Collect::default() };
    let stats = lockstep(target.as_ref(), requests(), 2, &options, &mut collect).unwrap();
    assert!(stats.interrupted && collect.answers.len() >= 3 && collect.answers.len() < 9);
    let mut collect = Collect { stop_after_steps: Some(4), ..Collect::default() };
    let stats = lockstep(target.as_ref(), requests(), 2, &options, &mut collect).unwrap();
    assert!(stats.interrupted && collect.answers.is_empty() && stats.steps == 4);
}

#[test]
fn bad_requests_are_refused_before_anything_runs() {
    let target = tiny::target(6);
    let options = GenerateOptions::greedy(12, &[]);
    let check = |bad: Vec<u32>, rows: usize, expected: &str| {
        let mut requests = requests();
        requests.push((777, bad));
        let mut collect = Collect::default();
        let error = lockstep(target.as_ref(), requests, rows, &options, &mut collect).unwrap_err().to_string();
        assert!(error.contains(expected), "`{error}` should say `{expected}`");
        assert!(collect.answers.is_empty());
    };
    check(vec![], 3, "request 777: the prompt is empty");
    check(vec![40], 3, "request 777: token id 40");
    check(tiny::prompt(0, 181), 3, "request 777: 181 prompt tokens");
    check(vec![1], 0, "`rows`");
}

#[test]
fn no_budget_means_empty_answers() {
    let target = tiny::target(6);
    let mut collect = Collect::default();
    lockstep(target.as_ref(), requests(), 3, &GenerateOptions::greedy(0, &[]), &mut collect).unwrap();
    assert!(collect.answers.len() == 9 && collect.answers.iter().all(|a| a.output_ids.is_empty()));
}

#[test]
fn many_long_prompts_are_read_in_portions() {
    let target = tiny::target(6);
    let options = GenerateOptions::greedy(5, &[]);
    let requests = || (0..18).map(|i| (i, tiny::prompt(i as u64, 150)));
    let run = |rows: usize| {
        let mut collect = Collect::default();
        let stats = lockstep(target.as_ref(), requests(), rows, &options, &mut collect).unwrap();
        collect.answers.sort_by_key(|a| a.index);
        (collect.answers, stats.steps)
    };
    let (one_by_one, _) = run(1);
    let (together, steps) = run(18);
    assert_eq!(together, one_by_one);
    // 18 prompts of 150 tokens are more than one step reads, so the last ones start and end a step later.
    assert_eq!(steps, 6);
}
