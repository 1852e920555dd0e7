//! Sums over the updates since the last log line. They are part of a checkpoint, so that a resumed run logs the same means.

use serde::{Deserialize, Serialize};

use crate::loss::PackLoss;
use crate::recipe::Normalise;

/// An f64 that survives JSON to the last bit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Exact(pub(crate) f64);

impl Serialize for Exact {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:016x}", self.0.to_bits()))
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bits = u64::from_str_radix(&text, 16)
            .map_err(|_| serde::de::Error::custom("expected the 16 hex digits of an f64"))?;
        Ok(Self(f64::from_bits(bits)))
    }
}

/// What happened since the last log line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    numerator: Exact,
    weight_sum: Exact,
    documents: u64,
    blocks: u64,
    chain: u64,
    tree: u64,
    hits: Vec<u64>,
    judged: Vec<u64>,
    pub(crate) updates: u64,
    pub(crate) tokens: u64,
    pub(crate) seconds: f64,
}

impl Window {
    /// Adds one pack; `numerator` is its value.
    pub(crate) fn add(&mut self, loss: &PackLoss, numerator: f64) {
        self.numerator.0 += numerator;
        self.weight_sum.0 += loss.weight_sum;
        self.documents += loss.documents as u64;
        for block in &loss.blocks {
            self.blocks += 1;
            self.chain += block.chain() as u64;
            self.tree += block.tree() as u64;
            for (slot, hit) in block.hits().enumerate() {
                if slot == self.hits.len() {
                    self.hits.push(0);
                    self.judged.push(0);
                }
                self.hits[slot] += u64::from(hit == Some(true));
                self.judged[slot] += u64::from(hit.is_some());
            }
        }
    }

    /// Loss under the recipe's normaliser.
    pub(crate) fn loss(&self, normalise: Normalise) -> f64 {
        self.numerator.0 / denominator(normalise, self.weight_sum.0, self.documents)
    }

    /// Share of hits by predicting slot.
    pub(crate) fn slot_hits(&self) -> Vec<Option<f64>> {
        self.hits
            .iter()
            .zip(&self.judged)
            .map(|(hits, judged)| (*judged > 0).then(|| *hits as f64 / *judged as f64))
            .collect()
    }

    /// Mean accepted drafts of the chain and of the tree, and the blocks behind them.
    pub(crate) fn accepted(&self) -> (f64, f64, u64) {
        let blocks = self.blocks.max(1) as f64;
        (self.chain as f64 / blocks, self.tree as f64 / blocks, self.blocks)
    }
}

/// What a summed loss is divided by.
pub(crate) fn denominator(normalise: Normalise, weight_sum: f64, documents: u64) -> f64 {
    match normalise {
        Normalise::Weights => weight_sum,
        Normalise::Sequences => documents as f64,
    }
}
