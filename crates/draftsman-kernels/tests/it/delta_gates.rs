//! What stands before and after the gated delta rule: its gates, and the norm gated by another projection.

use burn::tensor::Tensor;
use draftsman_kernels::{delta_gates, gated_rms_norm};

use crate::support::{assert_close, bits, finite_differences, leaf, normal, tensor, values, weighted_sum};

fn gates_case(seed: u64, rows: usize, heads: usize) -> [Vec<f32>; 4] {
    let a = normal(seed, rows * heads).iter().map(|x| x * 8.0).collect();
    [a, normal(seed + 1, rows * heads), normal(seed + 2, heads), normal(seed + 3, heads)]
}

#[test]
fn gates_are_their_definition() {
    let [mut a, mut b, mut a_log, dt_bias] = gates_case(1, 50, 6);
    (a[0], a[1], a[2], b[0], b[1], a_log[5]) = (-200.0, 30.0, -dt_bias[2], 200.0, -200.0, 2.77);
    let shape = [50, 6];
    let (g, beta) = delta_gates(tensor(&a, shape), tensor(&b, shape), tensor(&a_log, [6]), tensor(&dt_bias, [6]));
    let (mut expected_g, mut expected_beta) = (Vec::new(), Vec::new());
    for i in 0..300 {
        let x = f64::from(a[i] + dt_bias[i % 6]);
        let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
        expected_g.push((-f64::from(a_log[i % 6]).exp() * softplus) as f32);
        expected_beta.push((1.0 / (1.0 + (-f64::from(b[i])).exp())) as f32);
    }
    let (g, beta) = (values(g), values(beta));
    assert_close("g", &g, &expected_g, 1e-6);
    assert_close("beta", &beta, &expected_beta, 1e-6);
    // The small ones as well: they are small decays, not none.
    for (i, (g, expected)) in g.iter().zip(&expected_g).enumerate() {
        assert!((g - expected).abs() <= 1e-5 * expected.abs() + 1e-30, "g[{i}] is {g:e}, expected {expected:e}");
    }
    assert!(g.iter().chain(&beta).all(|x| x.is_finite()));
}

#[test]
fn gate_gradients_are_finite_differences() {
    let [mut a, b, a_log, dt_bias] = gates_case(5, 3, 4);
    a.iter_mut().for_each(|a| *a /= 4.0);
    (a[0], a[1]) = (25.0, -dt_bias[1]);
    let (weights, shape) = (normal(9, 24), [3, 4]);
    let (leaf_a, leaf_b) = (leaf(&a, shape), leaf(&b, shape));
    let (leaf_log, leaf_bias) = (leaf(&a_log, [4]), leaf(&dt_bias, [4]));
    let (g, beta) = delta_gates(leaf_a.clone(), leaf_b.clone(), leaf_log.clone(), leaf_bias.clone());
    let weight = |part: usize| tensor(&weights[part * 12..(part + 1) * 12], shape).autodiff();
    let gradients = ((g * weight(0)).sum() + (beta * weight(1)).sum()).backward();
    let loss = |a: &[f32], b: &[f32], a_log: &[f32], dt_bias: &[f32]| {
        let (g, beta) = delta_gates(tensor(a, shape), tensor(b, shape), tensor(a_log, [4]), tensor(dt_bias, [4]));
        weighted_sum(&values(g), &weights[..12]) + weighted_sum(&values(beta), &weights[12..])
    };
    let wide = |x: &Tensor<2>| values(x.grad(&gradients).expect("a gradient"));
    let narrow = |x: &Tensor<1>| values(x.grad(&gradients).expect("a gradient"));
    assert_close("da", &wide(&leaf_a), &finite_differences(&a, |a| loss(a, &b, &a_log, &dt_bias)), 2e-3);
    assert_close("db", &wide(&leaf_b), &finite_differences(&b, |b| loss(&a, b, &a_log, &dt_bias)), 2e-3);
    assert_close("da_log", &narrow(&leaf_log), &finite_differences(&a_log, |x| loss(&a, &b, x, &dt_bias)), 2e-3);
    assert_close("ddt_bias", &narrow(&leaf_bias), &finite_differences(&dt_bias, |x| loss(&a, &b, &a_log, x)), 2e-3);
}

#[test]
fn gated_norm_is_its_definition() {
    let (rows, width, eps) = (40, 24, 1e-6);
    let (x, z) = (normal(1, rows * width), normal(2, rows * width));
    let w: Vec<f32> = normal(3, width).iter().map(|w| 1.0 + w * 0.3).collect();
    let got = values(gated_rms_norm(tensor(&x, [rows, width]), tensor(&w, [width]), tensor(&z, [rows, width]), eps));
    let mut expected = Vec::new();
    for (x, z) in x.chunks_exact(width).zip(z.chunks_exact(width)) {
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
        for ((&x, &z), &w) in x.iter().zip(z).zip(&w) {
            let (x, z, w) = (f64::from(x), f64::from(z), f64::from(w));
            expected.push((x / (mean + eps).sqrt() * w * z / (1.0 + (-z).exp())) as f32);
        }
    }
    assert_close("gated norm", &got, &expected, 1e-6);
}

#[test]
fn gated_norm_gradients_are_finite_differences() {
    let (shape, eps) = ([3, 5], 1e-6);
    let (x, w, z, weights) = (normal(4, 15), normal(5, 5), normal(6, 15), normal(7, 15));
    let (leaf_x, leaf_w, leaf_z) = (leaf(&x, shape), leaf(&w, [5]), leaf(&z, shape));
    let out = gated_rms_norm(leaf_x.clone(), leaf_w.clone(), leaf_z.clone(), eps);
    let gradients = (out * tensor(&weights, shape).autodiff()).sum().backward();
    let loss = |x: &[f32], w: &[f32], z: &[f32]| {
        weighted_sum(&values(gated_rms_norm(tensor(x, shape), tensor(w, [5]), tensor(z, shape), eps)), &weights)
    };
    let (dx, dz) = (leaf_x.grad(&gradients).expect("dx"), leaf_z.grad(&gradients).expect("dz"));
    let dw = leaf_w.grad(&gradients).expect("dw");
    assert_close("dx", &values(dx), &finite_differences(&x, |x| loss(x, &w, &z)), 2e-3);
    assert_close("dw", &values(dw), &finite_differences(&w, |w| loss(&x, w, &z)), 2e-3);
    assert_close("dz", &values(dz), &finite_differences(&z, |z| loss(&x, &w, z)), 2e-3);
}

/// Gates and norm of a row beside others and alone.
#[test]
fn gates_and_norm_of_a_row_depend_on_it_alone() {
    let (heads, width) = (7, 19);
    let [a, b, a_log, dt_bias] = gates_case(3, 90, heads);
    let (x, z, w) = (normal(4, 90 * width), normal(5, 90 * width), normal(6, width));
    let run = |start: usize, rows: usize| {
        let gate = |x: &[f32]| tensor(&x[start * heads..(start + rows) * heads], [rows, heads]);
        let wide = |x: &[f32]| tensor(&x[start * width..(start + rows) * width], [rows, width]);
        let (g, beta) = delta_gates(gate(&a), gate(&b), tensor(&a_log, [heads]), tensor(&dt_bias, [heads]));
        [values(g), values(beta), values(gated_rms_norm(wide(&x), tensor(&w, [width]), wide(&z), 1e-6))]
    };
    let all = run(0, 90);
    for start in 0..90 {
        for rows in [1, 2, 5] {
            if start + rows > 90 {
                continue;
            }
            for (part, (some, all)) in ["g", "beta", "norm"].iter().zip(run(start, rows).iter().zip(&all)) {
                let size = all.len() / 90;
                assert_eq!(bits(some), bits(&all[start * size..(start + rows) * size]), "{part}: {rows} from {start}");
            }
        }
    }
}
