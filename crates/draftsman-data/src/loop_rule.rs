//! Where an answer starts to loop.
//!
//! Small models that decode greedily often fall into a loop, and text that repeats flatters every drafter: it is drafted
//! almost for free, by a lookup as well. So answers are cut where their loop begins before they are trained on, and tokens
//! in loops are counted apart in evaluations.
//!
//! **The rule.** A token is *repeated* when it lies in a run of [`LoopRule::ngram`] tokens (8) that occurred earlier in the
//! same answer. The answer loops as soon as at least [`LoopRule::repeated`] (28) of its last [`LoopRule::window`] tokens (32)
//! are repeated. The loop starts at the first repeated token of that window: everything before is new text.
//!
//! So a loop of any period is found about 28 tokens after it closes, numbered near-copies included (`item 7: … item 8: …`).
//! What code repeats for good reasons is left alone: a call or an import written again, assert lines that differ in their
//! arguments, rows of a table. A passage of some 28 tokens that is written twice word for word is cut even if the author meant it; the
//! part before it stays.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// The numbers of the rule (see the module).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopRule {
    /// Length of the runs that are looked for.
    pub ngram: usize,
    /// How many of the last tokens are looked at.
    pub window: usize,
    /// How many of those must be repeated.
    pub repeated: usize,
}

impl Default for LoopRule {
    fn default() -> Self {
        Self { ngram: 8, window: 32, repeated: 28 }
    }
}

impl LoopRule {
    /// The index at which the first loop of an answer starts, if there is one.
    pub fn loop_start(&self, answer: &[u32]) -> Option<usize> {
        let mut detector = LoopDetector::new(*self);
        answer.iter().find_map(|&id| detector.push(id))
    }

    /// What is wrong with these numbers, if anything.
    pub fn problem(&self) -> Option<String> {
        (self.ngram == 0 || self.repeated == 0 || self.repeated > self.window || self.window > 1 << 16)
            .then(|| format!("loop rule: ngram ({}) and repeated ({}) must be at least 1, and repeated at most window ({}, at most 65536)", self.ngram, self.repeated, self.window))
    }
}

/// The rule, token by token: for use while an answer is being written.
#[derive(Debug, Clone)]
pub struct LoopDetector {
    rule: LoopRule,
    ids: Vec<u32>,
    seen: HashSet<Box<[u32]>>,
    repeated: Vec<bool>,
    found: Option<usize>,
}

impl LoopDetector {
    /// A detector at the start of an answer.
    pub fn new(rule: LoopRule) -> Self {
        Self { rule, ids: Vec::new(), seen: HashSet::new(), repeated: Vec::new(), found: None }
    }

    /// Takes the answer's next token. Returns where the loop starts once one is found, and stays with it.
    pub fn push(&mut self, id: u32) -> Option<usize> {
        if self.found.is_some() {
            return self.found;
        }
        let LoopRule { ngram, window, repeated } = self.rule;
        self.ids.push(id);
        self.repeated.push(false);
        let end = self.ids.len();
        if ngram > 0 && end >= ngram && !self.seen.insert(self.ids[end - ngram..].into()) {
            self.repeated[end - ngram..].fill(true);
        }
        let first = end.saturating_sub(window);
        let recent = &self.repeated[first..];
        if repeated > 0 && recent.iter().filter(|r| **r).count() >= repeated {
            self.found = recent.iter().position(|r| *r).map(|i| first + i);
        }
        self.found
    }

    /// Where the loop starts, if one was found.
    pub fn found(&self) -> Option<usize> {
        self.found
    }
}
