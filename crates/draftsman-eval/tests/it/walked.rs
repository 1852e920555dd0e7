//! Counting cycles, with and without loops.

use draftsman_decode::Cycle;
use draftsman_eval::{Walked, WalkedReport};

fn cycle(start: usize, accepted: usize, committed: usize) -> Cycle {
    Cycle { start, block: vec![0; accepted + 1], parents: None, accepted, committed }
}

#[test]
fn cycles_count_by_what_they_committed() {
    // Prompt of 10: the first answer token is at 10, cycles commit 3, 1, 4 (accepted 5, cut at a stop).
    let cycles = [cycle(10, 2, 3), cycle(13, 0, 1), cycle(14, 5, 4)];
    let check = |loop_start: Option<usize>, outside: (u64, u64)| {
        let mut walked = Walked::default();
        walked.add_answer(&cycles, 10, loop_start);
        assert_eq!((walked.all.cycles, walked.all.accepted), (3, 5));
        assert_eq!(walked.all.histogram, [1, 0, 1, 1]);
        let counts = (walked.outside_loops.cycles, walked.outside_loops.cycles + walked.outside_loops.accepted);
        assert_eq!(counts, outside, "loop at {loop_start:?}");
        assert_eq!(walked.looping_answers, u64::from(loop_start.is_some()));
    };
    // (cycles, tokens) outside the loop. Answer index 0 is the prefill's token; cycles make indices 1..=8.
    check(None, (3, 8));
    check(Some(9), (3, 8));
    check(Some(8), (3, 7));
    check(Some(6), (3, 5));
    check(Some(5), (2, 4));
    check(Some(4), (1, 3));
    check(Some(2), (1, 1));
    check(Some(1), (0, 0));
    check(Some(0), (0, 0));
}

#[test]
fn micro_pools_and_macro_averages_answers() {
    let mut walked = Walked::default();
    walked.add_answer(&[cycle(5, 3, 4), cycle(9, 3, 4), cycle(13, 3, 4)], 5, None);
    walked.add_answer(&[cycle(5, 0, 1)], 5, None);
    walked.add_answer(&[], 5, None);
    let report = WalkedReport::new(&walked.all);
    assert_eq!(report.acceptance_length_micro, Some(13.0 / 4.0));
    assert_eq!(report.acceptance_length_macro, Some(2.5));
    assert_eq!(report.accepted_share_at_slot, [0.75, 0.75, 0.75]);
    assert_eq!(report.cycles_by_accepted_drafts, [1, 0, 0, 3]);
    assert_eq!((report.cycles, report.decoded_tokens, report.answers_with_cycles), (4, 13, 2));
    let interval = report.acceptance_length_micro_interval_95.unwrap();
    assert!(interval.low <= 3.25 && 3.25 <= interval.high);
}
