//! Two 256-bit registers: the same sixteen lanes and the same bits as AVX-512.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Only [`enter`] makes one, so holding one proves AVX2, FMA and F16C: this is the SAFETY of every intrinsic below.
/// Pointer arguments are valid by the contracts of [`Simd`].
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(super) struct Pair(__m256, __m256);

/// # Safety
/// The CPU has the features named here.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane)
    }
}

#[inline(always)]
unsafe fn widen_bf16(p: *const half::bf16) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) }
}

#[inline(always)]
unsafe fn exp2_integral(n: __m256) -> __m256 {
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

impl Simd for Avx2 {
    type F = Pair;
    const DOT_ROWS: usize = 2;
    const OUTER_ROWS: usize = 6;
    const OUTER_VECTORS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        unsafe { Pair(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        unsafe { Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::F {
        unsafe {
            // Masked-off lanes are not touched, so the address past the end is never read.
            Pair(_mm256_maskload_ps(p, mask(n)), _mm256_maskload_ps(p.wrapping_add(8), mask(n.saturating_sub(8))))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> Self::F {
        unsafe { Pair(widen_bf16(p), widen_bf16(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> Self::F {
        unsafe { Pair(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::F, n: usize) {
        unsafe {
            _mm256_maskstore_ps(p, mask(n), v.0);
            _mm256_maskstore_ps(p.wrapping_add(8), mask(n.saturating_sub(8)), v.1);
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { Pair(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { Pair(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        unsafe {
            Pair(
                _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { Pair(_mm256_round_ps::<NEAREST>(a.0), _mm256_round_ps::<NEAREST>(a.1)) }
    }
    #[inline(always)]
    fn exp2_integral(self, n: Self::F) -> Self::F {
        unsafe { Pair(exp2_integral(n.0), exp2_integral(n.1)) }
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        unsafe {
            let half = _mm256_add_ps(v.0, v.1);
            let l = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let pair = _mm_add_ps(l, _mm_movehl_ps(l, l));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
    #[inline(always)]
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4] {
        v.map(|x| self.sum(x))
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        unsafe {
            let h = _mm256_max_ps(v.0, v.1);
            let q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps::<1>(h));
            let p = _mm_max_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_max_ss(p, _mm_shuffle_ps::<1>(p, p)))
        }
    }
}
