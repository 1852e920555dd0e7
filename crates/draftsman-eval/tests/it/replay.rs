//! A replayed walk equals the live walk, cycle by cycle.

use std::ops::ControlFlow;

use draftsman_decode::{DflashProposer, Finish, GenerateOptions, LookupThenDraft, NgramProposer, Proposer, generate};
use draftsman_eval::{EvalPrompt, TargetAnswer, first_cycle_difference, replay, replay_walk};
use draftsman_models::{Dflash, Target};

use crate::tiny;
use crate::walk::Hinted;

fn proposers<'a>(target: &'a dyn Target, drafter: &'a Dflash, hint: &[u32]) -> Vec<Box<dyn Proposer + 'a>> {
    let drafts = || DflashProposer::new("drafter", drafter, target, None).unwrap();
    vec![
        Box::new(NgramProposer::new(6)),
        Box::new(drafts()),
        Box::new(LookupThenDraft::new(NgramProposer::new(6), drafts())),
        // Accepts far into its blocks, also past a stop token.
        Box::new(Hinted::new(hint, 3)),
        Box::new(Hinted::new(hint, 1000)),
    ]
}

#[test]
fn replay_equals_live() {
    let mut accepted = 0;
    let mut past_stop = 0;
    for seed in 0..8 {
        let target = tiny::target(seed);
        let drafter = tiny::drafter(target.as_ref(), 6, seed);
        let prompt = EvalPrompt::new(0, seed.to_string(), tiny::prompt(seed, 4 + seed as usize));
        for temperature in [0.0, 0.8] {
            let free = GenerateOptions { temperature, seed: 9, stream: seed, ..GenerateOptions::greedy(48, &[]) };
            let long = generate(target.as_ref(), None, &prompt.ids, &free).unwrap();
            let stop_in_the_middle = vec![long.output_ids()[17]];
            for (max_new_tokens, stop_ids) in [
                (40, vec![]),
                (33, vec![]),
                (40, stop_in_the_middle),
                (1, vec![]),
                (2, vec![]),
                (40, vec![long.output_ids()[0]]),
            ] {
                let options = GenerateOptions { max_new_tokens, stop_ids, ..free.clone() };
                let plain = generate(target.as_ref(), None, &prompt.ids, &options).unwrap();
                let answer = TargetAnswer { output_ids: plain.output_ids().to_vec(), finish: plain.finish };
                for proposer in &mut proposers(target.as_ref(), &drafter, &long.ids) {
                    let live = generate(target.as_ref(), Some(proposer.as_mut()), &prompt.ids, &options).unwrap();
                    let replayed = replay(target.as_ref(), proposer.as_mut(), &prompt, &answer, &options).unwrap();
                    let difference = first_cycle_difference(&live.cycles, &replayed);
                    assert_eq!(difference, None, "seed {seed}, {}, {options:?}", proposer.name());
                    accepted += live.cycles.iter().map(|c| c.accepted).sum::<usize>();
                    past_stop += live
                        .cycles
                        .last()
                        .filter(|c| live.finish == Finish::Stop && c.accepted > c.committed)
                        .map_or(0, |_| 1);
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted} drafts accepted: too few to mean much");
    assert!(past_stop > 5, "{past_stop} walks accepted drafts past a stop token: too few to mean much");
}

#[test]
fn an_answer_that_ended_early_is_walked_to_its_end() {
    let target = tiny::target(2);
    let prompt = EvalPrompt::new(0, "p", tiny::prompt(2, 7));
    let short = GenerateOptions::greedy(23, &[]);
    let plain = generate(target.as_ref(), None, &prompt.ids, &short).unwrap();
    let live = generate(target.as_ref(), Some(&mut NgramProposer::new(8)), &prompt.ids, &short).unwrap();
    let answer = TargetAnswer { output_ids: plain.output_ids().to_vec(), finish: Finish::Early };
    let budget = GenerateOptions::greedy(100, &[]);
    let replayed = replay(target.as_ref(), &mut NgramProposer::new(8), &prompt, &answer, &budget).unwrap();
    assert_eq!(first_cycle_difference(&live.cycles, &replayed), None);
}

#[test]
fn answers_that_cannot_be_the_targets_are_refused() {
    let target = tiny::target(2);
    let prompt = EvalPrompt::new(0, "p", tiny::prompt(2, 7));
    let check = |output_ids: Vec<u32>, finish: Finish, stop_ids: &[u32]| {
        let options = GenerateOptions::greedy(4, stop_ids);
        let answer = TargetAnswer { output_ids, finish };
        let error = replay(target.as_ref(), &mut NgramProposer::new(8), &prompt, &answer, &options).unwrap_err();
        assert!(error.to_string().contains("replay of `p`"), "{error}");
    };
    check(vec![1, 2, 3], Finish::Stop, &[9]);
    check(vec![1, 9, 3], Finish::Stop, &[9]);
    check(vec![1, 9, 3, 4], Finish::Length, &[9]);
    check(vec![1, 2, 3], Finish::Length, &[9]);
    check(vec![1, 2, 3, 4, 5], Finish::Length, &[9]);
    // In a suite it fails alone.
    let answer = |output_ids: Vec<u32>| TargetAnswer { output_ids, finish: Finish::Early };
    let answers = [(prompt.clone(), answer(vec![1, 9])), (EvalPrompt::new(1, "q", prompt.ids), answer(vec![1, 2]))];
    let walk = replay_walk(target.as_ref(), &mut [], &answers, &GenerateOptions::greedy(4, &[9]), 9, &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((walk.runs.len(), walk.failed.len()), (1, 1));
    assert!(walk.failed[0].id == "p" && walk.failed[0].problem.contains("first stop token"), "{walk:?}");
}
