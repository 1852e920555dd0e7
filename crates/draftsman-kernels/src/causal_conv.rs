//! The short depthwise convolution in front of a linear-attention layer, with its activation.

use burn::tensor::{Tensor, activation};

use crate::flex::on_flex;

/// `silu(Σ_j weight[channel, j] · input[t − (width − 1) + j])` for every row t and channel, oldest tap first, in f32
/// without a rounding between convolution and activation. Differentiable in all three.
///
/// * `x` `[rows, channels]`, before convolution and activation
/// * `weight` `[channels, width]`, the last tap on the current row
/// * `tail` `[width − 1, channels]`, the input rows before `x`, oldest first; zeros at the start of a sequence
///
/// Returns `[rows, channels]`. On the CPU device a row's result depends on its `width` input rows alone, to the bit: it
/// is the same whether they came in one call or through the tail ([`conv_tail`]).
///
/// # Panics
/// When the shapes don't fit each other.
pub fn causal_conv(x: Tensor<2>, weight: Tensor<2>, tail: Tensor<2>) -> Tensor<2> {
    check(&x, &weight, &tail);
    if x.dims().contains(&0) {
        return x;
    }
    if on_flex(&x) && on_flex(&weight) && on_flex(&tail) {
        cpu::causal_conv(joined(tail, x), weight)
    } else {
        causal_conv_reference(x, weight, tail)
    }
}

/// [`causal_conv`] in burn's own operations: any device, the oracle of the tests.
///
/// # Panics
/// As [`causal_conv`].
pub fn causal_conv_reference(x: Tensor<2>, weight: Tensor<2>, tail: Tensor<2>) -> Tensor<2> {
    check(&x, &weight, &tail);
    let ([rows, channels], [_, width]) = (x.dims(), weight.dims());
    if rows == 0 || channels == 0 {
        return x;
    }
    let (input, taps) = (joined(tail, x), weight.swap_dims(0, 1));
    let tap = |j: usize| input.clone().narrow(0, j, rows) * taps.clone().narrow(0, j, 1);
    activation::silu((1..width).fold(tap(0), |sum, j| sum + tap(j)))
}

/// The tail for the rows after `x`: the last rows of `tail` and `x` together, as many as `tail` has.
///
/// * `tail` `[width − 1, channels]`
/// * `x` `[rows, channels]`
///
/// # Panics
/// When the channels differ.
pub fn conv_tail(tail: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    let ([kept, channels], [rows, width]) = (tail.dims(), x.dims());
    assert_eq!(channels, width, "conv_tail: the tail has {channels} channels, x is [{rows}, {width}]");
    if kept == 0 {
        return tail;
    }
    if rows >= kept { x.narrow(0, rows - kept, kept) } else { joined(tail, x).narrow(0, rows, kept) }
}

/// One after the other; burn takes no empty part.
fn joined(tail: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    match (tail.dims()[0], x.dims()[0]) {
        (0, _) => x,
        (_, 0) => tail,
        _ => Tensor::cat(vec![tail, x], 0),
    }
}

fn check(x: &Tensor<2>, weight: &Tensor<2>, tail: &Tensor<2>) {
    let ([rows, channels], [filters, width]) = (x.dims(), weight.dims());
    assert_eq!(channels, filters, "causal_conv: x is [{rows}, {channels}], the weight [{filters}, {width}]");
    assert!(width > 0, "causal_conv: the weight is [{filters}, 0], it has no taps");
    assert_eq!(
        tail.dims(),
        [width - 1, channels],
        "causal_conv: x is [{rows}, {channels}] and the weight has {width} taps, the tail must be [{}, {channels}]",
        width - 1
    );
}

mod cpu {
    use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
    use burn::tensor::Tensor;
    use burn_flex::FlexTensor;
    use rayon::prelude::*;

    use crate::flex::{each_vector, load, store, tensor, values};
    use crate::simd::{Kernel, Simd, math, run};

    /// Rows of one unit of work. Fixed, so that the weight gradient adds up in one order whatever the threads.
    const CHUNK: usize = 64;
    /// Below this many values a second thread costs more than it saves.
    const PARALLEL: usize = 1 << 16;

    #[backend_extension(Autodiff, Flex)]
    trait CausalConvOps: Backend {
        fn cpu_causal_conv(input: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;
    }

    /// * `input` `[width − 1 + rows, channels]`
    /// * `weight` `[channels, width]`
    pub(super) fn causal_conv(input: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
        Tensor::from_dispatch(Dispatch::cpu_causal_conv(input.into_dispatch(), weight.into_dispatch()))
    }

    impl CausalConvOps for Flex {
        fn cpu_causal_conv(input: FlexTensor, weight: FlexTensor) -> FlexTensor {
            let (input, taps) = (input.to_contiguous(), weight.transpose(0, 1).to_contiguous());
            let ([all, channels], [width, _]) = (input.shape().dims(), taps.shape().dims());
            let rows = all + 1 - width;
            let mut y = vec![0f32; rows * channels];
            let (input, taps) = (values(&input), values(&taps));
            let part = |(chunk, y): (usize, &mut [f32])| {
                run(Forward { input: &input[chunk * CHUNK * channels..], taps, channels, y });
            };
            if y.len() < PARALLEL {
                y.chunks_mut(CHUNK * channels).enumerate().for_each(part);
            } else {
                y.par_chunks_mut(CHUNK * channels).enumerate().for_each(part);
            }
            tensor(y, [rows, channels])
        }
    }

    /// The convolution of `n` channels from `i`, before the activation. `input` starts at the oldest tap's row.
    #[inline(always)]
    fn convolve<S: Simd>(s: S, input: &[f32], taps: &[f32], channels: usize, i: usize, n: usize) -> S::F {
        let mut sum = s.zero();
        for (j, taps) in taps.chunks_exact(channels).enumerate() {
            sum = s.mul_add(load(s, taps, i, n), load(s, input, j * channels + i, n), sum);
        }
        sum
    }

    struct Forward<'a> {
        input: &'a [f32],
        /// `[width, channels]`
        taps: &'a [f32],
        channels: usize,
        y: &'a mut [f32],
    }

    impl Kernel for Forward<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Self { input, taps, channels, y } = self;
            for (row, y) in y.chunks_exact_mut(channels).enumerate() {
                each_vector(
                    channels,
                    #[inline(always)]
                    |i, n| {
                        let sum = convolve(s, &input[row * channels..], taps, channels, i, n);
                        store(s, y, i, s.mul(sum, math::sigmoid(s, sum)), n);
                    },
                );
            }
        }
    }

    /// With c the convolution and σ = sigmoid(c): dc = g · σ·(1 + c·(1 − σ)), and the weight's part Σ dc·input.
    struct Reverse<'a> {
        input: &'a [f32],
        taps: &'a [f32],
        channels: usize,
        g: &'a [f32],
        dc: &'a mut [f32],
    }

    impl Kernel for Reverse<'_> {
        /// The part of the taps' gradient that these rows add, `[width, channels]`.
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let Self { input, taps, channels, g, dc } = self;
            let (one, mut d_taps) = (s.splat(1.0), vec![0f32; taps.len()]);
            for (row, (g, dc)) in g.chunks_exact(channels).zip(dc.chunks_exact_mut(channels)).enumerate() {
                let input = &input[row * channels..];
                each_vector(
                    channels,
                    #[inline(always)]
                    |i, n| {
                        let c = convolve(s, input, taps, channels, i, n);
                        let sigma = math::sigmoid(s, c);
                        let slope = s.mul(sigma, s.mul_add(c, s.sub(one, sigma), one));
                        let d = s.mul(load(s, g, i, n), slope);
                        store(s, dc, i, d, n);
                        for (j, d_taps) in d_taps.chunks_exact_mut(channels).enumerate() {
                            let sum = s.mul_add(d, load(s, input, j * channels + i, n), load(s, d_taps, i, n));
                            store(s, d_taps, i, sum, n);
                        }
                    },
                );
            }
            d_taps
        }
    }

    /// `d_input[r] = Σ_j taps[j] · dc[r − j]`: what every row after it took of row r.
    struct Spread<'a> {
        dc: &'a [f32],
        taps: &'a [f32],
        channels: usize,
        first: usize,
        d_input: &'a mut [f32],
    }

    impl Kernel for Spread<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Self { dc, taps, channels, first, d_input } = self;
            let rows = dc.len() / channels;
            for (r, d_input) in d_input.chunks_exact_mut(channels).enumerate() {
                for (j, taps) in taps.chunks_exact(channels).enumerate() {
                    if let Some(row) = (first + r).checked_sub(j).filter(|&row| row < rows) {
                        let dc = &dc[row * channels..(row + 1) * channels];
                        each_vector(
                            channels,
                            #[inline(always)]
                            |i, n| {
                                let sum = s.mul_add(load(s, taps, i, n), load(s, dc, i, n), load(s, d_input, i, n));
                                store(s, d_input, i, sum, n);
                            },
                        );
                    }
                }
            }
        }
    }

    /// Gradients of input and weight.
    fn reverse(input: &FlexTensor, weight: &FlexTensor, g: FlexTensor) -> [FlexTensor; 2] {
        let (g, taps) = (g.to_contiguous(), weight.transpose(0, 1).to_contiguous());
        let ([all, channels], [width, _], [rows, _]) = (input.shape().dims(), taps.shape().dims(), g.shape().dims());
        let (mut dc, mut d_input, mut d_taps) =
            (vec![0f32; rows * channels], vec![0f32; all * channels], vec![0f32; width * channels]);
        let (input, taps, size) = (values(input), values(&taps), CHUNK * channels);
        let parts: Vec<Vec<f32>> = (values(&g).par_chunks(size).zip(dc.par_chunks_mut(size)).enumerate())
            .map(|(chunk, (g, dc))| run(Reverse { input: &input[chunk * size..], taps, channels, g, dc }))
            .collect();
        for part in parts {
            d_taps.iter_mut().zip(part).for_each(|(sum, d)| *sum += d);
        }
        (d_input.par_chunks_mut(size).enumerate())
            .for_each(|(chunk, d_input)| run(Spread { dc: &dc, taps, channels, first: chunk * CHUNK, d_input }));
        let d_weight = tensor(d_taps, [width, channels]).transpose(0, 1).to_contiguous();
        [tensor(d_input, [all, channels]), d_weight]
    }

    #[derive(Debug)]
    struct CausalConvBackward;

    impl Backward<Flex, 2> for CausalConvBackward {
        type State = (FlexTensor, FlexTensor);

        fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
            let g = grads.consume::<Flex>(&ops.node);
            let (input, weight) = ops.state;
            for (node, gradient) in ops.parents.into_iter().zip(reverse(&input, &weight, g)) {
                if let Some(node) = node {
                    grads.register::<Flex>(node.id, gradient);
                }
            }
        }
    }

    impl<C: CheckpointStrategy> CausalConvOps for Autodiff<Flex, C> {
        fn cpu_causal_conv(input: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
            let nodes = [input.node(), weight.node()];
            let (input, weight) = (input.into_primitive().to_contiguous(), weight.into_primitive());
            match CausalConvBackward.prepare::<C>(nodes).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let y = Flex::cpu_causal_conv(input.clone(), weight.clone());
                    prep.finish((input, weight), y)
                }
                OpsKind::UnTracked(prep) => prep.finish(Flex::cpu_causal_conv(input, weight)),
            }
        }
    }
}
