//! DFlash as a proposer: one pass of the drafter over a block of mask tokens, with a cache of context keys and values.

use burn::tensor::Tensor;
use draftsman_contract::{
    BlockLayout, ContextRule, Documents, DraftTree, HoleRule, LayoutRules, TreeRule, default_gamma,
};
use draftsman_kernels::{HeadOptions, head_top_k};
use draftsman_models::{Context, Dflash, DrafterCache, Target, check_pair};

use crate::{DecodeError, Proposer};

/// Drafts with a [`Dflash`] (an inference copy) whose embedding and head are the target's.
pub struct DflashProposer<'a> {
    name: String,
    drafter: &'a Dflash,
    target: &'a dyn Target,
    rules: LayoutRules,
    /// The anchor and as many drafts as a block makes.
    verify_size: usize,
    /// How trees are drafted; without it, chains are.
    tree: Option<TreeRule>,
    cache: DrafterCache,
}

impl<'a> DflashProposer<'a> {
    /// A proposer for `target`. `block_size` overrides the contract's (1 = never draft).
    ///
    /// Fails if the two do not fit, or if the drafter's contract wants the anchor's own features: those do not exist before
    /// the target has read the anchor.
    pub fn new(
        name: impl Into<String>,
        drafter: &'a Dflash,
        target: &'a dyn Target,
        block_size: Option<usize>,
    ) -> Result<Self, DecodeError> {
        let name = name.into();
        let contract = &drafter.config().contract;
        check_pair(drafter.config(), target.spec())
            .map_err(|problems| DecodeError::Proposer { proposer: name.clone(), problem: problems.to_string() })?;
        if contract.context != ContextRule::BeforeAnchor {
            return Err(DecodeError::Proposer {
                proposer: name,
                problem: "its contract lets a block see the anchor's own features, which do not exist while drafting\n\nhint: \
                          decoding needs `context` = `before_anchor`"
                    .into(),
            });
        }
        let block_size = block_size.unwrap_or(contract.block_size);
        if block_size == 0 {
            return Err(DecodeError::Option { key: "block_size", problem: "0 leaves no room for the anchor".into() });
        }
        // Loss weights play no part in decoding, so the hole rule and the decay are arbitrary.
        let mut rules = LayoutRules::from(contract, HoleRule::Cut, default_gamma(contract.block_size));
        rules.block_size = block_size;
        let verify_size = rules.slots.drafts(block_size) + 1;
        let cache = drafter.new_cache();
        Ok(Self { name, drafter, target, rules, verify_size, tree: None, cache })
    }

    /// The same proposer drafting trees by `rule`; a budget of 0 leaves it with chains.
    pub fn with_tree(self, rule: TreeRule) -> Result<Self, DecodeError> {
        // Written so that NaN fails.
        if !(rule.temperature.is_finite() && rule.temperature > 0.0) {
            let problem = format!("{} is not a finite number above 0", rule.temperature);
            return Err(DecodeError::Option { key: "draft_temperature", problem });
        }
        Ok(Self { tree: (rule.budget > 0).then_some(rule), ..self })
    }

    /// The `width` most probable tokens of each of the `most` slots after the anchor, the last of `ids`, by falling
    /// log-probability over the whole vocabulary at `temperature`.
    pub fn candidates(
        &mut self,
        ids: &[u32],
        most: usize,
        width: usize,
        temperature: f32,
    ) -> Result<Vec<Vec<(u32, f32)>>, DecodeError> {
        let most = most.min(self.verify_size - 1);
        let anchor = ids.len().saturating_sub(1);
        if most == 0 {
            return Ok(Vec::new());
        }
        if self.cache.len() != anchor {
            return Err(DecodeError::Proposer {
                proposer: self.name(),
                problem: format!("has the features of {} rows, but the anchor is at {anchor}", self.cache.len()),
            });
        }
        let first = self.rules.slots.first_slot();
        let rows = most + first;
        let contract = &self.drafter.config().contract;
        let layout = BlockLayout::decode(&self.rules, anchor, rows);
        let block_ids = layout.block_ids(ids, contract.mask_token_id);
        let block = self.drafter.embed(&block_ids, self.target.embedding())?;
        let hidden = self.drafter.forward(block, &layout, Context::Cached(&mut self.cache), None)?;
        let predicting = hidden.narrow(0, first, rows - first);
        let width = width.min(self.target.spec().vocab_size);
        let options = HeadOptions { temperature, ..self.drafter.head_options(width) };
        Ok(head_top_k(predicting, self.target.head(), &options))
    }
}

impl Proposer for DflashProposer<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn taps(&self) -> &[usize] {
        &self.drafter.config().contract.target_layer_ids
    }

    fn block_size(&self) -> usize {
        self.verify_size
    }

    fn begin(&mut self) {
        self.cache.truncate(0);
    }

    fn observe(&mut self, features: Option<Tensor<2>>, ids: &[u32]) -> Result<(), DecodeError> {
        let Some(features) = features.filter(|f| f.dims()[0] == ids.len()) else {
            return Err(DecodeError::Proposer {
                proposer: self.name(),
                problem: format!("needs features of the {} committed rows", ids.len()),
            });
        };
        let (past, len) = (self.cache.len(), self.cache.len() + ids.len());
        let (bounds, unsupervised) = (0..len, vec![false; len]);
        let documents = Documents { len, bounds: std::slice::from_ref(&bounds), loss_mask: &unsupervised };
        let positions = BlockLayout::context_positions(&documents, &self.rules);
        self.drafter.extend_context(&mut self.cache, features, &positions[past..])?;
        Ok(())
    }

    fn propose(&mut self, ids: &[u32], max_drafts: usize) -> Result<Vec<u32>, DecodeError> {
        let top = self.candidates(ids, max_drafts, 1, 1.0)?;
        Ok(top.iter().filter_map(|row| row.first()).map(|(id, _)| *id).collect())
    }

    fn draft(&mut self, ids: &[u32], max_drafts: usize) -> Result<DraftTree, DecodeError> {
        match self.tree {
            Some(rule) => Ok(rule.build(&self.candidates(ids, max_drafts, rule.budget, rule.temperature)?)),
            None => Ok(DraftTree::chain(&self.propose(ids, max_drafts)?)),
        }
    }
}
