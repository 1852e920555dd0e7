//! Head and cross-entropy against the definition in f64, against burn, and row by row.

use burn::tensor::Device;
use draftsman_contract::CounterRng;
use draftsman_kernels::{
    CrossEntropy, HeadOptions, Weight, WeightDtype, head_logits, head_logits_reference, head_top_k,
    linear_cross_entropy, linear_cross_entropy_reference,
};
use proptest::prelude::*;

use crate::support::{assert_close, bits, finite_differences, leaf, normal, tensor, values, with_threads};

const PLAIN: HeadOptions =
    HeadOptions { output_multiplier: 1.0, final_logit_softcapping: None, top_k: 3, temperature: 1.0 };
const CAPPED: HeadOptions =
    HeadOptions { output_multiplier: 0.7, final_logit_softcapping: Some(5.0), top_k: 8, temperature: 1.5 };

struct Case {
    rows: usize,
    hidden: usize,
    h: Vec<f32>,
    head: Weight,
    labels: Vec<Option<u32>>,
    weights: Vec<f32>,
}

fn case(seed: u64, rows: usize, hidden: usize, vocab: usize, dtype: WeightDtype) -> Case {
    let mut rng = CounterRng::new(seed, &[7]);
    let labels = (0..rows).map(|_| (rng.uniform() < 0.8).then(|| rng.below(vocab) as u32)).collect();
    let weights = (0..rows).map(|_| if rng.uniform() < 0.2 { 0.0 } else { rng.uniform() as f32 }).collect();
    let scale = 2.0 / (hidden as f32).sqrt();
    let head = normal(seed + 1, vocab * hidden).iter().map(|v| v * scale).collect();
    let head = Weight::from_f32(head, [vocab, hidden], dtype, &Device::flex()).expect("matching length");
    Case { rows, hidden, h: normal(seed, rows * hidden), head, labels, weights }
}

impl Case {
    /// Log-probabilities by definition, `[rows][vocab]`.
    fn log_probs(&self, h: &[f32], opts: &HeadOptions) -> Vec<Vec<f64>> {
        let head = self.head.to_f32();
        h.chunks(self.hidden)
            .map(|h| {
                let logits: Vec<f64> = head
                    .chunks(self.hidden)
                    .map(|w| {
                        let raw: f64 = h.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let scaled = raw * f64::from(opts.output_multiplier);
                        let capped = opts.final_logit_softcapping.map_or(scaled, |cap| {
                            let cap = f64::from(cap);
                            cap * (scaled / cap).tanh()
                        });
                        capped / f64::from(opts.temperature)
                    })
                    .collect();
                let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let log_sum = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
                logits.iter().map(|l| l - log_sum).collect()
            })
            .collect()
    }

    fn loss(&self, h: &[f32], opts: &HeadOptions) -> f64 {
        let all = self.log_probs(h, opts);
        (0..self.rows)
            .filter_map(|row| self.labels[row].map(|id| -f64::from(self.weights[row]) * all[row][id as usize]))
            .sum()
    }

    /// Loss and the gradient of 3·numerator.
    fn run(&self, op: Op, opts: &HeadOptions) -> (CrossEntropy, Vec<f32>) {
        let h = leaf(&self.h, [self.rows, self.hidden]);
        let ce = op(h.clone(), &self.head, &self.labels, &self.weights, opts);
        let grads = (ce.numerator.clone() * 3.0).backward();
        let gradient = h.grad(&grads).map_or(vec![0.0; self.h.len()], values);
        (ce, gradient)
    }

    fn forward(&self, rows: &[usize], opts: &HeadOptions) -> CrossEntropy {
        let h: Vec<f32> = rows.iter().flat_map(|i| self.h[i * self.hidden..(i + 1) * self.hidden].to_vec()).collect();
        let labels: Vec<_> = rows.iter().map(|i| self.labels[*i]).collect();
        let weights: Vec<_> = rows.iter().map(|i| self.weights[*i]).collect();
        linear_cross_entropy(tensor(&h, [rows.len(), self.hidden]), &self.head, &labels, &weights, opts)
    }
}

type Op = fn(burn::tensor::Tensor<2>, &Weight, &[Option<u32>], &[f32], &HeadOptions) -> CrossEntropy;

#[test]
fn equals_the_definition() {
    #[track_caller]
    fn check(rows: usize, hidden: usize, vocab: usize, opts: HeadOptions, dtype: WeightDtype) {
        let case = case(5, rows, hidden, vocab, dtype);
        let name = format!("[{rows}, {hidden}] x [{vocab}, {hidden}] {dtype} {opts:?}");
        let truth = case.log_probs(&case.h, &opts);
        for (path, op) in [("fast", linear_cross_entropy as Op), ("reference", linear_cross_entropy_reference)] {
            let (ce, _) = case.run(op, &opts);
            let name = format!("{name}, {path}");
            assert_close(
                &format!("{name}: numerator"),
                &values(ce.numerator),
                &[case.loss(&case.h, &opts) as f32],
                2e-6,
            );
            let denominator: f64 =
                (0..rows).filter(|i| case.labels[*i].is_some()).map(|i| f64::from(case.weights[i])).sum();
            assert!((ce.denominator - denominator).abs() < 1e-9, "{name}: denominator {}", ce.denominator);
            assert_eq!(ce.top.len(), rows, "{name}");
            for (row, truth) in truth.iter().enumerate() {
                match case.labels[row] {
                    None => assert!(ce.label_log_prob[row].is_nan(), "{name}: row {row}"),
                    Some(id) => {
                        let expected = truth[id as usize] as f32;
                        assert_close(&format!("{name}: row {row}"), &[ce.label_log_prob[row]], &[expected], 2e-6);
                    }
                }
                let mut order: Vec<u32> = (0..vocab as u32).collect();
                order.sort_by(|a, b| truth[*b as usize].total_cmp(&truth[*a as usize]));
                order.truncate(opts.top_k);
                let ids: Vec<u32> = ce.top[row].iter().map(|(id, _)| *id).collect();
                assert_eq!(ids, order, "{name}: row {row}");
                let expected: Vec<f32> = order.iter().map(|id| truth[*id as usize] as f32).collect();
                let got: Vec<f32> = ce.top[row].iter().map(|(_, p)| *p).collect();
                assert_close(&format!("{name}: top of row {row}"), &got, &expected, 2e-6);
            }
        }
    }
    check(1, 3, 2, PLAIN, WeightDtype::F32);
    check(5, 16, 192, PLAIN, WeightDtype::F32);
    check(13, 33, 500, CAPPED, WeightDtype::F32);
    check(40, 20, 700, HeadOptions { top_k: 0, ..PLAIN }, WeightDtype::Bf16);
    check(20, 31, 389, CAPPED, WeightDtype::F16);
}

#[test]
fn gradient_equals_the_reference() {
    #[track_caller]
    fn check(rows: usize, hidden: usize, vocab: usize, opts: HeadOptions, dtype: WeightDtype) {
        let case = case(9, rows, hidden, vocab, dtype);
        let (fast, reference) =
            (case.run(linear_cross_entropy, &opts), case.run(linear_cross_entropy_reference, &opts));
        assert_close(&format!("{rows} {hidden} {vocab} {dtype} {opts:?}"), &fast.1, &reference.1, 3e-6);
    }
    check(1, 8, 5, PLAIN, WeightDtype::F32);
    check(7, 50, 1000, PLAIN, WeightDtype::F32);
    check(300, 64, 400, HeadOptions { top_k: 0, ..PLAIN }, WeightDtype::F32);
    check(65, 33, 777, CAPPED, WeightDtype::Bf16);
    check(30, 100, 389, CAPPED, WeightDtype::F16);
}

#[test]
fn gradient_is_a_finite_difference() {
    for opts in [PLAIN, CAPPED] {
        let case = case(2, 4, 6, 300, WeightDtype::F32);
        let (_, gradient) = case.run(linear_cross_entropy, &opts);
        let expected = finite_differences(&case.h, |h| 3.0 * case.loss(h, &opts));
        assert_close(&format!("{opts:?}"), &gradient, &expected, 1e-3);
    }
}

#[test]
fn ties_go_to_the_lower_id() {
    let row = normal(1, 16);
    let other: Vec<f32> = row.iter().map(|v| v * 0.5).collect();
    let mut head = Vec::new();
    for id in 0..600 {
        head.extend(if [17, 20, 191, 192, 599].contains(&id) { &row } else { &other });
    }
    let head = Weight::from_f32(head, [600, 16], WeightDtype::F32, &Device::flex()).expect("matching length");
    let h = tensor(&row, [1, 16]);
    let opts = HeadOptions { top_k: 7, ..PLAIN };
    let expected = [17, 20, 191, 192, 599, 0, 1];
    let top: Vec<u32> = head_top_k(h.clone(), &head, &opts)[0].iter().map(|(id, _)| *id).collect();
    assert_eq!(top, expected);
    let ce = linear_cross_entropy_reference(h, &head, &[None], &[1.0], &opts);
    assert_eq!(ce.top[0].iter().map(|(id, _)| *id).collect::<Vec<_>>(), expected);
}

#[test]
fn large_logits_stay_finite_and_nan_shows() {
    let head = Weight::from_f32(vec![100.0, -100.0, 50.0], [3, 1], WeightDtype::F32, &Device::flex()).expect("length");
    let run = |x: f32| {
        let h = leaf(&[x], [1, 1]);
        let ce = linear_cross_entropy(h.clone(), &head, &[Some(1)], &[1.0], &PLAIN);
        let grads = ce.numerator.clone().backward();
        (values(ce.numerator)[0], values(h.grad(&grads).expect("tracked"))[0])
    };
    assert_eq!(run(100.0), (20000.0, 200.0));
    let (loss, gradient) = run(f32::NAN);
    assert!(loss.is_nan() && gradient.is_nan());
}

#[test]
fn nothing_to_learn_is_zero() {
    let case = case(3, 6, 20, 50, WeightDtype::F32);
    let h = leaf(&case.h, [6, 20]);
    let ce = linear_cross_entropy(h.clone(), &case.head, &[None; 6], &[1.0; 6], &PLAIN);
    let grads = ce.numerator.clone().backward();
    assert_eq!(values(ce.numerator), [0.0]);
    assert_eq!(ce.denominator, 0.0);
    assert!(values(h.grad(&grads).expect("tracked")).iter().all(|g| *g == 0.0));
    assert!(ce.top.iter().all(|top| top.len() == PLAIN.top_k));
}

#[test]
#[should_panic(expected = "label Some(50) of row 1 in a vocabulary of 50")]
fn refuses_labels_outside_the_vocabulary() {
    let case = case(3, 2, 20, 50, WeightDtype::F32);
    linear_cross_entropy(tensor(&case.h, [2, 20]), &case.head, &[None, Some(50)], &[1.0; 2], &PLAIN);
}

#[test]
fn logits_equal_the_reference() {
    for opts in [PLAIN, CAPPED] {
        let case = case(4, 20, 30, 300, WeightDtype::F32);
        let h = tensor(&case.h, [20, 30]);
        let expected = values(head_logits_reference(h.clone(), &case.head, &opts));
        assert_close(&format!("{opts:?}"), &values(head_logits(h, &case.head, &opts)), &expected, 1e-6);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A row's numbers alone, among others, with or without a gradient, in any number of threads: the same bits.
    #[test]
    fn a_row_depends_on_itself_alone(
        seed in 0..1u64 << 32,
        rows in 1..140usize,
        hidden in 1..80usize,
        vocab in 1..450usize,
        capped in any::<bool>(),
        half in any::<bool>(),
        order in proptest::collection::vec(0..140usize, 1..30),
    ) {
        let opts = if capped { CAPPED } else { PLAIN };
        let case = case(seed, rows, hidden, vocab, if half { WeightDtype::Bf16 } else { WeightDtype::F32 });
        let (with_one, gradient_one) = with_threads(1, || case.run(linear_cross_entropy, &opts));
        let (with_two, gradient_two) = with_threads(2, || case.run(linear_cross_entropy, &opts));
        prop_assert_eq!(bits(&gradient_one), bits(&gradient_two));
        prop_assert_eq!(bits(&values(with_one.numerator)), bits(&values(with_two.numerator)));
        let order: Vec<usize> = order.into_iter().map(|i| i % rows).collect();
        let some = case.forward(&order, &opts);
        let alone = case.forward(&order[..1], &opts);
        prop_assert_eq!(&alone.top[0], &some.top[0]);
        for (i, from) in order.iter().enumerate() {
            prop_assert_eq!(&some.top[i], &with_one.top[*from]);
            let pair = [some.label_log_prob[i], with_two.label_log_prob[*from]];
            prop_assert!(pair[0].to_bits() == pair[1].to_bits() || pair.iter().all(|v| v.is_nan()), "{:?}", pair);
        }
        let h = tensor(&case.h, [rows, hidden]);
        let top = head_top_k(h.clone(), &case.head, &opts);
        prop_assert_eq!(&top, &with_one.top);
        let logits = values(head_logits(h, &case.head, &opts));
        for (row, top) in logits.chunks(vocab).zip(&top) {
            prop_assert_eq!(draftsman_contract::argmax(row) as u32, top[0].0);
        }
    }
}

/// Results of both options for `levels::instruction_sets_agree`.
pub(crate) fn sample() -> Vec<f32> {
    [PLAIN, CAPPED]
        .iter()
        .flat_map(|opts| {
            let case = case(6, 40, 50, 600, WeightDtype::Bf16);
            let (ce, gradient) = case.run(linear_cross_entropy, opts);
            let mut all = values(ce.numerator / 100.0);
            all.extend(ce.label_log_prob.iter().filter(|v| !v.is_nan()).map(|v| v / 10.0));
            all.extend(gradient);
            all.extend(ce.top.iter().flatten().map(|(id, p)| p + *id as f32 * 1e-3));
            all
        })
        .collect()
}
