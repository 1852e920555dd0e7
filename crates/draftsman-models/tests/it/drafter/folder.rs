//! Drafter folders: saved and loaded, whole or refused.

use std::path::Path;

use burn::tensor::Device;
use draftsman_kernels::WeightDtype;
use draftsman_models::{Dflash, load_drafter, save_drafter};
use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::fixture::{CASES, folder};

fn load(dir: &Path) -> Dflash {
    load_drafter(dir, &Device::flex()).unwrap()
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_saved_drafter_is_the_same_drafter() {
    for name in CASES {
        let drafter = load(&folder(name));
        let tensors = drafter.named_tensors();
        assert_eq!(tensors.len(), 11 * drafter.config().num_hidden_layers + 3);
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("new/folder");
        // A trainable drafter saves like any other; the second save overwrites the first.
        save_drafter(&drafter.clone().trainable(), &dir, WeightDtype::Bf16).unwrap();
        let rounded: Vec<Vec<f32>> = load(&dir).named_tensors().into_iter().map(|t| t.values).collect();
        for (tensor, rounded) in tensors.iter().zip(rounded) {
            let expected: Vec<f32> = tensor.values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
            assert_eq!(rounded, expected, "{name}: {} in bf16", tensor.name);
        }
        save_drafter(&drafter, &dir, WeightDtype::F32).unwrap();
        let again = load(&dir);
        assert_eq!(again.named_tensors(), tensors, "{name}");
        assert_eq!(again.config().contract, drafter.config().contract, "{name}");
        assert_eq!(names_in(&dir), ["config.json", "model.safetensors"], "{name}: nothing else is left behind");
        // What the Python ecosystem reads.
        let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let fc = stored.tensor("fc.weight").unwrap();
        assert_eq!((fc.dtype(), fc.shape()), (Dtype::F32, tensors[0].shape.as_slice()), "{name}");
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    }
}

#[test]
fn a_failed_save_leaves_the_old_drafter() {
    let drafter = load(&folder("full"));
    let scratch = tempfile::tempdir().unwrap();
    save_drafter(&drafter, scratch.path(), WeightDtype::F32).unwrap();
    let before = std::fs::read(scratch.path().join("config.json")).unwrap();
    let mut config = drafter.config().clone();
    config.contract.attention[0].causal = true;
    let unsayable = drafter.with_config(config).unwrap();
    let error = save_drafter(&unsayable, scratch.path(), WeightDtype::F32).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("is_causal"), "{error}");
    assert_eq!(std::fs::read(scratch.path().join("config.json")).unwrap(), before);
    assert_eq!(names_in(scratch.path()), ["config.json", "model.safetensors"]);
}

/// The golden drafter with its tensors changed by `edit` (name, shape, f32 bytes).
fn edited(edit: impl FnOnce(&mut Vec<(String, Vec<usize>, Vec<u8>)>)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(folder("full").join("config.json"), dir.path().join("config.json")).unwrap();
    let bytes = std::fs::read(folder("full").join("model.safetensors")).unwrap();
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec()))
        .collect();
    edit(&mut tensors);
    let views: Vec<(String, TensorView<'_>)> = tensors
        .iter()
        .map(|(name, shape, data)| (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()))
        .collect();
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

fn check_refused(dir: &Path, expected: &[&str]) {
    let error = load_drafter(dir, &Device::flex()).expect_err("must be refused").to_string();
    for part in expected {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn missing_unknown_and_misshaped_tensors_are_reported_together() {
    let dir = edited(|tensors| {
        tensors.retain(|(name, ..)| name != "layers.1.mlp.up_proj.weight");
        for (name, shape, _) in tensors.iter_mut() {
            match name.as_str() {
                "fc.weight" => shape.reverse(),
                "norm.weight" => *name = "extra.norm.weight".into(),
                _ => {}
            }
        }
    });
    check_refused(
        dir.path(),
        &[
            "model.safetensors",
            "`layers.1.mlp.up_proj.weight` [40, 32] is missing",
            "`fc.weight` has shape [96, 32], expected [32, 96]",
            "`norm.weight` [32] is missing",
            "`extra.norm.weight` is not part",
            "4 problems",
        ],
    );
}

#[test]
fn damaged_folders_are_refused_with_the_file() {
    let dir = edited(|_| {});
    load(dir.path());
    let weights = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    check_refused(dir.path(), &["model.safetensors"]);
    std::fs::write(&weights, &bytes).unwrap();

    let config = dir.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    for (bad, expected) in [
        (text[..40].to_string(), "not a JSON object"),
        ("[1, 2]".into(), "not a JSON object"),
        (text.replace("\"vocab_size\"", "\"vocab\""), "`vocab_size` is missing"),
    ] {
        std::fs::write(&config, bad).unwrap();
        check_refused(dir.path(), &["config.json", expected]);
    }
    std::fs::remove_file(&config).unwrap();
    check_refused(dir.path(), &["config.json"]);
}
