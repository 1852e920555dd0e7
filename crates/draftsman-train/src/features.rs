//! Target features of the training documents: computed when first needed, kept while memory allows.

use std::sync::Arc;

use burn::tensor::Tensor;
use draftsman_models::{LogitRows, Target, TargetInput, Want, document_features};

use crate::error::TrainError;
use crate::samples::Sample;

/// What keeping all features would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureEstimate {
    /// Bytes for all training documents.
    pub all_bytes: u64,
    /// Bytes allowed (`features.memory_gib`).
    pub limit_bytes: u64,
}

/// Features computed now, by document.
type Computed = Vec<(usize, Arc<[f32]>)>;

/// Features by document. Row invariance of the target makes a recomputed document equal to the kept one, to the bit
/// on the CPU, so what is kept never changes a result.
#[derive(Debug)]
pub struct FeatureStore {
    taps: Vec<usize>,
    width: usize,
    limit_bytes: u64,
    used_bytes: u64,
    kept: Vec<Option<Arc<[f32]>>>,
}

impl FeatureStore {
    /// An empty store for `documents` documents. `hidden` is the target's width, `memory_gib` the limit.
    #[must_use]
    pub fn new(taps: &[usize], hidden: usize, documents: usize, memory_gib: f64) -> Self {
        Self {
            taps: taps.to_vec(),
            width: taps.len() * hidden,
            limit_bytes: (memory_gib * f64::from(1 << 30)) as u64,
            used_bytes: 0,
            kept: vec![None; documents],
        }
    }

    /// Values in one row: taps · hidden.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// What keeping the features of `samples` would take.
    #[must_use]
    pub fn estimate(&self, samples: &[Sample]) -> FeatureEstimate {
        let tokens: u64 = samples.iter().map(|sample| sample.ids.len() as u64).sum();
        FeatureEstimate { all_bytes: tokens * self.row_bytes(), limit_bytes: self.limit_bytes }
    }

    /// Bytes held now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Features `[tokens, width]`, row-major, of the documents at `wanted`; the missing ones in one target forward.
    pub fn get(
        &mut self,
        target: &dyn Target,
        samples: &[Sample],
        wanted: &[usize],
    ) -> Result<Vec<Arc<[f32]>>, TrainError> {
        let mut missing: Vec<usize> =
            wanted.iter().copied().filter(|document| self.kept[*document].is_none()).collect();
        missing.sort_unstable();
        missing.dedup();
        let computed = self.compute(target, samples, &missing)?;
        for (document, features) in &computed {
            let bytes = features.len() as u64 * 4;
            if self.used_bytes + bytes <= self.limit_bytes {
                self.used_bytes += bytes;
                self.kept[*document] = Some(Arc::clone(features));
            }
        }
        wanted
            .iter()
            .map(|document| {
                let fresh =
                    || computed.iter().find(|(index, _)| index == document).map(|(_, features)| Arc::clone(features));
                self.kept[*document].clone().or_else(fresh).ok_or_else(|| {
                    TrainError::Data(format!("features of document \"{}\" were not computed", samples[*document].id))
                })
            })
            .collect()
    }

    /// Computes the features of all documents before they are needed, as far as memory allows. For a streamed target:
    /// it reads its layers once for thousands of rows instead of once a step.
    pub fn fill(&mut self, target: &dyn Target, samples: &[Sample]) -> Result<(), TrainError> {
        let mut left = self.limit_bytes.saturating_sub(self.used_bytes) / self.row_bytes().max(1);
        let wanted: Vec<usize> = (0..samples.len())
            .filter(|&document| self.kept[document].is_none())
            .take_while(|&document| {
                let fits = samples[document].ids.len() as u64 <= left;
                left = left.saturating_sub(samples[document].ids.len() as u64);
                fits
            })
            .collect();
        let ids: Vec<&[u32]> = wanted.iter().map(|&document| samples[document].ids.as_slice()).collect();
        let taps = self.taps.clone();
        document_features(target, &taps, &ids, &mut |index, rows| {
            let rows = read(rows)?;
            self.used_bytes += rows.len() as u64 * 4;
            self.kept[wanted[index]] = Some(Arc::from(rows));
            Ok(())
        })
    }

    fn compute(&self, target: &dyn Target, samples: &[Sample], documents: &[usize]) -> Result<Computed, TrainError> {
        if documents.is_empty() {
            return Ok(Vec::new());
        }
        let mut caches: Vec<_> = documents.iter().map(|_| target.new_cache()).collect();
        let mut batch: Vec<TargetInput<'_>> = documents
            .iter()
            .zip(&mut caches)
            .map(|(document, cache)| TargetInput { ids: &samples[*document].ids, cache })
            .collect();
        let want = Want { taps: self.taps.clone(), logits: LogitRows::None };
        let output = target.forward(&mut batch, &want, None)?;
        let rows = output.features.ok_or_else(|| {
            TrainError::Data("the target gave no features (drafter.target_layer_ids is empty)".into())
        })?;
        let rows = read(rows)?;
        let mut start = 0;
        Ok(documents
            .iter()
            .map(|document| {
                let end = start + samples[*document].ids.len() * self.width;
                let features = Arc::from(&rows[start..end]);
                start = end;
                (*document, features)
            })
            .collect())
    }

    fn row_bytes(&self) -> u64 {
        self.width as u64 * 4
    }
}

fn read(rows: Tensor<2>) -> Result<Vec<f32>, TrainError> {
    rows.into_data()
        .try_into_vec_as::<f32>()
        .map_err(|error| TrainError::ReadBack { what: "target features".into(), problem: format!("{error:?}") })
}
