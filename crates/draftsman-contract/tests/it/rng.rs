//! The counter-based generator: pinned numbers, independence of order, distributions.

use std::collections::BTreeMap;

use draftsman_contract::CounterRng;
use proptest::prelude::*;

/// Worked out from the documented algorithm by another program. These numbers must never change: saved runs resume by them.
#[test]
fn pinned_numbers() {
    let check = |seed: u64, stream: &[u64], expected: [u64; 3]| {
        let mut rng = CounterRng::new(seed, stream);
        let got = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        assert_eq!(got, expected, "seed {seed}, stream {stream:?}");
    };
    check(0, &[], [0xd60a_4d8b_f6de_ee85, 0x02a9_2bfc_588a_5bac, 0x7939_52bc_04c5_cac2]);
    check(42, &[1, 2, 3], [0x849f_f4ee_6d71_8ffa, 0x7445_05bb_a2b2_7497, 0x2ee8_37fa_6562_d09b]);
    check(u64::MAX, &[0], [0xe1ee_9ffe_ec10_73c7, 0xad58_a358_3879_7421, 0x5529_cc2f_81f4_758f]);
}

#[test]
fn streams_differ() {
    let mut firsts = BTreeMap::new();
    let streams: Vec<Vec<u64>> = (0..40)
        .flat_map(|a| (0..40).map(move |b| vec![a, b]))
        .chain((0..40).map(|a| vec![a]))
        .chain([vec![], vec![0, 0, 0], vec![u64::MAX]])
        .collect();
    for seed in 0..3 {
        for stream in &streams {
            let first = CounterRng::new(seed, stream).next_u64();
            if let Some(other) = firsts.insert(first, (seed, stream.clone())) {
                panic!("seed {seed} stream {stream:?} begins as {other:?}");
            }
        }
    }
}

/// Bits across neighbouring streams are as even as within one: the first number of 4096 streams.
#[test]
fn neighbouring_streams_are_independent() {
    for bit in 0..64 {
        let ones: u64 = (0..4096).map(|word| CounterRng::new(1, &[3, word]).next_u64() >> bit & 1).sum();
        // 2048 expected, standard deviation 32.
        assert!((1888..=2208).contains(&ones), "bit {bit}: {ones} of 4096");
    }
}

proptest! {
    #[test]
    fn below_stays_below(seed in any::<u64>(), n in prop_oneof![1usize..9, Just(usize::MAX), any::<usize>()]) {
        let mut rng = CounterRng::new(seed, &[]);
        for _ in 0..20 {
            let value = rng.below(n);
            prop_assert!(value < n || (n == 0 && value == 0));
        }
    }

    #[test]
    fn samples_are_different_ascending_and_within(seed in any::<u64>(), n in 0usize..60, k in 0usize..70) {
        let sample = CounterRng::new(seed, &[]).sample_indices(n, k);
        prop_assert_eq!(sample.len(), k.min(n));
        prop_assert!(sample.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(sample.iter().all(|&index| index < n));
    }

    #[test]
    fn a_shuffle_loses_nothing(seed in any::<u64>(), n in 0usize..60) {
        let mut items: Vec<usize> = (0..n).collect();
        CounterRng::new(seed, &[]).shuffle(&mut items);
        items.sort_unstable();
        prop_assert_eq!(items, (0..n).collect::<Vec<_>>());
    }

    #[test]
    fn uniform_is_from_zero_to_below_one(seed in any::<u64>()) {
        let mut rng = CounterRng::new(seed, &[9]);
        for _ in 0..50 {
            let value = rng.uniform();
            prop_assert!((0.0..1.0).contains(&value));
            prop_assert!(rng.normal().is_finite());
        }
    }
}

/// Each of the outcomes about equally often: within five standard deviations of a binomial count.
fn assert_even<K: std::fmt::Debug + Ord>(counts: &BTreeMap<K, usize>, outcomes: usize, draws: usize) {
    assert_eq!(counts.len(), outcomes, "every outcome occurs and no other: {counts:?}");
    let share = 1.0 / outcomes as f64;
    let deviation = (draws as f64 * share * (1.0 - share)).sqrt();
    for (outcome, &count) in counts {
        let off = (count as f64 - draws as f64 * share).abs();
        assert!(off < 5.0 * deviation, "{outcome:?}: {count} of {draws}");
    }
}

#[test]
fn every_outcome_is_as_likely() {
    const DRAWS: usize = 24_000;
    fn count<K: Ord>(draw: impl Fn(&mut CounterRng) -> K) -> BTreeMap<K, usize> {
        let mut counts = BTreeMap::new();
        for index in 0..DRAWS {
            *counts.entry(draw(&mut CounterRng::new(5, &[index as u64]))).or_default() += 1;
        }
        counts
    }
    assert_even(&count(|rng| rng.below(7)), 7, DRAWS);
    assert_even(&count(|rng| (rng.uniform() * 16.0) as u32), 16, DRAWS);
    assert_even(&count(|rng| rng.sample_indices(6, 3)), 20, DRAWS);
    let shuffled = |rng: &mut CounterRng| {
        let mut items = [0, 1, 2, 3];
        rng.shuffle(&mut items);
        items
    };
    assert_even(&count(shuffled), 24, DRAWS);
    // Consecutive numbers of one generator don't hang together either.
    assert_even(&count(|rng| (rng.below(4), rng.below(4), rng.below(2))), 32, DRAWS);
}

#[test]
fn below_has_no_bias_near_the_top_of_the_range() {
    // With n = 3·2^62 a plain modulo or an unrejected product gives one third of the results twice as often.
    let n = 3usize << 62;
    let mut rng = CounterRng::new(11, &[]);
    let mut counts = BTreeMap::new();
    for _ in 0..12_000 {
        *counts.entry(rng.below(n) % 3).or_default() += 1;
    }
    assert_even(&counts, 3, 12_000);
}

#[test]
fn normal_numbers_have_their_moments() {
    let mut rng = CounterRng::new(3, &[]);
    let draws: Vec<f64> = (0..40_000).map(|_| f64::from(rng.normal())).collect();
    let moment = |power: i32| draws.iter().map(|x| x.powi(power)).sum::<f64>() / draws.len() as f64;
    for (power, expected, tolerance) in [(1, 0.0, 0.025), (2, 1.0, 0.04), (3, 0.0, 0.1), (4, 3.0, 0.3)] {
        assert!((moment(power) - expected).abs() < tolerance, "moment {power}: {}", moment(power));
    }
}
