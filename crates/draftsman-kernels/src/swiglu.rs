//! The gated activation of llama-style MLPs.

use burn::tensor::{Tensor, activation};

use crate::flex::on_flex;

/// `silu(gate) · up` element by element, differentiable in both.
///
/// * `gate`, `up` `[rows, width]`
///
/// Returns `[rows, width]`. On the CPU device the same code computes every element, so equal inputs give equal bits
/// wherever they stand.
///
/// # Panics
/// When the shapes differ.
pub fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    assert_eq!(gate.dims(), up.dims(), "swiglu: gate and up have different shapes");
    if on_flex(&gate) && on_flex(&up) { cpu::swiglu(gate, up) } else { swiglu_reference(gate, up) }
}

/// [`swiglu`] in burn's own operations: any device, the oracle of the tests.
pub fn swiglu_reference(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    activation::silu(gate) * up
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

    /// Elements of one unit of work.
    const CHUNK: usize = 1 << 14;

    #[backend_extension(Autodiff, Flex)]
    trait SwigluOps: Backend {
        fn cpu_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;
    }

    pub(super) fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
        Tensor::from_dispatch(Dispatch::cpu_swiglu(gate.into_dispatch(), up.into_dispatch()))
    }

    impl SwigluOps for Flex {
        fn cpu_swiglu(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
            let (gate, up) = (gate.to_contiguous(), up.to_contiguous());
            let mut y = vec![0f32; values(&gate).len()];
            let part = |((gate, up), y): ((&[f32], &[f32]), &mut [f32])| run(Forward { gate, up, y });
            if y.len() <= CHUNK {
                part(((values(&gate), values(&up)), &mut y));
            } else {
                (values(&gate).par_chunks(CHUNK).zip(values(&up).par_chunks(CHUNK)))
                    .zip(y.par_chunks_mut(CHUNK))
                    .for_each(part);
            }
            tensor(y, gate.shape())
        }
    }

    struct Forward<'a> {
        gate: &'a [f32],
        up: &'a [f32],
        y: &'a mut [f32],
    }

    impl Kernel for Forward<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            each_vector(
                self.y.len(),
                #[inline(always)]
                |i, n| {
                    let gate = load(s, self.gate, i, n);
                    let silu = s.mul(gate, math::sigmoid(s, gate));
                    store(s, self.y, i, s.mul(silu, load(s, self.up, i, n)), n);
                },
            );
        }
    }

    /// With σ = sigmoid(gate): dgate = g · up · σ·(1 + gate·(1 − σ)), dup = g · gate·σ.
    struct Reverse<'a> {
        gate: &'a [f32],
        up: &'a [f32],
        g: &'a [f32],
        d_gate: &'a mut [f32],
        d_up: &'a mut [f32],
    }

    impl Kernel for Reverse<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let one = s.splat(1.0);
            each_vector(
                self.g.len(),
                #[inline(always)]
                |i, n| {
                    let (gate, up, g) = (load(s, self.gate, i, n), load(s, self.up, i, n), load(s, self.g, i, n));
                    let sigma = math::sigmoid(s, gate);
                    let slope = s.mul(sigma, s.mul_add(gate, s.sub(one, sigma), one));
                    store(s, self.d_gate, i, s.mul(s.mul(g, up), slope), n);
                    store(s, self.d_up, i, s.mul(g, s.mul(gate, sigma)), n);
                },
            );
        }
    }

    #[derive(Debug)]
    struct SwigluBackward;

    impl Backward<Flex, 2> for SwigluBackward {
        type State = (FlexTensor, FlexTensor);

        fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
            let [gate_node, up_node] = ops.parents;
            let g = grads.consume::<Flex>(&ops.node).to_contiguous();
            let (gate, up) = ops.state;
            let size = values(&g).len();
            let (mut d_gate, mut d_up) = (vec![0f32; size], vec![0f32; size]);
            (values(&gate).par_chunks(CHUNK).zip(values(&up).par_chunks(CHUNK)))
                .zip(values(&g).par_chunks(CHUNK))
                .zip(d_gate.par_chunks_mut(CHUNK).zip(d_up.par_chunks_mut(CHUNK)))
                .for_each(|(((gate, up), g), (d_gate, d_up))| run(Reverse { gate, up, g, d_gate, d_up }));
            if let Some(node) = gate_node {
                grads.register::<Flex>(node.id, tensor(d_gate, gate.shape()));
            }
            if let Some(node) = up_node {
                grads.register::<Flex>(node.id, tensor(d_up, gate.shape()));
            }
        }
    }

    impl<C: CheckpointStrategy> SwigluOps for Autodiff<Flex, C> {
        fn cpu_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
            match SwigluBackward.prepare::<C>([gate.node(), up.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let (gate, up) = (gate.into_primitive().to_contiguous(), up.into_primitive().to_contiguous());
                    let y = Flex::cpu_swiglu(gate.clone(), up.clone());
                    prep.finish((gate, up), y)
                }
                OpsKind::UnTracked(prep) => prep.finish(Flex::cpu_swiglu(gate.into_primitive(), up.into_primitive())),
            }
        }
    }
}
