//! Matrix product with a weight.

use burn::tensor::{DType, Tensor};

use crate::Weight;
use crate::flex::on_flex;

/// x·Wᵀ: `[rows, in]` with a weight `[out, in]` gives `[rows, out]`.
///
/// Differentiable in `x`, and in the weight where it is a tracked f32 tensor. On the CPU an output row has the same
/// bits whatever other rows are computed with it.
///
/// # Panics
/// If the inner sizes differ.
pub fn linear(x: Tensor<2>, w: &Weight) -> Tensor<2> {
    let ([rows, inner], [out, expected]) = (x.dims(), w.shape());
    assert!(inner == expected, "linear: x is [{rows}, {inner}] and the weight [{out}, {expected}]");
    if !on_flex(&x) {
        return linear_reference(x, w);
    }
    match w {
        Weight::Tensor(w) if w.dtype() == DType::F32 => fast::with_tensor(x, w.clone()),
        _ => fast::with_host(x, w.to_host()),
    }
}

/// [`linear`] in burn's own operations, on every device.
pub fn linear_reference(x: Tensor<2>, w: &Weight) -> Tensor<2> {
    let w = w.to_tensor(&x.device());
    x.matmul(w.transpose())
}

pub(crate) mod fast {
    use burn::backend::{
        Autodiff, Backend, Dispatch, Flex, TensorMetadata,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        backend_extension,
        tensor::FloatTensor,
    };
    use burn::tensor::Tensor;
    use burn_flex::FlexTensor;

    use crate::flex::{tensor, values};
    use crate::simd::dot_gemm::{Sizes, dot_gemm};
    use crate::simd::level;
    use crate::simd::outer_gemm::{Strided, outer_gemm};
    use crate::weight::{HostWeight, with_slice};

    #[backend_extension(Autodiff, Flex)]
    trait LinearOps: Backend {
        fn linear_tensor(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self>;
        fn linear_host(x: FloatTensor<Self>, w: HostWeight) -> FloatTensor<Self>;
    }

    pub(super) fn with_tensor(x: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
        Tensor::from_dispatch(Dispatch::linear_tensor(x.into_dispatch(), w.into_dispatch()))
    }

    pub(super) fn with_host(x: Tensor<2>, w: HostWeight) -> Tensor<2> {
        Tensor::from_dispatch(Dispatch::linear_host(x.into_dispatch(), w))
    }

    fn dims(t: &FlexTensor) -> [usize; 2] {
        t.shape().dims()
    }

    /// x·Wᵀ; `x` contiguous.
    fn forward(x: &FlexTensor, w: &HostWeight) -> FlexTensor {
        let ([rows, k], [outs, _]) = (dims(x), w.shape());
        let mut y = vec![0f32; rows * outs];
        with_slice!(w.slice(), |w| dot_gemm(level(), values(x), w, &mut y, Sizes { rows, outs, k }));
        tensor(y, [rows, outs])
    }

    /// dX = dY·W
    fn input_gradient(dy: &FlexTensor, w: &HostWeight) -> FlexTensor {
        let ([rows, outs], [_, k]) = (dims(dy), w.shape());
        let mut dx = vec![0f32; rows * k];
        let dy = Strided { values: values(dy), row: outs, column: 1 };
        with_slice!(w.slice(), |w| outer_gemm(level(), dy, w, &mut dx, rows, k, outs));
        tensor(dx, [rows, k])
    }

    /// dW = dYᵀ·X
    fn weight_gradient(dy: &FlexTensor, x: &FlexTensor) -> FlexTensor {
        let ([rows, outs], [_, k]) = (dims(dy), dims(x));
        let mut dw = vec![0f32; outs * k];
        outer_gemm(level(), Strided { values: values(dy), row: 1, column: outs }, values(x), &mut dw, outs, k, rows);
        tensor(dw, [outs, k])
    }

    impl LinearOps for Flex {
        fn linear_tensor(x: FlexTensor, w: FlexTensor) -> FlexTensor {
            forward(&x.to_contiguous(), &HostWeight::Flex(w.to_contiguous()))
        }
        fn linear_host(x: FlexTensor, w: HostWeight) -> FlexTensor {
            forward(&x.to_contiguous(), &w)
        }
    }

    #[derive(Debug)]
    struct TensorBackward;

    impl Backward<Flex, 2> for TensorBackward {
        /// x for dW and W for dX, each only where that gradient is wanted.
        type State = (Option<FlexTensor>, Option<FlexTensor>);

        fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
            let [x_node, w_node] = ops.parents;
            let dy = grads.consume::<Flex>(&ops.node).to_contiguous();
            let (x, w) = ops.state;
            if let (Some(node), Some(w)) = (x_node, w) {
                grads.register::<Flex>(node.id, input_gradient(&dy, &HostWeight::Flex(w)));
            }
            if let (Some(node), Some(x)) = (w_node, x) {
                grads.register::<Flex>(node.id, weight_gradient(&dy, &x));
            }
        }
    }

    #[derive(Debug)]
    struct HostBackward;

    impl Backward<Flex, 1> for HostBackward {
        type State = HostWeight;

        fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
            let [x_node] = ops.parents;
            let dy = grads.consume::<Flex>(&ops.node).to_contiguous();
            if let Some(node) = x_node {
                grads.register::<Flex>(node.id, input_gradient(&dy, &ops.state));
            }
        }
    }

    impl<C: CheckpointStrategy> LinearOps for Autodiff<Flex, C> {
        fn linear_tensor(x: FloatTensor<Self>, w: FloatTensor<Self>) -> FloatTensor<Self> {
            match TensorBackward.prepare::<C>([x.node(), w.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let (x_tracked, w_tracked) = (x.is_tracked(), w.is_tracked());
                    let (x, w) = (x.into_primitive().to_contiguous(), w.into_primitive().to_contiguous());
                    let y = forward(&x, &HostWeight::Flex(w.clone()));
                    prep.finish((w_tracked.then_some(x), x_tracked.then_some(w)), y)
                }
                OpsKind::UnTracked(prep) => prep.finish(Flex::linear_tensor(x.into_primitive(), w.into_primitive())),
            }
        }

        fn linear_host(x: FloatTensor<Self>, w: HostWeight) -> FloatTensor<Self> {
            match HostBackward.prepare::<C>([x.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let y = Flex::linear_host(x.into_primitive(), w.clone());
                    prep.finish(w, y)
                }
                OpsKind::UnTracked(prep) => prep.finish(Flex::linear_host(x.into_primitive(), w)),
            }
        }
    }
}
