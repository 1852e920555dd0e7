//! A small byte-level tokenizer and template, made here, for the tests of everything above them.

use draftsman_data::{ChatEncoder, ChatTemplate, GgufTokenizer, TemplateOptions, Tokenizer};

/// The printable stand-in of a byte in byte-level vocabularies (GPT-2's table).
pub(crate) fn byte_token(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let shift = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + shift).unwrap()
}

/// Pieces with the specials `<pad>`, `<|start|>`, `<|end|>` (ids 0 to 2), the user-defined token `<tool>` (3), the 256 bytes
/// (id 4 + byte) and the given merges, each `"a b"` in byte-level spelling.
pub(crate) fn pieces(pre: &str, merges: &[&str]) -> GgufTokenizer {
    let mut tokens: Vec<String> = ["<pad>", "<|start|>", "<|end|>", "<tool>"].map(String::from).to_vec();
    let mut token_types = vec![3, 3, 3, 4];
    tokens.extend((0..=255).map(|b| byte_token(b).to_string()));
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    token_types.resize(tokens.len(), 1);
    GgufTokenizer {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens,
        token_types,
        merges: merges.iter().map(ToString::to_string).collect(),
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: None,
        add_bos: false,
    }
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf(pieces("smollm", &["h e", "l l"]), "tiny.gguf").unwrap()
}

pub(crate) const TEMPLATE: &str = "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}";

pub(crate) fn encoder() -> ChatEncoder {
    ChatEncoder::new(
        tokenizer(),
        ChatTemplate::new(TEMPLATE, "tiny template", TemplateOptions::default()).unwrap(),
        vec![2],
    )
}
