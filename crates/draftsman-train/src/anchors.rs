//! Which documents a step takes, and which anchors it draws in them.
//!
//! Everything is a function of (seed, epoch, document): a resumed run needs no generator state, only its step.

use draftsman_contract::CounterRng;

/// Streams of the counter-based generator. Numbers are part of what a seed means: never reuse one.
pub(crate) mod stream {
    pub(crate) const VALIDATION_DOCUMENTS: u64 = 1;
    pub(crate) const ORDER: u64 = 3;
    pub(crate) const ANCHORS: u64 = 4;
}

/// Place in the endless stream of documents: epoch after epoch, each in its own random order.
#[derive(Debug, Clone)]
pub struct Cursor {
    seed: u64,
    documents: usize,
    consumed: u64,
    order: Vec<usize>,
}

/// One document of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Index of the training document.
    pub document: usize,
}

impl Cursor {
    /// The stream over `documents` (one or more) documents after `consumed` of them.
    #[must_use]
    pub fn new(seed: u64, documents: usize, consumed: u64) -> Self {
        let mut cursor = Self { seed, documents: documents.max(1), consumed, order: Vec::new() };
        cursor.order = epoch_order(seed, cursor.epoch(), cursor.documents);
        cursor
    }

    /// Epoch of the next document.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.consumed / self.documents as u64
    }

    /// Index of the next document within its epoch's order.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.consumed % self.documents as u64
    }

    /// Documents handed out so far.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// The next document. An epoch's last step runs on into the next epoch: no document is left out.
    pub fn advance(&mut self) -> Turn {
        let turn = Turn { epoch: self.epoch(), document: self.order[self.position() as usize] };
        self.consumed += 1;
        if self.position() == 0 {
            self.order = epoch_order(self.seed, self.epoch(), self.documents);
        }
        turn
    }
}

fn epoch_order(seed: u64, epoch: u64, documents: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..documents).collect();
    CounterRng::new(seed, &[stream::ORDER, epoch]).shuffle(&mut order);
    order
}

/// Anchors of a training document in one epoch, ascending: `count` of `eligible`, or all when there are fewer.
#[must_use]
pub fn draw_anchors(seed: u64, turn: Turn, eligible: &[usize], count: usize) -> Vec<usize> {
    let mut rng = CounterRng::new(seed, &[stream::ANCHORS, turn.epoch, turn.document as u64]);
    rng.sample_indices(eligible.len(), count).into_iter().map(|index| eligible[index]).collect()
}
