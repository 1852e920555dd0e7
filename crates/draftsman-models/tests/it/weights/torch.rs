//! Checkpoints of torch.save: values as torch has them, and pickles that lie, loop or want to run something.

use std::path::{Path, PathBuf};

use draftsman_models::{SafetensorsSource, TorchSource, WeightSource};
use proptest::prelude::*;

use super::{refused, testdata};

fn open(name: &str) -> TorchSource {
    TorchSource::open_file(&testdata("torch").join(name)).unwrap()
}

/// Every float tensor of `views.safetensors`, to the bit; returns how many other tensors there are.
fn check_views(source: &TorchSource) -> usize {
    let expected = SafetensorsSource::open_file(&testdata("torch/views.safetensors")).unwrap();
    for name in expected.names() {
        assert_eq!(source.shape(&name).unwrap_or_else(|| panic!("{name}")), expected.shape(&name).unwrap(), "{name}");
        let bits = |values: Vec<f32>| -> Vec<u32> { values.into_iter().map(f32::to_bits).collect() };
        assert_eq!(bits(source.load_f32(&name).unwrap()), bits(expected.load_f32(&name).unwrap()), "{name}");
    }
    source.names().len() - expected.names().len()
}

#[test]
fn tensors_have_the_values_that_torch_gives_them() {
    for file in ["views.pt", "views_4.pt"] {
        let source = open(file);
        assert_eq!(check_views(&source), 4, "{file}: ids, mask, f8, u16");
        let dtypes = ["f32", "f16", "bf16", "f64", "ids", "mask", "f8", "u16"].map(|n| source.dtype(n).unwrap());
        let names: Vec<&str> = dtypes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["float32", "float16", "bfloat16", "float64", "int64", "bool", "float8_e4m3fn", "uint16"],
            "{file}"
        );
        assert_eq!(dtypes.map(|(_, readable)| readable), [true, true, true, true, false, false, false, false]);
        assert_eq!(source.shape("ids").unwrap(), [2, 3]);
        refused(source.load_f32("ids"), &[file, "tensor `ids` is stored as int64"]);
        refused(source.load_f32("nothing"), &[file, "tensor `nothing` is missing"]);
    }
}

#[test]
fn a_training_checkpoint_becomes_dotted_names() {
    let source = open("training.pt");
    let names = source.names();
    let count = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count();
    assert_eq!(count("model.module._orig_mod.draft_model."), 25);
    assert_eq!(count("optimizer.state."), 6);
    assert_eq!(count("rng_state"), 1);
    assert_eq!(names.len(), 32);
    assert_eq!(source.load_f32("optimizer.state.1.step").unwrap(), [1.0]);
    let fc = "model.module._orig_mod.draft_model.fc.weight";
    let golden = SafetensorsSource::open_file(&testdata("drafter_full/model.safetensors")).unwrap();
    assert_eq!(source.load_f32(fc).unwrap(), golden.load_f32("fc.weight").unwrap());
}

#[test]
fn an_index_names_exactly_its_files() {
    let folder = testdata("torch");
    let index = folder.join("pytorch_model.bin.index.json");
    let source = TorchSource::open_index(&folder, &index).unwrap();
    assert_eq!(check_views(&source), 4);
    assert!(source.file_of("f32").ends_with("pytorch_model-00001-of-00002.bin"));
    assert!(source.file_of("mask").ends_with("pytorch_model-00002-of-00002.bin"));
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(&index).unwrap();
    for (bad, expected) in [
        (text.replace("model-00001", "model-00003"), "pytorch_model-00003-of-00002.bin"),
        (text.replace("pytorch_model-00001", "../pytorch_model-00001"), "not a plain .bin file name"),
        (text.replace("\"f32\"", "\"f33\""), "tensor `f33` is not in pytorch_model-00001-of-00002.bin"),
    ] {
        let path = dir.path().join("index.json");
        std::fs::write(&path, bad).unwrap();
        refused(TorchSource::open_index(&folder, &path), &["index.json", expected]);
    }
}

#[test]
fn whatever_would_run_something_is_refused_by_its_name() {
    let check = |file: &str, expected: &[&str]| {
        refused(TorchSource::open_file(&testdata("torch").join(file)), &[&[file, "hint"], expected].concat());
    };
    check("evil.pt", &["`posix.system`", "no tensor"]);
    check("namespace.pt", &["`argparse.Namespace`"]);
    check("legacy.pt", &["before torch 1.6", "torch.save("]);
    check("compressed.pt", &["is compressed"]);
    refused(TorchSource::open_file(&testdata("llama_scaled.gguf")), &["not a torch checkpoint", "no zip file"]);
    refused(TorchSource::open_file(Path::new("/none.pt")), &["/none.pt"]);
}

#[test]
fn every_truncation_is_an_error() {
    let whole = std::fs::read(testdata("torch/views.pt")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pt");
    for cut in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        refused(TorchSource::open_file(&path), &["x.pt", "hint"]);
    }
}

/// A zip file of stored entries, each `(name, data, method)`.
fn zip(entries: &[(&str, &[u8], u16)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut directory = Vec::new();
    for &(name, data, method) in entries {
        let start = file.len() as u32;
        let sizes = [&0u32.to_le_bytes()[..], &(data.len() as u32).to_le_bytes(), &(data.len() as u32).to_le_bytes()];
        let common = [
            &0u16.to_le_bytes()[..],
            &method.to_le_bytes(),
            &[0; 4],
            &sizes.concat(),
            &(name.len() as u16).to_le_bytes(),
            &[0; 2],
        ]
        .concat();
        file.extend([&b"PK\x03\x04\x14\0"[..], &common, name.as_bytes(), data].concat());
        directory.extend(
            [&b"PK\x01\x02\x14\0\x14\0"[..], &common, &[0; 10], &start.to_le_bytes(), name.as_bytes()].concat(),
        );
    }
    let (size, start) = ((directory.len() as u32).to_le_bytes(), (file.len() as u32).to_le_bytes());
    let count = (entries.len() as u16).to_le_bytes();
    [file, directory, [&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &size, &start, &[0; 2]].concat()].concat()
}

/// A checkpoint with this pickle and a storage `0` of these bytes.
fn checkpoint(pickle: &[u8], storage: &[u8]) -> (tempfile::TempDir, PathBuf) {
    write(&zip(&[("a/data.pkl", pickle, 0), ("a/byteorder", b"little", 0), ("a/data/0", storage, 0)]))
}

fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pt");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn int(value: i64) -> Vec<u8> {
    [&[0x8a, 8][..], &value.to_le_bytes()].concat()
}

fn tuple(values: &[i64]) -> Vec<u8> {
    [b"(".to_vec(), values.iter().flat_map(|&v| int(v)).collect(), b"t".to_vec()].concat()
}

/// Leaves a tensor on the stack.
fn tensor(class: &str, key: &str, elements: i64, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        format!("ctorch\n{class}\n").into_bytes(),
        text(key),
        text("cpu"),
        int(elements),
        b"tQ".to_vec(),
        int(offset),
        tuple(shape),
        tuple(strides),
        b"\x89ccollections\nOrderedDict\n)RtR".to_vec(),
    ]
    .concat()
}

/// A pickle of `{"w": value}`.
fn named(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}".to_vec(), text("w"), value.to_vec(), b"s.".to_vec()].concat()
}

const STORAGE: [u8; 24] = [0, 0, 0, 0, 0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64, 0, 0, 160, 64];

#[test]
fn views_stay_inside_their_storage() {
    let load = |offset: i64, shape: &[i64], strides: &[i64]| {
        let (_dir, path) = checkpoint(&named(&tensor("FloatStorage", "0", 6, offset, shape, strides)), &STORAGE);
        TorchSource::open_file(&path).and_then(|source| source.load_f32("w"))
    };
    let values = |offset: i64, shape: &[i64], strides: &[i64]| load(offset, shape, strides).unwrap();
    assert_eq!(values(0, &[2, 3], &[3, 1]), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(0, &[3, 2], &[1, 3]), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(values(1, &[2, 2], &[2, 2]), [1.0, 3.0, 3.0, 5.0]);
    assert_eq!(values(0, &[1, 2, 2], &[i64::MAX, 1, 2]), [0.0, 2.0, 1.0, 3.0]);
    assert_eq!(values(5, &[], &[]), [5.0]);
    assert_eq!(values(i64::MAX, &[0], &[i64::MAX]), [0.0; 0]);
    assert_eq!(values(3, &[2, 3], &[0, 1]), [3.0, 4.0, 5.0, 3.0, 4.0, 5.0]);
    for (offset, shape, strides) in [
        (1, &[2, 3][..], &[3, 1][..]),
        (6, &[], &[]),
        (0, &[7], &[1]),
        (0, &[3], &[3]),
        (0, &[7], &[0]),
        (0, &[1 << 40], &[0]),
        (0, &[1 << 40, 1 << 40], &[0, 0]),
        (0, &[2], &[i64::MAX]),
        (i64::MAX, &[2], &[i64::MAX]),
        (0, &[2, 2, 2], &[i64::MAX, i64::MAX, i64::MAX]),
    ] {
        refused(load(offset, shape, strides), &["x.pt", "tensor `w`", "does not fit its storage of 6 elements"]);
    }
    refused(load(-1, &[1], &[1]), &["a size is -1"]);
    refused(load(0, &[1], &[]), &["1 dimensions and 0 strides"]);
    refused(load(0, &[1; 9], &[1; 9]), &["9 dimensions"]);
}

#[test]
fn lying_pickles_are_refused() {
    let check = |pickle: &[u8], expected: &[&str]| {
        let (_dir, path) = checkpoint(pickle, &STORAGE);
        refused(TorchSource::open_file(&path), &[&["x.pt", "data.pkl"], expected].concat());
    };
    let call = |global: &str| [global.as_bytes(), b"(X\x04\0\0\0trueR"].concat();
    // Other names, however they are spelled.
    for (global, shown) in [
        ("cos\nsystem\n", "`os.system`"),
        ("cbuiltins\neval\n", "`builtins.eval`"),
        ("ctorch\nload\n", "`torch.load`"),
        ("ctorch.storage\n_load_from_bytes\n", "`torch.storage._load_from_bytes`"),
        ("ctorch._utils\n_rebuild_qtensor\n", "`torch._utils._rebuild_qtensor`"),
        ("X\x02\0\0\0osX\x06\0\0\0system\u{93}", "instruction 0xc2"),
        ("c\u{1b}[31mos\nsystem\n", "`\\u{1b}[31mos.system`"),
        ("cos\nsystem", "a line does not end"),
    ] {
        check(&named(&call(global)), &[shown]);
    }
    check(&named(&[&text("os")[..], &text("system"), b"\x93(tR"].concat()), &["`os.system`"]);
    check(&named(&[&int(1)[..], &int(2), b"\x93"].concat()), &["not a string"]);
    // Instructions that make instances, and those of the text protocol.
    for (instruction, shown) in
        [(&b"(ios\nsystem\n"[..], "0x69"), (b"(o", "0x6f"), (b"\x81", "0x81"), (b"\x82\x01", "0x82"), (b"I1\n", "0x49")]
    {
        check(&named(instruction), &[&format!("instruction {shown}")]);
    }
    check(b"\x80\x06.", &["pickle protocol 6"]);
    check(b"", &["byte 0: 1 bytes are needed, 0 are left"]);
    check(b"\x80\x02.", &["the stack is empty"]);
    check(b"\x80\x02(0.", &["the stack is empty"]);
    check(b"\x80\x02t.", &["no mark is open"]);
    check(b"\x80\x02}(K\x01u.", &["a key without a value"]);
    check(b"\x80\x02K\x01K\x02a.", &["no list"]);
    check(b"\x80\x02K\x01K\x02K\x03s.", &["no dictionary"]);
    check(b"\x80\x02h\x07.", &["nothing is remembered as 7"]);
    check(b"\x80\x02K\x01)R.", &["no function"]);
    check(b"\x80\x02ctorch\nFloatStorage\n)R.", &["is called with 0 arguments"]);
    check(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", &["lacks argument 0"]);
    check(b"\x80\x02K\x01Q.", &["a tuple is expected"]);
    check(b"\x80\x02X\xff\xff\xff\xffabc", &["4294967295 bytes are needed"]);
    check(&[&b"\x80\x02\x8e"[..], &u64::MAX.to_le_bytes()].concat(), &["bytes are needed, 0 are left"]);
    check(&[&b"\x80\x02\x8b"[..], &u32::MAX.to_le_bytes()].concat(), &["4294967295 bytes are needed"]);
    check(&[&b"\x80\x02"[..], &vec![b'N'; 5 << 20]].concat(), &["more than 4194304 instructions"]);
    // Nothing with a name in it.
    for empty in [&b"}."[..], b"K\x01.", b"N."] {
        let (_dir, path) = checkpoint(empty, &STORAGE);
        refused(TorchSource::open_file(&path), &["x.pt", "no named tensor"]);
    }
    let one = tensor("FloatStorage", "0", 6, 0, &[1], &[1]);
    check(&[&one[..], b"."].concat(), &["a tensor without a name"]);
}

#[test]
fn structures_that_never_end_do() {
    let one = tensor("FloatStorage", "0", 6, 0, &[1], &[1]);
    let check = |pickle: Vec<u8>, expected: &str| {
        let (_dir, path) = checkpoint(&pickle, &STORAGE);
        refused(TorchSource::open_file(&path), &["x.pt", expected]);
    };
    // A dictionary inside itself.
    check([&b"\x80\x02}q\0"[..], &text("w"), b"h\0s."].concat(), "inside itself");
    // Each of thirty dictionaries holds the next one twice: 2^30 names.
    let mut doubling = [&b"\x80\x02}"[..], &text("t"), &one, b"sq\0"].concat();
    for i in 1..30u8 {
        doubling
            .extend([&b"}"[..], &text("a"), &[b'h', i - 1], b"s", &text("b"), &[b'h', i - 1], b"sq", &[i]].concat());
    }
    doubling.push(b'.');
    check(doubling, "in two places");
    // A thousand lists inside each other, with a tensor in the innermost.
    let nested = [&b"\x80\x02"[..], &vec![b']'; 1000], &one, &vec![b'a'; 1000], b"."].concat();
    check(nested, "nested deeper than 32");
    // One tensor under a million names.
    let many = [&b"\x80\x02"[..], &one, b"q\0](", &b"h\0".repeat(1_000_000), b"e."].concat();
    check(many, "more than 131072 tensors");
    // Names that add up.
    let long = "x".repeat(300);
    let key = text(&long);
    let deep = [&b"\x80\x02}"[..], &key, b"}", &key, &one, b"ss."].concat();
    check(deep, "a name is longer than 512 bytes");
    check([&b"\x80\x02}"[..], &text("a.b"), &one, b"s", &text("a"), b"}", &text("b"), &one, b"ss."].concat(), "twice");
}

#[test]
fn lying_archives_are_refused() {
    let pickle = named(&tensor("FloatStorage", "0", 6, 0, &[6], &[1]));
    let check = |entries: &[(&str, &[u8], u16)], expected: &str| {
        let (_dir, path) = write(&zip(entries));
        refused(TorchSource::open_file(&path), &["x.pt", expected]);
    };
    let (data, storage) = (("a/data.pkl", &pickle[..], 0), ("a/data/0", &STORAGE[..], 0));
    let (_dir, path) = write(&zip(&[data, storage]));
    assert_eq!(TorchSource::open_file(&path).unwrap().load_f32("w").unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    check(&[], "exactly one data.pkl");
    check(&[storage], "exactly one data.pkl");
    check(&[data, ("b/data.pkl", &pickle, 0), storage], "exactly one data.pkl");
    check(&[data, data, storage], "occurs twice");
    check(&[data], "its storage `0` is not in the file");
    check(&[data, ("a/data/0", &STORAGE[..20], 0)], "6 elements is not inside the 20 bytes of data/0");
    check(&[data, ("a/data/0", &STORAGE, 8)], "is compressed");
    check(&[data, storage, ("a/byteorder", b"big", 0)], "big-endian");
    let huge = named(&tensor("FloatStorage", "0", i64::MAX, 0, &[6], &[1]));
    check(&[("a/data.pkl", &huge, 0), storage], "is not inside the 24 bytes");
    let outside = named(&tensor("FloatStorage", "../data.pkl", 6, 0, &[6], &[1]));
    check(&[("a/data.pkl", &outside, 0), storage], "its storage `../data.pkl` is not in the file");

    let whole = zip(&[data, storage]);
    let patch = |at: usize, bytes: &[u8], expected: &str| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        let (_dir, path) = write(&file);
        refused(TorchSource::open_file(&path), &["x.pt", expected]);
    };
    let end = whole.len() - 22;
    let directory = whole.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    patch(end + 4, &[1], "several volumes");
    patch(end + 12, &u32::MAX.to_le_bytes(), "is not inside the file");
    patch(end + 16, &[0xff], "is not inside the file");
    patch(directory, b"XX", "directory is damaged");
    patch(directory + 8, &[1], "is encrypted");
    patch(directory + 20, &[0xff; 8], "is not inside the file");
    patch(directory + 42, &[1], "another header");
    patch(directory + 42, &[0xff; 4], "is not inside the file");
    patch(directory + 46, b"b", "another header");
    patch(directory + 28, &[0xff; 2], "middle of a record");
    // The second entry is said to lie where the first one does.
    let second = directory + 46 + "a/data.pkl".len();
    patch(second + 42, &[1], "another header");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever two bytes become, opening ends in a source or an error, and sizes agree.
    #[test]
    fn flipped_bytes_never_panic(a in 0usize..6717, b in 0usize..6717, value: u8, other: u8) {
        let mut bytes = std::fs::read(testdata("torch/views.pt")).unwrap();
        bytes[a] = value;
        bytes[b] = other;
        let (_dir, path) = write(&bytes);
        if let Ok(source) = TorchSource::open_file(&path) {
            for name in source.names() {
                let elements: usize = source.shape(&name).unwrap().iter().product();
                if let Ok(values) = source.load_f32(&name) {
                    prop_assert_eq!(values.len(), elements);
                }
            }
        }
    }

    /// Random instructions, too.
    #[test]
    fn random_pickles_never_panic(pickle in proptest::collection::vec(
        prop_oneof![
            proptest::sample::select(b"(.012NKGXaetlds}])RQqhb\x80\x85\x86\x87\x93\x94\x95".to_vec()).prop_map(|b| vec![b]),
            Just(tensor("FloatStorage", "0", 6, 0, &[2], &[1])),
            Just(text("k")),
            Just(int(3)),
        ], 0..60)) {
        let (_dir, path) = checkpoint(&pickle.concat(), &STORAGE);
        let _ = TorchSource::open_file(&path);
    }
}
