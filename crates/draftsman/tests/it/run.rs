//! Runs the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `draftsman` with `arguments` in the repository's root.
pub(crate) fn draftsman(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_draftsman"))
        .args(arguments)
        .current_dir(root())
        .env("NO_COLOR", "1")
        .output()
        .expect("the program starts")
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// stderr as text, with the scratch folder's changing name replaced.
pub(crate) fn stderr(output: &Output, scratch: &Path) -> String {
    String::from_utf8_lossy(&output.stderr).replace(&scratch.display().to_string(), "SCRATCH")
}
