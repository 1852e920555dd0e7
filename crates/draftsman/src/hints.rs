//! What to try next, for errors whose library cannot know it.

use draftsman_data::DataError;
use draftsman_models::ModelError;
use draftsman_train::{RecipeError, TrainError};

const PATH: &str = "is the path right, and may this user read and write there?";
const RECORD: &str = "a line is a JSON object with `messages`, with `input_ids` and `loss_mask`, or with `prompt_ids` and \
                      `response_ids`; docs/data.md";
const RECIPE: &str = "docs/train.md names every key with its meaning and default";
const WEIGHTS: &str = "configuration and weights belong to different models, or a file is damaged or incomplete";

/// A hint for an error that has none of its own.
pub(crate) fn hint_for(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<DataError>() {
            return match error {
                DataError::Io { .. } => Some(PATH),
                DataError::Problems { .. } | DataError::Empty { .. } => Some(RECORD),
                _ => None,
            };
        }
        if let Some(error) = cause.downcast_ref::<ModelError>() {
            return match error {
                ModelError::Io { .. } => Some(PATH),
                ModelError::Problems { .. } => Some(WEIGHTS),
                _ => None,
            };
        }
        if let Some(error) = cause.downcast_ref::<TrainError>() {
            return match error {
                TrainError::Recipe(_) => Some(RECIPE),
                TrainError::Io { .. } => Some(PATH),
                _ => None,
            };
        }
        if cause.is::<RecipeError>() {
            return Some(RECIPE);
        }
        cause.is::<std::io::Error>().then_some(PATH)
    })
}
