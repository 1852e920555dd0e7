//! Time of the gated delta rule by form, rows and shape; with its gradients where it says so.
//!
//! `cargo bench -p draftsman-kernels --bench gated_delta [-- FILTER]`; best of several runs.
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::CounterRng;
use draftsman_kernels::{DeltaInputs, DeltaRule, gated_delta_rule, keep_freed_memory};

fn main() {
    // cargo adds `--bench`.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    keep_freed_memory();
    let rules = [DeltaRule::Recurrent, DeltaRule::Chunked { chunk: 64 }, DeltaRule::FlaRounding];
    for (rows, [key_heads, heads, key_dim, value_dim]) in
        [(1, [16, 48, 128, 128]), (16, [16, 48, 128, 128]), (512, [2, 6, 128, 128]), (512, [2, 6, 32, 32])]
    {
        for rule in rules {
            for gradients in [false, true] {
                let with = if gradients { " and gradients" } else { "" };
                let name = format!("{rule} {rows} rows, {heads} heads, {key_dim} x {value_dim}{with}");
                if !name.contains(&filter) {
                    continue;
                }
                let device = if gradients { Device::flex().autodiff() } else { Device::flex() };
                let mut rng = CounterRng::new(1, &[]);
                let mut normal = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.normal()).collect() };
                let mut wide = |shape: [usize; 3]| -> Tensor<3> {
                    let x = Tensor::from_data(TensorData::new(normal(shape.iter().product()), shape), &device);
                    if gradients { x.require_grad() } else { x }
                };
                let keys = [rows, key_heads, key_dim];
                let (q, k, v) = (wide(keys), wide(keys), wide([rows, heads, value_dim]));
                let state = wide([heads, key_dim, value_dim]);
                let (g, beta) =
                    (Tensor::full([rows, heads], -0.05, &device), Tensor::full([rows, heads], 0.5, &device));
                let inputs = DeltaInputs { q, k, v, g, beta };
                let best = best(|| {
                    let (out, state) = gated_delta_rule(inputs.clone(), state.clone(), rule);
                    if gradients {
                        drop(black_box((out.sum() + state.sum()).backward()));
                    } else {
                        drop(black_box((out, state)));
                    }
                });
                println!("{name:70} {:9.3} ms", best * 1e3);
            }
        }
    }
}

/// Shortest of the runs that fit into half a second, in seconds.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let (start, mut best) = (Instant::now(), f64::MAX);
    while start.elapsed().as_secs_f64() < 0.5 {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed().as_secs_f64());
    }
    best
}
