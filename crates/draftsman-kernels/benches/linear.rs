//! Speed of linear and of the head with cross-entropy, beside burn's own product.
//!
//! `cargo bench -p draftsman-kernels --bench linear [-- FILTER]`; best of several runs, in GFLOP/s.
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use draftsman_kernels::{
    HeadOptions, Weight, WeightDtype, head_top_k, keep_freed_memory, linear, linear_cross_entropy,
};

/// Hidden size, feed-forward size and vocabulary of SmolLM2-135M.
const HIDDEN: usize = 576;
const INNER: usize = 1536;
const VOCAB: usize = 49152;

fn random(rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    Tensor::random([rows, columns], Distribution::Uniform(-1.0, 1.0), device)
}

fn packed(out: usize, width: usize, dtype: WeightDtype) -> Weight {
    let values = random(out, width, &Device::flex()).into_data().iter::<f32>().collect();
    Weight::from_f32(values, [out, width], dtype, &Device::flex()).expect("matching length")
}

/// Prints the best time of `f`, which does `flops` operations.
fn bench(filter: &str, name: &str, flops: f64, mut f: impl FnMut()) {
    if !name.contains(filter) {
        return;
    }
    f();
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.4 {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed().as_secs_f64());
    }
    println!("{name:<58} {:>9.3} ms {:>7.1} GFLOP/s", best * 1e3, flops / best / 1e9);
}

fn main() {
    // cargo adds `--bench`.
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    keep_freed_memory();
    let flex = Device::flex();
    for (width, out) in [(HIDDEN, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN), (HIDDEN, VOCAB)] {
        for rows in [1, 16, 32, 256] {
            let flops = 2.0 * (rows * width * out) as f64;
            let x = random(rows, width, &flex);
            let name = |what: &str| format!("{rows} x {width} -> {out} {what}");
            let w = random(out, width, &flex);
            bench(&filter, &name("burn"), flops, || drop(x.clone().matmul(w.clone().transpose())));
            for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
                let w = packed(out, width, dtype);
                bench(&filter, &name(&format!("linear {dtype}")), flops, || drop(linear(x.clone(), &w)));
            }
            if out == VOCAB {
                continue;
            }
            // Forward and both gradients.
            let (x, w) = (x.autodiff().require_grad(), w.autodiff().require_grad());
            let dy = random(rows, out, &flex).autodiff();
            bench(&filter, &name("burn, with gradients"), 3.0 * flops, || {
                drop((x.clone().matmul(w.clone().transpose()) * dy.clone()).sum().backward());
            });
            let weight = Weight::Tensor(w);
            bench(&filter, &name("linear, with gradients"), 3.0 * flops, || {
                drop((linear(x.clone(), &weight) * dy.clone()).sum().backward());
            });
        }
    }
    for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
        let head = packed(VOCAB, HIDDEN, dtype);
        for rows in [1, 16, 256] {
            let flops = 2.0 * (rows * HIDDEN * VOCAB) as f64;
            let h = random(rows, HIDDEN, &flex);
            let opts = HeadOptions { top_k: 8, ..HeadOptions::default() };
            bench(&filter, &format!("head_top_k {dtype} {rows}"), flops, || drop(head_top_k(h.clone(), &head, &opts)));
            let labels: Vec<Option<u32>> = (0..rows as u32).map(|i| Some(i * 7)).collect();
            let weights = vec![1.0; rows];
            let h = h.autodiff().require_grad();
            bench(&filter, &format!("cross-entropy with gradient {dtype} {rows}"), 2.0 * flops, || {
                drop(linear_cross_entropy(h.clone(), &head, &labels, &weights, &opts).numerator.backward());
            });
        }
    }
}
