//! What a target remembers of one sequence, layer by layer.

use burn::tensor::Device;
use draftsman_kernels::KvCache;

use super::TargetSpec;
use super::spec::MixerKind;
use crate::error::ModelError;

/// What a target remembers of one sequence. Rolls back by truncation.
pub struct TargetCache {
    /// A forward that stopped at its last tap leaves the layers above it shorter than `len`.
    pub(super) layers: Vec<LayerCache>,
    len: usize,
}

/// What one layer remembers.
pub(super) enum LayerCache {
    Attention(KvCache),
}

/// A layer's cache as it was before a forward.
pub(super) enum Mark {
    /// Keys and values only grow: their number says it all.
    Attention(usize),
}

impl LayerCache {
    fn new(spec: &TargetSpec, mixer: MixerKind, device: &Device) -> Self {
        match mixer {
            MixerKind::Full | MixerKind::Sliding { .. } => {
                Self::Attention(KvCache::new(spec.num_kv_heads, spec.head_dim, device))
            }
            MixerKind::GatedDelta => Self::Attention(KvCache::new(1, 1, device)),
        }
    }

    /// Tokens held.
    fn len(&self) -> usize {
        match self {
            Self::Attention(cache) => cache.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Attention(cache) => cache.bytes(),
        }
    }

    /// Whether this is the cache of such a layer.
    fn fits(&self, spec: &TargetSpec, mixer: MixerKind) -> bool {
        match (self, mixer) {
            (Self::Attention(cache), MixerKind::Full | MixerKind::Sliding { .. }) => {
                (cache.kv_heads(), cache.head_dim()) == (spec.num_kv_heads, spec.head_dim)
            }
            (Self::Attention(_), MixerKind::GatedDelta) => false,
        }
    }

    /// # Panics
    /// When the layer is of another kind; a forward checks that first.
    pub(super) fn attention(&mut self) -> &mut KvCache {
        match self {
            Self::Attention(cache) => cache,
        }
    }

    pub(super) fn mark(&self) -> Mark {
        match self {
            Self::Attention(cache) => Mark::Attention(cache.len()),
        }
    }

    pub(super) fn restore(&mut self, mark: Mark) {
        match (self, mark) {
            (Self::Attention(cache), Mark::Attention(len)) => cache.truncate(len),
        }
    }
}

impl TargetCache {
    pub(super) fn new(spec: &TargetSpec, device: &Device) -> Self {
        let layers = spec.layers.iter().map(|layer| LayerCache::new(spec, layer.mixer, device)).collect();
        Self { layers, len: 0 }
    }

    /// Tokens held; the next token's position.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything after the first `len` tokens (nothing when there are no more than that).
    pub fn truncate(&mut self, len: usize) -> Result<(), ModelError> {
        for layer in &mut self.layers {
            if len < layer.len() {
                match layer {
                    LayerCache::Attention(cache) => cache.truncate(len),
                }
            }
        }
        self.len = self.len.min(len);
        Ok(())
    }

    /// Bytes of memory in use.
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

    /// Refuses a forward through more layers than hold the cached tokens.
    pub(super) fn check_layers(&self, needed: usize) -> Result<(), ModelError> {
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
}
