//! Weights, mapped files and the words for devices and types.

use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use draftsman_kernels::{DeviceKind, KernelError, MappedFile, Weight, WeightDtype, linear, open};

use crate::support::{bits, normal, tensor, values};

/// A file that goes away with the test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("draftsman-kernels-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("a writable temporary folder");
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn rows_and_values_come_back() {
    let device = Device::flex();
    let all = normal(1, 7 * 5);
    for (dtype, limit) in [(WeightDtype::F32, 0.0), (WeightDtype::Bf16, 1.0 / 256.0), (WeightDtype::F16, 1.0 / 2048.0)]
    {
        let w = Weight::from_f32(all.clone(), [7, 5], dtype, &device).expect("matching length");
        assert_eq!(w.shape(), [7, 5]);
        let back = w.to_f32();
        for (a, b) in back.iter().zip(&all) {
            assert!((a - b).abs() <= limit * b.abs(), "{dtype}: {a} for {b}");
        }
        for w in [&w, &Weight::Tensor(tensor(&back, [7, 5]))] {
            let rows = w.rows(&[6, 0, 6], &device);
            assert_eq!(rows.dims(), [3, 5]);
            assert_eq!(values(rows), [&back[30..35], &back[0..5], &back[30..35]].concat());
            assert_eq!(w.rows(&[], &device).dims(), [0, 5]);
        }
    }
}

#[test]
fn a_wrong_length_is_an_error() {
    let error = Weight::from_f32(vec![0.0; 6], [2, 4], WeightDtype::F32, &Device::flex()).expect_err("6 values");
    assert_eq!(error.to_string(), "6 values do not fill a weight of shape [2, 4] (out, in)");
    assert!(Weight::from_f32(vec![], [usize::MAX, 2], WeightDtype::F32, &Device::flex()).is_err());
}

#[test]
#[should_panic(expected = "row 7 (index 1 of the ids) of a weight of shape [7, 5]")]
fn an_id_outside_is_named() {
    let w = Weight::from_f32(normal(1, 35), [7, 5], WeightDtype::F32, &Device::flex()).expect("matching length");
    w.rows(&[0, 7], &Device::flex());
}

#[test]
fn a_mapped_weight_is_the_packed_one() {
    let all = normal(2, 20 * 33);
    let x = tensor(&normal(3, 4 * 33), [4, 33]);
    let packed = Weight::from_f32(all.clone(), [20, 33], WeightDtype::F32, &Device::flex()).expect("matching length");
    let mut bytes = vec![0u8; 8];
    bytes.extend(all.iter().flat_map(|v| v.to_le_bytes()));
    let file = TempFile::new("mapped", &bytes);
    let mapped = Arc::new(MappedFile::open(&file.0).expect("it exists"));
    let w = Weight::mapped(mapped.clone(), 8, [20, 33], WeightDtype::F32).expect("inside the file");
    assert_eq!(w.to_f32(), all);
    assert_eq!(bits(&values(linear(x.clone(), &w))), bits(&values(linear(x, &packed))));
    assert_eq!(values(w.rows(&[3], &Device::flex())), &all[99..132]);

    let check = |offset: usize, shape: [usize; 2], dtype: WeightDtype, problem: &str| {
        let error = Weight::mapped(mapped.clone(), offset, shape, dtype).expect_err(problem).to_string();
        assert!(error.contains(problem) && error.contains("mapped"), "{error}");
    };
    check(12, [20, 33], WeightDtype::F32, "reaches past the end");
    check(6, [20, 33], WeightDtype::F32, "not aligned");
    check(7, [20, 33], WeightDtype::Bf16, "not aligned");
    check(0, [usize::MAX, 3], WeightDtype::F32, "larger than any file");
    check(usize::MAX - 3, [1, 1], WeightDtype::F32, "larger than any file");
}

#[test]
fn a_mapped_file_says_that_it_shrank() {
    let file = TempFile::new("shrunk", &[1, 2, 3, 4]);
    let mapped = MappedFile::open(&file.0).expect("it exists");
    assert_eq!(mapped.bytes(), [1, 2, 3, 4]);
    mapped.check().expect("nothing happened to it");
    std::fs::OpenOptions::new().write(true).open(&file.0).expect("writable").set_len(3).expect("cut");
    assert!(matches!(mapped.check(), Err(KernelError::FileShrunk { mapped: 4, now: 3, .. })));
}

#[test]
fn files_that_cannot_be_mapped() {
    let empty = TempFile::new("empty", &[]);
    assert!(MappedFile::open(&empty.0).expect("an empty file is a file").bytes().is_empty());
    for path in [std::env::temp_dir(), std::env::temp_dir().join("draftsman-no-such-file")] {
        let error = MappedFile::open(&path).expect_err("not a file").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn words() {
    assert_eq!("flex".parse::<DeviceKind>().expect("known"), DeviceKind::Flex);
    assert_eq!(DeviceKind::Wgpu.to_string().parse::<DeviceKind>().expect("known"), DeviceKind::Wgpu);
    for dtype in [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16] {
        assert_eq!(dtype.to_string().parse::<WeightDtype>().expect("known"), dtype);
    }
    let error = "gpu".parse::<DeviceKind>().expect_err("unknown").to_string();
    assert!(error.contains("`gpu`") && error.contains("wgpu"), "{error}");
    assert!("int8".parse::<WeightDtype>().is_err());
}

#[test]
fn devices_open_or_say_why() {
    assert_eq!(open(DeviceKind::Flex).expect("always there"), Device::flex());
    #[cfg(not(feature = "wgpu"))]
    {
        let error = open(DeviceKind::Wgpu).expect_err("left out").to_string();
        assert!(error.contains("--features wgpu"), "{error}");
    }
}
