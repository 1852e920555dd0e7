//! Sixteen logical f32 lanes on every machine.
//!
//! A kernel is written once against [`Simd`] and compiled three times: AVX-512 (one register), AVX2 + FMA (two
//! registers) and portable (an array the compiler vectorises as it can). Because the lane count and the reduction
//! tree are the same everywhere, AVX-512 and AVX2 give the same bits; portable code on x86 has no fused
//! multiply-add and differs by rounding. Within one machine the level never changes, so bits do not depend on it.

pub(crate) mod aligned;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod dot_gemm;
pub(crate) mod element;
pub(crate) mod math;
pub(crate) mod outer_gemm;
mod portable;

use std::sync::OnceLock;

pub(crate) use element::Element;

/// Lanes of one logical vector.
pub(crate) const LANES: usize = 16;

/// Arithmetic on [`LANES`] f32 lanes. A value of an implementing type proves that the CPU has the instructions
/// (it is only made after detection), so the methods without pointers are safe.
///
/// Everything is `#[inline(always)]`: it must end up inside the `#[target_feature]` entry of [`run_at`].
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen lanes.
    type F: Copy + Send + Sync;

    /// Rows × outputs of the register tile of the dot-form product. Tiles only group independent results:
    /// they don't touch any result's bits.
    const DOT_ROWS: usize;
    /// Rows of the register tile of the outer-product kernel.
    const OUTER_ROWS: usize;
    /// Vectors (of 16 columns) of the register tile of the outer-product kernel.
    const OUTER_VECTORS: usize;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// All lanes 0.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }
    /// Lanes from memory.
    ///
    /// # Safety
    /// `p` is readable for 16 values.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// The first `n < 16` lanes from memory, the others 0.
    ///
    /// # Safety
    /// `p` is readable for `n` values.
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::F;
    /// As [`Simd::load`] from bf16.
    ///
    /// # Safety
    /// `p` is readable for 16 values.
    unsafe fn load_bf16(self, p: *const half::bf16) -> Self::F;
    /// As [`Simd::load`] from f16.
    ///
    /// # Safety
    /// `p` is readable for 16 values.
    unsafe fn load_f16(self, p: *const half::f16) -> Self::F;
    /// Lanes to memory.
    ///
    /// # Safety
    /// `p` is writable for 16 values.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    /// The first `n < 16` lanes to memory.
    ///
    /// # Safety
    /// `p` is writable for `n` values.
    unsafe fn store_partial(self, p: *mut f32, v: Self::F, n: usize);

    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the machine has it.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: a NaN in either gives `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: a NaN in either gives `b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Per lane `if a < b { yes } else { no }`.
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// Nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// 2^n for integral lanes in -126..=127 (anything for others).
    fn exp2_integral(self, n: Self::F) -> Self::F;

    /// Sum of the lanes: with quarters q of four lanes, `((q0+q2)+(q1+q3))`, then `(l0+l2)+(l1+l3)` inside.
    fn sum(self, v: Self::F) -> f32;
    /// [`Simd::sum`] of four vectors at once, same bits.
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4];
    /// Largest lane (no NaN expected).
    fn max_lane(self, v: Self::F) -> f32;
}

/// Instruction sets a kernel can run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Portable,
    Avx2,
    Avx512,
}

/// Code that runs at some level: the closure of [`run_at`], as a trait because it is generic over the level.
/// Implement `run` with `#[inline(always)]`.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// The best level of this machine; `DRAFTSMAN_SIMD=portable|avx2|avx512` can lower it.
pub(crate) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let wanted = match std::env::var("DRAFTSMAN_SIMD").as_deref() {
            Ok("portable") => Level::Portable,
            Ok("avx2") => Level::Avx2,
            _ => Level::Avx512,
        };
        wanted.min(detected())
    })
}

/// The best level the CPU has.
pub(crate) fn detected() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        if avx2 && avx512 {
            return Level::Avx512;
        }
        if avx2 {
            return Level::Avx2;
        }
    }
    Level::Portable
}

/// Runs a kernel at the machine's level.
#[inline]
pub(crate) fn run<K: Kernel>(kernel: K) -> K::Output {
    run_at(level(), kernel)
}

/// Runs a kernel at `level`, or at the detected one where that is lower.
#[inline]
pub(crate) fn run_at<K: Kernel>(level: Level, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    match level.min(detected()) {
        // SAFETY: `detected` saw every feature that the entry enables.
        Level::Avx512 => unsafe { avx512::enter(kernel) },
        // SAFETY: as above.
        Level::Avx2 => unsafe { avx2::enter(kernel) },
        Level::Portable => kernel.run(portable::Portable::new()),
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        kernel.run(portable::Portable::new())
    }
}
