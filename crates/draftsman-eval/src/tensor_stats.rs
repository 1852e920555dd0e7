//! Moments of what flows through target and drafter over given documents: shows a dead checkpoint, exploding features,
//! or the layer whose output is no number.

use std::ops::Range;

use burn::tensor::Tensor;
use draftsman_contract::{BlockLayout, Documents, HoleRule, LayoutRules, default_gamma};
use draftsman_kernels::{head_logits, linear, rms_norm};
use draftsman_models::{Context, Dflash, LogitRows, ModelError, Target, TargetCache, TargetInput, Want};
use serde::Serialize;

use crate::{EvalError, Moments};

/// Version of [`StatsReport`] as JSON.
pub const STATS_VERSION: u32 = 1;

/// Rows whose logits are held at a time: vocabularies are large.
const LOGIT_ROWS: usize = 256;

/// Block rows of one drafter forward, in whole blocks: bounds memory. Rows do not depend on it.
const BLOCK_ROWS: usize = 1024;

/// Where the blocks of a drafter begin.
const ANCHORS: &str = "every (block_size − 1)th token of the answer, from its first on and before its last; without an \
                       answer, of the prompt from its second token on";

/// A prompt with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsDocument {
    /// Prompt and answer. A document without tokens counts nothing.
    pub ids: Vec<u32>,
    /// How many of them are the prompt's; all of them where there is no answer.
    pub prompt_tokens: usize,
}

impl StatsDocument {
    /// [`ANCHORS`], and at least one in a document that has a token.
    fn anchors(&self, block_size: usize) -> Vec<usize> {
        let Some(last) = self.ids.len().checked_sub(1) else { return Vec::new() };
        let first = if self.prompt_tokens <= last { self.prompt_tokens } else { last.min(1) };
        (first..last.max(first + 1)).step_by(block_size.saturating_sub(1).max(1)).collect()
    }
}

/// Moments of one tensor, `[rows, dim]` over all documents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorStats {
    /// Name, as the documentation of `eval --stats` lists them.
    pub name: String,
    /// Rows counted.
    pub rows: u64,
    /// Width of a row.
    pub dim: usize,
    /// Over all values of all rows.
    #[serde(flatten)]
    pub moments: Moments,
}

impl TensorStats {
    fn new(name: impl Into<String>, dim: usize) -> Self {
        Self { name: name.into(), rows: 0, dim, moments: Moments::EMPTY }
    }

    /// Counts the rows of `[rows, dim]`.
    fn add(&mut self, tensor: &Tensor<2>) -> Result<(), EvalError> {
        let data = tensor.clone().try_into_data_as::<f32>();
        let values = data.map_err(|e| self.unread(e))?.try_into_vec::<f32>().map_err(|e| self.unread(e))?;
        self.rows += tensor.dims()[0] as u64;
        self.moments.merge(&Moments::of(&values));
        Ok(())
    }

    fn unread(&self, error: impl std::fmt::Debug) -> EvalError {
        EvalError::Device { what: "values", message: format!("`{}`: {error:?}", self.name) }
    }
}

/// The first tensor of a forward that holds a NaN or an infinity.
pub fn first_non_finite(tensors: &[TensorStats]) -> Option<&TensorStats> {
    tensors.iter().find(|tensor| tensor.moments.non_finite() > 0)
}

/// Moments of target and drafters, each in forward order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatsReport {
    /// [`STATS_VERSION`].
    pub stats_version: u32,
    /// Documents read.
    pub documents: usize,
    /// Those without an answer.
    pub documents_without_answer: usize,
    /// `aux_hidden.layer.{i}` of every tapped layer, `last_hidden` (after the final norm), `logits`: all rows of prompts
    /// and answers.
    pub target: Vec<TensorStats>,
    /// One group a drafter, in the order given.
    pub drafters: Vec<DrafterStats>,
}

/// Moments of one drafter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DrafterStats {
    /// Its name.
    pub name: String,
    /// Layers of the target that it reads.
    pub target_layer_ids: Vec<usize>,
    /// Rows of a block.
    pub block_size: usize,
    /// Where blocks begin.
    pub anchors: &'static str,
    /// Blocks drafted.
    pub blocks: u64,
    /// `context` over all rows of prompts and answers; `drafter.layer.{i}`, `drafter.final_norm` and `drafter.logits` over
    /// all rows of the blocks.
    pub tensors: Vec<TensorStats>,
}

/// Runs target and drafters over `documents`: one teacher-forced pass, and blocks along every answer. `taps` are layers
/// to describe besides those that the drafters read.
///
/// The target reads at most `rows_per_pass` tokens in one forward, of one document or many.
pub fn tensor_stats(
    target: &dyn Target,
    taps: &[usize],
    drafters: &[(String, &Dflash)],
    documents: &[StatsDocument],
    rows_per_pass: usize,
) -> Result<StatsReport, EvalError> {
    let drafter_taps = drafters.iter().flat_map(|(_, drafter)| &drafter.config().contract.target_layer_ids);
    let mut taps: Vec<usize> = taps.iter().chain(drafter_taps).copied().collect();
    taps.sort_unstable();
    taps.dedup();
    let mut drafters: Vec<DrafterPass> =
        drafters.iter().map(|(name, drafter)| DrafterPass::new(name, drafter, target, &taps)).collect();
    let mut pass = TargetPass::new(target, taps);

    let mut unfinished: Option<Reading> = None;
    for pieces in passes(documents, rows_per_pass) {
        let begin = || Reading { cache: target.new_cache(), contexts: vec![Vec::new(); drafters.len()] };
        let mut readings: Vec<Reading> = pieces
            .iter()
            .map(|piece| unfinished.take().filter(|_| piece.rows.start > 0).unwrap_or_else(begin))
            .collect();
        let inputs = pieces.iter().zip(&mut readings).map(|(piece, reading)| TargetInput {
            ids: &documents[piece.document].ids[piece.rows.clone()],
            cache: &mut reading.cache,
        });
        let layers = pass.read(&mut inputs.collect::<Vec<_>>())?;
        let mut start = 0;
        for (piece, mut reading) in pieces.iter().zip(readings) {
            for (drafter, contexts) in drafters.iter_mut().zip(&mut reading.contexts) {
                contexts.push(drafter.context(&layers, start, piece.rows.len())?);
            }
            start += piece.rows.len();
            let document = &documents[piece.document];
            if piece.rows.end < document.ids.len() {
                unfinished = Some(reading);
                continue;
            }
            for (drafter, contexts) in drafters.iter_mut().zip(reading.contexts) {
                drafter.draft(target, piece.document, document, Tensor::cat(contexts, 0))?;
            }
        }
    }
    Ok(StatsReport {
        stats_version: STATS_VERSION,
        documents: documents.len(),
        documents_without_answer: documents.iter().filter(|d| d.prompt_tokens >= d.ids.len()).count(),
        target: pass.report(),
        drafters: drafters.into_iter().map(DrafterPass::report).collect(),
    })
}

/// Tokens of a document that one forward reads.
struct Piece {
    document: usize,
    rows: Range<usize>,
}

/// A document that is being read.
struct Reading {
    cache: TargetCache,
    /// For every drafter the context rows so far, `[tokens, hidden]` a piece.
    contexts: Vec<Vec<Tensor<2>>>,
}

/// All documents in pieces, as many in a pass as fill it. Only the first piece of a pass can continue a document.
fn passes(documents: &[StatsDocument], rows_per_pass: usize) -> Vec<Vec<Piece>> {
    let most = rows_per_pass.max(1);
    let mut passes = Vec::new();
    let mut pass = Vec::new();
    let mut room = most;
    for (document, StatsDocument { ids, .. }) in documents.iter().enumerate() {
        let mut start = 0;
        while start < ids.len() {
            let end = ids.len().min(start + room);
            pass.push(Piece { document, rows: start..end });
            room -= end - start;
            start = end;
            if room == 0 {
                passes.push(std::mem::take(&mut pass));
                room = most;
            }
        }
    }
    if !pass.is_empty() {
        passes.push(pass);
    }
    passes
}

/// The target's tensors.
struct TargetPass<'a> {
    target: &'a dyn Target,
    taps: Vec<usize>,
    /// One a tap.
    aux_hidden: Vec<TensorStats>,
    last_hidden: TensorStats,
    logits: TensorStats,
}

impl<'a> TargetPass<'a> {
    fn new(target: &'a dyn Target, taps: Vec<usize>) -> Self {
        let spec = target.spec();
        let aux = |tap: &usize| TensorStats::new(format!("aux_hidden.layer.{tap}"), spec.hidden_size);
        Self {
            target,
            aux_hidden: taps.iter().map(aux).collect(),
            taps,
            last_hidden: TensorStats::new("last_hidden", spec.hidden_size),
            logits: TensorStats::new("logits", spec.vocab_size),
        }
    }

    /// Runs a batch; returns the outputs of the tapped layers, `[rows, hidden]` each.
    fn read(&mut self, batch: &mut [TargetInput<'_>]) -> Result<Vec<Tensor<2>>, EvalError> {
        let spec = self.target.spec();
        // Final norm and head follow here, because a forward would give the logits of all rows at once.
        let mut wanted = self.taps.clone();
        wanted.push(spec.num_layers.saturating_sub(1));
        let features = self.target.forward(batch, &Want { taps: wanted, logits: LogitRows::None }, None)?.features;
        let Some(features) = features else {
            return Err(
                ModelError::InvalidInput("a target forward gave no features of its tapped layers".into()).into()
            );
        };
        let layer = |column: usize| features.clone().narrow(1, column * spec.hidden_size, spec.hidden_size);
        let layers: Vec<Tensor<2>> = (0..self.taps.len()).map(layer).collect();
        for (stats, layer) in self.aux_hidden.iter_mut().zip(&layers) {
            stats.add(layer)?;
        }
        let last_hidden = rms_norm(layer(self.taps.len()), self.target.final_norm(), spec.rms_norm_eps);
        self.last_hidden.add(&last_hidden)?;
        let head = self.target.head();
        add_logits(&mut self.logits, &last_hidden, |rows| linear(rows, head))?;
        Ok(layers)
    }

    fn report(self) -> Vec<TensorStats> {
        self.aux_hidden.into_iter().chain([self.last_hidden, self.logits]).collect()
    }
}

/// A drafter's tensors.
struct DrafterPass {
    name: String,
    drafter: Dflash,
    /// Where its taps are among the target's.
    taps: Vec<usize>,
    blocks: u64,
    context: TensorStats,
    layers: Vec<TensorStats>,
    final_norm: TensorStats,
    logits: TensorStats,
}

impl DrafterPass {
    /// `taps` are the layers that the target will give, ascending and with all of the drafter's.
    fn new(name: &str, drafter: &Dflash, target: &dyn Target, taps: &[usize]) -> Self {
        // No graph is wanted here, also when a drafter in training is looked at.
        let drafter = drafter.inference();
        let config = drafter.config();
        let hidden = |name: String| TensorStats::new(name, config.hidden_size);
        Self {
            name: name.to_owned(),
            taps: config.contract.target_layer_ids.iter().filter_map(|tap| taps.binary_search(tap).ok()).collect(),
            blocks: 0,
            context: hidden("context".into()),
            layers: (0..config.num_hidden_layers).map(|layer| hidden(format!("drafter.layer.{layer}"))).collect(),
            final_norm: hidden("drafter.final_norm".into()),
            logits: TensorStats::new("drafter.logits", target.spec().vocab_size),
            drafter,
        }
    }

    /// Context rows `[rows, hidden]` of `rows` rows from `from` on of the target's layers.
    fn context(&mut self, layers: &[Tensor<2>], from: usize, rows: usize) -> Result<Tensor<2>, EvalError> {
        let taps = self.taps.iter().map(|&tap| layers[tap].clone().narrow(0, from, rows));
        let context = self.drafter.context(Tensor::cat(taps.collect(), 1))?;
        self.context.add(&context)?;
        Ok(context)
    }

    /// Runs the blocks of a document over its context `[tokens, hidden]`.
    fn draft(
        &mut self,
        target: &dyn Target,
        index: usize,
        document: &StatsDocument,
        context: Tensor<2>,
    ) -> Result<(), EvalError> {
        let contract = &self.drafter.config().contract;
        let rules = LayoutRules::from(contract, HoleRule::Cut, default_gamma(contract.block_size));
        let len = document.ids.len();
        let unsupervised = vec![false; len];
        let bounds = 0..len;
        let documents = Documents { len, bounds: std::slice::from_ref(&bounds), loss_mask: &unsupervised };
        let positions = BlockLayout::context_positions(&documents, &rules);
        let options = self.drafter.head_options(0);
        for anchors in document.anchors(contract.block_size).chunks((BLOCK_ROWS / contract.block_size).max(1)) {
            let layout = BlockLayout::inference(&rules, len, anchors, contract.block_size)
                .map_err(|source| EvalError::Blocks { document: index, source })?;
            let block_ids = layout.block_ids(&document.ids, contract.mask_token_id);
            let embedded = self.drafter.embed(&block_ids, target.embedding())?;
            let mut outputs = Vec::new();
            let mut observe = |name: &str, tensor: &Tensor<2>| {
                if name.starts_with("layer.") {
                    outputs.push(tensor.clone());
                }
            };
            let context = Context::Rows { context: context.clone(), positions: &positions };
            let normed = self.drafter.forward(embedded, &layout, context, Some(&mut observe))?;
            for (stats, output) in self.layers.iter_mut().zip(&outputs) {
                stats.add(output)?;
            }
            self.final_norm.add(&normed)?;
            add_logits(&mut self.logits, &normed, |rows| head_logits(rows, target.head(), &options))?;
            self.blocks += anchors.len() as u64;
        }
        Ok(())
    }

    fn report(self) -> DrafterStats {
        let contract = &self.drafter.config().contract;
        let mut tensors = vec![self.context];
        tensors.extend(self.layers);
        tensors.extend([self.final_norm, self.logits]);
        DrafterStats {
            name: self.name,
            target_layer_ids: contract.target_layer_ids.clone(),
            block_size: contract.block_size,
            anchors: ANCHORS,
            blocks: self.blocks,
            tensors,
        }
    }
}

/// Counts the logits that `head` makes of `[rows, hidden]`, some rows at a time.
fn add_logits(
    stats: &mut TensorStats,
    normed: &Tensor<2>,
    head: impl Fn(Tensor<2>) -> Tensor<2>,
) -> Result<(), EvalError> {
    let rows = normed.dims()[0];
    for start in (0..rows).step_by(LOGIT_ROWS) {
        stats.add(&head(normed.clone().narrow(0, start, LOGIT_ROWS.min(rows - start))))?;
    }
    Ok(())
}
