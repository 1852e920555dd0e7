//! Backward pass. The weights are computed again, with the forward's code, instead of being kept.
//!
//! With weights p = softmax(scale · q·k) and the output's gradient g: dv = Σ p·g, ds = p·(g·v − Σ p·(g·v)),
//! dq = scale · Σ ds·k, dk = Σ ds·(scale·q). A sink is in the softmax's sum and has no value: the formulas stay. First
//! each tile of rows finds p, ds and dq; then each block of keys adds up dk and dv over the tiles in their order. No
//! sum crosses a unit of work, so threads can't change its order.

use rayon::prelude::*;

use super::forward::{gather, scatter, virtual_scores};
use super::plan::{Plan, Tile};
use super::tile::accumulate;
use super::{PackedRows, Softmax};
use crate::simd::{Kernel, Simd, math, run};

/// Keys of a unit of work of the second step.
const KEY_BLOCK: usize = 64;
/// Key heads go through both steps together as long as their weights need no more values than this (256 MB).
const WEIGHTS: usize = 1 << 26;

/// What the backward pass reads: the forward's inputs, all row-major, and the gradient of its output.
pub(super) struct Inputs<'a> {
    /// `[rows, heads, head_dim]`
    pub q: &'a [f32],
    /// `[keys, kv_heads, head_dim]`
    pub k: &'a [f32],
    /// `[keys, kv_heads, head_dim]`
    pub v: &'a [f32],
    /// The keys once more, packed.
    pub keys: &'a PackedRows,
    /// `[rows, heads, head_dim]`
    pub g: &'a [f32],
    pub heads: usize,
    pub softmax: &'a Softmax,
    pub plan: &'a Plan,
}

/// Gradients in the shapes of q, k and v.
pub(super) struct Gradients {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

pub(super) fn backward(inputs: &Inputs) -> Gradients {
    let &Inputs { q, k, v, keys, heads, plan, .. } = inputs;
    let (kv_heads, head_dim) = (keys.kv_heads(), keys.head_dim());
    let mut gradients = Gradients { q: vec![0f32; q.len()], k: vec![0f32; k.len()], v: vec![0f32; v.len()] };
    if q.is_empty() || k.is_empty() {
        return gradients;
    }
    let values = PackedRows::of(v, kv_heads, head_dim);
    let key_count = k.len() / (kv_heads * head_dim);
    let bins = bins(plan, key_count);
    let weights: usize = plan.tiles.iter().map(|tile| 2 * tile.rows.len() * plan.group * tile.stride).sum();
    let together = (WEIGHTS / weights.max(1)).clamp(1, kv_heads);
    for first in (0..kv_heads).step_by(together) {
        let count = together.min(kv_heads - first);
        let tiles: Vec<TileGradients> = (0..count * plan.tiles.len())
            .into_par_iter()
            .map(|i| {
                let (kv_head, tile) = (first + i / plan.tiles.len(), &plan.tiles[i % plan.tiles.len()]);
                run(TileBackward { inputs, values: &values, tile, kv_head })
            })
            .collect();
        let blocks: Vec<Option<[Vec<f32>; 2]>> = (0..count * bins.len())
            .into_par_iter()
            .map(|i| {
                let (kv_head, block) = (i / bins.len(), i % bins.len());
                let tiles = &tiles[kv_head * plan.tiles.len()..(kv_head + 1) * plan.tiles.len()];
                let size = KEY_BLOCK.min(key_count - block * KEY_BLOCK);
                (!bins[block].is_empty()).then(|| {
                    let first_key = block * KEY_BLOCK;
                    run(KeyBlockBackward { plan, tiles, bin: &bins[block], first_key, keys: size, head_dim })
                })
            })
            .collect();
        for (i, tile) in tiles.iter().enumerate() {
            let kv_head = first + i / plan.tiles.len();
            scatter(
                &tile.dq,
                &plan.tiles[i % plan.tiles.len()],
                kv_head,
                plan.group,
                heads,
                head_dim,
                &mut gradients.q,
            );
        }
        for (i, block) in blocks.iter().enumerate() {
            let (kv_head, block_index) = (first + i / bins.len(), i % bins.len());
            let Some([dk, dv]) = block else { continue };
            for (all, part) in [(&mut gradients.k, dk), (&mut gradients.v, dv)] {
                for (key, part) in part.chunks_exact(head_dim).enumerate() {
                    let at = ((block_index * KEY_BLOCK + key) * kv_heads + kv_head) * head_dim;
                    all[at..at + head_dim].copy_from_slice(part);
                }
            }
        }
    }
    gradients
}

/// For every block of keys the rectangles (tile, rectangle) that reach into it, in the order of the tiles.
fn bins(plan: &Plan, keys: usize) -> Vec<Vec<(usize, usize)>> {
    let mut bins = vec![Vec::new(); keys.div_ceil(KEY_BLOCK)];
    for (t, tile) in plan.tiles.iter().enumerate() {
        for r in tile.rects.clone() {
            let keys = &plan.rects[r].keys;
            for bin in &mut bins[keys.start / KEY_BLOCK..keys.end.div_ceil(KEY_BLOCK)] {
                bin.push((t, r));
            }
        }
    }
    bins
}

/// What the second step needs of a tile and key head; rows are rows × heads of the group.
struct TileGradients {
    first_row: usize,
    stride: usize,
    /// `scale · q`, `[rows, head_dim]`
    q: Vec<f32>,
    /// `[rows, head_dim]`
    g: Vec<f32>,
    /// Softmax weights in virtual order, `[rows, stride]`
    p: Vec<f32>,
    /// Gradient of the scaled scores in virtual order, `[rows, stride]`
    ds: Vec<f32>,
    /// `[rows, head_dim]`
    dq: Vec<f32>,
}

struct TileBackward<'a> {
    inputs: &'a Inputs<'a>,
    values: &'a PackedRows,
    tile: &'a Tile,
    kv_head: usize,
}

impl Kernel for TileBackward<'_> {
    type Output = TileGradients;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> TileGradients {
        let Self { inputs, values, tile, kv_head } = self;
        let &Inputs { keys, heads, softmax, plan, .. } = inputs;
        let (kv_heads, head_dim) = (keys.kv_heads(), keys.head_dim());
        let (group, rows) = (plan.group, tile.rows.len() * plan.group);
        let q = gather(inputs.q, tile, kv_head, group, heads, head_dim, softmax.scale);
        let g = gather(inputs.g, tile, kv_head, group, heads, head_dim, 1.0);
        let (mut p, mut ds) = (vec![0f32; rows * tile.stride], vec![0f32; rows * tile.stride]);
        let mut dq = vec![0f32; rows * head_dim];
        if tile.stride > 0 {
            virtual_scores(s, plan, tile, &q, keys, kv_head, &mut p);
            virtual_scores(s, plan, tile, &g, values, kv_head, &mut ds);
            for (i, (p, ds)) in p.chunks_exact_mut(tile.stride).zip(ds.chunks_exact_mut(tile.stride)).enumerate() {
                let count = plan.counts[tile.rows.start + i / group];
                let (p, ds) = (&mut p[..count], &mut ds[..count]);
                let sum = softmax.exponentials(s, p, kv_head * group + i % group);
                math::scale(s, if sum == 0.0 { 0.0 } else { 1.0 / sum }, p);
                let mean = s.splat(math::dot(s, p, ds));
                math::map2(
                    s,
                    p,
                    ds,
                    #[inline(always)]
                    |p, dp| s.mul(p, s.sub(dp, mean)),
                );
            }
            let mut at = Vec::with_capacity(rows);
            for rect in &plan.rects[tile.rects.clone()] {
                at.clear();
                let first = (rect.rows.start - tile.rows.start) * group;
                for (i, start) in plan.starts(rect).iter().enumerate() {
                    at.extend((0..group).map(|g| (first + i * group + g) * tile.stride + start));
                }
                let dq = &mut dq[first * head_dim..(first + at.len()) * head_dim];
                let k = &inputs.k[(rect.keys.start * kv_heads + kv_head) * head_dim..];
                accumulate::<S, false>(s, dq, head_dim, &ds, &at, rect.keys.len(), k, kv_heads * head_dim);
            }
            math::scale(s, softmax.scale, &mut dq);
        }
        TileGradients { first_row: tile.rows.start, stride: tile.stride, q, g, p, ds, dq }
    }
}

struct KeyBlockBackward<'a> {
    plan: &'a Plan,
    tiles: &'a [TileGradients],
    bin: &'a [(usize, usize)],
    first_key: usize,
    keys: usize,
    head_dim: usize,
}

impl Kernel for KeyBlockBackward<'_> {
    /// dk and dv of the block, `[keys, head_dim]` each.
    type Output = [Vec<f32>; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [Vec<f32>; 2] {
        let Self { plan, tiles, bin, first_key, keys, head_dim } = self;
        let (mut dk, mut dv) = (vec![0f32; keys * head_dim], vec![0f32; keys * head_dim]);
        let mut at = Vec::new();
        for &(t, r) in bin {
            let (tile, rect) = (&tiles[t], &plan.rects[r]);
            // The part of the rectangle's keys that is in the block.
            let (start, end) = (rect.keys.start.max(first_key), rect.keys.end.min(first_key + keys));
            let first = (rect.rows.start - tile.first_row) * plan.group;
            at.clear();
            for (i, virtual_start) in plan.starts(rect).iter().enumerate() {
                let offset = virtual_start + start - rect.keys.start;
                at.extend((0..plan.group).map(|g| (first + i * plan.group + g) * tile.stride + offset));
            }
            let part = (start - first_key) * head_dim..(end - first_key) * head_dim;
            let rows = first * head_dim..(first + at.len()) * head_dim;
            let (q, g) = (&tile.q[rows.clone()], &tile.g[rows]);
            accumulate::<S, true>(s, &mut dk[part.clone()], head_dim, &tile.ds, &at, at.len(), q, head_dim);
            accumulate::<S, true>(s, &mut dv[part], head_dim, &tile.p, &at, at.len(), g, head_dim);
        }
        [dk, dv]
    }
}
