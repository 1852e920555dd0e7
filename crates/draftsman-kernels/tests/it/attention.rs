//! Attention: the CPU path against the reference and finite differences, and what its bits may depend on.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use draftsman_contract::{CounterRng, Visible};
use draftsman_kernels::{AttentionOptions, KvCache, attention, attention_cached, attention_reference};
use proptest::prelude::*;

use crate::support::{
    assert_close, bits, finite_differences, leaf, normal, tensor, values, weighted_sum, with_threads,
};

/// Sizes, and the values of q, k, v and of the output's gradient.
#[derive(Clone, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    keys: usize,
    rows: Vec<Vec<Range<u32>>>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    /// One per head, or none at all.
    sinks: Vec<f32>,
}

impl Case {
    fn new(seed: u64, [heads, kv_heads, head_dim, keys]: [usize; 4], rows: Vec<Vec<Range<u32>>>) -> Self {
        let (q, kv) = (rows.len() * heads * head_dim, keys * kv_heads * head_dim);
        Self {
            heads,
            kv_heads,
            head_dim,
            keys,
            rows,
            q: normal(seed, q),
            k: normal(seed + 1, kv),
            v: normal(seed + 2, kv),
            g: normal(seed + 3, q),
            sinks: Vec::new(),
        }
    }

    fn with_sinks(self, seed: u64) -> Self {
        Self { sinks: normal(seed, self.heads).iter().map(|x| 2.0 * x).collect(), ..self }
    }

    fn sinks(&self) -> Option<Tensor<1>> {
        (!self.sinks.is_empty()).then(|| tensor(&self.sinks, [self.heads]))
    }

    fn visible(&self) -> Visible {
        Visible::from_rows(self.rows.clone()).expect("ascending ranges")
    }

    fn q_shape(&self) -> [usize; 3] {
        [self.rows.len(), self.heads, self.head_dim]
    }

    fn kv_shape(&self) -> [usize; 3] {
        [self.keys, self.kv_heads, self.head_dim]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn forward(&self) -> Vec<f32> {
        let (q, k, v) =
            (tensor(&self.q, self.q_shape()), tensor(&self.k, self.kv_shape()), tensor(&self.v, self.kv_shape()));
        values(fast(q, k, v, &self.visible(), AttentionOptions { scale: self.scale(), sinks: self.sinks().as_ref() }))
    }

    /// Output and the gradients of q, k and v.
    fn forward_and_gradients(&self, op: Op) -> [Vec<f32>; 4] {
        let (q, k, v) = (leaf(&self.q, self.q_shape()), leaf(&self.k, self.kv_shape()), leaf(&self.v, self.kv_shape()));
        let sinks = self.sinks();
        let options = AttentionOptions { scale: self.scale(), sinks: sinks.as_ref() };
        let out = op(q.clone(), k.clone(), v.clone(), &self.visible(), options);
        let g = tensor(&self.g, self.q_shape()).autodiff();
        let gradients = (out.clone() * g).sum().backward();
        let gradient = |x: &Tensor<3>| values(x.grad(&gradients).expect("a gradient"));
        [values(out), gradient(&q), gradient(&k), gradient(&v)]
    }

    /// The rows named, alone.
    fn only(&self, rows: &[usize]) -> Self {
        let size = self.heads * self.head_dim;
        let pick = |all: &[f32]| rows.iter().flat_map(|&row| all[row * size..(row + 1) * size].to_vec()).collect();
        Self {
            rows: rows.iter().map(|&row| self.rows[row].clone()).collect(),
            q: pick(&self.q),
            g: pick(&self.g),
            ..self.clone()
        }
    }

    fn output_row<'a>(&self, out: &'a [f32], row: usize) -> &'a [f32] {
        let size = self.heads * self.head_dim;
        &out[row * size..(row + 1) * size]
    }
}

type Op = fn(Tensor<3>, Tensor<3>, Tensor<3>, &Visible, AttentionOptions) -> Tensor<3>;

fn fast(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, visible: &Visible, options: AttentionOptions) -> Tensor<3> {
    attention(q, k, v, visible, options)
}

fn reference(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, visible: &Visible, options: AttentionOptions) -> Tensor<3> {
    attention_reference(q, k, v, visible, options)
}

fn causal(past: u32, rows: u32) -> Vec<Vec<Range<u32>>> {
    (0..rows).map(|row| vec![0..past + row + 1]).collect()
}

fn causal_window(past: u32, rows: u32, window: u32) -> Vec<Vec<Range<u32>>> {
    (0..rows).map(|row| vec![(past + row + 1).saturating_sub(window)..past + row + 1]).collect()
}

/// Blocks of `size` rows that see the context up to their anchor, and themselves behind the context.
fn blocks(context: u32, anchors: &[u32], size: u32) -> Vec<Vec<Range<u32>>> {
    let own = |i: usize| context + i as u32 * size..context + (i as u32 + 1) * size;
    let rows = anchors.iter().enumerate().flat_map(|(i, &anchor)| (0..size).map(move |_| vec![0..anchor, own(i)]));
    rows.collect()
}

/// Any ascending ranges, some rows empty, neighbours often alike.
fn scattered(seed: u64, rows: usize, keys: usize) -> Vec<Vec<Range<u32>>> {
    let mut rng = CounterRng::new(seed, &[7]);
    let mut all: Vec<Vec<Range<u32>>> = Vec::new();
    for _ in 0..rows {
        if rng.uniform() < 0.4
            && let Some(last) = all.last()
        {
            all.push(last.clone());
            continue;
        }
        let mut cuts: Vec<u32> = (0..2 * rng.below(5)).map(|_| rng.below(keys + 1) as u32).collect();
        cuts.sort_unstable();
        all.push(cuts.chunks_exact(2).map(|cut| cut[0]..cut[1]).collect());
    }
    all
}

#[test]
fn equals_the_reference() {
    #[track_caller]
    fn check(name: &str, sizes: [usize; 4], rows: Vec<Vec<Range<u32>>>) {
        let case = Case::new(1, sizes, rows);
        for case in [case.clone(), case.with_sinks(8)] {
            let name = format!("{name}, {} sinks", case.sinks.len());
            let fast = case.forward_and_gradients(fast);
            let reference = case.forward_and_gradients(reference);
            for (part, (fast, reference)) in ["output", "dq", "dk", "dv"].iter().zip(fast.iter().zip(&reference)) {
                assert_close(&format!("{name}: {part}"), fast, reference, 2e-6);
            }
            assert_eq!(bits(&fast[0]), bits(&case.forward()), "{name}: tracked and untracked forward differ");
        }
    }
    check("one row", [9, 3, 64, 70], vec![vec![0..70]]);
    check("one key", [2, 1, 32, 1], vec![vec![0..1]]);
    check("verify a block", [9, 3, 64, 216], causal(200, 16));
    check("prefill", [4, 2, 64, 130], causal(0, 130));
    check("window", [6, 2, 32, 90], causal_window(20, 70, 17));
    check("training blocks", [9, 3, 64, 152], blocks(120, &[0, 5, 40, 120], 8));
    check("one head per key head", [3, 3, 16, 33], causal(3, 30));
    check("eight heads per key head", [8, 1, 128, 40], causal(10, 30));
    check("head_dim 80", [4, 2, 80, 50], causal(0, 50));
    check("head_dim below a vector", [4, 2, 6, 50], causal(0, 50));
    check("head_dim no multiple of a vector", [2, 1, 40, 37], scattered(3, 20, 37));
    for seed in 0..6 {
        check("scattered", [6, 2, 24, 150], scattered(seed, 60, 150));
    }
}

#[test]
fn gradients_are_finite_differences() {
    let rows = vec![vec![0..4, 6..9], vec![2..7], vec![], vec![0..9]];
    let case = Case::new(11, [4, 2, 5, 9], rows);
    for case in [case.clone(), case.with_sinks(12)] {
        let [_, dq, dk, dv] = case.forward_and_gradients(fast);
        let loss = |case: &Case| weighted_sum(&case.forward(), &case.g);
        let expected = finite_differences(&case.q, |q| loss(&Case { q: q.to_vec(), ..case.clone() }));
        assert_close("dq", &dq, &expected, 1e-3);
        let expected = finite_differences(&case.k, |k| loss(&Case { k: k.to_vec(), ..case.clone() }));
        assert_close("dk", &dk, &expected, 1e-3);
        let expected = finite_differences(&case.v, |v| loss(&Case { v: v.to_vec(), ..case.clone() }));
        assert_close("dv", &dv, &expected, 1e-3);
    }
}

/// One more logit per head with no value behind it, by the definition in f64.
#[test]
fn a_sink_takes_weight_and_adds_nothing() {
    let rows = vec![vec![0..20], vec![3..4], vec![2..9, 11..19], vec![]];
    let mut case = Case::new(61, [6, 2, 16, 20], rows.clone()).with_sinks(62);
    (case.sinks[0], case.sinks[1]) = (60.0, -60.0);
    let mut expected = vec![0f32; case.q.len()];
    for (row, ranges) in rows.iter().enumerate() {
        for head in 0..6 {
            let at = |x: &[f32], index: usize, d: usize| f64::from(x[index * 16 + d]);
            let keys: Vec<usize> = ranges.iter().cloned().flatten().map(|key| key as usize * 2 + head / 3).collect();
            let score = |&key: &usize| -> f64 {
                (0..16).map(|d| at(&case.q, row * 6 + head, d) * at(&case.k, key, d)).sum::<f64>() / 4.0
            };
            let sum = keys.iter().map(|key| score(key).exp()).sum::<f64>() + f64::from(case.sinks[head]).exp();
            for d in 0..16 {
                let value: f64 = keys.iter().map(|key| score(key).exp() / sum * at(&case.v, *key, d)).sum();
                expected[(row * 6 + head) * 16 + d] = value as f32;
            }
        }
    }
    assert_close("sinks", &case.forward(), &expected, 2e-6);
    let without = Case { sinks: Vec::new(), ..case.clone() };
    for row in 0..3 {
        let heads = |case: &Case, head: usize| case.forward()[(row * 6 + head) * 16..][..16].to_vec();
        assert!(heads(&case, 0).iter().all(|x| x.abs() < 1e-20), "a large sink leaves nothing");
        assert_close("a sink of no weight", &heads(&case, 1), &heads(&without, 1), 1e-6);
    }
    let sinks = tensor(&[0.0; 4], [4]);
    let run = std::panic::AssertUnwindSafe(|| {
        let (q, kv) = (tensor(&case.q, case.q_shape()), tensor(&case.k, case.kv_shape()));
        attention(q, kv.clone(), kv, &case.visible(), AttentionOptions { scale: 1.0, sinks: Some(&sinks) })
    });
    let panic = std::panic::catch_unwind(run).expect_err("four sinks for six heads");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains("4 sinks for 6 heads"), "{message}");
}

#[test]
fn a_row_that_sees_nothing_is_zero_and_gives_no_gradient() {
    let check = |rows: Vec<Vec<Range<u32>>>| {
        let case = Case::new(21, [6, 2, 20, 40], rows.clone());
        let sunk = case.clone().with_sinks(22);
        for (case, op) in [(&case, fast as Op), (&case, reference), (&sunk, fast), (&sunk, reference)] {
            let [out, dq, dk, dv] = case.forward_and_gradients(op);
            for (row, ranges) in rows.iter().enumerate().filter(|(_, ranges)| ranges.is_empty()) {
                assert!(case.output_row(&out, row).iter().all(|&x| x == 0.0), "row {row} {ranges:?}: output");
                assert!(case.output_row(&dq, row).iter().all(|&x| x == 0.0), "row {row} {ranges:?}: dq");
            }
            let size = case.kv_heads * case.head_dim;
            for key in (0..case.keys).filter(|&key| !rows.iter().flatten().any(|r| r.contains(&(key as u32)))) {
                for (name, d) in [("dk", &dk), ("dv", &dv)] {
                    assert!(d[key * size..(key + 1) * size].iter().all(|&x| x == 0.0), "key {key}: {name}");
                }
            }
        }
    };
    check(vec![vec![], vec![3..20], vec![]]);
    check(vec![vec![]]);
    check(vec![vec![], vec![], vec![]]);
}

#[test]
fn no_rows_and_no_keys() {
    let none = Case::new(0, [4, 2, 16, 5], vec![]);
    assert_eq!(none.forward(), Vec::<f32>::new());
    let no_keys = Case::new(0, [4, 2, 16, 0], vec![vec![], vec![]]);
    assert_eq!(no_keys.forward(), vec![0.0; 2 * 4 * 16]);
}

#[test]
fn keys_out_of_sight_cannot_reach_a_row() {
    let mut case = Case::new(31, [6, 2, 64, 40], vec![vec![0..7, 9..23], vec![0..7, 9..24], vec![30..40]]);
    let clean = case.forward_and_gradients(fast);
    let size = case.kv_heads * case.head_dim;
    for key in [7, 8, 24, 29] {
        case.k[key * size..(key + 1) * size].fill(f32::NAN);
        case.v[key * size..(key + 1) * size].fill(f32::INFINITY);
    }
    let dirty = case.forward_and_gradients(fast);
    for (clean, dirty) in clean.iter().zip(&dirty) {
        assert_eq!(bits(clean), bits(dirty));
    }
}

#[test]
fn not_a_number_is_passed_on() {
    let mut case = Case::new(41, [2, 1, 16, 20], vec![vec![0..20]]);
    case.k[5 * 16] = f32::NAN;
    assert!(case.forward().iter().all(|x| x.is_nan()));
}

#[test]
fn wrong_shapes_are_named() {
    #[track_caller]
    fn check(q: [usize; 3], k: [usize; 3], v: [usize; 3], visible: Visible, expected: &str) {
        let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, &Device::flex());
        let (q, k, v) = (zeros(q), zeros(k), zeros(v));
        let run = std::panic::AssertUnwindSafe(|| attention(q, k, v, &visible, 1.0));
        let panic = std::panic::catch_unwind(run).expect_err("wrong shapes were accepted");
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
    }
    let (q, kv) = ([2, 4, 8], [6, 2, 8]);
    check(q, kv, [5, 2, 8], Visible::causal(4, 2), "values [5, 2, 8]");
    check(q, [6, 2, 7], [6, 2, 7], Visible::causal(4, 2), "head_dim differs");
    check(q, [6, 3, 8], [6, 3, 8], Visible::causal(4, 2), "4 heads can't be shared out to 3");
    check(q, kv, kv, Visible::causal(4, 3), "another number of rows");
    check(q, kv, kv, Visible::causal(5, 2), "there are only 6 keys");
}

fn any_case() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![Just([9, 3, 64]), Just([4, 1, 16]), Just([2, 2, 40]), Just([6, 3, 128]), Just([5, 1, 7]),];
    let sizes = (sizes, 1..40usize, 1..200usize);
    (any::<u64>(), sizes, 0..4u8, any::<bool>()).prop_map(|(seed, ([h, kv, d], rows, keys), kind, sinks)| {
        let keys = keys.max(rows);
        let past = (keys - rows) as u32;
        let rows = match kind {
            0 => causal(past, rows as u32),
            1 => causal_window(past, rows as u32, 13),
            _ => scattered(seed, rows, keys),
        };
        let case = Case::new(seed % (1 << 32), [h, kv, d, keys], rows);
        if sinks { case.with_sinks(seed % 1000) } else { case }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any rows in any order beside any others.
    #[test]
    fn a_row_does_not_depend_on_other_rows(case in any_case(), order in any::<u64>()) {
        let all = case.forward();
        let mut rows: Vec<usize> = (0..case.rows.len()).collect();
        CounterRng::new(order, &[]).shuffle(&mut rows);
        for rows in [&rows[..rows.len().div_ceil(2)], &rows[..1]] {
            let some = case.only(rows).forward();
            for (i, &row) in rows.iter().enumerate() {
                prop_assert_eq!(bits(case.output_row(&some, i)), bits(case.output_row(&all, row)), "row {}", row);
            }
        }
    }

    /// The same keys elsewhere: moved up by an offset and interleaved with keys out of sight.
    #[test]
    fn a_row_does_not_depend_on_where_its_keys_are(case in any_case(), offset in 0..37usize, gap in 1..5usize) {
        let place = |key: usize| offset + key + (key / 9) * gap;
        let size = case.kv_heads * case.head_dim;
        let keys = place(case.keys) + 1;
        let (mut k, mut v) = (normal(99, keys * size), normal(98, keys * size));
        for key in 0..case.keys {
            let (from, to) = (key * size, place(key) * size);
            k[to..to + size].copy_from_slice(&case.k[from..from + size]);
            v[to..to + size].copy_from_slice(&case.v[from..from + size]);
        }
        let one = |key: u32| place(key as usize) as u32..place(key as usize) as u32 + 1;
        let rows = case.rows.iter().map(|ranges| ranges.iter().cloned().flatten().map(one).collect()).collect();
        let moved = Case { keys, rows, k, v, ..case.clone() };
        prop_assert_eq!(bits(&moved.forward()), bits(&case.forward()));
    }

    #[test]
    fn threads_change_nothing(case in any_case()) {
        let one = with_threads(1, || case.forward_and_gradients(fast));
        let two = with_threads(2, || case.forward_and_gradients(fast));
        for (one, two) in one.iter().zip(&two) {
            prop_assert_eq!(bits(one), bits(two));
        }
    }

    /// Whatever the steps in which a cache was filled, rolled back and filled again.
    #[test]
    fn cached_keys_are_keys(case in any_case(), steps in prop::collection::vec(1..40usize, 1..8)) {
        let mut cache = KvCache::new(case.kv_heads, case.head_dim, &Device::flex());
        let size = case.kv_heads * case.head_dim;
        let part = |all: &[f32], keys: Range<usize>| {
            tensor(&all[keys.start * size..keys.end * size], [keys.len(), case.kv_heads, case.head_dim])
        };
        for step in steps.into_iter().cycle() {
            let (start, end) = (cache.len(), (cache.len() + step).min(case.keys));
            // Rows of a rejected draft, forgotten again.
            cache.append(tensor(&vec![f32::NAN; 3 * size], [3, case.kv_heads, case.head_dim]),
                tensor(&vec![f32::NAN; 3 * size], [3, case.kv_heads, case.head_dim]));
            cache.truncate(start);
            cache.append(part(&case.k, start..end), part(&case.v, start..end));
            prop_assert_eq!(cache.len(), end);
            if end == case.keys {
                break;
            }
        }
        let q = tensor(&case.q, case.q_shape());
        let sinks = case.sinks();
        let options = AttentionOptions { scale: case.scale(), sinks: sinks.as_ref() };
        let out = values(attention_cached(q, &cache, &case.visible(), options));
        prop_assert_eq!(bits(&out), bits(&case.forward()));
    }
}

/// Enough work for several threads, which the small cases above don't reach.
#[test]
fn large_cases_are_the_same_on_threads_and_alone() {
    let check = |sizes: [usize; 4], rows: Vec<Vec<Range<u32>>>, probe: &[usize]| {
        let case = Case::new(51, sizes, rows);
        let one = with_threads(1, || case.forward_and_gradients(fast));
        let two = with_threads(2, || case.forward_and_gradients(fast));
        for (one, two) in one.iter().zip(&two) {
            assert_eq!(bits(one), bits(two));
        }
        for &row in probe {
            let alone = case.only(&[row]).forward();
            assert_eq!(bits(&alone), bits(case.output_row(&one[0], row)), "row {row}");
        }
    };
    check([9, 3, 64, 300], causal(0, 300), &[0, 17, 150, 299]);
    check([9, 3, 64, 664], blocks(600, &[0, 10, 90, 200, 201, 350, 480, 599], 8), &[0, 9, 40, 63]);
    check([9, 3, 64, 2000], causal(1999, 1), &[0]);
}

#[test]
fn cache_knows_its_size() {
    let mut cache = KvCache::new(2, 4, &Device::flex());
    assert!(cache.is_empty() && cache.bytes() == 0);
    let rows = |n: usize| tensor(&normal(1, n * 8), [n, 2, 4]);
    cache.append(rows(5), rows(5));
    assert_eq!(cache.len(), 5);
    assert!(cache.bytes() >= 2 * 5 * 8 * 4, "{} bytes", cache.bytes());
    cache.truncate(9);
    assert_eq!(cache.len(), 5);
    cache.truncate(2);
    assert_eq!(cache.len(), 2);
    cache.append(rows(0), rows(0));
    assert_eq!(cache.len(), 2);
}

#[test]
fn kept_rows_are_those_appended_alone() {
    let (kv_heads, head_dim) = (2, 12);
    let size = kv_heads * head_dim;
    let (keys, all_values, q) = (normal(1, 70 * size), normal(2, 70 * size), normal(3, size));
    let rows = |values: &[f32]| tensor(values, [values.len() / size, kv_heads, head_dim]);
    let attend = |cache: &KvCache| {
        let visible = Visible::causal(cache.len() - 1, 1);
        bits(&values(attention_cached(rows(&q), cache, &visible, 0.3)))
    };
    let check_on = |device: &Device, start: usize, kept: &[usize]| {
        let mut cache = KvCache::new(kv_heads, head_dim, device);
        cache.append(rows(&keys), rows(&all_values));
        cache.keep(start, kept);
        let mut expected = KvCache::new(kv_heads, head_dim, device);
        let chosen = |all: &[f32]| {
            let chosen = (0..start).chain(kept.iter().map(|row| start + row));
            rows(&chosen.flat_map(|row| &all[row * size..(row + 1) * size]).copied().collect::<Vec<_>>())
        };
        expected.append(chosen(&keys), chosen(&all_values));
        assert_eq!(cache.len(), start + kept.len());
        assert_eq!(attend(&cache), attend(&expected), "{kept:?} after {start}");
        // What comes next is appended after them.
        for cache in [&mut cache, &mut expected] {
            cache.append(rows(&keys[..3 * size]), rows(&all_values[..3 * size]));
        }
        assert_eq!(attend(&cache), attend(&expected), "{kept:?} after {start}, then three more");
    };
    // A device other than the plain CPU keeps tensors.
    let check = |start: usize, kept: &[usize]| {
        check_on(&Device::flex(), start, kept);
        check_on(&Device::flex().autodiff(), start, kept);
    };
    check(0, &[0, 3, 69]);
    check(13, &[1, 2, 3, 4, 20, 50, 56]);
    check(16, &[0, 1, 2]);
    check(33, &[36]);
    check(69, &[0]);
    check(5, &[]);
}
