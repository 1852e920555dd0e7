//! Which target this is: hashes of what a drafter borrows from it.

use draftsman_contract::TargetIdentity;
use draftsman_kernels::Weight;
use sha2::{Digest, Sha256};

use super::Target;
use crate::weights::WeightSource;

/// SHA-256 of a weight's values as little-endian f32, row-major: the same for every file format and device, another
/// one for another compute dtype.
pub fn weight_sha256(weight: &Weight) -> String {
    let mut hasher = Sha256::new();
    // Hashing in pieces keeps the second copy small.
    for chunk in weight.to_f32().chunks(1 << 16) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|v| v.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hex(hasher)
}

/// SHA-256 over the named tensors as their file stores them: name, type, shape, and windows spread over the bytes. A
/// target of tens of gigabytes is told from a fine-tuned sister in a moment; the same values in another format or type
/// have another hash.
pub(super) fn stored_sha256(source: &dyn WeightSource, names: &[&str]) -> String {
    const WINDOWS: usize = 32;
    const WINDOW_BYTES: usize = 256;
    let mut hasher = Sha256::new();
    for name in names {
        hasher.update(format!("{name} {:?} {:?}\n", source.dtype(name).map(|(dtype, _)| dtype), source.shape(name)));
        let bytes = source.stored(name).unwrap_or_default();
        if bytes.len() <= WINDOWS * WINDOW_BYTES {
            hasher.update(bytes);
        } else {
            for window in 0..WINDOWS {
                let start = (bytes.len() - WINDOW_BYTES) / (WINDOWS - 1) * window;
                hasher.update(&bytes[start..start + WINDOW_BYTES]);
            }
        }
        source.release(name);
    }
    hex(hasher)
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Identity of a target for a drafter's contract. `name` is for people.
pub fn target_identity(target: &dyn Target, name: Option<String>) -> TargetIdentity {
    let embedding = weight_sha256(target.embedding());
    let head = if target.spec().tied { embedding.clone() } else { weight_sha256(target.head()) };
    TargetIdentity {
        name,
        revision: None,
        embedding_sha256: Some(embedding),
        head_sha256: Some(head),
        layers_sha256: target.layers_sha256().map(str::to_owned),
    }
}
