//! Forward pass: a unit of work is a tile of rows and one key head.

use std::cell::Cell;

use rayon::prelude::*;

use super::plan::{Plan, Tile};
use super::tile::{accumulate, scores};
use super::{PackedRows, Softmax};
use crate::simd::{Kernel, Simd, math, run};

/// Multiplications below which a second thread costs more than it saves.
const PARALLEL: usize = 1 << 18;

/// What the forward pass reads.
pub(super) struct Inputs<'a> {
    /// `[rows, heads, head_dim]`
    pub q: &'a [f32],
    pub keys: &'a PackedRows,
    /// `[keys, kv_heads, head_dim]`
    pub values: &'a [f32],
    pub heads: usize,
    pub softmax: &'a Softmax,
    pub plan: &'a Plan,
}

/// `[rows, heads, head_dim]`
pub(super) fn forward(inputs: &Inputs) -> Vec<f32> {
    let (kv_heads, head_dim) = (inputs.keys.kv_heads(), inputs.keys.head_dim());
    let tiles = &inputs.plan.tiles;
    let unit = |i: usize| run(TileForward { inputs, tile: &tiles[i / kv_heads], kv_head: i % kv_heads });
    let units = tiles.len() * kv_heads;
    let parts: Vec<Vec<f32>> = if inputs.plan.work(head_dim) < PARALLEL {
        (0..units).map(unit).collect()
    } else {
        (0..units).into_par_iter().map(unit).collect()
    };
    let mut out = vec![0f32; inputs.q.len()];
    for (i, part) in parts.iter().enumerate() {
        scatter(part, &tiles[i / kv_heads], i % kv_heads, inputs.plan.group, inputs.heads, head_dim, &mut out);
    }
    out
}

/// A tile's rows of one key head, `[rows · group, head_dim]`, to their places in `[rows, heads, head_dim]`.
pub(super) fn scatter(
    part: &[f32],
    tile: &Tile,
    kv_head: usize,
    group: usize,
    heads: usize,
    head_dim: usize,
    out: &mut [f32],
) {
    let size = group * head_dim;
    if size == 0 {
        return;
    }
    for (row, part) in tile.rows.clone().zip(part.chunks_exact(size)) {
        let at = (row * heads + kv_head * group) * head_dim;
        out[at..at + size].copy_from_slice(part);
    }
}

/// The inverse of [`scatter`], times `scale`.
pub(super) fn gather(
    all: &[f32],
    tile: &Tile,
    kv_head: usize,
    group: usize,
    heads: usize,
    head_dim: usize,
    scale: f32,
) -> Vec<f32> {
    let size = group * head_dim;
    let mut part = Vec::with_capacity(tile.rows.len() * size);
    for row in tile.rows.clone() {
        let at = (row * heads + kv_head * group) * head_dim;
        part.extend(all[at..at + size].iter().map(|x| x * scale));
    }
    part
}

thread_local! {
    /// The memory of [`virtual_scores`]; kept, because it is large and short-lived.
    static SCORES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// `x · key` of every visible key in virtual order: rows of `out` are `tile.stride` apart, one per row and head.
///
/// * `x` `[rows · group, head_dim]`
#[inline(always)]
pub(super) fn virtual_scores<S: Simd>(
    s: S,
    plan: &Plan,
    tile: &Tile,
    x: &[f32],
    keys: &PackedRows,
    kv_head: usize,
    out: &mut [f32],
) {
    let (head_dim, group) = (keys.head_dim(), plan.group);
    let mut memory = SCORES.take();
    let size = tile.rows.len() * group * tile.columns;
    if memory.len() < size {
        memory.resize(size, 0.0);
    }
    for run in &plan.runs[tile.runs.clone()] {
        let blocks = keys.blocks(run.first_block, kv_head);
        scores(s, x, head_dim, blocks, keys.block_stride(), run.blocks, &mut memory[run.column..size], tile.columns);
    }
    for rect in &plan.rects[tile.rects.clone()] {
        let length = rect.keys.len();
        for (row, start) in rect.rows.clone().zip(plan.starts(rect)) {
            for i in (row - tile.rows.start) * group..(row - tile.rows.start + 1) * group {
                let (from, to) = (i * tile.columns + rect.column, i * tile.stride + start);
                out[to..to + length].copy_from_slice(&memory[from..from + length]);
            }
        }
    }
    SCORES.set(memory);
}

struct TileForward<'a> {
    inputs: &'a Inputs<'a>,
    tile: &'a Tile,
    kv_head: usize,
}

impl Kernel for TileForward<'_> {
    /// `[rows · group, head_dim]`
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let Self { inputs: &Inputs { q, keys, values, heads, softmax, plan }, tile, kv_head } = self;
        let (head_dim, group, kv_heads) = (keys.head_dim(), plan.group, keys.kv_heads());
        let mut out = vec![0f32; tile.rows.len() * group * head_dim];
        if tile.stride == 0 || out.is_empty() {
            return out;
        }
        let q = gather(q, tile, kv_head, group, heads, head_dim, softmax.scale);
        let mut weights = vec![0f32; tile.rows.len() * group * tile.stride];
        virtual_scores(s, plan, tile, &q, keys, kv_head, &mut weights);
        let mut sums = Vec::with_capacity(tile.rows.len() * group);
        for (i, weights) in weights.chunks_exact_mut(tile.stride).enumerate() {
            let weights = &mut weights[..plan.counts[tile.rows.start + i / group]];
            sums.push(softmax.exponentials(s, weights, kv_head * group + i % group));
        }
        let mut at = Vec::with_capacity(sums.len());
        for rect in &plan.rects[tile.rects.clone()] {
            at.clear();
            let first = (rect.rows.start - tile.rows.start) * group;
            for (i, start) in plan.starts(rect).iter().enumerate() {
                at.extend((0..group).map(|g| (first + i * group + g) * tile.stride + start));
            }
            let out = &mut out[first * head_dim..(first + at.len()) * head_dim];
            let values = &values[(rect.keys.start * kv_heads + kv_head) * head_dim..];
            accumulate::<S, false>(s, out, head_dim, &weights, &at, rect.keys.len(), values, kv_heads * head_dim);
        }
        for (out, sum) in out.chunks_exact_mut(head_dim).zip(sums) {
            // A row that sees nothing has the sum 0 and stays zero.
            if sum != 0.0 {
                math::scale(s, 1.0 / sum, out);
            }
        }
        out
    }
}
