//! Best-first draft trees from per-slot top-k log-probabilities.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use crate::Visible;

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
        let mut path = vec![0];
        let mut row = 0;
        while let Some(next) = self.child(row, pick(row)) {
            path.push(next);
            row = next;
        }
        path
    }

    /// Position of every row, root first, when the root is at `start`: siblings share one.
    pub fn positions(&self, start: u32) -> Vec<u32> {
        let depth = |node: &Node| start.saturating_add(u32::try_from(node.depth).unwrap_or(u32::MAX));
        std::iter::once(start).chain(self.nodes.iter().map(depth)).collect()
    }

    /// Keys that every row sees when the tree's rows follow `past` cached keys: all of those, its ancestors and itself.
    pub fn visible(&self, past: usize) -> Visible {
        let mut visible = Visible::with_capacity(self.rows());
        for row in 0..self.rows() {
            let mut ancestors = vec![row];
            let mut at = row;
            while at > 0 {
                at = self.nodes[at - 1].parent;
                ancestors.push(at);
            }
            // Parents come before children, so the path reversed is ascending.
            let path = ancestors.into_iter().rev().map(|row| past + row..past + row + 1);
            visible.push_sorted(std::iter::once(0..past).chain(path));
        }
        visible
    }
}

/// The tree of the `budget` most probable prefixes (root excluded).
///
/// `slots[d]` are the candidates of the slot at depth d + 1, by falling log-probability and rising id ([`crate::top_k`]);
/// `min(budget, vocabulary)` of them make the tree exact. Order of the nodes: falling log-probability of the prefix, ties by
/// the tuple of ranks along the path. Sums are in f64, a sibling's from its elder's (minus the elder's log-probability
/// plus its own), exactly as the official construction does. Candidates of probability 0 (and NaN) end their slot's list.
pub fn best_first(slots: &[Vec<(u32, f32)>], budget: usize) -> DraftTree {
    let mut tree = DraftTree::default();
    let mut heap = BinaryHeap::new();
    push(&mut heap, slots, 0, vec![0], 0.0);
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
