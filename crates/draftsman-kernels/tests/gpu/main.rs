//! Every operation on the CPU device and on a GPU from equal values: outputs and gradients (feature `wgpu`).
//!
//! One binary, because a process compiles its GPU kernels again. A software Vulkan driver is enough: it proves the
//! numbers of the reference operations, not the tensor-core kernels that a large GPU would choose.

use std::ops::Range;
use std::sync::OnceLock;

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::{CounterRng, RopeScaling, RopeSpec, Visible};
use draftsman_kernels::{
    DeviceKind, HeadOptions, KvCache, RopeTable, Weight, WeightDtype, attention, attention_cached, head_logits,
    head_top_k, linear, linear_cross_entropy, open, rms_norm, rope, swiglu,
};

/// The GPU, opened once.
fn gpu() -> Device {
    static GPU: OnceLock<Device> = OnceLock::new();
    GPU.get_or_init(|| open(DeviceKind::Wgpu).expect("a Vulkan driver (mesa-vulkan-drivers has a software one)"))
        .clone()
}

fn normal(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = CounterRng::new(seed, &[n as u64]);
    (0..n).map(|_| rng.normal()).collect()
}

fn tensor<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(normal(seed, shape.iter().product()), shape), device)
}

fn leaf<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    tensor(seed, shape, &device.clone().autodiff()).require_grad()
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec_as().expect("a float tensor")
}

/// The sum of `out` times seeded numbers, so that every element has its own gradient.
fn loss<const D: usize>(out: Tensor<D>) -> Tensor<1> {
    let g = tensor(1000, out.dims(), &out.device());
    (out * g).sum()
}

/// Runs `f` on both devices; its lists of values must agree to 1e-4 · max(1, largest value).
#[track_caller]
fn check(name: &str, f: impl Fn(&Device) -> Vec<(&'static str, Vec<f32>)>) {
    let (cpu, gpu) = (f(&Device::flex()), f(&gpu()));
    assert_eq!(cpu.len(), gpu.len(), "{name}");
    for ((part, cpu), (_, gpu)) in cpu.iter().zip(&gpu) {
        assert_eq!(cpu.len(), gpu.len(), "{name}: {part}: another number of values");
        let limit = 1e-4 * cpu.iter().fold(1f32, |max, x| max.max(x.abs()));
        for (i, (c, g)) in cpu.iter().zip(gpu).enumerate() {
            assert!((c - g).abs() <= limit, "{name}: {part}[{i}] is {g} on the GPU, {c} on the CPU, limit {limit:e}");
        }
    }
}

fn attention_case(sizes: [usize; 4], rows: Vec<Vec<Range<u32>>>) {
    let [heads, kv_heads, head_dim, keys] = sizes;
    let visible = Visible::from_rows(rows.clone()).expect("ascending ranges");
    let (q_shape, kv_shape) = ([rows.len(), heads, head_dim], [keys, kv_heads, head_dim]);
    let scale = 1.0 / (head_dim as f32).sqrt();
    check(&format!("attention {sizes:?}"), |device| {
        let (q, k, v) = (leaf(1, q_shape, device), leaf(2, kv_shape, device), leaf(3, kv_shape, device));
        let out = attention(q.clone(), k.clone(), v.clone(), &visible, scale);
        let gradients = loss(out.clone()).backward();
        let gradient = |x: &Tensor<3>| values(x.grad(&gradients).expect("a gradient"));
        vec![("output", values(out)), ("dq", gradient(&q)), ("dk", gradient(&k)), ("dv", gradient(&v))]
    });
    check(&format!("attention_cached {sizes:?}"), |device| {
        let (q, k, v) = (tensor(1, q_shape, device), tensor(2, kv_shape, device), tensor(3, kv_shape, device));
        let mut cache = KvCache::new(kv_heads, head_dim, device);
        for start in (0..keys).step_by(29) {
            let count = 29.min(keys - start);
            // Rows of a rejected draft, forgotten again.
            cache.append(other_rows(&k, 5), other_rows(&v, 5));
            cache.truncate(start);
            cache.append(k.clone().narrow(0, start, count), v.clone().narrow(0, start, count));
        }
        vec![("output", values(attention_cached(q, &cache, &visible, scale)))]
    });
}

/// Other rows of the same heads.
fn other_rows(k: &Tensor<3>, rows: usize) -> Tensor<3> {
    let [_, heads, head_dim] = k.dims();
    tensor(77, [rows, heads, head_dim], &k.device())
}

#[test]
fn attention_agrees() {
    let causal = |past: u32, rows: u32| (0..rows).map(|row| vec![0..past + row + 1]).collect();
    attention_case([9, 3, 64, 90], causal(80, 10));
    attention_case([4, 2, 16, 33], causal(0, 33));
    attention_case([6, 2, 40, 100], vec![vec![0..50, 70..78], vec![0..50, 70..78], vec![], vec![30..31], vec![2..100]]);
}

#[test]
fn rms_norm_agrees() {
    for [rows, width] in [[1, 576], [33, 64], [5, 7]] {
        check(&format!("rms_norm [{rows}, {width}]"), |device| {
            let (x, w) = (leaf(1, [rows, width], device), leaf(2, [width], device));
            let out = rms_norm(x.clone(), w.clone(), 1e-5);
            let gradients = loss(out.clone()).backward();
            let (dx, dw) = (x.grad(&gradients).expect("dx"), w.grad(&gradients).expect("dw"));
            vec![("output", values(out)), ("dx", values(dx)), ("dw", values(dw))]
        });
    }
}

#[test]
fn swiglu_agrees() {
    check("swiglu", |device| {
        let (gate, up) = (leaf(1, [19, 50], device), leaf(2, [19, 50], device));
        let out = swiglu(gate.clone() * 3.0, up.clone());
        let gradients = loss(out.clone()).backward();
        let (d_gate, d_up) = (gate.grad(&gradients).expect("dgate"), up.grad(&gradients).expect("dup"));
        vec![("output", values(out)), ("dgate", values(d_gate)), ("dup", values(d_up))]
    });
}

#[test]
fn rope_agrees() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };
    let table = RopeTable::new(&RopeSpec { theta: 1e4, scaling: Some(scaling) }, 32);
    let positions = [0, 1, 2, 63, 1000, 70_000, 200_000];
    check("rope", |device| {
        let x = leaf(1, [positions.len(), 3, 32], device);
        let out = rope(x.clone(), &table, &positions);
        let gradients = loss(out.clone()).backward();
        vec![("output", values(out)), ("dx", values(x.grad(&gradients).expect("dx")))]
    });
}

#[test]
fn linear_agrees() {
    check("linear, trained weight", |device| {
        let (x, w) = (leaf(1, [21, 50], device), leaf(2, [37, 50], device));
        let out = linear(x.clone(), &Weight::Tensor(w.clone()));
        let gradients = loss(out.clone()).backward();
        let (dx, dw) = (x.grad(&gradients).expect("dx"), w.grad(&gradients).expect("dw"));
        vec![("output", values(out)), ("dx", values(dx)), ("dw", values(dw))]
    });
    check("linear, frozen weight", |device| {
        let x = leaf(1, [21, 50], device);
        let w = Weight::from_f32(normal(2, 37 * 50), [37, 50], WeightDtype::F32, device).expect("a weight");
        let out = linear(x.clone(), &w);
        let gradients = loss(out.clone()).backward();
        vec![
            ("output", values(out)),
            ("dx", values(x.grad(&gradients).expect("dx"))),
            ("rows", values(w.rows(&[3, 0, 36, 3], device))),
        ]
    });
}

/// 1 for NaN (a row without a label), which no comparison would accept; no log-probability is 1.
fn or_one(log_probs: &[f32]) -> Vec<f32> {
    log_probs.iter().map(|x| if x.is_nan() { 1.0 } else { *x }).collect()
}

#[test]
fn cross_entropy_agrees() {
    let labels: Vec<Option<u32>> = (0..21).map(|i| (i % 4 != 3).then_some(i * 17 % 300)).collect();
    let weights: Vec<f32> = (0..21).map(|i| if i % 5 == 4 { 0.0 } else { 1.0 / (1 + i) as f32 }).collect();
    for softcap in [None, Some(5.0)] {
        let options = HeadOptions {
            output_multiplier: 0.5,
            final_logit_softcapping: softcap,
            top_k: 4,
            ..HeadOptions::default()
        };
        check(&format!("cross entropy, softcap {softcap:?}"), |device| {
            let h = leaf(1, [21, 48], device);
            let head = Weight::from_f32(normal(2, 300 * 48), [300, 48], WeightDtype::F32, device).expect("a head");
            let out = linear_cross_entropy(h.clone(), &head, &labels, &weights, &options);
            let gradients = out.numerator.clone().backward();
            let ids = |top: &[Vec<(u32, f32)>]| top.iter().flatten().map(|&(id, _)| id as f32).collect::<Vec<f32>>();
            let log_probs = |top: &[Vec<(u32, f32)>]| top.iter().flatten().map(|&(_, p)| p).collect::<Vec<f32>>();
            let top = head_top_k(h.clone(), &head, &options);
            vec![
                ("numerator", values(out.numerator.clone())),
                ("denominator", vec![out.denominator as f32]),
                ("dh", values(h.grad(&gradients).expect("dh"))),
                ("label log-probabilities", or_one(&out.label_log_prob)),
                ("top ids", ids(&out.top)),
                ("top log-probabilities", log_probs(&out.top)),
                ("top ids without labels", ids(&top)),
                ("top log-probabilities without labels", log_probs(&top)),
                ("logits", values(head_logits(h, &head, &options))),
            ]
        });
    }
}
