//! Several documents side by side in one drafter forward.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::{BlockLayout, Documents, LayoutError, LayoutRules};

/// One document with the anchors drawn in it.
#[derive(Debug, Clone, Copy)]
pub struct PackedDocument<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Supervised tokens.
    pub loss_mask: &'a [bool],
    /// Anchors, positions in this document.
    pub anchors: &'a [usize],
    /// Target features `[tokens, width]`, row-major.
    pub features: &'a [f32],
}

/// Input of one drafter forward: context rows of all documents, then all blocks.
#[derive(Debug, Clone)]
pub struct Pack {
    /// Context ranges, positions, labels, weights and visible rows.
    pub layout: BlockLayout,
    /// Tokens of the block rows: the anchor's, then masks.
    pub block_ids: Vec<u32>,
    /// Label of each block row.
    pub labels: Vec<Option<u32>>,
    /// Loss weight of each block row.
    pub weights: Vec<f32>,
    /// Position of each context row.
    pub context_positions: Vec<u32>,
    /// Features `[context rows, width]`.
    pub features: Tensor<2>,
    /// Documents packed.
    pub documents: usize,
    /// First predicting slot of a block.
    pub first_slot: usize,
}

impl Pack {
    /// Lays out `documents`, whose feature rows are `width` wide, for a drafter on `device`.
    ///
    /// A document is packed up to the end of its last block only: rows behind it are seen by no block and label nothing.
    pub fn new(
        rules: &LayoutRules,
        mask_token_id: u32,
        width: usize,
        documents: &[PackedDocument<'_>],
        device: &Device,
    ) -> Result<Self, LayoutError> {
        let kept: Vec<usize> = documents
            .iter()
            .map(|document| {
                let last = document.anchors.iter().max().map_or(0, |anchor| anchor + rules.block_size + 1);
                last.min(document.ids.len())
            })
            .collect();
        let total: usize = kept.iter().sum();
        let mut ids = Vec::with_capacity(total);
        let mut loss_mask = Vec::with_capacity(total);
        let mut features = Vec::with_capacity(total * width);
        let mut bounds: Vec<Range<usize>> = Vec::with_capacity(documents.len());
        let mut anchors = Vec::new();
        for (document, kept) in documents.iter().zip(kept) {
            let start = ids.len();
            ids.extend_from_slice(&document.ids[..kept]);
            loss_mask.extend_from_slice(&document.loss_mask[..kept]);
            features.extend_from_slice(&document.features[..kept * width]);
            bounds.push(start..start + kept);
            anchors.extend(document.anchors.iter().map(|anchor| start + anchor));
        }
        let docs = Documents { len: ids.len(), bounds: &bounds, loss_mask: &loss_mask };
        let layout = BlockLayout::build(rules, &docs, &anchors)?;
        Ok(Self {
            block_ids: layout.block_ids(&ids, mask_token_id),
            labels: layout.labels(&ids),
            weights: layout.weights(),
            context_positions: BlockLayout::context_positions(&docs, rules),
            features: Tensor::from_data(TensorData::new(features, [ids.len(), width]), device),
            documents: documents.len(),
            first_slot: rules.slots.first_slot(),
            layout,
        })
    }

    /// Rows of blocks whose output is used: all but the discarded slots.
    #[must_use]
    pub fn predicting_rows(&self) -> Vec<usize> {
        self.layout
            .row_ranges()
            .into_iter()
            .flat_map(|rows| (rows.start + self.first_slot).min(rows.end)..rows.end)
            .collect()
    }
}
