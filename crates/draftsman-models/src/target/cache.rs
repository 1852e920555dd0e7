//! What a target remembers of one sequence, layer by layer.

use burn::tensor::Device;
use draftsman_contract::TreeShape;
use draftsman_kernels::KvCache;

use super::TargetSpec;
use super::delta_cache::{DeltaCache, ROLLBACK_ROWS};
use super::spec::MixerKind;
use crate::error::ModelError;

/// What a target remembers of one sequence. Rolls back by truncation, without limit where all layers are attention;
/// gated delta layers can take back rows of the last forward only ([`ROLLBACK_ROWS`]).
pub struct TargetCache {
    /// A forward that stopped at its last tap leaves the layers above it shorter than `len`.
    pub(super) layers: Vec<LayerCache>,
    len: usize,
    /// A draft tree that a forward has read after the `len` tokens.
    tree: Option<TreeShape>,
}

/// What one layer remembers.
#[expect(clippy::large_enum_variant, reason = "one per layer, whose rows dwarf it")]
pub(super) enum LayerCache {
    Attention(KvCache),
    Delta(DeltaCache),
}

/// A layer's cache as it was before a forward.
pub(super) enum Mark {
    /// Keys and values only grow: their number says it all.
    Attention(usize),
    /// Shares the tensors.
    Delta(Box<DeltaCache>),
}

impl LayerCache {
    fn new(spec: &TargetSpec, mixer: MixerKind, device: &Device) -> Self {
        match (mixer, spec.delta) {
            (MixerKind::GatedDelta, Some(sizes)) => Self::Delta(DeltaCache::new(sizes, device)),
            _ => Self::Attention(KvCache::new(spec.num_kv_heads, spec.head_dim, device)),
        }
    }

    /// Tokens held.
    fn len(&self) -> usize {
        match self {
            Self::Attention(cache) => cache.len(),
            Self::Delta(cache) => cache.len(),
        }
    }

    /// The fewest tokens it can be cut back to, besides none.
    fn shortest(&self) -> usize {
        match self {
            Self::Attention(_) => 0,
            Self::Delta(cache) => cache.shortest(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Attention(cache) => cache.bytes(),
            Self::Delta(cache) => cache.bytes(),
        }
    }

    /// Whether this is the cache of such a layer.
    fn fits(&self, spec: &TargetSpec, mixer: MixerKind) -> bool {
        match (self, mixer) {
            (Self::Attention(cache), MixerKind::Full | MixerKind::Sliding { .. }) => {
                (cache.kv_heads(), cache.head_dim()) == (spec.num_kv_heads, spec.head_dim)
            }
            (Self::Delta(cache), MixerKind::GatedDelta) => spec.delta == Some(cache.sizes()),
            _ => false,
        }
    }

    /// # Panics
    /// When the layer is of another kind; a forward checks that first.
    pub(super) fn attention(&mut self) -> &mut KvCache {
        match self {
            Self::Attention(cache) => cache,
            Self::Delta(_) => unreachable!("the cache belongs to the target"),
        }
    }

    /// # Panics
    /// As [`LayerCache::attention`].
    pub(super) fn delta(&mut self) -> &mut DeltaCache {
        match self {
            Self::Delta(cache) => cache,
            Self::Attention(_) => unreachable!("the cache belongs to the target"),
        }
    }

    pub(super) fn mark(&self) -> Mark {
        match self {
            Self::Attention(cache) => Mark::Attention(cache.len()),
            Self::Delta(cache) => Mark::Delta(Box::new(cache.clone())),
        }
    }

    pub(super) fn restore(&mut self, mark: Mark) {
        match (self, mark) {
            (Self::Attention(cache), Mark::Attention(len)) => cache.truncate(len),
            (Self::Delta(cache), Mark::Delta(before)) => *cache = *before,
            _ => unreachable!("a mark is put back where it was taken"),
        }
    }
}

impl TargetCache {
    pub(super) fn new(spec: &TargetSpec, device: &Device) -> Self {
        let layers = spec.layers.iter().map(|layer| LayerCache::new(spec, layer.mixer, device)).collect();
        Self { layers, len: 0, tree: None }
    }

    /// Tokens held; the next token's position. Rows of a draft tree don't count before they are kept.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// After [`super::Target::forward_trees`]: the rows of `path` (from the root down, as `DraftTree::walk` returns it;
    /// a beginning of it, or nothing at all) become the next tokens held, and all other rows are forgotten. Layers are
    /// left as a forward over the path alone leaves them.
    pub fn keep(&mut self, path: &[usize]) -> Result<(), ModelError> {
        let Some(shape) = &self.tree else {
            return Err(ModelError::InvalidInput("the cache holds no draft tree to keep a path of".into()));
        };
        if !shape.is_path(path) {
            return Err(ModelError::InvalidInput(format!(
                "rows {path:?} are no path from the root of a draft tree with parents {:?}",
                shape.parents()
            )));
        }
        let with_tree = self.len + shape.rows();
        for layer in &mut self.layers {
            match layer {
                // Layers above the last tap may not have read the tree.
                LayerCache::Attention(cache) if cache.len() == with_tree => cache.keep(self.len, path),
                LayerCache::Attention(_) => {}
                LayerCache::Delta(cache) => cache.keep(path),
            }
        }
        self.len += path.len();
        self.tree = None;
        Ok(())
    }

    /// Forgets everything after the first `len` tokens (nothing when there are no more than that), and a draft tree of
    /// which no path was kept.
    ///
    /// A gated delta layer keeps the inputs of the last forward, of a long one its last [`ROLLBACK_ROWS`], and replays
    /// those that stay from the state before them. So it can go back to 0 tokens and into the last forward; anything
    /// between is an error that changes nothing.
    pub fn truncate(&mut self, len: usize) -> Result<(), ModelError> {
        let shortest = self.layers.iter().filter(|layer| len < layer.len()).map(LayerCache::shortest).max();
        if let Some(shortest) = shortest
            && 0 < len
            && len < shortest
        {
            return Err(ModelError::RollbackTooFar { len, shortest, held: self.len, rows: ROLLBACK_ROWS });
        }
        if self.tree.is_some() {
            self.keep(&[])?;
        }
        for layer in &mut self.layers {
            if len < layer.len() {
                match layer {
                    LayerCache::Attention(cache) => cache.truncate(len),
                    LayerCache::Delta(cache) => cache.truncate(len),
                }
            }
        }
        self.len = self.len.min(len);
        Ok(())
    }

    /// Bytes of memory in use; for gated delta layers with what they keep for a rollback.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::bytes).sum()
    }

    /// Refuses the cache of another model.
    pub(super) fn check_belongs(&self, spec: &TargetSpec) -> Result<(), ModelError> {
        if self.layers.len() != spec.num_layers {
            return Err(ModelError::InvalidInput(format!(
                "the cache has {} layers, the target {}: it belongs to another target",
                self.layers.len(),
                spec.num_layers
            )));
        }
        let odd = self.layers.iter().zip(&spec.layers).position(|(cache, layer)| !cache.fits(spec, layer.mixer));
        match odd {
            None => Ok(()),
            Some(layer) => Err(ModelError::InvalidInput(format!(
                "layer {layer} of the cache has another kind or other sizes than the target's: it belongs to another target"
            ))),
        }
    }

    /// Refuses a forward through more layers than hold the cached tokens, and one after an undecided draft tree.
    pub(super) fn check_layers(&self, needed: usize) -> Result<(), ModelError> {
        if self.tree.is_some() {
            return Err(ModelError::InvalidInput(
                "the cache holds a draft tree of which no path was kept yet\n  hint: call `keep` after verifying"
                    .into(),
            ));
        }
        let filled = self.layers.iter().take_while(|layer| layer.len() == self.len).count();
        if filled < needed {
            return Err(ModelError::CacheIncomplete { len: self.len, filled, needed });
        }
        Ok(())
    }

    /// After a forward of `rows` tokens.
    pub(super) fn advance(&mut self, rows: usize) {
        self.len += rows;
    }

    /// After a forward of a draft tree.
    pub(super) fn hold(&mut self, tree: TreeShape) {
        self.tree = Some(tree);
    }
}
