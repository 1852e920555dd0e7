//! Gradients summed over an accumulation window.

use crate::optim::global_norm;

/// Summed gradients by tensor name, in the drafter's parameter order.
#[derive(Debug, Clone, Default)]
pub struct Gradients {
    tensors: Vec<(String, Option<Vec<f32>>)>,
}

impl Gradients {
    /// Adds the gradients of one pack, in the order of `Dflash::gradients`.
    pub fn add(&mut self, pack: Vec<(String, Option<Vec<f32>>)>) {
        if self.tensors.is_empty() {
            self.tensors = pack;
            return;
        }
        for ((_, sum), (_, more)) in self.tensors.iter_mut().zip(pack) {
            match (sum.as_mut(), more) {
                (Some(sum), Some(more)) => sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more),
                (None, Some(more)) => *sum = Some(more),
                (_, None) => {}
            }
        }
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
