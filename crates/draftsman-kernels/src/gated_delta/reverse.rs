//! Gradients of the recurrent form on the CPU. A unit of work is a value head.
//!
//! With D the gradient of the state after a row, from all later rows, S the state before it, e = v − exp(g)·Sᵀk and
//! d = β·e, the row adds and passes on
//!
//! ```text
//! D ← D + q·doᵀ           dq = exp(g)·S·do + k·(d·do)
//! dv = β·Dᵀk              dβ = (Dᵀk)·e
//! dk = D·d − exp(g)·S·dv  D ← D − k·dvᵀ
//! dg = exp(g)·ΣD∘S        D ← exp(g)·D
//! ```
//!
//! (dk takes D before, dg after its change by dv.) The states are computed again, from one kept every few rows.

use rayon::prelude::*;

use super::recurrent::{
    Inputs, PARALLEL, Row, column_blocks, inverse_length, read_block, read_vectors, step, write_block, write_vectors,
};
use crate::flex::{each_vector, load, store};
use crate::simd::{Kernel, LANES, Simd, math, run};

/// Rows whose states are held at once.
const SEGMENT: usize = 16;

/// Gradients in the shapes of the inputs and the state; q and k are the normalised ones.
pub(super) struct Gradients {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub g: Vec<f32>,
    pub beta: Vec<f32>,
    pub state: Vec<f32>,
}

/// * `state` `[heads, K, V]`, before the first row
/// * `d_out` `[rows, heads, V]`
/// * `d_state` `[heads, K, V]`, of the state after the last row
pub(super) fn backward(inputs: &Inputs, state: &[f32], d_out: &[f32], d_state: &[f32]) -> Gradients {
    let &Inputs { rows, heads, key_heads, key_dim, value_dim, .. } = inputs;
    let size = key_dim * value_dim;
    let unit = |head: usize| {
        let own = head * size..(head + 1) * size;
        run(HeadBackward { inputs, head, state: &state[own.clone()], d_out, d_state: &d_state[own] })
    };
    let parts: Vec<Gradients> = if state.len() * rows < PARALLEL {
        (0..heads).map(unit).collect()
    } else {
        (0..heads).into_par_iter().map(unit).collect()
    };
    let mut all = Gradients {
        q: vec![0f32; inputs.q.len()],
        k: vec![0f32; inputs.k.len()],
        v: vec![0f32; inputs.v.len()],
        g: vec![0f32; rows * heads],
        beta: vec![0f32; rows * heads],
        state: vec![0f32; heads * size],
    };
    for (head, part) in parts.iter().enumerate() {
        let key_head = head / (heads / key_heads);
        for t in 0..rows {
            let at = (t * key_heads + key_head) * key_dim;
            for (all, part) in [(&mut all.q, &part.q), (&mut all.k, &part.k)] {
                let part = &part[t * key_dim..(t + 1) * key_dim];
                all[at..at + key_dim].iter_mut().zip(part).for_each(|(sum, d)| *sum += d);
            }
            all.v[inputs.values(t, head)].copy_from_slice(&part.v[t * value_dim..(t + 1) * value_dim]);
            all.g[t * heads + head] = part.g[t];
            all.beta[t * heads + head] = part.beta[t];
        }
        all.state[head * size..(head + 1) * size].copy_from_slice(&part.state);
    }
    all
}

/// Gradient of x where `d` is the gradient of `x / sqrt(Σx² + eps) · scale`, over rows of `width` values.
pub(super) fn through_norm(x: &[f32], d: Vec<f32>, width: usize, scale: f32) -> Vec<f32> {
    struct ThroughNorm<'a> {
        x: &'a [f32],
        d: &'a mut [f32],
        width: usize,
        scale: f32,
    }
    impl Kernel for ThroughNorm<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Self { x, d, width, scale } = self;
            for (x, d) in x.chunks_exact(width).zip(d.chunks_exact_mut(width)) {
                let r = inverse_length(s, x);
                let along = s.splat(-math::dot(s, x, d) * r * r);
                let factor = s.splat(r * scale);
                each_vector(
                    width,
                    #[inline(always)]
                    |i, n| {
                        let across = s.mul_add(load(s, x, i, n), along, load(s, d, i, n));
                        store(s, d, i, s.mul(factor, across), n);
                    },
                );
            }
        }
    }
    let mut d = d;
    run(ThroughNorm { x, d: &mut d, width, scale });
    d
}

struct HeadBackward<'a> {
    inputs: &'a Inputs<'a>,
    head: usize,
    state: &'a [f32],
    d_out: &'a [f32],
    d_state: &'a [f32],
}

impl Kernel for HeadBackward<'_> {
    /// Of this head alone.
    type Output = Gradients;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Gradients {
        let &Inputs { rows, key_dim, value_dim, .. } = self.inputs;
        let mut sums = Gradients {
            q: vec![0f32; rows * key_dim],
            k: vec![0f32; rows * key_dim],
            v: vec![0f32; rows * value_dim],
            g: vec![0f32; rows],
            beta: vec![0f32; rows],
            state: vec![0f32; key_dim * value_dim],
        };
        for (first, vectors) in column_blocks(value_dim) {
            match vectors {
                4 => self.columns::<S, 4>(s, first, &mut sums),
                3 => self.columns::<S, 3>(s, first, &mut sums),
                2 => self.columns::<S, 2>(s, first, &mut sums),
                _ => self.columns::<S, 1>(s, first, &mut sums),
            }
        }
        sums
    }
}

impl HeadBackward<'_> {
    /// N vectors of a row of `[rows, heads, V]`.
    #[inline(always)]
    fn values<S: Simd, const N: usize>(&self, s: S, x: &[f32], t: usize, first: usize) -> [S::F; N] {
        read_vectors(s, &x[self.inputs.values(t, self.head)], first)
    }

    /// Adds what N vectors of columns have to say.
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&self, s: S, first: usize, sums: &mut Gradients) {
        let &Inputs { rows, key_dim, value_dim, .. } = self.inputs;
        let size = key_dim * N * LANES;
        let mut block = read_block(self.state, value_dim, first, N);
        let mut kept = Vec::with_capacity(rows.div_ceil(SEGMENT) * size);
        for t in 0..rows {
            if t % SEGMENT == 0 {
                kept.extend_from_slice(&block);
            }
            if t / SEGMENT < (rows - 1) / SEGMENT {
                step(s, &mut block, self.inputs.row(t, self.head), self.values::<S, N>(s, self.inputs.v, t, first));
            }
        }

        let mut d_block = read_block(self.d_state, value_dim, first, N);
        let mut states = vec![0f32; SEGMENT.min(rows) * size];
        let mut errors = [[s.zero(); N]; SEGMENT];
        for (segment, start) in kept.chunks_exact(size).enumerate().rev() {
            let first_row = segment * SEGMENT;
            let count = SEGMENT.min(rows - first_row);
            block.copy_from_slice(start);
            for (i, state) in states.chunks_exact_mut(size).take(count).enumerate() {
                state.copy_from_slice(&block);
                let t = first_row + i;
                (errors[i], _) =
                    step(s, &mut block, self.inputs.row(t, self.head), self.values::<S, N>(s, self.inputs.v, t, first));
            }
            for (i, state) in states.chunks_exact(size).take(count).enumerate().rev() {
                let (t, keys) = (first_row + i, (first_row + i) * key_dim..(first_row + i + 1) * key_dim);
                let out = RowGradients { q: &mut sums.q[keys.clone()], k: &mut sums.k[keys] };
                let row = self.inputs.row(t, self.head);
                let (dv, dg, d_beta) = step_back(
                    s,
                    state,
                    &mut d_block,
                    row,
                    errors[i],
                    self.values::<S, N>(s, self.d_out, t, first),
                    out,
                );
                write_vectors(s, &mut sums.v[t * value_dim..(t + 1) * value_dim], first, dv);
                sums.g[t] += dg;
                sums.beta[t] += d_beta;
            }
        }
        write_block(&d_block, &mut sums.state, value_dim, first, N);
    }
}

/// Where a row's gradients of q and k are added up over the column blocks.
struct RowGradients<'a> {
    q: &'a mut [f32],
    k: &'a mut [f32],
}

/// The row's gradients of v, g and β for this column block; `d_block` goes from after the row to before it.
///
/// * `state`, `d_block` `[K, 16·N]`
#[inline(always)]
fn step_back<S: Simd, const N: usize>(
    s: S,
    state: &[f32],
    d_block: &mut [f32],
    row: Row,
    error: [S::F; N],
    d_out: [S::F; N],
    sums: RowGradients,
) -> ([S::F; N], f32, f32) {
    const GROUP: usize = 4;
    let Row { q, k, decay, beta } = row;
    let (key_dim, width) = (k.len(), N * LANES);
    assert!(q.len() == key_dim && sums.q.len() == key_dim && sums.k.len() == key_dim);
    assert!(state.len() == key_dim * width && d_block.len() == key_dim * width);
    let (state, d_block) = (state.as_ptr(), d_block.as_mut_ptr());
    let mut write = error;
    for write in &mut write {
        *write = s.mul(s.splat(beta), *write);
    }
    let along = dot(s, &write, &d_out);
    let mut d_write = [s.zero(); N];
    // SAFETY: row i of state and d_block is 16·N values from i·16·N, inside by the assertions.
    unsafe {
        for first in (0..key_dim).step_by(GROUP) {
            let count = GROUP.min(key_dim - first);
            let mut dq = [s.zero(); GROUP];
            for (m, dq) in dq.iter_mut().take(count).enumerate() {
                let i = first + m;
                let (q, k) = (s.splat(q[i]), s.splat(k[i]));
                for n in 0..N {
                    let at = i * width + n * LANES;
                    let d = s.mul_add(q, d_out[n], s.load(d_block.add(at)));
                    s.store(d_block.add(at), d);
                    d_write[n] = s.mul_add(k, d, d_write[n]);
                    *dq = s.mul_add(s.load(state.add(at)), d_out[n], *dq);
                }
            }
            let dq = s.sum4(dq);
            for (m, dq) in dq.iter().take(count).enumerate() {
                sums.q[first + m] += decay * dq + k[first + m] * along;
            }
        }
    }
    let d_beta = dot(s, &d_write, &error);
    let (mut dv, mut decayed, mut dg) = (d_write, d_write, [s.zero(); N]);
    for n in 0..N {
        dv[n] = s.mul(s.splat(beta), d_write[n]);
        decayed[n] = s.mul(s.splat(-decay), dv[n]);
    }
    // SAFETY: as above.
    unsafe {
        for first in (0..key_dim).step_by(GROUP) {
            let count = GROUP.min(key_dim - first);
            let mut dk = [s.zero(); GROUP];
            for (m, dk) in dk.iter_mut().take(count).enumerate() {
                let i = first + m;
                let minus_k = s.splat(-k[i]);
                for n in 0..N {
                    let at = i * width + n * LANES;
                    let (before, d) = (s.load(state.add(at)), s.load(d_block.add(at)));
                    *dk = s.mul_add(before, decayed[n], s.mul_add(d, write[n], *dk));
                    let d = s.mul_add(minus_k, dv[n], d);
                    dg[n] = s.mul_add(d, before, dg[n]);
                    s.store(d_block.add(at), s.mul(s.splat(decay), d));
                }
            }
            let dk = s.sum4(dk);
            for (sum, dk) in sums.k[first..].iter_mut().zip(dk.iter().take(count)) {
                *sum += dk;
            }
        }
    }
    let mut sum = dg[0];
    for dg in &dg[1..] {
        sum = s.add(sum, *dg);
    }
    (dv, decay * s.sum(sum), d_beta)
}

/// Σ over all lanes.
#[inline(always)]
fn dot<S: Simd, const N: usize>(s: S, a: &[S::F; N], b: &[S::F; N]) -> f32 {
    let mut sum = s.zero();
    for n in 0..N {
        sum = s.mul_add(a[n], b[n], sum);
    }
    s.sum(sum)
}
