//! A byte-level BPE tokenizer from the metadata of a GGUF file.

use std::collections::HashMap;

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::tokenizer::AddedToken;

use super::pre::splitting;
use crate::DataError;

/// What a GGUF file says about its tokenizer; the caller reads the metadata, this crate knows no file format of models.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: only `gpt2` (byte-level BPE) can be built.
    pub model: String,
    /// `tokenizer.ggml.pre`; missing means `default`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty: all normal.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: two tokens and a space between them, the first merge first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
}

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Checks the pieces and builds the tokenizer.
pub(super) fn build(pieces: GgufTokenizer, place: &str) -> Result<tokenizers::Tokenizer, DataError> {
    let fail = |message: String| DataError::tokenizer(place, message);
    let GgufTokenizer { model, pre, tokens, token_types, merges, bos_id, eos_id, unk_id, .. } = pieces;
    if model != "gpt2" {
        let known = if model == "llama" { " (SentencePiece)" } else { "" };
        return Err(fail(format!(
            "tokenizer.ggml.model: {model:?}{known} is not supported, only \"gpt2\" (byte-level BPE) is; use the model's Hugging Face folder with its tokenizer.json"
        )));
    }
    if tokens.is_empty() {
        return Err(fail("tokenizer.ggml.tokens: there are no tokens".into()));
    }
    if !token_types.is_empty() && token_types.len() != tokens.len() {
        return Err(fail(format!(
            "tokenizer.ggml.token_type: {} entries for {} tokens",
            token_types.len(),
            tokens.len()
        )));
    }
    for (key, id) in [("bos_token_id", bos_id), ("eos_token_id", eos_id), ("unknown_token_id", unk_id)] {
        if let Some(id) = id
            && id as usize >= tokens.len()
        {
            return Err(fail(format!(
                "tokenizer.ggml.{key}: {id} is outside the vocabulary of {} tokens",
                tokens.len()
            )));
        }
    }
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(other) = ids.insert(token, id as u32) {
            return Err(fail(format!("tokenizer.ggml.tokens: ids {other} and {id} are both {token:?}")));
        }
    }
    let pairs = split_merges(&merges, &ids).map_err(fail)?;
    let splitting = splitting(pre.as_deref().unwrap_or("default")).map_err(fail)?;

    let mut builder = BPE::builder();
    if let Some(unk) = unk_id {
        builder = builder.unk_token(tokens[unk as usize].clone());
    }
    let vocab: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
    let bpe = builder
        .vocab_and_merges(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(), pairs)
        .ignore_merges(splitting.ignore_merges)
        .build();
    let mut tokenizer = tokenizers::Tokenizer::new(bpe.map_err(|e| fail(format!("tokenizer.ggml.merges: {e}")))?);
    if splitting.compose {
        tokenizer.with_normalizer(Some(NFC)).map_err(|e| fail(e.to_string()))?;
    }
    tokenizer.with_pre_tokenizer(Some(splitting.pre_tokenizer));
    tokenizer.with_decoder(Some(ByteLevel::default()));

    // Control and user-defined tokens are found in the text before it is split; they keep their ids, being in the vocabulary.
    let added = |kind: i32, special: bool| {
        let chosen = token_types.iter().zip(&tokens).filter(move |(t, token)| **t == kind && !token.is_empty());
        chosen
            .map(move |(_, token)| AddedToken { normalized: false, ..AddedToken::from(token.clone(), special) })
            .collect::<Vec<_>>()
    };
    tokenizer.add_special_tokens(added(CONTROL, true)).map_err(|e| fail(e.to_string()))?;
    tokenizer.add_tokens(added(USER_DEFINED, false)).map_err(|e| fail(e.to_string()))?;
    Ok(tokenizer)
}

/// The merges as pairs, each checked: both halves and their join must be tokens.
fn split_merges(merges: &[String], ids: &HashMap<&str, u32>) -> Result<Vec<(String, String)>, String> {
    let mut joined = String::new();
    let split = |(i, merge): (usize, &String)| {
        // A half never is empty, so the space that parts them isn't the first character.
        let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let (a, b) = match at {
            Some(at) => (&merge[..at], &merge[at + 1..]),
            None => {
                return Err(format!(
                    "tokenizer.ggml.merges: entry {i} is {merge:?}, expected two tokens and a space between them"
                ));
            }
        };
        joined.clear();
        joined.push_str(a);
        joined.push_str(b);
        for token in [a, b, joined.as_str()] {
            if !ids.contains_key(token) {
                return Err(format!(
                    "tokenizer.ggml.merges: entry {i} ({merge:?}) needs the token {token:?}, which isn't in the vocabulary"
                ));
            }
        }
        Ok((a.to_owned(), b.to_owned()))
    };
    merges.iter().enumerate().map(split).collect()
}
