//! Slice functions for use inside a [`super::Kernel`]: the same bits for an element wherever it stands in its slice
//! (element-wise ones) and whatever surrounds the slice (reductions).

use super::{LANES, Simd};

/// Σ aᵢ·bᵢ: lane l takes i ≡ l (mod 16) with fused multiply-add, then [`Simd::sum`].
#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let mut acc = s.zero();
    let mut i = 0;
    // SAFETY: i + 16 <= n, then i + rest == n: both slices hold at least n values.
    unsafe {
        while i + LANES <= n {
            acc = s.mul_add(s.load(a.as_ptr().add(i)), s.load(b.as_ptr().add(i)), acc);
            i += LANES;
        }
        if i < n {
            let rest = n - i;
            acc = s.mul_add(s.load_partial(a.as_ptr().add(i), rest), s.load_partial(b.as_ptr().add(i), rest), acc);
        }
    }
    s.sum(acc)
}

/// y += alpha·x
#[inline(always)]
pub(crate) fn axpy<S: Simd>(s: S, alpha: f32, x: &[f32], y: &mut [f32]) {
    let a = s.splat(alpha);
    map2(
        s,
        x,
        y,
        #[inline(always)]
        |x, y| s.mul_add(a, x, y),
    );
}

/// y *= alpha
#[inline(always)]
pub(crate) fn scale<S: Simd>(s: S, alpha: f32, y: &mut [f32]) {
    let a = s.splat(alpha);
    map(
        s,
        y,
        #[inline(always)]
        |y| s.mul(a, y),
    );
}

/// The largest value; -inf of nothing.
#[inline(always)]
pub(crate) fn max<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = s.splat(f32::NEG_INFINITY);
    fold(
        s,
        x,
        f32::NEG_INFINITY,
        #[inline(always)]
        |v| acc = s.max(v, acc),
    );
    s.max_lane(acc)
}

/// xᵢ ← exp(xᵢ − shift); returns Σ of the results in the order of [`dot`].
#[inline(always)]
pub(crate) fn exp_shifted_sum<S: Simd>(s: S, x: &mut [f32], shift: f32) -> f32 {
    let shift = s.splat(shift);
    let mut acc = s.zero();
    let (whole, rest) = x.split_at_mut(x.len() / LANES * LANES);
    map(
        s,
        whole,
        #[inline(always)]
        |v| {
            let e = exp(s, s.sub(v, shift));
            acc = s.add(acc, e);
            e
        },
    );
    if !rest.is_empty() {
        // Lanes past the end must add nothing.
        let mut tail = [f32::NEG_INFINITY; LANES];
        tail[..rest.len()].copy_from_slice(rest);
        // SAFETY: 16 values.
        let e = exp(s, s.sub(unsafe { s.load(tail.as_ptr()) }, shift));
        acc = s.add(acc, e);
        // SAFETY: rest.len() < 16 values.
        unsafe { s.store_partial(rest.as_mut_ptr(), e, rest.len()) };
    }
    s.sum(acc)
}

/// e^x per lane, within 2 ulp: 0 below -87.34 (no denormals), inf above 88.72, NaN of NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const LOW: f32 = -87.336_54;
    const HIGH: f32 = 88.722_83;
    // NaN must survive the clamp: `max` and `min` return their second argument on NaN.
    let c = s.min(s.splat(HIGH), s.max(s.splat(LOW), x));
    // 2^127·2^0.99… instead of the unrepresentable 2^128.
    let n = s.min(s.splat(127.0), s.round(s.mul(c, s.splat(std::f32::consts::LOG2_E))));
    // ln 2 in two parts, the first with few bits so that n·part is exact.
    let r = s.mul_add(n, s.splat(-355.0 / 512.0), c);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    // Minimax for (e^r - 1 - r)/r² on ±ln2/2 (Cephes expf).
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.mul_add(p, r, s.splat(coefficient));
    }
    let p = s.add(s.mul_add(s.mul(r, r), p, r), s.splat(1.0));
    let y = s.mul(p, s.exp2_integral(n));
    let y = s.select_lt(x, s.splat(LOW), s.zero(), y);
    s.select_lt(s.splat(HIGH), x, s.splat(f32::INFINITY), y)
}

/// 1 / (1 + e^-x) per lane.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.zero(), x))))
}

/// tanh per lane: 1 − 2/(e^2x + 1), absolute error within 2e-7.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    let e = exp(s, s.add(x, x));
    s.sub(one, s.div(s.splat(2.0), s.add(e, one)))
}

/// yᵢ ← f(yᵢ)
#[inline(always)]
pub(crate) fn map<S: Simd>(s: S, y: &mut [f32], mut f: impl FnMut(S::F) -> S::F) {
    let (n, p) = (y.len(), y.as_mut_ptr());
    let mut i = 0;
    // SAFETY: i + 16 <= n, then i + rest == n.
    unsafe {
        while i + LANES <= n {
            s.store(p.add(i), f(s.load(p.add(i))));
            i += LANES;
        }
        if i < n {
            let rest = n - i;
            s.store_partial(p.add(i), f(s.load_partial(p.add(i), rest)), rest);
        }
    }
}

/// yᵢ ← f(xᵢ, yᵢ) over the shorter length.
#[inline(always)]
pub(crate) fn map2<S: Simd>(s: S, x: &[f32], y: &mut [f32], mut f: impl FnMut(S::F, S::F) -> S::F) {
    let n = x.len().min(y.len());
    let (x, y) = (x.as_ptr(), y.as_mut_ptr());
    let mut i = 0;
    // SAFETY: i + 16 <= n, then i + rest == n.
    unsafe {
        while i + LANES <= n {
            s.store(y.add(i), f(s.load(x.add(i)), s.load(y.add(i))));
            i += LANES;
        }
        if i < n {
            let rest = n - i;
            s.store_partial(y.add(i), f(s.load_partial(x.add(i), rest), s.load_partial(y.add(i), rest)), rest);
        }
    }
}

/// Visits x sixteen lanes at a time, the last vector filled up with `pad`.
#[inline(always)]
pub(crate) fn fold<S: Simd>(s: S, x: &[f32], pad: f32, mut f: impl FnMut(S::F)) {
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for c in chunks {
        // SAFETY: a chunk has 16 values.
        f(unsafe { s.load(c.as_ptr()) });
    }
    if !rest.is_empty() {
        let mut tail = [pad; LANES];
        tail[..rest.len()].copy_from_slice(rest);
        // SAFETY: 16 values.
        f(unsafe { s.load(tail.as_ptr()) });
    }
}
