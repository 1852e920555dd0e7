//! Text from ids that arrive one by one.

use super::Tokenizer;
use crate::DataError;

/// Gives out text as soon as it is certain: a character whose bytes are spread over several tokens comes out whole.
///
/// All pieces together, [`finish`](Self::finish) included, are the text of [`Tokenizer::decode`].
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special_tokens: bool,
    /// The last ids. Some whose text is given out already stay, because decoders look at what comes before.
    ids: Vec<u32>,
    /// How many bytes of the text of `ids` are given out.
    given: usize,
}

/// With more ids than this the oldest are dropped …
const MOST_IDS: usize = 16;
/// … even in the middle of bytes that form no character, once there are this many.
const MOST_BROKEN_IDS: usize = 256;
/// How many stay: a character has four bytes at most.
const KEPT_IDS: usize = 4;

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special_tokens: bool) -> Self {
        Self { tokenizer, skip_special_tokens, ids: Vec::new(), given: 0 }
    }

    /// Takes the next id and returns the text that is certain now, often empty.
    pub fn push(&mut self, id: u32) -> Result<String, DataError> {
        self.ids.push(id);
        let text = match self.decode() {
            Ok(text) => text,
            Err(e) => {
                // The id is refused; the stream goes on without it.
                self.ids.pop();
                return Err(e);
            }
        };
        let certain = certain(&text);
        let new = text.get(self.given..certain).unwrap_or_default().to_owned();
        self.given = self.given.max(certain);
        if self.ids.len() > MOST_IDS {
            self.forget(&text)?;
        }
        Ok(new)
    }

    /// Returns what is left: an incomplete character, as U+FFFD.
    pub fn finish(self) -> Result<String, DataError> {
        Ok(self.decode()?.get(self.given..).unwrap_or_default().to_owned())
    }

    /// Drops the oldest ids, unless what stays would read differently: in the middle of a character, or where skipped
    /// tokens stand between its bytes.
    fn forget(&mut self, text: &str) -> Result<(), DataError> {
        let from = self.ids.len() - KEPT_IDS;
        let kept = self.tokenizer.decode(&self.ids[from..], self.skip_special_tokens)?;
        let same = certain(text) == text.len() && text.ends_with(&kept);
        if same || self.ids.len() > MOST_BROKEN_IDS {
            self.ids.drain(..from);
            self.given = certain(&kept);
        }
        Ok(())
    }

    fn decode(&self) -> Result<String, DataError> {
        self.tokenizer.decode(&self.ids, self.skip_special_tokens)
    }
}

/// The length of the part of a text that later bytes can't change: all but a last U+FFFD, which may be half a character.
fn certain(text: &str) -> usize {
    text.strip_suffix('\u{fffd}').unwrap_or(text).len()
}
