//! One meaning: a block of a packed training forward, the same block alone, and the same block after a cached context
//! are the same numbers; and no block sees what it must not.

use burn::tensor::Device;
use draftsman_contract::BlockLayout;
use draftsman_models::Context;

use super::fixture::{CASES, Case, Observed};
use crate::compare::assert_same_bits;

/// The block of anchor `index` after a context cache that was fed in pieces of `piece` rows.
fn cached(case: &Case, index: usize, piece: usize) -> Observed {
    let block = &case.layout.blocks[index];
    let context = block.document.start..block.anchor;
    let (features, positions) = (case.features(), case.positions());
    let mut cache = case.drafter.new_cache();
    let mut at = context.start;
    while at < context.end {
        let next = (at + piece).min(context.end);
        let rows = case.feature_rows(&features, at..next);
        case.drafter.extend_context(&mut cache, rows, &positions[at..next]).unwrap();
        at = next;
    }
    let layout = BlockLayout::decode(&case.rules, context.len(), block.rows());
    let input = case.block(&case.drafter, &layout, &case.ids[block.document.start..]);
    let mut seen = Observed::default();
    // Twice: the first run must leave the cache as it found it.
    for _ in 0..2 {
        seen = Observed::default();
        let output = case
            .drafter
            .forward(input.clone(), &layout, Context::Cached(&mut cache), Some(&mut |n, t| seen.record(n, t)))
            .unwrap();
        seen.record("output", &output);
    }
    seen
}

#[test]
fn a_packed_block_equals_the_same_block_alone_and_after_a_cache() {
    for name in CASES {
        let case = Case::open(name, Device::flex());
        let packed = case.train_forward(&case.layout, &case.features(), &case.ids);
        for (index, rows) in case.layout.row_ranges().into_iter().enumerate() {
            let expected = packed.rows(rows.clone());
            let what = |mode: &str| format!("{name}: anchor {}, {mode}", case.anchors[index]);
            let alone = case.train_forward(&case.layout.single(index), &case.features(), &case.ids);
            assert_same_bits(&what("alone"), &alone.rows(0..rows.len()), &expected);
            for piece in [1, 3, usize::MAX / 2] {
                let after_cache = cached(&case, index, piece);
                assert_same_bits(&what(&format!("cached by {piece}")), &after_cache.rows(0..rows.len()), &expected);
            }
        }
    }
}

#[test]
fn drafts_depend_on_the_context_and_on_nothing_after_the_anchor() {
    for name in CASES {
        let case = Case::open(name, Device::flex());
        let (features, ids) = (case.features(), case.ids.clone());
        let width = features.len() / ids.len();
        for index in 0..case.layout.blocks.len() {
            let layout = case.layout.single(index);
            let block = &layout.blocks[0];
            let expected = case.train_forward(&layout, &features, &ids).rows(0..block.rows());
            let changed_rows = |rows: std::ops::Range<usize>| {
                let mut changed = features.clone();
                changed[rows.start * width..rows.end * width].iter_mut().for_each(|v| *v = 3.0 - *v);
                case.train_forward(&layout, &changed, &ids).rows(0..block.rows())
            };
            let what = |part: &str| format!("{name}: anchor {}, other {part}", block.anchor);
            // A feature row belongs to its token: rows from the anchor on are what the target has not seen yet.
            assert_same_bits(&what("future features"), &changed_rows(block.anchor..ids.len()), &expected);
            assert_same_bits(&what("documents before"), &changed_rows(0..block.document.start), &expected);
            let mut future = ids.clone();
            future[block.anchor + 1..].iter_mut().for_each(|id| *id = 60 - *id % 40);
            let got = case.train_forward(&layout, &features, &future).rows(0..block.rows());
            assert_same_bits(&what("future tokens"), &got, &expected);

            let mut other_anchor = ids.clone();
            other_anchor[block.anchor] = 60 - ids[block.anchor] % 40;
            assert_ne!(other_anchor[block.anchor], ids[block.anchor], "{}", what("anchor: same token"));
            let got = case.train_forward(&layout, &features, &other_anchor).rows(0..block.rows());
            assert_ne!(got, expected, "{}: must change the drafts", what("anchor"));
            if block.anchor > block.document.start {
                // The row just before the anchor lies in every window.
                let got = changed_rows(block.anchor - 1..block.anchor);
                assert_ne!(got, expected, "{}: must change the drafts", what("context"));
            }
        }
    }
}

#[test]
fn wrong_inputs_are_errors_and_change_no_cache() {
    let case = Case::open("full", Device::flex());
    let features = case.features();
    let hidden = case.drafter.config().hidden_size;
    let error = case.drafter.context(case.feature_rows(&features, 0..4).narrow(1, 0, hidden)).unwrap_err().to_string();
    assert!(error.contains("[4, 32]") && error.contains("[4, 96]"), "{error}");

    let error = case.drafter.embed(&[3, 61], &case.embedding).unwrap_err().to_string();
    assert!(error.contains("61") && error.contains("index 1"), "{error}");

    let mut cache = case.drafter.new_cache();
    case.drafter.extend_context(&mut cache, case.feature_rows(&features, 0..5), &[0, 1, 2, 3, 4]).unwrap();
    let error = case.drafter.extend_context(&mut cache, case.feature_rows(&features, 5..7), &[5]).unwrap_err();
    assert!(error.to_string().contains("2 feature rows for 1 positions"), "{error}");
    let layout = BlockLayout::decode(&case.rules, 9, 6);
    let block = case.block(&case.drafter, &layout, &case.ids);
    let error = case.drafter.forward(block, &layout, Context::Cached(&mut cache), None).unwrap_err().to_string();
    assert!(error.contains("5 context rows") && error.contains("expects 9"), "{error}");
    assert_eq!(cache.len(), 5);

    let other = Case::open("sliding", Device::flex());
    let mut foreign = other.drafter.new_cache();
    let error = case.drafter.extend_context(&mut foreign, case.feature_rows(&features, 0..1), &[0]).unwrap_err();
    assert!(error.to_string().contains("another drafter"), "{error}");
}
