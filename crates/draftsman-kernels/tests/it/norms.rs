//! Norm, rope and the gated activation: against reference, finite differences and golden files; bits of a row.

use burn::tensor::Tensor;
use draftsman_contract::{CounterRng, RopeScaling, RopeSpec};
use draftsman_kernels::{RopeTable, rms_norm, rms_norm_reference, rope, rope_reference, swiglu, swiglu_reference};
use proptest::prelude::*;

use crate::support::{
    assert_close, bits, finite_differences, golden, leaf, normal, tensor, values, weighted_sum, with_threads,
};

const EPS: f64 = 1e-5;

/// Output and both gradients of an operation on two leaves, under the output gradient `g`.
fn two_gradients<const D: usize>(
    a: (&[f32], [usize; 2]),
    b: (&[f32], [usize; D]),
    g: &[f32],
    op: impl Fn(Tensor<2>, Tensor<D>) -> Tensor<2>,
) -> [Vec<f32>; 3] {
    let (a, b) = (leaf(a.0, a.1), leaf(b.0, b.1));
    let out = op(a.clone(), b.clone());
    let gradients = (out.clone() * tensor(g, out.dims()).autodiff()).sum().backward();
    [values(out), values(a.grad(&gradients).expect("da")), values(b.grad(&gradients).expect("db"))]
}

fn rms_case(seed: u64, rows: usize, width: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    (normal(seed, rows * width), normal(seed + 1, width), normal(seed + 2, rows * width))
}

fn swiglu_case(seed: u64, rows: usize, width: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let wide = normal(seed, rows * width).iter().map(|x| x * 4.0).collect();
    (wide, normal(seed + 1, rows * width), normal(seed + 2, rows * width))
}

#[test]
fn rms_norm_equals_the_reference() {
    #[track_caller]
    fn check(rows: usize, width: usize) {
        let (x, w, g) = rms_case(1, rows, width);
        let fast = two_gradients((&x, [rows, width]), (&w, [width]), &g, |x, w| rms_norm(x, w, EPS));
        let slow = two_gradients((&x, [rows, width]), (&w, [width]), &g, |x, w| rms_norm_reference(x, w, EPS));
        for (part, (fast, slow)) in ["output", "dx", "dw"].iter().zip(fast.iter().zip(&slow)) {
            assert_close(&format!("[{rows}, {width}] {part}"), fast, slow, 2e-6);
        }
    }
    check(1, 576);
    check(7, 64);
    check(200, 576);
    check(5, 3);
    check(70, 50);
}

#[test]
fn rms_norm_gradients_are_finite_differences() {
    let (x, w, g) = rms_case(5, 3, 7);
    let [_, dx, dw] = two_gradients((&x, [3, 7]), (&w, [7]), &g, |x, w| rms_norm(x, w, EPS));
    let loss = |x: &[f32], w: &[f32]| weighted_sum(&values(rms_norm(tensor(x, [3, 7]), tensor(w, [7]), EPS)), &g);
    assert_close("dx", &dx, &finite_differences(&x, |x| loss(x, &w)), 2e-3);
    assert_close("dw", &dw, &finite_differences(&w, |w| loss(&x, w)), 1e-4);
}

#[test]
fn swiglu_equals_the_reference() {
    #[track_caller]
    fn check(rows: usize, width: usize) {
        let (gate, up, g) = swiglu_case(1, rows, width);
        let fast = two_gradients((&gate, [rows, width]), (&up, [rows, width]), &g, swiglu);
        let slow = two_gradients((&gate, [rows, width]), (&up, [rows, width]), &g, swiglu_reference);
        for (part, (fast, slow)) in ["output", "dgate", "dup"].iter().zip(fast.iter().zip(&slow)) {
            assert_close(&format!("[{rows}, {width}] {part}"), fast, slow, 1e-6);
        }
    }
    check(1, 1536);
    check(40, 1536);
    check(5, 3);
    check(1, 1);
}

#[test]
fn swiglu_gradients_are_finite_differences() {
    let (gate, up, g) = (normal(7, 12), normal(8, 12), normal(9, 12));
    let [_, d_gate, d_up] = two_gradients((&gate, [3, 4]), (&up, [3, 4]), &g, swiglu);
    let loss = |gate: &[f32], up: &[f32]| weighted_sum(&values(swiglu(tensor(gate, [3, 4]), tensor(up, [3, 4]))), &g);
    assert_close("dgate", &d_gate, &finite_differences(&gate, |gate| loss(gate, &up)), 1e-3);
    assert_close("dup", &d_up, &finite_differences(&up, |up| loss(&gate, up)), 1e-4);
}

#[test]
fn swiglu_saturates() {
    #[track_caller]
    fn check(gate: f32, expected: f32) {
        let y = values(swiglu(tensor(&[gate], [1, 1]), tensor(&[1.0], [1, 1])));
        assert!(y[0] == expected || (y[0] - expected).abs() <= 1e-6 * expected.abs(), "silu({gate}) = {}", y[0]);
    }
    check(0.0, 0.0);
    check(200.0, 200.0);
    check(-200.0, 0.0);
    check(1.0, 0.731_058_6);
    check(-1.0, -0.268_941_42);
    assert!(values(swiglu(tensor(&[f32::NAN], [1, 1]), tensor(&[1.0], [1, 1])))[0].is_nan());
}

/// The cases of scripts/golden/rope.py.
fn golden_cases() -> Vec<(&'static str, usize, RopeSpec)> {
    let llama3 = |factor, original_max_position_embeddings| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings,
    };
    let yarn = |factor, original_max_position_embeddings, mscale, attention_factor, truncate| RopeScaling::Yarn {
        factor,
        original_max_position_embeddings,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
        mscale,
        mscale_all_dim: mscale.map(|_| 1.0),
        truncate,
    };
    let scaled = |theta, scaling| RopeSpec { theta, scaling: Some(scaling) };
    vec![
        ("plain", 64, RopeSpec::plain(1e5)),
        ("plain_qwen", 128, RopeSpec::plain(1e7)),
        ("linear", 64, scaled(1e4, RopeScaling::Linear { factor: 2.5 })),
        ("llama3", 128, scaled(5e5, llama3(8.0, 8192))),
        ("llama3_factor32", 64, scaled(5e5, llama3(32.0, 8192))),
        ("llama3_tiny", 16, scaled(1e4, llama3(8.0, 64))),
        ("yarn_gpt_oss", 64, scaled(150_000.0, yarn(32.0, 4096, None, None, false))),
        ("yarn_kimi", 128, scaled(50_000.0, yarn(64.0, 4096, Some(1.0), None, true))),
        ("yarn_mscale", 64, scaled(10_000.0, yarn(40.0, 4096, Some(0.707), None, true))),
        ("yarn_given_factor", 32, scaled(10_000.0, yarn(4.0, 2048, None, Some(1.25), true))),
    ]
}

/// Frequencies, factor, and cosines and sines up to position 262,143, against transformers. A frequency may be one
/// unit in the last place away (its power function is not correctly rounded), and the angle that much times the
/// position.
#[test]
fn rope_is_that_of_transformers() {
    let golden = golden("rope.safetensors");
    let (f32s, positions) = (|name: &str| golden.get(name).1, golden.positions("positions"));
    let (mut exact, mut all) = (0, 0);
    for (name, head_dim, spec) in golden_cases() {
        let (half, table) = (head_dim / 2, RopeTable::new(&spec, head_dim));
        let frequencies = f32s(&format!("{name}.inv_freq"));
        assert_eq!(table.inverse_frequencies().len(), half, "{name}");
        for (j, (&x, &g)) in table.inverse_frequencies().iter().zip(&frequencies).enumerate() {
            let apart = x.to_bits().abs_diff(g.to_bits());
            assert!(apart <= 2, "{name}: inv_freq[{j}] is {x:e}, expected {g:e} ({apart} units in the last place)");
            (exact, all) = (exact + usize::from(apart == 0), all + 1);
        }
        let factor = f32s(&format!("{name}.attention_factor"))[0];
        assert!((table.attention_factor() - factor).abs() <= 1e-7 * factor, "{name}: {}", table.attention_factor());
        // Rotating (1, 0) pairs gives the cosines and sines.
        let mut ones = vec![0f32; positions.len() * head_dim];
        ones.chunks_exact_mut(head_dim).for_each(|row| row[..half].fill(1.0));
        let turned = values(rope(tensor(&ones, [positions.len(), 1, head_dim]), &table, &positions));
        let (cosines, sines) = (f32s(&format!("{name}.cos")), f32s(&format!("{name}.sin")));
        for (p, &position) in positions.iter().enumerate() {
            for j in 0..half {
                let frequency = table.inverse_frequencies()[j];
                // An angle rounded to f32 once more where the frequencies differ in their last place.
                let limit =
                    if frequency == frequencies[j] { 3e-7 } else { position as f32 * frequency * 2.4e-7 + 3e-7 };
                for (kind, x, g) in [
                    ("cos", turned[p * head_dim + j], cosines[p * half + j]),
                    ("sin", turned[p * head_dim + half + j], sines[p * half + j]),
                ] {
                    assert!((x - g).abs() <= limit, "{name}: {kind} at position {position}, {j}: {x}, expected {g}");
                }
            }
        }
    }
    assert!(exact * 100 >= all * 95, "only {exact} of {all} frequencies are exactly those of transformers");
}

#[test]
fn rope_equals_the_reference() {
    #[track_caller]
    fn check(rows: usize, heads: usize, rotary_dim: usize, head_dim: usize, spec: &RopeSpec) {
        let shape = [rows, heads, head_dim];
        let (x, g) = (normal(1, rows * heads * head_dim), normal(2, rows * heads * head_dim));
        let positions: Vec<u32> = (0..rows as u32).map(|row| row * 997).collect();
        let table = RopeTable::new(spec, rotary_dim);
        let both = [rope as fn(Tensor<3>, &RopeTable, &[u32]) -> Tensor<3>, rope_reference].map(|op| {
            let x = leaf(&x, shape);
            let out = op(x.clone(), &table, &positions);
            let gradients = (out.clone() * tensor(&g, shape).autodiff()).sum().backward();
            [values(out), values(x.grad(&gradients).expect("dx"))]
        });
        assert_close("output", &both[0][0], &both[1][0], 1e-6);
        assert_close("dx", &both[0][1], &both[1][1], 1e-6);
    }
    for (_, head_dim, spec) in golden_cases() {
        check(80, 3, head_dim, head_dim, &spec);
        check(1, 2, head_dim, head_dim, &spec);
        check(70, 3, head_dim, head_dim + 9, &spec);
        check(5, 1, head_dim, 4 * head_dim, &spec);
    }
}

/// Rotating the first values of wide heads is rotating narrow heads and passing the rest on, to the bit.
#[test]
fn partial_rope_is_rope_of_the_first_values() {
    #[track_caller]
    fn check(rows: usize, heads: usize, rotary_dim: usize, head_dim: usize) {
        let table = RopeTable::new(&RopeSpec::plain(1e7), rotary_dim);
        assert_eq!(table.rotary_dim(), rotary_dim);
        let positions: Vec<u32> = (0..rows as u32).map(|row| row * 3001).collect();
        let x = normal(6, rows * heads * head_dim);
        let narrow: Vec<f32> = x.chunks_exact(head_dim).flat_map(|head| &head[..rotary_dim]).copied().collect();
        let turned = values(rope(tensor(&narrow, [rows, heads, rotary_dim]), &table, &positions));
        let mut expected = x.clone();
        if rotary_dim > 0 {
            for (head, turned) in expected.chunks_exact_mut(head_dim).zip(turned.chunks_exact(rotary_dim)) {
                head[..rotary_dim].copy_from_slice(turned);
            }
        }
        for op in [rope, rope_reference] {
            let y = values(op(tensor(&x, [rows, heads, head_dim]), &table, &positions));
            assert_close("heads", &y, &expected, 1e-6);
            for (y, x) in y.chunks_exact(head_dim).zip(x.chunks_exact(head_dim)) {
                assert_eq!(bits(&y[rotary_dim..]), bits(&x[rotary_dim..]), "the rest changed");
            }
        }
        let y = values(rope(tensor(&x, [rows, heads, head_dim]), &table, &positions));
        assert_eq!(bits(&y), bits(&expected));
    }
    check(70, 3, 64, 256);
    check(1, 2, 8, 32);
    check(4, 2, 6, 7);
    check(4, 2, 0, 8);
    check(4, 2, 8, 8);
}

/// Qwen3.5 rotates 8 of the 32 values of these heads (scripts/golden/gated_delta.py).
#[test]
fn partial_rope_is_that_of_transformers() {
    let golden = golden("partial_rope.safetensors");
    let (shape, x) = golden.get("x");
    let (shape, positions) = ([shape[0], shape[1], shape[2]], golden.positions("positions"));
    for (name, theta) in [("qwen3_5", 1e7), ("short", 1e4)] {
        let table = RopeTable::new(&RopeSpec::plain(theta), 8);
        assert_close(name, table.inverse_frequencies(), &golden.get(&format!("{name}.inv_freq")).1, 1e-7);
        let expected = golden.get(&format!("{name}.out")).1;
        for op in [rope, rope_reference] {
            assert_close(name, &values(op(tensor(&x, shape), &table, &positions)), &expected, 1e-5);
        }
    }
}

#[test]
#[should_panic(expected = "the table rotates 16 values")]
fn rope_needs_heads_as_wide_as_its_table() {
    rope(tensor(&[0.0; 8], [1, 1, 8]), &RopeTable::new(&RopeSpec::plain(1e4), 16), &[0]);
}

#[test]
fn rope_gradient_is_a_finite_difference() {
    let positions = [5, 900, 70_000];
    let table = RopeTable::new(&RopeSpec::plain(100.0), 4);
    for head_dim in [4, 7] {
        let shape = [3, 2, head_dim];
        let (x, g) = (normal(3, 6 * head_dim), normal(4, 6 * head_dim));
        for op in [rope, rope_reference] {
            let leaf = leaf(&x, shape);
            let out = op(leaf.clone(), &table, &positions) * tensor(&g, shape).autodiff();
            let dx = values(leaf.grad(&out.sum().backward()).expect("dx"));
            let loss = |x: &[f32]| weighted_sum(&values(rope(tensor(x, shape), &table, &positions)), &g);
            assert_close("dx", &dx, &finite_differences(&x, loss), 1e-4);
        }
    }
}

/// What a table remembers is what it would compute.
#[test]
fn rope_does_not_depend_on_what_was_asked_before() {
    let spec = RopeSpec::plain(1e5);
    let x = tensor(&normal(5, 64), [1, 1, 64]);
    let shared = RopeTable::new(&spec, 64);
    for position in [0, 1, 300, 255, 256, 65_535, 65_536, 4, 200_000] {
        let fresh = values(rope(x.clone(), &RopeTable::new(&spec, 64), &[position]));
        let again = values(rope(x.clone(), &shared.clone(), &[position]));
        assert_eq!(bits(&fresh), bits(&again), "position {position}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_row_depends_on_itself_alone(seed in 0..1u64 << 32, rows in 1..150usize, width in 1..100usize) {
        let (x, w, _) = rms_case(seed, rows, 2 * width);
        let (gate, up, _) = swiglu_case(seed, rows, 2 * width);
        let positions: Vec<u32> = (0..rows as u32).map(|row| row * 1013).collect();
        let table = RopeTable::new(&RopeSpec::plain(1e4), 2 * width);
        let run = |rows: &[usize]| {
            let pick = |all: &[f32]| -> Vec<f32> {
                rows.iter().flat_map(|&r| all[r * 2 * width..(r + 1) * 2 * width].to_vec()).collect()
            };
            let two = |all: &[f32]| tensor(&pick(all), [rows.len(), 2 * width]);
            let positions: Vec<u32> = rows.iter().map(|&row| positions[row]).collect();
            [
                values(rms_norm(two(&x), tensor(&w, [2 * width]), EPS)),
                values(swiglu(two(&gate), two(&up))),
                values(rope(tensor(&pick(&x), [rows.len(), 1, 2 * width]), &table, &positions)),
            ]
        };
        let mut order: Vec<usize> = (0..rows).collect();
        let all = with_threads(2, || run(&order));
        CounterRng::new(seed, &[1]).shuffle(&mut order);
        order.truncate(rows.div_ceil(3));
        let some = with_threads(1, || run(&order));
        for (op, (some, all)) in ["rms_norm", "swiglu", "rope"].iter().zip(some.iter().zip(&all)) {
            for (i, &row) in order.iter().enumerate() {
                let (some, all) = (&some[i * 2 * width..(i + 1) * 2 * width], &all[row * 2 * width..(row + 1) * 2 * width]);
                prop_assert_eq!(bits(some), bits(all), "{} row {}", op, row);
            }
        }
    }

    /// An element has the same bits at every place of a vector and at the end of a buffer.
    #[test]
    fn swiglu_does_not_know_positions(value in -30f32..30.0, length in 1..40usize) {
        let y = values(swiglu(tensor(&vec![value; length], [1, length]), tensor(&vec![1.5; length], [1, length])));
        prop_assert!(y.iter().all(|one| one.to_bits() == y[0].to_bits()), "{:?}", y);
    }
}

#[test]
fn threads_change_no_gradient() {
    let (rows, width) = (700, 200);
    let (x, w, g) = rms_case(9, rows, width);
    let (gate, up, _) = swiglu_case(9, rows, width);
    let run = || {
        let norm = two_gradients((&x, [rows, width]), (&w, [width]), &g, |x, w| rms_norm(x, w, EPS));
        let gated = two_gradients((&gate, [rows, width]), (&up, [rows, width]), &g, swiglu);
        [norm, gated].concat()
    };
    for (one, two) in with_threads(1, run).iter().zip(&with_threads(2, run)) {
        assert_eq!(bits(one), bits(two));
    }
}
