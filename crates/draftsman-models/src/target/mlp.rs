//! The MLP of a decoder layer: dense, or a choice of experts.

use burn::tensor::Tensor;
use draftsman_kernels::{Weight, linear, swiglu};

use super::moe::Moe;
use super::spec::TargetSpec;
use super::tensors::Tensors;
use crate::error::ModelError;

/// What follows the mixer.
#[expect(clippy::large_enum_variant, reason = "one per layer, whose weights dwarf it")]
pub(super) enum Mlp {
    Dense(DenseMlp),
    Moe(Moe),
}

/// down(silu(gate(x)) · up(x))
pub(super) struct DenseMlp {
    /// `[intermediate, hidden]`
    pub(super) gate: Weight,
    /// `[intermediate, hidden]`
    pub(super) up: Weight,
    /// `[hidden, intermediate]`
    pub(super) down: Weight,
}

impl Mlp {
    /// `[rows, hidden]` → `[rows, hidden]`
    pub(super) fn forward(&self, h: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Dense(mlp) => mlp.forward(h),
            Self::Moe(moe) => moe.forward(h),
        }
    }
}

impl DenseMlp {
    /// Reads `mlp.*` of width `spec.intermediate_size`.
    pub(super) fn load(spec: &TargetSpec, tensors: &Tensors<'_>) -> Result<Self, ModelError> {
        Self::load_at(tensors, "mlp", spec.hidden_size, spec.intermediate_size)
    }

    /// Reads the three matrices below `path`.
    pub(super) fn load_at(
        tensors: &Tensors<'_>,
        path: &str,
        hidden: usize,
        intermediate: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            gate: tensors.matrix(&format!("{path}.gate_proj.weight"), [intermediate, hidden])?,
            up: tensors.matrix(&format!("{path}.up_proj.weight"), [intermediate, hidden])?,
            down: tensors.matrix(&format!("{path}.down_proj.weight"), [hidden, intermediate])?,
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`
    pub(super) fn forward(&self, h: Tensor<2>) -> Tensor<2> {
        let inner = swiglu(linear(h.clone(), &self.gate), linear(h, &self.up));
        linear(inner, &self.down)
    }
}
