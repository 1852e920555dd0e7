//! The causal convolution: against its definition, its gradients, and what its bits may depend on.

use burn::tensor::Tensor;
use draftsman_kernels::{causal_conv, causal_conv_reference, conv_tail};
use proptest::prelude::*;

use crate::support::{assert_close, bits, finite_differences, leaf, normal, tensor, weighted_sum, with_threads};
use crate::support::{golden, values};

#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    channels: usize,
    width: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    tail: Vec<f32>,
    g: Vec<f32>,
}

impl Case {
    fn new(seed: u64, rows: usize, channels: usize, width: usize) -> Self {
        Self {
            rows,
            channels,
            width,
            x: normal(seed, rows * channels),
            weight: normal(seed + 1, channels * width),
            tail: normal(seed + 2, (width - 1) * channels),
            g: normal(seed + 3, rows * channels),
        }
    }

    fn x_shape(&self) -> [usize; 2] {
        [self.rows, self.channels]
    }

    fn tail_shape(&self) -> [usize; 2] {
        [self.width - 1, self.channels]
    }

    fn run(&self) -> Vec<f32> {
        let weight = tensor(&self.weight, [self.channels, self.width]);
        values(causal_conv(tensor(&self.x, self.x_shape()), weight, tensor(&self.tail, self.tail_shape())))
    }

    /// Output and the gradients of x, weight and tail.
    fn forward_and_gradients(&self, op: fn(Tensor<2>, Tensor<2>, Tensor<2>) -> Tensor<2>) -> [Vec<f32>; 4] {
        let (x, weight) = (leaf(&self.x, self.x_shape()), leaf(&self.weight, [self.channels, self.width]));
        let tail = leaf(&self.tail, self.tail_shape());
        let out = op(x.clone(), weight.clone(), tail.clone());
        let gradients = (out.clone() * tensor(&self.g, self.x_shape()).autodiff()).sum().backward();
        let of = |x: &Tensor<2>| x.grad(&gradients).map(values).unwrap_or_default();
        [values(out), of(&x), of(&weight), of(&tail)]
    }

    fn definition(&self) -> Vec<f32> {
        let input: Vec<f32> = self.tail.iter().chain(&self.x).copied().collect();
        let mut out = Vec::new();
        for t in 0..self.rows {
            for channel in 0..self.channels {
                let tap = |j: usize| {
                    let input = input[(t + j) * self.channels + channel];
                    f64::from(self.weight[channel * self.width + j]) * f64::from(input)
                };
                let sum: f64 = (0..self.width).map(tap).sum();
                out.push((sum / (1.0 + (-sum).exp())) as f32);
            }
        }
        out
    }
}

#[test]
fn is_its_definition() {
    for (rows, channels, width) in [(1, 40, 4), (2, 16, 4), (3, 7, 4), (150, 80, 4), (5, 3, 1), (9, 33, 2), (70, 20, 6)]
    {
        let case = Case::new(rows as u64, rows, channels, width);
        let name = format!("[{rows}, {channels}], {width} taps");
        assert_close(&name, &case.run(), &case.definition(), 1e-6);
        let fast = case.forward_and_gradients(causal_conv);
        let slow = case.forward_and_gradients(causal_conv_reference);
        for (part, (fast, slow)) in ["output", "dx", "dweight", "dtail"].iter().zip(fast.iter().zip(&slow)) {
            assert_close(&format!("{name}: {part}"), fast, slow, 2e-6);
        }
        assert_eq!(bits(&fast[0]), bits(&case.run()), "{name}: tracked and untracked differ");
    }
}

#[test]
fn gradients_are_finite_differences() {
    for (rows, channels, width) in [(2, 3, 4), (6, 2, 3)] {
        let case = Case::new(7, rows, channels, width);
        let loss = |case: &Case| weighted_sum(&case.run(), &case.g);
        let expected = [
            finite_differences(&case.x, |x| loss(&Case { x: x.to_vec(), ..case.clone() })),
            finite_differences(&case.weight, |weight| loss(&Case { weight: weight.to_vec(), ..case.clone() })),
            finite_differences(&case.tail, |tail| loss(&Case { tail: tail.to_vec(), ..case.clone() })),
        ];
        for op in [causal_conv, causal_conv_reference] {
            let got = case.forward_and_gradients(op);
            for (part, (got, expected)) in ["dx", "dweight", "dtail"].iter().zip(got[1..].iter().zip(&expected)) {
                assert_close(part, got, expected, 1e-3);
            }
        }
    }
}

#[test]
fn a_tail_without_gradient_and_no_rows() {
    let case = Case::new(9, 5, 6, 4);
    let (x, weight) = (leaf(&case.x, [5, 6]), tensor(&case.weight, [6, 4]));
    for op in [causal_conv, causal_conv_reference] {
        let out = op(x.clone(), weight.clone(), tensor(&case.tail, [3, 6]));
        let gradients = out.sum().backward();
        assert_eq!(x.grad(&gradients).expect("dx").dims(), [5, 6]);
        let none = op(tensor(&[], [0, 6]), weight.clone(), tensor(&case.tail, [3, 6]));
        assert_eq!(none.dims(), [0, 6]);
    }
}

#[test]
fn the_next_tail_is_the_last_input() {
    #[track_caller]
    fn check(tail: usize, rows: usize) {
        let (old, x) = (normal(1, tail * 2), normal(2, rows * 2));
        let next = values(conv_tail(tensor(&old, [tail, 2]), tensor(&x, [rows, 2])));
        let all: Vec<f32> = old.iter().chain(&x).copied().collect();
        assert_eq!(bits(&next), bits(&all[rows * 2..]));
    }
    for rows in 0..6 {
        check(3, rows);
        check(1, rows);
        check(0, rows);
    }
}

/// Made and compared with transformers' function by scripts/golden/gated_delta.py.
#[test]
fn golden_files() {
    let golden = golden("causal_conv.safetensors");
    let cases = golden.cases();
    assert_eq!(cases.len(), 9);
    for name in cases {
        let (shape, x) = golden.get(&format!("{name}.x"));
        let (rows, channels) = (shape[0], shape[1]);
        let (weight, weights) = golden.get(&format!("{name}.weight"));
        let width = weight[1];
        let tail = golden.find(&format!("{name}.tail")).map_or(vec![0f32; (width - 1) * channels], |(_, tail)| tail);
        let case = Case { rows, channels, width, x, weight: weights, tail, g: Vec::new() };
        assert_close(&name, &case.run(), &golden.get(&format!("{name}.out")).1, 1e-6);
        let next = conv_tail(tensor(&case.tail, case.tail_shape()), tensor(&case.x, case.x_shape()));
        assert_eq!(bits(&values(next)), bits(&golden.get(&format!("{name}.next_tail")).1), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In any parts, with the tail carried from one to the next.
    #[test]
    fn parts_change_no_bit(
        seed in 0..1u64 << 32, rows in 1..150usize, channels in 1..70usize, width in 1..6usize,
        parts in prop::collection::vec(1..20usize, 1..5),
    ) {
        let case = Case::new(seed, rows, channels, width);
        let all = with_threads(2, || case.run());
        let (mut out, mut tail, mut start) = (Vec::new(), tensor(&case.tail, case.tail_shape()), 0);
        let weight = tensor(&case.weight, [channels, width]);
        for size in parts.iter().cycle() {
            let end = (start + size).min(rows);
            let x = tensor(&case.x[start * channels..end * channels], [end - start, channels]);
            out.extend(values(causal_conv(x.clone(), weight.clone(), tail.clone())));
            tail = conv_tail(tail, x);
            start = end;
            if end == rows {
                break;
            }
        }
        prop_assert_eq!(bits(&out), bits(&all));
    }

    #[test]
    fn threads_change_nothing(seed in 0..1u64 << 32, rows in 1..400usize, channels in 1..300usize) {
        let case = Case::new(seed, rows, channels, 4);
        let one = with_threads(1, || case.forward_and_gradients(causal_conv));
        let two = with_threads(2, || case.forward_and_gradients(causal_conv));
        for (one, two) in one.iter().zip(&two) {
            prop_assert_eq!(bits(one), bits(two));
        }
    }
}
