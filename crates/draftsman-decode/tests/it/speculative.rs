//! Speculative output equals plain output, whatever is proposed; and the edges of the loop.

use burn::tensor::Tensor;
use draftsman_contract::{ContextRule, CounterRng, SlotLayout};
use draftsman_decode::{
    DecodeError, DflashProposer, Finish, GenerateOptions, Generation, LookupThenDraft, NgramProposer, Proposer,
    generate,
};
use draftsman_models::Target;

use crate::tiny;

/// Proposes what the plain answer says, with mistakes put in at random: `right` of 100 drafts are right.
/// 100 = oracle, 0 = adversary. Also checks what it is fed.
struct Scripted {
    answer: Vec<u32>,
    right: usize,
    block_size: usize,
    observed: Vec<u32>,
    calls: u64,
}

impl Scripted {
    fn new(answer: &[u32], right: usize, block_size: usize) -> Self {
        Self { answer: answer.to_vec(), right, block_size, observed: Vec::new(), calls: 0 }
    }
}

impl Proposer for Scripted {
    fn name(&self) -> String {
        format!("scripted {}", self.right)
    }
    fn taps(&self) -> &[usize] {
        &tiny::TAPS
    }
    fn block_size(&self) -> usize {
        self.block_size
    }
    fn begin(&mut self) {
        self.observed.clear();
    }
    fn observe(&mut self, features: Option<Tensor<2>>, ids: &[u32]) -> Result<(), DecodeError> {
        assert_eq!(features.unwrap().dims()[0], ids.len());
        self.observed.extend_from_slice(ids);
        Ok(())
    }
    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let (anchor, before) = ids.split_last().unwrap();
        assert_eq!(self.observed, before, "observed rows are exactly those before the anchor {anchor}");
        self.calls += 1;
        let mut rng = CounterRng::new(5, &[self.calls]);
        let count = max_drafts.min(self.block_size - 1);
        Ok((0..count)
            .map(|i| {
                // Past the end of the known answer the script guesses 0.
                let truth = self.answer.get(ids.len() + i).copied().unwrap_or(0);
                if rng.below(100) < self.right { truth } else { (truth + 1) % tiny::VOCAB }
            })
            .collect())
    }
}

/// Invariants that every generation keeps.
fn check_shape(generation: &Generation, options: &GenerateOptions) {
    let produced = generation.output_ids();
    assert!(produced.len() <= options.max_new_tokens);
    assert_eq!(generation.gaps.len(), produced.len());
    assert_eq!(generation.cycle_times.len(), generation.cycles.len());
    let mut start = generation.prompt_len;
    for cycle in &generation.cycles {
        assert_eq!(cycle.start, start);
        assert_eq!(cycle.block[0], generation.ids[start]);
        assert!(cycle.block.len() <= options.max_new_tokens + generation.prompt_len - start);
        assert!(cycle.accepted < cycle.block.len() && cycle.committed <= cycle.accepted + 1 && cycle.committed > 0);
        let matched = cycle.accepted.min(cycle.committed);
        assert_eq!(cycle.block[1..=matched], generation.ids[start + 1..=start + matched]);
        start += cycle.committed;
    }
    assert_eq!(start + 1, generation.ids.len());
    let stops = produced.iter().position(|&t| options.stops(t));
    assert_eq!(generation.finish == Finish::Stop, stops.is_some());
    if let Some(at) = stops {
        assert_eq!(at + 1, produced.len());
    }
}

fn check(
    target: &dyn Target,
    proposer: &mut dyn Proposer,
    prompt: &[u32],
    plain: &Generation,
    options: &GenerateOptions,
) -> Generation {
    let got = generate(target, Some(proposer), prompt, options).unwrap();
    check_shape(&got, options);
    assert_eq!(got.ids, plain.ids, "{} at {options:?}", proposer.name());
    assert_eq!(got.finish, plain.finish);
    // The same rows were read, so even the logits are the same.
    assert_eq!(got.gaps, plain.gaps, "{}", proposer.name());
    got
}

#[test]
fn speculative_equals_plain_for_every_proposer() {
    let mut accepted = std::collections::BTreeMap::<String, usize>::new();
    for seed in 0..10 {
        let target = tiny::target(seed);
        let drafter = tiny::drafter(target.as_ref(), 6, seed);
        let prompt = tiny::prompt(seed, 3 + 7 * seed as usize % 19);
        for temperature in [0.0, 0.9] {
            let open_ended = GenerateOptions { temperature, seed: 3, stream: seed, ..GenerateOptions::greedy(41, &[]) };
            let free = generate(target.as_ref(), None, &prompt, &open_ended).unwrap();
            assert_eq!(free.output_ids().len(), 41);
            // The token in the middle of the answer as stop, too: it may fall anywhere in a block.
            for stop in [vec![], vec![free.output_ids()[20], tiny::MASK]] {
                let options = GenerateOptions { stop_ids: stop, ..open_ended.clone() };
                let plain = generate(target.as_ref(), None, &prompt, &options).unwrap();
                check_shape(&plain, &options);
                assert_eq!(plain.ids, free.ids[..plain.ids.len()]);
                let drafts = || DflashProposer::new("drafter", &drafter, target.as_ref(), None).unwrap();
                let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![
                    Box::new(NgramProposer::new(6)),
                    Box::new(drafts()),
                    Box::new(LookupThenDraft::new(NgramProposer::new(6), drafts())),
                ];
                for right in [0, 50, 80, 100] {
                    proposers.push(Box::new(Scripted::new(&free.ids, right, 7)));
                }
                for proposer in &mut proposers {
                    // Twice: the second run meets a used proposer.
                    let first = check(target.as_ref(), proposer.as_mut(), &prompt, &plain, &options);
                    let second = check(target.as_ref(), proposer.as_mut(), &prompt, &plain, &options);
                    if !proposer.name().starts_with("scripted") {
                        assert_eq!(first.cycles, second.cycles);
                    }
                    *accepted.entry(proposer.name()).or_default() +=
                        first.cycles.iter().map(|c| c.accepted).sum::<usize>();
                }
            }
        }
    }
    // The test would mean little if nothing was ever accepted, or everything.
    assert_eq!(accepted["scripted 0"], 0);
    for name in ["ngram", "drafter", "ngram+drafter", "scripted 50", "scripted 100"] {
        assert!(accepted[name] > 0, "{name} had no draft accepted: {accepted:?}");
    }
}

#[test]
fn an_oracle_needs_the_fewest_passes() {
    let target = tiny::target(3);
    let prompt = tiny::prompt(3, 9);
    for budget in 1..=30 {
        let options = GenerateOptions::greedy(budget, &[]);
        // One token more than the budget: a full last block is accepted whole and its bonus token cut.
        let longer = generate(target.as_ref(), None, &prompt, &GenerateOptions::greedy(budget + 8, &[])).unwrap();
        let plain = generate(target.as_ref(), None, &prompt, &options).unwrap();
        let got = check(target.as_ref(), &mut Scripted::new(&longer.ids, 100, 8), &prompt, &plain, &options);
        // The prefill makes one token, a cycle at most eight.
        assert_eq!(got.cycles.len(), (budget - 1).div_ceil(8), "budget {budget}");
        for cycle in &got.cycles {
            let room = prompt.len() + budget - cycle.start;
            assert_eq!(cycle.block.len(), room.min(8), "budget {budget}");
            assert_eq!(cycle.accepted, cycle.block.len() - 1);
            assert_eq!(cycle.committed, cycle.block.len().min(room - 1));
        }
    }
}

#[test]
fn nothing_to_decode_runs_no_cycle() {
    let target = tiny::target(1);
    let prompt = tiny::prompt(1, 5);
    let plain = generate(target.as_ref(), None, &prompt, &GenerateOptions::greedy(20, &[])).unwrap();
    let first = plain.output_ids()[0];
    let check = |options: GenerateOptions, tokens: usize, finish: Finish| {
        let got = generate(target.as_ref(), Some(&mut NgramProposer::new(8)), &prompt, &options).unwrap();
        assert_eq!(got.output_ids(), &plain.output_ids()[..tokens], "{options:?}");
        assert!(got.cycles.is_empty(), "{options:?}");
        assert_eq!(got.finish, finish, "{options:?}");
    };
    check(GenerateOptions::greedy(0, &[]), 0, Finish::Length);
    check(GenerateOptions::greedy(1, &[]), 1, Finish::Length);
    check(GenerateOptions::greedy(1, &[first]), 1, Finish::Stop);
    check(GenerateOptions::greedy(20, &[first]), 1, Finish::Stop);
}

#[test]
fn accepted_is_not_cut_at_a_stop_but_the_answer_is() {
    let target = tiny::target(2);
    let prompt = tiny::prompt(2, 6);
    let free = generate(target.as_ref(), None, &prompt, &GenerateOptions::greedy(24, &[])).unwrap();
    // A stop token whose first occurrence is inside the first block, with true tokens after it.
    let at = (2..6).find(|&i| !free.output_ids()[..i].contains(&free.output_ids()[i])).expect("a fresh token");
    let options = GenerateOptions::greedy(24, &[free.output_ids()[at]]);
    let got = generate(target.as_ref(), Some(&mut Scripted::new(&free.ids, 100, 8)), &prompt, &options).unwrap();
    check_shape(&got, &options);
    assert_eq!(got.cycles.len(), 1);
    assert_eq!(got.cycles[0].accepted, 7);
    assert_eq!(got.cycles[0].committed, at);
}

#[test]
fn block_size_one_is_plain_decoding() {
    let target = tiny::target(4);
    let drafter = tiny::drafter(target.as_ref(), 6, 4);
    let prompt = tiny::prompt(4, 8);
    let options = GenerateOptions::greedy(17, &[]);
    let plain = generate(target.as_ref(), None, &prompt, &options).unwrap();
    let mut one = DflashProposer::new("one", &drafter, target.as_ref(), Some(1)).unwrap();
    assert_eq!(check(target.as_ref(), &mut one, &prompt, &plain, &options).cycles, plain.cycles);
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let target = tiny::target(0);
    let check = |prompt: &[u32], options: GenerateOptions, expected: &str| {
        let error = generate(target.as_ref(), None, prompt, &options).expect_err(expected).to_string();
        assert!(error.contains(expected), "`{error}` should say `{expected}`");
    };
    let greedy = GenerateOptions::greedy(8, &[]);
    check(&[], greedy.clone(), "the prompt is empty");
    check(&[1, 40], greedy.clone(), "token id 40 at index 1 is outside the target's vocabulary of 40");
    check(
        &tiny::prompt(0, 185),
        greedy.clone(),
        "185 prompt tokens + 8 new tokens = 193 exceed the target's context of 192",
    );
    check(&[1], GenerateOptions { temperature: -1.0, ..greedy.clone() }, "`temperature`");
    check(&[1], GenerateOptions { temperature: f32::NAN, ..greedy.clone() }, "`temperature`");
    // The limit itself is allowed.
    generate(target.as_ref(), None, &tiny::prompt(0, 184), &greedy).unwrap();
}

/// Misbehaves on purpose.
struct Broken(Vec<u32>);

impl Proposer for Broken {
    fn name(&self) -> String {
        "broken".into()
    }
    fn taps(&self) -> &[usize] {
        &[]
    }
    fn block_size(&self) -> usize {
        4
    }
    fn begin(&mut self) {}
    fn observe(&mut self, _: Option<Tensor<2>>, _: &[u32]) -> Result<(), DecodeError> {
        Ok(())
    }
    fn propose(&mut self, _: &[u32], _: usize) -> Result<Vec<u32>, DecodeError> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_misbehaving_proposer_is_an_error_not_a_crash() {
    let target = tiny::target(0);
    let check = |drafts: Vec<u32>, expected: &str| {
        let error = generate(target.as_ref(), Some(&mut Broken(drafts)), &[1, 2], &GenerateOptions::greedy(9, &[]))
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "`{error}` should say `{expected}`");
    };
    check(vec![1, 2, 3, 4], "4 drafts where 3 were asked for");
    check(vec![1, 40], "token 40, outside the target's vocabulary of 40");
}

#[test]
fn a_drafter_whose_first_row_predicts_too_drafts_a_whole_block() {
    let target = tiny::target(4);
    let drafter = tiny::drafter(target.as_ref(), 6, 4);
    let mut config = drafter.config().clone();
    config.contract.slots = SlotLayout::Shifted;
    let shifted = drafter.with_config(config.clone()).unwrap();
    let prompt = tiny::prompt(4, 8);
    let options = GenerateOptions::greedy(25, &[]);
    let plain = generate(target.as_ref(), None, &prompt, &options).unwrap();
    let mut proposer = DflashProposer::new("shifted", &shifted, target.as_ref(), None).unwrap();
    assert_eq!(proposer.block_size(), 7);
    let got = check(target.as_ref(), &mut proposer, &prompt, &plain, &options);
    assert_eq!(got.cycles[0].block.len(), 7);

    config.contract.context = ContextRule::ThroughAnchor;
    let leaky = drafter.with_config(config).unwrap();
    let error = DflashProposer::new("leaky", &leaky, target.as_ref(), None).err().expect("refused").to_string();
    assert!(error.contains("`leaky`") && error.contains("before_anchor"), "{error}");
}
