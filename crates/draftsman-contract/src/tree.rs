//! Best-first draft trees from per-slot top-k log-probabilities.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use crate::{ParentError, TreeShape};

/// A drafted token in a [`DraftTree`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The drafted token.
    pub token: u32,
    /// Drafts on the path from the root to here, itself included: 1 for a candidate of the first slot.
    pub depth: usize,
    /// Row of the parent; the root is row 0.
    pub parent: usize,
    /// Log-probability of the whole path.
    pub log_prob: f64,
}

/// A prefix tree of drafts. Row 0 is the root (the anchor, not stored), node i is row i + 1; parents come before children.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DraftTree {
    /// The nodes in insertion order, root excluded.
    pub nodes: Vec<Node>,
}

impl DraftTree {
    /// Rows to verify: the root and every node.
    pub fn rows(&self) -> usize {
        self.nodes.len() + 1
    }

    /// The row below `parent` that drafts `token`.
    pub fn child(&self, parent: usize, token: u32) -> Option<usize> {
        // A child is inserted after its parent, whose node stands at `parent - 1`.
        self.nodes
            .iter()
            .skip(parent)
            .position(|node| node.parent == parent && node.token == token)
            .map(|i| parent + i + 1)
    }

    /// The rows from the root to the last draft that `pick` agrees with: `pick(row)` is the target's own token after
    /// that row. The root is included, so the accepted drafts are one fewer.
    pub fn walk(&self, mut pick: impl FnMut(usize) -> u32) -> Vec<usize> {
        match self.try_walk(|row| Ok::<_, std::convert::Infallible>(Some(pick(row)))) {
            Ok(path) => path,
            Err(never) => match never {},
        }
    }

    /// As [`DraftTree::walk`] where the target's token may be unknown, which ends the walk, or may fail to be had.
    pub fn try_walk<E>(&self, mut pick: impl FnMut(usize) -> Result<Option<u32>, E>) -> Result<Vec<usize>, E> {
        let mut path = vec![0];
        let mut row = 0;
        while let Some(token) = pick(row)?
            && let Some(next) = self.child(row, token)
        {
            path.push(next);
            row = next;
        }
        Ok(path)
    }

    /// Accepted drafts where `truth` is what the target itself would say, as far as it is known.
    pub fn accepted(&self, truth: &[u32]) -> usize {
        let mut truth = truth.iter().copied();
        match self.try_walk(|_| Ok::<_, std::convert::Infallible>(truth.next())) {
            Ok(path) => path.len() - 1,
            Err(never) => match never {},
        }
    }

    /// A tree without branches: one draft after the other, their probabilities unknown (written as certain).
    pub fn chain(drafts: &[u32]) -> Self {
        let node = |(i, &token): (usize, &u32)| Node { token, depth: i + 1, parent: i, log_prob: 0.0 };
        Self { nodes: drafts.iter().enumerate().map(node).collect() }
    }

    /// Which row follows which.
    pub fn shape(&self) -> Result<TreeShape, ParentError> {
        TreeShape::new(self.nodes.iter().map(|node| node.parent).collect())
    }
}

/// How a draft tree is made of the candidates of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeRule {
    /// Nodes, root excluded.
    pub budget: usize,
    /// The chain of first choices goes in before anything else, so that no tree accepts less than the chain (cut to
    /// the budget).
    pub seeded: bool,
    /// Divides the drafter's logits before they become log-probabilities: above 1 widens the tree, below 1 deepens it.
    /// Whoever makes the candidates applies it. It shapes the tree and nothing else.
    pub temperature: f32,
}

impl TreeRule {
    /// The `budget` most probable prefixes at temperature 1: `ddtree{budget}`.
    pub fn best_first(budget: usize) -> Self {
        Self { budget, seeded: false, temperature: 1.0 }
    }

    /// The tree over `slots`, whose log-probabilities are taken as they are.
    pub fn build(&self, slots: &[Vec<(u32, f32)>]) -> DraftTree {
        if self.seeded { seeded_best_first(slots, self.budget) } else { best_first(slots, self.budget) }
    }
}

/// The tree of the `budget` most probable prefixes (root excluded).
///
/// `slots[d]` are the candidates of the slot at depth d + 1, by falling log-probability and rising id ([`crate::top_k`]);
/// `min(budget, vocabulary)` of them make the tree exact. Order of the nodes: falling log-probability of the prefix, ties by
/// the tuple of ranks along the path. Sums are in f64, a sibling's from its elder's (minus the elder's log-probability
/// plus its own), exactly as the official construction does. Candidates of probability 0 (and NaN) end their slot's list.
pub fn best_first(slots: &[Vec<(u32, f32)>], budget: usize) -> DraftTree {
    let mut heap = BinaryHeap::new();
    push(&mut heap, slots, 0, vec![0], 0.0);
    grow(DraftTree::default(), heap, slots, budget)
}

/// As [`best_first`] after the chain of every slot's first candidate: first that chain, then the most probable of the
/// other prefixes.
pub fn seeded_best_first(slots: &[Vec<(u32, f32)>], budget: usize) -> DraftTree {
    let mut tree = DraftTree::default();
    let mut heap = BinaryHeap::new();
    let mut log_prob = 0.0;
    for (row, slot) in slots.iter().enumerate().take(budget) {
        let Some(&(token, own)) = slot.first().filter(|(_, own)| *own > f32::NEG_INFINITY) else { break };
        let mut sibling = vec![0; row];
        sibling.push(1);
        // As in `grow`: the sibling's sum comes from its elder's.
        let elder = log_prob + f64::from(own);
        push(&mut heap, slots, row, sibling, elder - f64::from(own));
        log_prob = elder;
        tree.nodes.push(Node { token, depth: row + 1, parent: row, log_prob });
    }
    grow(tree, heap, slots, budget)
}

/// Adds the best of the `heap` and what follows it until the tree has `budget` nodes.
fn grow(mut tree: DraftTree, mut heap: BinaryHeap<Candidate>, slots: &[Vec<(u32, f32)>], budget: usize) -> DraftTree {
    while tree.nodes.len() < budget {
        let Some(best) = heap.pop() else { break };
        let depth = best.ranks.len();
        let rank = best.ranks[depth - 1];
        let (token, own) = slots[depth - 1][rank];
        tree.nodes.push(Node { token, depth, parent: best.parent, log_prob: best.log_prob });
        let row = tree.nodes.len();

        let mut sibling = best.ranks.clone();
        sibling[depth - 1] += 1;
        push(&mut heap, slots, best.parent, sibling, best.log_prob - f64::from(own));
        let mut child = best.ranks;
        child.push(0);
        push(&mut heap, slots, row, child, best.log_prob);
    }
    tree
}

/// Adds the prefix with `ranks` to the heap if its last candidate exists; `rest` is the log-probability of all the others.
fn push(heap: &mut BinaryHeap<Candidate>, slots: &[Vec<(u32, f32)>], parent: usize, ranks: Vec<usize>, rest: f64) {
    let Some(&rank) = ranks.last() else { return };
    let Some(&(_, own)) = slots.get(ranks.len() - 1).and_then(|slot| slot.get(rank)) else {
        return;
    };
    if own > f32::NEG_INFINITY {
        heap.push(Candidate { log_prob: rest + f64::from(own), ranks, parent });
    }
}

/// A prefix waiting to become a node. The greatest is the next one.
struct Candidate {
    log_prob: f64,
    ranks: Vec<usize>,
    parent: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        // Not total_cmp: 0.0 and -0.0 are a tie. NaN never enters the heap unless a slot holds +inf.
        let by_log_prob = self.log_prob.partial_cmp(&other.log_prob).unwrap_or(Ordering::Equal);
        by_log_prob.then_with(|| other.ranks.cmp(&self.ranks))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}
