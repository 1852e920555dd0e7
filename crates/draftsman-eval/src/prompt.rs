//! A prompt to be answered.

/// A prompt as tokens: a question, or the conversation up to a question.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvalPrompt {
    /// Name in its suite.
    pub id: String,
    /// Chat template applied, generation prompt included.
    pub ids: Vec<u32>,
    /// The suite it comes from; may be empty.
    pub suite: String,
    /// What kind of prompt the suite calls it.
    pub category: Option<String>,
    /// Which prompt of the evaluation it is.
    pub index: usize,
    /// Which question of its conversation, 0 being the first.
    pub turn: usize,
    /// Questions of its conversation: 1, or 2 in MT-Bench.
    pub turns: usize,
}

impl EvalPrompt {
    /// A single question.
    pub fn new(index: usize, id: impl Into<String>, ids: Vec<u32>) -> Self {
        Self { id: id.into(), ids, index, turns: 1, ..Self::default() }
    }

    /// Name in reports: a conversation's questions are told apart, for each has its own answer.
    pub fn name(&self) -> String {
        if self.turns > 1 { format!("{}#{}", self.id, self.turn + 1) } else { self.id.clone() }
    }

    /// The stream of its draws, [`draftsman_decode::GenerateOptions::stream`]: no two questions share one.
    pub fn stream(&self) -> u64 {
        ((self.turn as u64) << 32) + self.index as u64
    }

    /// The next question of the conversation, with everything before it.
    pub fn followed_by(&self, ids: Vec<u32>) -> Self {
        Self { ids, turn: self.turn + 1, ..self.clone() }
    }

    /// Whether another question follows.
    pub fn has_next(&self) -> bool {
        self.turn + 1 < self.turns
    }
}
