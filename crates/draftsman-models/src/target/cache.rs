//! Keys and values of one sequence, all layers.

use burn::tensor::Device;
use draftsman_kernels::KvCache;

use super::TargetSpec;
use crate::error::ModelError;

/// Keys and values of one sequence in every layer of a target. Rolls back by truncation.
pub struct TargetCache {
    /// A forward that stopped at its last tap leaves the layers above it shorter than `len`.
    pub(super) layers: Vec<KvCache>,
    len: usize,
}

impl TargetCache {
    pub(super) fn new(spec: &TargetSpec, device: &Device) -> Self {
        Self {
            layers: (0..spec.num_layers).map(|_| KvCache::new(spec.num_kv_heads, spec.head_dim, device)).collect(),
            len: 0,
        }
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
    pub fn truncate(&mut self, len: usize) {
        for layer in &mut self.layers {
            if len < layer.len() {
                layer.truncate(len);
            }
        }
        self.len = self.len.min(len);
    }

    /// Bytes of memory in use.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(KvCache::bytes).sum()
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
