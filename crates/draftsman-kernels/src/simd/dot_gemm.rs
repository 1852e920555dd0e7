//! X·Wᵀ as dot products, from row-major W.
//!
//! Output (i, j) is Σ over k in one fixed order: lane l of one accumulator takes k ≡ l (mod 16) ascending with fused
//! multiply-add, and the lanes are added by one fixed tree. A register tile of several rows and four outputs only
//! groups such sums to reuse loads, so an output has the same bits in every tile, for any rows, chunk or thread, and
//! whether W is widened at every load (few rows) or once (many rows).
#![expect(clippy::needless_range_loop, reason = "register tiles are indexed by constants in step with pointers")]

use std::cell::RefCell;

use rayon::prelude::*;

use super::aligned::Aligned;
use super::{Element, Kernel, LANES, Level, Simd, run_at};

/// Outputs of a register tile.
const TILE_OUTS: usize = 4;
/// The most rows of a register tile of any level.
const MAX_ROWS: usize = 6;
/// Values of a strip: the weight rows that stay in the second-level cache while all rows of X pass.
const STRIP: usize = 192 * 1024;
/// Groups of 16 products after which the accumulators of a tile are put aside for the next tile, so that the rows of
/// X in use stay in the first-level cache.
const DEPTH: usize = 48;
/// Rows from which widening a strip of bf16 or f16 once pays, instead of at every load.
const WIDEN_ROWS: usize = 13;
/// Rows from which copying a strip of f32 that lies across cache lines pays.
const ALIGN_ROWS: usize = 64;
/// Multiply-adds below which threads cost more than they bring.
const SERIAL_WORK: usize = 1 << 16;

/// Sizes of a product.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) outs: usize,
    pub(crate) k: usize,
}

/// `x` `[rows, k]`, `w` `[outs, k]`; `y` gets `[rows, outs]`.
pub(crate) fn dot_gemm<E: Element>(level: Level, x: &[f32], w: &[E], y: &mut [f32], sizes: Sizes) {
    let Sizes { rows, outs, k } = sizes;
    assert!(x.len() == rows * k && w.len() == outs * k && y.len() == rows * outs);
    if rows == 0 || outs == 0 {
        return;
    }
    let mut packed = Aligned::zeros(packed_len(rows, k));
    run_at(level, PackRows { x, rows, k, out: &mut packed });
    let target = Target(y.as_mut_ptr());
    let strip = |start: usize, end: usize| {
        let sizes = Sizes { rows, outs: end - start, k };
        run_at(level, Strip { x: &packed, w: &w[start * k..end * k], y: target, first: start, stride: outs, sizes });
    };
    if rows * outs * k <= SERIAL_WORK {
        return strip(0, outs);
    }
    // Fewer outputs than would fill the strips of all threads: smaller strips. No result depends on the choice.
    let fair = outs.div_ceil(2 * rayon::current_num_threads()).next_multiple_of(TILE_OUTS);
    let size = (STRIP / k.max(1) / TILE_OUTS * TILE_OUTS).clamp(TILE_OUTS, fair);
    (0..outs.div_ceil(size)).into_par_iter().for_each(|i| strip(i * size, outs.min((i + 1) * size)));
}

/// Values of `rows` rows of X in tiles.
pub(crate) fn packed_len(rows: usize, k: usize) -> usize {
    rows * k.next_multiple_of(LANES)
}

/// Lays rows of length k out in the tiles of [`dot_block`]: per tile of rows `[k/16, rows of the tile, 16]`, zeros
/// past k.
#[inline(always)]
pub(crate) fn pack_rows<'a, S: Simd>(s: S, rows: usize, k: usize, get: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
    assert!(out.len() >= packed_len(rows, k));
    let groups = k.div_ceil(LANES);
    for row in 0..rows {
        let first = row / S::DOT_ROWS * S::DOT_ROWS;
        let tile = S::DOT_ROWS.min(rows - first);
        let x = &get(row)[..k];
        // SAFETY: the last vector ends at (first + tile)·16·groups <= packed_len; x has k values.
        unsafe {
            let mut to = out.as_mut_ptr().add(first * groups * LANES + (row - first) * LANES);
            for group in 0..groups {
                let rest = k - group * LANES;
                let from = x.as_ptr().add(group * LANES);
                s.store(to, if rest >= LANES { s.load(from) } else { s.load_partial(from, rest) });
                to = to.wrapping_add(tile * LANES);
            }
        }
    }
}

/// One block of outputs on the calling thread: `y[row · stride + out]` for rows packed by [`pack_rows`] at the level
/// of `s` and `w` `[outs, k]`.
#[inline(always)]
pub(crate) fn dot_block<S: Simd, E: Element>(
    s: S,
    packed: &[f32],
    w: &[E],
    y: &mut [f32],
    stride: usize,
    sizes: Sizes,
) {
    let Sizes { rows, outs, k } = sizes;
    assert!(packed.len() >= packed_len(rows, k) && w.len() == outs * k && outs <= stride);
    assert!(rows == 0 || y.len() >= (rows - 1) * stride + outs);
    // SAFETY: the assertions.
    unsafe { strip(s, packed.as_ptr(), w.as_ptr(), y.as_mut_ptr(), stride, sizes) }
}

struct PackRows<'a> {
    x: &'a [f32],
    rows: usize,
    k: usize,
    out: &'a mut [f32],
}

impl Kernel for PackRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, rows, k, out } = self;
        pack_rows(
            s,
            rows,
            k,
            #[inline(always)]
            |row| &x[row * k..(row + 1) * k],
            out,
        );
    }
}

/// Where the strips write, each its own columns.
#[derive(Clone, Copy)]
struct Target(*mut f32);
// SAFETY: only used to write disjoint columns, while the owner is borrowed mutably.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

struct Strip<'a, E> {
    x: &'a [f32],
    w: &'a [E],
    y: Target,
    first: usize,
    stride: usize,
    sizes: Sizes,
}

impl<E: Element> Kernel for Strip<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, w, y, first, stride, sizes } = self;
        // SAFETY: made by dot_gemm with packed x, w [outs, k] and y [rows, stride], of which this strip owns the
        // columns from `first`.
        unsafe { strip(s, x.as_ptr(), w.as_ptr(), y.0.add(first), stride, sizes) }
    }
}

thread_local! {
    /// A strip of W widened to f32, and the accumulators put aside: kept, because fresh memory costs page faults.
    static SCRATCH: RefCell<(Aligned, Aligned)> = RefCell::default();
}

/// # Safety
/// `x` holds packed rows, `w` outs·k values, and `y` is writable at row·stride + out for every row and out.
#[inline(always)]
unsafe fn strip<S: Simd, E: Element>(s: S, x: *const f32, w: *const E, y: *mut f32, stride: usize, sizes: Sizes) {
    let Sizes { rows, outs, k } = sizes;
    let (mut wide, mut parked) = SCRATCH.take();
    let park = parked.at_least(outs.next_multiple_of(TILE_OUTS) * MAX_ROWS * LANES).as_mut_ptr();
    let in_place = match E::as_f32(w) {
        Some(w) => rows < ALIGN_ROWS || (w.addr().is_multiple_of(64) && k.is_multiple_of(LANES)),
        None => rows < WIDEN_ROWS,
    };
    // SAFETY: the buffers are made for these sizes; the rest is the caller's promise.
    unsafe {
        if in_place {
            all_rows(s, x, w, park, y, Extent { rows, outs, k, w_stride: k, y_stride: stride });
        } else {
            let padded = k.next_multiple_of(LANES);
            let wide = wide.at_least(outs * padded).as_mut_ptr();
            for out in 0..outs {
                widen(s, w.add(out * k), wide.add(out * padded), k);
            }
            all_rows(
                s,
                x,
                wide.cast_const(),
                park,
                y,
                Extent { rows, outs, k: padded, w_stride: padded, y_stride: stride },
            );
        }
    }
    SCRATCH.set((wide, parked));
}

/// One row of W as f32, zeros up to whole vectors.
///
/// # Safety
/// `from` holds k values, `to` k rounded up to whole vectors.
#[inline(always)]
unsafe fn widen<S: Simd, E: Element>(s: S, from: *const E, to: *mut f32, k: usize) {
    let mut i = 0;
    // SAFETY: i + 16 <= k, then i + rest == k.
    unsafe {
        while i + LANES <= k {
            s.store(to.add(i), E::load(s, from.add(i)));
            i += LANES;
        }
        if i < k {
            s.store(to.add(i), E::load_partial(s, from.add(i), k - i));
        }
    }
}

/// Sizes and strides of one strip.
#[derive(Clone, Copy)]
struct Extent {
    rows: usize,
    outs: usize,
    k: usize,
    w_stride: usize,
    y_stride: usize,
}

/// # Safety
/// As [`strip`]; `park` has room for 6 vectors per output, in tiles of outputs.
#[inline(always)]
unsafe fn all_rows<S: Simd, E: Element>(s: S, x: *const f32, w: *const E, park: *mut f32, y: *mut f32, e: Extent) {
    let mut row = 0;
    while row < e.rows {
        let tile = S::DOT_ROWS.min(e.rows - row);
        // SAFETY: rows row..row+tile exist.
        unsafe {
            let (x, y) = (x.add(row * e.k.next_multiple_of(LANES)), y.add(row * e.y_stride));
            match tile {
                1 => tile_rows::<S, E, 1>(s, x, w, park, y, e),
                2 => tile_rows::<S, E, 2>(s, x, w, park, y, e),
                3 => tile_rows::<S, E, 3>(s, x, w, park, y, e),
                4 => tile_rows::<S, E, 4>(s, x, w, park, y, e),
                5 => tile_rows::<S, E, 5>(s, x, w, park, y, e),
                _ => tile_rows::<S, E, 6>(s, x, w, park, y, e),
            }
        }
        row += tile;
    }
}

/// One tile of R rows against all outputs, [`DEPTH`] groups of products at a time.
///
/// # Safety
/// As [`all_rows`]; `x` is a packed tile of R rows.
#[inline(always)]
unsafe fn tile_rows<S: Simd, E: Element, const R: usize>(
    s: S,
    x: *const f32,
    w: *const E,
    park: *mut f32,
    y: *mut f32,
    e: Extent,
) {
    let mut start = 0;
    loop {
        let end = e.k.min(start + DEPTH * LANES);
        let span = Span { start, end, last: end == e.k };
        let mut out = 0;
        // SAFETY: out + 4 <= outs, then out < outs; the place of an output tile in `park` is its own.
        unsafe {
            while out + TILE_OUTS <= e.outs {
                let park = park.add(out * MAX_ROWS * LANES);
                tile::<S, E, R, TILE_OUTS>(s, x, w.add(out * e.w_stride), park, y.add(out), e, span);
                out += TILE_OUTS;
            }
            let rest = park.add(out * MAX_ROWS * LANES);
            let mut i = 0;
            while out + i < e.outs {
                tile::<S, E, R, 1>(
                    s,
                    x,
                    w.add((out + i) * e.w_stride),
                    rest.add(i * R * LANES),
                    y.add(out + i),
                    e,
                    span,
                );
                i += 1;
            }
        }
        if span.last {
            return;
        }
        start = end;
    }
}

/// Products start..end of the k; the sums are ready after the last ones.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    last: bool,
}

/// # Safety
/// `x` a packed tile of R rows, `w` N rows at `w_stride`, `park` room for R·N vectors, `y` R × N places.
#[inline(always)]
unsafe fn tile<S: Simd, E: Element, const R: usize, const N: usize>(
    s: S,
    x: *const f32,
    w: *const E,
    park: *mut f32,
    y: *mut f32,
    e: Extent,
    span: Span,
) {
    let mut acc = [[s.zero(); N]; R];
    let mut wv = [s.zero(); N];
    // SAFETY: i + 16 <= end, then i + rest == end <= k; x is padded to whole vectors; start is a multiple of 16.
    unsafe {
        if span.start > 0 {
            for r in 0..R {
                for n in 0..N {
                    acc[r][n] = s.load(park.add((r * N + n) * LANES));
                }
            }
        }
        let mut i = span.start;
        let mut x = x.add(i * R);
        while i + LANES <= span.end {
            for n in 0..N {
                wv[n] = E::load(s, w.add(n * e.w_stride + i));
            }
            for r in 0..R {
                let xv = s.load(x.add(r * LANES));
                for n in 0..N {
                    acc[r][n] = s.mul_add(xv, wv[n], acc[r][n]);
                }
            }
            i += LANES;
            x = x.add(R * LANES);
        }
        if i < span.end {
            for n in 0..N {
                wv[n] = E::load_partial(s, w.add(n * e.w_stride + i), span.end - i);
            }
            for r in 0..R {
                let xv = s.load(x.add(r * LANES));
                for n in 0..N {
                    acc[r][n] = s.mul_add(xv, wv[n], acc[r][n]);
                }
            }
        }
        if !span.last {
            for r in 0..R {
                for n in 0..N {
                    s.store(park.add((r * N + n) * LANES), acc[r][n]);
                }
            }
        } else if N == 4 {
            for r in 0..R {
                let sums = s.sum4([acc[r][0], acc[r][1 % N], acc[r][2 % N], acc[r][3 % N]]);
                std::ptr::copy_nonoverlapping(sums.as_ptr(), y.add(r * e.y_stride), 4);
            }
        } else {
            for r in 0..R {
                for n in 0..N {
                    *y.add(r * e.y_stride + n) = s.sum(acc[r][n]);
                }
            }
        }
    }
}
