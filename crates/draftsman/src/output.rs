//! Files that a command writes: never one of its inputs, and whole or not at all.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

/// Refuses an output that is one of the `inputs`, a file inside an input folder, or no plain file. For before the work.
pub(crate) fn check<'a>(out: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
    const HINT: &str = "hint: give the output a path of its own";
    let folder = folder_of(out);
    if !folder.is_dir() {
        bail!(
            "cannot write `{}`: `{}` is not a folder\n\nhint: make the folder first",
            out.display(),
            folder.display()
        );
    }
    let Ok(metadata) = fs::metadata(out) else {
        if out.is_symlink() {
            bail!("the output `{}` is a link to nothing\n\n{HINT}", out.display());
        }
        return Ok(());
    };
    if !metadata.is_file() {
        bail!("the output `{}` exists and is not a plain file\n\n{HINT}", out.display());
    }
    let found = fs::canonicalize(out).with_context(|| format!("cannot read `{}`", out.display()))?;
    for input in inputs {
        let Ok(known) = fs::canonicalize(input) else { continue };
        if found == known {
            bail!("the output `{}` is the input file\n\n{HINT}", out.display());
        }
        if known.is_dir() && found.starts_with(&known) {
            bail!("the output `{}` is a file of the input `{}`\n\n{HINT}", out.display(), input.display());
        }
    }
    Ok(())
}

/// Refuses two outputs that are one file. For before the work, after [`check`].
pub(crate) fn check_apart<'a>(outs: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
    let mut known: Vec<PathBuf> = Vec::new();
    for out in outs {
        let place = fs::canonicalize(out).or_else(|_| {
            fs::canonicalize(folder_of(out)).map(|folder| folder.join(out.file_name().unwrap_or_default()))
        });
        let place = place.with_context(|| format!("cannot read `{}`", out.display()))?;
        if known.contains(&place) {
            bail!("`{}` is the path of two outputs\n\nhint: give each a path of its own", out.display());
        }
        known.push(place);
    }
    Ok(())
}

/// Temporary name, sync, rename: a reader never sees half a file and a full disk leaves the old one. A link stays one: the
/// file it leads to is written.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let resolved = if path.is_symlink() { fs::canonicalize(path).ok() } else { None };
    let path = resolved.as_deref().unwrap_or(path);
    let folder = folder_of(path);
    let name = path.file_name().ok_or_else(|| anyhow!("`{}` is not a file name", path.display()))?.to_string_lossy();
    let temporary: PathBuf = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| fs::File::open(folder)?.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("cannot write `{}`", path.display()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
