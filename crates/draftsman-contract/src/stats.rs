//! Acceptance over many cycles: counts that merge, and what is read off them.

use serde::{Deserialize, Serialize};

use crate::CounterRng;

/// Counts of accepted drafts. Everything is a whole number, so merging parts gives exactly the whole.
///
/// A *cycle* is one block judged (one verify pass of the target, or one anchor); a *response* is one answer (or one
/// document) whose cycles belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptanceStats {
    /// Cycles counted.
    pub cycles: u64,
    /// Accepted drafts over all cycles, bonus tokens excluded.
    pub accepted: u64,
    /// Cycles by accepted drafts: entry a counts those that accepted exactly a.
    pub histogram: Vec<u64>,
    /// Per draft slot: how often its first choice was the truth.
    pub slot_hits: Vec<u64>,
    /// Per draft slot: how often there was a truth to compare with.
    pub slot_valid: Vec<u64>,
    /// The counts of every response, in the order recorded.
    pub responses: Vec<ResponseCounts>,
}

/// What one response adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseCounts {
    /// Its cycles.
    pub cycles: u64,
    /// Its accepted drafts.
    pub accepted: u64,
}

/// A confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Stream word of the bootstrap, so that its draws are nobody else's.
const BOOTSTRAP_STREAM: u64 = 0x626f_6f74;

/// Resamples of [`AcceptanceStats::bootstrap_interval`].
const BOOTSTRAP_RESAMPLES: u64 = 2000;

/// Share of the resamples left out at each end: a 95 % interval.
const BOOTSTRAP_TAIL: f64 = 0.025;

impl AcceptanceStats {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One response with the accepted drafts of each of its cycles.
    pub fn from_response(accepted: impl IntoIterator<Item = usize>) -> Self {
        let mut stats = Self::new();
        stats.begin_response();
        for accepted in accepted {
            stats.record_cycle(accepted);
        }
        stats
    }

    /// The cycles recorded from here on belong to a new response.
    pub fn begin_response(&mut self) {
        self.responses.push(ResponseCounts::default());
    }

    /// Counts one cycle with `accepted` drafts in the response begun last (begins one if there is none).
    pub fn record_cycle(&mut self, accepted: usize) {
        if self.responses.is_empty() {
            self.begin_response();
        }
        let count = accepted as u64;
        self.cycles += 1;
        self.accepted += count;
        grow(&mut self.histogram, accepted + 1);
        self.histogram[accepted] += 1;
        if let Some(response) = self.responses.last_mut() {
            response.cycles += 1;
            response.accepted += count;
        }
    }

    /// Counts the first choice of every draft slot of one block: hit or missed, none where there was no truth.
    pub fn record_slots(&mut self, hits: impl IntoIterator<Item = Option<bool>>) {
        for (slot, hit) in hits.into_iter().enumerate() {
            grow(&mut self.slot_hits, slot + 1);
            grow(&mut self.slot_valid, slot + 1);
            self.slot_hits[slot] += u64::from(hit == Some(true));
            self.slot_valid[slot] += u64::from(hit.is_some());
        }
    }

    /// Adds the counts of `other`, whose responses follow this one's.
    pub fn merge(&mut self, other: &Self) {
        self.cycles += other.cycles;
        self.accepted += other.accepted;
        add(&mut self.histogram, &other.histogram);
        add(&mut self.slot_hits, &other.slot_hits);
        add(&mut self.slot_valid, &other.slot_valid);
        self.responses.extend_from_slice(&other.responses);
    }

    /// Accepted drafts per cycle, pooled over all cycles. None without cycles.
    pub fn micro(&self) -> Option<f64> {
        mean(self.accepted, self.cycles)
    }

    /// Mean over the responses of each one's accepted drafts per cycle; responses without cycles don't count.
    pub fn macro_mean(&self) -> Option<f64> {
        let mut sum = 0.0;
        let mut count = 0u64;
        for value in self.responses.iter().filter_map(|r| mean(r.accepted, r.cycles)) {
            sum += value;
            count += 1;
        }
        (count > 0).then(|| sum / count as f64)
    }

    /// Tokens committed per cycle, pooled: accepted drafts + 1 for the bonus token.
    pub fn acceptance_length_micro(&self) -> Option<f64> {
        self.micro().map(|accepted| accepted + 1.0)
    }

    /// Mean over the responses of each one's tokens committed per cycle.
    pub fn acceptance_length_macro(&self) -> Option<f64> {
        self.macro_mean().map(|accepted| accepted + 1.0)
    }

    /// Per draft slot: share of the judged blocks whose first choice there was the truth, whatever came before it.
    /// None where nothing was judged.
    pub fn slot_hit_rates(&self) -> Vec<Option<f64>> {
        self.slot_hits.iter().zip(&self.slot_valid).map(|(&hits, &valid)| mean(hits, valid)).collect()
    }

    /// Per draft (1st, 2nd, ...): share of the cycles that accepted it. Falling; its sum is the mean of accepted drafts.
    pub fn acceptance_rates(&self) -> Vec<f64> {
        let mut reached = self.cycles;
        let mut rates = Vec::new();
        for &count in self.histogram.iter().take(self.histogram.len().saturating_sub(1)) {
            reached -= count.min(reached);
            rates.push(mean(reached, self.cycles).unwrap_or(0.0));
        }
        rates
    }

    /// 95 % interval of [`AcceptanceStats::micro`] by resampling whole responses (their cycles hang together), 2000 times.
    /// A function of the counts and `seed` alone. None with fewer than two responses that have cycles.
    pub fn bootstrap_interval(&self, seed: u64) -> Option<Interval> {
        let responses: Vec<_> = self.responses.iter().filter(|response| response.cycles > 0).collect();
        if responses.len() < 2 {
            return None;
        }
        let mut means = Vec::with_capacity(BOOTSTRAP_RESAMPLES as usize);
        for resample in 0..BOOTSTRAP_RESAMPLES {
            let mut rng = CounterRng::new(seed, &[BOOTSTRAP_STREAM, resample]);
            let mut drawn = ResponseCounts::default();
            for _ in 0..responses.len() {
                let response = responses[rng.below(responses.len())];
                drawn.cycles += response.cycles;
                drawn.accepted += response.accepted;
            }
            means.extend(mean(drawn.accepted, drawn.cycles));
        }
        means.sort_by(f64::total_cmp);
        let last = means.len().checked_sub(1)?;
        let cut = (BOOTSTRAP_TAIL * last as f64).round() as usize;
        Some(Interval { low: means[cut], high: means[last - cut] })
    }

    /// [`AcceptanceStats::bootstrap_interval`] of the acceptance length (bonus included).
    pub fn acceptance_length_interval(&self, seed: u64) -> Option<Interval> {
        let interval = self.bootstrap_interval(seed)?;
        Some(Interval { low: interval.low + 1.0, high: interval.high + 1.0 })
    }
}

fn mean(sum: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / count as f64)
}

fn grow(counts: &mut Vec<u64>, len: usize) {
    if counts.len() < len {
        counts.resize(len, 0);
    }
}

fn add(counts: &mut Vec<u64>, other: &[u64]) {
    grow(counts, other.len());
    for (count, more) in counts.iter_mut().zip(other) {
        *count += more;
    }
}
