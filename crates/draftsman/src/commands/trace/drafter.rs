//! `trace drafter`: context, every layer's output, final norm and logits of given blocks.

use std::path::PathBuf;

use anyhow::Context as _;
use burn::tensor::{Device, Tensor};
use draftsman_contract::{BlockLayout, Documents, HoleRule, LayoutRules, default_gamma};
use draftsman_kernels::{Weight, head_logits, open};
use draftsman_models::{Context, Dflash, check_pair};

use super::tensors::{Input, Output};
use crate::Outcome;
use crate::args::TraceDrafterArgs;
use crate::model;
use crate::output;
use crate::printer::Printer;
use crate::proposers::{drafter_config, open_drafter};

/// A drafter with what it borrows.
pub(super) struct Pair {
    pub(super) drafter: Dflash,
    /// `[V, H]`
    pub(super) embedding: Weight,
    /// `[V, H]`
    pub(super) head: Weight,
    pub(super) device: Device,
}

impl Pair {
    /// Opens the drafter; embedding and head come from the target or, without one, from the input file.
    pub(super) fn open(args: &TraceDrafterArgs, input: &Input) -> anyhow::Result<Self> {
        let models = [Some(&args.files.input), Some(&args.drafter), args.target.as_ref()];
        output::check(&args.files.out, models.into_iter().flatten().map(PathBuf::as_path))?;
        let device = open(args.run.device)?;
        let config = drafter_config(&args.drafter)?;
        let (embedding, head) = match &args.target {
            Some(path) => {
                let target = model::open_target(path, &args.run)?;
                check_pair(&config, target.spec()).map_err(|problems| {
                    anyhow::anyhow!("`{}` does not fit `{}`: {problems}", args.drafter.display(), path.display())
                })?;
                (target.embedding().clone(), target.head().clone())
            }
            None => {
                let expected = [config.vocab_size, config.hidden_size];
                let weight = |name: &str| -> anyhow::Result<Weight> {
                    let (shape, values) = input.floats(name, 2).context("hint: or name a model with `--target`")?;
                    if shape != expected {
                        return Err(input.mismatch(&format!(
                            "`{name}` has shape {shape:?}, the drafter `{}` expects {expected:?}",
                            args.drafter.display()
                        )));
                    }
                    Ok(Weight::from_f32(values, expected, args.run.dtype, &device)?)
                };
                (weight("embed.weight")?, weight("lm_head.weight")?)
            }
        };
        let drafter = open_drafter(&args.drafter, args.name_map.as_deref(), (&embedding, &head), &device)?;
        Ok(Self { drafter, embedding, head, device })
    }
}

pub(crate) fn run(args: &TraceDrafterArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let input = Input::open(&args.files.input)?;
    let pair = Pair::open(args, &input)?;
    let drafter = &pair.drafter;
    let contract = &drafter.config().contract;

    let features = input.matrix("features", &pair.device)?;
    let rows = features.dims()[0];
    let (block_shape, block_ids) = input.token_ids("block_ids", 2, pair.embedding.shape()[0])?;
    let (_, anchors) = input.counts("anchors", 1)?;
    let [blocks, block_size] = block_shape[..] else { unreachable!("`token_ids` checked the rank") };
    if blocks != anchors.len() {
        return Err(input.mismatch(&format!("`block_ids` holds {blocks} blocks, `anchors` {}", anchors.len())));
    }

    // A block may start at the row after the last feature, as in decoding, and may run past the end.
    let rules = LayoutRules::from(contract, HoleRule::Cut, default_gamma(contract.block_size));
    let layout = BlockLayout::inference(&rules, rows, &anchors, block_size)
        .map_err(|e| input.mismatch(&format!("`anchors`: {e}")))?;

    let mut out = Output::default();
    let context = drafter.context(features)?;
    let hidden = drafter.config().hidden_size;
    out.put_tensor("context", vec![rows, hidden], context.clone());
    let document = Documents { len: rows, bounds: &[0..rows], loss_mask: &vec![false; rows] };
    let positions = BlockLayout::context_positions(&document, &rules);
    let embedded = drafter.embed(&block_ids, &pair.embedding)?;
    let shape = vec![blocks, block_size, hidden];
    let mut observe = |name: &str, tensor: &Tensor<2>| {
        if name.starts_with("layer.") {
            out.put_tensor(name, shape.clone(), tensor.clone());
        }
    };
    let last =
        drafter.forward(embedded, &layout, Context::Rows { context, positions: &positions }, Some(&mut observe))?;
    out.put_tensor("final_norm", shape, last.clone());
    let logits = head_logits(last, &pair.head, &drafter.head_options(0));
    let vocab = logits.dims()[1];
    out.put_tensor("logits", vec![blocks, block_size, vocab], logits);
    out.write(&args.files.out, printer)?;
    Ok(Outcome::Done)
}
