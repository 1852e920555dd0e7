//! The three products of attention in register tiles. A tile groups independent results: none of them changes bits.

use crate::simd::{LANES, Simd};

/// Calls `$tile::<S, M, ..>` for the next M of the rows that are left (largest first), and advances.
macro_rules! by_rows {
    ($rows:expr, |$i:ident, $m:ident| $call:expr) => {{
        let mut $i = 0;
        while $i < $rows {
            $i += match $rows - $i {
                6.. => {
                    const $m: usize = 6;
                    $call;
                    6
                }
                4 | 5 => {
                    const $m: usize = 4;
                    $call;
                    4
                }
                3 => {
                    const $m: usize = 3;
                    $call;
                    3
                }
                2 => {
                    const $m: usize = 2;
                    $call;
                    2
                }
                _ => {
                    const $m: usize = 1;
                    $call;
                    1
                }
            };
        }
    }};
}

/// `out[i][lane of block] = Σ_d q[i][d] · k[block][d][lane]`, d ascending in one chain of fused multiply-adds.
///
/// * `q` `[rows, head_dim]`
/// * `k` blocks `[head_dim, 16]`, `block_stride` values apart
/// * `out` rows `out_stride` values apart, 16 values per block
#[expect(clippy::too_many_arguments, reason = "buffers with their strides; a struct would only name them twice")]
#[inline(always)]
pub(super) fn scores<S: Simd>(
    s: S,
    q: &[f32],
    head_dim: usize,
    k: &[f32],
    block_stride: usize,
    blocks: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    if blocks == 0 || q.is_empty() {
        return;
    }
    let rows = q.len() / head_dim;
    assert!((blocks - 1) * block_stride + head_dim * LANES <= k.len());
    assert!((rows - 1) * out_stride + blocks * LANES <= out.len());
    let (q, k, out) = (q.as_ptr(), k.as_ptr(), out.as_mut_ptr());
    let mut block = 0;
    // SAFETY: rows i..i+M and blocks block..block+N are inside, by the assertions.
    unsafe {
        while S::OUTER_VECTORS > 1 && block + 4 <= blocks {
            let (k, out) = (k.add(block * block_stride), out.add(block * LANES));
            by_rows!(rows, |i, M| score_tile::<S, M, 4>(
                s,
                q.add(i * head_dim),
                head_dim,
                k,
                block_stride,
                out.add(i * out_stride),
                out_stride
            ));
            block += 4;
        }
        while block < blocks {
            let (k, out) = (k.add(block * block_stride), out.add(block * LANES));
            by_rows!(rows, |i, M| score_tile::<S, M, 1>(
                s,
                q.add(i * head_dim),
                head_dim,
                k,
                block_stride,
                out.add(i * out_stride),
                out_stride
            ));
            block += 1;
        }
    }
}

/// # Safety
/// M rows of q and out and N blocks of k are inside their buffers.
#[inline(always)]
unsafe fn score_tile<S: Simd, const M: usize, const N: usize>(
    s: S,
    q: *const f32,
    head_dim: usize,
    k: *const f32,
    block_stride: usize,
    out: *mut f32,
    out_stride: usize,
) {
    let mut acc = [[s.zero(); N]; M];
    // SAFETY: the caller's promise.
    unsafe {
        for d in 0..head_dim {
            let mut keys = [s.zero(); N];
            for (n, keys) in keys.iter_mut().enumerate() {
                *keys = s.load(k.add(n * block_stride + d * LANES));
            }
            for (m, acc) in acc.iter_mut().enumerate() {
                let x = s.splat(*q.add(m * head_dim + d));
                for (acc, keys) in acc.iter_mut().zip(keys) {
                    *acc = s.mul_add(x, keys, *acc);
                }
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            for (n, acc) in acc.iter().enumerate() {
                s.store(out.add(m * out_stride + n * LANES), *acc);
            }
        }
    }
}

/// Terms that are summed before the next group of results has its turn: their rows stay in the first-level cache.
const TERMS: usize = 64;

/// `acc[i][..] += Σ_j weight(i, j) · x[j][..]`, j ascending in one chain of fused multiply-adds per value.
///
/// The weight is `weights[at[i] + j]` (one offset per result), or `weights[at[j] + i]` if PER_TERM (one per term).
///
/// * `acc` `[results, head_dim]`
/// * `x` rows of `head_dim` values, `x_stride` values apart
#[expect(clippy::too_many_arguments, reason = "buffers with their strides; a struct would only name them twice")]
#[inline(always)]
pub(super) fn accumulate<S: Simd, const PER_TERM: bool>(
    s: S,
    acc: &mut [f32],
    head_dim: usize,
    weights: &[f32],
    at: &[usize],
    terms: usize,
    x: &[f32],
    x_stride: usize,
) {
    if terms == 0 || acc.is_empty() {
        return;
    }
    let results = acc.len() / head_dim;
    assert_eq!(at.len(), if PER_TERM { terms } else { results });
    let reach = if PER_TERM { results } else { terms };
    assert!(at.iter().all(|&at| at + reach <= weights.len()));
    assert!((terms - 1) * x_stride + head_dim <= x.len());
    let (acc, weights, x) = (acc.as_mut_ptr(), weights.as_ptr(), x.as_ptr());
    for first in (0..terms).step_by(TERMS) {
        let count = TERMS.min(terms - first);
        let at = if PER_TERM { &at[first..first + count] } else { at };
        // SAFETY: result rows i..i+M, terms first..first+count, columns below head_dim: inside by the assertions.
        unsafe {
            let weights = if PER_TERM { weights } else { weights.add(first) };
            let x = x.add(first * x_stride);
            let mut column = 0;
            while S::OUTER_VECTORS > 1 && column + 4 * LANES <= head_dim {
                by_rows!(results, |i, M| sum_tile::<S, M, 4, PER_TERM, false>(
                    s,
                    acc.add(i * head_dim + column),
                    head_dim,
                    weights,
                    at,
                    i,
                    count,
                    x.add(column),
                    x_stride,
                    LANES
                ));
                column += 4 * LANES;
            }
            while column + LANES <= head_dim {
                by_rows!(results, |i, M| sum_tile::<S, M, 1, PER_TERM, false>(
                    s,
                    acc.add(i * head_dim + column),
                    head_dim,
                    weights,
                    at,
                    i,
                    count,
                    x.add(column),
                    x_stride,
                    LANES
                ));
                column += LANES;
            }
            if column < head_dim {
                by_rows!(results, |i, M| sum_tile::<S, M, 1, PER_TERM, true>(
                    s,
                    acc.add(i * head_dim + column),
                    head_dim,
                    weights,
                    at,
                    i,
                    count,
                    x.add(column),
                    x_stride,
                    head_dim - column
                ));
            }
        }
    }
}

/// M results × N vectors (of 16 columns, or `lanes` if PARTIAL).
///
/// # Safety
/// All of them are inside their buffers, and `at` holds an offset for each result i..i+M or each term.
#[expect(clippy::too_many_arguments, reason = "buffers with their strides; a struct would only name them twice")]
#[inline(always)]
unsafe fn sum_tile<S: Simd, const M: usize, const N: usize, const PER_TERM: bool, const PARTIAL: bool>(
    s: S,
    acc: *mut f32,
    acc_stride: usize,
    weights: *const f32,
    at: &[usize],
    i: usize,
    terms: usize,
    x: *const f32,
    x_stride: usize,
    lanes: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[s.zero(); N]; M];
        let mut rows = [weights; M];
        for (m, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = load::<S, PARTIAL>(s, acc.add(m * acc_stride + n * LANES), lanes);
            }
            if !PER_TERM {
                rows[m] = weights.add(*at.get_unchecked(i + m));
            }
        }
        for j in 0..terms {
            let mut term = [s.zero(); N];
            for (n, term) in term.iter_mut().enumerate() {
                *term = load::<S, PARTIAL>(s, x.add(j * x_stride + n * LANES), lanes);
            }
            let column = if PER_TERM { weights.add(*at.get_unchecked(j) + i) } else { weights };
            for (m, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(if PER_TERM { *column.add(m) } else { *rows[m].add(j) });
                for (sum, term) in sums.iter_mut().zip(term) {
                    *sum = s.mul_add(weight, term, *sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                let p = acc.add(m * acc_stride + n * LANES);
                if PARTIAL { s.store_partial(p, sum, lanes) } else { s.store(p, sum) }
            }
        }
    }
}

/// # Safety
/// `p` is readable for 16 values, or for `lanes` if PARTIAL.
#[inline(always)]
unsafe fn load<S: Simd, const PARTIAL: bool>(s: S, p: *const f32, lanes: usize) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { if PARTIAL { s.load_partial(p, lanes) } else { s.load(p) } }
}
