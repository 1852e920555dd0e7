//! `draftsman inspect`: what a target, a drafter or a checkpoint is.

mod target;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use draftsman_contract::Contract;
use draftsman_models::DrafterConfig;
use serde_json::json;

use crate::Outcome;
use crate::args::InspectArgs;
use crate::printer::Printer;

pub(crate) fn run(args: &InspectArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let path = &args.path;
    if !path.exists() {
        bail!(
            "`{}` does not exist\n\nhint: give a model folder, a .gguf file, a drafter folder or a checkpoint",
            path.display()
        );
    }
    if is_drafter(path)? {
        drafter(path, printer)
    } else if path.join("checkpoints").is_dir() {
        run_folder(path, printer)
    } else {
        target::show(path, args.tensors, printer)
    }
}

/// The config.json of what lies at a path: in the folder, the file itself, or beside a weight file.
fn config_of(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join("config.json")
    } else if path.extension().is_some_and(|e| e == "json") {
        path.to_owned()
    } else {
        path.with_file_name("config.json")
    }
}

/// A drafter's config names a draft model, or holds DFlash keys.
fn is_drafter(path: &Path) -> anyhow::Result<bool> {
    let config = config_of(path);
    if path.extension().is_some_and(|e| e == "gguf") || !config.is_file() {
        return Ok(false);
    }
    let text = std::fs::read_to_string(&config).with_context(|| format!("cannot read `{}`", config.display()))?;
    let json: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("`{}` is not JSON", config.display()))?;
    let named = json["architectures"]
        .as_array()
        .is_some_and(|list| list.iter().any(|name| name.as_str().is_some_and(|name| name.contains("Draft"))));
    Ok(named || json.get("draftsman_contract").is_some() || json.get("dflash_config").is_some())
}

fn drafter(path: &Path, printer: &Printer) -> anyhow::Result<Outcome> {
    let config = DrafterConfig::read(&config_of(path))?;
    let parameters: usize = config.tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum();
    let DrafterConfig { contract, num_hidden_layers, hidden_size, .. } = &config;
    let Contract { block_size, mask_token_id, target_layer_ids, .. } = contract;
    printer.line(format!("drafter `{}`", path.display()));
    printer.line(format!("  algorithm           {:?}, contract version {}", contract.algorithm, contract.version));
    printer.line(format!("  layers, hidden, MLP {num_hidden_layers}, {hidden_size}, {}", config.intermediate_size));
    printer.line(format!(
        "  heads               {} query, {} key/value, {} dimensions",
        config.num_attention_heads, config.num_key_value_heads, config.head_dim
    ));
    printer.line(format!("  block_size          {block_size} (anchor and {} drafts)", block_size.saturating_sub(1)));
    printer.line(format!("  mask_token_id       {mask_token_id}"));
    printer.line(format!("  target_layer_ids    {target_layer_ids:?}"));
    printer.line(format!("  context             {:?}, slots {:?}", contract.context, contract.slots));
    for (layer, attention) in contract.attention.iter().enumerate() {
        printer.line(format!("  layer {layer:<3}           {attention:?}"));
    }
    printer.line(format!("  rope                {}", target::rope(&contract.rope)));
    printer.line(format!("  labels              {:?}", contract.labels));
    printer.line(format!("  target              {}", contract.target.name.as_deref().unwrap_or("not known")));
    printer.line(format!("  parameters          {:.2} M", parameters as f64 / 1e6));
    for guess in &contract.guesses {
        printer.line(format!("  guessed             {guess}"));
    }
    printer.document(&json!({ "kind": "drafter", "parameters": parameters, "contract": contract }))?;
    Ok(Outcome::Done)
}

fn run_folder(path: &Path, printer: &Printer) -> anyhow::Result<Outcome> {
    let checkpoints = draftsman_train::run_checkpoints(path)?;
    printer.line(format!("run `{}`", path.display()));
    printer.line(format!("  latest checkpoint   {}", checkpoints.latest.display()));
    if let Some(best) = &checkpoints.best {
        printer.line(format!("  best checkpoint     {}", best.display()));
    }
    printer.document(&json!({ "kind": "run", "latest": checkpoints.latest, "best": checkpoints.best }))?;
    Ok(Outcome::Done)
}
