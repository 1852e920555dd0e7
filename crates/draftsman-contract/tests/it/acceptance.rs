//! Accepted drafts: chain, tree and streak against their definitions.

use draftsman_contract::{best_first, chain, top_k_streak, tree_accepted};
use proptest::prelude::*;

use crate::tree::{Prefix, all_prefixes, coarse_slots, order, smooth_slots};

/// The batched rule (ddtree.md, section 8.2): beams of the `budget` best prefixes per depth, pooled; the truth is accepted
/// as deep as its prefix is among the best `budget` of the pool. Ties by the order of the tree.
fn by_beams(slots: &[Vec<(u32, f32)>], truth: &[u32], valid: usize, budget: usize) -> usize {
    let mut beam: Vec<Prefix> = vec![(0.0, Vec::new())];
    let mut pool: Vec<Prefix> = Vec::new();
    for slot in slots {
        let mut next: Vec<Prefix> = Vec::new();
        for (sum, ranks) in &beam {
            for (rank, &(_, log_prob)) in slot.iter().take(budget).enumerate() {
                if log_prob > f32::NEG_INFINITY {
                    next.push((sum + f64::from(log_prob), [&ranks[..], &[rank]].concat()));
                }
            }
        }
        next.sort_by(order);
        next.truncate(budget);
        pool.extend(next.iter().cloned());
        beam = next;
    }
    pool.sort_by(order);
    pool.truncate(budget);
    let mut ranks = Vec::new();
    for (slot, token) in slots.iter().zip(truth).take(valid) {
        let Some(rank) = slot.iter().position(|candidate| candidate.0 == *token) else { break };
        ranks.push(rank);
        if !pool.iter().any(|prefix| prefix.1 == ranks) {
            ranks.pop();
            break;
        }
    }
    ranks.len()
}

/// Truth that often follows the candidates: per slot a rank, or a token that no slot has.
fn truth_for(slots: &[Vec<(u32, f32)>], ranks: &[usize]) -> Vec<u32> {
    slots.iter().zip(ranks).map(|(slot, &rank)| slot.get(rank).map_or(99, |candidate| candidate.0)).collect()
}

fn ranks() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![4 => Just(0usize), 3 => 1usize..3, 1 => 3usize..9], 0..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_tree_is_its_walk_its_beams_and_its_prefixes(
        slots in prop_oneof![coarse_slots(5, 4), smooth_slots(4, 1..=8)],
        ranks in ranks(),
        valid in 0usize..7,
        budget in prop_oneof![0usize..12, Just(8), 0usize..2000],
    ) {
        let truth = truth_for(&slots, &ranks);
        let accepted = tree_accepted(&slots, &truth, valid, budget);
        prop_assert_eq!(accepted, by_beams(&slots, &truth, valid, budget), "beams");

        let usable = valid.min(truth.len());
        let tree = best_first(&slots, budget);
        let mut depths = vec![0; tree.rows()];
        for (index, node) in tree.nodes.iter().enumerate() {
            depths[index + 1] = node.depth;
        }
        let path = tree.walk(|row| if depths[row] < usable { truth[depths[row]] } else { 1000 });
        prop_assert_eq!(accepted, path.len() - 1, "walk");

        let best: Vec<Prefix> = all_prefixes(&slots).into_iter().take(budget).collect();
        let streak = ranks.iter().zip(&slots).take(usable).take_while(|(rank, slot)| **rank < slot.len()).count();
        let deepest = (1..=streak).take_while(|&d| best.iter().any(|prefix| prefix.1 == ranks[..d])).count();
        prop_assert_eq!(accepted, deepest, "all prefixes");
        prop_assert_eq!(top_k_streak(&slots, &truth, valid), streak);
        prop_assert!(accepted <= streak);
    }

    /// The rule as it stands, with a threshold, where no two sums are equal.
    #[test]
    fn the_threshold_of_the_eighth(slots in smooth_slots(5, 2..=8), ranks in ranks()) {
        let truth = truth_for(&slots, &ranks);
        let sums: Vec<f64> = all_prefixes(&slots).iter().map(|prefix| prefix.0).collect();
        prop_assume!(sums.windows(2).all(|pair| pair[0] - pair[1] > 1e-9));
        let threshold = sums.get(7).copied().unwrap_or(f64::NEG_INFINITY);
        let mut sum = 0.0;
        let mut expected = 0;
        for (slot, token) in slots.iter().zip(&truth) {
            let Some(&(_, log_prob)) = slot.iter().find(|candidate| candidate.0 == *token) else { break };
            sum += f64::from(log_prob);
            if sum < threshold - 1e-10 {
                break;
            }
            expected += 1;
        }
        prop_assert_eq!(tree_accepted(&slots, &truth, truth.len(), 8), expected);
    }

    #[test]
    fn a_chain_stops_at_the_first_miss(
        drafts in prop::collection::vec(0u32..3, 0..8),
        truth in prop::collection::vec(0u32..3, 0..8),
        valid in 0usize..9,
    ) {
        let mut expected = 0;
        while expected < valid.min(drafts.len()).min(truth.len()) && drafts[expected] == truth[expected] {
            expected += 1;
        }
        prop_assert_eq!(chain(&drafts, &truth, valid), expected);
        // A tree of one candidate a slot is the chain cut to the budget.
        let slots: Vec<Vec<(u32, f32)>> = drafts.iter().map(|&draft| vec![(draft, -0.5)]).collect();
        for budget in 0..10 {
            prop_assert_eq!(tree_accepted(&slots, &truth, valid, budget), expected.min(budget));
        }
    }
}

#[test]
fn breadth_for_depth() {
    // Two even candidates in the first slot, then sure ones: budget 4 holds both beginnings, and the chain of neither end.
    let slots = vec![vec![(1, -0.7), (2, -0.7)], vec![(3, -0.1)], vec![(4, -0.1)], vec![(5, -0.1)]];
    let check = |truth: [u32; 4], budget: usize, expected: usize| {
        assert_eq!(tree_accepted(&slots, &truth, 4, budget), expected, "{truth:?} with {budget} nodes");
    };
    check([1, 3, 4, 5], 4, 2);
    check([2, 3, 4, 5], 4, 2);
    check([2, 3, 4, 5], 1, 0);
    check([2, 3, 4, 5], 8, 4);
    check([9, 3, 4, 5], 8, 0);
    assert_eq!(tree_accepted(&slots, &[2, 3, 4, 5], 1, 8), 1, "only one usable label");
}
