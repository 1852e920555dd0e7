//! Greatest entries against a full sort.

use draftsman_contract::{argmax, log_sum_exp, top_k};
use proptest::prelude::*;

fn values() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => (-4i32..4).prop_map(|n| n as f32),
        4 => -9.0f32..9.0,
        1 => Just(f32::NAN),
        1 => Just(-f32::NAN),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(f32::INFINITY),
        1 => Just(-0.0),
    ];
    prop::collection::vec(value, 0..150)
}

/// Repeatedly the greatest of what is left, the first of equals; then the NaN in order.
fn by_taking(values: &[f32], k: usize) -> Vec<u32> {
    let mut left: Vec<usize> = (0..values.len()).collect();
    let mut taken = Vec::new();
    while taken.len() < k && !left.is_empty() {
        let mut best = 0;
        for candidate in 1..left.len() {
            let (value, champion) = (values[left[candidate]], values[left[best]]);
            if value > champion || (champion.is_nan() && !value.is_nan()) {
                best = candidate;
            }
        }
        taken.push(left.remove(best) as u32);
    }
    taken
}

proptest! {
    #[test]
    fn top_k_takes_the_greatest_first(values in values(), k in prop_oneof![0usize..10, 28usize..37, 0usize..200]) {
        let top = top_k(&values, k);
        prop_assert_eq!(top.iter().map(|entry| entry.0).collect::<Vec<_>>(), by_taking(&values, k));
        for (id, value) in top {
            prop_assert_eq!(value.to_bits(), values[id as usize].to_bits());
        }
    }

    #[test]
    fn argmax_is_the_first_of_top_k(values in values()) {
        let expected = by_taking(&values, 1).first().map_or(0, |&id| id as usize);
        prop_assert_eq!(argmax(&values), expected);
    }

    #[test]
    fn log_sum_exp_is_what_it_says(values in prop::collection::vec(-20.0f32..20.0, 1..60), shift in -1000i32..1000) {
        let expected = values.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        prop_assert!((log_sum_exp(&values) - expected).abs() < 1e-12 * (1.0 + expected.abs()));
        // Shifted far beyond the range of exp; only the rounding of the shifted f32 remains.
        let shifted: Vec<f32> = values.iter().map(|&x| x + shift as f32).collect();
        prop_assert!((log_sum_exp(&shifted) - expected - f64::from(shift)).abs() < 1e-3);
    }
}

#[test]
fn log_sum_exp_at_the_edges() {
    let infinity = f32::INFINITY;
    assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
    assert_eq!(log_sum_exp(&[-infinity, -infinity]), f64::NEG_INFINITY);
    assert_eq!(log_sum_exp(&[-infinity, 2.0]), 2.0);
    assert_eq!(log_sum_exp(&[infinity, 2.0]), f64::INFINITY);
    assert!(log_sum_exp(&[1.0, f32::NAN]).is_nan());
    assert!((log_sum_exp(&[1e30, 1e30]) - f64::from(1e30f32)).abs() < 1.0);
}
