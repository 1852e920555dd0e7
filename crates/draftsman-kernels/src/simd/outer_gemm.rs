//! C = A·B for the backward passes, as sums of outer products: vectors run over the contiguous columns of B.
//!
//! Element (i, j) is a sum over blocks of [`DEPTH`] of sums over p ascending, whatever tile, task or thread computes
//! it: no sum is split between threads.
#![expect(clippy::needless_range_loop, reason = "register tiles are indexed by constants in step with pointers")]

use rayon::prelude::*;

use super::aligned::Aligned;
use super::{Element, Kernel, LANES, Level, Simd, run_at};

/// Products added in registers before C is touched.
pub(crate) const DEPTH: usize = 192;
/// Rows of C of one task: a multiple of every level's tile.
const TASK_ROWS: usize = 240;
/// Tiles of rows from which copying a panel of B pays.
const PACK_TILES: usize = 4;
/// The widest tile of any level.
const MAX_WIDTH: usize = 3 * LANES;

/// A matrix `[m, k]` by strides: a(i, p) = values[i·row + p·column].
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// C `[m, n]` = A `[m, k]` · B `[k, n]`, B and C row-major.
pub(crate) fn outer_gemm<E: Element>(
    level: Level,
    a: Strided<'_>,
    b: &[E],
    c: &mut [f32],
    m: usize,
    n: usize,
    k: usize,
) {
    assert!(b.len() == k * n && c.len() == m * n);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        return c.fill(0.0);
    }
    assert!(a.values.len() > (m - 1) * a.row + (k - 1) * a.column);
    let (tile, width) = run_at(level, Shape);
    let mut packed = Aligned::zeros(m.next_multiple_of(tile) * k);
    let packed = &mut packed[..m.next_multiple_of(tile) * k];
    packed.par_chunks_mut(tile * k).enumerate().for_each(|(i, out)| pack_rows(a, i * tile, m, k, tile, out));
    let target = Target(c.as_mut_ptr());
    let row_tasks = m.div_ceil(TASK_ROWS);
    (0..n.div_ceil(width) * row_tasks).into_par_iter().for_each(|task| {
        let (column, first) = (task / row_tasks * width, task % row_tasks * TASK_ROWS);
        let rows = TASK_ROWS.min(m - first);
        let a = &packed[first * k..][..rows.next_multiple_of(tile) * k];
        run_at(level, Task { a, b, c: target, first, rows, column, n, k });
    });
}

/// On the calling thread: c `[m, n]` += A·B, A being packed by [`pack_tile`] at the level of `s`, b `[k, n]` and
/// `k <= DEPTH`.
#[inline(always)]
pub(crate) fn outer_block<S: Simd, E: Element>(s: S, packed: &[f32], b: &[E], c: &mut [f32], m: usize, k: usize) {
    assert!(0 < k && k <= DEPTH && b.len().is_multiple_of(k));
    let n = b.len() / k;
    assert!(packed.len() >= m.next_multiple_of(S::OUTER_ROWS) * k && c.len() >= m * n);
    let mut column = 0;
    while column < n {
        // SAFETY: the assertions; column < n.
        unsafe { panel(s, packed.as_ptr(), b.as_ptr(), c.as_mut_ptr(), Part { rows: m, column, n, k, add: true }) };
        column += S::OUTER_VECTORS * LANES;
    }
}

/// Puts up to a tile of rows (k values at every `stride`) into the layout of [`outer_block`]: `[k, tile]`, zeros for
/// missing rows.
#[inline(always)]
pub(crate) fn pack_tile<S: Simd>(_: S, values: &[f32], stride: usize, rows: usize, k: usize, out: &mut [f32]) {
    let tile = S::OUTER_ROWS;
    let out = &mut out[..tile * k];
    if rows < tile {
        out.fill(0.0);
    }
    for r in 0..rows.min(tile) {
        for (out, v) in out.chunks_exact_mut(tile).zip(&values[r * stride..r * stride + k]) {
            out[r] = *v;
        }
    }
}

/// The tile of a level: rows and columns.
struct Shape;

impl Kernel for Shape {
    type Output = (usize, usize);
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (usize, usize) {
        (S::OUTER_ROWS, S::OUTER_VECTORS * LANES)
    }
}

/// Where the tasks write, each its own tiles.
#[derive(Clone, Copy)]
struct Target(*mut f32);
// SAFETY: only used to write disjoint tiles, while the owner is borrowed mutably.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// Rows first..first+tile of A as `[k, tile]`, zeros past row m.
fn pack_rows(a: Strided<'_>, first: usize, m: usize, k: usize, tile: usize, out: &mut [f32]) {
    let rows = tile.min(m - first);
    if a.row == 1 {
        for (p, out) in out.chunks_exact_mut(tile).enumerate().take(k) {
            let start = first + p * a.column;
            out[..rows].copy_from_slice(&a.values[start..start + rows]);
        }
        return;
    }
    for r in 0..rows {
        let start = (first + r) * a.row;
        for p in 0..k {
            out[p * tile + r] = a.values[start + p * a.column];
        }
    }
}

/// Some rows of C in one panel of columns.
struct Task<'a, E> {
    a: &'a [f32],
    b: &'a [E],
    c: Target,
    first: usize,
    rows: usize,
    column: usize,
    n: usize,
    k: usize,
}

impl<E: Element> Kernel for Task<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { a, b, c, first, rows, column, n, k } = self;
        let tile_row = S::OUTER_ROWS;
        let mut depth = 0;
        while depth < k {
            let part = Part { rows, column, n, k: DEPTH.min(k - depth), add: depth > 0 };
            // SAFETY: made by outer_gemm: `a` holds the packed tiles of these rows, b rows depth.. exist, and c
            // rows first..first+rows are this task's in its columns.
            unsafe {
                panel_strided(
                    s,
                    a.as_ptr().add(depth * tile_row),
                    tile_row * k,
                    b.as_ptr().add(depth * n),
                    c.0.add(first * n),
                    part,
                )
            };
            depth += DEPTH;
        }
    }
}

#[derive(Clone, Copy)]
struct Part {
    rows: usize,
    column: usize,
    /// Row length of B and C.
    n: usize,
    k: usize,
    add: bool,
}

#[repr(align(64))]
struct PackedPanel([f32; DEPTH * MAX_WIDTH]);

/// # Safety
/// As [`panel_strided`] with tiles one after another.
#[inline(always)]
unsafe fn panel<S: Simd, E: Element>(s: S, a: *const f32, b: *const E, c: *mut f32, part: Part) {
    // SAFETY: the caller's promise.
    unsafe { panel_strided(s, a, S::OUTER_ROWS * part.k, b, c, part) }
}

/// # Safety
/// `part.k <= DEPTH`; `a` holds tiles `[k, tile]` at every `a_stride`; `b` rows 0..k of length n; `c` rows 0..rows of
/// length n, writable from `column` for a panel's width (at most to n).
#[inline(always)]
unsafe fn panel_strided<S: Simd, E: Element>(
    s: S,
    a: *const f32,
    a_stride: usize,
    b: *const E,
    c: *mut f32,
    part: Part,
) {
    let Part { rows, column, n, k, .. } = part;
    let width = (S::OUTER_VECTORS * LANES).min(n - column);
    let full = width == S::OUTER_VECTORS * LANES;
    let tiles = rows.div_ceil(S::OUTER_ROWS);
    // SAFETY: rows and columns stay inside what the caller promised; the packed panel holds k·MAX_WIDTH values.
    unsafe {
        let direct = E::as_f32(b);
        match direct {
            Some(b) if full && tiles < PACK_TILES => tiles_of(s, a, a_stride, b.add(column), n, c, part, width),
            _ => {
                let mut packed = PackedPanel([0.0; DEPTH * MAX_WIDTH]);
                let line = S::OUTER_VECTORS * LANES;
                for p in 0..k {
                    let (from, to) = (b.add(p * n + column), packed.0.as_mut_ptr().add(p * line));
                    let mut i = 0;
                    while i + LANES <= width {
                        s.store(to.add(i), E::load(s, from.add(i)));
                        i += LANES;
                    }
                    if i < width {
                        s.store(to.add(i), E::load_partial(s, from.add(i), width - i));
                    }
                }
                tiles_of(s, a, a_stride, packed.0.as_ptr(), line, c, part, width);
            }
        }
    }
}

/// # Safety
/// As [`panel_strided`]; `b` rows of stride `b_stride`, readable for a full panel width.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "pointers and strides of three matrices")]
unsafe fn tiles_of<S: Simd>(
    s: S,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    part: Part,
    width: usize,
) {
    let Part { rows, column, n, k, add } = part;
    let mut row = 0;
    let mut tile = a;
    while row < rows {
        let here = S::OUTER_ROWS.min(rows - row);
        // SAFETY: the caller's promise.
        unsafe {
            let c = c.add(row * n + column);
            match S::OUTER_ROWS {
                8 => micro::<S, 8, 3>(s, tile, b, b_stride, k, c, n, here, width, add),
                6 => micro::<S, 6, 1>(s, tile, b, b_stride, k, c, n, here, width, add),
                _ => micro::<S, 4, 1>(s, tile, b, b_stride, k, c, n, here, width, add),
            }
            tile = tile.add(a_stride);
        }
        row += here;
    }
}

/// # Safety
/// `a` is `[k, M]`, `b` k rows of 16·V values at `b_stride`, `c` writable for `rows` × `width` at stride `n`.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "pointers and strides of three matrices")]
unsafe fn micro<S: Simd, const M: usize, const V: usize>(
    s: S,
    a: *const f32,
    b: *const f32,
    b_stride: usize,
    k: usize,
    c: *mut f32,
    n: usize,
    rows: usize,
    width: usize,
    add: bool,
) {
    let mut acc = [[s.zero(); V]; M];
    let mut bv = [s.zero(); V];
    // SAFETY: the caller's promise.
    unsafe {
        for p in 0..k {
            for v in 0..V {
                bv[v] = s.load(b.add(p * b_stride + v * LANES));
            }
            for m in 0..M {
                let av = s.splat(*a.add(p * M + m));
                for v in 0..V {
                    acc[m][v] = s.mul_add(av, bv[v], acc[m][v]);
                }
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            if m == rows {
                break;
            }
            for (v, acc) in acc.iter().enumerate() {
                let (to, lanes) = (c.add(m * n + v * LANES), width.saturating_sub(v * LANES));
                if lanes >= LANES {
                    s.store(to, if add { s.add(s.load(to), *acc) } else { *acc });
                } else if lanes > 0 {
                    s.store_partial(to, if add { s.add(s.load_partial(to, lanes), *acc) } else { *acc }, lanes);
                }
            }
        }
    }
}
