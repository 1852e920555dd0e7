//! The verdict on two answers.

use draftsman_decode::{Finish, Generation};
use draftsman_eval::{EvalPrompt, Lossless, PromptRun, Verdict, compare_answers};

fn answer(ids: &[u32], gaps: &[f32]) -> Generation {
    Generation {
        ids: [&[1, 1], ids].concat(),
        prompt_len: 2,
        cycles: Vec::new(),
        finish: Finish::Length,
        gaps: gaps.to_vec(),
        prefill_s: 0.0,
        cycle_times: Vec::new(),
    }
}

#[test]
fn the_first_difference_is_shown_with_both_gaps() {
    let plain = answer(&[4, 5, 6], &[1.0, 2e-5, 1.0]);
    let check = |other: Generation, expected: Option<(usize, Option<u32>, Option<u32>, bool)>, verdict: Verdict| {
        let difference = compare_answers("p", &plain, &other);
        let got = difference.as_ref().map(|d| (d.answer_index, d.plain_token, d.speculative_token, d.near_tie));
        assert_eq!(got, expected);
        let run = |id: &str| PromptRun {
            prompt: EvalPrompt::new(0, id, vec![1, 1]),
            plain: plain.clone(),
            speculative: Vec::new(),
        };
        let (p, q) = (run("p"), run("q"));
        // An answer to another question is not compared.
        let another = Generation { prompt_len: 1, ..plain.clone() };
        let all = Lossless::over([(&p, &other), (&q, &plain), (&q, &another)]);
        assert_eq!(all.verdict, verdict);
        assert_eq!((all.answers, all.identical_answers), (2, if expected.is_some() { 1 } else { 2 }));
    };
    check(answer(&[4, 5, 6], &[1.0, 1.0, 1.0]), None, Verdict::Identical);
    check(answer(&[4, 7, 6], &[1.0, 3e-5, 1.0]), Some((1, Some(5), Some(7), true)), Verdict::NearTies);
    check(answer(&[4, 7, 6], &[1.0, 2e-4, 1.0]), Some((1, Some(5), Some(7), false)), Verdict::Different);
    check(answer(&[4, 5, 7], &[1.0, 2e-5, 1.0]), Some((2, Some(6), Some(7), false)), Verdict::Different);
    check(answer(&[4, 5], &[1.0, 1.0]), Some((2, Some(6), None, false)), Verdict::Different);
    check(answer(&[4, 5, 6, 1], &[1.0; 4]), Some((3, None, Some(1), false)), Verdict::Different);
    // Cut short by a limit on blocks, only what is there is compared.
    check(Generation { finish: Finish::Early, ..answer(&[4, 5], &[1.0; 2]) }, None, Verdict::Identical);
    let wrong = Generation { finish: Finish::Early, ..answer(&[4, 7], &[1.0; 2]) };
    check(wrong, Some((1, Some(5), Some(7), false)), Verdict::Different);
}
