//! What can go wrong while decoding.

use draftsman_models::ModelError;

/// An error of decoding. Everything that can be checked is checked before the first forward pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The prompt holds no token, so there is no row to predict from.
    #[error("{what}: the prompt is empty\n\nhint: a prompt needs at least one token, for example the BOS token")]
    EmptyPrompt {
        /// Which prompt: `prompt` or `request N`.
        what: String,
    },
    /// Prompt and answer do not fit the target's positions.
    #[error(
        "{what}: {prompt_tokens} prompt tokens + {max_new_tokens} new tokens = {total} exceed the target's context of {max_positions}\n\nhint: shorten the prompt or lower `max_new_tokens` to {room}",
        total = prompt_tokens.saturating_add(*max_new_tokens),
        room = max_positions.saturating_sub(*prompt_tokens)
    )]
    TooLong {
        /// Which prompt: `prompt` or `request N`.
        what: String,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens asked for.
        max_new_tokens: usize,
        /// `max_position_embeddings` of the target.
        max_positions: usize,
    },
    /// A prompt token is no row of the embedding.
    #[error("{what}: token id {id} at index {index} is outside the target's vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// Which prompt: `prompt` or `request N`.
        what: String,
        /// Index in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Rows of the target's embedding.
        vocab_size: usize,
    },
    /// An option has no meaning.
    #[error("option `{key}`: {problem}")]
    Option {
        /// Name of the option.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The model produced NaN or an infinity where a token must be chosen.
    #[error(
        "the target's logits for position {position} are not finite\n\nhint: check the weights (`draftsman inspect`) and the dtype"
    )]
    NotFinite {
        /// Position of the token to choose.
        position: usize,
    },
    /// A proposer was driven out of step, or its contract cannot be decoded with.
    #[error("proposer `{proposer}`: {problem}")]
    Proposer {
        /// Name of the proposer.
        proposer: String,
        /// What is wrong.
        problem: String,
    },
    /// The target answered with rows other than those asked for.
    #[error("the target returned {got} for {what}, expected {expected}")]
    Shape {
        /// Which tensor.
        what: &'static str,
        /// Shape that came.
        got: String,
        /// Shape asked for.
        expected: String,
    },
    /// The device failed while a result was read back.
    #[error("reading {what} from the device: {message}")]
    Device {
        /// Which tensor.
        what: &'static str,
        /// The framework's message.
        message: String,
    },
    /// From the models below.
    #[error(transparent)]
    Model(#[from] ModelError),
}
