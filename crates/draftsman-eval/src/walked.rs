//! Counts over the anchors that decoding visited.

use draftsman_contract::AcceptanceStats;
use draftsman_decode::Cycle;

use crate::bands::Bands;

/// Walked acceptance, all tokens and those outside and inside loops.
///
/// A cycle counts with the tokens it committed: accepted drafts and bonus, cut at the budget and after a stop token. The
/// beginning of a loop cuts in the same way: a cycle that reaches into the loop counts with its tokens before it, and
/// cycles that begin in the loop are counted apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Walked {
    /// Over everything that was decoded.
    pub all: AcceptanceStats,
    /// Over what lies outside loops: the headline.
    pub outside_loops: AcceptanceStats,
    /// Over the cycles that begin in a loop.
    pub inside_loops: AcceptanceStats,
    /// The headline by where in prompt + answer the anchor stands.
    pub by_position: Bands,
    /// Answers in which a loop began.
    pub looping_answers: u64,
}

impl Walked {
    /// Adds one answer: its cycles, the length of its prompt, and where in the answer a loop begins.
    pub fn add_answer(&mut self, cycles: &[Cycle], prompt_len: usize, loop_start: Option<usize>) {
        self.looping_answers += u64::from(loop_start.is_some());
        for stats in [&mut self.all, &mut self.outside_loops, &mut self.inside_loops] {
            stats.begin_response();
        }
        for cycle in cycles {
            record(&mut self.all, cycle.committed);
            match committed_before(cycle, prompt_len, loop_start) {
                0 => record(&mut self.inside_loops, cycle.committed),
                before => {
                    record(&mut self.outside_loops, before);
                    self.by_position.record(cycle.start, before);
                }
            }
        }
    }
}

fn record(stats: &mut AcceptanceStats, committed: usize) {
    if let Some(accepted) = committed.checked_sub(1) {
        stats.record_cycle(accepted);
    }
}

/// Tokens of `cycle` that lie before the loop.
pub(crate) fn committed_before(cycle: &Cycle, prompt_len: usize, loop_start: Option<usize>) -> usize {
    room(cycle.start, cycle.start + 1 + cycle.committed, prompt_len, loop_start)
}

/// Tokens after the anchor at `start` that count: up to `end`, and before the loop. Both are places in prompt + answer.
pub(crate) fn room(start: usize, end: usize, prompt_len: usize, loop_start: Option<usize>) -> usize {
    let end = loop_start.map_or(end, |at| end.min(prompt_len + at));
    end.saturating_sub(start + 1)
}
