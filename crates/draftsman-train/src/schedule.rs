//! Learning rate by step: warmup, then cosine, a linear tail, or constant.

use std::f64::consts::PI;

/// The course of the learning rate after the warmup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// Half a cosine from the peak down to the floor.
    Cosine,
    /// The peak, then a straight line down to the floor over the last share of the steps.
    LinearTail,
    /// The peak to the end.
    Constant,
}

/// A learning-rate schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Shape after the warmup.
    pub course: Course,
    /// Highest learning rate, reached when the warmup ends.
    pub peak: f64,
    /// Steps of linear warmup.
    pub warmup_steps: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// Share of the steps that the linear tail takes (only [`Course::LinearTail`]).
    pub tail_share: f64,
    /// Floor, as a share of the peak.
    pub floor_share: f64,
}

impl Schedule {
    /// Learning rate of the update that follows `done` completed updates.
    ///
    /// The first update of a warmup of W steps uses peak/W, not 0: a step at rate 0 would be wasted.
    #[must_use]
    pub fn at(&self, done: usize) -> f64 {
        if done < self.warmup_steps {
            return self.peak * (done + 1) as f64 / self.warmup_steps as f64;
        }
        let floor = self.peak * self.floor_share;
        // Counted so that the last update still moves: `left` is 1 there.
        let left = self.steps.saturating_sub(done) as f64;
        let share = match self.course {
            Course::Constant => return self.peak,
            Course::Cosine => {
                let whole = self.steps.saturating_sub(self.warmup_steps).max(1) as f64;
                0.5 * (1.0 - (PI * (left / whole).min(1.0)).cos())
            }
            Course::LinearTail => {
                let tail = (self.steps as f64 * self.tail_share).max(1.0);
                (left / tail).min(1.0)
            }
        };
        floor + (self.peak - floor) * share
    }
}
