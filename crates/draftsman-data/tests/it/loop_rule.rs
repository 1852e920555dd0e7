use draftsman_data::{LoopDetector, LoopRule};
use proptest::prelude::*;

/// `length` tokens that never repeat, from `from`.
fn fresh(from: u32, length: usize) -> Vec<u32> {
    (from..from + length as u32).collect()
}

fn repeat(block: &[u32], length: usize) -> Vec<u32> {
    block.iter().cycle().take(length).copied().collect()
}

fn check(name: &str, answer: &[u32], expected: Option<usize>) {
    assert_eq!(LoopRule::default().loop_start(answer), expected, "{name}");
}

#[test]
fn loops_of_any_period_are_cut_at_their_second_round() {
    for period in [1, 2, 3, 7, 8, 20, 50, 90] {
        let block = fresh(1000, period);
        let answer = [fresh(0, 30), repeat(&block, period + 40)].concat();
        // Shorter than an 8-gram, a block must come round often enough for an 8-gram to recur; the first 8-gram that does starts one period in.
        check(&format!("period {period}"), &answer, Some(30 + period));
    }
}

#[test]
fn text_that_goes_on_is_left_alone() {
    check("empty", &[], None);
    check("fresh", &fresh(0, 500), None);
    check("28 tokens again, less one", &[fresh(0, 60), fresh(10, 27), fresh(100, 60)].concat(), None);
    check("28 tokens again", &[fresh(0, 60), fresh(10, 28), fresh(100, 60)].concat(), Some(60));
    // Assert lines: eleven tokens in common, nine that differ.
    let asserts: Vec<u32> = (0..12).flat_map(|i| [fresh(0, 11), fresh(1000 + 9 * i, 9)].concat()).collect();
    check("assert lines", &asserts, None);
    // A short phrase that comes up again and again between new text.
    let phrase: Vec<u32> = (0..20).flat_map(|i| [fresh(0, 7), fresh(1000 + 3 * i, 3)].concat()).collect();
    check("a phrase", &phrase, None);
}

#[test]
fn near_copies_with_a_counter_are_a_loop() {
    // Twenty equal tokens and a number, over and over: 20 of 21 tokens lie in repeated 8-grams.
    let items: Vec<u32> = (0..6).flat_map(|i| [fresh(0, 20), vec![1000 + i]].concat()).collect();
    check("numbered copies", &items, Some(21));
}

#[test]
fn senseless_numbers_are_named() {
    assert_eq!(LoopRule::default().problem(), None);
    for rule in [
        LoopRule { ngram: 0, ..LoopRule::default() },
        LoopRule { repeated: 0, ..LoopRule::default() },
        LoopRule { repeated: 33, ..LoopRule::default() },
    ] {
        assert!(rule.problem().is_some(), "{rule:?}");
        assert_eq!(rule.loop_start(&repeat(&[1], 99)), None, "{rule:?}");
    }
}

/// The rule as it is stated, over the whole answer at each length.
fn by_definition(rule: LoopRule, answer: &[u32]) -> Option<usize> {
    (1..=answer.len()).find_map(|end| {
        let ids = &answer[..end];
        let occurred_before =
            |start: usize| (0..start).any(|s| ids[s..s + rule.ngram] == ids[start..start + rule.ngram]);
        let starts: Vec<usize> =
            (0..=end.saturating_sub(rule.ngram)).filter(|s| end >= rule.ngram && occurred_before(*s)).collect();
        let repeated = |t: usize| starts.iter().any(|s| (*s..s + rule.ngram).contains(&t));
        let window = end.saturating_sub(rule.window)..end;
        let hits: Vec<usize> = window.filter(|t| repeated(*t)).collect();
        (hits.len() >= rule.repeated).then(|| hits[0])
    })
}

proptest! {
    #[test]
    fn the_detector_is_the_stated_rule(answer in prop::collection::vec(0u32..3, 0..60), ngram in 1usize..5, window in 1usize..12, part in 1usize..12) {
        let rule = LoopRule { ngram, window, repeated: part.min(window) };
        prop_assert_eq!(rule.loop_start(&answer), by_definition(rule, &answer));
        // What is pushed after a loop was found changes nothing.
        let mut detector = LoopDetector::new(rule);
        let found: Vec<Option<usize>> = answer.iter().map(|id| detector.push(*id)).collect();
        if let Some(first) = found.iter().position(Option::is_some) {
            prop_assert!(found[first..].iter().all(|f| *f == found[first]));
        }
        prop_assert_eq!(detector.found(), rule.loop_start(&answer));
    }
}
