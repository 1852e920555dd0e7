use draftsman_data::{GgufTokenizer, Tokenizer};
use proptest::prelude::*;

use crate::tiny::{byte_token, pieces, tokenizer};

/// Encodes with merges that join digits and punctuation, so that the splitting of a rule shows in the tokens.
fn check(pre: &str, text: &str, expected: &[&str]) {
    let merges = ["1 2", "12 3", "3 4", "' S", "' s", "a b", "Ġ ab", "Ċ Ċ", "! !", "Ġ Ġ"];
    let tokenizer = Tokenizer::from_gguf(pieces(pre, &merges), "tiny.gguf").unwrap();
    let tokens: Vec<String> = tokenizer.encode(text).unwrap().iter().map(|id| tokenizer.token(*id).unwrap()).collect();
    assert_eq!(tokens, expected, "{pre}: {text:?}");
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap(), false).unwrap(), text, "{pre}");
}

#[test]
fn the_name_decides_how_text_is_split() {
    check("gpt-2", "1234", &["123", "4"]);
    check("smollm", "1234", &["1", "2", "3", "4"]);
    check("llama-bpe", "1234", &["123", "4"]);
    check("llama-bpe", "12341234", &["123", "4", "12", "34"]);
    check("gpt-2", "12341234", &["123", "4", "123", "4"]);
    check("qwen2", "1234", &["1", "2", "3", "4"]);
    check("default", "1234", &["123", "4"]);
    // Contractions: GPT-2 knows small letters only, the later patterns both.
    check("gpt-2", "ab'S", &["ab", "'", "S"]);
    check("smollm", "ab's", &["ab", "'s"]);
    check("llama-bpe", "ab'S", &["ab", "'S"]);
    // Line ends: a piece of their own behind punctuation, or with it.
    check("gpt-2", "!!\n\nab", &["!!", "Ċ", "Ċ", "ab"]);
    check("qwen2", "!!\n\nab", &["!!", "ĊĊ", "ab"]);
    check("llama-bpe", "   ab", &["ĠĠ", "Ġab"]);
    check("smollm", "  ab é", &["Ġ", "Ġab", "Ġ", "Ã", "©"]);
}

#[test]
fn special_tokens_in_text_become_their_ids() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("<|start|>he<|end|><tool>").unwrap();
    assert_eq!(ids, [1, 260, 2, 3]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "he<tool>");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|start|>he<|end|><tool>");
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.vocab_size()), (Some(1), Some(2), 262));
    assert_eq!(tokenizer.encode_plain("he").unwrap(), [260]);
    let with_bos = Tokenizer::from_gguf(GgufTokenizer { add_bos: true, ..pieces("smollm", &[]) }, "t").unwrap();
    assert_eq!(with_bos.encode_plain("h").unwrap(), [1, 4 + u32::from(b'h')]);
    assert_eq!(with_bos.encode_plain("<|start|>h").unwrap(), [1, 4 + u32::from(b'h')]);
    assert_eq!(with_bos.encode("h").unwrap(), [4 + u32::from(b'h')]);
}

fn check_bad(change: impl FnOnce(&mut GgufTokenizer), expected: &[&str]) {
    let mut bad = pieces("smollm", &["h e"]);
    change(&mut bad);
    let message = Tokenizer::from_gguf(bad, "model.gguf").unwrap_err().to_string();
    for part in expected.iter().chain(&["model.gguf"]) {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn bad_pieces_are_refused() {
    check_bad(|p| p.model = "llama".into(), &["tokenizer.ggml.model", "llama", "SentencePiece", "tokenizer.json"]);
    check_bad(|p| p.pre = Some("newest".into()), &["tokenizer.ggml.pre", "newest", "smollm", "llama-bpe"]);
    check_bad(|p| p.tokens.clear(), &["tokenizer.ggml.tokens"]);
    check_bad(|p| p.token_types.truncate(5), &["token_type", "5 entries"]);
    check_bad(|p| p.eos_id = Some(9999), &["eos_token_id", "9999"]);
    check_bad(|p| p.tokens[9] = p.tokens[8].clone(), &["ids 8 and 9"]);
    check_bad(|p| p.merges.push("x".into()), &["merges", "entry 1", "\"x\""]);
    check_bad(|p| p.merges.push("h zzz".into()), &["merges", "entry 1", "zzz"]);
    check_bad(|p| p.merges.push("h l".into()), &["merges", "\"hl\""]);
    check_bad(|p| p.merges.push(String::new()), &["merges", "entry 1"]);
}

#[test]
fn a_missing_pre_means_default() {
    let missing = Tokenizer::from_gguf(GgufTokenizer { pre: None, ..pieces("gpt-2", &["1 2"]) }, "t").unwrap();
    let named = Tokenizer::from_gguf(pieces("default", &["1 2"]), "t").unwrap();
    assert_eq!(missing.sha256(), named.sha256());
    assert_ne!(missing.sha256(), tokenizer().sha256());
}

#[test]
fn a_folder_names_its_special_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let json = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},"padding":null,"added_tokens":[{"id":2,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
        "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{"a":0,"b":1},"merges":[]}}"#;
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    let config = folder.path().join("tokenizer_config.json");
    std::fs::write(&config, r#"{"bos_token": {"content": "<s>"}, "eos_token": "b", "add_bos_token": true}"#).unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(2), Some(1)));
    // The saved cut-off at two tokens must not apply.
    assert_eq!(tokenizer.encode_plain("abab").unwrap(), [2, 0, 1, 0, 1]);
    std::fs::write(&config, r#"{"eos_token": "</s>"}"#).unwrap();
    let message = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(
        message.contains("tokenizer_config.json") && message.contains("eos_token") && message.contains("</s>"),
        "{message}"
    );
    std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    let message = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json"), "{message}");
}

/// Pieces of a stream and where they come out.
fn check_stream(bytes: &[u8], expected: &[&str]) {
    let tokenizer = tokenizer();
    let mut stream = tokenizer.stream(false);
    let mut got: Vec<String> = bytes.iter().map(|b| stream.push(4 + u32::from(*b)).unwrap()).collect();
    got.push(stream.finish().unwrap());
    assert_eq!(got, expected, "{bytes:?}");
}

#[test]
fn a_stream_gives_out_whole_characters() {
    check_stream("a€b".as_bytes(), &["a", "", "", "€", "b", ""]);
    check_stream("😀".as_bytes(), &["", "", "", "😀", ""]);
    check_stream(&[0xE2, 0x82], &["", "", "\u{fffd}"]);
    check_stream(&[0xFF, b'a', 0xFF], &["", "\u{fffd}a", "", "\u{fffd}"]);
}

#[test]
fn an_unknown_id_is_an_error_and_the_stream_goes_on() {
    let tokenizer = tokenizer();
    let message = tokenizer.decode(&[1, 262], false).unwrap_err().to_string();
    assert!(message.contains("262") && message.contains("tiny.gguf"), "{message}");
    let mut stream = tokenizer.stream(false);
    assert_eq!(stream.push(260).unwrap(), "he");
    assert!(stream.push(9999).is_err());
    assert_eq!(stream.push(261).unwrap(), "ll");
}

#[test]
fn the_byte_table_is_gpt_2s() {
    assert_eq!((byte_token(b' '), byte_token(b'\n'), byte_token(b'A'), byte_token(0)), ('Ġ', 'Ċ', 'A', 'Ā'));
}

proptest! {
    /// Encoding and decoding gives every text back, whatever the rule.
    #[test]
    fn text_survives(text in "\\PC{0,40}|[ \\t\\r\\n0-9a-c'!€😀]{0,40}", pre in prop::sample::select(vec!["gpt-2", "smollm", "llama-bpe", "gpt-4o", "tekken", "default"])) {
        let tokenizer = Tokenizer::from_gguf(pieces(pre, &["a b", "Ġ Ġ"]), "t").unwrap();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap(), false).unwrap(), text);
    }

    /// The pieces of a stream are the decoded text, for any bytes and specials in any order.
    #[test]
    fn a_stream_is_the_decoded_text(ids in prop::collection::vec(prop_oneof![0u32..262, 130u32..260], 0..120), skip: bool) {
        let tokenizer = tokenizer();
        let mut stream = tokenizer.stream(skip);
        let mut text = String::new();
        for id in &ids {
            text += &stream.push(*id).unwrap();
        }
        text += &stream.finish().unwrap();
        prop_assert_eq!(text, tokenizer.decode(&ids, skip).unwrap());
    }

    /// Nothing in a tokenizer.json or in the pieces of a GGUF file makes us panic.
    #[test]
    fn malformed_tokenizers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), tokens in prop::collection::vec("[a-c]{0,3}", 0..12), merges in prop::collection::vec("[a-cé ]{0,5}", 0..6), types in prop::collection::vec(0i32..7, 0..12), ids in any::<[Option<u8>; 3]>()) {
        let _ = Tokenizer::from_json(&bytes, "bytes");
        let [bos, eos, unk] = ids.map(|i| i.map(|i| u32::from(i % 16)));
        let pieces = GgufTokenizer { model: "gpt2".into(), pre: Some("smollm".into()), tokens, token_types: types, merges, bos_id: bos, eos_id: eos, unk_id: unk, add_bos: true };
        if let Ok(tokenizer) = Tokenizer::from_gguf(pieces, "pieces") {
            let _ = tokenizer.encode("abc cab");
            let _ = tokenizer.decode(&[0, 1, 99], true);
        }
    }
}
