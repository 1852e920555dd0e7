//! `trace loss`: the training loss of given anchors, and the gradient of every drafter parameter.

use draftsman_contract::{BlockLayout, Documents, HoleRule, LayoutRules, default_gamma};
use draftsman_kernels::linear_cross_entropy;
use draftsman_models::Context;

use super::drafter::Pair;
use super::tensors::{Input, Output};
use crate::Outcome;
use crate::args::{Holes, Loss, Normalise, TraceLossArgs};
use crate::printer::Printer;

pub(crate) fn run(args: &TraceLossArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let files = &args.drafter.files;
    let input = Input::open(&files.input)?;
    let pair = Pair::open(&args.drafter, &input)?;
    let device = pair.device.clone().autodiff();
    let drafter = pair.drafter.clone().trainable();
    let contract = drafter.config().contract.clone();

    let features = input.matrix("features", &device)?;
    let rows = features.dims()[0];
    let (_, ids) = input.token_ids("input_ids", 1, pair.embedding.shape()[0])?;
    let loss_mask = input.mask("loss_mask")?;
    let (_, anchors) = input.counts("anchors", 1)?;
    if ids.len() != rows || loss_mask.len() != rows {
        return Err(input.mismatch(&format!(
            "`features` has {rows} rows, `input_ids` {} and `loss_mask` {}, expected the same number",
            ids.len(),
            loss_mask.len()
        )));
    }

    let holes = match args.holes {
        Holes::Cut => HoleRule::Cut,
        Holes::Skip => HoleRule::Skip,
    };
    let gamma = args.gamma.unwrap_or_else(|| default_gamma(contract.block_size));
    let rules = LayoutRules::from(&contract, holes, gamma);
    let documents = Documents { len: rows, bounds: &[0..rows], loss_mask: &loss_mask };
    let layout =
        BlockLayout::build(&rules, &documents, &anchors).map_err(|e| input.mismatch(&format!("`anchors`: {e}")))?;
    let positions = BlockLayout::context_positions(&documents, &rules);

    let context = drafter.context(features)?;
    let embedded = drafter.embed(&layout.block_ids(&ids, contract.mask_token_id), &pair.embedding)?;
    let hidden = drafter.forward(embedded, &layout, Context::Rows { context, positions: &positions }, None)?;
    let (labels, weights) = (layout.labels(&ids), layout.weights());
    let Loss::Decay = args.loss;
    let result = linear_cross_entropy(hidden, &pair.head, &labels, &weights, &drafter.head_options(1));
    let denominator = match args.normalise {
        Normalise::Weights => result.denominator,
        Normalise::Sequences => 1.0,
    };
    if denominator <= 0.0 {
        return Err(input.mismatch("no slot of any block is supervised, the loss is undefined"));
    }

    let mut out = Output::default();
    let numerator = result.numerator.clone().into_data().iter::<f32>().map(f64::from).sum::<f64>();
    out.put("loss", vec![], vec![(numerator / denominator) as f32]);
    out.put("loss_numerator", vec![], vec![numerator as f32]);
    out.put("loss_denominator", vec![], vec![denominator as f32]);
    let block_size = contract.block_size;
    let shape = vec![layout.blocks.len(), block_size];
    let top1: Vec<u32> = result.top.iter().map(|row| row[0].0).collect();
    out.put("weights", shape.clone(), weights.clone());
    out.put("per_slot_accuracy", vec![block_size], per_slot_accuracy(block_size, &top1, &labels, &weights));
    out.put("top1", shape, top1.iter().map(|&id| id as f32).collect());

    let gradients = (result.numerator / denominator as f32).backward();
    let parameters = drafter.parameters();
    for ((name, gradient), (_, parameter)) in drafter.gradients(&gradients).into_iter().zip(parameters) {
        let shape = parameter.shape();
        let zeros = || vec![0.0; shape.iter().product()];
        let values = gradient.unwrap_or_else(zeros);
        out.put(format!("grad.{name}"), shape, values);
    }
    out.write(&files.out, printer)?;
    Ok(Outcome::Done)
}

/// Share of the supervised slots whose most probable token is the label, `[B]`; 0 where a slot has none.
fn per_slot_accuracy(block_size: usize, top1: &[u32], labels: &[Option<u32>], weights: &[f32]) -> Vec<f32> {
    (0..block_size)
        .map(|slot| {
            let rows = (slot..top1.len()).step_by(block_size).filter(|&row| weights[row] > 0.0);
            let (mut hits, mut count) = (0u32, 0u32);
            for row in rows {
                count += 1;
                hits += u32::from(labels[row] == Some(top1[row]));
            }
            hits as f32 / count.max(1) as f32
        })
        .collect()
}
