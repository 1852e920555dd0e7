//! Live evaluation and its report.

use std::ops::ControlFlow;

use burn::tensor::Tensor;
use draftsman_contract::TreeRule;
use draftsman_data::LoopRule;
use draftsman_decode::{DecodeError, DflashProposer, Finish, GenerateOptions, NgramProposer, Proposer, generate};
use draftsman_eval::{
    EvalPrompt, FailedPrompt, LiveWalk, PromptRun, Settings, TargetAnswer, Verdict, WalkHooks, first_foreign_token,
    replay_walk, summarise, summarise_replay, walk_live, what_if,
};

use crate::tiny;

/// Knows an answer and spoils every `wrong_every`-th token of it.
pub(crate) struct Hinted {
    answer: Vec<u32>,
    wrong_every: usize,
}

impl Hinted {
    pub(crate) fn new(answer: &[u32], wrong_every: usize) -> Self {
        Self { answer: answer.to_vec(), wrong_every }
    }
}

impl Proposer for Hinted {
    fn name(&self) -> String {
        format!("hinted {}", self.wrong_every)
    }
    fn taps(&self) -> &[usize] {
        &[]
    }
    fn block_size(&self) -> usize {
        8
    }
    fn begin(&mut self) {}
    fn observe(&mut self, features: Option<Tensor<2>>, _: &[u32]) -> Result<(), DecodeError> {
        assert!(features.is_none());
        Ok(())
    }
    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let known = self.answer.iter().enumerate().skip(ids.len()).take(max_drafts.min(7));
        Ok(known
            .map(|(at, &token)| if (at + 1) % self.wrong_every == 0 { (token + 1) % tiny::VOCAB } else { token })
            .collect())
    }
}

/// The answers of the target alone.
fn own_answers(walk: &LiveWalk) -> Vec<(EvalPrompt, TargetAnswer)> {
    let own = |run: &PromptRun| TargetAnswer { output_ids: run.plain.output_ids().to_vec(), finish: run.plain.finish };
    walk.runs.iter().map(|run| (run.prompt.clone(), own(run))).collect()
}

/// Remembers names, asks follow-up questions, and may end the walk.
#[derive(Default)]
struct Hooks {
    answered: Vec<String>,
    failed: Vec<FailedPrompt>,
    end_after: Option<usize>,
}

impl WalkHooks for Hooks {
    fn next_turn(&mut self, prompt: &EvalPrompt, answers: &[Vec<u32>]) -> Result<Vec<u32>, String> {
        assert_eq!(answers.len(), prompt.turn + 1);
        let answer = answers.last().unwrap();
        match prompt.id.as_str() {
            "silent" => Err("nothing to say".into()),
            _ => Ok([&prompt.ids[..3], answer, &[4, 5, prompt.turn as u32]].concat()),
        }
    }

    fn answered(&mut self, run: &PromptRun) -> ControlFlow<()> {
        self.answered.push(run.prompt.name());
        if self.end_after == Some(self.answered.len()) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn failed(&mut self, failed: &FailedPrompt) {
        self.failed.push(failed.clone());
    }
}

fn settings(options: &GenerateOptions, loop_rule: LoopRule) -> Settings {
    Settings { target: "t".into(), target_layers_sha256: None, options: options.clone(), thinking: None, loop_rule }
}

#[test]
fn live_and_replayed_reports_agree_and_are_lossless() {
    let target = tiny::target(5);
    let drafter = tiny::drafter(target.as_ref(), 6, 5);
    let prompts: Vec<EvalPrompt> = (0..4)
        .map(|i| {
            let (suite, category) = if i < 3 { ("one", Some(format!("kind {}", i % 2))) } else { ("two", None) };
            let prompt = EvalPrompt::new(i as usize, format!("p{i}"), tiny::prompt(i, 5 + i as usize));
            EvalPrompt { suite: suite.into(), category, ..prompt }
        })
        .collect();
    let options = GenerateOptions::greedy(30, &[3]);
    let names = [("ngram".to_owned(), 6), ("drafter".to_owned(), 6)];
    let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![
        Box::new(NgramProposer::new(6)),
        Box::new(DflashProposer::new("drafter", &drafter, target.as_ref(), None).unwrap()),
    ];
    let mut hooks = Hooks::default();
    let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut hooks).unwrap();
    assert_eq!(hooks.answered, ["p0", "p1", "p2", "p3"]);
    // Tiny models repeat themselves soon: a loop is one repeated pair.
    let rule = LoopRule { ngram: 2, window: 2, repeated: 2 };
    let outside = |ids: &[u32]| rule.loop_start(ids).unwrap_or(ids.len());
    let settings = settings(&options, rule);
    let live = summarise(&walk, &names, &settings);
    let answers = own_answers(&walk);
    let replay =
        replay_walk(target.as_ref(), &mut proposers, &answers, &options, 40, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    for rows_per_pass in [1, 75, 1000] {
        let other = replay_walk(target.as_ref(), &mut proposers, &answers, &options, rows_per_pass, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(other, replay, "{rows_per_pass} rows a pass");
    }
    let replayed = summarise_replay(&replay, &names, &settings);

    assert_eq!(live.prompts, 4);
    assert!(live.looping_answers > 0 && answers.iter().any(|(_, a)| outside(&a.output_ids) > 4), "{answers:?}");
    let plain = live.plain.as_ref().unwrap();
    assert_eq!(plain.all_tokens.acceptance_length_micro, Some(1.0));
    let decoded: usize = walk.runs.iter().map(|r| r.plain.decoded_tokens()).sum();
    assert_eq!(plain.all_tokens.decoded_tokens, decoded as u64);
    assert_eq!(
        plain.outside_loops.decoded_tokens,
        answers.iter().map(|(_, a)| outside(&a.output_ids).saturating_sub(1) as u64).sum::<u64>()
    );
    for (line, again) in live.proposers.iter().zip(&replayed.proposers) {
        let lossless = line.lossless.as_ref().unwrap();
        assert_eq!((lossless.verdict, lossless.identical_answers), (Verdict::Identical, 4), "{}", line.name);
        assert_eq!((&line.all_tokens, &line.outside_loops), (&again.all_tokens, &again.outside_loops), "{}", line.name);
        assert_eq!((&line.inside_loops, &line.by_position), (&again.inside_loops, &again.by_position), "{}", line.name);
        assert_eq!(line.all_tokens.decoded_tokens, decoded as u64);
        let speed = line.speed.unwrap();
        assert_eq!(speed.decode_all_tokens.tokens, decoded as u64);
        assert!(speed.decode_outside_loops.seconds < speed.decode_all_tokens.seconds);
        let ratio = line.decode_speedup_all_tokens.unwrap();
        let expected = speed.decode_all_tokens.tokens_per_s.unwrap()
            / plain.speed.unwrap().decode_all_tokens.tokens_per_s.unwrap();
        assert_eq!(ratio, expected);
        assert!(again.speed.is_none() && again.lossless.is_none());
        // The parts of a cycle are the cycle.
        let (cycle, cycles) = (speed.cycle.unwrap(), line.all_tokens.cycles as f64);
        let parts = (cycle.draft_ms + cycle.verify_ms + cycle.other_ms) * cycles / 1000.0;
        assert!((parts - speed.decode_all_tokens.seconds).abs() < 1e-6, "{cycle:?}");
        assert!(cycle.verify_ms > 0.0 && cycle.other_ms >= 0.0);
        // Bands and groups are parts of the headline.
        let cycles: u64 = line.by_position.iter().map(|band| band.cycles).sum();
        let tokens: u64 = line.by_position.iter().map(|band| band.decoded_tokens).sum();
        assert_eq!((cycles, tokens), (line.outside_loops.cycles, line.outside_loops.decoded_tokens));
        let groups: Vec<(&str, Option<&str>)> =
            line.by_group.iter().map(|group| (group.suite.as_str(), group.category.as_deref())).collect();
        assert_eq!(groups, [("one", None), ("one", Some("kind 0")), ("one", Some("kind 1")), ("two", None)]);
        let whole: u64 = line.by_group.iter().filter(|g| g.category.is_none()).map(|g| g.cycles).sum();
        assert_eq!(whole, line.outside_loops.cycles);
        assert_eq!(line.by_group[0].cycles, line.by_group[1].cycles + line.by_group[2].cycles);
        assert!(line.by_group.iter().all(|g| g.cycles == 0 || g.decode_speedup.is_some()), "{:?}", line.by_group);
        // Conditional shares multiply to the cumulative ones.
        let mut product = 1.0;
        for (given, share) in
            line.all_tokens.conditional_accepted_share_at_slot.iter().zip(&line.all_tokens.accepted_share_at_slot)
        {
            product *= given;
            assert!((product - share).abs() < 1e-12);
        }
    }
    // As JSON, with numbers under names that carry their unit.
    let json = serde_json::to_value(&live).unwrap();
    assert!(json["proposers"][0]["outside_loops"]["acceptance_length_micro"].as_f64().unwrap() >= 1.0);
    assert!(json["statistic"].as_str().unwrap().starts_with("walked anchors"));
}

#[test]
fn acceptance_is_absent_where_no_cycle_ran() {
    let target = tiny::target(5);
    let prompts = [EvalPrompt::new(0, "p", tiny::prompt(1, 5))];
    let options = GenerateOptions::greedy(1, &[]);
    let mut proposers: Vec<Box<dyn Proposer>> = vec![Box::new(NgramProposer::new(6))];
    let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut ()).unwrap();
    assert_eq!(walk.runs[0].plain.finish, Finish::Length);
    let report = summarise(&walk, &[("ngram".into(), 6)], &settings(&options, LoopRule::default()));
    let json = serde_json::to_value(&report).unwrap();
    let line = &json["proposers"][0];
    for key in ["acceptance_length_micro", "acceptance_length_macro", "acceptance_length_micro_interval_95"] {
        assert!(line["all_tokens"][key].is_null() && line["all_tokens"].get(key).is_some(), "{key}: {line}");
    }
    assert!(line["decode_speedup_all_tokens"].is_null() && line["speed"]["cycle"].is_null());
    assert!(line["speed"]["tpot_ms_all_tokens"].is_null() && line["by_group"][0]["acceptance_length_micro"].is_null());
    assert_eq!(line["lossless"]["verdict"], "identical");
}

#[test]
fn an_evaluation_can_be_ended_between_prompts() {
    let target = tiny::target(5);
    let prompts: Vec<EvalPrompt> =
        (0..3).map(|i| EvalPrompt::new(i as usize, i.to_string(), tiny::prompt(i, 5))).collect();
    let mut hooks = Hooks { end_after: Some(1), ..Hooks::default() };
    let walk = walk_live(target.as_ref(), &mut [], &prompts, &GenerateOptions::greedy(3, &[]), &mut hooks).unwrap();
    assert_eq!((walk.runs.len(), walk.unasked), (1, 2));
    let report = summarise(&walk, &[], &settings(&GenerateOptions::greedy(3, &[]), LoopRule::default()));
    assert_eq!((report.prompts, report.unasked), (1, 2));
    // A replay can be ended, too.
    let answers =
        [(prompts[0].clone(), own_answers(&walk)[0].1.clone()), (prompts[1].clone(), own_answers(&walk)[0].1.clone())];
    let options = GenerateOptions::greedy(3, &[]);
    let replay = replay_walk(target.as_ref(), &mut [], &answers, &options, 9, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((replay.runs.len(), replay.unasked), (1, 1));
}

#[test]
fn questions_after_one_that_failed_are_told() {
    let target = tiny::target(5);
    let mut prompt = EvalPrompt { turns: 3, ..EvalPrompt::new(0, "p", vec![tiny::VOCAB]) };
    let walk =
        walk_live(target.as_ref(), &mut [], &[prompt.clone()], &GenerateOptions::greedy(3, &[]), &mut ()).unwrap();
    let names = |walk: &LiveWalk| walk.failed.iter().map(|failed| failed.id.clone()).collect::<Vec<_>>();
    assert_eq!(names(&walk), ["p#1", "p#2", "p#3"]);
    assert!(walk.failed[2].problem.contains("`p#1` was not answered"), "{:?}", walk.failed);
    // Nobody knows the next question here.
    prompt.ids = tiny::prompt(1, 5);
    let walk = walk_live(target.as_ref(), &mut [], &[prompt], &GenerateOptions::greedy(3, &[]), &mut ()).unwrap();
    assert_eq!((walk.runs.len(), names(&walk)), (1, vec!["p#2".to_owned(), "p#3".to_owned()]));
}

#[test]
fn answers_of_somebody_else_are_noticed() {
    for seed in [2, 5] {
        let target = tiny::target(seed);
        let prompts: Vec<EvalPrompt> =
            (0..3).map(|i| EvalPrompt::new(i as usize, i.to_string(), tiny::prompt(i, 5))).collect();
        for new_tokens in [1, 2, 20] {
            let options = GenerateOptions::greedy(new_tokens, &[]);
            let answers = own_answers(&walk_live(target.as_ref(), &mut [], &prompts, &options, &mut ()).unwrap());
            assert_eq!(first_foreign_token(target.as_ref(), &answers).unwrap(), None);
            let mut foreign = answers.clone();
            let last = new_tokens - 1;
            // The token that the target finds least likely there.
            let mut ids = [&prompts[1].ids[..], &answers[1].1.output_ids].concat();
            ids.pop();
            let all = generate(target.as_ref(), None, &ids, &GenerateOptions::greedy(1, &[])).unwrap();
            foreign[1].1.output_ids[last] = (all.output_ids()[0] + 17) % tiny::VOCAB;
            let found = first_foreign_token(target.as_ref(), &foreign).unwrap().expect("a foreign token");
            assert_eq!((found.id.as_str(), found.answer_index), ("1", last));
            assert_eq!((found.token, found.greedy), (foreign[1].1.output_ids[last], all.output_ids()[0]));
        }
    }
}

#[test]
fn a_conversation_goes_on_from_the_own_answers() {
    let target = tiny::target(5);
    for (temperature, seed) in [(0.0, 0), (0.9, 4)] {
        let options = GenerateOptions { temperature, seed, ..GenerateOptions::greedy(12, &[3]) };
        let prompts: Vec<EvalPrompt> = ["a", "silent", "c"]
            .into_iter()
            .enumerate()
            .map(|(i, id)| EvalPrompt { turns: 1 + i, ..EvalPrompt::new(i, id, tiny::prompt(i as u64, 6)) })
            .collect();
        let mut proposers: Vec<Box<dyn Proposer>> = vec![Box::new(NgramProposer::new(6))];
        let mut hooks = Hooks::default();
        let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut hooks).unwrap();
        assert_eq!(hooks.answered, ["a", "silent#1", "c#1", "c#2", "c#3"]);
        assert_eq!(walk.failed, hooks.failed);
        assert_eq!((walk.failed.len(), walk.failed[0].id.as_str(), walk.unasked), (1, "silent#2", 0));
        assert_eq!(walk.failed[0].problem, "nothing to say");
        let (first, second) = (&walk.runs[2], &walk.runs[3]);
        let history = [&prompts[2].ids[..3], first.speculative[0].output_ids(), &[4, 5, 0]].concat();
        assert_eq!(second.speculative[0].ids[..second.speculative[0].prompt_len], history);
        assert_eq!(second.prompt.ids, history);
        let report = summarise(&walk, &[("ngram".into(), 6)], &settings(&options, LoopRule::default()));
        assert_eq!(report.proposers[0].lossless.as_ref().unwrap().verdict, Verdict::Identical);
        assert_eq!((report.prompts, report.failed.len()), (5, 1));
        // Questions of one conversation draw apart, and a replay draws as they did.
        let streams: std::collections::BTreeSet<u64> = walk.runs.iter().map(|run| run.prompt.stream()).collect();
        assert_eq!(streams.len(), 5);
        let replay = replay_walk(target.as_ref(), &mut proposers, &own_answers(&walk), &options, 100, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        for (run, again) in walk.runs.iter().zip(&replay.runs) {
            assert_eq!(run.speculative[0].cycles, again.cycles[0], "{}", run.prompt.name());
        }
    }
}

#[test]
fn a_prompt_that_fails_stops_nobody() {
    let target = tiny::target(5);
    let mut prompts: Vec<EvalPrompt> =
        (0..4).map(|i| EvalPrompt::new(i as usize, format!("p{i}"), tiny::prompt(i, 5))).collect();
    // The very first, on which everything warms up, and a later one.
    prompts[0].ids = vec![1; target.spec().max_positions];
    prompts[2].ids = vec![tiny::VOCAB];
    let mut proposers: Vec<Box<dyn Proposer>> = vec![Box::new(NgramProposer::new(6))];
    let options = GenerateOptions::greedy(8, &[]);
    let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut ()).unwrap();
    let answered: Vec<String> = walk.runs.iter().map(|run| run.prompt.name()).collect();
    assert_eq!(answered, ["p1", "p3"]);
    let problems: Vec<(&str, bool)> = walk
        .failed
        .iter()
        .map(|f| (f.id.as_str(), f.problem.contains("context") || f.problem.contains("vocabulary")))
        .collect();
    assert_eq!(problems, [("p0", true), ("p2", true)], "{:?}", walk.failed);
    let report = summarise(&walk, &[("ngram".into(), 6)], &settings(&options, LoopRule::default()));
    assert_eq!((report.prompts, report.proposers[0].per_prompt.len(), report.failed.len()), (2, 2, 2));
}

#[test]
fn at_most_so_many_blocks() {
    let target = tiny::target(5);
    let prompts = [EvalPrompt { turns: 2, ..EvalPrompt::new(0, "p", tiny::prompt(1, 5)) }];
    let whole = GenerateOptions::greedy(30, &[]);
    let mut proposers: Vec<Box<dyn Proposer>> = vec![Box::new(NgramProposer::new(6))];
    let all = walk_live(target.as_ref(), &mut proposers, &prompts, &whole, &mut Hooks::default()).unwrap();
    let cycles = all.runs[0].speculative[0].cycles.len();
    for most in [1, 3, cycles - 1, cycles, 100] {
        let options = GenerateOptions { max_blocks: Some(most), ..whole.clone() };
        let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut Hooks::default()).unwrap();
        let (run, before) = (&walk.runs[0], &all.runs[0]);
        assert_eq!(run.plain.ids, before.plain.ids, "plain decoding has no blocks to count");
        assert_eq!(run.speculative[0].cycles[..], before.speculative[0].cycles[..most.min(cycles)], "{most} blocks");
        assert_eq!(run.speculative[0].finish == Finish::Early, most < cycles);
        // The conversation goes on from the whole answer.
        assert_eq!(walk.runs[1].prompt, all.runs[1].prompt);
        let report = summarise(&walk, &[("ngram".into(), 6)], &settings(&options, LoopRule::default()));
        assert_eq!(report.proposers[0].lossless.as_ref().unwrap().identical_answers, 2);
        let replay = replay_walk(target.as_ref(), &mut proposers, &own_answers(&walk), &options, 100, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(replay.runs[0].cycles[0], run.speculative[0].cycles);
    }
}

#[test]
fn what_if_is_the_walk_and_its_bounds_hold() {
    for seed in [5, 11] {
        let target = tiny::target(seed);
        let drafter = tiny::drafter(target.as_ref(), 6, seed);
        let prompts: Vec<EvalPrompt> =
            (0..5).map(|i| EvalPrompt::new(i as usize, i.to_string(), tiny::prompt(i, 5))).collect();
        let options = GenerateOptions::greedy(25, &[3]);
        let chain = || DflashProposer::new("d", &drafter, target.as_ref(), None).unwrap();
        let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![Box::new(chain())];
        let walk = walk_live(target.as_ref(), &mut proposers, &prompts, &options, &mut ()).unwrap();
        for rule in [LoopRule::default(), LoopRule { ngram: 2, window: 2, repeated: 2 }] {
            let report = summarise(&walk, &[("d".into(), 6)], &settings(&options, rule));
            let trees = [1, 2, 4, 8, 40].map(TreeRule::best_first);
            let answers = own_answers(&walk);
            let found = what_if(target.as_ref(), &mut chain(), &answers, &options, &rule, &trees, 60).unwrap();
            let outside = &report.proposers[0].outside_loops;
            assert_eq!(found.cycles, outside.cycles);
            let chain_length = found.chain_accepted_drafts.unwrap() + 1.0;
            assert!((chain_length - outside.acceptance_length_micro.unwrap()).abs() < 1e-12, "{found:?}");
            let mut before = 0.0;
            for one in &found.budgets {
                let (tree, streak) = (one.ddtree_accepted_drafts.unwrap(), one.top_k_streak.unwrap());
                assert!(before <= tree && tree <= streak, "{found:?}");
                before = tree;
                assert_eq!(one.oracle_share_at_slot.len(), 5);
            }
            // Other shapes are judged as they are: a seeded tree of fewer nodes than slots is a part of the chain.
            let seeded = [2, 5].map(|budget| TreeRule { budget, seeded: true, temperature: 1.7 });
            let other = what_if(target.as_ref(), &mut chain(), &answers, &options, &rule, &seeded, 60).unwrap();
            assert_eq!(other.budgets[1].ddtree_accepted_drafts, found.chain_accepted_drafts);
            assert!(other.budgets[0].ddtree_accepted_drafts <= found.chain_accepted_drafts);
            assert_eq!(other.budgets[0].top_k_streak, found.budgets[1].top_k_streak);
            // One candidate a slot: the streak is the chain, and its first slot's oracle is the chain's.
            assert_eq!(found.budgets[0].top_k_streak, found.chain_accepted_drafts);
            // All of a small vocabulary hold everything.
            assert!(
                found.budgets[4].oracle_share_at_slot[0].unwrap() > found.budgets[0].oracle_share_at_slot[0].unwrap()
            );
        }
    }
}
