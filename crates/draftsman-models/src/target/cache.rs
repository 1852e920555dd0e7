//! Keys and values of one sequence, all layers.

use draftsman_kernels::KvCache;

use super::TargetSpec;
use crate::error::ModelError;
use burn::tensor::Device;

/// Keys and values of one sequence in every layer of a target. Rolls back by truncation.
pub struct TargetCache {
    pub(super) layers: Vec<KvCache>,
    len: usize,
    /// Layers that hold all `len` tokens; fewer than all after a forward that stopped at its last tap.
    filled: usize,
}

impl TargetCache {
    pub(super) fn new(spec: &TargetSpec, device: &Device) -> Self {
        Self {
            layers: (0..spec.num_layers).map(|_| KvCache::new(spec.num_kv_heads, spec.head_dim, device)).collect(),
            len: 0,
            filled: spec.num_layers,
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
        if len >= self.len {
            return;
        }
        for layer in &mut self.layers {
            layer.truncate(len.min(layer.len()));
        }
        self.len = len;
        if len == 0 {
            self.filled = self.layers.len();
        }
    }

    /// Bytes of memory in use.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(KvCache::bytes).sum()
    }

    /// Refuses a forward through more layers than hold the cached tokens.
    pub(super) fn check_layers(&self, needed: usize) -> Result<(), ModelError> {
        if self.len > 0 && needed > self.filled {
            return Err(ModelError::CacheIncomplete { len: self.len, filled: self.filled, needed });
        }
        Ok(())
    }

    /// After a forward of `rows` tokens through the first `layers` layers.
    pub(super) fn advance(&mut self, rows: usize, layers: usize) {
        self.len += rows;
        self.filled = self.filled.min(layers);
    }
}
