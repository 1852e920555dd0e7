//! Weight files: values, and files that are broken, hostile or somebody else's.

mod gguf;
mod rename;
mod safetensors;
mod torch;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use draftsman_kernels::WeightDtype;
use draftsman_models::open_target;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// Opening must fail with a message that holds every one of `expected`.
fn refused<T, E: std::fmt::Display>(result: Result<T, E>, expected: &[&str]) {
    let error = match result {
        Ok(_) => panic!("accepted, expected an error with {expected:?}"),
        Err(error) => error.to_string(),
    };
    for part in expected {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

/// Opens as a user would, with `DRAFTSMAN`'s default type.
fn open(path: &Path) -> Result<(), draftsman_models::ModelError> {
    open_target(path, &Device::flex(), WeightDtype::F32).map(|_| ())
}
