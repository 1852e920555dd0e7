//! Mean, spread and range of values that arrive in parts.

use serde::Serialize;

/// Values whose moments are taken at once.
const CHUNK: usize = 4096;

/// Moments of the finite values seen so far, and how many values were not finite.
///
/// Chunks are summed in f64 around their own mean and merged by the rule of Chan, Golub and LeVeque, so a mean that is
/// huge beside the spread costs no digits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(into = "Summary")]
pub struct Moments {
    finite: u64,
    mean: f64,
    /// Sum of squared distances from the mean.
    squares: f64,
    min: f64,
    max: f64,
    nan: u64,
    infinite: u64,
}

/// What a report says of [`Moments`]. Without a finite value there are no moments.
#[derive(Serialize)]
struct Summary {
    mean: Option<f64>,
    std: Option<f64>,
    rms: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    nan: u64,
    infinite: u64,
    non_finite_share: f64,
}

impl From<Moments> for Summary {
    fn from(moments: Moments) -> Self {
        Self {
            mean: moments.mean(),
            std: moments.std(),
            rms: moments.rms(),
            min: moments.min(),
            max: moments.max(),
            nan: moments.nan,
            infinite: moments.infinite,
            non_finite_share: moments.non_finite_share(),
        }
    }
}

impl Moments {
    /// Of no value.
    pub const EMPTY: Self =
        Self { finite: 0, mean: 0.0, squares: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY, nan: 0, infinite: 0 };

    /// Of these values.
    pub fn of(values: &[f32]) -> Self {
        let mut all = Self::EMPTY;
        for chunk in values.chunks(CHUNK) {
            all.merge(&Self::of_chunk(chunk));
        }
        all
    }

    fn of_chunk(values: &[f32]) -> Self {
        let mut moments = Self::EMPTY;
        let mut sum = 0.0;
        for value in values.iter().copied() {
            if value.is_finite() {
                let value = f64::from(value);
                moments.finite += 1;
                sum += value;
                moments.min = moments.min.min(value);
                moments.max = moments.max.max(value);
            } else if value.is_nan() {
                moments.nan += 1;
            } else {
                moments.infinite += 1;
            }
        }
        if moments.finite > 0 {
            let mean = sum / moments.finite as f64;
            let distances = values.iter().filter(|value| value.is_finite()).map(|value| f64::from(*value) - mean);
            moments.mean = mean;
            moments.squares = distances.map(|distance| distance * distance).sum();
        }
        moments
    }

    /// Adds the values that `other` has seen.
    pub fn merge(&mut self, other: &Self) {
        self.nan += other.nan;
        self.infinite += other.infinite;
        if other.finite == 0 {
            return;
        }
        let (here, there) = (self.finite as f64, other.finite as f64);
        let all = here + there;
        let distance = other.mean - self.mean;
        self.mean += distance * (there / all);
        self.squares += other.squares + distance * distance * (here * there / all);
        self.finite += other.finite;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// All values.
    pub fn count(&self) -> u64 {
        self.finite + self.non_finite()
    }

    /// Values that are NaN or infinite.
    pub fn non_finite(&self) -> u64 {
        self.nan + self.infinite
    }

    /// Values that are NaN.
    pub fn nan(&self) -> u64 {
        self.nan
    }

    /// Share of the values that are NaN or infinite; 0 of no value.
    pub fn non_finite_share(&self) -> f64 {
        self.non_finite() as f64 / self.count().max(1) as f64
    }

    /// Mean of the finite values.
    pub fn mean(&self) -> Option<f64> {
        self.of_finite(self.mean)
    }

    /// Standard deviation of the finite values as a population: the squares are divided by their number.
    pub fn std(&self) -> Option<f64> {
        self.of_finite(self.variance().sqrt())
    }

    /// Root mean square of the finite values.
    pub fn rms(&self) -> Option<f64> {
        self.of_finite((self.mean * self.mean + self.variance()).sqrt())
    }

    /// Least finite value.
    pub fn min(&self) -> Option<f64> {
        self.of_finite(self.min)
    }

    /// Greatest finite value.
    pub fn max(&self) -> Option<f64> {
        self.of_finite(self.max)
    }

    fn variance(&self) -> f64 {
        self.squares / self.finite.max(1) as f64
    }

    fn of_finite(&self, value: f64) -> Option<f64> {
        (self.finite > 0).then_some(value)
    }
}
