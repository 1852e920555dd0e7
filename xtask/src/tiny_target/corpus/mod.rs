//! The training text: short Python functions and tiny coding requests, written by a program from templates.
//!
//! A sample is a function of (seed, stream, index, split), so that nothing needs to be stored and training can resume
//! anywhere. Every sample has a *key* that names what it is about (a combination of operation, condition and change;
//! an entry with its parameter names; two numbers). A sixteenth of the keys is held out: nothing with such a key is
//! ever trained on, in any wording.

mod chats;
mod functions;
mod lists;
mod table;
mod words;

use draftsman_contract::CounterRng;

pub(crate) use functions::Function;

/// What a sample may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    Train,
    HeldOut,
}

/// One text.
#[derive(Debug, Clone)]
pub(crate) enum Sample {
    /// A function in a file: it starts with `def`.
    Function(Function),
    /// A request and its right answer.
    Chat(Chat),
}

/// A request and its right answer.
#[derive(Debug, Clone)]
pub(crate) struct Chat {
    /// Kind of request, for the card.
    pub(crate) kind: &'static str,
    key: String,
    pub(crate) request: String,
    pub(crate) answer: String,
}

/// Stream of the samples that are trained on.
pub(crate) const TRAINING: u64 = 0;
/// Stream of the held-out samples whose likelihood is measured.
pub(crate) const MEASURED: u64 = 1;
/// Stream of the held-out requests of the card.
pub(crate) const REQUESTS: u64 = 2;
/// Stream of the held-out function heads of the card.
pub(crate) const HEADS: u64 = 3;
/// Stream of the prompts that come with the model.
pub(crate) const PROMPTS: u64 = 4;

/// Share of functions among the samples, in percent; the others are chats.
const FUNCTIONS_PERCENT: usize = 35;
/// One key in so many is held out.
const HELD_OUT_ONE_IN: u64 = 16;

/// Writes samples.
pub(crate) struct Corpus {
    seed: u64,
    tables: table::Tables,
}

impl Corpus {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, tables: table::Tables::new() }
    }

    /// Sample `index` of a stream.
    pub(crate) fn sample(&self, stream: u64, index: u64, split: Split) -> Sample {
        let mut rng = CounterRng::new(self.seed, &[stream, index]);
        if rng.below(100) < FUNCTIONS_PERCENT {
            Sample::Function(self.draw(&mut rng, split, Function::key, |rng| functions::for_text(rng, &self.tables)))
        } else {
            Sample::Chat(self.draw_chat(&mut rng, split))
        }
    }

    /// Function `index` of a stream.
    pub(crate) fn function(&self, stream: u64, index: u64, split: Split) -> Function {
        let mut rng = CounterRng::new(self.seed, &[stream, index]);
        self.draw(&mut rng, split, Function::key, |rng| functions::for_text(rng, &self.tables))
    }

    /// Request `index` of a stream.
    pub(crate) fn chat(&self, stream: u64, index: u64, split: Split) -> Chat {
        self.draw_chat(&mut CounterRng::new(self.seed, &[stream, index]), split)
    }

    fn draw_chat(&self, rng: &mut CounterRng, split: Split) -> Chat {
        // The kind is drawn once, so that kinds with few held-out keys are not rarer among the held-out samples.
        let kind = chats::draw_kind(rng);
        self.draw(rng, split, |chat: &Chat| &chat.key, |rng| chats::make(kind, rng, &self.tables))
    }

    /// Draws until the key belongs to the split.
    fn draw<T>(
        &self,
        rng: &mut CounterRng,
        split: Split,
        key: impl Fn(&T) -> &str,
        make: impl Fn(&mut CounterRng) -> T,
    ) -> T {
        loop {
            let sample = make(rng);
            if (split == Split::HeldOut) == is_held_out(key(&sample)) {
                return sample;
            }
        }
    }
}

/// FNV-1a, finished by the generator's own mixing.
fn is_held_out(key: &str) -> bool {
    let hash = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    CounterRng::new(hash, &[]).next_u64().is_multiple_of(HELD_OUT_ONE_IN)
}

/// One of several, each equally likely.
pub(crate) fn pick<'a, T: ?Sized>(rng: &mut CounterRng, items: &[&'a T]) -> &'a T {
    items[rng.below(items.len())]
}

/// Whether a draw of so many percent comes true.
fn chance(rng: &mut CounterRng, percent: usize) -> bool {
    rng.below(100) < percent
}

/// Two small numbers, the second above the first.
fn two_numbers(rng: &mut CounterRng) -> (usize, usize) {
    let low = 2 + rng.below(8);
    (low, low + 1 + rng.below(10))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn key_and_text(sample: &Sample) -> (String, String) {
        match sample {
            Sample::Function(function) => (function.key().to_owned(), function.text()),
            Sample::Chat(chat) => (chat.key.clone(), format!("{}\n{}", chat.request, chat.answer)),
        }
    }

    #[test]
    fn splits_share_no_key_and_no_text() {
        let corpus = Corpus::new(7);
        let draw = |split, count| (0..count).map(move |index| (index, split));
        let of = |(index, split)| key_and_text(&corpus.sample(0, index, split));
        let train: Vec<_> = draw(Split::Train, 4000).map(of).collect();
        let (keys, texts): (HashSet<_>, HashSet<_>) = train.into_iter().unzip();
        for (key, text) in draw(Split::HeldOut, 1000).map(of) {
            assert!(!keys.contains(&key), "`{key}` is in both splits");
            assert!(!texts.contains(&text), "a text is in both splits:\n{text}");
        }
    }

    #[test]
    fn a_sample_is_a_function_of_its_index() {
        let (first, second) = (Corpus::new(7), Corpus::new(7));
        for index in [3, 1, 2] {
            let texts = [&first, &second].map(|corpus| key_and_text(&corpus.sample(0, index, Split::Train)));
            assert_eq!(texts[0], texts[1]);
        }
        assert_ne!(
            key_and_text(&first.sample(0, 1, Split::Train)),
            key_and_text(&Corpus::new(8).sample(0, 1, Split::Train))
        );
    }

    #[test]
    fn every_place_is_filled() {
        let corpus = Corpus::new(7);
        for index in 0..4000 {
            let (_, text) = key_and_text(&corpus.sample(0, index, Split::Train));
            for place in ["{L}", "{S}", "{W}", "{N}", "{M}", "{D}", "{k}", "{j}", "{i}", "{c}", "{w}", "{x}", "{y}"] {
                assert!(!text.contains(place), "{place} is left in:\n{text}");
            }
        }
    }
}
