//! Answers of a lock-step run, kept in memory.

use std::ops::ControlFlow;

use draftsman_decode::{Answer, LockstepHooks};

/// Collects every finished answer by the index of its request.
pub(crate) struct Collect(Vec<Option<Answer>>);

impl Collect {
    pub(crate) fn new(requests: usize) -> Self {
        Self(vec![None; requests])
    }

    pub(crate) fn into_answers(self) -> Vec<Option<Answer>> {
        self.0
    }
}

impl LockstepHooks for Collect {
    fn finished(&mut self, answer: Answer) -> ControlFlow<()> {
        let index = answer.index;
        self.0[index] = Some(answer);
        ControlFlow::Continue(())
    }
}
