//! What guesses the next tokens.

use burn::tensor::Tensor;
use draftsman_contract::DraftTree;

use crate::{DecodeError, DflashProposer, NgramProposer};

/// Guesses the tokens after the anchor. A wrong guess costs time, never correctness: the target verifies every draft.
pub trait Proposer {
    /// Name in tables.
    fn name(&self) -> String;

    /// Target layers whose outputs [`Proposer::observe`] needs; empty if none.
    fn taps(&self) -> &[usize];

    /// Most tokens of a chain of drafts, anchor included. A tree may have more rows, and is no deeper.
    fn block_size(&self) -> usize;

    /// Forgets everything: a new prompt follows.
    fn begin(&mut self);

    /// Takes the rows just committed: first the whole prompt, then after each cycle the old anchor and the accepted drafts.
    ///
    /// `features` `[ids.len(), taps.len() * hidden]` are the target's, `None` if there are no taps.
    fn observe(&mut self, features: Option<Tensor<2>>, ids: &[u32]) -> Result<(), DecodeError>;

    /// Drafts for the positions after `ids` (prompt and produced tokens; the last one is the anchor, whose features have not
    /// been observed). At most `max_drafts` and at most `block_size() - 1`; fewer or none is allowed.
    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError>;

    /// What the target verifies: the chain of [`Proposer::propose`], or a tree that is at most as deep as that may be long.
    fn draft(&mut self, ids: &[u32], max_drafts: usize) -> Result<DraftTree, DecodeError> {
        Ok(DraftTree::chain(&self.propose(ids, max_drafts)?))
    }
}

/// Prompt lookup first, the drafter where lookup finds nothing.
///
/// The drafter sees every committed row, also those accepted while lookup drafted.
pub struct LookupThenDraft<'a> {
    lookup: NgramProposer,
    drafter: DflashProposer<'a>,
}

impl<'a> LookupThenDraft<'a> {
    /// Joins the two.
    pub fn new(lookup: NgramProposer, drafter: DflashProposer<'a>) -> Self {
        Self { lookup, drafter }
    }
}

impl Proposer for LookupThenDraft<'_> {
    fn name(&self) -> String {
        format!("{}+{}", self.lookup.name(), self.drafter.name())
    }

    fn taps(&self) -> &[usize] {
        self.drafter.taps()
    }

    fn block_size(&self) -> usize {
        self.lookup.block_size().max(self.drafter.block_size())
    }

    fn begin(&mut self) {
        self.lookup.begin();
        self.drafter.begin();
    }

    fn observe(&mut self, features: Option<Tensor<2>>, ids: &[u32]) -> Result<(), DecodeError> {
        self.drafter.observe(features, ids)
    }

    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let found = self.lookup.propose(ids, max_drafts)?;
        if found.is_empty() { self.drafter.propose(ids, max_drafts) } else { Ok(found) }
    }

    /// A chain where lookup finds something, else what the drafter drafts.
    fn draft(&mut self, ids: &[u32], max_drafts: usize) -> Result<DraftTree, DecodeError> {
        let found = self.lookup.propose(ids, max_drafts)?;
        if found.is_empty() { self.drafter.draft(ids, max_drafts) } else { Ok(DraftTree::chain(&found)) }
    }
}
