//! Safetensors: types, shards, and every way a file can lie.

use std::path::Path;

use draftsman_models::{SafetensorsSource, WeightSource};
use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use serde_json::{Value, json};

use super::{open, refused, testdata};

/// A file with this header text and this many zero bytes of data.
fn file(dir: &Path, header: &str, data: usize) -> std::path::PathBuf {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    let path = dir.join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn every_float_type_and_whole_numbers_are_read() {
    let numbers = [0.0f32, -0.0, 1.0, -2.5, 65504.0, 1e-7, f32::INFINITY, 3.140625];
    let f32s: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    let f16s: Vec<u8> = numbers.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let bf16s: Vec<u8> = numbers.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let i64s: Vec<u8> = [i64::MIN, -1, 0, i64::MAX].iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = |dtype, shape: &[usize], data| TensorView::new(dtype, shape.to_vec(), data).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("types.safetensors");
    let views = [
        ("f32", view(Dtype::F32, &[2, 4], &f32s)),
        ("f16", view(Dtype::F16, &[8], &f16s)),
        ("bf16", view(Dtype::BF16, &[4, 1, 2], &bf16s)),
        ("i64", view(Dtype::I64, &[4], &i64s)),
        ("bool", view(Dtype::BOOL, &[3], &[0, 1, 1])),
        ("empty", view(Dtype::F32, &[0, 7], &[])),
    ];
    serialize_to_file(views, None, &path).unwrap();
    let source = SafetensorsSource::open_file(&path).unwrap();
    let bits = |v: Vec<f32>| -> Vec<u32> { v.into_iter().map(f32::to_bits).collect() };
    let check = |name: &str, shape: &[usize], expected: Vec<f32>| {
        assert_eq!(source.shape(name).unwrap(), shape, "{name}");
        assert_eq!(bits(source.load_f32(name).unwrap()), bits(expected), "{name}");
    };
    check("f32", &[2, 4], numbers.to_vec());
    check("f16", &[8], numbers.iter().map(|&v| f16::from_f32(v).to_f32()).collect());
    check("bf16", &[4, 1, 2], numbers.iter().map(|&v| bf16::from_f32(v).to_f32()).collect());
    check("empty", &[0, 7], vec![]);
    assert_eq!(source.load_i64("i64").unwrap(), [i64::MIN, -1, 0, i64::MAX]);
    assert_eq!(source.load_i64("bool").unwrap(), [0, 1, 1]);
    refused(source.load_f32("i64"), &["types.safetensors", "tensor `i64` is stored as I64"]);
    refused(source.load_i64("f32"), &["tensor `f32` is stored as F32"]);
    refused(source.load_f32("nothing"), &["tensor `nothing` is missing"]);
}

#[test]
fn broken_and_hostile_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |header: &str, data: usize, expected: &[&str]| {
        let path = file(dir.path(), header, data);
        refused(SafetensorsSource::open_file(&path), &[&["model.safetensors"], expected].concat());
    };
    let one = |entry: &str| format!("{{\"a\":{entry}}}");
    let tensor = |shape: &str, offsets: &str| {
        one(&format!("{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":{offsets}}}"))
    };
    check("", 0, &["header is not valid"]);
    check("[]", 0, &["header is not valid"]);
    check(&tensor("[2]", "[0,8]"), 4, &["truncated", "tensor `a` ends at byte"]);
    check(&tensor("[2]", "[0,8]"), 9, &["1 bytes after the last tensor"]);
    check(&tensor("[2]", "[8,0]"), 8, &["before its start"]);
    check(&tensor("[3]", "[0,8]"), 8, &["tensor `a`: shape [3] of F32 does not take the 8 bytes"]);
    check(&tensor("[-1]", "[0,8]"), 8, &["tensor `a`"]);
    check(&tensor("[4294967296,4294967296]", "[0,0]"), 0, &["does not take the 0 bytes"]);
    check(&tensor("[4611686018427387905]", "[0,4]"), 4, &["does not take"]);
    check(&tensor("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, &["9 dimensions"]);
    check(&tensor("[1]", "[18446744073709551612,18446744073709551616]"), 4, &["tensor `a`"]);
    check(&tensor("[1]", "[18446744073709551610,18446744073709551614]"), 4, &["truncated"]);
    check(&one("{\"dtype\":\"F32\",\"shape\":[1]}"), 4, &["tensor `a`", "data_offsets"]);
    check(&one(&"[".repeat(100_000)), 0, &["header is not valid"]);
    let entry = "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}";
    check(&format!("{{\"a\":{entry},\"a\":{entry}}}"), 4, &["`a` is listed twice"]);
    check(&format!("{{\"a\":{entry},\"b\":{entry}}}"), 4, &["overlaps"]);
    let both = "{\"a\":{\"dtype\":\"F32\",\"shape\":[9],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,4]}}";
    check(both, 4, &["2 problems", "tensor `a`", "tensor `b`"]);

    let path = dir.path().join("model.safetensors");
    for (bytes, expected) in [
        (vec![], "0 bytes"),
        (vec![1, 2, 3], "not a safetensors file: 3 bytes"),
        (u64::MAX.to_le_bytes().to_vec(), "the header claims 18446744073709551615 bytes"),
        (1000u64.to_le_bytes().to_vec(), "the header ends at byte 1008, the file has 8"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        refused(SafetensorsSource::open_file(&path), &["model.safetensors", expected]);
    }
    refused(SafetensorsSource::open_file(&dir.path().join("none.safetensors")), &["none.safetensors"]);
}

/// A copy of a golden model folder that may be damaged.
fn copy(model: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(testdata(model)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

#[test]
fn every_truncation_of_a_model_is_an_error() {
    let dir = copy("llama_scaled");
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    open(dir.path()).unwrap();
    for cut in [0, 7, 8, 100, 2000, 5000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        refused(open(dir.path()), &["model.safetensors", "hint"]);
    }
}

#[test]
fn wrong_tensors_are_reported_together() {
    let dir = copy("llama_scaled");
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let old = SafeTensors::deserialize(&whole).unwrap();
    let zeros = vec![0; 1 << 16];
    let mut views: Vec<(String, TensorView<'_>)> = Vec::new();
    for (name, view) in old.tensors() {
        let (dtype, shape) = match name.as_str() {
            "model.norm.weight" => continue,
            "model.layers.1.mlp.up_proj.weight" => (Dtype::F32, vec![32, 64]),
            "model.layers.0.self_attn.q_proj.weight" => (Dtype::I32, vec![96, 32]),
            _ => (view.dtype(), view.shape().to_vec()),
        };
        let bytes = shape.iter().product::<usize>() * 4;
        views.push((name, TensorView::new(dtype, shape, &zeros[..bytes]).unwrap()));
    }
    views.push((
        "model.layers.0.self_attn.q_proj.bias".into(),
        TensorView::new(Dtype::F32, vec![96], &zeros[..384]).unwrap(),
    ));
    serialize_to_file(views, None, &path).unwrap();
    refused(
        open(dir.path()),
        &[
            "model.safetensors: 4 problems",
            "tensor `model.norm.weight` [32] is missing",
            "tensor `model.layers.1.mlp.up_proj.weight` has shape [32, 64], expected [64, 32]",
            "tensor `model.layers.0.self_attn.q_proj.weight` is stored as I32",
            "tensor `model.layers.0.self_attn.q_proj.bias` is not part of this architecture",
        ],
    );
    // A config with another number of layers.
    std::fs::write(&path, &whole).unwrap();
    let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
    let layers = |n: u32| {
        std::fs::write(dir.path().join("config.json"), config.replace("_layers\": 3", &format!("_layers\": {n}")))
            .unwrap();
    };
    layers(2);
    refused(open(dir.path()), &["`model.layers.2.mlp.up_proj.weight` is not part of this architecture"]);
    layers(4);
    refused(open(dir.path()), &["`model.layers.3.mlp.up_proj.weight` [64, 32] is missing"]);
    layers(4000);
    refused(open(dir.path()), &["4000 layers, the weights have 30 tensors"]);
    layers(2_000_000_000);
    refused(open(dir.path()), &["2000000000 decoder layers, at most 4096 are believed"]);
}

#[test]
fn an_index_names_exactly_its_files() {
    let dir = copy("llama_plain");
    let path = dir.path().join("model.safetensors.index.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    open(dir.path()).unwrap();
    // A file beside them that the index does not name is not read.
    std::fs::write(dir.path().join("model-00003-of-00003.safetensors"), b"garbage").unwrap();
    open(dir.path()).unwrap();
    let check = |name: &str, file: Value, expected: &[&str]| {
        let mut index = golden.clone();
        index["weight_map"][name] = file;
        std::fs::write(&path, index.to_string()).unwrap();
        refused(open(dir.path()), expected);
    };
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    check("model.norm.weight", json!(first), &["index.json", "`model.norm.weight` is not in model-00001"]);
    check("model.more.weight", json!(second), &["`model.more.weight` is not in model-00002"]);
    check("model.norm.weight", json!("gone.safetensors"), &["gone.safetensors"]);
    for escape in
        ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", ".safetensors", "x.bin", ""]
    {
        check(
            "model.norm.weight",
            json!(escape),
            &["`weight_map.model.norm.weight`", "not a plain .safetensors file name"],
        );
    }
    check("model.norm.weight", json!(7), &["not an index of weight files"]);
    std::fs::write(&path, "{\"weight_map\":{}}").unwrap();
    refused(open(dir.path()), &["names no tensor"]);
    std::fs::remove_file(&path).unwrap();
    refused(open(dir.path()), &["neither model.safetensors nor model.safetensors.index.json"]);
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    std::fs::copy(testdata("llama_scaled/model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    refused(open(dir.path()), &["no config.json"]);
}

#[test]
fn every_tensor_of_the_files_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let write = |file: &str, names: &[&str]| {
        let view = |v: &'static [u8]| TensorView::new(Dtype::F32, vec![1], v).unwrap();
        let views: Vec<_> =
            names.iter().map(|&n| (n, view(if file == first { &[0, 0, 128, 63] } else { &[0, 0, 0, 64] }))).collect();
        serialize_to_file(views, None, &dir.path().join(file)).unwrap();
    };
    let index = |text: String| {
        std::fs::write(dir.path().join("model.safetensors.index.json"), text).unwrap();
        SafetensorsSource::open_folder(dir.path())
    };
    let map = format!(r#"{{"weight_map":{{"a":"{first}","b":"{second}"}}}}"#);
    write(first, &["a"]);
    write(second, &["b"]);
    assert_eq!(index(map.clone()).unwrap().load_f32("b").unwrap(), [2.0]);
    // In a file that the index does name, but not listed there: as other readers do, it is read; the model decides.
    write(second, &["b", "c"]);
    assert_eq!(index(map.clone()).unwrap().names(), ["a", "b", "c"]);
    // The same name in two files, whatever the index says of it.
    write(second, &["a", "b"]);
    refused(index(map.clone()), &["index.json", &format!("tensor `a` is in two files, {first} and {second}")]);
    write(second, &["b"]);
    refused(index(map.replace("\"b\"", "\"a\"")), &["index.json", "`a` is listed twice"]);
    // One error for everything that is wrong.
    let bad = format!(r#"{{"weight_map":{{"a":"{second}","b":"{second}","c":"gone.safetensors"}}}}"#);
    refused(index(bad), &["2 problems", "gone.safetensors", "tensor `a` is not in model-00002"]);
    // A shard that lies about its own contents is named.
    std::fs::write(dir.path().join(first), [&8u64.to_le_bytes()[..], b"{\"a\":{}}"].concat()).unwrap();
    refused(index(map), &["index.json", first, "header is not valid"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever one byte of the header or the length becomes, opening ends in a source or an error.
    #[test]
    fn a_flipped_header_byte_never_panics(at in 0usize..4000, value: u8) {
        let mut bytes = std::fs::read(testdata("llama_scaled/model.safetensors")).unwrap();
        bytes[at] = value;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(source) = SafetensorsSource::open_file(&path) {
            for name in source.names() {
                let elements: usize = source.shape(&name).unwrap().iter().product();
                if let Ok(values) = source.load_f32(&name) {
                    prop_assert_eq!(values.len(), elements);
                }
            }
        }
    }
}
