//! What the model's likelihood is compared with: a 5-gram model over the same tokens, trained on the same text.

use std::collections::HashMap;

use super::recipe::VOCAB;

const ORDER: usize = 5;
const BITS: u32 = VOCAB.ilog2();

/// Witten-Bell interpolation: `P(w|h) = (c(h,w) + t(h)·P(w|h′)) / (c(h) + t(h))` with t(h) the number of different
/// tokens seen after h and h′ the context without its oldest token; below the empty context the uniform distribution.
#[derive(Default)]
pub(crate) struct Ngram {
    /// How often a token followed a context.
    counts: HashMap<u64, u32>,
    /// How often a context was seen, and how many different tokens followed it.
    contexts: HashMap<u64, (u32, u32)>,
}

impl Ngram {
    /// Counts a document.
    pub(crate) fn add(&mut self, ids: &[u32]) {
        for (end, &id) in ids.iter().enumerate() {
            for length in 0..ORDER.min(end + 1) {
                let context = key(&ids[end - length..end]);
                let count = self.counts.entry(followed(context, id)).or_default();
                *count += 1;
                let new = *count == 1;
                let (seen, different) = self.contexts.entry(context).or_default();
                *seen += 1;
                *different += u32::from(new);
            }
        }
    }

    /// Probability of the token at `index`, from those before it.
    pub(crate) fn probability(&self, ids: &[u32], index: usize) -> f64 {
        let mut probability = 1.0 / VOCAB as f64;
        for length in 0..ORDER.min(index + 1) {
            let context = key(&ids[index - length..index]);
            let Some(&(seen, different)) = self.contexts.get(&context) else { break };
            let count = self.counts.get(&followed(context, ids[index])).copied().unwrap_or(0);
            let (seen, different) = (f64::from(seen), f64::from(different));
            probability = (f64::from(count) + different * probability) / (seen + different);
        }
        probability
    }
}

/// Up to four tokens of eleven bits, their number above them: different contexts have different keys.
fn key(context: &[u32]) -> u64 {
    let packed = context.iter().fold(0, |packed, &id| packed << BITS | u64::from(id));
    packed | (context.len() as u64) << 60
}

/// The context in the bits above the token; the number of tokens stays on top.
fn followed(context: u64, id: u32) -> u64 {
    let (length, packed) = (context >> 60, context & ((1 << 60) - 1));
    length << 60 | packed << BITS | u64::from(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_prefer_what_was_seen() {
        let mut ngram = Ngram::default();
        ngram.add(&[1, 2, 3, 4, 5, 1, 2, 3, 9]);
        for context in [&[][..], &[1, 2, 3], &[7, 7], &[2, 3, 4, 5, 1, 2]] {
            let with = |id| [context, &[id]].concat();
            let sum: f64 = (0..VOCAB as u32).map(|id| ngram.probability(&with(id), context.len())).sum();
            assert!((sum - 1.0).abs() < 1e-9, "after {context:?}: {sum}");
        }
        assert!(ngram.probability(&[1, 2, 3, 4], 3) > ngram.probability(&[1, 2, 3, 5], 3));
    }
}
