//! Features of whole documents, as training and validation need them.

use burn::tensor::Tensor;

use super::{LogitRows, Target, TargetInput, Want};
use crate::error::ModelError;

/// Tokens that a streamed target reads in one forward: its layers come from the file once for all of them.
const STREAMED_ROWS: usize = 1 << 15;

/// Outputs of the tapped layers of every document, `[tokens, F * hidden]`, given to `each` with the document's index.
/// A resident target runs one document at a time; a streamed one as many as fit a pass, for it reads its weights once a
/// pass. Row invariance makes both the same, to the bit on the CPU.
pub fn document_features<E: From<ModelError>>(
    target: &dyn Target,
    taps: &[usize],
    documents: &[&[u32]],
    each: &mut dyn FnMut(usize, Tensor<2>) -> Result<(), E>,
) -> Result<(), E> {
    let most = if target.is_streamed() { STREAMED_ROWS } else { 1 };
    let mut first = 0;
    while first < documents.len() {
        let mut rows = 0;
        let fitting = documents[first..].iter().take_while(|ids| {
            rows += ids.len();
            rows <= most
        });
        let pass = &documents[first..first + fitting.count().max(1)];
        let mut caches: Vec<_> = pass.iter().map(|_| target.new_cache()).collect();
        let mut batch: Vec<TargetInput<'_>> =
            pass.iter().zip(&mut caches).map(|(ids, cache)| TargetInput { ids, cache }).collect();
        let output = target.forward(&mut batch, &Want { taps: taps.to_vec(), logits: LogitRows::None }, None)?;
        let features = output
            .features
            .ok_or_else(|| ModelError::InvalidInput("features were asked for, and no layer is tapped".into()))?;
        let mut start = 0;
        for (index, ids) in pass.iter().enumerate() {
            each(first + index, features.clone().narrow(0, start, ids.len()))?;
            start += ids.len();
        }
        first += pass.len();
    }
    Ok(())
}
