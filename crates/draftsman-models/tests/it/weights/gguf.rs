//! GGUF: dequantised values equal the gguf package's, metadata, and broken or hostile files.

use std::path::PathBuf;

use burn::tensor::Device;
use draftsman_kernels::WeightDtype;
use draftsman_models::{GgufFile, SafetensorsSource, Target, WeightSource, open_target};
use proptest::prelude::*;

use super::{open, refused, testdata};

fn golden() -> Vec<u8> {
    std::fs::read(testdata("llama_scaled.gguf")).unwrap()
}

/// Writes bytes as `x.gguf` into a new folder.
fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// Every tensor of a GGUF file, named after its type, has the very bits of the safetensors file beside it.
fn check_types(name: &str, types: &[&str]) {
    let file = GgufFile::open(&testdata(&format!("{name}.gguf"))).unwrap();
    let expected = SafetensorsSource::open_file(&testdata(&format!("{name}.safetensors"))).unwrap();
    assert_eq!(file.names(), types);
    for name in file.names() {
        assert_eq!(file.dtype(&name).unwrap(), (name.clone(), true));
        assert_eq!(file.shape(&name).unwrap(), expected.shape(&name).unwrap(), "{name}");
        let (got, want) = (file.load_f32(&name).unwrap(), expected.load_f32(&name).unwrap());
        assert_eq!(got.len(), want.len(), "{name}");
        if let Some(i) = (0..want.len()).find(|&i| got[i].to_bits() != want[i].to_bits()) {
            panic!("{name}: index {i} is {}, the gguf package says {}", got[i], want[i]);
        }
    }
}

#[test]
fn every_type_dequantises_to_the_values_of_the_gguf_package() {
    check_types("llama_types", &["BF16", "F16", "F32", "Q4_0", "Q4_1", "Q8_0"]);
    check_types("quants", &["Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K"]);
    // Random block bytes, extreme scales.
    check_types("quants_random", &["Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"]);
}

#[test]
fn permuted_rows_come_back_in_the_order_of_the_model() {
    let (gguf, folder) = (testdata("llama_scaled.gguf"), testdata("llama_scaled"));
    let open = |path| open_target(path, &Device::flex(), WeightDtype::F32).unwrap();
    let (gguf, folder) = (open(&gguf), open(&folder));
    let all = |target: &dyn Target, layer: usize| {
        let l = target.layer_weights(layer).unwrap();
        [l.q, l.k, l.v, l.o, l.gate, l.up, l.down].map(|w| bits(w.to_f32()))
    };
    for layer in 0..3 {
        for (part, (a, b)) in all(&*gguf, layer).into_iter().zip(all(&*folder, layer)).enumerate() {
            assert!(a == b, "layer {layer}, part {part} of q k v o gate up down");
        }
    }
    assert!(gguf.layer_weights(3).is_none());
    assert_eq!(bits(gguf.embedding().to_f32()), bits(folder.embedding().to_f32()));
    assert_eq!(bits(gguf.head().to_f32()), bits(folder.head().to_f32()));
}

#[test]
fn metadata_are_typed() {
    let file = GgufFile::open(&testdata("llama_scaled.gguf")).unwrap();
    let meta = file.metadata();
    assert_eq!(meta.get_str("general.architecture"), Some("llama"));
    assert_eq!(meta.get_u32("llama.block_count"), Some(3));
    assert_eq!(meta.get_f64("llama.attention.layer_norm_rms_epsilon"), Some(1e-5));
    assert_eq!(meta.get_u32("tokenizer.ggml.eos_token_id"), Some(2));
    let tokens = meta.get_str_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.len(), tokens[129]), (130, "t129"));
    assert_eq!(meta.get_u32_array("tokenizer.ggml.token_type"), Some(vec![1; 130]));
    assert_eq!(meta.array_len("tokenizer.ggml.tokens"), Some(130));
    assert_eq!((meta.get_str("llama.block_count"), meta.get_u64("no.such.key")), (None, None));
    refused(
        meta.require_usize("no.such.key"),
        &["llama_scaled.gguf", "`no.such.key`: expected a whole number, it is missing"],
    );
    refused(meta.require_usize("general.architecture"), &["expected a whole number, it is a string"]);
}

#[test]
fn version_2_reads_like_version_3_and_others_are_refused() {
    let mut bytes = golden();
    bytes[4] = 2;
    let (_dir, path) = write(&bytes);
    open(&path).unwrap();
    for version in [1, 4] {
        bytes[4] = version;
        let (_dir, path) = write(&bytes);
        refused(open(&path), &["x.gguf", &format!("GGUF version {version}")]);
    }
    let (_dir, path) = write(b"not a model at all");
    refused(open(&path), &["x.gguf", "not a GGUF file (18 bytes"]);
}

#[test]
fn every_truncation_is_an_error() {
    let whole = golden();
    // The last tensor is followed by padding up to the alignment, which nobody misses.
    let end = whole.len() - 16;
    for cut in [0, 3, 4, 8, 20, 24, 100, 1000, 3000, whole.len() / 2, end - 1] {
        let (_dir, path) = write(&whole[..cut]);
        refused(open(&path), &["x.gguf", "hint"]);
    }
    let (_dir, path) = write(&whole[..end - 1]);
    refused(
        open(&path),
        &[
            "the file is truncated: it has",
            "tensor `rope_freqs.weight` ends at byte",
            "`rope_freqs.weight` ends at byte",
        ],
    );
    let (_dir, path) = write(&whole[..end]);
    open(&path).unwrap();
}

/// Position of a key's value (after its type) in the golden file.
fn value_of(bytes: &[u8], key: &str) -> usize {
    let mut needle = (key.len() as u64).to_le_bytes().to_vec();
    needle.extend_from_slice(key.as_bytes());
    bytes.windows(needle.len()).position(|w| w == needle).unwrap() + needle.len() + 4
}

/// Position of a tensor's rank field (after its name) in the golden file.
fn tensor_of(bytes: &[u8], name: &str) -> usize {
    value_of(bytes, name) - 4
}

#[test]
fn lying_counts_lengths_and_tensors_are_refused() {
    let check = |change: &dyn Fn(&mut Vec<u8>), expected: &[&str]| {
        let mut bytes = golden();
        change(&mut bytes);
        let (_dir, path) = write(&bytes);
        refused(open(&path), &[&["x.gguf"], expected].concat());
    };
    let put =
        |at: usize, value: u64| move |bytes: &mut Vec<u8>| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let put32 = |bytes: &mut Vec<u8>, at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    check(&put(8, u64::MAX), &["the tensor count: claims 18446744073709551615 entries"]);
    check(&put(16, 1 << 40), &["the metadata count"]);
    check(&put(24, u64::MAX), &["metadata entry 0"]);
    // The length of an array of strings, and the type of its elements.
    let tokens = value_of(&golden(), "tokenizer.ggml.tokens");
    check(&put(tokens + 4, 1 << 50), &["metadata `tokenizer.ggml.tokens`", "cannot hold them"]);
    check(&|b| put32(b, tokens, 13), &["value type 13 does not exist"]);
    check(&|b| put32(b, tokens, 9), &["tokenizer.ggml.tokens"]);
    let norm = tensor_of(&golden(), "output_norm.weight");
    check(&|b| put32(b, norm, 5), &["tensor `output_norm.weight`: 5 dimensions"]);
    check(&put(norm + 4, 33), &["`output_norm.weight` and `output.weight` share bytes"]);
    check(&put(norm + 4, u64::MAX), &["`output_norm.weight`"]);
    check(&|b| put32(b, norm + 12, 16), &["`output_norm.weight` is stored as IQ2_XXS, which cannot be read"]);
    check(&|b| put32(b, norm + 12, 12), &["`output_norm.weight`: rows of 32 elements are not whole Q4_K blocks"]);
    check(&put(norm + 16, 33), &["offset 33 is not aligned"]);
    check(&put(norm + 16, u64::MAX - 31), &["tensor `output_norm.weight`: dimensions [32] at offset", "overflow"]);
    check(&put(norm + 16, 1 << 50), &["truncated", "tensor `output_norm.weight` ends at byte 11258"]);
    let up = tensor_of(&golden(), "blk.1.ffn_up.weight");
    check(&put(up + 4, 1 << 40), &["blk.1.ffn_up.weight"]);
    // Twice the same name: the q of layer 1 becomes a second one of layer 0; likewise a key.
    let q = tensor_of(&golden(), "blk.1.attn_q.weight");
    check(&|b| b[q - 15] = b'0', &["tensor `blk.0.attn_q.weight`: the name occurs twice"]);
    let key = value_of(&golden(), "tokenizer.ggml.eot_token_id");
    check(&|b| b[key - 4 - 10] = b's', &["metadata `tokenizer.ggml.eos_token_id`: the key occurs twice"]);
    check(
        &|b| b[value_of(&golden(), "llama.block_count")] = 2,
        &["`blk.2.ffn_up.weight` is not part of this architecture"],
    );
    check(
        &|b| b[value_of(&golden(), "general.architecture") + 8] = b'm',
        &["`general.architecture` \"mlama\" is not supported"],
    );
    // RoPE divisors that no llama-3 scaling gives.
    let original = value_of(&golden(), "llama.rope.scaling.original_context_length");
    check(&|b| b[original] = 63, &["rope_freqs.weight"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever one byte of the header becomes, opening ends in a file or an error, and sizes agree.
    #[test]
    fn a_flipped_header_byte_never_panics(at in 0usize..5000, value: u8) {
        let mut bytes = golden();
        bytes[at] = value;
        let (_dir, path) = write(&bytes);
        if let Ok(file) = GgufFile::open(&path) {
            for name in file.names() {
                let elements: usize = file.shape(&name).unwrap().iter().product();
                if let Ok(values) = file.load_f32(&name) {
                    prop_assert_eq!(values.len(), elements);
                }
            }
            let _ = open(&path);
        }
    }
}
