//! `org/name[@revision]` in place of a path: the Hugging Face cache, and with `--download` the hub.

use std::path::PathBuf;

use draftsman_models::{HubEnv, ModelError, resolve_model};

use crate::args::Command;
use crate::printer::Printer;

/// Turns every model argument of a command into a path.
pub(crate) fn resolve(command: &mut Command, download: bool, printer: &Printer) -> anyhow::Result<()> {
    let env = HubEnv::from_process();
    for path in command.models() {
        if !path.exists() {
            *path = find(&path.to_string_lossy(), download, &env, printer)?;
        }
    }
    for argument in command.drafters() {
        let (prefix, name) = match argument.strip_prefix("ngram+") {
            Some(name) => ("ngram+", name),
            None => ("", argument.as_str()),
        };
        let is_word = prefix.is_empty() && matches!(name, "none" | "ngram");
        if !is_word && !std::path::Path::new(name).exists() {
            let found = find(name, download, &env, printer)?;
            *argument = format!("{prefix}{}", found.display());
        }
    }
    Ok(())
}

fn find(argument: &str, download: bool, env: &HubEnv, printer: &Printer) -> anyhow::Result<PathBuf> {
    match resolve_model(argument, env) {
        Err(ModelError::ModelNotFound { .. }) if download => fetch(argument, env, printer),
        found => Ok(found?),
    }
}

#[cfg(feature = "download")]
fn fetch(argument: &str, env: &HubEnv, printer: &Printer) -> anyhow::Result<PathBuf> {
    const STEP: u64 = 256 << 20;
    let mut last = (String::new(), 0);
    let mut progress = |p: &draftsman_models::DownloadProgress<'_>| {
        if last.0 != p.file || p.done >= last.1 + STEP || p.done == p.total {
            printer.note(format!("{}: {} of {} MiB", p.file, p.done >> 20, p.total >> 20));
            last = (p.file.to_owned(), p.done);
        }
    };
    Ok(draftsman_models::download_model(argument, env, &mut progress)?)
}

#[cfg(not(feature = "download"))]
fn fetch(argument: &str, _: &HubEnv, _: &Printer) -> anyhow::Result<PathBuf> {
    anyhow::bail!(
        "`{argument}` is not in the cache, and this build downloads nothing\n\nhint: build with `--features download`, or fetch it with `hf download`"
    )
}
