//! Which documents and anchors come when.

use draftsman_train::{Cursor, Turn, draw_anchors};

#[test]
fn an_epoch_holds_every_document_once_in_its_own_order() {
    let mut cursor = Cursor::new(7, 10, 0);
    let epochs: Vec<Vec<usize>> = (0..3)
        .map(|epoch| {
            (0..10)
                .map(|_| {
                    let turn = cursor.advance();
                    assert_eq!(turn.epoch, epoch);
                    turn.document
                })
                .collect()
        })
        .collect();
    for order in &epochs {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[1], epochs[2]);
}

#[test]
fn a_cursor_can_start_anywhere() {
    let mut whole = Cursor::new(3, 7, 0);
    let turns: Vec<Turn> = (0..30).map(|_| whole.advance()).collect();
    for start in 0..25 {
        let mut late = Cursor::new(3, 7, start);
        let rest: Vec<Turn> = (start..30).map(|_| late.advance()).collect();
        assert_eq!(rest, turns[start as usize..], "from document {start}");
    }
}

#[test]
fn anchors_are_eligible_and_redrawn_every_epoch() {
    let eligible: Vec<usize> = (5..60).step_by(2).collect();
    let draw = |epoch, document| draw_anchors(1, Turn { epoch, document }, &eligible, 8);
    for (epoch, document) in [(0, 0), (1, 0), (0, 1)] {
        let anchors = draw(epoch, document);
        assert_eq!(anchors.len(), 8);
        assert!(anchors.is_sorted() && anchors.iter().all(|anchor| eligible.contains(anchor)), "{anchors:?}");
    }
    assert_eq!(draw(0, 0), draw(0, 0));
    assert_ne!(draw(0, 0), draw(1, 0));
    assert_ne!(draw(0, 0), draw(0, 1));
    assert_eq!(draw_anchors(1, Turn { epoch: 0, document: 0 }, &eligible[..3], 8), eligible[..3]);
}
