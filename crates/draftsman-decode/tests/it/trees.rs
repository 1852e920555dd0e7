//! Tree-speculative output equals plain output; features and cycles are those of the accepted path; at a temperature the
//! distribution is the target's own.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use draftsman_contract::{DraftTree, Node, TreeRule};
use draftsman_decode::{
    Cycle, DecodeError, DflashProposer, GenerateOptions, Generation, LogitTable, LookupThenDraft, NgramProposer,
    Proposer, Sampler, generate,
};
use draftsman_models::{LogitRows, Target, TargetInput, Want};

use crate::branching::Branching;
use crate::tiny;

const BUDGETS: [usize; 4] = [4, 8, 16, 64];

fn rules(budget: usize) -> [TreeRule; 3] {
    let plain = TreeRule::best_first(budget);
    [plain, TreeRule { seeded: true, ..plain }, TreeRule { temperature: 1.7, ..plain }]
}

/// Rows of a cycle from the anchor along the answer.
fn accepted_rows(cycle: &Cycle, ids: &[u32]) -> Vec<usize> {
    let parent = |row: usize| cycle.parents.as_ref().map_or(row - 1, |parents| parents[row - 1]);
    let mut path = vec![0];
    while let Some(&token) = ids.get(cycle.start + path.len())
        && let Some(next) =
            (1..cycle.block.len()).find(|&row| parent(row) == path[path.len() - 1] && cycle.block[row] == token)
    {
        path.push(next);
    }
    path
}

fn check_cycles(generation: &Generation, longer: &[u32], rows: usize) {
    let mut start = generation.prompt_len;
    for cycle in &generation.cycles {
        assert_eq!((cycle.start, cycle.block[0]), (start, generation.ids[start]));
        assert!(cycle.block.len() <= rows, "{} rows", cycle.block.len());
        assert!(cycle.parents.as_ref().is_none_or(|parents| parents.len() + 1 == cycle.block.len()));
        // Not cut at budget or stop: judged by what the target would go on to say.
        let rows = accepted_rows(cycle, longer);
        assert_eq!((cycle.accepted + 1, &cycle.path(longer)), (rows.len(), &rows));
        // No longer than what is known.
        assert_eq!(cycle.path(&longer[..start + 1]), [0]);
        if let Some(token) = cycle.rejected(longer) {
            let chosen = longer[start + rows.len()];
            assert!(token != chosen && cycle.block.contains(&token));
        } else {
            let last = *rows.last().unwrap();
            assert!(cycle.parents.as_ref().map_or(last + 1 == cycle.block.len(), |parents| !parents.contains(&last)));
        }
        assert!(cycle.committed > 0 && cycle.committed <= cycle.accepted + 1);
        start += cycle.committed;
    }
    assert_eq!(start + 1, generation.ids.len());
}

#[test]
fn tree_decoding_equals_plain_decoding_token_for_token() {
    let (mut accepted, mut branched, mut side) = (0, 0, 0);
    for seed in 0..6 {
        let target = tiny::target(seed);
        let target = target.as_ref();
        let drafter = tiny::drafter(target, 7, seed);
        let prompt = tiny::prompt(seed, 3 + 7 * seed as usize % 19);
        for (temperature, top_k, top_p) in [(0.0, 0, 1.0), (0.9, 0, 1.0), (1.3, 12, 0.8)] {
            let free = GenerateOptions {
                temperature,
                top_k,
                top_p,
                seed: 3,
                stream: seed,
                ..GenerateOptions::greedy(60, &[])
            };
            let longer = generate(target, None, &prompt, &free).unwrap().ids;
            let stop = longer[prompt.len() + 20];
            for stop_ids in [vec![], vec![stop]] {
                let options = GenerateOptions { stop_ids, max_new_tokens: 41, ..free.clone() };
                let plain = generate(target, None, &prompt, &options).unwrap();
                for budget in BUDGETS {
                    for rule in rules(budget) {
                        let dflash =
                            || DflashProposer::new("drafter", &drafter, target, None).unwrap().with_tree(rule).unwrap();
                        let hinted = |depth: usize| Branching::new(&longer, tiny::VOCAB as usize, depth, &[], rule);
                        let proposers: [Box<dyn Proposer + '_>; 4] = [
                            Box::new(dflash()),
                            Box::new(LookupThenDraft::new(NgramProposer::new(6), dflash())),
                            Box::new(hinted(9)),
                            Box::new(hinted(3)),
                        ];
                        for mut proposer in proposers {
                            let got = generate(target, Some(proposer.as_mut()), &prompt, &options).unwrap();
                            let what = format!("seed {seed}, {}, {rule:?}, {options:?}", proposer.name());
                            assert_eq!((&got.ids, got.finish), (&plain.ids, plain.finish), "{what}");
                            // The same numbers, not only the same tokens: rows of a tree are rows of their path.
                            assert_eq!(got.gaps, plain.gaps, "{what}");
                            check_cycles(&got, &longer, budget.max(6) + 1);
                            for cycle in &got.cycles {
                                accepted += cycle.accepted;
                                branched += usize::from(cycle.parents.is_some());
                                let rows = accepted_rows(cycle, &longer);
                                side += usize::from(rows.iter().enumerate().any(|(depth, &row)| depth != row));
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 1000 && branched > 1000 && side > 300, "{accepted} accepted, {branched} trees, {side} branches");
}

#[test]
fn features_of_accepted_rows_are_those_of_a_fresh_forward() {
    for (seed, rule) in [(1, TreeRule::best_first(16)), (2, TreeRule { seeded: true, ..TreeRule::best_first(11) })] {
        let target = tiny::target(seed);
        let prompt = tiny::prompt(seed, 9);
        let plain = generate(target.as_ref(), None, &prompt, &GenerateOptions::greedy(50, &[])).unwrap();
        let mut proposer = Branching::new(&plain.ids, tiny::VOCAB as usize, 8, &tiny::TAPS, rule);
        let got = generate(target.as_ref(), Some(&mut proposer), &prompt, &GenerateOptions::greedy(40, &[])).unwrap();
        assert!(got.cycles.len() < 25, "{} cycles for 40 tokens: nothing was accepted", got.cycles.len());
        let want = Want { taps: tiny::TAPS.to_vec(), logits: LogitRows::None };
        let mut cache = target.new_cache();
        let fresh =
            target.forward(&mut [TargetInput { ids: &proposer.observed, cache: &mut cache }], &want, None).unwrap();
        let fresh: Vec<f32> = fresh.features.unwrap().into_data().iter::<f32>().collect();
        assert_eq!(proposer.features, fresh);
    }
}

#[test]
fn a_budget_of_a_chain_is_the_chain_and_no_budget_too() {
    let target = tiny::target(4);
    let drafter = tiny::drafter(target.as_ref(), 6, 4);
    let prompt = tiny::prompt(4, 8);
    let options = GenerateOptions::greedy(30, &[]);
    let cycles = |rule: Option<TreeRule>| {
        let proposer = DflashProposer::new("d", &drafter, target.as_ref(), None).unwrap();
        let mut proposer = match rule {
            Some(rule) => proposer.with_tree(rule).unwrap(),
            None => proposer,
        };
        generate(target.as_ref(), Some(&mut proposer), &prompt, &options).unwrap().cycles
    };
    let chain = cycles(None);
    // A seeded tree of as many nodes as there are slots has no room for branches.
    let seeded = TreeRule { seeded: true, ..TreeRule::best_first(5) };
    assert_eq!(cycles(Some(TreeRule::best_first(0))), chain);
    let tree = cycles(Some(seeded));
    // Near the budget blocks are shorter and the tree has room again.
    let whole = chain.iter().take_while(|cycle| cycle.block.len() == 6).count();
    assert!(whole > 5);
    assert_eq!(tree[..whole], chain[..whole]);
    for temperature in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let proposer = DflashProposer::new("d", &drafter, target.as_ref(), None).unwrap();
        let error = proposer.with_tree(TreeRule { temperature, ..seeded }).err().expect("refused").to_string();
        assert!(error.contains("`draft_temperature`"), "{error}");
    }
}

/// Drafts what it was told to.
struct Fixed(DraftTree);

impl Proposer for Fixed {
    fn name(&self) -> String {
        "fixed".into()
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
        Ok(Vec::new())
    }
    fn draft(&mut self, _: &[u32], _: usize) -> Result<DraftTree, DecodeError> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_misbehaving_tree_is_an_error_not_a_crash() {
    let target = tiny::target(0);
    let check = |nodes: &[(u32, usize)], expected: &str| {
        let node = |&(token, parent): &(u32, usize)| Node { token, depth: 1, parent, log_prob: 0.0 };
        let mut proposer = Fixed(DraftTree { nodes: nodes.iter().map(node).collect() });
        let error = generate(target.as_ref(), Some(&mut proposer), &[1, 2], &GenerateOptions::greedy(9, &[]))
            .expect_err(expected)
            .to_string();
        assert!(error.contains("`fixed`") && error.contains(expected), "`{error}` should say `{expected}`");
    };
    check(&[(1, 0), (2, 1), (3, 2), (4, 3)], "4 drafts where 3 were asked for");
    check(&[(1, 0), (40, 0)], "token 40, outside the target's vocabulary of 40");
    check(&[(1, 0), (2, 2)], "row 2 of a draft tree has row 2 as its parent");
    // The same token twice under one parent is a waste and no error.
    let nodes = [(7, 0), (7, 0), (8, 1), (9, 2)].map(|(token, parent)| Node { token, depth: 1, parent, log_prob: 0.0 });
    let options = GenerateOptions::greedy(9, &[]);
    let plain = generate(target.as_ref(), None, &[1, 2], &options).unwrap();
    let mut twice = Fixed(DraftTree { nodes: nodes.to_vec() });
    let got = generate(target.as_ref(), Some(&mut twice), &[1, 2], &GenerateOptions::greedy(5, &[]));
    // Near the end the block is one row too deep for what is asked.
    assert!(got.is_err() || got.unwrap().ids == plain.ids[..7]);
}

/// Every answer of `left` tokens after `ids` with its probability.
fn enumerate(target: &dyn Target, options: &GenerateOptions, ids: &[u32], left: usize) -> Vec<(Vec<u32>, f64)> {
    if left == 0 {
        return vec![(Vec::new(), 1.0)];
    }
    let want = Want { taps: vec![], logits: LogitRows::Last };
    let output =
        target.forward(&mut [TargetInput { ids, cache: &mut target.new_cache() }], &want, None).unwrap().logits;
    let table = LogitTable::read(output, 1).unwrap();
    // By the definition: sorted, cut to `top_k`, then to the fewest that hold `top_p`.
    let mut tokens: Vec<(u32, f64)> = (0..)
        .zip(table.row(0))
        .map(|(id, &logit)| (id, (f64::from(logit) / f64::from(options.temperature)).exp()))
        .collect();
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
    if options.top_k > 0 {
        tokens.truncate(options.top_k);
    }
    let total: f64 = tokens.iter().map(|(_, weight)| weight).sum();
    let mut held = 0.0;
    let enough = tokens.iter().take_while(|(_, weight)| {
        let more = held < f64::from(options.top_p) * total;
        held += weight;
        more
    });
    let tokens: Vec<(u32, f64)> = enough.copied().collect();
    let total: f64 = tokens.iter().map(|(_, weight)| weight).sum();
    let mut all = Vec::new();
    for (token, weight) in tokens {
        let longer = [ids, &[token]].concat();
        for (rest, probability) in enumerate(target, options, &longer, left - 1) {
            all.push(([&[token], &rest[..]].concat(), weight / total * probability));
        }
    }
    all
}

/// How far the counts are from `expected`, in standard deviations of chi-square (Wilson and Hilferty). Rare answers
/// count together; an answer that can't be is infinitely far.
fn deviation(counts: &BTreeMap<Vec<u32>, usize>, expected: &[(Vec<u32>, f64)], draws: usize) -> f64 {
    if !counts.keys().all(|answer| expected.iter().any(|(known, _)| known == answer)) {
        return f64::INFINITY;
    }
    let (mut chi, mut cells) = (0.0, 0);
    let (mut rare_count, mut rare) = (0.0, 0.0);
    let mut add = |count: f64, expected: f64| {
        chi += (count - expected).powi(2) / expected;
        cells += 1;
    };
    for (answer, probability) in expected {
        let (count, expected) = (counts.get(answer).copied().unwrap_or(0) as f64, probability * draws as f64);
        if expected < 8.0 {
            rare_count += count;
            rare += expected;
        } else {
            add(count, expected);
        }
    }
    if rare > 0.0 {
        add(rare_count, rare);
    }
    let freedom = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * freedom);
    ((chi / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

#[test]
fn sampled_answers_of_trees_have_the_targets_distribution() {
    let draws = 3000;
    let target = tiny::target(8);
    let target = target.as_ref();
    let drafter = tiny::drafter(target, 5, 8);
    let prompt = tiny::prompt(8, 6);
    let likely = generate(target, None, &prompt, &GenerateOptions::greedy(8, &[])).unwrap().ids;
    for (temperature, top_k, top_p) in [(1.5, 4, 1.0), (0.8, 0, 0.6), (2.0, 6, 0.7)] {
        let options = GenerateOptions { temperature, top_k, top_p, ..GenerateOptions::greedy(3, &[]) };
        let expected = enumerate(target, &options, &prompt, 3);
        assert!((expected.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9);
        let tree = TreeRule { seeded: true, temperature: 2.0, ..TreeRule::best_first(12) };
        let proposers: [Box<dyn Proposer + '_>; 2] = [
            Box::new(DflashProposer::new("d", &drafter, target, None).unwrap().with_tree(tree).unwrap()),
            Box::new(Branching::new(&likely, tiny::VOCAB as usize, 4, &[], tree)),
        ];
        let mut accepted = 0;
        for mut proposer in proposers {
            let mut counts = BTreeMap::new();
            for seed in 0..draws {
                let options = GenerateOptions { seed: seed as u64, ..options.clone() };
                let got = generate(target, Some(proposer.as_mut()), &prompt, &options).unwrap();
                accepted += got.cycles.iter().map(|c| c.accepted).sum::<usize>();
                *counts.entry(got.output_ids().to_vec()).or_default() += 1;
            }
            let off = deviation(&counts, &expected, draws);
            assert!(off < 4.0, "{}: {off:.1} standard deviations at {options:?}", proposer.name());
            // The test can fail: another temperature is told apart.
            let other = GenerateOptions { temperature: temperature * 1.5, ..options.clone() };
            let wrong = enumerate(target, &other, &prompt, 3);
            assert!(deviation(&counts, &wrong, draws) > 5.0, "blind to a temperature of {}", other.temperature);
        }
        assert!(accepted > 300, "{accepted} drafts accepted at {options:?}");
    }
}

#[test]
fn top_k_and_top_p_keep_what_they_say() {
    let logits = [1.0f32, 3.0, 2.0, 2.0, f32::NEG_INFINITY, 0.0];
    let drawn = |top_k: usize, top_p: f32| {
        let options = GenerateOptions { temperature: 1.0, top_k, top_p, ..GenerateOptions::greedy(1, &[]) };
        let sampler = Sampler::new(&options);
        let tokens = (0..4000).map(|position| sampler.pick(&logits, position).unwrap().token);
        tokens.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    // Shares: 1 has 0.52, 2 and 3 have 0.19 each, 0 has 0.07, 5 has 0.026.
    for (top_k, top_p, expected) in [
        (0, 1.0, &[0, 1, 2, 3, 5][..]),
        (1, 1.0, &[1]),
        // Equals of the last one stay.
        (2, 1.0, &[1, 2, 3]),
        (3, 1.0, &[1, 2, 3]),
        (4, 1.0, &[0, 1, 2, 3]),
        (99, 1.0, &[0, 1, 2, 3, 5]),
        (0, 0.5, &[1]),
        (0, 0.6, &[1, 2]),
        (0, 0.8, &[1, 2, 3]),
        (0, 0.93, &[0, 1, 2, 3]),
        (0, 1e-9, &[1]),
        // Shares of what top_k left: 1 has 0.58, 2 and 3 have 0.21.
        (2, 0.57, &[1]),
        (2, 0.78, &[1, 2]),
        (2, 0.8, &[1, 2, 3]),
    ] {
        assert_eq!(drawn(top_k, top_p), expected, "top_k {top_k}, top_p {top_p}");
    }
    let target = tiny::target(0);
    for top_p in [0.0, -0.1, 1.1, f32::NAN] {
        let options = GenerateOptions { top_p, ..GenerateOptions::greedy(4, &[]) };
        assert!(generate(target.as_ref(), None, &[1], &options).unwrap_err().to_string().contains("`top_p`"));
    }
    let nan = GenerateOptions { temperature: 1.0, top_k: 2, top_p: 0.9, ..GenerateOptions::greedy(1, &[]) };
    assert!(Sampler::new(&nan).pick(&[1.0, f32::NAN, 3.0, 2.0], 4).is_err());
}
