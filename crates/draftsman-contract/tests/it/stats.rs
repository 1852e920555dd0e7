//! Acceptance statistics: merging, means, rates, intervals.

use draftsman_contract::AcceptanceStats;
use proptest::prelude::*;

/// Per response: the accepted drafts of its cycles, and the slot hits of its blocks.
type Response = (Vec<usize>, Vec<Vec<Option<bool>>>);

fn responses() -> impl Strategy<Value = Vec<Response>> {
    let cycles = prop::collection::vec(0usize..9, 0..12);
    let hits = prop::collection::vec(prop::collection::vec(prop::option::of(any::<bool>()), 0..6), 0..5);
    prop::collection::vec((cycles, hits), 0..8)
}

fn pooled(responses: &[Response]) -> AcceptanceStats {
    let mut stats = AcceptanceStats::new();
    for (cycles, hits) in responses {
        stats.begin_response();
        cycles.iter().for_each(|&accepted| stats.record_cycle(accepted));
        hits.iter().for_each(|block| stats.record_slots(block.iter().copied()));
    }
    stats
}

fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() < 1e-12,
        _ => a == b,
    }
}

proptest! {
    #[test]
    fn merged_parts_are_the_whole(responses in responses(), cut in any::<prop::sample::Index>(), seed in any::<u64>()) {
        let whole = pooled(&responses);
        let cut = cut.index(responses.len() + 1);
        let mut merged = pooled(&responses[..cut]);
        merged.merge(&pooled(&responses[cut..]));
        prop_assert_eq!(&merged, &whole);
        prop_assert_eq!(merged.bootstrap_interval(seed), whole.bootstrap_interval(seed));

        let mut one_by_one = AcceptanceStats::new();
        for response in &responses {
            one_by_one.merge(&pooled(std::slice::from_ref(response)));
        }
        prop_assert_eq!(&one_by_one, &whole);

        let text = serde_json::to_string(&whole).unwrap();
        prop_assert_eq!(serde_json::from_str::<AcceptanceStats>(&text).unwrap(), whole);
    }

    #[test]
    fn means_and_rates(responses in responses()) {
        let stats = pooled(&responses);
        let cycles: Vec<usize> = responses.iter().flat_map(|response| response.0.clone()).collect();
        let mean = |values: &[usize]| {
            (!values.is_empty()).then(|| values.iter().sum::<usize>() as f64 / values.len() as f64)
        };
        prop_assert!(close(stats.micro(), mean(&cycles)));
        let means: Vec<f64> = responses.iter().filter_map(|response| mean(&response.0)).collect();
        let macro_mean = (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64);
        prop_assert!(close(stats.macro_mean(), macro_mean));
        prop_assert!(close(stats.acceptance_length_micro(), mean(&cycles).map(|m| m + 1.0)));
        prop_assert!(close(stats.acceptance_length_macro(), macro_mean.map(|m| m + 1.0)));

        prop_assert_eq!(stats.histogram.iter().sum::<u64>(), stats.cycles);
        let rates = stats.acceptance_rates();
        prop_assert_eq!(rates.len(), cycles.iter().max().copied().unwrap_or(0));
        for (draft, &rate) in rates.iter().enumerate() {
            let reached = cycles.iter().filter(|&&accepted| accepted > draft).count();
            prop_assert!(close(Some(rate), Some(reached as f64 / cycles.len() as f64)));
        }
        prop_assert!(close(Some(rates.iter().sum()), Some(stats.micro().unwrap_or(0.0))));

        let blocks: Vec<&Vec<Option<bool>>> = responses.iter().flat_map(|response| &response.1).collect();
        let slots = blocks.iter().map(|block| block.len()).max().unwrap_or(0);
        prop_assert_eq!(stats.slot_hit_rates().len(), slots);
        for (slot, rate) in stats.slot_hit_rates().into_iter().enumerate() {
            let judged: Vec<bool> = blocks.iter().filter_map(|block| block.get(slot).copied().flatten()).collect();
            let hits: Vec<usize> = judged.iter().map(|&hit| usize::from(hit)).collect();
            prop_assert!(close(rate, mean(&hits)));
        }
    }

    #[test]
    fn an_interval_spans_response_means(responses in responses(), seed in any::<u64>()) {
        let stats = pooled(&responses);
        let means: Vec<f64> = responses
            .iter()
            .filter(|response| !response.0.is_empty())
            .map(|response| response.0.iter().sum::<usize>() as f64 / response.0.len() as f64)
            .collect();
        match stats.bootstrap_interval(seed) {
            None => prop_assert!(means.len() < 2),
            Some(interval) => {
                prop_assert!(means.len() >= 2);
                prop_assert!(interval.low <= interval.high);
                let least = means.iter().copied().fold(f64::INFINITY, f64::min);
                let most = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                prop_assert!(least - 1e-12 <= interval.low && interval.high <= most + 1e-12);
                let length = stats.acceptance_length_interval(seed).unwrap();
                prop_assert_eq!((length.low, length.high), (interval.low + 1.0, interval.high + 1.0));
            }
        }
    }
}

#[test]
fn micro_and_macro_differ() {
    let mut stats = AcceptanceStats::from_response([3, 3, 3, 3]);
    stats.merge(&AcceptanceStats::from_response([1]));
    stats.merge(&AcceptanceStats::from_response([]));
    assert_eq!(stats.micro(), Some(13.0 / 5.0));
    assert_eq!(stats.macro_mean(), Some(2.0));
    assert_eq!(stats.histogram, [0, 1, 0, 4]);
    assert_eq!(stats.acceptance_rates(), [1.0, 0.8, 0.8]);
    assert_eq!(stats.responses.len(), 3);
    assert_eq!(AcceptanceStats::new().micro(), None);
    assert_eq!(AcceptanceStats::new().macro_mean(), None);
}

/// The interval of a mean of many independent responses: close to the mean, by about two standard errors.
#[test]
fn the_interval_has_the_width_it_should() {
    let mut stats = AcceptanceStats::new();
    for response in 0..400 {
        // Accepted 0 or 2, evenly: mean 1, standard deviation 1, standard error 1/20.
        stats.merge(&AcceptanceStats::from_response([response % 2 * 2]));
    }
    let interval = stats.bootstrap_interval(7).unwrap();
    for (end, expected) in [(interval.low, 1.0 - 1.96 / 20.0), (interval.high, 1.0 + 1.96 / 20.0)] {
        assert!((end - expected).abs() < 0.015, "{end} against {expected}");
    }
    assert_eq!(stats.bootstrap_interval(7), Some(interval));
    assert_ne!(stats.bootstrap_interval(8), Some(interval));
}
