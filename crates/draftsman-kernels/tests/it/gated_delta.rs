//! The gated delta rule: every form against its definition in f64, gradients, and what its bits may depend on.

use burn::tensor::{Device, Tensor};
use draftsman_contract::CounterRng;
use draftsman_kernels::{DeltaInputs, DeltaRule, gated_delta_rule, gated_delta_rule_reference};
use proptest::prelude::*;

use crate::support::{assert_close, bits, finite_differences, leaf, normal, tensor, weighted_sum, with_threads};
use crate::support::{golden, values};

/// Sizes, and the values of the inputs and of the gradients of output and last state.
#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    key_heads: usize,
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
    d_out: Vec<f32>,
    d_state: Vec<f32>,
}

impl Case {
    /// `[key_heads, heads, key_dim, value_dim]`. Decays from none to nearly all.
    fn new(seed: u64, rows: usize, [key_heads, heads, key_dim, value_dim]: [usize; 4]) -> Self {
        let mut rng = CounterRng::new(seed, &[9]);
        let keys = rows * key_heads * key_dim;
        Self {
            rows,
            key_heads,
            heads,
            key_dim,
            value_dim,
            q: normal(seed, keys),
            k: normal(seed + 1, keys),
            v: normal(seed + 2, rows * heads * value_dim),
            g: (0..rows * heads).map(|_| -(rng.normal() * 1.5 - 2.0).exp()).collect(),
            beta: (0..rows * heads).map(|_| rng.uniform() as f32).collect(),
            state: normal(seed + 3, heads * key_dim * value_dim),
            d_out: normal(seed + 4, rows * heads * value_dim),
            d_state: normal(seed + 5, heads * key_dim * value_dim),
        }
    }

    fn key_shape(&self) -> [usize; 3] {
        [self.rows, self.key_heads, self.key_dim]
    }

    fn value_shape(&self) -> [usize; 3] {
        [self.rows, self.heads, self.value_dim]
    }

    fn state_shape(&self) -> [usize; 3] {
        [self.heads, self.key_dim, self.value_dim]
    }

    fn inputs(&self) -> DeltaInputs {
        let gates = [self.rows, self.heads];
        DeltaInputs {
            q: tensor(&self.q, self.key_shape()),
            k: tensor(&self.k, self.key_shape()),
            v: tensor(&self.v, self.value_shape()),
            g: tensor(&self.g, gates),
            beta: tensor(&self.beta, gates),
        }
    }

    fn run(&self, rule: DeltaRule) -> [Vec<f32>; 2] {
        let (out, state) = gated_delta_rule(self.inputs(), tensor(&self.state, self.state_shape()), rule);
        assert_eq!((out.dims(), state.dims()), (self.value_shape(), self.state_shape()));
        [values(out), values(state)]
    }

    fn loss(&self, [out, state]: [Vec<f32>; 2]) -> f64 {
        weighted_sum(&out, &self.d_out) + weighted_sum(&state, &self.d_state)
    }

    /// Output, state, and the gradients of q, k, v, g, beta and the state before.
    fn forward_and_gradients(&self, op: impl Fn(DeltaInputs, Tensor<3>) -> (Tensor<3>, Tensor<3>)) -> [Vec<f32>; 8] {
        let gates = [self.rows, self.heads];
        let (q, k) = (leaf(&self.q, self.key_shape()), leaf(&self.k, self.key_shape()));
        let (v, g, beta) = (leaf(&self.v, self.value_shape()), leaf(&self.g, gates), leaf(&self.beta, gates));
        let state = leaf(&self.state, self.state_shape());
        let inputs = DeltaInputs { q: q.clone(), k: k.clone(), v: v.clone(), g: g.clone(), beta: beta.clone() };
        let (out, last) = op(inputs, state.clone());
        let d_out = tensor(&self.d_out, self.value_shape()).autodiff();
        let d_state = tensor(&self.d_state, self.state_shape()).autodiff();
        let gradients = ((out.clone() * d_out).sum() + (last.clone() * d_state).sum()).backward();
        let of = |x: &Tensor<3>| values(x.grad(&gradients).expect("a gradient"));
        let of_gate = |x: &Tensor<2>| values(x.grad(&gradients).expect("a gradient"));
        [values(out), values(last), of(&q), of(&k), of(&v), of_gate(&g), of_gate(&beta), of(&state)]
    }

    /// Rows `start..end`, from `state`.
    fn rows(&self, start: usize, end: usize, state: &[f32]) -> Self {
        let part = |x: &[f32]| x[x.len() / self.rows * start..x.len() / self.rows * end].to_vec();
        Self {
            rows: end - start,
            q: part(&self.q),
            k: part(&self.k),
            v: part(&self.v),
            g: part(&self.g),
            beta: part(&self.beta),
            d_out: part(&self.d_out),
            state: state.to_vec(),
            ..self.clone()
        }
    }

    /// The definition, in f64.
    fn definition(&self) -> [Vec<f32>; 2] {
        let (key_dim, value_dim) = (self.key_dim, self.value_dim);
        let mut out = vec![0f64; self.v.len()];
        let mut last = Vec::new();
        for head in 0..self.heads {
            let key_head = head / (self.heads / self.key_heads);
            let size = key_dim * value_dim;
            let mut s: Vec<f64> = self.state[head * size..][..size].iter().map(|&x| f64::from(x)).collect();
            for t in 0..self.rows {
                let unit = |x: &[f32]| -> Vec<f64> {
                    let x: Vec<f64> = x[(t * self.key_heads + key_head) * key_dim..][..key_dim]
                        .iter()
                        .map(|&x| f64::from(x))
                        .collect();
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / length).collect()
                };
                let (q, k) = (unit(&self.q), unit(&self.k));
                let row = t * self.heads + head;
                let decay = f64::from(self.g[row]).exp();
                s.iter_mut().for_each(|s| *s *= decay);
                for c in 0..value_dim {
                    let answer: f64 = (0..key_dim).map(|i| s[i * value_dim + c] * k[i]).sum();
                    let write = f64::from(self.beta[row]) * (f64::from(self.v[row * value_dim + c]) - answer);
                    (0..key_dim).for_each(|i| s[i * value_dim + c] += k[i] * write);
                    let read: f64 = (0..key_dim).map(|i| s[i * value_dim + c] * q[i]).sum();
                    out[row * value_dim + c] = read / (key_dim as f64).sqrt();
                }
            }
            last.extend(s);
        }
        [out, last].map(|x| x.into_iter().map(|x| x as f32).collect())
    }
}

const PARTS: [&str; 8] = ["output", "state", "dq", "dk", "dv", "dg", "dbeta", "dstate"];
const EXACT: [DeltaRule; 4] = [
    DeltaRule::Recurrent,
    DeltaRule::Chunked { chunk: 64 },
    DeltaRule::Chunked { chunk: 16 },
    DeltaRule::Chunked { chunk: 7 },
];

#[track_caller]
fn assert_is_the_definition(name: &str, case: &Case, rules: &[DeltaRule], limit: f64) {
    let expected = case.definition();
    for rule in rules {
        let got = case.run(*rule);
        for (part, (got, expected)) in PARTS.iter().zip(got.iter().zip(&expected)) {
            assert_close(&format!("{name}, {rule}: {part}"), got, expected, limit);
        }
    }
}

#[test]
fn every_form_is_the_definition() {
    for rows in [1, 3, 63, 64, 65, 150] {
        for sizes in [[2, 6, 16, 24], [1, 3, 32, 16], [2, 2, 5, 7], [1, 2, 128, 80]] {
            let case = Case::new(rows as u64, rows, sizes);
            assert_is_the_definition(&format!("{rows} rows, {sizes:?}"), &case, &EXACT, 2e-6);
        }
    }
}

#[test]
fn hard_gates_and_keys() {
    let sizes = [2, 6, 16, 24];
    let check = |name: &str, limit: f64, change: fn(&mut Case)| {
        let mut case = Case::new(77, 150, sizes);
        change(&mut case);
        assert_is_the_definition(name, &case, &EXACT, limit);
    };
    check("forgets at once", 2e-6, |case| case.g.fill(-50.0));
    check("forgets nothing", 2e-6, |case| case.g.fill(-1e-4));
    check("both in one chunk", 2e-6, |case| {
        for (i, g) in case.g.iter_mut().enumerate() {
            *g = if i / case.heads % 5 == 0 { -50.0 } else { -1e-4 };
        }
    });
    check("no decay", 2e-6, |case| case.g.fill(0.0));
    check("one key again and again", 1e-5, |case| {
        let size = case.key_heads * case.key_dim;
        let first = case.k[..size].to_vec();
        case.k.chunks_exact_mut(size).for_each(|k| k.copy_from_slice(&first));
        case.beta.fill(0.95);
        case.g.fill(-1e-4);
    });
    check("keys that are nearly the same", 1e-5, |case| {
        case.k.iter_mut().for_each(|k| *k = 3.0 + *k * 0.3);
        case.beta.fill(0.95);
        case.g.fill(0.0);
    });
    check("rows of zeros", 2e-6, |case| {
        let size = case.key_heads * case.key_dim;
        for t in [0, 5, 64, 149] {
            case.q[t * size..(t + 1) * size].fill(0.0);
            case.k[t * size..(t + 1) * size].fill(0.0);
        }
    });
    check("tiny rows, where eps counts", 2e-6, |case| case.k.iter_mut().for_each(|k| *k *= 1e-3));
    // What is left of the state is exp of a sum near 50, which has the rounding of 50.
    check("no write", 1e-5, |case| case.beta.fill(0.0));
    check("whole write", 2e-6, |case| case.beta.fill(1.0));
}

/// Value head h reads key head h / ratio; any other sharing is far away.
#[test]
fn value_heads_read_their_key_head() {
    let case = Case::new(3, 20, [2, 6, 16, 8]);
    let [out, _] = case.run(DeltaRule::Recurrent);
    for key_head in 0..2 {
        let mut other = case.clone();
        for t in 0..case.rows {
            let at = (t * 2 + key_head) * 16;
            other.k[at..at + 16].fill(0.5);
        }
        let [changed, _] = other.run(DeltaRule::Recurrent);
        for head in 0..6 {
            let row = |out: &[f32]| bits(&out[(19 * 6 + head) * 8..(19 * 6 + head + 1) * 8]);
            assert_eq!(row(&out) != row(&changed), head / 3 == key_head, "key head {key_head}, value head {head}");
        }
    }
}

#[test]
fn without_rows_the_state_stays() {
    let case = Case::new(4, 0, [2, 6, 16, 24]);
    for rule in [DeltaRule::Recurrent, DeltaRule::Chunked { chunk: 64 }, DeltaRule::FlaRounding] {
        let [out, state] = case.run(rule);
        assert!(out.is_empty() && bits(&state) == bits(&case.state), "{rule}");
    }
    let (_, state) = gated_delta_rule_reference(case.inputs(), tensor(&case.state, case.state_shape()));
    assert_eq!(bits(&values(state)), bits(&case.state));
}

#[test]
fn fast_gradients_are_those_of_the_reference() {
    for (rows, sizes) in
        [(1, [2, 6, 16, 24]), (16, [1, 1, 8, 16]), (17, [2, 4, 6, 40]), (65, [2, 6, 16, 24]), (33, [1, 3, 32, 72])]
    {
        let case = Case::new(rows as u64, rows, sizes);
        let expected = case.forward_and_gradients(gated_delta_rule_reference);
        for rule in [DeltaRule::Recurrent, DeltaRule::Chunked { chunk: 64 }, DeltaRule::Chunked { chunk: 10 }] {
            let got = case.forward_and_gradients(|inputs, state| gated_delta_rule(inputs, state, rule));
            for (part, (got, expected)) in PARTS.iter().zip(got.iter().zip(&expected)) {
                assert_close(&format!("{rows} rows, {sizes:?}, {rule}: {part}"), got, expected, 1e-5);
            }
        }
    }
}

#[test]
fn gradients_are_finite_differences() {
    let case = Case::new(21, 6, [2, 4, 3, 5]);
    let rules = [DeltaRule::Recurrent, DeltaRule::Chunked { chunk: 4 }];
    let expected = [
        finite_differences(&case.q, |x| case.loss(Case { q: x.to_vec(), ..case.clone() }.run(DeltaRule::Recurrent))),
        finite_differences(&case.k, |x| case.loss(Case { k: x.to_vec(), ..case.clone() }.run(DeltaRule::Recurrent))),
        finite_differences(&case.v, |x| case.loss(Case { v: x.to_vec(), ..case.clone() }.run(DeltaRule::Recurrent))),
        finite_differences(&case.g, |x| case.loss(Case { g: x.to_vec(), ..case.clone() }.run(DeltaRule::Recurrent))),
        finite_differences(&case.beta, |x| {
            case.loss(Case { beta: x.to_vec(), ..case.clone() }.run(DeltaRule::Recurrent))
        }),
        finite_differences(&case.state, |x| {
            case.loss(Case { state: x.to_vec(), ..case.clone() }.run(DeltaRule::Recurrent))
        }),
    ];
    let reference = case.forward_and_gradients(gated_delta_rule_reference);
    let forms = rules.map(|rule| case.forward_and_gradients(|inputs, state| gated_delta_rule(inputs, state, rule)));
    for form in [reference].iter().chain(&forms) {
        for (part, (got, expected)) in PARTS[2..].iter().zip(form[2..].iter().zip(&expected)) {
            assert_close(part, got, expected, 2e-3);
        }
    }
}

/// Gradients reach through a cut of the sequence, and only what is on the graph takes part.
#[test]
fn gradients_pass_through_the_state() {
    let case = Case::new(31, 40, [2, 6, 16, 24]);
    for rule in [DeltaRule::Recurrent, DeltaRule::Chunked { chunk: 16 }] {
        let whole = case.forward_and_gradients(|inputs, state| gated_delta_rule(inputs, state, rule));
        let cut = case.forward_and_gradients(|inputs, state| {
            let DeltaInputs { q, k, v, g, beta } = inputs;
            let part = |start, count| DeltaInputs {
                q: q.clone().narrow(0, start, count),
                k: k.clone().narrow(0, start, count),
                v: v.clone().narrow(0, start, count),
                g: g.clone().narrow(0, start, count),
                beta: beta.clone().narrow(0, start, count),
            };
            let (first, state) = gated_delta_rule(part(0, 23), state, rule);
            let (second, state) = gated_delta_rule(part(23, 17), state, rule);
            (Tensor::cat(vec![first, second], 0), state)
        });
        for (part, (cut, whole)) in PARTS.iter().zip(cut.iter().zip(&whole)) {
            assert_close(&format!("{rule}: {part}"), cut, whole, 1e-5);
        }
        let inputs = DeltaInputs { v: leaf(&case.v, case.value_shape()), ..case.inputs() };
        let v = inputs.v.clone();
        let (out, _) = gated_delta_rule(inputs, tensor(&case.state, case.state_shape()), rule);
        let gradients = (out * tensor(&case.d_out, case.value_shape()).autodiff()).sum().backward();
        assert_eq!(v.grad(&gradients).expect("dv").dims(), case.value_shape());
    }
}

/// The last state need not take part in the loss, nor the output.
#[test]
fn one_result_is_enough_for_gradients() {
    let case = Case::new(32, 20, [1, 3, 8, 16]);
    let zero = |x: &[f32]| vec![0f32; x.len()];
    let no_state = Case { d_state: zero(&case.d_state), ..case.clone() };
    let no_out = Case { d_out: zero(&case.d_out), ..case.clone() };
    let op = |inputs, state| gated_delta_rule(inputs, state, DeltaRule::Recurrent);
    let both = case.forward_and_gradients(op);
    let (one, two) = (no_state.forward_and_gradients(op), no_out.forward_and_gradients(op));
    for (i, part) in PARTS.iter().enumerate().skip(2) {
        let sum: Vec<f32> = one[i].iter().zip(&two[i]).map(|(a, b)| a + b).collect();
        assert_close(part, &sum, &both[i], 2e-6);
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![Just([2, 6, 16, 24]), Just([1, 2, 128, 128]), Just([3, 3, 7, 5]), Just([1, 4, 32, 50])];
    (0..1u64 << 32, 1..120usize, sizes).prop_map(|(seed, rows, sizes)| Case::new(seed, rows, sizes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn random_sizes(case in any_case(), chunk in 1..80usize) {
        assert_is_the_definition("random", &case, &[DeltaRule::Recurrent, DeltaRule::Chunked { chunk }], 5e-6);
    }

    /// Rows in one call, one by one, or in any parts: the same bits; and tracked as untracked.
    #[test]
    fn parts_change_no_bit(case in any_case(), parts in prop::collection::vec(1..30usize, 1..6)) {
        let all = with_threads(2, || case.run(DeltaRule::Recurrent));
        for parts in [&parts[..], &[1]] {
            let (mut out, mut state, mut start) = (Vec::new(), case.state.clone(), 0);
            for size in parts.iter().cycle() {
                let end = (start + size).min(case.rows);
                let [part, next] = with_threads(1, || case.rows(start, end, &state).run(DeltaRule::Recurrent));
                out.extend(part);
                (state, start) = (next, end);
                if end == case.rows {
                    break;
                }
            }
            prop_assert_eq!(bits(&out), bits(&all[0]));
            prop_assert_eq!(bits(&state), bits(&all[1]));
        }
        let tracked = case.forward_and_gradients(|inputs, state| gated_delta_rule(inputs, state, DeltaRule::Recurrent));
        prop_assert_eq!(bits(&tracked[0]), bits(&all[0]));
        prop_assert_eq!(bits(&tracked[1]), bits(&all[1]));
    }

    #[test]
    fn threads_change_no_gradient(case in any_case()) {
        let run = || case.forward_and_gradients(|inputs, state| gated_delta_rule(inputs, state, DeltaRule::Recurrent));
        for (one, two) in with_threads(1, run).iter().zip(&with_threads(2, run)) {
            prop_assert_eq!(bits(one), bits(two));
        }
    }
}

/// Heads in any number beside each other.
#[test]
fn a_head_does_not_depend_on_other_heads() {
    let case = Case::new(41, 30, [2, 6, 16, 24]);
    let [out, state] = case.run(DeltaRule::Recurrent);
    let (size, head) = (16 * 24, 4);
    let pick = |x: &[f32], of: usize, at: usize| -> Vec<f32> {
        let width = x.len() / case.rows / of;
        x.chunks_exact(width).skip(at).step_by(of).flatten().copied().collect()
    };
    let alone = Case {
        key_heads: 1,
        heads: 1,
        q: pick(&case.q, 2, 1),
        k: pick(&case.k, 2, 1),
        v: pick(&case.v, 6, head),
        g: pick(&case.g, 6, head),
        beta: pick(&case.beta, 6, head),
        state: case.state[head * size..(head + 1) * size].to_vec(),
        ..case.clone()
    };
    let [one, last] = alone.run(DeltaRule::Recurrent);
    assert_eq!(bits(&one), bits(&pick(&out, 6, head)));
    assert_eq!(bits(&last), bits(&state[head * size..(head + 1) * size]));
}

fn relative(x: &[f32], y: &[f32]) -> f64 {
    let norm = |v: Vec<f64>| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let apart = x.iter().zip(y).map(|(&x, &y)| f64::from(x) - f64::from(y)).collect();
    norm(apart) / norm(y.iter().map(|&y| f64::from(y)).collect())
}

fn bf16(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect()
}

/// As far from the exact forms as bf16 kernels are, and no further; one row only rounds what goes in and out.
#[test]
fn fla_rounding_is_that_of_bf16_kernels() {
    let mut case = Case::new(51, 200, [2, 6, 64, 64]);
    for x in [&mut case.q, &mut case.k, &mut case.v, &mut case.beta] {
        *x = bf16(x);
    }
    let [out, state] = case.run(DeltaRule::Recurrent);
    let [rounded, last] = case.run(DeltaRule::FlaRounding);
    assert_eq!(bits(&rounded), bits(&bf16(&rounded)), "the output is bf16");
    assert!(bits(&last) != bits(&bf16(&last)), "the state is not");
    for (part, apart) in [("output", relative(&rounded, &out)), ("state", relative(&last, &state))] {
        assert!((1e-3..8e-3).contains(&apart), "{part}: {apart:e}");
    }
    let exact = case.forward_and_gradients(gated_delta_rule_reference);
    let rough = case.forward_and_gradients(|inputs, state| gated_delta_rule(inputs, state, DeltaRule::FlaRounding));
    for (part, (rough, exact)) in PARTS.iter().zip(rough.iter().zip(&exact)) {
        assert_close(part, rough, exact, 3e-2);
    }
    let row = case.rows(0, 1, &case.state);
    let ([out, state], [rounded, last]) = (row.run(DeltaRule::Recurrent), row.run(DeltaRule::FlaRounding));
    assert_eq!(bits(&rounded), bits(&bf16(&out)));
    assert_eq!(bits(&last), bits(&state));
}

/// Made and compared with transformers' functions by scripts/golden/gated_delta.py.
#[test]
fn golden_files() {
    let golden = golden("gated_delta.safetensors");
    let cases = golden.cases();
    assert_eq!(cases.len(), 11);
    for name in cases {
        let (q_shape, q) = golden.get(&format!("{name}.q"));
        let (v_shape, v) = golden.get(&format!("{name}.v"));
        let get = |key: &str| golden.get(&format!("{name}.{key}")).1;
        let case = Case {
            rows: q_shape[0],
            key_heads: q_shape[1],
            heads: v_shape[1],
            key_dim: q_shape[2],
            value_dim: v_shape[2],
            q,
            k: get("k"),
            v,
            g: get("g"),
            beta: get("beta"),
            state: get("state"),
            d_out: Vec::new(),
            d_state: Vec::new(),
        };
        for rule in EXACT {
            let [out, state] = case.run(rule);
            assert_close(&format!("{name}, {rule}: out"), &out, &get("out"), 1e-5);
            assert_close(&format!("{name}, {rule}: final_state"), &state, &get("final_state"), 1e-5);
        }
    }
}

#[test]
fn names() {
    #[track_caller]
    fn check(word: &str, expected: DeltaRule, shown: &str) {
        let rule: DeltaRule = word.parse().expect(word);
        assert_eq!(rule, expected);
        assert_eq!(rule.to_string(), shown);
        assert_eq!(shown.parse::<DeltaRule>().expect(shown), rule);
        assert!(shown.starts_with(rule.name()));
    }
    check("recurrent", DeltaRule::default(), "recurrent");
    check("chunked", DeltaRule::Chunked { chunk: 64 }, "chunked:64");
    check("chunked:16", DeltaRule::Chunked { chunk: 16 }, "chunked:16");
    check("fla-rounding", DeltaRule::FlaRounding, "fla-rounding");
    for word in ["", "Recurrent", "chunked:0", "chunked:-1", "chunked:", "recurrent:4", "fla"] {
        let error = word.parse::<DeltaRule>().expect_err(word).to_string();
        assert!(error.contains(&format!("`{word}`")) && error.contains("chunked:ROWS"), "{error}");
    }
}

#[test]
fn wrong_shapes_are_named() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut DeltaInputs, &mut Tensor<3>), expected: &str) {
        let case = Case::new(1, 4, [2, 6, 8, 5]);
        let (mut inputs, mut state) = (case.inputs(), tensor(&case.state, case.state_shape()));
        change(&mut inputs, &mut state);
        let run = std::panic::AssertUnwindSafe(|| gated_delta_rule(inputs, state, DeltaRule::Recurrent));
        let panic = std::panic::catch_unwind(run).expect_err("wrong shapes were accepted");
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
    }
    let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, &Device::flex());
    check(|x, _| x.k = zeros([4, 2, 7]), "k [4, 2, 7]");
    check(|x, _| x.v = zeros([5, 6, 5]), "rows differ");
    check(|x, _| x.v = zeros([4, 5, 5]), "5 value heads can't be shared out to 2");
    check(|x, _| x.beta = Tensor::zeros([4, 2], &Device::flex()), "beta must be");
    check(|_, state| *state = zeros([6, 5, 8]), "[value_heads, K, V]");
}
