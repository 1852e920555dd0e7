//! Trainable tensors by their published names.

use burn::tensor::{Device, Tensor, TensorData};

/// A trainable tensor, on its device.
#[derive(Clone, Debug)]
pub enum Parameter {
    /// Weight of a norm, `[n]`.
    Vector(Tensor<1>),
    /// Weight of a linear layer, `[out, in]`.
    Matrix(Tensor<2>),
}

impl Parameter {
    /// Dimensions, slowest first.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Vector(t) => t.dims().to_vec(),
            Self::Matrix(t) => t.dims().to_vec(),
        }
    }

    /// Values in row-major order.
    pub fn to_vec(&self) -> Vec<f32> {
        let data = match self {
            Self::Vector(t) => t.to_data(),
            Self::Matrix(t) => t.to_data(),
        };
        data.iter::<f32>().collect()
    }

    /// A tensor of the same rank and shape with other values, row-major.
    ///
    /// # Panics
    /// If the number of values is not the product of the shape.
    pub fn with_values(&self, values: Vec<f32>, device: &Device) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(Tensor::from_data(TensorData::new(values, t.dims()), device)),
            Self::Matrix(t) => Self::Matrix(Tensor::from_data(TensorData::new(values, t.dims()), device)),
        }
    }

    /// The same values without autodiff.
    pub(super) fn plain(self) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(t.without_autodiff()),
            Self::Matrix(t) => Self::Matrix(t.without_autodiff()),
        }
    }
}

/// A tensor read back to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Published name, e.g. `layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Dimensions, slowest first (`[out, in]` of a linear layer).
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
}

/// The eleven tensors of a layer, without the `layers.{i}.` prefix, in the order of this crate.
pub(super) const LAYER_TENSORS: [&str; 11] = [
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
];
