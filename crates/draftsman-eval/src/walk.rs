//! Live evaluation: plain and speculative decoding of the same prompts in one run.

use std::ops::ControlFlow;

use draftsman_decode::{GenerateOptions, Generation, Proposer, generate};
use draftsman_models::Target;

use crate::EvalError;

/// New tokens of the warm-up decodes, which are thrown away: first touches of memory are nobody's speed.
const WARM_UP_TOKENS: usize = 4;

/// A prompt as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalPrompt {
    /// Name in reports.
    pub id: String,
    /// Chat template applied, generation prompt included.
    pub ids: Vec<u32>,
}

/// What one prompt gave.
#[derive(Debug, Clone)]
pub struct PromptRun {
    /// The prompt's name.
    pub id: String,
    /// The target alone.
    pub plain: Generation,
    /// With each proposer, in the order given.
    pub speculative: Vec<Generation>,
}

/// Decodes every prompt plainly and with every proposer, prompt by prompt, so that all meet the same state of the machine.
///
/// `options.stream` is replaced by the prompt's index. `on_prompt` sees each finished prompt; `Break` ends the evaluation
/// after it. A short warm-up with every proposer is run first and discarded.
pub fn walk_live(
    target: &dyn Target,
    proposers: &mut [Box<dyn Proposer + '_>],
    prompts: &[EvalPrompt],
    options: &GenerateOptions,
    on_prompt: &mut dyn FnMut(&PromptRun) -> ControlFlow<()>,
) -> Result<Vec<PromptRun>, EvalError> {
    if let Some(first) = prompts.first() {
        let short = GenerateOptions { max_new_tokens: options.max_new_tokens.min(WARM_UP_TOKENS), ..options.clone() };
        generate(target, None, &first.ids, &short)?;
        for proposer in proposers.iter_mut() {
            generate(target, Some(proposer.as_mut()), &first.ids, &short)?;
        }
    }
    let mut runs = Vec::with_capacity(prompts.len());
    for (index, prompt) in prompts.iter().enumerate() {
        let options = GenerateOptions { stream: index as u64, ..options.clone() };
        let plain = generate(target, None, &prompt.ids, &options)?;
        let speculative = proposers
            .iter_mut()
            .map(|proposer| generate(target, Some(proposer.as_mut()), &prompt.ids, &options))
            .collect::<Result<_, _>>()?;
        let run = PromptRun { id: prompt.id.clone(), plain, speculative };
        let flow = on_prompt(&run);
        runs.push(run);
        if flow.is_break() {
            break;
        }
    }
    Ok(runs)
}
