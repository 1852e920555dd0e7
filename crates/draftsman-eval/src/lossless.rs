//! Is speculative output the target's own?

use draftsman_decode::{Finish, Generation};
use serde::Serialize;

use crate::PromptRun;

/// Both logit gaps below this: the two runs met a tie that rounding decided (f32).
const NEAR_TIE: f32 = 1e-4;

/// The first place where two answers differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Which prompt.
    pub prompt_id: String,
    /// Index in the answer.
    pub answer_index: usize,
    /// The plain answer's token there; absent if it had ended.
    pub plain_token: Option<u32>,
    /// The speculative answer's token there; absent if it had ended.
    pub speculative_token: Option<u32>,
    /// Gap between the two largest logits of the row in plain decoding.
    pub plain_logit_gap: Option<f32>,
    /// The same in speculative decoding.
    pub speculative_logit_gap: Option<f32>,
    /// Both gaps are below 1e-4.
    pub near_tie: bool,
}

/// What the differences amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every answer is the same, token for token.
    Identical,
    /// Answers differ, each first at a near-tie.
    NearTies,
    /// At least one answer differs where there was no tie: not lossless.
    Different,
}

/// The verdict over a suite.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lossless {
    /// What it amounts to.
    pub verdict: Verdict,
    /// Answers compared. One whose conversation had differed before is not: it answers another question.
    pub answers: usize,
    /// Answers that are the same.
    pub identical_answers: usize,
    /// First difference of each other answer.
    pub differences: Vec<Difference>,
}

impl Lossless {
    /// The verdict over the answers of one proposer.
    pub fn over<'a>(answers: impl IntoIterator<Item = (&'a PromptRun, &'a Generation)>) -> Self {
        let (mut compared, mut differences) = (0, Vec::new());
        for (run, speculative) in answers {
            if speculative.ids.get(..speculative.prompt_len) == Some(&run.prompt.ids[..]) {
                compared += 1;
                differences.extend(compare_answers(&run.prompt.name(), &run.plain, speculative));
            }
        }
        let verdict = match differences.as_slice() {
            [] => Verdict::Identical,
            all if all.iter().all(|d| d.near_tie) => Verdict::NearTies,
            _ => Verdict::Different,
        };
        Self { verdict, answers: compared, identical_answers: compared - differences.len(), differences }
    }
}

/// The first difference between two answers to the same prompt. One that `max_blocks` cut short differs only before its end.
pub fn compare_answers(prompt_id: &str, plain: &Generation, speculative: &Generation) -> Option<Difference> {
    let (a, b) = (plain.output_ids(), speculative.output_ids());
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let cut = speculative.finish == Finish::Early;
    if same == b.len() && (cut || same == a.len()) {
        return None;
    }
    let (plain_gap, speculative_gap) = (plain.gaps.get(same).copied(), speculative.gaps.get(same).copied());
    let near = |gap: Option<f32>| gap.is_some_and(|gap| gap < NEAR_TIE);
    Some(Difference {
        prompt_id: prompt_id.to_owned(),
        answer_index: same,
        plain_token: a.get(same).copied(),
        speculative_token: b.get(same).copied(),
        plain_logit_gap: plain_gap,
        speculative_logit_gap: speculative_gap,
        near_tie: near(plain_gap) && near(speculative_gap),
    })
}
