//! linear: equal to burn's own product, its gradients, and rows that know nothing of each other.

use burn::tensor::{Device, Tensor};
use draftsman_kernels::{Weight, WeightDtype, linear, linear_reference};
use proptest::prelude::*;

use crate::support::{
    assert_close, bits, finite_differences, leaf, normal, tensor, values, weighted_sum, with_threads,
};

const DTYPES: [WeightDtype; 3] = [WeightDtype::F32, WeightDtype::Bf16, WeightDtype::F16];

fn packed(seed: u64, out: usize, width: usize, dtype: WeightDtype) -> Weight {
    Weight::from_f32(normal(seed, out * width), [out, width], dtype, &Device::flex()).expect("matching length")
}

#[test]
fn equals_the_reference() {
    #[track_caller]
    fn check(rows: usize, width: usize, out: usize) {
        let name = format!("[{rows}, {width}] x [{out}, {width}]");
        let (x, dy) = (normal(1, rows * width), normal(2, rows * out));
        for dtype in DTYPES {
            let w = packed(3, out, width, dtype);
            let [fast, reference] = [linear, linear_reference].map(|op| {
                let x = leaf(&x, [rows, width]);
                let y = op(x.clone(), &w);
                let grads = (y.clone() * tensor(&dy, [rows, out]).autodiff()).sum().backward();
                (values(y), values(x.grad(&grads).expect("x is tracked")))
            });
            assert_close(&format!("{name} {dtype}: y"), &fast.0, &reference.0, 1e-6);
            assert_close(&format!("{name} {dtype}: dx"), &fast.1, &reference.1, 1e-6);
        }
    }
    // Tails in every dimension, one row, more rows than any tile, depths past a block of the kernels.
    check(1, 1, 1);
    check(1, 576, 64);
    check(3, 17, 5);
    check(7, 100, 33);
    check(16, 64, 195);
    check(31, 800, 50);
    check(250, 33, 49);
    check(20, 1600, 9);
    check(5, 20, 400);
}

#[test]
fn trains_a_tensor() {
    #[track_caller]
    fn check(rows: usize, width: usize, out: usize, x_tracked: bool, w_tracked: bool) {
        let (x, w, dy) = (normal(1, rows * width), normal(2, out * width), normal(3, rows * out));
        let [fast, reference] = [linear, linear_reference].map(|op| {
            let (x, w) = (leaf(&x, [rows, width]), leaf(&w, [out, width]));
            let y = op(
                if x_tracked { x.clone() } else { x.clone().detach() },
                &Weight::Tensor(if w_tracked { w.clone() } else { w.clone().detach() }),
            );
            let grads = (y * tensor(&dy, [rows, out]).autodiff()).sum().backward();
            (x.grad(&grads).map(values), w.grad(&grads).map(values))
        });
        assert_eq!((fast.0.is_some(), fast.1.is_some()), (x_tracked, w_tracked));
        for (name, fast, reference) in [("dx", fast.0, reference.0), ("dw", fast.1, reference.1)] {
            if let (Some(fast), Some(reference)) = (fast, reference) {
                assert_close(&format!("{name} of [{rows}, {width}] x [{out}, {width}]"), &fast, &reference, 1e-6);
            }
        }
    }
    check(9, 40, 70, true, true);
    check(9, 40, 70, true, false);
    check(9, 40, 70, false, true);
    check(1, 576, 30, true, true);
    check(300, 50, 257, true, true);
}

#[test]
fn gradients_are_finite_differences() {
    let (rows, width, out) = (3, 5, 4);
    let (x, w, dy) = (normal(1, rows * width), normal(2, out * width), normal(3, rows * out));
    let f = |x: &[f32], w: &[f32]| {
        weighted_sum(&values(linear(tensor(x, [rows, width]), &Weight::Tensor(tensor(w, [out, width])))), &dy)
    };
    let (tx, tw) = (leaf(&x, [rows, width]), leaf(&w, [out, width]));
    let y = linear(tx.clone(), &Weight::Tensor(tw.clone()));
    let grads = (y * tensor(&dy, [rows, out]).autodiff()).sum().backward();
    assert_close("dx", &values(tx.grad(&grads).expect("tracked")), &finite_differences(&x, |x| f(x, &w)), 1e-4);
    assert_close("dw", &values(tw.grad(&grads).expect("tracked")), &finite_differences(&w, |w| f(&x, w)), 1e-4);
}

#[test]
fn takes_strided_tensors() {
    let (rows, width, out) = (6, 20, 11);
    let x = tensor(&normal(1, rows * width), [width, rows]).transpose();
    let w = tensor(&normal(2, out * width), [width, out]).transpose();
    let expected = values(x.clone().matmul(w.clone().transpose()));
    assert_close("y", &values(linear(x, &Weight::Tensor(w))), &expected, 1e-6);
}

#[test]
#[should_panic(expected = "linear: x is [2, 3] and the weight [4, 5]")]
fn says_both_shapes() {
    linear(tensor(&[0.0; 6], [2, 3]), &packed(1, 4, 5, WeightDtype::F32));
}

fn row(y: &[f32], i: usize, width: usize) -> Vec<u32> {
    bits(&y[i * width..(i + 1) * width])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A row alone, among others in any order, in any number of threads, from memory or from a tensor: the same bits.
    #[test]
    fn a_row_depends_on_itself_alone(
        seed in 0..1u64 << 32,
        rows in 1..100usize,
        width in prop_oneof![1..70usize, 700..900usize],
        out in 1..150usize,
        dtype in 0..3usize,
        threads in 1..3usize,
        order in proptest::collection::vec(0..100usize, 1..90),
    ) {
        let x = normal(seed, rows * width);
        let w = packed(seed + 1, out, width, DTYPES[dtype]);
        let all = with_threads(threads, || values(linear(tensor(&x, [rows, width]), &w)));
        let order: Vec<usize> = order.into_iter().map(|i| i % rows).collect();
        let chosen: Vec<f32> = order.iter().flat_map(|i| x[i * width..(i + 1) * width].to_vec()).collect();
        let same = Weight::Tensor(tensor(&w.to_f32(), [out, width]));
        for w in [&w, &same] {
            let some = with_threads(3 - threads, || values(linear(tensor(&chosen, [order.len(), width]), w)));
            for (i, from) in order.iter().enumerate() {
                prop_assert_eq!(row(&some, i, out), row(&all, *from, out), "row {} of {:?}", i, &order);
            }
        }
        let alone = values(linear(tensor(&x[..width], [1, width]), &w));
        prop_assert_eq!(row(&alone, 0, out), row(&all, 0, out));
    }

    /// Gradients don't depend on the number of threads.
    #[test]
    fn gradients_do_not_know_threads(seed in 0..1u64 << 32, rows in 1..300usize, width in 1..200usize, out in 1..300usize) {
        let (x, w, dy) = (normal(seed, rows * width), normal(seed + 1, out * width), normal(seed + 2, rows * out));
        let [one, two] = [1, 2].map(|threads| with_threads(threads, || {
            let (x, w) = (leaf(&x, [rows, width]), leaf(&w, [out, width]));
            let y = linear(x.clone(), &Weight::Tensor(w.clone()));
            let grads = (y * tensor(&dy, [rows, out]).autodiff()).sum().backward();
            [bits(&values(x.grad(&grads).expect("tracked"))), bits(&values(w.grad(&grads).expect("tracked")))]
        }));
        prop_assert_eq!(one, two);
    }
}

/// Not a test: writes results where `DRAFTSMAN_SAMPLE` says, for `levels::instruction_sets_agree`.
#[test]
#[ignore = "run by levels::instruction_sets_agree"]
fn sample() {
    let Ok(path) = std::env::var("DRAFTSMAN_SAMPLE") else { return };
    let mut all: Vec<f32> = Vec::new();
    for (rows, width, out) in [(1, 800, 70), (37, 100, 90), (20, 33, 7)] {
        let (x, w) = (leaf(&normal(1, rows * width), [rows, width]), leaf(&normal(2, out * width), [out, width]));
        let y: Tensor<2> = linear(x.clone(), &Weight::Tensor(w.clone()));
        let grads = (y.clone() * tensor(&normal(3, rows * out), [rows, out]).autodiff()).sum().backward();
        for part in [values(y), values(x.grad(&grads).expect("tracked")), values(w.grad(&grads).expect("tracked"))] {
            // One scale, so that the relative error of the whole means something for every part.
            let norm = part.iter().map(|v| v * v).sum::<f32>().sqrt();
            all.extend(part.iter().map(|v| v / norm));
        }
        for dtype in DTYPES {
            all.extend(values(
                linear(tensor(&normal(1, rows * width), [rows, width]), &packed(4, out, width, dtype)) / 100.0,
            ));
        }
    }
    all.extend(crate::cross_entropy::sample());
    std::fs::write(path, all.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).expect("a writable path");
}
