//! Documents of a step, one after the other as the rows of one forward pass.

use draftsman_contract::Visible;

use super::recipe::CONV_WIDTH;
use super::tokenizer::Encoded;

/// Rows in front of every document that are zeros to the convolution, so that it does not reach into the document before.
const GAP: usize = CONV_WIDTH - 1;
/// Added to the logarithm of a decay: nothing is left of the state.
const FORGET: f32 = -1e9;

/// The rows of a forward pass. A document sees itself only: attention by ranges, the convolution by rows of zeros in
/// front of it, the delta rule because its first row forgets everything before.
pub(crate) struct Batch {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) visible: Visible,
    /// 1 for rows of documents, 0 for those in front of them.
    pub(crate) real: Vec<f32>,
    /// What is added to the logarithm of every row's decay.
    pub(crate) forget: Vec<f32>,
    /// Rows that predict a token, and that token.
    pub(crate) predicting: Vec<(usize, u32)>,
}

impl Batch {
    pub(crate) fn new(documents: &[Encoded]) -> anyhow::Result<Self> {
        let mut batch = Self {
            ids: Vec::new(),
            positions: Vec::new(),
            visible: Visible::causal(0, 0),
            real: Vec::new(),
            forget: Vec::new(),
            predicting: Vec::new(),
        };
        let mut ranges = Vec::new();
        for Encoded { ids, learnt_from } in documents {
            for _ in 0..GAP {
                batch.ids.push(0);
                batch.positions.push(0);
                batch.real.push(0.0);
                batch.forget.push(0.0);
                ranges.push(None);
            }
            let start = batch.ids.len();
            for (index, &id) in ids.iter().enumerate() {
                batch.ids.push(id);
                batch.positions.push(index as u32);
                batch.real.push(1.0);
                batch.forget.push(if index == 0 { FORGET } else { 0.0 });
                ranges.push(Some(start as u32..(start + index + 1) as u32));
                if index + 1 < ids.len() && index + 1 >= *learnt_from {
                    batch.predicting.push((start + index, ids[index + 1]));
                }
            }
        }
        batch.visible = Visible::from_rows(ranges)?;
        Ok(batch)
    }

    pub(crate) fn rows(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny_target::model::{Model, initial};

    #[test]
    fn packed_documents_do_not_see_each_other() {
        let model = Model::new(&initial(5), false);
        let documents: Vec<Encoded> = [&[9, 8, 7][..], &[1, 2, 3, 4, 5, 6, 7], &[1, 1], &[700, 3, 3, 3, 90]]
            .map(|ids| Encoded { ids: ids.to_vec(), learnt_from: 1 })
            .to_vec();
        let logits = |documents: &[Encoded]| -> anyhow::Result<Vec<f32>> {
            Ok(model.forward(&Batch::new(documents)?).into_data().iter::<f32>().collect())
        };
        let packed = logits(&documents).expect("a batch");
        let single: Vec<f32> =
            documents.iter().flat_map(|d| logits(std::slice::from_ref(d)).expect("a batch")).collect();
        assert_eq!(packed.len(), single.len());
        assert!(packed == single, "a document's logits depend on its neighbours");
    }

    #[test]
    fn only_learnt_tokens_are_predicted() {
        let document = Encoded { ids: vec![10, 11, 12, 13], learnt_from: 2 };
        let batch = Batch::new(&[document.clone(), document]).expect("a batch");
        assert_eq!(batch.predicting, [(4, 12), (5, 13), (11, 12), (12, 13)]);
    }
}
