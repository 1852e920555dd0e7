//! Context keys and values of a drafter, kept from cycle to cycle of a decode.

use draftsman_kernels::KvCache;

/// Keys (after `k_norm` and rope) and values of the context rows of every layer. Block rows enter it for the length
/// of one forward only.
pub struct DrafterCache {
    pub(super) layers: Vec<KvCache>,
}

impl DrafterCache {
    /// Context rows held. All layers hold the same number between calls.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, KvCache::len)
    }

    /// True when no context row is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets every context row at index `len` and after.
    pub fn truncate(&mut self, len: usize) {
        for layer in &mut self.layers {
            layer.truncate(len);
        }
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bytes()).sum()
    }
}
