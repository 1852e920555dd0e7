//! `trace target`: every layer's un-normed output, the final norm and the logits, fresh or over a rolled-back cache.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use draftsman_models::{LogitRows, Target, TargetCache, TargetInput, Want};

use super::tensors::{Input, Output};
use crate::Outcome;
use crate::args::TraceTargetArgs;
use crate::model;
use crate::output;
use crate::printer::Printer;

pub(crate) fn run(args: &TraceTargetArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    output::check(&args.files.out, [args.files.input.as_path(), &args.model])?;
    let input = Input::open(&args.files.input)?;
    let target = model::open_target(&args.model, &args.run)?;
    let mut out = Output::default();
    if args.cached {
        cached(target.as_ref(), &input, &mut out)?;
    } else {
        fresh(target.as_ref(), &input, &mut out)?;
    }
    out.write(&args.files.out, printer)?;
    Ok(Outcome::Done)
}

/// Reads `input_ids` `[B, T]`; writes `embed`, `layer.{i}`, `final_norm` `[B, T, H]` and `logits` `[B, T, V]`.
fn fresh(target: &dyn Target, input: &Input, out: &mut Output) -> anyhow::Result<()> {
    let ids = token_rows(target, input, "input_ids")?;
    let mut caches: Vec<TargetCache> = ids.iter().map(|_| target.new_cache()).collect();
    for (name, tensor) in forward(target, &ids, &mut caches)? {
        put(out, &name, ids.len(), tensor);
    }
    Ok(())
}

/// Prefix over a cache, a block on it, rollback to `accepted` block tokens, continuation.
fn cached(target: &dyn Target, input: &Input, out: &mut Output) -> anyhow::Result<()> {
    let prefix = token_rows(target, input, "prefix_ids")?;
    let block = token_rows(target, input, "block_ids")?;
    let cont = token_rows(target, input, "cont_ids")?;
    if prefix.len() != block.len() || prefix.len() != cont.len() {
        return Err(input.mismatch(&format!(
            "`prefix_ids`, `block_ids` and `cont_ids` hold {}, {} and {} batch rows, expected the same number",
            prefix.len(),
            block.len(),
            cont.len()
        )));
    }
    let accepted = accepted(input)?;
    let block_len = block.first().map_or(0, Vec::len);
    if accepted > block_len {
        return Err(input.mismatch(&format!("`accepted` is {accepted}, but `block_ids` has {block_len} tokens a row")));
    }
    let mut caches: Vec<TargetCache> = prefix.iter().map(|_| target.new_cache()).collect();
    let prefix_len = prefix.first().map_or(0, Vec::len);
    if let Some(logits) = forward(target, &prefix, &mut caches)?.remove("logits") {
        let last = caches.iter().enumerate().map(|(row, _)| logits.clone().narrow(0, (row + 1) * prefix_len - 1, 1));
        let last = Tensor::cat(last.collect(), 0);
        let shape = last.dims().to_vec();
        out.put_tensor("prefix_last_logits", shape, last);
    }
    put_part(target, out, "block", block.len(), forward(target, &block, &mut caches)?);
    for cache in &mut caches {
        cache.truncate(prefix_len + accepted)?;
    }
    put_part(target, out, "cont", cont.len(), forward(target, &cont, &mut caches)?);
    Ok(())
}

/// Layers and logits of a part, `[B, tokens, …]`; of a part without tokens the same names with 0 tokens.
fn put_part(target: &dyn Target, out: &mut Output, part: &str, batch: usize, seen: BTreeMap<String, Tensor<2>>) {
    if seen.is_empty() {
        let spec = target.spec();
        for layer in 0..spec.num_layers {
            out.put(format!("{part}.layer.{layer}"), vec![batch, 0, spec.hidden_size], Vec::new());
        }
        out.put(format!("{part}_logits"), vec![batch, 0, spec.vocab_size], Vec::new());
    }
    for (name, tensor) in seen {
        let name = match name.as_str() {
            "logits" => format!("{part}_logits"),
            layer if layer.starts_with("layer.") => format!("{part}.{layer}"),
            _ => continue,
        };
        put(out, &name, batch, tensor);
    }
}

/// Stores `[batch * tokens, width]` as `[batch, tokens, width]`.
fn put(out: &mut Output, name: &str, batch: usize, tensor: Tensor<2>) {
    let [rows, width] = tensor.dims();
    out.put_tensor(name, vec![batch, rows / batch, width], tensor);
}

/// `accepted` may be a scalar or hold one value.
fn accepted(input: &Input) -> anyhow::Result<usize> {
    let (_, values) = input.counts("accepted", 1).or_else(|_| input.counts("accepted", 0))?;
    match values.as_slice() {
        [one] => Ok(*one),
        _ => Err(input.mismatch("`accepted` must hold exactly one value")),
    }
}

fn token_rows(target: &dyn Target, input: &Input, name: &str) -> anyhow::Result<Vec<Vec<u32>>> {
    let (shape, ids) = input.token_ids(name, 2, target.spec().vocab_size)?;
    Ok((0..shape[0]).map(|r| ids[r * shape[1]..(r + 1) * shape[1]].to_vec()).collect())
}

/// Everything one forward pass over all batch rows shows, by name; `logits` included. Nothing for rows without tokens.
fn forward(
    target: &dyn Target,
    ids: &[Vec<u32>],
    caches: &mut [TargetCache],
) -> anyhow::Result<BTreeMap<String, Tensor<2>>> {
    let mut seen = BTreeMap::new();
    if ids.iter().all(Vec::is_empty) {
        return Ok(seen);
    }
    let want = Want { taps: Vec::new(), logits: LogitRows::All };
    let mut observe = |name: &str, tensor: &Tensor<2>| {
        seen.insert(name.to_owned(), tensor.clone());
    };
    let mut batch: Vec<TargetInput<'_>> =
        ids.iter().zip(caches).map(|(ids, cache)| TargetInput { ids, cache }).collect();
    let output = target.forward(&mut batch, &want, Some(&mut observe))?;
    if let Some(logits) = output.logits {
        seen.insert("logits".to_owned(), logits);
    }
    Ok(seen)
}
