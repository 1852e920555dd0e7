//! How text is split before byte pairs are merged: the meaning of a GGUF file's `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own `tokenizer.json` files. A wrong one gives ids that look right on most text
//! and differ on numbers and punctuation, so an unknown name is an error and never a guess.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// What is done to text before the merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// GPT-2's own pattern, which `ByteLevel` brings along.
    Gpt2,
    /// Every digit alone, then GPT-2's pattern.
    DigitsThenGpt2,
    /// One pattern after the other; what none matches stays a piece of its own.
    Patterns(&'static [&'static str]),
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// What a family of models does to text before the merges.
struct Family {
    names: &'static [&'static str],
    rule: Rule,
    /// A piece that is a token as a whole is taken without merging.
    ignore_merges: bool,
    /// Text is brought to Unicode's composed form first.
    compose: bool,
}

/// The pre-tokenizer of a name and what belongs to it.
pub(super) struct Splitting {
    pub(super) pre_tokenizer: PreTokenizerWrapper,
    pub(super) ignore_merges: bool,
    pub(super) compose: bool,
}

const fn family(names: &'static [&'static str], rule: Rule) -> Family {
    Family { names, rule, ignore_merges: false, compose: false }
}

const RULES: &[Family] = &[
    family(&["gpt-2", "gpt2", "mpt", "olmo", "phi-2", "jina-en", "roberta-bpe"], Rule::Gpt2),
    family(&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], Rule::DigitsThenGpt2),
    Family {
        ignore_merges: true,
        ..family(&["llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"], Rule::Patterns(&[LLAMA3]))
    },
    Family {
        compose: true,
        ..family(&["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"], Rule::Patterns(&[QWEN2]))
    },
    Family { compose: true, ..family(&["qwen35"], Rule::Patterns(&[QWEN35])) },
    family(&["gpt-4o", "llama4"], Rule::Patterns(&[GPT4O])),
    Family { ignore_merges: true, ..family(&["tekken"], Rule::Patterns(&[TEKKEN])) },
    family(&["default"], Rule::Patterns(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"])),
];

/// Every name of `tokenizer.ggml.pre` that is known.
pub fn known_pre_tokenizers() -> Vec<&'static str> {
    RULES.iter().flat_map(|f| f.names.iter().copied()).collect()
}

/// What belongs to a name, or a message with a hint.
pub(super) fn splitting(name: &str) -> Result<Splitting, String> {
    let Some(family) = RULES.iter().find(|f| f.names.contains(&name)) else {
        return Err(format!(
            "tokenizer.ggml.pre: {name:?} is not known; known are {}. Use the model's Hugging Face folder, whose tokenizer.json says how to split",
            known_pre_tokenizers().join(", ")
        ));
    };
    let parts = match family.rule {
        Rule::Gpt2 => vec![ByteLevel::new(false, true, true).into()],
        Rule::DigitsThenGpt2 => vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()],
        Rule::Patterns(patterns) => {
            let mut parts: Vec<PreTokenizerWrapper> = Vec::new();
            for pattern in patterns {
                let split = Split::new(SplitPattern::Regex((*pattern).into()), SplitDelimiterBehavior::Isolated, false);
                parts.push(split.map_err(|e| format!("tokenizer.ggml.pre {name:?}: {e}"))?.into());
            }
            parts.push(ByteLevel::new(false, true, false).into());
            parts
        }
    };
    Ok(Splitting {
        pre_tokenizer: Sequence::new(parts).into(),
        ignore_merges: family.ignore_merges,
        compose: family.compose,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pattern compiles: a name in the table never fails at run time.
    #[test]
    fn every_known_name_builds() {
        for name in known_pre_tokenizers() {
            assert!(splitting(name).is_ok(), "{name}");
        }
        let message = splitting("no-such").err().unwrap();
        assert!(message.contains("no-such") && message.contains("smollm") && message.contains("qwen2"), "{message}");
    }
}
