//! Text to token ids and back, from `tokenizer.json` or from the pieces a GGUF file holds.

mod gguf;
mod pre;
mod stream;

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::DataError;
use crate::files::read_bounded;

pub use gguf::GgufTokenizer;
pub use pre::known_pre_tokenizers;
pub use stream::TextStream;

/// A `tokenizer.json` longer than this is refused (the largest in use hold about 35 MB).
const MAX_TOKENIZER_FILE: u64 = 256 << 20;
/// Text longer than this is refused.
const MAX_TEXT: usize = 64 << 20;

/// A tokenizer with the few special ids that decoding needs.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    place: String,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    add_bos: bool,
    sha256: String,
}

impl Tokenizer {
    fn new(mut inner: tokenizers::Tokenizer, place: String) -> Result<Self, DataError> {
        // A saved cut-off or padding would silently change ids; lengths are this crate's own business.
        inner.with_truncation(None).map_err(|e| DataError::tokenizer(&place, e.to_string()))?;
        inner.with_padding(None);
        let text = inner.to_string(false).map_err(|e| DataError::tokenizer(&place, e.to_string()))?;
        let sha256 = hex(&Sha256::digest(text.as_bytes()));
        Ok(Self { inner, place, bos_id: None, eos_id: None, add_bos: false, sha256 })
    }

    /// Reads a `tokenizer.json`.
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        let bytes = read_bounded(path, MAX_TOKENIZER_FILE)?;
        Self::from_json(&bytes, &path.display().to_string())
    }

    /// Reads the text of a `tokenizer.json`; `place` names it in errors.
    pub fn from_json(json: &[u8], place: &str) -> Result<Self, DataError> {
        let inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|e| DataError::tokenizer(place, format!("not a tokenizer.json that can be read: {e}")))?;
        Self::new(inner, place.to_owned())
    }

    /// Reads `tokenizer.json` of a model folder, and the special tokens that `tokenizer_config.json` names.
    pub fn from_folder(folder: &Path) -> Result<Self, DataError> {
        let mut tokenizer = Self::from_file(&folder.join("tokenizer.json"))?;
        let config = folder.join("tokenizer_config.json");
        if config.exists() {
            let place = config.display().to_string();
            let value: serde_json::Value = serde_json::from_slice(&read_bounded(&config, MAX_TOKENIZER_FILE)?)
                .map_err(|e| DataError::tokenizer(&place, format!("malformed JSON: {e}")))?;
            tokenizer.bos_id = special_id(&tokenizer, &value, "bos_token", &place)?;
            tokenizer.eos_id = special_id(&tokenizer, &value, "eos_token", &place)?;
            tokenizer.add_bos = value["add_bos_token"].as_bool().unwrap_or(false);
        }
        Ok(tokenizer)
    }

    /// Builds the tokenizer from the pieces of a GGUF file; `place` names the file in errors.
    pub fn from_gguf(pieces: GgufTokenizer, place: &str) -> Result<Self, DataError> {
        let (bos_id, eos_id, add_bos) = (pieces.bos_id, pieces.eos_id, pieces.add_bos);
        let mut tokenizer = Self::new(gguf::build(pieces, place)?, place.to_owned())?;
        (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) = (bos_id, eos_id, add_bos);
        Ok(tokenizer)
    }

    /// The ids of a text. Special tokens written in the text become their ids; none is added.
    ///
    /// This is the way for text that a chat template rendered, which holds its special tokens already.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        if text.len() > MAX_TEXT {
            return Err(DataError::tokenizer(
                &self.place,
                format!("a text of {} MiB is too long (at most {} MiB)", text.len() >> 20, MAX_TEXT >> 20),
            ));
        }
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|e| DataError::tokenizer(&self.place, format!("can't encode: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of plain text, with the beginning-of-sequence token in front if the model was trained with one.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut ids = self.encode(text)?;
        if let (true, Some(bos)) = (self.add_bos, self.bos_id)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of some ids. Bytes that form no character become U+FFFD; ids outside the vocabulary are an error.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, DataError> {
        if let Some(id) = ids.iter().find(|id| self.inner.id_to_token(**id).is_none()) {
            return Err(DataError::tokenizer(
                &self.place,
                format!("can't decode id {id}: the vocabulary has no such token (its size is {})", self.vocab_size()),
            ));
        }
        self.inner
            .decode(ids, skip_special_tokens)
            .map_err(|e| DataError::tokenizer(&self.place, format!("can't decode: {e}")))
    }

    /// A decoder that takes ids one by one and gives out only whole characters.
    pub fn stream(&self, skip_special_tokens: bool) -> TextStream<'_> {
        TextStream::new(self, skip_special_tokens)
    }

    /// The token of an id, as it is spelled in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token, spelled as in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// How many tokens there are, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The beginning-of-sequence id.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The end-of-sequence id.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// Where the tokenizer came from, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// A hash of everything that decides about ids. The same tokenizer from a folder and from a GGUF file may differ in it.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

/// The id of a special token that `tokenizer_config.json` names, as a string or as an object with `content`.
fn special_id(
    tokenizer: &Tokenizer,
    config: &serde_json::Value,
    key: &str,
    place: &str,
) -> Result<Option<u32>, DataError> {
    let token = match &config[key] {
        serde_json::Value::Null => return Ok(None),
        serde_json::Value::String(s) => s.as_str(),
        other => other["content"].as_str().ok_or_else(|| {
            DataError::tokenizer(place, format!("{key}: expected a string or an object with `content`"))
        })?,
    };
    match tokenizer.id(token) {
        Some(id) => Ok(Some(id)),
        None => Err(DataError::tokenizer(place, format!("{key}: the token {token:?} isn't in the vocabulary"))),
    }
}

/// Bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
