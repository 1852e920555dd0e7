//! Stored element types of weights.

use half::{bf16, f16};

use super::{LANES, Simd};

/// An element that sixteen lanes can be widened from.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The value 0, to pad the end of a row.
    const ZERO: Self;

    /// Sixteen values as f32.
    ///
    /// # Safety
    /// `p` is readable for 16 values.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F;

    /// The first `n < 16` values, the other lanes 0.
    ///
    /// # Safety
    /// `p` is readable for `n` values.
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, p: *const Self, n: usize) -> S::F {
        let mut tail = [Self::ZERO; LANES];
        // SAFETY: n < 16 values are readable at p (caller); the copy is 16 long.
        unsafe {
            std::ptr::copy_nonoverlapping(p, tail.as_mut_ptr(), n);
            Self::load(s, tail.as_ptr())
        }
    }

    /// The pointer itself where no widening is needed.
    #[inline(always)]
    fn as_f32(_: *const Self) -> Option<*const f32> {
        None
    }

    /// This value as f32.
    fn widen(self) -> f32;
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: the caller's promise is the same.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, p: *const Self, n: usize) -> S::F {
        // SAFETY: the caller's promise is the same.
        unsafe { s.load_partial(p, n) }
    }
    #[inline(always)]
    fn as_f32(p: *const Self) -> Option<*const f32> {
        Some(p)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: the caller's promise is the same.
        unsafe { s.load_bf16(p) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f16 {
    const ZERO: Self = f16::ZERO;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: the caller's promise is the same.
        unsafe { s.load_f16(p) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}
