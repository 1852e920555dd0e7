//! The custom operation: forward and gradients of the CPU path.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use super::plan::Plan;
use super::{PackedRows, Softmax, backward, forward};
use crate::flex::{tensor, values};

#[backend_extension(Autodiff, Flex)]
trait AttentionOps: Backend {
    fn cpu_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        plan: Arc<Plan>,
        softmax: Softmax,
    ) -> FloatTensor<Self>;
}

pub(super) fn attention(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, plan: Plan, softmax: Softmax) -> Tensor<3> {
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(Dispatch::cpu_attention(q, k, v, Arc::new(plan), softmax))
}

impl AttentionOps for Flex {
    fn cpu_attention(q: FlexTensor, k: FlexTensor, v: FlexTensor, plan: Arc<Plan>, softmax: Softmax) -> FlexTensor {
        let (q, v) = (q.to_contiguous(), v.to_contiguous());
        forward(&q, &pack(&k.to_contiguous()), &v, &plan, &softmax)
    }
}

fn pack(rows: &FlexTensor) -> PackedRows {
    let [_, kv_heads, head_dim] = rows.shape().dims();
    PackedRows::of(values(rows), kv_heads, head_dim)
}

/// Of contiguous tensors.
fn forward(q: &FlexTensor, keys: &PackedRows, v: &FlexTensor, plan: &Plan, softmax: &Softmax) -> FlexTensor {
    let [_, heads, _] = q.shape().dims();
    let inputs = forward::Inputs { q: values(q), keys, values: values(v), heads, softmax, plan };
    tensor(forward::forward(&inputs), q.shape())
}

#[derive(Debug)]
struct AttentionBackward;

/// The inputs of the forward pass.
#[derive(Debug, Clone)]
struct State {
    q: FlexTensor,
    k: FlexTensor,
    v: FlexTensor,
    keys: Arc<PackedRows>,
    plan: Arc<Plan>,
    softmax: Softmax,
}

impl Backward<Flex, 3> for AttentionBackward {
    type State = State;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let g = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { q, k, v, keys, plan, softmax } = ops.state;
        let (q_shape, kv_shape) = (q.shape(), k.shape());
        let d = backward::backward(&backward::Inputs {
            q: values(&q),
            k: values(&k),
            v: values(&v),
            keys: &keys,
            g: values(&g),
            heads: keys.kv_heads() * plan.group,
            softmax: &softmax,
            plan: &plan,
        });
        let parts = [(d.q, q_shape), (d.k, kv_shape.clone()), (d.v, kv_shape)];
        for (node, (gradient, shape)) in ops.parents.into_iter().zip(parts) {
            if let Some(node) = node {
                grads.register::<Flex>(node.id, tensor(gradient, shape));
            }
        }
    }
}

impl<C: CheckpointStrategy> AttentionOps for Autodiff<Flex, C> {
    fn cpu_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        plan: Arc<Plan>,
        softmax: Softmax,
    ) -> FloatTensor<Self> {
        let nodes = [q.node(), k.node(), v.node()];
        let (q, k, v) = (q.into_primitive(), k.into_primitive(), v.into_primitive());
        match AttentionBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let (q, k, v) = (q.to_contiguous(), k.to_contiguous(), v.to_contiguous());
                let keys = Arc::new(pack(&k));
                let out = forward(&q, &keys, &v, &plan, &softmax);
                prep.finish(State { q, k, v, keys, plan, softmax }, out)
            }
            OpsKind::UnTracked(prep) => prep.finish(Flex::cpu_attention(q, k, v, plan, softmax)),
        }
    }
}
