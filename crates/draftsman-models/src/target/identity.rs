//! Which target this is: hashes of what a drafter borrows from it.

use draftsman_contract::TargetIdentity;
use draftsman_kernels::Weight;
use sha2::{Digest, Sha256};

use super::Target;

/// SHA-256 of a weight's values as little-endian f32, row-major: the same for every file format and device, another
/// one for another compute dtype.
pub fn weight_sha256(weight: &Weight) -> String {
    let mut hasher = Sha256::new();
    // Hashing in pieces keeps the second copy small.
    for chunk in weight.to_f32().chunks(1 << 16) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|v| v.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Identity of a target for a drafter's contract. `name` is for people.
pub fn target_identity(target: &dyn Target, name: Option<String>) -> TargetIdentity {
    let embedding = weight_sha256(target.embedding());
    let head = if target.spec().tied { embedding.clone() } else { weight_sha256(target.head()) };
    TargetIdentity { name, revision: None, embedding_sha256: Some(embedding), head_sha256: Some(head) }
}
