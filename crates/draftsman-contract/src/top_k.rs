//! Greatest entries of a row of logits, and its normaliser.

use std::cmp::Ordering;

/// Index of the greatest value, the first of equals. NaN is never greatest; 0 for a row of NaN or no row at all.
pub fn argmax(values: &[f32]) -> usize {
    let mut best: Option<usize> = None;
    for (index, &value) in values.iter().enumerate() {
        if !value.is_nan() && best.is_none_or(|best| value > values[best]) {
            best = Some(index);
        }
    }
    best.unwrap_or(0)
}

/// The `k` greatest values with their indices, falling, equal ones by rising index; NaN comes last. All of them if there
/// are fewer than `k`.
pub fn top_k(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    let k = k.min(values.len());
    if k == 0 {
        return Vec::new();
    }
    if k <= SMALL_K { top_k_by_insertion(values, k) } else { top_k_by_selection(values, k) }
}

/// Up to here a sorted list of the best is kept while passing once over the row.
const SMALL_K: usize = 32;

fn top_k_by_insertion(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(k + 1);
    for (index, &value) in values.iter().enumerate() {
        let entry = (index as u32, value);
        // Indices rise, so an equal value never displaces one already there.
        if best.len() == k && by_value(&entry, &best[k - 1]) != Ordering::Less {
            continue;
        }
        let at = best.partition_point(|kept| order(kept, &entry) == Ordering::Less);
        best.insert(at, entry);
        best.truncate(k);
    }
    best
}

fn top_k_by_selection(values: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut entries: Vec<(u32, f32)> = values.iter().enumerate().map(|(index, &value)| (index as u32, value)).collect();
    if k < entries.len() {
        entries.select_nth_unstable_by(k - 1, order);
        entries.truncate(k);
    }
    entries.sort_unstable_by(order);
    entries
}

/// Less = comes first.
fn order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    by_value(a, b).then(a.0.cmp(&b.0))
}

/// Falling value, NaN last; 0.0 and -0.0 are equal.
fn by_value(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or_else(|| a.1.is_nan().cmp(&b.1.is_nan()))
}

/// Logarithm of the sum of exponentials, in f64 and in the order given: -inf for an empty row or one of -inf, NaN if any
/// value is.
pub fn log_sum_exp(values: &[f32]) -> f64 {
    let mut greatest = f32::NEG_INFINITY;
    for &value in values {
        if value.is_nan() {
            return f64::NAN;
        }
        greatest = greatest.max(value);
    }
    if greatest.is_infinite() {
        return f64::from(greatest);
    }
    let greatest = f64::from(greatest);
    let mut sum = 0.0;
    for &value in values {
        sum += (f64::from(value) - greatest).exp();
    }
    greatest + sum.ln()
}
