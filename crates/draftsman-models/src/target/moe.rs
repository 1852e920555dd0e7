//! A mixture of experts: a router chooses a few experts for every row and weights what they say.
//!
//! A row's result does not depend on the rows beside it: its experts are chosen from its own logits, an expert computes
//! every row alone, and the weighted outputs are added in the order of the experts' ids.

use burn::tensor::{Int, Tensor, activation};
use draftsman_kernels::{Weight, linear, swiglu};
use rayon::prelude::*;

use super::attention::add_bias;
use super::mlp::DenseMlp;
use super::spec::{ExpertActivation, ExpertSpec, Routing, TargetSpec};
use super::tensors::Tensors;
use crate::error::ModelError;

/// The sparse MLP of a layer.
pub(super) struct Moe {
    /// `[experts, hidden]`
    pub(super) router: Weight,
    /// `[experts]`
    pub(super) router_bias: Option<Tensor<1>>,
    pub(super) experts: Vec<Expert>,
    pub(super) shared: Option<SharedExpert>,
    pub(super) per_token: usize,
    pub(super) routing: Routing,
    pub(super) activation: ExpertActivation,
}

/// One expert.
pub(super) struct Expert {
    pub(super) mlp: DenseMlp,
    /// Of gate, up and down.
    pub(super) biases: Option<[Tensor<1>; 3]>,
}

/// The expert of every row, behind a sigmoid gate.
pub(super) struct SharedExpert {
    mlp: DenseMlp,
    /// `[1, hidden]`
    gate: Weight,
}

/// Experts of one row, ascending, with their weights.
type Choice = Vec<(usize, f32)>;

impl Moe {
    /// Reads a Qwen MoE block: `mlp.gate`, experts one by one or fused, and the shared expert where there is one.
    pub(super) fn load_qwen(
        spec: &TargetSpec,
        tensors: &Tensors<'_>,
        experts: &ExpertSpec,
    ) -> Result<Self, ModelError> {
        let hidden = spec.hidden_size;
        let shared = experts.shared_intermediate_size.map(|inner| {
            Ok::<_, ModelError>(SharedExpert {
                mlp: DenseMlp::load_at(tensors, "mlp.shared_expert", hidden, inner)?,
                gate: tensors.matrix("mlp.shared_expert_gate.weight", [1, hidden])?,
            })
        });
        Ok(Self {
            router: tensors.matrix("mlp.gate.weight", [experts.count, hidden])?,
            router_bias: None,
            experts: load_qwen_experts(tensors, experts, hidden)?,
            shared: shared.transpose()?,
            per_token: experts.per_token,
            routing: experts.routing,
            activation: experts.activation,
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`
    pub(super) fn forward(&self, h: Tensor<2>) -> Tensor<2> {
        let choices = self.route(&h);
        let [rows, hidden] = h.dims();
        // Row and slot of every use of an expert; the slots of a row are its experts in ascending order.
        let mut uses: Vec<Vec<usize>> = vec![Vec::new(); self.experts.len()];
        for (row, choice) in choices.iter().enumerate() {
            for (slot, (expert, _)) in choice.iter().enumerate() {
                uses[*expert].push(row * self.per_token + slot);
            }
        }
        let used: Vec<(&Expert, Vec<usize>)> = self.experts.iter().zip(uses).filter(|(_, u)| !u.is_empty()).collect();
        let outputs: Vec<Tensor<2>> = used
            .par_iter()
            .map(|(expert, uses)| {
                let rows: Vec<usize> = uses.iter().map(|u| u / self.per_token).collect();
                expert.forward(gather(&h, &rows), self.activation)
            })
            .collect();
        // Back from experts to rows: where the output of every (row, slot) stands.
        let mut place = vec![0; rows * self.per_token];
        for (at, &slot) in used.iter().flat_map(|(_, uses)| uses).enumerate() {
            place[slot] = at;
        }
        let weights: Vec<f32> = choices.iter().flatten().map(|(_, weight)| *weight).collect();
        let weights = Tensor::<1>::from_floats(weights.as_slice(), &h.device()).reshape([rows * self.per_token, 1]);
        let weighted = gather(&Tensor::cat(outputs, 0), &place) * weights;
        let weighted = weighted.reshape([rows, self.per_token * hidden]);
        let slots = (0..self.per_token).map(|slot| weighted.clone().narrow(1, slot * hidden, hidden));
        let routed = slots.reduce(|sum, slot| sum + slot).unwrap_or_else(|| h.zeros_like());
        match &self.shared {
            None => routed,
            Some(SharedExpert { mlp, gate }) => routed + activation::sigmoid(linear(h.clone(), gate)) * mlp.forward(h),
        }
    }

    /// The experts of every row.
    fn route(&self, h: &Tensor<2>) -> Vec<Choice> {
        let mut logits = linear(h.clone(), &self.router);
        if let Some(bias) = &self.router_bias {
            logits = add_bias(logits, bias.clone());
        }
        let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
        logits.chunks_exact(self.experts.len()).map(|row| choose(row, self.per_token, self.routing)).collect()
    }
}

/// The experts of a row with these router logits, ascending by id.
fn choose(logits: &[f32], count: usize, routing: Routing) -> Choice {
    let scores = match routing {
        Routing::SoftmaxTopK { .. } => softmax(logits),
        Routing::TopKSoftmax => logits.to_vec(),
    };
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // A stable sort: of equal scores the first expert stays first.
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(count);
    let chosen: Vec<f32> = order.iter().map(|&expert| scores[expert]).collect();
    let weights = match routing {
        Routing::SoftmaxTopK { renormalise: false } => chosen,
        Routing::SoftmaxTopK { renormalise: true } => {
            let sum: f32 = chosen.iter().sum();
            chosen.iter().map(|score| score / sum).collect()
        }
        Routing::TopKSoftmax => softmax(&chosen),
    };
    let mut choice: Choice = order.into_iter().zip(weights).collect();
    choice.sort_by_key(|(expert, _)| *expert);
    choice
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut weights: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}

/// Rows of `x` by index.
fn gather(x: &Tensor<2>, rows: &[usize]) -> Tensor<2> {
    let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    x.clone().select(0, Tensor::<1, Int>::from_ints(rows.as_slice(), &x.device()))
}

impl Expert {
    /// `[rows, hidden]` → `[rows, hidden]`
    fn forward(&self, h: Tensor<2>, activation: ExpertActivation) -> Tensor<2> {
        let mut gate = linear(h.clone(), &self.mlp.gate);
        let mut up = linear(h, &self.mlp.up);
        if let Some([gate_bias, up_bias, _]) = &self.biases {
            gate = add_bias(gate, gate_bias.clone());
            up = add_bias(up, up_bias.clone());
        }
        let inner = match activation {
            ExpertActivation::Swiglu => swiglu(gate, up),
            ExpertActivation::ClampedSwiglu { alpha, limit } => {
                let (gate, up) = (gate.clamp_max(limit), up.clamp(-limit, limit));
                gate.clone() * activation::sigmoid(gate * alpha) * (up + 1.0)
            }
        };
        let out = linear(inner, &self.mlp.down);
        match &self.biases {
            Some([_, _, bias]) => add_bias(out, bias.clone()),
            None => out,
        }
    }
}

/// Fused `[experts, 2 * inner, hidden]` (gate rows first) and `[experts, hidden, inner]`, or three matrices an expert.
fn load_qwen_experts(tensors: &Tensors<'_>, spec: &ExpertSpec, hidden: usize) -> Result<Vec<Expert>, ModelError> {
    let ExpertSpec { count, intermediate_size: inner, .. } = *spec;
    let plain = |mlp| Expert { mlp, biases: None };
    const GATE_UP: &str = "mlp.experts.gate_up_proj";
    if !tensors.has(GATE_UP) {
        return (0..count)
            .map(|id| DenseMlp::load_at(tensors, &format!("mlp.experts.{id}"), hidden, inner).map(plain))
            .collect();
    }
    // One stored tensor at a time: the other is read when this one is converted and gone.
    let gate_up = tensors.values(GATE_UP, &[count, 2 * inner, hidden])?;
    let part = |id: usize, half: usize| {
        let start = (2 * id + half) * inner * hidden;
        tensors.weight(gate_up.as_ref().map(|v| v[start..start + inner * hidden].to_vec()), [inner, hidden])
    };
    let halves = (0..count).map(|id| Ok((part(id, 0)?, part(id, 1)?))).collect::<Result<Vec<_>, ModelError>>()?;
    drop(gate_up);
    let down = tensors.values("mlp.experts.down_proj", &[count, hidden, inner])?;
    let size = hidden * inner;
    halves
        .into_iter()
        .enumerate()
        .map(|(id, (gate, up))| {
            let down =
                tensors.weight(down.as_ref().map(|v| v[id * size..(id + 1) * size].to_vec()), [hidden, inner])?;
            Ok(plain(DenseMlp { gate, up, down }))
        })
        .collect()
}
