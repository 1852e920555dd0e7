//! Blocks of drafts over packed documents: context, positions, labels, weights and visible keys.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{ContextRule, Contract, LayerAttention, SlotLayout, Visible};

/// What a hole in the loss mask does to the block that runs over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoleRule {
    /// The first unsupervised label ends the block's supervised slots.
    #[default]
    Cut,
    /// A hole zeroes its own slot only (as SpecForge does).
    Skip,
}

/// The part of a [`Contract`] and of a recipe that a layout depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayoutRules {
    /// Rows of a block.
    pub block_size: usize,
    /// Which rows of the document a block sees.
    pub context: ContextRule,
    /// Which token each slot predicts.
    pub slots: SlotLayout,
    /// Position of a document's first token.
    pub position_origin: i64,
    /// What a hole in the loss mask does.
    pub holes: HoleRule,
    /// Decay of the loss weights over the slots; infinite = none.
    pub gamma: f64,
}

impl LayoutRules {
    /// The rules of `contract` with the recipe's treatment of holes and decay.
    pub fn from(contract: &Contract, holes: HoleRule, gamma: f64) -> Self {
        Self {
            block_size: contract.block_size,
            context: contract.context,
            slots: contract.slots,
            position_origin: contract.position_origin,
            holes,
            gamma,
        }
    }

    /// Loss weight of the `nth` (from 0) predicting slot of a block: exp(-nth/γ).
    pub fn slot_weight(&self, nth: usize) -> f32 {
        // The first slot weighs 1 whatever γ is; a block of two rows has γ near 0 and one of one row exactly 0.
        if nth == 0 { 1.0 } else { (-(nth as f64) / self.gamma).exp() as f32 }
    }

    fn check(&self) -> Result<(), LayoutError> {
        if self.block_size == 0 {
            return Err(LayoutError::Rules("block_size is 0, expected at least 1".to_owned()));
        }
        if self.gamma.is_nan() || self.gamma < 0.0 {
            return Err(LayoutError::Rules(format!("gamma is {}, expected a number from 0", self.gamma)));
        }
        if !(0..=i64::from(u16::MAX)).contains(&self.position_origin) {
            return Err(LayoutError::Rules(format!(
                "position_origin is {}, expected 0 to {}",
                self.position_origin,
                u16::MAX
            )));
        }
        Ok(())
    }

    /// Position of the token that lies `offset` tokens after the first of its document.
    fn position(&self, offset: usize) -> u32 {
        u32::try_from(self.position_origin.saturating_add_unsigned(offset as u64)).unwrap_or(u32::MAX)
    }

    /// End of the context of a block at `anchor`.
    fn context_end(&self, anchor: usize) -> usize {
        match self.context {
            ContextRule::BeforeAnchor => anchor,
            ContextRule::ThroughAnchor => anchor.saturating_add(1),
        }
    }
}

/// The decay γ that belongs to a block size: 7, 5, 4 for 16, 10, 8; 7·(B−1)/15 for the others.
pub fn default_gamma(block_size: usize) -> f64 {
    match block_size {
        16 => 7.0,
        10 => 5.0,
        8 => 4.0,
        other => 7.0 * (other.saturating_sub(1)) as f64 / 15.0,
    }
}

/// One packed row of documents. Positions begin anew in each document; rows outside every document are padding.
#[derive(Clone, Copy, Debug)]
pub struct Documents<'a> {
    /// Tokens of the row.
    pub len: usize,
    /// Where each document lies: ascending, disjoint, possibly empty.
    pub bounds: &'a [Range<usize>],
    /// Which tokens are supervised, one entry a token.
    pub loss_mask: &'a [bool],
}

impl Documents<'_> {
    /// Checks bounds and mask against the length.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.loss_mask.len() != self.len {
            return Err(LayoutError::LossMask { len: self.len, got: self.loss_mask.len() });
        }
        let mut previous_end = 0;
        for (document, bounds) in self.bounds.iter().enumerate() {
            if bounds.start > bounds.end || bounds.end > self.len || bounds.start < previous_end {
                return Err(LayoutError::Bounds {
                    document,
                    start: bounds.start,
                    end: bounds.end,
                    previous_end,
                    len: self.len,
                });
            }
            previous_end = bounds.end;
        }
        Ok(())
    }

    /// The document that holds token `index`.
    fn document_of(&self, index: usize) -> Option<&Range<usize>> {
        let after = self.bounds.partition_point(|bounds| bounds.end <= index);
        self.bounds.get(after).filter(|bounds| bounds.contains(&index))
    }

    fn supervised(&self, index: usize) -> bool {
        self.loss_mask.get(index).copied().unwrap_or(false)
    }
}

/// Where a block may begin: tokens that are supervised and whose next token is too, in the same document. Ascending.
pub fn eligible_anchors(docs: &Documents<'_>) -> Vec<usize> {
    let mut anchors = Vec::new();
    for bounds in docs.bounds {
        let last = bounds.end.min(docs.len);
        anchors
            .extend((bounds.start..last.saturating_sub(1)).filter(|&a| docs.supervised(a) && docs.supervised(a + 1)));
    }
    anchors
}

/// Why a layout was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The rules themselves.
    #[error("block layout: {0}")]
    Rules(String),
    /// Mask and tokens differ in length.
    #[error("loss mask has {got} entries for {len} tokens")]
    LossMask {
        /// Tokens of the row.
        len: usize,
        /// Entries of the mask.
        got: usize,
    },
    /// Documents that overlap, go backwards or leave the row.
    #[error(
        "document {document} lies at {start}..{end}, expected a range from {previous_end} on (the end of the document \
         before it) within {len} tokens"
    )]
    Bounds {
        /// Index of the document.
        document: usize,
        /// Its start.
        start: usize,
        /// Its end.
        end: usize,
        /// End of the document before it.
        previous_end: usize,
        /// Tokens of the row.
        len: usize,
    },
    /// An anchor in no document.
    #[error("anchor {anchor} lies in no document (the row has {len} tokens)")]
    AnchorOutside {
        /// The anchor.
        anchor: usize,
        /// Tokens of the row.
        len: usize,
    },
    /// An anchor with nothing to learn after it.
    #[error(
        "anchor {anchor} can't begin a block: {reason}\n\
         hint: an anchor and the token after it must both be supervised, in one document"
    )]
    AnchorNotEligible {
        /// The anchor.
        anchor: usize,
        /// Which condition it fails.
        reason: &'static str,
    },
    /// An anchor whose context isn't there.
    #[error("anchor {anchor} needs {needed} context rows, but there are {context_rows}")]
    AnchorBeyondContext {
        /// The anchor.
        anchor: usize,
        /// Context rows its block sees.
        needed: usize,
        /// Context rows there are.
        context_rows: usize,
    },
}

/// One draft block: a row for the anchor, then rows for the tokens to be drafted.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Index of the anchor in the packed row.
    pub anchor: usize,
    /// The document of the anchor, as indices into the packed row. Of a block without labels: the context rows there are.
    pub document: Range<usize>,
    /// The context rows the block may see (windows narrow it further, per layer).
    pub context: Range<usize>,
    /// Position of every row, counted within the document: anchor + slot + origin.
    pub positions: Vec<u32>,
    /// The token every row predicts, as an index into the packed row; none where there is no such token in the document
    /// or the slot is discarded. A label may be unsupervised: then its weight is 0.
    pub labels: Vec<Option<usize>>,
    /// Loss weight of every row; 0 where nothing is learned.
    pub weights: Vec<f32>,
    /// How many predicting slots in a row, from the first on, have supervised labels: what acceptance may be counted
    /// over, whatever the [`HoleRule`].
    pub valid: usize,
}

impl Block {
    /// Rows of the block: `block_size`, or fewer when decoding is near its end.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }
}

/// Blocks over one packed row of context. Queries are all block rows in order; keys are the context rows, then all
/// block rows.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockLayout {
    /// Context rows, which are the first keys.
    pub context_rows: usize,
    /// The blocks, in the caller's order of anchors.
    pub blocks: Vec<Block>,
}

impl BlockLayout {
    /// Blocks with labels and weights over packed documents, one for each anchor, in the order given.
    ///
    /// Every anchor must be eligible ([`eligible_anchors`]). A block may overrun the end of its document: its positions
    /// continue and the overrun slots have no label and no weight.
    pub fn build(rules: &LayoutRules, docs: &Documents<'_>, anchors: &[usize]) -> Result<Self, LayoutError> {
        rules.check()?;
        docs.check()?;
        let blocks = anchors.iter().map(|&anchor| build_block(rules, docs, anchor)).collect::<Result<_, _>>()?;
        Ok(Self { context_rows: docs.len, blocks })
    }

    /// Blocks of `rows` rows without labels over one document of `context_rows` known rows: what inference sees.
    /// An anchor may be the first token that has no context row yet.
    pub fn inference(
        rules: &LayoutRules,
        context_rows: usize,
        anchors: &[usize],
        rows: usize,
    ) -> Result<Self, LayoutError> {
        rules.check()?;
        for &anchor in anchors {
            let needed = rules.context_end(anchor);
            if needed > context_rows {
                return Err(LayoutError::AnchorBeyondContext { anchor, needed, context_rows });
            }
        }
        let blocks = anchors.iter().map(|&anchor| unlabelled_block(rules, context_rows, anchor, rows)).collect();
        Ok(Self { context_rows, blocks })
    }

    /// One block of `rows` rows whose anchor is token `anchor` of its document, over exactly the context rows it sees
    /// (`anchor` rows under [`ContextRule::BeforeAnchor`]). No labels.
    pub fn decode(rules: &LayoutRules, anchor: usize, rows: usize) -> Self {
        let context_rows = rules.context_end(anchor);
        Self { context_rows, blocks: vec![unlabelled_block(rules, context_rows, anchor, rows)] }
    }

    /// Block `index` alone, over the same context rows.
    pub fn single(&self, index: usize) -> Self {
        Self { context_rows: self.context_rows, blocks: vec![self.blocks[index].clone()] }
    }

    /// Position of every context row. Padding rows, which nobody sees, are at the origin.
    pub fn context_positions(docs: &Documents<'_>, rules: &LayoutRules) -> Vec<u32> {
        let mut positions = vec![rules.position(0); docs.len];
        for bounds in docs.bounds {
            let rows = positions.iter_mut().take(bounds.end).skip(bounds.start);
            for (offset, position) in rows.enumerate() {
                *position = rules.position(offset);
            }
        }
        positions
    }

    /// The keys that every block row sees in a layer with attention `a`.
    ///
    /// A context row of the block's context, or a row of the block itself, is visible iff `q - k < window`, and `k <= q`
    /// if the layer is causal, `k - q < window` if it isn't (q, k positions).
    pub fn visible(&self, a: LayerAttention) -> Visible {
        let window = a.window.unwrap_or(usize::MAX);
        let mut visible = Visible::with_capacity(self.rows());
        let mut first_key = self.context_rows;
        for block in &self.blocks {
            let rows = block.rows();
            for slot in 0..rows {
                // Index in the packed row that the query would have; context and query share the document's start.
                let query = block.anchor + slot;
                let oldest = block.context.start.max((query + 1).saturating_sub(window));
                let from = (slot + 1).saturating_sub(window);
                let to = if a.causal { slot + 1 } else { rows.min(slot.saturating_add(window)) };
                visible.push_sorted([oldest..block.context.end, first_key + from..first_key + to]);
            }
            first_key += rows;
        }
        visible
    }

    /// Rows of all blocks.
    pub fn rows(&self) -> usize {
        self.blocks.iter().map(Block::rows).sum()
    }

    /// The rows of each block among all block rows.
    pub fn row_ranges(&self) -> Vec<Range<usize>> {
        let mut start = 0;
        let range = |block: &Block| {
            let range = start..start + block.rows();
            start = range.end;
            range
        };
        self.blocks.iter().map(range).collect()
    }

    /// Position of every block row.
    pub fn positions(&self) -> Vec<u32> {
        self.blocks.iter().flat_map(|block| block.positions.iter().copied()).collect()
    }

    /// Loss weight of every block row.
    pub fn weights(&self) -> Vec<f32> {
        self.blocks.iter().flat_map(|block| block.weights.iter().copied()).collect()
    }

    /// Label token of every block row, from the packed row's `ids`.
    pub fn labels(&self, ids: &[u32]) -> Vec<Option<u32>> {
        let token = |label: &Option<usize>| label.and_then(|index| ids.get(index).copied());
        self.blocks.iter().flat_map(|block| block.labels.iter().map(token)).collect()
    }

    /// Input token of every block row: the anchor's from the packed row's `ids`, then `mask`.
    ///
    /// # Panics
    /// If `ids` ends before an anchor, that is, if it isn't the row this layout was built for.
    pub fn block_ids(&self, ids: &[u32], mask: u32) -> Vec<u32> {
        let mut out = Vec::with_capacity(self.rows());
        for block in &self.blocks {
            out.extend((0..block.rows()).map(|slot| if slot == 0 { ids[block.anchor] } else { mask }));
        }
        out
    }
}

fn build_block(rules: &LayoutRules, docs: &Documents<'_>, anchor: usize) -> Result<Block, LayoutError> {
    let document = docs.document_of(anchor).cloned().ok_or(LayoutError::AnchorOutside { anchor, len: docs.len })?;
    let refuse = |reason| Err(LayoutError::AnchorNotEligible { anchor, reason });
    if !docs.supervised(anchor) {
        return refuse("it is not supervised");
    }
    if anchor + 1 == document.end {
        return refuse("it is the last token of its document");
    }
    if !docs.supervised(anchor + 1) {
        return refuse("the token after it is not supervised");
    }

    let mut labels = Vec::with_capacity(rules.block_size);
    let mut weights = Vec::with_capacity(rules.block_size);
    let mut valid = 0;
    let mut unbroken = true;
    for slot in 0..rules.block_size {
        let Some(offset) = rules.slots.label_offset(slot) else {
            labels.push(None);
            weights.push(0.0);
            continue;
        };
        let label = Some(anchor + offset).filter(|index| document.contains(index));
        let supervised = label.is_some_and(|index| docs.supervised(index));
        unbroken &= supervised;
        valid += usize::from(unbroken);
        let counts = supervised && (unbroken || rules.holes == HoleRule::Skip);
        labels.push(label);
        weights.push(if counts { rules.slot_weight(slot - rules.slots.first_slot()) } else { 0.0 });
    }
    Ok(Block {
        anchor,
        context: document.start..rules.context_end(anchor),
        positions: block_positions(rules, anchor - document.start, rules.block_size),
        document,
        labels,
        weights,
        valid,
    })
}

fn unlabelled_block(rules: &LayoutRules, context_rows: usize, anchor: usize, rows: usize) -> Block {
    Block {
        anchor,
        document: 0..context_rows,
        context: 0..rules.context_end(anchor),
        positions: block_positions(rules, anchor, rows),
        labels: vec![None; rows],
        weights: vec![0.0; rows],
        valid: 0,
    }
}

fn block_positions(rules: &LayoutRules, anchor: usize, rows: usize) -> Vec<u32> {
    (0..rows).map(|slot| rules.position(anchor + slot)).collect()
}
