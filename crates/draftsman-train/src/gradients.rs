//! Gradients summed over an accumulation window.

use burn::tensor::{Tensor, TensorData};
use draftsman_models::{Dflash, Parameter};

use crate::error::TrainError;
use crate::optim::global_norm;

/// Summed gradients by tensor name, in the drafter's parameter order.
#[derive(Debug, Clone, Default)]
pub struct Gradients {
    tensors: Vec<(String, Option<Vec<f32>>)>,
}

impl Gradients {
    /// Adds what one backward pass left for `drafter`. The buffers are taken out of `backward`, not copied.
    pub fn add(&mut self, drafter: &Dflash, mut backward: burn::tensor::Gradients) -> Result<(), TrainError> {
        let mut pack: Vec<(String, Option<Vec<f32>>)> = Vec::new();
        for (name, parameter) in drafter.parameters() {
            let data = match parameter {
                Parameter::Vector(tensor) => tensor.grad_remove(&mut backward).map(Tensor::into_data),
                Parameter::Matrix(tensor) => tensor.grad_remove(&mut backward).map(Tensor::into_data),
            };
            let gradient = data.map(|data| values(&name, data)).transpose()?;
            pack.push((name, gradient));
        }
        if self.tensors.is_empty() {
            self.tensors = pack;
            return Ok(());
        }
        for ((_, sum), (_, more)) in self.tensors.iter_mut().zip(pack) {
            match (sum.as_mut(), more) {
                (Some(sum), Some(more)) => sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more),
                (None, Some(more)) => *sum = Some(more),
                (_, None) => {}
            }
        }
        Ok(())
    }

    /// Global norm over all tensors.
    #[must_use]
    pub fn norm(&self) -> f64 {
        global_norm(self.tensors.iter().filter_map(|(_, gradient)| gradient.as_deref()))
    }

    /// Summed gradient of a tensor.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.tensors.iter().find(|(other, _)| other == name).and_then(|(_, gradient)| gradient.as_deref())
    }

    /// All of them, in parameter order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[f32]>)> {
        self.tensors.iter().map(|(name, gradient)| (name.as_str(), gradient.as_deref()))
    }
}

/// Takes the buffer over where its allocation allows it.
fn values(name: &str, data: TensorData) -> Result<Vec<f32>, TrainError> {
    data.try_into_vec_as::<f32>().map_err(|error| TrainError::ReadBack {
        what: format!("the gradient of {name}"),
        problem: format!("{error:?}"),
    })
}
