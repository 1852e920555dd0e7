//! How far the forms of the gated delta rule are from each other, as the table of docs/numerics.md.
//!
//! `cargo run --release -p draftsman-kernels --example delta_numerics`
//!
//! One layer of the shape of Qwen3.5-27B with fewer heads: K = V = 128, three value heads per key head, 512 rows from
//! an empty state. q, k, v, a, b and β are bf16 numbers, as a bf16 model would hand them over.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::CounterRng;
use draftsman_kernels::{DeltaInputs, DeltaRule, delta_gates, gated_delta_rule};

const ROWS: usize = 512;
const KEY_HEADS: usize = 2;
const HEADS: usize = 6;
const WIDTH: usize = 128;
const SEEDS: u64 = 3;

fn main() {
    println!("| against | form | output | state |");
    println!("|---|---|---|---|");
    let mut rows: Vec<(&str, &str, Vec<[f64; 2]>)> = Vec::new();
    for seed in 0..SEEDS {
        for (i, (against, form, apart)) in differences(&layer(seed)).into_iter().enumerate() {
            if rows.len() <= i {
                rows.push((against, form, Vec::new()));
            }
            rows[i].2.push(apart);
        }
    }
    for (against, form, apart) in rows {
        let range = |part: usize| {
            let (low, high) =
                apart.iter().fold((f64::MAX, 0f64), |(low, high), x| (low.min(x[part]), high.max(x[part])));
            if high == 0.0 { "0".to_owned() } else { format!("{low:.1e} to {high:.1e}") }
        };
        println!("| {against} | {form} | {} | {} |", range(0), range(1));
    }
}

/// Relative rms differences of output and last state.
fn differences(layer: &Layer) -> Vec<(&'static str, &'static str, [f64; 2])> {
    let chunked = |chunk| layer.run(DeltaRule::Chunked { chunk });
    let definition = layer.definition();
    let recurrent = layer.run(DeltaRule::Recurrent);
    let fla = layer.run(DeltaRule::FlaRounding);
    let output_rounded = [recurrent[0].iter().map(|&x| bf16(x)).collect(), recurrent[1].clone()];
    let pair = |x: &[Vec<f32>; 2], y: &[Vec<f32>; 2]| [relative(&x[0], &y[0]), relative(&x[1], &y[1])];
    vec![
        ("definition in f64", "`recurrent`", pair(&recurrent, &definition)),
        ("definition in f64", "`chunked:16`", pair(&chunked(16), &definition)),
        ("definition in f64", "`chunked:64`", pair(&chunked(64), &definition)),
        ("`recurrent`", "`chunked:16`", pair(&chunked(16), &recurrent)),
        ("`recurrent`", "`chunked:64`", pair(&chunked(64), &recurrent)),
        ("`recurrent`", "`recurrent`, output rounded to bf16", pair(&output_rounded, &recurrent)),
        ("`recurrent`", "`fla-rounding`", pair(&fla, &recurrent)),
        ("`recurrent`, output rounded to bf16", "`fla-rounding`", pair(&fla, &output_rounded)),
    ]
}

struct Layer {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
}

fn layer(seed: u64) -> Layer {
    let mut rng = CounterRng::new(seed, &[1]);
    let mut normal = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.normal()).collect() };
    let rounded = |x: Vec<f32>| -> Vec<f32> { x.into_iter().map(bf16).collect() };
    let (q, k) = (rounded(normal(ROWS * KEY_HEADS * WIDTH)), rounded(normal(ROWS * KEY_HEADS * WIDTH)));
    let v = rounded(normal(ROWS * HEADS * WIDTH));
    let (a, b) = (rounded(normal(ROWS * HEADS)), rounded(normal(ROWS * HEADS)));
    let dt_bias = normal(HEADS).into_iter().map(|x| 1.5 * x - 2.0).collect();
    // Rates between 0.01 and 16, as such layers are initialised.
    let a_log = (0..HEADS).map(|_| (0.01 + 15.99 * rng.uniform() as f32).ln()).collect();
    let gates = [ROWS, HEADS];
    let (g, beta) = delta_gates(tensor(&a, gates), tensor(&b, gates), tensor1(a_log), tensor1(dt_bias));
    Layer { q, k, v, g: values(g), beta: rounded(values(beta)) }
}

impl Layer {
    fn run(&self, rule: DeltaRule) -> [Vec<f32>; 2] {
        let (keys, gates) = ([ROWS, KEY_HEADS, WIDTH], [ROWS, HEADS]);
        let inputs = DeltaInputs {
            q: tensor(&self.q, keys),
            k: tensor(&self.k, keys),
            v: tensor(&self.v, [ROWS, HEADS, WIDTH]),
            g: tensor(&self.g, gates),
            beta: tensor(&self.beta, gates),
        };
        let (out, state) = gated_delta_rule(inputs, Tensor::zeros([HEADS, WIDTH, WIDTH], &Device::flex()), rule);
        [values(out), values(state)]
    }

    fn definition(&self) -> [Vec<f32>; 2] {
        let unit = |x: &[f32]| -> Vec<f64> {
            let length = (x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|&x| f64::from(x) / length).collect()
        };
        let (mut out, mut last) = (vec![0f32; self.v.len()], Vec::new());
        for head in 0..HEADS {
            let mut s = vec![0f64; WIDTH * WIDTH];
            for t in 0..ROWS {
                let at = (t * KEY_HEADS + head / (HEADS / KEY_HEADS)) * WIDTH;
                let (q, k) = (unit(&self.q[at..at + WIDTH]), unit(&self.k[at..at + WIDTH]));
                let gate = t * HEADS + head;
                let (decay, beta) = (f64::from(self.g[gate]).exp(), f64::from(self.beta[gate]));
                s.iter_mut().for_each(|s| *s *= decay);
                let (mut answer, mut read) = (vec![0f64; WIDTH], vec![0f64; WIDTH]);
                for (s, k) in s.chunks_exact(WIDTH).zip(&k) {
                    answer.iter_mut().zip(s).for_each(|(answer, s)| *answer += s * k);
                }
                let v = &self.v[gate * WIDTH..(gate + 1) * WIDTH];
                let write: Vec<f64> = v.iter().zip(&answer).map(|(&v, a)| beta * (f64::from(v) - a)).collect();
                for ((s, k), q) in s.chunks_exact_mut(WIDTH).zip(&k).zip(&q) {
                    for ((s, write), read) in s.iter_mut().zip(&write).zip(&mut read) {
                        *s += k * write;
                        *read += *s * q;
                    }
                }
                let scale = (WIDTH as f64).sqrt();
                let out = &mut out[gate * WIDTH..(gate + 1) * WIDTH];
                out.iter_mut().zip(&read).for_each(|(out, read)| *out = (read / scale) as f32);
            }
            last.extend(s.into_iter().map(|s| s as f32));
        }
        [out, last]
    }
}

fn bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

fn relative(x: &[f32], y: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    let apart = squares(&mut x.iter().zip(y).map(|(&x, &y)| f64::from(x) - f64::from(y)));
    (apart / squares(&mut y.iter().map(|&y| f64::from(y)))).sqrt()
}

fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

fn tensor1(values: Vec<f32>) -> Tensor<1> {
    let length = values.len();
    tensor(&values, [length])
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec_as().expect("a float tensor")
}
