//! A prepared walk is the live walk, for one drafter after another, and again.

use std::path::Path;

use draftsman_contract::CounterRng;
use draftsman_data::LoopRule;
use draftsman_decode::{Cycle, DflashProposer, Finish, GenerateOptions, NgramProposer, Proposer, generate};
use draftsman_eval::{
    EvalPrompt, PreparedWalk, TargetAnswer, VALIDATION_VERSION, Validation, WalkAnswer, WalkSet, Walked, replay,
    validate,
};
use draftsman_kernels::{DeviceKind, WeightDtype, open};
use draftsman_models::{Target, open_target};

use crate::architectures::{TARGETS, drafter};
use crate::tiny;
use crate::walk::Hinted;

/// Tokens that [`Hinted`] drafts and their bonus.
const BLOCK: usize = 8;

/// `prompts` with the target's own answers.
fn answered(target: &dyn Target, prompts: &[Vec<u32>], options: &GenerateOptions) -> Vec<(EvalPrompt, TargetAnswer)> {
    prompts
        .iter()
        .enumerate()
        .map(|(index, ids)| {
            let plain = generate(target, None, ids, options).unwrap();
            let answer = TargetAnswer { output_ids: plain.output_ids().to_vec(), finish: plain.finish };
            (EvalPrompt::new(index, index.to_string(), ids.clone()), answer)
        })
        .collect()
}

fn live(
    target: &dyn Target,
    proposer: &mut dyn Proposer,
    prompts: &[Vec<u32>],
    options: &GenerateOptions,
) -> Vec<Vec<Cycle>> {
    prompts.iter().map(|ids| generate(target, Some(&mut *proposer), ids, options).unwrap().cycles).collect()
}

/// Every architecture; answers that end by the budget and by a stop token, beyond which drafts are accepted; proposers that
/// draft far and near, each twice and in turns, since the walks before must leave no trace.
#[test]
fn it_is_replay_and_live_for_every_proposer_and_again() {
    let mut past_stop = 0;
    for name in TARGETS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
        let target = open_target(&path, &open(DeviceKind::Flex).unwrap(), WeightDtype::F32).unwrap();
        let target = target.as_ref();
        let vocab = target.spec().vocab_size;
        let prompts: Vec<Vec<u32>> = (0..3)
            .map(|seed| {
                let mut rng = CounterRng::new(seed, &[8]);
                (0..5 + 7 * seed).map(|_| rng.below(vocab - 1) as u32).collect()
            })
            .collect();
        let longer = GenerateOptions::greedy(44, &[]);
        let known: Vec<Vec<u32>> =
            prompts.iter().map(|ids| generate(target, None, ids, &longer).unwrap().ids).collect();
        // One answer at least ends in the middle, where it can in the middle of a block.
        let output = &known[1][prompts[1].len()..];
        let new_there = |&at: &usize| !output[..at].contains(&output[at]) && !at.is_multiple_of(BLOCK);
        let stop = output[(3..20).rev().find(new_there).unwrap_or(13)];
        let options = GenerateOptions::greedy(26, &[stop]);
        let answers = answered(target, &prompts, &options);
        assert!(answers.iter().any(|(_, answer)| answer.finish == Finish::Stop), "{name}");
        let set = WalkSet::new(answers.clone(), &options);

        let drafters = [drafter(target, 6), drafter(target, 3)];
        let taps = drafters[0].config().contract.target_layer_ids.clone();
        let dflash = |which: usize| DflashProposer::new("drafter", &drafters[which], target, None).unwrap();
        let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![
            Box::new(Hinted::new(&known[1], 1000)),
            Box::new(dflash(0)),
            Box::new(NgramProposer::new(6)),
            Box::new(dflash(1)),
            Box::new(Hinted::new(&known[1], 3)),
        ];
        let expected: Vec<_> = proposers.iter_mut().map(|p| live(target, p.as_mut(), &prompts, &options)).collect();
        past_stop += expected[0].iter().flatten().filter(|cycle| cycle.accepted > cycle.committed).count();
        for rows_per_pass in [1, 60, 1000] {
            let mut prepared = PreparedWalk::new(target, &set, &taps, rows_per_pass).unwrap();
            assert_eq!(prepared.prompts(), 3);
            for again in 0..2 {
                for (proposer, expected) in proposers.iter_mut().zip(&expected) {
                    let what = format!("{name}, {}, round {again}, {rows_per_pass} rows a pass", proposer.name());
                    assert_eq!(prepared.cycles(proposer.as_mut()).unwrap(), *expected, "{what}");
                }
            }
        }
        for (proposer, expected) in proposers.iter_mut().zip(&expected) {
            for ((prompt, answer), cycles) in answers.iter().zip(expected) {
                assert_eq!(replay(target, proposer.as_mut(), prompt, answer, &options).unwrap(), *cycles, "{name}");
            }
        }
    }
    assert!(past_stop > TARGETS.len() / 2, "{past_stop} walks accepted drafts past a stop token: too few to mean much");
}

#[test]
fn a_drafter_is_judged_by_its_live_cycles() {
    let target = tiny::target(5);
    let target = target.as_ref();
    let prompts: Vec<Vec<u32>> = (0..5).map(|seed| tiny::prompt(seed, 4 + 3 * seed as usize)).collect();
    let options = GenerateOptions::greedy(40, &[3]);
    let answers = answered(target, &prompts, &options);
    let mut set = WalkSet::new(answers.clone(), &options);
    // Tiny models repeat themselves soon: a loop is one repeated pair.
    set.loop_rule = LoopRule { ngram: 2, window: 2, repeated: 2 };
    let saved = serde_json::to_string(&set).unwrap();
    let set: WalkSet = serde_json::from_str(&saved).unwrap();
    assert_eq!(serde_json::to_string(&set).unwrap(), saved);
    let mut prepared = PreparedWalk::new(target, &set, &tiny::TAPS, 100).unwrap();
    for seed in [5, 6, 5] {
        let drafter = tiny::drafter(target, 6, seed);
        let mut proposer = DflashProposer::new("d", &drafter, target, None).unwrap();
        let mut expected = Walked::default();
        for (ids, (_, answer)) in prompts.iter().zip(&answers) {
            let cycles = generate(target, Some(&mut proposer), ids, &options).unwrap().cycles;
            expected.add_answer(&cycles, ids.len(), set.loop_rule.loop_start(&answer.output_ids));
        }
        assert!(expected.looping_answers > 0 && 0 < expected.outside_loops.cycles);
        assert!(expected.outside_loops.cycles < expected.all.cycles);
        assert_eq!(prepared.judge(&drafter).unwrap(), expected);
        // A drafter in training gives the same numbers as its inference copy.
        assert_eq!(prepared.judge(&drafter.trainable()).unwrap(), expected);
    }
}

/// Whether there is a headline number follows from the answers alone.
#[test]
fn cycles_outside_loops_are_known_before_any_walk() {
    let target = tiny::target(5);
    let target = target.as_ref();
    let drafter = tiny::drafter(target, 6, 5);
    let mut seen = [0; 2];
    for seed in 0..12 {
        let prompts = vec![tiny::prompt(seed, 6)];
        for (max_new_tokens, ngram) in [(1, 2), (2, 2), (9, 1), (9, 2), (30, 1)] {
            let options = GenerateOptions::greedy(max_new_tokens, &[]);
            let mut set = WalkSet::new(answered(target, &prompts, &options), &options);
            set.loop_rule = LoopRule { ngram, window: 2, repeated: 1 };
            let walked = PreparedWalk::new(target, &set, &tiny::TAPS, 100).unwrap().judge(&drafter).unwrap();
            let has = set.has_cycles_outside_loops();
            assert_eq!(has, walked.outside_loops.cycles > 0, "seed {seed}, {set:?}");
            assert_eq!(has, walked.outside_loops.acceptance_length_micro().is_some());
            seen[usize::from(has)] += 1;
        }
    }
    assert!(seen.iter().all(|&count| count > 5), "{seen:?}");
}

#[test]
fn validation_files_of_both_versions_are_read() {
    let target = tiny::target(8);
    let target = target.as_ref();
    let drafter = tiny::drafter(target, 6, 8);
    let ids = tiny::prompt(1, 20);
    let mask = (0..20).map(|at| at >= 5).collect();
    let holes = draftsman_contract::HoleRule::Cut;
    let plain = Validation::draw([(ids, mask)], 4, 1, holes, 4.0);
    let old = serde_json::to_value(&plain).unwrap();
    assert_eq!(old["version"], 1);
    assert!(old.get("walk").is_none(), "a file without a walk set is the file of the first version");
    assert_eq!(serde_json::from_value::<Validation>(old).unwrap(), plain);

    let set = WalkSet {
        max_new_tokens: 4,
        stop_ids: vec![2],
        loop_rule: LoopRule::default(),
        answers: vec![WalkAnswer { prompt_ids: vec![5, 6], output_ids: vec![7, 2], finish: Finish::Stop }],
    };
    let walked = plain.clone().with_walk(set);
    let json = serde_json::to_value(&walked).unwrap();
    assert_eq!((json["version"].as_u64(), &json["walk"]["answers"][0]["finish"]), (Some(2), &"stop".into()));
    assert_eq!(u64::from(VALIDATION_VERSION), 2);
    let loaded: Validation = serde_json::from_value(json).unwrap();
    assert_eq!(loaded, walked);
    assert_eq!(validate(target, &drafter, &loaded).unwrap(), validate(target, &drafter, &plain).unwrap());
}

#[test]
fn unusable_walk_sets_are_refused() {
    let target = tiny::target(8);
    let target = target.as_ref();
    let good = WalkSet {
        max_new_tokens: 4,
        stop_ids: vec![2],
        loop_rule: LoopRule::default(),
        answers: vec![WalkAnswer { prompt_ids: vec![5, 6], output_ids: vec![7, 2], finish: Finish::Stop }],
    };
    let check = |change: &dyn Fn(&mut WalkSet), expected: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = PreparedWalk::new(target, &bad, &tiny::TAPS, 100).map(|_| ()).expect_err(expected).to_string();
        assert!(error.contains(expected), "`{error}` should say `{expected}`");
    };
    check(&|set| set.answers[0].prompt_ids.clear(), "walk prompt 0");
    check(&|set| set.answers[0].output_ids.push(9), "walk prompt 0");
    check(&|set| set.answers[0].finish = Finish::Length, "walk prompt 0");
    check(&|set| set.stop_ids.clear(), "walk prompt 0");
    check(&|set| set.answers[0].prompt_ids[1] = tiny::VOCAB, "token id 40");
    let drafter = tiny::drafter(target, 6, 8);
    let mut other = PreparedWalk::new(target, &good, &[1, 2], 100).unwrap();
    assert!(other.judge(&drafter).unwrap_err().to_string().contains("[1, 2]"));
}
