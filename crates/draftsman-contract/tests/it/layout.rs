//! Block layouts against the sentences that define them, pair by pair and slot by slot.

use std::ops::Range;

use draftsman_contract::{
    Block, BlockLayout, ContextRule, Contract, Documents, HoleRule, LayerAttention, LayoutError, LayoutRules, RopeSpec,
    SlotLayout, default_gamma, eligible_anchors,
};
use proptest::prelude::*;

/// A packed row: documents with gaps (padding) between them, and a loss mask.
#[derive(Clone, Debug)]
struct Row {
    len: usize,
    bounds: Vec<Range<usize>>,
    loss_mask: Vec<bool>,
}

impl Row {
    fn documents(&self) -> Documents<'_> {
        Documents { len: self.len, bounds: &self.bounds, loss_mask: &self.loss_mask }
    }

    /// The document of a token, found by looking at all.
    fn document(&self, index: usize) -> Option<usize> {
        self.bounds.iter().position(|bounds| bounds.contains(&index))
    }

    fn eligible(&self, anchor: usize) -> bool {
        anchor + 1 < self.len
            && self.document(anchor).is_some()
            && self.document(anchor) == self.document(anchor + 1)
            && self.loss_mask[anchor]
            && self.loss_mask[anchor + 1]
    }
}

/// Up to five documents, empty and one-token ones among them, and gaps; holes are rare or frequent.
fn rows() -> impl Strategy<Value = Row> {
    let document = (0usize..3, prop_oneof![0usize..3, 0usize..24]);
    (prop::collection::vec(document, 0..5), 0usize..3, 0.3f64..1.0).prop_flat_map(|(documents, tail, density)| {
        let mut bounds = Vec::new();
        let mut end = 0;
        for (gap, len) in documents {
            bounds.push(end + gap..end + gap + len);
            end += gap + len;
        }
        let len = end + tail;
        prop::collection::vec(prop::bool::weighted(density), len).prop_map(move |loss_mask| Row {
            len,
            bounds: bounds.clone(),
            loss_mask,
        })
    })
}

fn rules() -> impl Strategy<Value = LayoutRules> {
    let context = prop_oneof![Just(ContextRule::BeforeAnchor), Just(ContextRule::ThroughAnchor)];
    let slots = prop_oneof![Just(SlotLayout::AnchorUnused), Just(SlotLayout::Shifted)];
    let holes = prop_oneof![Just(HoleRule::Cut), Just(HoleRule::Skip)];
    (1usize..=17, context, slots, 0i64..3, holes, 0.5f64..9.0).prop_map(
        |(block_size, context, slots, position_origin, holes, gamma)| LayoutRules {
            block_size,
            context,
            slots,
            position_origin,
            holes,
            gamma,
        },
    )
}

fn attention() -> impl Strategy<Value = LayerAttention> {
    (any::<bool>(), prop::option::of(0usize..30)).prop_map(|(causal, window)| LayerAttention { causal, window })
}

/// A row, rules, attention, and some of its eligible anchors in any order, repeats included.
fn cases() -> impl Strategy<Value = (Row, LayoutRules, LayerAttention, Vec<usize>)> {
    (rows(), rules(), attention(), prop::collection::vec(any::<prop::sample::Index>(), 0..9)).prop_map(
        |(row, rules, attention, picks)| {
            let eligible: Vec<usize> = (0..row.len).filter(|&anchor| row.eligible(anchor)).collect();
            let anchors = if eligible.is_empty() {
                Vec::new()
            } else {
                picks.iter().map(|pick| eligible[pick.index(eligible.len())]).collect()
            };
            (row, rules, attention, anchors)
        },
    )
}

/// What a key or a query is: a token of the context, or a row of a block.
#[derive(Clone, Copy)]
enum Place {
    Context(usize),
    Block { block: usize, slot: usize },
}

/// The sentence: a row of a block sees the rows of its document before the anchor (or through it) and the rows of its
/// own block, of these the ones nearer than the window, and no later ones where the layer is causal; nothing else.
fn sees(
    row: &Row,
    rules: &LayoutRules,
    a: LayerAttention,
    anchors: &[usize],
    block: usize,
    slot: usize,
    key: Place,
) -> bool {
    let anchor = anchors[block];
    let query_position = (anchor + slot) as i64;
    let (may, key_position) = match key {
        Place::Context(token) => {
            let before = match rules.context {
                ContextRule::BeforeAnchor => token < anchor,
                ContextRule::ThroughAnchor => token <= anchor,
            };
            (before && row.document(token).is_some() && row.document(token) == row.document(anchor), token as i64)
        }
        Place::Block { block: other, slot: other_slot } => (other == block, (anchor + other_slot) as i64),
    };
    let near = |distance: i64| a.window.is_none_or(|window| distance < window as i64);
    let direction = if a.causal { key_position <= query_position } else { near(key_position - query_position) };
    may && near(query_position - key_position) && direction
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_query_key_pair((row, rules, a, anchors) in cases()) {
        let layout = BlockLayout::build(&rules, &row.documents(), &anchors).unwrap();
        let visible = layout.visible(a);
        prop_assert_eq!(visible.rows(), anchors.len() * rules.block_size);
        let keys: Vec<Place> = (0..row.len)
            .map(Place::Context)
            .chain((0..anchors.len()).flat_map(|block| (0..rules.block_size).map(move |slot| Place::Block { block, slot })))
            .collect();
        prop_assert!(visible.check_keys(keys.len()).is_ok());
        for block in 0..anchors.len() {
            for slot in 0..rules.block_size {
                let seen: Vec<u32> = visible.keys(block * rules.block_size + slot).collect();
                let expected: Vec<u32> = (0..keys.len())
                    .filter(|&key| sees(&row, &rules, a, &anchors, block, slot, keys[key]))
                    .map(|key| key as u32)
                    .collect();
                prop_assert_eq!(seen, expected, "block {} (anchor {}), slot {}", block, anchors[block], slot);
            }
        }
    }

    #[test]
    fn positions_labels_and_weights((row, rules, _, anchors) in cases()) {
        let layout = BlockLayout::build(&rules, &row.documents(), &anchors).unwrap();
        let origin = rules.position_origin as u32;
        let token_positions = BlockLayout::context_positions(&row.documents(), &rules);
        prop_assert_eq!(token_positions.len(), row.len);
        for (token, &position) in token_positions.iter().enumerate() {
            let before_in_document = (0..token).filter(|&t| row.document(t) == row.document(token)).count() as u32;
            let expected = if row.document(token).is_some() { before_in_document + origin } else { origin };
            prop_assert_eq!(position, expected, "token {}", token);
        }

        prop_assert_eq!(layout.context_rows, row.len);
        prop_assert_eq!(layout.blocks.iter().map(|b| b.anchor).collect::<Vec<_>>(), anchors.clone());
        for (block, &anchor) in layout.blocks.iter().zip(&anchors) {
            let mut holes = 0;
            let mut valid = 0;
            for slot in 0..rules.block_size {
                prop_assert_eq!(block.positions[slot], token_positions[anchor] + slot as u32);
                let (predicts, target, exponent) = match rules.slots {
                    SlotLayout::AnchorUnused => (slot >= 1, anchor + slot, slot as f64 - 1.0),
                    SlotLayout::Shifted => (true, anchor + 1 + slot, slot as f64),
                };
                if !predicts {
                    prop_assert_eq!((block.labels[slot], block.weights[slot]), (None, 0.0));
                    continue;
                }
                let exists = target < row.len && row.document(target) == row.document(anchor);
                prop_assert_eq!(block.labels[slot], exists.then_some(target));
                let supervised = exists && row.loss_mask[target];
                holes += usize::from(!supervised);
                valid += usize::from(holes == 0);
                let learned = supervised && (holes == 0 || rules.holes == HoleRule::Skip);
                let expected = if learned { (-exponent / rules.gamma).exp() as f32 } else { 0.0 };
                prop_assert_eq!(block.weights[slot], expected, "anchor {}, slot {}", anchor, slot);
            }
            prop_assert_eq!(block.valid, valid);
        }
    }

    #[test]
    fn flat_lists_follow_the_blocks((row, rules, _, anchors) in cases()) {
        let ids: Vec<u32> = (0..row.len as u32).map(|index| 100 + index).collect();
        let layout = BlockLayout::build(&rules, &row.documents(), &anchors).unwrap();
        let size = rules.block_size;
        prop_assert_eq!(layout.rows(), anchors.len() * size);
        let expected: Vec<u32> =
            anchors.iter().flat_map(|&a| (0..size).map(move |slot| if slot == 0 { 100 + a as u32 } else { 7 })).collect();
        prop_assert_eq!(layout.block_ids(&ids, 7), expected);
        let flat = |f: &dyn Fn(&Block, usize) -> Option<u32>| -> Vec<Option<u32>> {
            layout.blocks.iter().flat_map(|block| (0..size).map(|slot| f(block, slot)).collect::<Vec<_>>()).collect()
        };
        prop_assert_eq!(layout.labels(&ids), flat(&|block, slot| block.labels[slot].map(|index| 100 + index as u32)));
        let positions: Vec<_> = layout.positions().into_iter().map(Some).collect();
        prop_assert_eq!(positions, flat(&|block, slot| Some(block.positions[slot])));
        let weights: Vec<_> = layout.weights().into_iter().map(|w| Some(w.to_bits())).collect();
        prop_assert_eq!(weights, flat(&|block, slot| Some(block.weights[slot].to_bits())));
        for (index, range) in layout.row_ranges().into_iter().enumerate() {
            prop_assert_eq!(range, index * size..(index + 1) * size);
        }
    }

    #[test]
    fn eligible_anchors_are_supervised_pairs(row in rows()) {
        let expected: Vec<usize> = (0..row.len).filter(|&anchor| row.eligible(anchor)).collect();
        prop_assert_eq!(eligible_anchors(&row.documents()), expected);
    }

    #[test]
    fn any_other_anchor_is_refused_by_name(row in rows(), rules in rules(), anchor in 0usize..90) {
        let built = BlockLayout::build(&rules, &row.documents(), &[anchor]);
        prop_assert_eq!(built.is_ok(), row.eligible(anchor));
        if let Err(error) = built {
            let named = format!("anchor {anchor} ");
            prop_assert!(error.to_string().starts_with(&named), "{}", error);
            // Among good anchors too.
            let mut anchors = eligible_anchors(&row.documents());
            anchors.push(anchor);
            prop_assert_eq!(BlockLayout::build(&rules, &row.documents(), &anchors), Err(error));
        }
    }

    /// The block that decoding builds, over a cache of its document alone, is the packed one: same positions, and every
    /// row sees the same tokens in the same order.
    #[test]
    fn decode_is_the_same_block_of_a_packed_layout((row, rules, a, anchors) in cases(), shorter in 0usize..17) {
        let packed = BlockLayout::build(&rules, &row.documents(), &anchors).unwrap();
        let visible = packed.visible(a);
        for (index, block) in packed.blocks.iter().enumerate() {
            let start = block.document.start;
            let local = block.anchor - start;
            let decode = BlockLayout::decode(&rules, local, rules.block_size);
            prop_assert_eq!(decode.context_rows, block.context.len());
            prop_assert_eq!(decode.positions(), block.positions.clone());
            let single = packed.single(index).visible(a);
            let seen = decode.visible(a);
            let known = local + 1;
            let all = BlockLayout::inference(&rules, known, &[local], rules.block_size).unwrap();
            prop_assert_eq!(all.positions(), decode.positions());
            let among_all = all.visible(a);
            for slot in 0..rules.block_size {
                // Every key as (is a block row, token or slot counted from the document's or the block's start).
                let name = |key: u32, context: usize, start: usize, first: usize| {
                    let key = key as usize;
                    if key < context { (false, key - start) } else { (true, key - first) }
                };
                let first = row.len + index * rules.block_size;
                let row_index = index * rules.block_size + slot;
                let in_packed: Vec<_> = visible.keys(row_index).map(|k| name(k, row.len, start, first)).collect();
                let alone: Vec<_> = single.keys(slot).map(|k| name(k, row.len, start, row.len)).collect();
                let context = decode.context_rows;
                let in_decode: Vec<_> = seen.keys(slot).map(|k| name(k, context, 0, context)).collect();
                let in_all: Vec<_> = among_all.keys(slot).map(|k| name(k, known, 0, known)).collect();
                prop_assert_eq!(&in_decode, &in_packed, "anchor {}, slot {}", block.anchor, slot);
                prop_assert_eq!(&alone, &in_packed);
                prop_assert_eq!(&in_all, &in_packed);
            }
            // A shortened block sees what the first rows of the whole one see, less the rows it hasn't.
            let rows = shorter.min(rules.block_size);
            let short = BlockLayout::decode(&rules, local, rows);
            prop_assert_eq!(short.rows(), rows);
            prop_assert_eq!(short.positions(), block.positions[..rows].to_vec());
            let short_visible = short.visible(a);
            for slot in 0..rows {
                let limit = (decode.context_rows + rows) as u32;
                let expected: Vec<u32> = seen.keys(slot).filter(|&key| key < limit).collect();
                prop_assert_eq!(short_visible.keys(slot).collect::<Vec<_>>(), expected);
            }
            prop_assert!(decode.labels(&[1, 2, 3]).iter().all(Option::is_none));
            prop_assert!(decode.weights().iter().all(|&weight| weight == 0.0));
        }
    }
}

fn plain_rules(block_size: usize) -> LayoutRules {
    let contract = Contract::dflash(block_size, 0, vec![1], vec![LayerAttention::FULL], RopeSpec::plain(1e4));
    LayoutRules::from(&contract, HoleRule::Cut, default_gamma(block_size))
}

#[test]
fn a_worked_example() {
    // One document of six tokens after a padding token; the prompt's two are unsupervised, and so is token 5.
    let bounds = [1..7];
    let loss_mask = [false, false, false, true, true, false, true];
    let docs = Documents { len: 7, bounds: &bounds, loss_mask: &loss_mask };
    assert_eq!(eligible_anchors(&docs), [3]);
    let layout = BlockLayout::build(&plain_rules(8), &docs, &[3]).unwrap();
    let block = &layout.blocks[0];
    assert_eq!(block.context, 1..3);
    assert_eq!(block.positions, [2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(block.labels, [None, Some(4), Some(5), Some(6), None, None, None, None]);
    assert_eq!(block.weights, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(block.valid, 1);
    let skip = LayoutRules { holes: HoleRule::Skip, ..plain_rules(8) };
    let layout = BlockLayout::build(&skip, &docs, &[3]).unwrap();
    assert_eq!(layout.weights(), [0.0, 1.0, 0.0, (-2.0f64 / 4.0).exp() as f32, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(layout.blocks[0].valid, 1, "acceptance never looks past a hole");
}

#[test]
fn gamma_by_block_size() {
    let check = |block_size, expected: f64| assert_eq!(default_gamma(block_size), expected, "block {block_size}");
    check(16, 7.0);
    check(10, 5.0);
    check(8, 4.0);
    check(1, 0.0);
    check(2, 7.0 / 15.0);
    check(4, 7.0 * 3.0 / 15.0);
    check(17, 7.0 * 16.0 / 15.0);
}

#[test]
fn the_first_slot_weighs_one_whatever_gamma_is() {
    for gamma in [0.0, 1e-300, 4.0, f64::INFINITY] {
        let rules = LayoutRules { gamma, ..plain_rules(4) };
        let mask = [true; 6];
        let docs = Documents { len: 6, bounds: std::slice::from_ref(&(0..6)), loss_mask: &mask };
        let weights = BlockLayout::build(&rules, &docs, &[1]).unwrap().weights();
        assert_eq!(weights[..2], [0.0, 1.0], "gamma {gamma}");
        assert!(weights.iter().all(|weight| weight.is_finite()), "gamma {gamma}: {weights:?}");
    }
}

#[test]
fn no_anchors_no_rows() {
    let mask = [true; 4];
    let docs = Documents { len: 4, bounds: std::slice::from_ref(&(0..4)), loss_mask: &mask };
    let layout = BlockLayout::build(&plain_rules(8), &docs, &[]).unwrap();
    assert_eq!((layout.rows(), layout.context_rows), (0, 4));
    assert_eq!(layout.visible(LayerAttention::FULL).rows(), 0);
    assert!(layout.labels(&[1, 2, 3, 4]).is_empty() && layout.block_ids(&[1, 2, 3, 4], 0).is_empty());

    let empty = Documents { len: 0, bounds: &[], loss_mask: &[] };
    assert!(eligible_anchors(&empty).is_empty());
    assert_eq!(BlockLayout::build(&plain_rules(8), &empty, &[]).unwrap().context_rows, 0);
}

#[test]
fn an_anchor_without_context_sees_its_block_only() {
    let layout = BlockLayout::decode(&plain_rules(3), 0, 3);
    assert_eq!(layout.context_rows, 0);
    let visible = layout.visible(LayerAttention::FULL);
    assert_eq!((0..3).map(|row| visible.row(row).to_vec()).collect::<Vec<_>>(), vec![vec![0..3]; 3]);
}

#[test]
fn context_and_block_join_in_decoding() {
    // One range per row: the block's keys follow the context's directly.
    let visible = BlockLayout::decode(&plain_rules(4), 10, 4).visible(LayerAttention { causal: true, window: Some(6) });
    assert_eq!(
        (0..4).map(|row| visible.row(row).to_vec()).collect::<Vec<_>>(),
        [vec![5..11], vec![6..12], vec![7..13], vec![8..14]]
    );
}

#[test]
fn bad_input_is_refused() {
    let mask = [true; 6];
    let check = |rules: LayoutRules, len: usize, bounds: &[Range<usize>], anchors: &[usize], expected: &str| {
        let docs = Documents { len, bounds, loss_mask: &mask };
        let message = BlockLayout::build(&rules, &docs, anchors).unwrap_err().to_string();
        assert!(message.contains(expected), "`{message}` lacks `{expected}`");
    };
    let rules = plain_rules(8);
    check(rules, 5, &[0..5], &[0], "loss mask has 6 entries for 5 tokens");
    check(rules, 6, &[0..4, 3..6], &[0], "document 1 lies at 3..6, expected a range from 4 on");
    check(rules, 6, &[3..6, 0..3], &[0], "document 1 lies at 0..3");
    check(rules, 6, &[0..9], &[0], "within 6 tokens");
    #[expect(clippy::reversed_empty_ranges, reason = "the input under test")]
    check(rules, 6, &[4..2], &[0], "document 0 lies at 4..2");
    check(rules, 6, &[0..4], &[4], "anchor 4 lies in no document");
    check(rules, 6, &[0..6], &[usize::MAX], "lies in no document");
    check(rules, 6, &[0..4, 4..6], &[3], "anchor 3 can't begin a block: it is the last token of its document");
    check(LayoutRules { block_size: 0, ..rules }, 6, &[0..6], &[0], "block_size is 0");
    check(LayoutRules { gamma: -1.0, ..rules }, 6, &[0..6], &[0], "gamma is -1");
    check(LayoutRules { gamma: f64::NAN, ..rules }, 6, &[0..6], &[0], "gamma is NaN");
    check(LayoutRules { position_origin: -1, ..rules }, 6, &[0..6], &[0], "position_origin is -1");

    let through = LayoutRules { context: ContextRule::ThroughAnchor, ..rules };
    let beyond = |anchor, needed| LayoutError::AnchorBeyondContext { anchor, needed, context_rows: 6 };
    assert_eq!(BlockLayout::inference(&rules, 6, &[2, 7], 8), Err(beyond(7, 7)));
    assert_eq!(BlockLayout::inference(&through, 6, &[6], 8), Err(beyond(6, 7)));
    assert!(BlockLayout::inference(&rules, 6, &[6, 0, 6], 8).is_ok());
}
