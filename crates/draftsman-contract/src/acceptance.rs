//! Accepted drafts of one block, the bonus token excluded.
//!
//! `truth` is what the target itself would say, slot by slot; `valid` is how many of its leading entries may be judged
//! (labels that exist and are supervised, up to the first hole). All functions stop there.

use crate::best_first;

/// Leading drafts that equal the truth.
pub fn chain(drafts: &[u32], truth: &[u32], valid: usize) -> usize {
    drafts.iter().zip(truth).take(valid).take_while(|(draft, token)| draft == token).count()
}

/// Leading slots whose candidates hold the truth: no tree of that width accepts more.
pub fn top_k_streak(slots: &[Vec<(u32, f32)>], truth: &[u32], valid: usize) -> usize {
    let holds = |(slot, token): &(&Vec<(u32, f32)>, &u32)| slot.iter().any(|(id, _)| id == *token);
    slots.iter().zip(truth).take(valid).take_while(holds).count()
}

/// Accepted drafts of the best-first tree of `budget` nodes (root excluded) over `slots`: the walk of the truth through
/// [`best_first`], hence the same ties as a live tree. `ddtree8` is this with budget 8.
///
/// `slots` are the drafter's candidates by falling log-probability over the full vocabulary; `budget` of them in every slot
/// make it exact.
pub fn tree_accepted(slots: &[Vec<(u32, f32)>], truth: &[u32], valid: usize, budget: usize) -> usize {
    let reachable = top_k_streak(slots, truth, valid);
    if reachable == 0 {
        return 0;
    }
    // All slots go in: the deeper ones compete for the budget even where the truth can't be followed.
    best_first(slots, budget).accepted(&truth[..reachable])
}
