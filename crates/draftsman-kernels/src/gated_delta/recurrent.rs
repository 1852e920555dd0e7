//! The recurrent form on the CPU. A unit of work is a value head.
//!
//! Columns of S never mix, so a head goes block by block of columns through all rows, with the block in the
//! first-level cache. Every sum along K is one chain of fused multiply-adds in the order of K, for every column: no
//! number of rows, heads or threads changes it.

use rayon::prelude::*;

use super::NORM_EPS;
use crate::flex::{each_vector, load, store};
use crate::simd::{Kernel, LANES, Simd, math, run};

/// Vectors of a column block at most: as many sums as hide the latency of one.
pub(super) const VECTORS: usize = 4;
/// Elements of the states, times rows, below which a second thread costs more than it saves.
pub(super) const PARALLEL: usize = 1 << 16;

/// Shapes and values, row-major.
pub(super) struct Inputs<'a> {
    pub rows: usize,
    pub key_heads: usize,
    pub heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// `[rows, key_heads, K]`, of length 1 and scaled by K^-½.
    pub q: &'a [f32],
    /// `[rows, key_heads, K]`, of length 1.
    pub k: &'a [f32],
    /// `[rows, heads, V]`
    pub v: &'a [f32],
    /// `[rows, heads]`
    pub g: &'a [f32],
    /// `[rows, heads]`
    pub beta: &'a [f32],
}

/// What a row brings to a head, but for v.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    /// exp(g)
    pub decay: f32,
    pub beta: f32,
}

impl Inputs<'_> {
    pub(super) fn row(&self, t: usize, head: usize) -> Row<'_> {
        let at = (t * self.key_heads + head / (self.heads / self.key_heads)) * self.key_dim;
        let gate = t * self.heads + head;
        Row {
            q: &self.q[at..at + self.key_dim],
            k: &self.k[at..at + self.key_dim],
            decay: self.g[gate].exp(),
            beta: self.beta[gate],
        }
    }

    /// The values of a row and head in `[rows, heads, V]`.
    pub(super) fn values(&self, t: usize, head: usize) -> std::ops::Range<usize> {
        let at = (t * self.heads + head) * self.value_dim;
        at..at + self.value_dim
    }
}

/// The output `[rows, heads, V]`; `state` `[heads, K, V]` becomes the one after the last row.
pub(super) fn forward(inputs: &Inputs, state: &mut [f32]) -> Vec<f32> {
    let size = inputs.key_dim * inputs.value_dim;
    let unit = |(head, state): (usize, &mut [f32])| run(HeadForward { inputs, head, state });
    let parts: Vec<Vec<f32>> = if state.len() * inputs.rows < PARALLEL {
        state.chunks_exact_mut(size).enumerate().map(unit).collect()
    } else {
        state.par_chunks_exact_mut(size).enumerate().map(unit).collect()
    };
    let mut out = vec![0f32; inputs.v.len()];
    for (head, part) in parts.iter().enumerate() {
        for (t, part) in part.chunks_exact(inputs.value_dim).enumerate() {
            out[inputs.values(t, head)].copy_from_slice(part);
        }
    }
    out
}

/// `x / sqrt(Σx² + eps) · scale` for every row of `x` `[.., width]`.
pub(super) fn normalised(x: &[f32], width: usize, scale: f32) -> Vec<f32> {
    struct Normalise<'a> {
        x: &'a [f32],
        y: &'a mut [f32],
        width: usize,
        scale: f32,
    }
    impl Kernel for Normalise<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Self { x, y, width, scale } = self;
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                let factor = s.splat(inverse_length(s, x) * scale);
                each_vector(
                    width,
                    #[inline(always)]
                    |i, n| store(s, y, i, s.mul(load(s, x, i, n), factor), n),
                );
            }
        }
    }
    let mut y = vec![0f32; x.len()];
    run(Normalise { x, y: &mut y, width, scale });
    y
}

#[inline(always)]
pub(super) fn inverse_length<S: Simd>(s: S, x: &[f32]) -> f32 {
    1.0 / (math::dot(s, x, x) + NORM_EPS).sqrt()
}

struct HeadForward<'a> {
    inputs: &'a Inputs<'a>,
    head: usize,
    /// `[K, V]`
    state: &'a mut [f32],
}

impl Kernel for HeadForward<'_> {
    /// `[rows, V]`
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let mut out = vec![0f32; self.inputs.rows * self.inputs.value_dim];
        let mut head = Columns { inputs: self.inputs, head: self.head, state: self.state, out: &mut out };
        for (first, vectors) in column_blocks(self.inputs.value_dim) {
            match vectors {
                4 => head.forward::<S, 4>(s, first),
                3 => head.forward::<S, 3>(s, first),
                2 => head.forward::<S, 2>(s, first),
                _ => head.forward::<S, 1>(s, first),
            }
        }
        out
    }
}

/// Blocks of columns as (first column, vectors of 16, the last of them perhaps not full).
pub(super) fn column_blocks(columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..columns).step_by(VECTORS * LANES).map(move |first| (first, (columns - first).div_ceil(LANES).min(VECTORS)))
}

struct Columns<'a> {
    inputs: &'a Inputs<'a>,
    head: usize,
    state: &'a mut [f32],
    out: &'a mut [f32],
}

impl Columns<'_> {
    /// All rows for N vectors of columns.
    #[inline(always)]
    fn forward<S: Simd, const N: usize>(&mut self, s: S, first: usize) {
        let Inputs { rows, value_dim, .. } = *self.inputs;
        let mut block = read_block(self.state, value_dim, first, N);
        for t in 0..rows {
            let v = &self.inputs.v[self.inputs.values(t, self.head)];
            let v = read_vectors::<S, N>(s, v, first);
            let (_, out) = step(s, &mut block, self.inputs.row(t, self.head), v);
            write_vectors(s, &mut self.out[t * value_dim..(t + 1) * value_dim], first, out);
        }
        write_block(&block, self.state, value_dim, first, N);
    }
}

/// One row over a column block `[K, 16·N]`: the error `v − Sᵀk` of the decayed state, and the output.
#[inline(always)]
pub(super) fn step<S: Simd, const N: usize>(s: S, block: &mut [f32], row: Row, v: [S::F; N]) -> ([S::F; N], [S::F; N]) {
    let Row { q, k, decay, beta } = row;
    assert!(k.len() == q.len() && block.len() == k.len() * N * LANES);
    let (decay, beta, block) = (s.splat(decay), s.splat(beta), block.as_mut_ptr());
    let (mut answer, mut out) = ([s.zero(); N], [s.zero(); N]);
    // SAFETY: row i of the block is 16·N values from i·16·N, inside by the assertion.
    unsafe {
        for (i, &k) in k.iter().enumerate() {
            let (at, k) = (block.add(i * N * LANES), s.splat(k));
            for (n, answer) in answer.iter_mut().enumerate() {
                *answer = s.mul_add(k, s.mul(decay, s.load(at.add(n * LANES))), *answer);
            }
        }
        // Loops, here and below: a closure would not be compiled for this instruction set.
        let (mut error, mut write) = (answer, answer);
        for n in 0..N {
            error[n] = s.sub(v[n], answer[n]);
            write[n] = s.mul(beta, error[n]);
        }
        for (i, (&k, &q)) in k.iter().zip(q).enumerate() {
            let (at, k, q) = (block.add(i * N * LANES), s.splat(k), s.splat(q));
            for n in 0..N {
                let p = at.add(n * LANES);
                let x = s.mul_add(k, write[n], s.mul(decay, s.load(p)));
                s.store(p, x);
                out[n] = s.mul_add(q, x, out[n]);
            }
        }
        (error, out)
    }
}

/// Columns from `first` of `all` `[K, columns]` as `[K, 16·vectors]`, filled up with zeros (they stay zeros).
pub(super) fn read_block(all: &[f32], columns: usize, first: usize, vectors: usize) -> Vec<f32> {
    let (width, used) = (vectors * LANES, (columns - first).min(vectors * LANES));
    let mut block = vec![0f32; all.len() / columns * width];
    for (all, block) in all.chunks_exact(columns).zip(block.chunks_exact_mut(width)) {
        block[..used].copy_from_slice(&all[first..first + used]);
    }
    block
}

/// The inverse of [`read_block`].
pub(super) fn write_block(block: &[f32], all: &mut [f32], columns: usize, first: usize, vectors: usize) {
    let (width, used) = (vectors * LANES, (columns - first).min(vectors * LANES));
    for (all, block) in all.chunks_exact_mut(columns).zip(block.chunks_exact(width)) {
        all[first..first + used].copy_from_slice(&block[..used]);
    }
}

/// Lanes of `x` past its end are 0.
#[inline(always)]
pub(super) fn read_vectors<S: Simd, const N: usize>(s: S, x: &[f32], first: usize) -> [S::F; N] {
    let mut v = [s.zero(); N];
    for (n, v) in v.iter_mut().enumerate() {
        let at = first + n * LANES;
        *v = load(s, x, at, (x.len() - at).min(LANES));
    }
    v
}

/// Lanes past the end of `y` are dropped.
#[inline(always)]
pub(super) fn write_vectors<S: Simd, const N: usize>(s: S, y: &mut [f32], first: usize, v: [S::F; N]) {
    for (n, v) in v.into_iter().enumerate() {
        let at = first + n * LANES;
        let count = (y.len() - at).min(LANES);
        store(s, y, at, v, count);
    }
}
