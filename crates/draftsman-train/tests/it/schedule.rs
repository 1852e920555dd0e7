//! Learning rates by hand.

use draftsman_train::{Course, Schedule};

fn check(course: Course, done: usize, expected: f64) {
    let schedule = Schedule { course, peak: 2.0, warmup_steps: 4, steps: 24, tail_share: 0.25, floor_share: 0.1 };
    let got = schedule.at(done);
    assert!((got - expected).abs() < 1e-12, "{course:?} after {done} updates: {got}, expected {expected}");
}

#[test]
fn courses() {
    for course in [Course::Cosine, Course::LinearTail, Course::Constant] {
        check(course, 0, 0.5);
        check(course, 3, 2.0);
    }
    check(Course::Constant, 23, 2.0);
    // Tail of 6 updates: the last one still moves.
    check(Course::LinearTail, 17, 2.0);
    check(Course::LinearTail, 18, 2.0);
    check(Course::LinearTail, 21, 0.2 + 1.8 * 0.5);
    check(Course::LinearTail, 23, 0.2 + 1.8 / 6.0);
    check(Course::Cosine, 4, 2.0);
    check(Course::Cosine, 14, 0.2 + 1.8 * 0.5);
    check(Course::Cosine, 24, 0.2);
}

#[test]
fn no_warmup_starts_at_the_peak() {
    let schedule =
        Schedule { course: Course::Constant, peak: 3.0, warmup_steps: 0, steps: 5, tail_share: 0.4, floor_share: 0.0 };
    assert_eq!(schedule.at(0), 3.0);
}
