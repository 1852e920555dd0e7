//! Choosing tokens.

use draftsman_decode::{GenerateOptions, Sampler};

#[test]
fn greedy_takes_the_first_maximum() {
    let sampler = Sampler::new(&GenerateOptions::greedy(1, &[]));
    let check = |logits: &[f32], token: u32, gap: f32| {
        let pick = sampler.pick(logits, 0).unwrap();
        assert_eq!((pick.token, pick.gap), (token, gap), "{logits:?}");
    };
    check(&[1.0, 3.0, 3.0, 2.0], 1, 0.0);
    check(&[1.0, 3.5, 3.0], 1, 0.5);
    check(&[f32::NEG_INFINITY, -2.0], 1, f32::INFINITY);
    assert!(sampler.pick(&[f32::NAN, f32::NAN], 4).unwrap_err().to_string().contains("position 4"));
    assert!(sampler.pick(&[1.0, f32::INFINITY], 4).is_err());
    assert!(sampler.pick(&[], 4).is_err());
}

#[test]
fn draws_follow_the_distribution_and_the_position_alone() {
    let logits = [0.0f32, 1.0, f32::NEG_INFINITY, -1.0, 0.5];
    let temperature = 0.7f32;
    let options = GenerateOptions { temperature, seed: 11, ..GenerateOptions::greedy(1, &[]) };
    let sampler = Sampler::new(&options);
    let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / f64::from(temperature)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let draws = 40_000;
    let mut counts = [0usize; 5];
    for position in 0..draws {
        let pick = sampler.pick(&logits, position).unwrap();
        assert_eq!(pick, sampler.pick(&logits, position).unwrap());
        counts[pick.token as usize] += 1;
    }
    assert_eq!(counts[2], 0, "a token of probability 0");
    // Chi-square with 3 degrees of freedom; 21.1 is the 0.9999 quantile.
    let chi: f64 = (0..5)
        .filter(|&i| i != 2)
        .map(|i| {
            let expected = weights[i] / total * draws as f64;
            (counts[i] as f64 - expected).powi(2) / expected
        })
        .sum();
    assert!(chi < 21.1, "chi-square {chi}, counts {counts:?}");
    let other = Sampler::new(&GenerateOptions { seed: 12, ..options.clone() });
    let streams = sampler.with_stream(1);
    let differs = |s: &Sampler| (0..100).any(|p| s.pick(&logits, p).unwrap() != sampler.pick(&logits, p).unwrap());
    assert!(differs(&other) && differs(&streams));
}
