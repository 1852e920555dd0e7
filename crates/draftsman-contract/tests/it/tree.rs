//! Draft trees against the enumeration of all prefixes.

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use draftsman_contract::{DraftTree, TreeRule, TreeShape, best_first, seeded_best_first};
use proptest::prelude::*;

/// Slots of at most `width` candidates, by falling log-probability and rising id. Log-probabilities are multiples of 1/8,
/// so that ties abound and every sum is exact; probability 0 occurs.
pub(crate) fn coarse_slots(depth: usize, width: usize) -> impl Strategy<Value = Vec<Vec<(u32, f32)>>> {
    let log_prob = prop_oneof![9 => (0u32..24).prop_map(|n| -(n as f32) / 8.0), 1 => Just(f32::NEG_INFINITY)];
    let slot = prop::collection::btree_map(0u32..12, log_prob, 0..=width);
    prop::collection::vec(slot.prop_map(|slot| sorted(slot.into_iter().collect())), 0..=depth)
}

/// Slots with the log-softmax of random logits.
pub(crate) fn smooth_slots(depth: usize, widths: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Vec<(u32, f32)>>> {
    let slot = prop::collection::vec(-6.0f32..6.0, widths).prop_map(|logits| {
        let total = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        // A lone candidate is certain; the rounding of the logarithm must not make it more than that.
        let log_prob = |x: f32| if logits.len() == 1 { 0.0 } else { (f64::from(x) - total) as f32 };
        sorted(logits.iter().enumerate().map(|(id, &x)| (id as u32, log_prob(x))).collect())
    });
    prop::collection::vec(slot, 0..=depth)
}

fn sorted(mut slot: Vec<(u32, f32)>) -> Vec<(u32, f32)> {
    slot.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    slot
}

/// A prefix by its ranks, with the sum of its log-probabilities.
pub(crate) type Prefix = (f64, Vec<usize>);

/// The order of the tree: falling log-probability, then the rank tuple.
pub(crate) fn order(a: &Prefix, b: &Prefix) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap().then_with(|| a.1.cmp(&b.1))
}

/// Every prefix of nonzero probability.
pub(crate) fn all_prefixes(slots: &[Vec<(u32, f32)>]) -> Vec<Prefix> {
    let mut all: Vec<Prefix> = Vec::new();
    let mut last = vec![(0.0, Vec::new())];
    for slot in slots {
        let mut next = Vec::new();
        for (sum, ranks) in &last {
            for (rank, &(_, log_prob)) in slot.iter().enumerate().filter(|(_, c)| c.1 > f32::NEG_INFINITY) {
                let mut ranks = ranks.clone();
                ranks.push(rank);
                next.push((sum + f64::from(log_prob), ranks));
            }
        }
        all.extend(next.iter().cloned());
        last = next;
    }
    all.sort_by(order);
    all
}

/// The tokens from the root to each node.
fn paths(tree: &DraftTree) -> Vec<Vec<u32>> {
    let mut paths: Vec<Vec<u32>> = vec![Vec::new()];
    for node in &tree.nodes {
        let mut path = paths[node.parent].clone();
        path.push(node.token);
        paths.push(path);
    }
    paths.remove(0);
    paths
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_most_probable_prefixes_in_order(slots in coarse_slots(5, 4), budget in 0usize..40) {
        let tree = best_first(&slots, budget);
        let expected: Vec<Prefix> = all_prefixes(&slots).into_iter().take(budget).collect();
        let tokens = |ranks: &[usize]| ranks.iter().enumerate().map(|(d, &r)| slots[d][r].0).collect::<Vec<_>>();
        prop_assert_eq!(paths(&tree), expected.iter().map(|(_, ranks)| tokens(ranks)).collect::<Vec<_>>());
        for (index, (node, (sum, ranks))) in tree.nodes.iter().zip(&expected).enumerate() {
            prop_assert!(node.parent <= index, "a parent comes before its children");
            prop_assert_eq!(node.depth, ranks.len());
            prop_assert_eq!(node.log_prob, *sum);
        }
    }

    #[test]
    fn smooth_log_probabilities_too(slots in smooth_slots(4, 1..=6), budget in 0usize..30) {
        let tree = best_first(&slots, budget);
        let expected = all_prefixes(&slots);
        prop_assert_eq!(tree.nodes.len(), budget.min(expected.len()));
        for (node, (sum, _)) in tree.nodes.iter().zip(&expected) {
            prop_assert!((node.log_prob - sum).abs() < 1e-9, "{} against {}", node.log_prob, sum);
        }
        for (node, path) in tree.nodes.iter().zip(paths(&tree)) {
            let own = |(d, token): (usize, &u32)| f64::from(slots[d].iter().find(|c| c.0 == *token).unwrap().1);
            prop_assert!((node.log_prob - path.iter().enumerate().map(own).sum::<f64>()).abs() < 1e-9);
        }
    }

    #[test]
    fn a_smaller_budget_is_a_beginning(slots in coarse_slots(5, 4), small in 0usize..20, more in 0usize..20) {
        let tree = best_first(&slots, small + more);
        let smaller = best_first(&slots, small);
        prop_assert_eq!(&tree.nodes[..smaller.nodes.len()], &smaller.nodes[..]);
    }

    #[test]
    fn a_seeded_tree_is_the_chain_and_then_the_best_of_the_others(
        slots in coarse_slots(5, 4),
        budget in 0usize..40,
    ) {
        let tree = seeded_best_first(&slots, budget);
        prop_assert_eq!(&tree, &TreeRule { seeded: true, ..TreeRule::best_first(budget) }.build(&slots));
        let (chain, others): (Vec<Prefix>, Vec<Prefix>) =
            all_prefixes(&slots).into_iter().partition(|(_, ranks)| ranks.iter().all(|&rank| rank == 0));
        // The chain by depth, where ties could have put it in another order.
        let mut chain = chain;
        chain.sort_by_key(|(_, ranks)| ranks.len());
        let expected: Vec<Prefix> = chain.into_iter().chain(others).take(budget).collect();
        let tokens = |ranks: &[usize]| ranks.iter().enumerate().map(|(d, &r)| slots[d][r].0).collect::<Vec<_>>();
        prop_assert_eq!(paths(&tree), expected.iter().map(|(_, ranks)| tokens(ranks)).collect::<Vec<_>>());
        for (index, (node, (sum, ranks))) in tree.nodes.iter().zip(&expected).enumerate() {
            prop_assert!(node.parent <= index, "a parent comes before its children");
            prop_assert_eq!((node.depth, node.log_prob), (ranks.len(), *sum));
        }
    }

    #[test]
    fn rows_see_the_past_their_ancestors_and_themselves(
        slots in coarse_slots(5, 4),
        budget in 0usize..25,
        past in 0usize..9,
        window in prop::option::of(1usize..12),
    ) {
        let tree = best_first(&slots, budget);
        let shape = tree.shape().unwrap();
        let visible = shape.visible(past, window);
        let positions = shape.positions(40);
        prop_assert_eq!((visible.rows(), positions.len(), shape.rows()), (tree.rows(), tree.rows(), tree.rows()));
        let mut ancestors: Vec<Vec<usize>> = vec![vec![0]];
        for node in &tree.nodes {
            let mut path = ancestors[node.parent].clone();
            path.push(ancestors.len());
            ancestors.push(path);
        }
        let all: Vec<usize> = (0..tree.rows()).collect();
        prop_assert_eq!(shape.is_chain(), *ancestors.last().unwrap() == all);
        prop_assert_eq!(shape.height() + 1, ancestors.iter().map(Vec::len).max().unwrap());
        for (row, path) in ancestors.iter().enumerate() {
            // The key of a position along the path is visible iff it is less than a window before the row's own.
            let along: Vec<usize> = (0..past).chain(path.iter().map(|r| past + r)).collect();
            let own = along.len() - 1;
            let expected: Vec<u32> = along.iter().enumerate()
                .filter(|(position, _)| own - position < window.unwrap_or(usize::MAX))
                .map(|(_, &key)| key as u32)
                .collect();
            prop_assert_eq!(visible.keys(row).collect::<Vec<_>>(), expected);
            prop_assert_eq!(positions[row] as usize, 40 + path.len() - 1);
            prop_assert_eq!(&shape.path(row), path);
            for length in 0..=path.len() {
                prop_assert!(shape.is_path(&path[..length]));
                prop_assert!(length == 0 || !shape.is_path(&path[1..]) || path.len() == 1);
            }
            let children = &shape.children()[row];
            let expected: Vec<usize> = all.iter().copied().filter(|&r| r > 0 && tree.nodes[r - 1].parent == row).collect();
            prop_assert_eq!(children, &expected);
        }
    }

    #[test]
    fn a_walk_goes_as_far_as_the_picks_have_children(
        slots in coarse_slots(5, 4),
        budget in 0usize..25,
        picks in prop::collection::vec(0u32..12, 26),
    ) {
        let tree = best_first(&slots, budget);
        let path = tree.walk(|row| picks[row]);
        prop_assert_eq!(path[0], 0);
        for pair in path.windows(2) {
            let node = &tree.nodes[pair[1] - 1];
            prop_assert_eq!((node.parent, node.token), (pair[0], picks[pair[0]]));
        }
        let end = *path.last().unwrap();
        prop_assert!(!tree.nodes.iter().any(|node| node.parent == end && node.token == picks[end]));
        // Unknown picks end it: the first `known` rows of the path, and one more if its pick was known.
        for known in 0..=path.len() {
            let mut left = known;
            let cut = tree.try_walk(|row| {
                left = left.checked_sub(1).unwrap_or(usize::MAX);
                Ok::<_, ()>((left < usize::MAX).then(|| picks[row]))
            });
            prop_assert_eq!(cut.unwrap(), &path[..(known + 1).min(path.len())]);
            prop_assert_eq!(tree.try_walk(|row| if row == path[0] { Err(row) } else { Ok(None) }), Err(path[0]));
        }
    }
}

#[test]
fn ties_go_by_rank_tuple() {
    // Log-probabilities 0: a node ties with its child, and (0, ...) comes before (1).
    let slots = vec![vec![(5, 0.0), (6, 0.0)], vec![(7, 0.0), (8, -0.0)]];
    let tree = best_first(&slots, 9);
    assert_eq!(paths(&tree), [vec![5], vec![5, 7], vec![5, 8], vec![6], vec![6, 7], vec![6, 8]]);
}

#[test]
fn nothing_to_draft() {
    assert!(best_first(&[], 8).nodes.is_empty());
    assert!(best_first(&[vec![]], 8).nodes.is_empty());
    assert!(best_first(&[vec![(1, -0.1)]], 0).nodes.is_empty());
    assert!(best_first(&[vec![(1, f32::NEG_INFINITY)]], 8).nodes.is_empty());
    assert!(best_first(&[vec![(1, f32::NAN)]], 8).nodes.is_empty());
    assert_eq!(best_first(&[vec![], vec![(1, -0.1)]], 8).nodes.len(), 0, "no path leads past an empty slot");
    assert!(seeded_best_first(&[vec![(1, f32::NEG_INFINITY)]], 8).nodes.is_empty());
    assert_eq!(DraftTree::default().walk(|_| 3), [0]);
}

#[test]
fn a_chain_is_a_tree() {
    let chain = DraftTree::chain(&[4, 5, 6]);
    assert_eq!(paths(&chain), [vec![4], vec![4, 5], vec![4, 5, 6]]);
    assert!(chain.shape().unwrap().is_chain());
    assert_eq!(chain.walk(|row| [4, 5, 9, 0][row]), [0, 1, 2]);
}

#[test]
fn children_before_their_parents_are_refused() {
    assert_eq!(TreeShape::new(vec![]).unwrap().rows(), 1);
    let error = TreeShape::new(vec![0, 2]).unwrap_err();
    assert_eq!((error.row, error.parent), (2, 2));
    assert!(error.to_string().contains("row 2"), "{error}");
    let shape = TreeShape::new(vec![0, 0, 2]).unwrap();
    for (rows, expected) in [
        (&[][..], true),
        (&[0], true),
        (&[0, 2, 3], true),
        (&[0, 1], true),
        (&[0, 1, 3], false),
        (&[2, 3], false),
        (&[0, 0], false),
        (&[0, 4], false),
        (&[1], false),
    ] {
        assert_eq!(shape.is_path(rows), expected, "{rows:?}");
    }
}
