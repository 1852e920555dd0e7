//! Are recorded answers the target's own? A replay along somebody else's would give numbers of no decoding.

use std::fmt;

use draftsman_decode::{DecodeError, LogitTable};
use draftsman_models::{LogitRows, Target, TargetInput, Want};

use crate::{EvalError, EvalPrompt, TargetAnswer};

/// Answers looked at: another model's give themselves away at once.
const ANSWERS: usize = 8;

/// Tokens looked at in each.
const TOKENS: usize = 8;

/// A greedy choice may lie so far below the largest logit where another machine or dtype had rounded otherwise.
const ROUNDING: f32 = 0.5;

/// A token of an answer that the target would not have written greedily.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignToken {
    /// The prompt.
    pub id: String,
    /// Index in the answer.
    pub answer_index: usize,
    /// The token there.
    pub token: u32,
    /// What the target, reading the same text, would have written.
    pub greedy: u32,
}

impl fmt::Display for ForeignToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, answer_index, token, greedy } = self;
        write!(
            f,
            "token {answer_index} of the answer `{id}` is {token}, where the target would greedily write {greedy}"
        )
    }
}

/// Looks at some tokens of the first answers for one that the target would not have written greedily.
pub fn first_foreign_token(
    target: &dyn Target,
    answers: &[(EvalPrompt, TargetAnswer)],
) -> Result<Option<ForeignToken>, EvalError> {
    for (prompt, answer) in answers.iter().filter(|(_, answer)| !answer.output_ids.is_empty()).take(ANSWERS) {
        let (start, len) = (prompt.ids.len(), answer.output_ids.len());
        let ids = [&prompt.ids[..], &answer.output_ids[..len - 1]].concat();
        if ids.is_empty() || start == 0 || ids.len() > target.spec().max_positions {
            continue;
        }
        let mut places: Vec<usize> =
            (0..TOKENS.min(len)).map(|i| i * (len - 1) / (TOKENS.min(len) - 1).max(1)).collect();
        places.dedup();
        // The row before a token is the one that chooses it.
        let rows = places.iter().map(|at| start - 1 + at).collect();
        let mut cache = target.new_cache();
        let inputs = &mut [TargetInput { ids: &ids, cache: &mut cache }];
        let output = target.forward(inputs, &Want { taps: Vec::new(), logits: LogitRows::Rows(rows) }, None)?;
        let logits = LogitTable::read(output.logits, places.len())?;
        for (row, &at) in places.iter().enumerate() {
            let (token, row) = (answer.output_ids[at], logits.row(row));
            let Some((best, most)) = draftsman_contract::top_k(row, 1).first().copied() else { continue };
            if row.iter().any(|logit| logit.is_nan()) {
                return Err(DecodeError::NotFinite { position: start + at }.into());
            }
            if row.get(token as usize).is_some_and(|logit| most - logit > ROUNDING) {
                let id = prompt.name();
                return Ok(Some(ForeignToken { id, answer_index: at, token, greedy: best }));
            }
        }
    }
    Ok(None)
}
