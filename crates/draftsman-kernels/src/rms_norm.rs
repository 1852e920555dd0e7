//! Root-mean-square normalisation over the last dimension.

use burn::tensor::Tensor;

use crate::flex::on_flex;

/// `x · w / sqrt(mean(x²) + eps)` per row, differentiable in `x` and `w`.
///
/// * `x` `[rows, width]`
/// * `w` `[width]`
///
/// Returns `[rows, width]`. On the CPU device a row's result depends on that row and `w` alone, to the bit.
///
/// # Panics
/// When `w` is not as long as a row of `x`.
pub fn rms_norm(x: Tensor<2>, w: Tensor<1>, eps: f64) -> Tensor<2> {
    let ([rows, width], [weights]) = (x.dims(), w.dims());
    assert_eq!(width, weights, "rms_norm: rows of {width} values ([{rows}, {width}]), but {weights} weights");
    if on_flex(&x) && on_flex(&w) { cpu::rms_norm(x, w, eps as f32) } else { rms_norm_reference(x, w, eps) }
}

/// [`rms_norm`] in burn's own operations: any device, the oracle of the tests.
pub fn rms_norm_reference(x: Tensor<2>, w: Tensor<1>, eps: f64) -> Tensor<2> {
    let scale = (x.clone().powi_scalar(2).mean_dim(1) + eps).sqrt().recip();
    x * scale * w.unsqueeze::<2>()
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
    trait RmsNormOps: Backend {
        fn cpu_rms_norm(x: FloatTensor<Self>, w: FloatTensor<Self>, eps: f32) -> FloatTensor<Self>;
    }

    pub(super) fn rms_norm(x: Tensor<2>, w: Tensor<1>, eps: f32) -> Tensor<2> {
        Tensor::from_dispatch(Dispatch::cpu_rms_norm(x.into_dispatch(), w.into_dispatch(), eps))
    }

    impl RmsNormOps for Flex {
        fn cpu_rms_norm(x: FlexTensor, w: FlexTensor, eps: f32) -> FlexTensor {
            let (x, w) = (x.to_contiguous(), w.to_contiguous());
            let [rows, width] = x.shape().dims();
            let mut y = vec![0f32; rows * width];
            if width > 0 {
                let part = |(x, y): (&[f32], &mut [f32])| run(Forward { x, w: values(&w), eps, y });
                let size = CHUNK * width;
                if y.len() < PARALLEL {
                    values(&x).chunks(size).zip(y.chunks_mut(size)).for_each(part);
                } else {
                    values(&x).par_chunks(size).zip(y.par_chunks_mut(size)).for_each(part);
                }
            }
            tensor(y, [rows, width])
        }
    }

    /// `1 / sqrt(mean(x²) + eps)` of one row.
    #[inline(always)]
    fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
        1.0 / (math::dot(s, x, x) / x.len() as f32 + eps).sqrt()
    }

    struct Forward<'a> {
        x: &'a [f32],
        w: &'a [f32],
        eps: f32,
        y: &'a mut [f32],
    }

    impl Kernel for Forward<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Self { x, w, eps, y } = self;
            for (x, y) in x.chunks_exact(w.len()).zip(y.chunks_exact_mut(w.len())) {
                let r = s.splat(inverse_rms(s, x, eps));
                each_vector(
                    w.len(),
                    #[inline(always)]
                    |i, n| store(s, y, i, s.mul(s.mul(load(s, x, i, n), r), load(s, w, i, n)), n),
                );
            }
        }
    }

    /// With r = inverse_rms(x): dx = r·g·w − x · r³/width · Σ g·w·x;  dw = Σ over rows of g·x·r.
    struct Reverse<'a> {
        x: &'a [f32],
        w: &'a [f32],
        g: &'a [f32],
        eps: f32,
        dx: &'a mut [f32],
    }

    impl Kernel for Reverse<'_> {
        /// The part of dw that these rows add.
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let Self { x, w, g, eps, dx } = self;
            let width = w.len();
            let mut dw = vec![0f32; width];
            for ((x, g), dx) in x.chunks_exact(width).zip(g.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
                let r = inverse_rms(s, x, eps);
                let mut sum = s.zero();
                each_vector(
                    width,
                    #[inline(always)]
                    |i, n| sum = s.mul_add(s.mul(load(s, g, i, n), load(s, w, i, n)), load(s, x, i, n), sum),
                );
                let c = s.splat(-s.sum(sum) * r * r * r / width as f32);
                let r = s.splat(r);
                each_vector(
                    width,
                    #[inline(always)]
                    |i, n| {
                        let (x, w, gr) = (load(s, x, i, n), load(s, w, i, n), s.mul(load(s, g, i, n), r));
                        store(s, dx, i, s.mul_add(gr, w, s.mul(x, c)), n);
                        let sum = s.mul_add(gr, x, load(s, &dw, i, n));
                        store(s, &mut dw, i, sum, n);
                    },
                );
            }
            dw
        }
    }

    fn reverse(x: &FlexTensor, w: &FlexTensor, g: FlexTensor, eps: f32) -> (FlexTensor, FlexTensor) {
        let g = g.to_contiguous();
        let [rows, width] = x.shape().dims();
        let (mut dx, mut dw) = (vec![0f32; rows * width], vec![0f32; width]);
        if width > 0 {
            let (xs, ws, gs, size) = (values(x), values(w), values(&g), CHUNK * width);
            let part = |((x, g), dx): ((&[f32], &[f32]), &mut [f32])| run(Reverse { x, w: ws, g, eps, dx });
            let parts: Vec<Vec<f32>> = if dx.len() < PARALLEL {
                xs.chunks(size).zip(gs.chunks(size)).zip(dx.chunks_mut(size)).map(part).collect()
            } else {
                xs.par_chunks(size).zip(gs.par_chunks(size)).zip(dx.par_chunks_mut(size)).map(part).collect()
            };
            for part in parts {
                dw.iter_mut().zip(part).for_each(|(sum, v)| *sum += v);
            }
        }
        (tensor(dx, [rows, width]), tensor(dw, [width]))
    }

    #[derive(Debug)]
    struct RmsNormBackward;

    impl Backward<Flex, 2> for RmsNormBackward {
        type State = (FlexTensor, FlexTensor, f32);

        fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
            let [x_node, w_node] = ops.parents;
            let g = grads.consume::<Flex>(&ops.node);
            let (x, w, eps) = ops.state;
            let (dx, dw) = reverse(&x, &w, g, eps);
            if let Some(node) = x_node {
                grads.register::<Flex>(node.id, dx);
            }
            if let Some(node) = w_node {
                grads.register::<Flex>(node.id, dw);
            }
        }
    }

    impl<C: CheckpointStrategy> RmsNormOps for Autodiff<Flex, C> {
        fn cpu_rms_norm(x: FloatTensor<Self>, w: FloatTensor<Self>, eps: f32) -> FloatTensor<Self> {
            match RmsNormBackward.prepare::<C>([x.node(), w.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let (x, w) = (x.into_primitive().to_contiguous(), w.into_primitive().to_contiguous());
                    let y = Flex::cpu_rms_norm(x.clone(), w.clone(), eps);
                    prep.finish((x, w, eps), y)
                }
                OpsKind::UnTracked(prep) => {
                    prep.finish(Flex::cpu_rms_norm(x.into_primitive(), w.into_primitive(), eps))
                }
            }
        }
    }
}
