//! Arrays of sixteen, for every CPU. On targets whose baseline has fused multiply-add (aarch64) it is used.

use super::{LANES, Simd};

#[derive(Clone, Copy)]
pub(super) struct Portable(());

impl Portable {
    pub(super) fn new() -> Self {
        Self(())
    }
}

const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = [f32; LANES];
    const DOT_ROWS: usize = 2;
    const OUTER_ROWS: usize = 4;
    const OUTER_VECTORS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: readable for 16 values (caller); an array of f32 has f32's alignment.
        unsafe { *p.cast::<[f32; LANES]>() }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::F {
        // SAFETY: readable for n values (caller).
        std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> Self::F {
        // SAFETY: readable for 16 values (caller).
        std::array::from_fn(|i| unsafe { *p.add(i) }.to_f32())
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> Self::F {
        // SAFETY: readable for 16 values (caller).
        std::array::from_fn(|i| unsafe { *p.add(i) }.to_f32())
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: writable for 16 values (caller).
        unsafe { *p.cast::<[f32; LANES]>() = v }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::F, n: usize) {
        for (i, x) in v.iter().enumerate().take(n) {
            // SAFETY: writable for n values (caller).
            unsafe { *p.add(i) = *x }
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| if FUSED { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] })
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // Adding 1.5·2^23 leaves no fraction bits; exact for |x| < 2^22, enough for exponents, and it vectorises
        // on machines without a rounding instruction. Larger values are integers or saturate in exp2_integral.
        a.map(|x| if x.abs() < 4_194_304.0 { (x + 12_582_912.0) - 12_582_912.0 } else { x })
    }
    #[inline(always)]
    fn exp2_integral(self, n: Self::F) -> Self::F {
        n.map(|x| f32::from_bits(((x as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let l: [f32; 4] = std::array::from_fn(|i| (v[i] + v[i + 8]) + (v[i + 4] + v[i + 12]));
        (l[0] + l[2]) + (l[1] + l[3])
    }
    #[inline(always)]
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4] {
        v.map(|x| self.sum(x))
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        v.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
}
