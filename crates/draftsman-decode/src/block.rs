//! What the target verifies in one pass.

use draftsman_contract::{DraftTree, TreeShape};

use crate::{DecodeError, Proposer};

/// An anchor and the drafts after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Tokens of the rows: the anchor, then the drafts.
    pub ids: Vec<u32>,
    /// The drafts.
    pub tree: DraftTree,
    /// Which row follows which.
    pub shape: TreeShape,
}

impl Block {
    /// An anchor without drafts.
    pub fn alone(anchor: u32) -> Self {
        Self { ids: vec![anchor], tree: DraftTree::default(), shape: TreeShape::default() }
    }

    /// Asks `proposer` for what follows `anchor`, the last of `ids`; `room` more tokens are wanted. A block never passes
    /// that: the last one is shorter, which also changes what a block drafter drafts.
    ///
    /// A proposer from outside must not push ids at a target of `vocab_size` that it has no rows for, nor leave the block.
    pub fn ask(
        proposer: &mut dyn Proposer,
        ids: &[u32],
        anchor: u32,
        room: usize,
        vocab_size: usize,
    ) -> Result<Self, DecodeError> {
        let most = room.min(proposer.block_size().saturating_sub(1));
        let tree = if most > 0 { proposer.draft(ids, most)? } else { DraftTree::default() };
        let refuse = |problem: String| DecodeError::Proposer { proposer: proposer.name(), problem };
        let shape = tree.shape().map_err(|error| refuse(error.to_string()))?;
        if shape.height() > most {
            return Err(refuse(format!("{} drafts where {most} were asked for", shape.height())));
        }
        if let Some(node) = tree.nodes.iter().find(|node| node.token as usize >= vocab_size) {
            let problem = format!("drafted token {}, outside the target's vocabulary of {vocab_size}", node.token);
            return Err(refuse(problem));
        }
        let ids = std::iter::once(anchor).chain(tree.nodes.iter().map(|node| node.token)).collect();
        Ok(Self { ids, tree, shape })
    }

    /// The tokens of `path`.
    pub fn path_ids(&self, path: &[usize]) -> Vec<u32> {
        path.iter().map(|&row| self.ids[row]).collect()
    }
}
