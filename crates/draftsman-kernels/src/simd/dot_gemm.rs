//! X·Wᵀ as dot products, straight from row-major W.
//!
//! Output (i, j) is Σ over k in one fixed order: lane l of one accumulator takes k ≡ l (mod 16) ascending with fused
//! multiply-add, and the lanes are added by one fixed tree. A register tile of several rows and four outputs only
//! groups such sums to reuse loads, so an output has the same bits in every tile, for any rows, chunk or thread.

use rayon::prelude::*;

use super::{Element, Kernel, LANES, Level, Simd, run_at};

/// Outputs of a register tile.
const TILE_OUTS: usize = 4;
/// Outputs of a strip: the weight rows that stay in the second-level cache while all rows of X pass.
const STRIP: usize = 64;
/// Multiply-adds below which threads cost more than they bring.
const SERIAL_WORK: usize = 1 << 16;

/// `x` `[rows, k]`, `w` `[outs, k]`; `y` gets `[rows, outs]`.
pub(crate) fn dot_gemm<E: Element>(
    level: Level,
    x: &[f32],
    w: &[E],
    y: &mut [f32],
    rows: usize,
    outs: usize,
    k: usize,
) {
    assert!(x.len() == rows * k && w.len() == outs * k && y.len() == rows * outs);
    if rows == 0 || outs == 0 {
        return;
    }
    let target = Target(y.as_mut_ptr());
    let strip = |start: usize, end: usize| {
        let strip =
            Strip { x, w: &w[start * k..end * k], y: target, first: start, stride: outs, rows, outs: end - start, k };
        // SAFETY: strips write columns start..end of y only, and y holds rows × outs values.
        run_at(level, strip);
    };
    if rows * outs * k <= SERIAL_WORK {
        return strip(0, outs);
    }
    // Fewer outputs than would fill the strips of all threads: smaller strips. No result depends on the choice.
    let fair = outs.div_ceil(2 * rayon::current_num_threads()).next_multiple_of(TILE_OUTS);
    let size = STRIP.min(fair);
    (0..outs.div_ceil(size)).into_par_iter().for_each(|i| strip(i * size, outs.min((i + 1) * size)));
}

/// One block of outputs on the calling thread: `y[row · stride + out]` for `x` `[rows, k]` and `w` `[outs, k]`.
#[inline(always)]
pub(crate) fn dot_block<S: Simd, E: Element>(
    s: S,
    x: &[f32],
    w: &[E],
    y: &mut [f32],
    rows: usize,
    outs: usize,
    stride: usize,
    k: usize,
) {
    assert!(x.len() == rows * k && w.len() == outs * k && outs <= stride);
    assert!(rows == 0 || y.len() >= (rows - 1) * stride + outs);
    // SAFETY: the assertions.
    unsafe { block(s, x.as_ptr(), w.as_ptr(), y.as_mut_ptr(), rows, outs, stride, k) }
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
    rows: usize,
    outs: usize,
    k: usize,
}

impl<E: Element> Kernel for Strip<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, w, y, first, stride, rows, outs, k } = self;
        // SAFETY: made by dot_gemm with x [rows, k], w [outs, k] and y [rows, stride] from column `first`.
        unsafe { block(s, x.as_ptr(), w.as_ptr(), y.0.add(first), rows, outs, stride, k) }
    }
}

/// # Safety
/// `x` holds rows·k values, `w` outs·k, and `y` is writable at row·stride + out for every row and out.
#[inline(always)]
unsafe fn block<S: Simd, E: Element>(
    s: S,
    x: *const f32,
    w: *const E,
    y: *mut f32,
    rows: usize,
    outs: usize,
    stride: usize,
    k: usize,
) {
    let mut row = 0;
    while row < rows {
        let tile = S::DOT_ROWS.min(rows - row);
        // SAFETY: rows row..row+tile exist.
        unsafe {
            let (x, y) = (x.add(row * k), y.add(row * stride));
            match tile {
                1 => row_tile::<S, E, 1>(s, x, w, y, outs, stride, k),
                2 => row_tile::<S, E, 2>(s, x, w, y, outs, stride, k),
                3 => row_tile::<S, E, 3>(s, x, w, y, outs, stride, k),
                4 => row_tile::<S, E, 4>(s, x, w, y, outs, stride, k),
                5 => row_tile::<S, E, 5>(s, x, w, y, outs, stride, k),
                _ => row_tile::<S, E, 6>(s, x, w, y, outs, stride, k),
            }
        }
        row += tile;
    }
}

/// # Safety
/// As [`block`] with R rows.
#[inline(always)]
unsafe fn row_tile<S: Simd, E: Element, const R: usize>(
    s: S,
    x: *const f32,
    w: *const E,
    y: *mut f32,
    outs: usize,
    stride: usize,
    k: usize,
) {
    let mut out = 0;
    // SAFETY: out + 4 <= outs, then out < outs.
    unsafe {
        while out + TILE_OUTS <= outs {
            let acc = accumulate::<S, E, R, TILE_OUTS>(s, x, w.add(out * k), k);
            for r in 0..R {
                let sums = s.sum4(acc[r]);
                std::ptr::copy_nonoverlapping(sums.as_ptr(), y.add(r * stride + out), TILE_OUTS);
            }
            out += TILE_OUTS;
        }
        while out < outs {
            let acc = accumulate::<S, E, R, 1>(s, x, w.add(out * k), k);
            for r in 0..R {
                *y.add(r * stride + out) = s.sum(acc[r][0]);
            }
            out += 1;
        }
    }
}

/// # Safety
/// `x` holds R·k values, `w` N·k.
#[inline(always)]
unsafe fn accumulate<S: Simd, E: Element, const R: usize, const N: usize>(
    s: S,
    x: *const f32,
    w: *const E,
    k: usize,
) -> [[S::F; N]; R] {
    let mut acc = [[s.zero(); N]; R];
    let mut wv = [s.zero(); N];
    let mut i = 0;
    // SAFETY: i + 16 <= k, then i + rest == k.
    unsafe {
        while i + LANES <= k {
            for n in 0..N {
                wv[n] = E::load(s, w.add(n * k + i));
            }
            for r in 0..R {
                let xv = s.load(x.add(r * k + i));
                for n in 0..N {
                    acc[r][n] = s.mul_add(xv, wv[n], acc[r][n]);
                }
            }
            i += LANES;
        }
        if i < k {
            let rest = k - i;
            for n in 0..N {
                wv[n] = E::load_partial(s, w.add(n * k + i), rest);
            }
            for r in 0..R {
                let xv = s.load_partial(x.add(r * k + i), rest);
                for n in 0..N {
                    acc[r][n] = s.mul_add(xv, wv[n], acc[r][n]);
                }
            }
        }
    }
    acc
}
