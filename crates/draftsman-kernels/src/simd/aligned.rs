//! Buffers that start at a cache line: a 64-byte load that crosses two lines costs twice.

use std::ops::{Deref, DerefMut};

use super::LANES;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// f32 values starting at a 64-byte boundary. The length is a multiple of 16.
#[derive(Default)]
pub(crate) struct Aligned(Vec<Line>);

impl Aligned {
    /// At least `n` zeros.
    pub(crate) fn zeros(n: usize) -> Self {
        Self(vec![Line([0.0; LANES]); n.div_ceil(LANES)])
    }

    /// At least `n` values, whatever was in them, kept from an earlier use where possible.
    pub(crate) fn at_least(&mut self, n: usize) -> &mut [f32] {
        let lines = n.div_ceil(LANES);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; LANES]));
        }
        &mut self[..n]
    }
}

impl std::fmt::Debug for Aligned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aligned({} values)", self.len())
    }
}

impl Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: a Line is 16 f32 and nothing else.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * LANES) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * LANES) }
    }
}
