//! The custom operation: forward and gradients of the recurrent form on the CPU.

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexTensor;

use super::recurrent::{Inputs, forward, normalised};
use super::reverse::{Gradients, backward, through_norm};
use super::{DeltaInputs, recurrent};
use crate::flex::{tensor, to_vec, values};

#[backend_extension(Autodiff, Flex)]
trait GatedDeltaOps: Backend {
    /// Output and last state, flat and one after the other: an operation of the gradient graph has one result.
    fn cpu_gated_delta_rule(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        g: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        state: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

pub(super) fn gated_delta_rule(inputs: DeltaInputs, state: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
    let DeltaInputs { q, k, v, g, beta } = inputs;
    let (out_shape, state_shape, device) = (v.dims(), state.dims(), v.device());
    let graph = [&q, &k, &v, &state].into_iter().any(Tensor::is_autodiff) || g.is_autodiff() || beta.is_autodiff();
    if !graph {
        let shapes = Shapes::new(q.dims(), v.dims());
        let (q, k) = shapes.normalised(&to_vec(q), &to_vec(k));
        let mut state = to_vec(state);
        let out = forward(&shapes.inputs([&q, &k, &to_vec(v), &to_vec(g), &to_vec(beta)]), &mut state);
        let tensor = |values, shape: [usize; 3]| Tensor::from_data(TensorData::new(values, shape), &device);
        return (tensor(out, out_shape), tensor(state, state_shape));
    }
    let both: Tensor<1> = Tensor::from_dispatch(Dispatch::cpu_gated_delta_rule(
        q.into_dispatch(),
        k.into_dispatch(),
        v.into_dispatch(),
        g.into_dispatch(),
        beta.into_dispatch(),
        state.into_dispatch(),
    ));
    let (out, state) = (out_shape.iter().product(), state_shape.iter().product());
    (both.clone().narrow(0, 0, out).reshape(out_shape), both.narrow(0, out, state).reshape(state_shape))
}

#[derive(Debug, Clone, Copy)]
struct Shapes {
    rows: usize,
    key_heads: usize,
    key_dim: usize,
    heads: usize,
    value_dim: usize,
}

impl Shapes {
    fn new([rows, key_heads, key_dim]: [usize; 3], [_, heads, value_dim]: [usize; 3]) -> Self {
        Self { rows, key_heads, key_dim, heads, value_dim }
    }

    fn scale(&self) -> f32 {
        (self.key_dim as f32).sqrt().recip()
    }

    /// q and k as [`Inputs`] has them.
    fn normalised(&self, q: &[f32], k: &[f32]) -> (Vec<f32>, Vec<f32>) {
        (normalised(q, self.key_dim, self.scale()), normalised(k, self.key_dim, 1.0))
    }

    fn inputs<'a>(&self, [q, k, v, g, beta]: [&'a [f32]; 5]) -> Inputs<'a> {
        let &Self { rows, key_heads, key_dim, heads, value_dim } = self;
        recurrent::Inputs { rows, key_heads, heads, key_dim, value_dim, q, k, v, g, beta }
    }
}

/// q, k, v, g, beta and the state, contiguous.
#[derive(Debug, Clone)]
struct State([FlexTensor; 6]);

impl State {
    fn shapes(&self) -> Shapes {
        Shapes::new(self.0[0].shape().dims(), self.0[2].shape().dims())
    }

    fn forward(&self) -> FlexTensor {
        let [q, k, v, g, beta, state] = self.0.each_ref().map(values);
        let shapes = self.shapes();
        let (q, k) = shapes.normalised(q, k);
        let mut state = state.to_vec();
        let mut both = forward(&shapes.inputs([&q, &k, v, g, beta]), &mut state);
        both.append(&mut state);
        let size = both.len();
        tensor(both, [size])
    }

    /// Gradients of all six.
    fn backward(&self, d_both: &[f32]) -> [Vec<f32>; 6] {
        let [q, k, v, g, beta, state] = self.0.each_ref().map(values);
        let shapes = self.shapes();
        let (unit_q, unit_k) = shapes.normalised(q, k);
        let (d_out, d_state) = d_both.split_at(v.len());
        let d = backward(&shapes.inputs([&unit_q, &unit_k, v, g, beta]), state, d_out, d_state);
        let Gradients { q: dq, k: dk, v, g, beta, state } = d;
        let dq = through_norm(q, dq, shapes.key_dim, shapes.scale());
        let dk = through_norm(k, dk, shapes.key_dim, 1.0);
        [dq, dk, v, g, beta, state]
    }
}

impl GatedDeltaOps for Flex {
    fn cpu_gated_delta_rule(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        g: FlexTensor,
        beta: FlexTensor,
        state: FlexTensor,
    ) -> FlexTensor {
        State([q, k, v, g, beta, state].map(|x| x.to_contiguous())).forward()
    }
}

#[derive(Debug)]
struct GatedDeltaBackward;

impl Backward<Flex, 6> for GatedDeltaBackward {
    type State = State;

    fn backward(self, ops: Ops<Self::State, 6>, grads: &mut grads::Gradients, _: &mut Checkpointer) {
        let d_both = grads.consume::<Flex>(&ops.node).to_contiguous();
        let gradients = ops.state.backward(values(&d_both));
        for ((node, x), gradient) in ops.parents.into_iter().zip(&ops.state.0).zip(gradients) {
            if let Some(node) = node {
                grads.register::<Flex>(node.id, tensor(gradient, x.shape()));
            }
        }
    }
}

impl<C: CheckpointStrategy> GatedDeltaOps for Autodiff<Flex, C> {
    fn cpu_gated_delta_rule(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        g: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        state: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let inputs = [q, k, v, g, beta, state];
        let nodes = inputs.each_ref().map(|x| x.node());
        let inputs = State(inputs.map(|x| x.into_primitive().to_contiguous()));
        match GatedDeltaBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let both = inputs.forward();
                prep.finish(inputs, both)
            }
            OpsKind::UnTracked(prep) => prep.finish(inputs.forward()),
        }
    }
}
