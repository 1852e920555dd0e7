//! `trace`: the files it writes hold what other crates' tests have proved against golden files.

use std::fs;

use safetensors::SafeTensors;

use crate::run::{draftsman, root};

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Relative error ‖x − g‖ / ‖g‖.
fn relative_error(x: &[f32], golden: &[f32]) -> f64 {
    assert_eq!(x.len(), golden.len());
    let square = |v: f64| v * v;
    let difference: f64 = x.iter().zip(golden).map(|(a, b)| square(f64::from(a - b))).sum();
    let norm: f64 = golden.iter().map(|&b| square(f64::from(b))).sum();
    (difference / norm).sqrt()
}

#[test]
fn target_equals_the_golden_file() {
    let scratch = tempfile::tempdir().expect("scratch");
    for name in ["llama_plain", "llama_scaled"] {
        let out = scratch.path().join("out.safetensors");
        let golden = root().join(format!("testdata/{name}.reference.safetensors"));
        let output = draftsman(&[
            "trace",
            "target",
            "--model",
            &format!("testdata/{name}"),
            "--input",
            &golden.display().to_string(),
            "--out",
            &out.display().to_string(),
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (written, golden) = (fs::read(&out).expect("output"), fs::read(&golden).expect("golden"));
        let written = SafeTensors::deserialize(&written).expect("output");
        let golden = SafeTensors::deserialize(&golden).expect("golden");
        let mut compared = 0;
        for (key, expected) in golden.iter().filter(|(key, _)| *key != "input_ids") {
            let found = written.tensor(key).unwrap_or_else(|_| panic!("{name}: `{key}` is missing"));
            assert_eq!(found.shape(), expected.shape(), "{name}: `{key}`");
            let error = relative_error(&floats(found.data()), &floats(expected.data()));
            assert!(error <= 1e-5, "{name}: `{key}` differs by {error:e}");
            compared += 1;
        }
        assert!(compared > 3, "{name}: only {compared} tensors compared");
    }
}

#[test]
fn output_must_not_be_the_input() {
    let scratch = tempfile::tempdir().expect("scratch");
    let file = scratch.path().join("both.safetensors");
    fs::copy(root().join("testdata/llama_plain.reference.safetensors"), &file).expect("copy");
    let before = fs::read(&file).expect("input");
    let path = file.display().to_string();
    let output = draftsman(&["trace", "target", "--model", "testdata/llama_plain", "--input", &path, "--out", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(&file).expect("input"), before);
}
