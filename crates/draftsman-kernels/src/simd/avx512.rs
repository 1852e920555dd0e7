//! One 512-bit register.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Only [`enter`] makes one, so holding one proves AVX-512 F/BW/DQ/VL, AVX2 and FMA: this is the SAFETY of every
/// intrinsic below. Pointer arguments are valid by the contracts of [`Simd`].
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// # Safety
/// The CPU has the features named here.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    (1u32 << n).wrapping_sub(1) as __mmask16
}

/// Quarters of `v` added as `(q0+q2)+(q1+q3)`.
#[inline(always)]
unsafe fn fold_quarters(v: __m512) -> __m128 {
    unsafe {
        let half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half))
    }
}

impl Simd for Avx512 {
    type F = __m512;
    const DOT_ROWS: usize = 6;
    const OUTER_ROWS: usize = 8;
    const OUTER_VECTORS: usize = 3;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::F {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> Self::F {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> Self::F {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::F, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn exp2_integral(self, n: Self::F) -> Self::F {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        unsafe {
            let l = fold_quarters(v);
            let pair = _mm_add_ps(l, _mm_movehl_ps(l, l));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [Self::F; 4]) -> [f32; 4] {
        // Quarters must be folded before the lanes inside them, or the additions would associate differently:
        // fold two vectors at once (their quarter pairs share one register), then transpose-add the four.
        unsafe {
            // ab = [a0 a1 b0 b1] + [a2 a3 b2 b3] in quarters
            let ab =
                _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            let cd =
                _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(c, d), _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d));
            // [a b c d] in quarters
            let q = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            let pair = _mm512_add_ps(q, _mm512_permute_ps::<0b01_00_11_10>(q));
            let one = _mm512_add_ps(pair, _mm512_permute_ps::<0b10_11_00_01>(pair));
            // lane 0 of each quarter
            let packed = _mm512_maskz_compress_ps(0b0001_0001_0001_0001, one);
            let mut out = [0f32; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(packed));
            out
        }
    }
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        unsafe {
            let h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps::<1>(h));
            let p = _mm_max_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_max_ss(p, _mm_shuffle_ps::<1>(p, p)))
        }
    }
}
