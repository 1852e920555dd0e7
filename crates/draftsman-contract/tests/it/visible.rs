//! Visible ranges: constructors, normal form, refusals.

use std::ops::Range;

use draftsman_contract::{Visible, VisibleError};
use proptest::prelude::*;

fn keys(visible: &Visible) -> Vec<Vec<u32>> {
    (0..visible.rows()).map(|row| visible.keys(row).collect()).collect()
}

proptest! {
    #[test]
    fn causal_rows_see_the_past_and_themselves(past in 0usize..20, rows in 0usize..20, window in 0usize..25) {
        let expected = |window: usize| -> Vec<Vec<u32>> {
            let see = |row: usize| (0..past + rows).filter(move |&k| k <= past + row && past + row - k < window);
            (0..rows).map(|row| see(row).map(|k| k as u32).collect()).collect()
        };
        prop_assert_eq!(keys(&Visible::causal(past, rows)), expected(usize::MAX));
        prop_assert_eq!(keys(&Visible::causal_window(past, rows, window)), expected(window));
    }

    #[test]
    fn equal_key_sets_are_equal_values(sets in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..30), 0..8)) {
        let members: Vec<Vec<u32>> =
            sets.iter().map(|set| (0..set.len() as u32).filter(|&k| set[k as usize]).collect()).collect();
        // Key by key, with an empty range before each: not the normal form.
        let split = members.iter().map(|row| row.iter().flat_map(|&k| [k..k, k..k + 1]).collect::<Vec<Range<u32>>>());
        let visible = Visible::from_rows(split).unwrap();
        prop_assert_eq!(&keys(&visible), &members);
        for (row, members) in members.iter().enumerate() {
            prop_assert!(visible.row(row).windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!(visible.row(row).iter().all(|range| range.start < range.end));
            prop_assert_eq!(visible.key_count(row), members.len());
        }
        let end = members.iter().flatten().max().map_or(0, |&key| key as usize + 1);
        prop_assert_eq!(visible.max_key(), end);
        prop_assert!(visible.check_keys(end).is_ok());
        if end > 0 {
            let too_few = VisibleError::TooFewKeys { keys: end - 1, needed: end };
            prop_assert_eq!(visible.check_keys(end - 1), Err(too_few));
        }
        let joined = (0..visible.rows()).map(|row| visible.row(row).to_vec());
        prop_assert_eq!(&Visible::from_rows(joined).unwrap(), &visible);
    }
}

#[test]
fn bad_ranges_are_refused() {
    let check = |rows: Vec<Vec<(u32, u32)>>, expected: &str| {
        let rows = rows.into_iter().map(|row| row.into_iter().map(|(start, end)| start..end));
        assert_eq!(Visible::from_rows(rows).unwrap_err().to_string(), expected);
    };
    check(
        vec![vec![(0, 3)], vec![(0, 3), (2, 4)]],
        "visible keys of row 1: range 2..4 begins before the previous one ends (3)",
    );
    check(vec![vec![(5, 6), (0, 1)]], "visible keys of row 0: range 0..1 begins before the previous one ends (6)");
    check(vec![vec![(5, 4)]], "visible keys of row 0: range 5..4 ends before it begins");
}
