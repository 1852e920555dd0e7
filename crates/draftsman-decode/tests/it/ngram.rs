//! Prompt lookup against its definition.

use draftsman_decode::{NgramProposer, Proposer};
use proptest::prelude::*;

/// Every earlier place, every length, written out.
fn by_definition(ids: &[u32], most: usize) -> Vec<u32> {
    for n in [3, 2] {
        let mut best = None;
        for end in n..ids.len() {
            // ids[end - n..end] is an occurrence that ends before the suffix does.
            if ids.len() >= n && ids[end - n..end] == ids[ids.len() - n..] {
                best = Some(end);
            }
        }
        if let Some(end) = best {
            return ids[end..].iter().copied().take(most).collect();
        }
    }
    Vec::new()
}

proptest! {
    #[test]
    fn lookup_is_its_definition(ids in prop::collection::vec(0u32..4, 0..40), block in 1usize..10, max in 0usize..10) {
        let got = NgramProposer::new(block).propose(&ids, max).unwrap();
        let expected = if max.min(block - 1) == 0 { vec![] } else { by_definition(&ids, max.min(block - 1)) };
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn examples() {
    let check = |ids: &[u32], block: usize, max: usize, expected: &[u32]| {
        assert_eq!(NgramProposer::new(block).propose(ids, max).unwrap(), expected, "{ids:?}");
    };
    check(&[1, 2, 3, 4, 5, 1, 2, 3], 8, 7, &[4, 5, 1, 2, 3]);
    check(&[1, 2, 3, 4, 5, 1, 2, 3], 4, 7, &[4, 5, 1]);
    check(&[1, 2, 3, 4, 5, 1, 2, 3], 8, 2, &[4, 5]);
    // Three tokens before two, although the two-token match is more recent.
    check(&[1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 8, 1, &[7]);
    // Most recent of two.
    check(&[1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], 8, 1, &[8]);
    check(&[9, 2, 3, 7, 8, 2, 3], 8, 7, &[7, 8, 2, 3]);
    check(&[5, 5, 5, 5], 8, 7, &[5]);
    check(&[1, 2, 3, 4], 8, 7, &[]);
    check(&[1], 8, 7, &[]);
    check(&[], 8, 7, &[]);
}
