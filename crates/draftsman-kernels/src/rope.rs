//! Rotary position embedding, the rotate-half form over a head or its first values.

use std::f64::consts::PI;
use std::sync::{Arc, PoisonError, RwLock};

use burn::tensor::{Tensor, TensorData};
use draftsman_contract::{RopeScaling, RopeSpec};

use crate::flex::on_flex;

/// Positions whose cosines and sines are remembered; later ones are computed on each call.
const REMEMBERED: usize = 1 << 16;

/// Inverse frequencies of the rotated values of a head, and the cosines and sines of the positions asked for so far.
///
/// Frequencies are f32 numbers computed step by step as Hugging Face transformers does, and an angle is the f32
/// product position · frequency: at position 200,000 any other rounding would turn the head by a visible angle.
/// Clones share what they remember.
#[derive(Clone)]
pub struct RopeTable {
    inverse_frequencies: Arc<[f32]>,
    attention_factor: f32,
    /// Per position: rotary_dim/2 cosines, then as many sines.
    remembered: Arc<RwLock<Arc<Vec<f32>>>>,
}

impl std::fmt::Debug for RopeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RopeTable")
            .field("rotary_dim", &self.rotary_dim())
            .field("attention_factor", &self.attention_factor)
            .finish_non_exhaustive()
    }
}

impl RopeTable {
    /// The table of heads whose first `rotary_dim` values are rotated: all of them, or fewer in models with a partial
    /// rotary factor. Checked numbers are expected ([`RopeSpec::problems`]).
    ///
    /// # Panics
    /// When `rotary_dim` is odd: its halves could not be rotated into each other.
    pub fn new(spec: &RopeSpec, rotary_dim: usize) -> Self {
        assert!(rotary_dim.is_multiple_of(2), "rope: rotary_dim {rotary_dim} is odd, its halves can't be rotated");
        let (inverse_frequencies, attention_factor) = frequencies(spec, rotary_dim);
        Self { inverse_frequencies: inverse_frequencies.into(), attention_factor, remembered: Arc::default() }
    }

    /// Values of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inverse_frequencies.len()
    }

    /// `[rotary_dim / 2]`, radians per position.
    pub fn inverse_frequencies(&self) -> &[f32] {
        &self.inverse_frequencies
    }

    /// Factor on every cosine and sine (YaRN; otherwise 1).
    pub fn attention_factor(&self) -> f32 {
        self.attention_factor
    }

    /// `[positions, rotary_dim]`: per position rotary_dim/2 cosines, then as many sines.
    fn cosines_and_sines(&self, positions: &[u32]) -> Vec<f32> {
        let width = self.rotary_dim();
        let known = self.remember(positions);
        let mut rows = vec![0f32; positions.len() * width];
        if width == 0 {
            return rows;
        }
        for (&position, row) in positions.iter().zip(rows.chunks_exact_mut(width)) {
            let start = position as usize * width;
            match known.get(start..start + width) {
                Some(known) => row.copy_from_slice(known),
                None => self.compute(position, row),
            }
        }
        rows
    }

    fn compute(&self, position: u32, row: &mut [f32]) {
        let (cosines, sines) = row.split_at_mut(self.inverse_frequencies.len());
        for ((cosine, sine), &frequency) in cosines.iter_mut().zip(sines).zip(&*self.inverse_frequencies) {
            // The angle is rounded to f32 (see the type); its functions in f64 are the same on every machine.
            let (s, c) = f64::from(position as f32 * frequency).sin_cos();
            *cosine = c as f32 * self.attention_factor;
            *sine = s as f32 * self.attention_factor;
        }
    }

    /// Grows the memory to hold the positions, in doublings and within its limit.
    fn remember(&self, positions: &[u32]) -> Arc<Vec<f32>> {
        let width = self.rotary_dim();
        let known = self.remembered.read().unwrap_or_else(PoisonError::into_inner).clone();
        let wanted = positions.iter().map(|&p| p as usize + 1).filter(|&p| p <= REMEMBERED).max().unwrap_or(0);
        if wanted * width <= known.len() {
            return known;
        }
        let mut grown = Vec::clone(&known);
        let from = grown.len() / width;
        let to = wanted.next_power_of_two().clamp(256, REMEMBERED);
        grown.resize(to * width, 0.0);
        for (position, row) in grown.chunks_exact_mut(width).enumerate().skip(from) {
            self.compute(position as u32, row);
        }
        let grown = Arc::new(grown);
        let mut remembered = self.remembered.write().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() < grown.len() {
            *remembered = Arc::clone(&grown);
        }
        grown
    }
}

/// Inverse frequencies and attention factor, in transformers' order of f32 operations (Python floats are f64; a
/// Python float that meets a tensor is rounded to f32 first).
fn frequencies(spec: &RopeSpec, rotary_dim: usize) -> (Vec<f32>, f32) {
    let base = f64::from(spec.theta as f32);
    // The power correctly rounded to f32.
    let powers: Vec<f32> =
        (0..rotary_dim / 2).map(|j| base.powf(f64::from(2.0 * j as f32 / rotary_dim as f32)) as f32).collect();
    let plain = powers.iter().map(|power| 1.0 / power);
    match &spec.scaling {
        None => (plain.collect(), 1.0),
        Some(RopeScaling::Linear { factor }) => (plain.map(|f| f / *factor as f32).collect(), 1.0),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        }) => {
            let original = *original as f64;
            let (longest, shortest) = ((original / low) as f32, (original / high) as f32);
            let scaled = plain.map(|f| {
                let wavelength = (2.0 * PI) as f32 / f;
                if wavelength > longest {
                    f / *factor as f32
                } else if wavelength < shortest {
                    f
                } else {
                    let smooth = (original as f32 / wavelength - *low as f32) / (high - low) as f32;
                    (1.0 - smooth) * f / *factor as f32 + smooth * f
                }
            });
            (scaled.collect(), 1.0)
        }
        Some(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast,
            beta_slow,
            attention_factor,
            mscale,
            mscale_all_dim,
            truncate,
        }) => {
            let m = |weight: f64| if *factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
            let attention_factor = attention_factor.unwrap_or_else(|| match (mscale, mscale_all_dim) {
                (Some(a), Some(b)) if *a != 0.0 && *b != 0.0 => m(*a) / m(*b),
                _ => m(1.0),
            });
            let dim = rotary_dim as f64;
            let turning =
                |rotations: f64| dim * (*original as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * spec.theta.ln());
            let (mut low, mut high) = (turning(*beta_fast), turning(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
            if low == high {
                high += 0.001;
            }
            let scaled = powers.iter().enumerate().map(|(j, power)| {
                let ramp = ((j as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let keep = 1.0 - ramp;
                1.0 / (*factor as f32 * power) * (1.0 - keep) + 1.0 / power * keep
            });
            (scaled.collect(), attention_factor as f32)
        }
    }
}

/// Rotates the first `rotary_dim` values of every head (the table's width) by its row's position and passes the others
/// on, differentiable in `x`: with halves (a, b) of the rotated values and the position's cosines c and sines s,
/// `(a·c − b·s, b·c + a·s)`.
///
/// * `x` `[rows, heads, head_dim]`
/// * `positions` one per row
///
/// Returns `[rows, heads, head_dim]`. On the CPU device a row's result depends on that row and its position alone.
///
/// # Panics
/// When a head is narrower than the table or the positions are not one per row.
pub fn rope(x: Tensor<3>, table: &RopeTable, positions: &[u32]) -> Tensor<3> {
    check(&x, table, positions);
    if on_flex(&x) {
        let turns = cpu::Turns { values: table.cosines_and_sines(positions), width: table.rotary_dim() };
        cpu::rope(x, turns)
    } else {
        rope_reference(x, table, positions)
    }
}

/// [`rope`] in burn's own operations: any device, the oracle of the tests.
///
/// # Panics
/// As [`rope`].
pub fn rope_reference(x: Tensor<3>, table: &RopeTable, positions: &[u32]) -> Tensor<3> {
    check(&x, table, positions);
    let [rows, _, head_dim] = x.dims();
    let width = table.rotary_dim();
    if rows == 0 || width == 0 {
        return x;
    }
    let half = width / 2;
    let turns = TensorData::new(table.cosines_and_sines(positions), [rows, 1, width]);
    let turns = Tensor::<3>::from_data(turns, &x.device()).cast(x.dtype());
    let (cosines, sines) = (turns.clone().narrow(2, 0, half), turns.narrow(2, half, half));
    let (a, b) = (x.clone().narrow(2, 0, half), x.clone().narrow(2, half, half));
    let mut parts = vec![a.clone() * cosines.clone() - b.clone() * sines.clone(), b * cosines + a * sines];
    if width < head_dim {
        parts.push(x.narrow(2, width, head_dim - width));
    }
    Tensor::cat(parts, 2)
}

fn check(x: &Tensor<3>, table: &RopeTable, positions: &[u32]) {
    let [rows, heads, head_dim] = x.dims();
    let width = table.rotary_dim();
    assert!(
        width <= head_dim,
        "rope: x is [{rows}, {heads}, {head_dim}], but the table rotates {width} values of a head"
    );
    assert_eq!(rows, positions.len(), "rope: x is [{rows}, {heads}, {head_dim}], one position per row is needed");
}

mod cpu {
    use std::sync::Arc;

    use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
    use burn::tensor::Tensor;
    use burn_flex::FlexTensor;
    use rayon::prelude::*;

    use crate::flex::{tensor, values};
    use crate::simd::{Kernel, Simd, run};

    /// Rows of one unit of work.
    const CHUNK: usize = 64;

    #[backend_extension(Autodiff, Flex)]
    trait RopeOps: Backend {
        fn cpu_rope(x: FloatTensor<Self>, turns: Arc<Turns>) -> FloatTensor<Self>;
    }

    /// Cosines and sines, `[rows, width]`.
    #[derive(Debug)]
    pub(super) struct Turns {
        pub values: Vec<f32>,
        pub width: usize,
    }

    pub(super) fn rope(x: Tensor<3>, turns: Turns) -> Tensor<3> {
        Tensor::from_dispatch(Dispatch::cpu_rope(x.into_dispatch(), Arc::new(turns)))
    }

    impl RopeOps for Flex {
        fn cpu_rope(x: FlexTensor, turns: Arc<Turns>) -> FlexTensor {
            rotate(x, &turns, 1.0)
        }
    }

    /// Rotates forward (`direction` 1) or back (−1: the transposed rotation, which is the gradient's).
    fn rotate(x: FlexTensor, turns: &Turns, direction: f32) -> FlexTensor {
        let x = x.to_contiguous();
        let [rows, heads, head_dim] = x.shape().dims();
        let Turns { values: turns, width } = turns;
        let width = *width;
        if width == 0 {
            return x;
        }
        let mut y = vec![0f32; rows * heads * head_dim];
        let (x_size, turn_size) = (CHUNK * heads * head_dim, CHUNK * width);
        if x_size > 0 {
            let part = |((x, turns), y): ((&[f32], &[f32]), &mut [f32])| {
                run(Rotate { x, turns, y, heads, head_dim, width, direction });
            };
            if rows <= CHUNK {
                part(((values(&x), turns.as_slice()), &mut y));
            } else {
                (values(&x).par_chunks(x_size).zip(turns.par_chunks(turn_size)))
                    .zip(y.par_chunks_mut(x_size))
                    .for_each(part);
            }
        }
        tensor(y, [rows, heads, head_dim])
    }

    struct Rotate<'a> {
        x: &'a [f32],
        turns: &'a [f32],
        y: &'a mut [f32],
        heads: usize,
        head_dim: usize,
        width: usize,
        direction: f32,
    }

    impl Kernel for Rotate<'_> {
        type Output = ();

        /// Plain arithmetic without fused steps: the compiler vectorises it and every element has the same rounding.
        #[inline(always)]
        fn run<S: Simd>(self, _: S) {
            let Self { x, turns, y, heads, head_dim, width, direction } = self;
            let (row, half) = (heads * head_dim, width / 2);
            for ((x, y), turns) in x.chunks_exact(row).zip(y.chunks_exact_mut(row)).zip(turns.chunks_exact(width)) {
                let (cosines, sines) = turns.split_at(half);
                for (x, y) in x.chunks_exact(head_dim).zip(y.chunks_exact_mut(head_dim)) {
                    y[width..].copy_from_slice(&x[width..]);
                    let ((a, b), (y_a, y_b)) = (x[..width].split_at(half), y[..width].split_at_mut(half));
                    let x = a.iter().zip(b).zip(cosines.iter().zip(sines));
                    for ((y_a, y_b), ((a, b), (c, s))) in y_a.iter_mut().zip(y_b).zip(x) {
                        let s = s * direction;
                        *y_a = a * c - b * s;
                        *y_b = b * c + a * s;
                    }
                }
            }
        }
    }

    #[derive(Debug)]
    struct RopeBackward;

    impl Backward<Flex, 1> for RopeBackward {
        type State = Arc<Turns>;

        fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
            let [node] = ops.parents;
            let g = grads.consume::<Flex>(&ops.node);
            if let Some(node) = node {
                grads.register::<Flex>(node.id, rotate(g, &ops.state, -1.0));
            }
        }
    }

    impl<C: CheckpointStrategy> RopeOps for Autodiff<Flex, C> {
        fn cpu_rope(x: FloatTensor<Self>, turns: Arc<Turns>) -> FloatTensor<Self> {
            match RopeBackward.prepare::<C>([x.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let y = rotate(x.into_primitive(), &turns, 1.0);
                    prep.finish(turns, y)
                }
                OpsKind::UnTracked(prep) => prep.finish(rotate(x.into_primitive(), &turns, 1.0)),
            }
        }
    }
}
