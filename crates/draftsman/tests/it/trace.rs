//! `trace`: what it writes equals golden files, a fresh forward, and the definitions.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{draftsman, root};
use crate::tensors::{Tensors, assert_close, relative_error};

/// Runs a trace that writes tensors.
fn trace(scratch: &Path, arguments: &[&str], input: &Path) -> Tensors {
    let out = scratch.join("out.safetensors");
    let (input, written) = (input.display().to_string(), out.display().to_string());
    let mut all = vec!["trace"];
    all.extend(arguments);
    all.extend(["--input", &input, "--out", &written]);
    let output = draftsman(&all);
    assert!(output.status.success(), "{all:?}: {}", String::from_utf8_lossy(&output.stderr));
    Tensors::read(&out)
}

/// Runs a trace that prints one JSON document.
fn trace_json(arguments: &[&str]) -> Value {
    let output = draftsman(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document on stdout")
}

/// Targets with their reference and tolerance: dense and MoE 1e-5, hybrids 1e-4.
const TARGETS: [(&str, &str, f64); 17] = [
    ("llama_plain", "llama_plain", 1e-5),
    ("llama_scaled", "llama_scaled", 1e-5),
    ("llama_scaled.gguf", "llama_scaled", 1e-5),
    ("qwen2", "qwen2", 1e-5),
    ("qwen2.gguf", "qwen2", 1e-5),
    ("qwen2_untied", "qwen2_untied", 1e-5),
    ("qwen3", "qwen3", 1e-5),
    ("qwen3.gguf", "qwen3", 1e-5),
    ("qwen3_moe", "qwen3_moe", 1e-5),
    ("qwen3_moe_mixed", "qwen3_moe_mixed", 1e-5),
    ("gpt_oss", "gpt_oss", 1e-5),
    ("gpt_oss_mxfp4", "gpt_oss_mxfp4", 1e-5),
    ("qwen3_5", "qwen3_5", 1e-4),
    ("qwen3_5_nested", "qwen3_5_nested", 1e-4),
    ("qwen35.gguf", "qwen3_5_nested", 1e-4),
    ("qwen3_5_moe", "qwen3_5_moe", 1e-4),
    ("qwen3_5_moe_split", "qwen3_5_moe", 1e-4),
];

#[test]
fn target_equals_the_golden_file_resident_and_streamed() {
    let scratch = tempfile::tempdir().expect("scratch");
    for (name, reference, tolerance) in TARGETS {
        let path = root().join(format!("testdata/{reference}.reference.safetensors"));
        let model = format!("testdata/{name}");
        let written = trace(scratch.path(), &["target", "--model", &model], &path);
        let streamed = trace(scratch.path(), &["target", "--model", &model, "--stream"], &path);
        let golden = Tensors::read(&path);
        let mut compared = 0;
        for key in golden.names().filter(|key| *key != "input_ids") {
            assert_eq!(written.shape(key), golden.shape(key), "{name}: `{key}`");
            assert_close(&format!("{name}: `{key}`"), &written.floats(key), &golden.floats(key), tolerance);
            assert_eq!(written.floats(key), streamed.floats(key), "{name}: `{key}` streamed");
            compared += 1;
        }
        assert!(compared > 3, "{name}: only {compared} tensors compared");
    }
}

#[test]
fn every_form_of_the_delta_rule_is_near_the_golden_file() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = root().join("testdata/qwen3_5.reference.safetensors");
    let golden = Tensors::read(&path);
    for (rule, tolerance) in [("chunked", 1e-4), ("chunked:7", 1e-4), ("fla-rounding", 0.1)] {
        let found = trace(scratch.path(), &["target", "--model", "testdata/qwen3_5", "--delta-rule", rule], &path);
        assert_close(rule, &found.floats("logits"), &golden.floats("logits"), tolerance);
        if rule == "fla-rounding" {
            let same = found.floats("layer.0") == golden.floats("layer.0");
            assert!(!same && relative_error(&found.floats("layer.0"), &golden.floats("layer.0")) > 1e-4, "it rounds");
        }
    }
}

#[test]
fn cached_target_equals_a_fresh_forward() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let (batch, prefix, block, continuation) = (2, 9, 5, 4);
    let ids = |count: usize, salt: i64| -> Vec<i64> { (0..count as i64).map(|i| (i * 37 + salt) % 60).collect() };
    let [prefix_ids, block_ids, cont_ids] =
        [ids(batch * prefix, 3), ids(batch * block, 11), ids(batch * continuation, 29)];
    let cases = [("llama_scaled", 0), ("llama_scaled", 3), ("qwen3_5", 0), ("qwen3_5", 2), ("qwen3_5", 5)];
    let more = [("qwen3_5_moe", 1), ("gpt_oss", 2), ("qwen2", 4), ("qwen3_moe", 1)];
    for (name, accepted) in cases.into_iter().chain(more) {
        let mut cached = Tensors::default();
        cached.put_ids("prefix_ids", &[batch, prefix], &prefix_ids);
        cached.put_ids("block_ids", &[batch, block], &block_ids);
        cached.put_ids("accepted", &[], &[accepted as i64]);
        cached.put_ids("cont_ids", &[batch, continuation], &cont_ids);
        let input = scratch.join("cached.safetensors");
        cached.write(&input);
        let model = format!("testdata/{name}");
        let model = ["target", "--model", &model];
        let found = trace(scratch, &[&model[..], &["--cached"]].concat(), &input);

        // The same rows of two forwards that never had a cache.
        let fresh = |middle: usize, tail: bool| {
            let length = prefix + middle + if tail { continuation } else { 0 };
            let mut rows = Vec::new();
            for b in 0..batch {
                rows.extend(&prefix_ids[b * prefix..(b + 1) * prefix]);
                rows.extend(&block_ids[b * block..b * block + middle]);
                if tail {
                    rows.extend(&cont_ids[b * continuation..(b + 1) * continuation]);
                }
            }
            let mut tensors = Tensors::default();
            tensors.put_ids("input_ids", &[batch, length], &rows);
            let input = scratch.join("fresh.safetensors");
            tensors.write(&input);
            (trace(scratch, &model, &input), length)
        };
        let rows = |(tensors, length): &(Tensors, usize), key: &str, from: usize, count: usize| -> Vec<f32> {
            let values = tensors.floats(key);
            let width = values.len() / (batch * length);
            (0..batch)
                .flat_map(|b| values[(b * length + from) * width..(b * length + from + count) * width].to_vec())
                .collect()
        };
        let whole_block = fresh(block, false);
        let kept = fresh(accepted, true);
        for (key, golden) in [
            ("prefix_last_logits", rows(&whole_block, "logits", prefix - 1, 1)),
            ("block_logits", rows(&whole_block, "logits", prefix, block)),
            ("block.layer.1", rows(&whole_block, "layer.1", prefix, block)),
            ("cont_logits", rows(&kept, "logits", prefix + accepted, continuation)),
            ("cont.layer.0", rows(&kept, "layer.0", prefix + accepted, continuation)),
        ] {
            assert_eq!(found.floats(key), golden, "{name}, accepted {accepted}: {key}");
        }
    }
}

/// Golden cases of one document, which is what `trace` builds.
const DRAFTERS: [&str; 3] = ["drafter_full", "drafter_two_sided", "drafter_causal"];

#[test]
fn drafter_equals_the_golden_file() {
    let scratch = tempfile::tempdir().expect("scratch");
    for name in DRAFTERS {
        let golden = Tensors::read(&root().join(format!("testdata/{name}/golden.safetensors")));
        let blocks = golden.shape("anchors")[0];
        let block_size = golden.shape("block_ids")[0] / blocks;
        let mut given = Tensors::default();
        given.take(&golden, "block_ids", Some(&[blocks, block_size]));
        for key in ["features", "anchors", "embed.weight", "lm_head.weight"] {
            given.take(&golden, key, None);
        }
        let input = scratch.path().join("in.safetensors");
        given.write(&input);
        let found = trace(scratch.path(), &["drafter", "--drafter", &format!("testdata/{name}")], &input);
        for key in ["context", "layer.0", "layer.1", "final_norm", "logits"] {
            assert_close(&format!("{name}: `{key}`"), &found.floats(key), &golden.floats(key), 1e-5);
        }
        assert_eq!(found.shape("logits")[..2], [blocks, block_size], "{name}");
    }
}

#[test]
fn loss_and_gradients_equal_the_golden_file() {
    let scratch = tempfile::tempdir().expect("scratch");
    for name in DRAFTERS {
        let golden = Tensors::read(&root().join(format!("testdata/{name}/golden.safetensors")));
        assert_eq!(golden.ids("holes_cut"), [1], "{name} was made with `cut`, the default");
        let mut given = Tensors::default();
        for key in ["features", "input_ids", "loss_mask", "anchors", "embed.weight", "lm_head.weight"] {
            given.take(&golden, key, None);
        }
        let input = scratch.path().join("in.safetensors");
        given.write(&input);
        let found = trace(scratch.path(), &["loss", "--drafter", &format!("testdata/{name}")], &input);
        for key in ["loss", "loss_numerator", "loss_denominator", "weights"] {
            assert_close(&format!("{name}: `{key}`"), &found.floats(key), &golden.floats(key), 1e-5);
        }
        let mut gradients = 0;
        for key in golden.names().filter(|key| key.starts_with("grad.")) {
            assert_eq!(found.shape(key), golden.shape(key), "{name}: `{key}`");
            assert_close(&format!("{name}: `{key}`"), &found.floats(key), &golden.floats(key), 1e-4);
            gradients += 1;
        }
        assert_eq!(gradients, 25, "{name}: 11 tensors a layer and 3");
        let written = found.names().filter(|key| key.starts_with("grad.")).count();
        assert_eq!(written, gradients, "{name}: gradients nobody compared");
    }
}

/// Log-probabilities of `[L, V]` logits that no two paths share: ties are tested in the contract's own tests.
fn logits(slots: usize, vocab: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..slots * vocab)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32
        })
        .collect()
}

#[test]
fn tree_is_the_most_probable_prefixes() {
    let scratch = tempfile::tempdir().expect("scratch");
    let (slots, vocab, budget) = (3, 5, 12);
    let values = logits(slots, vocab, 7);
    let mut given = Tensors::default();
    given.put_floats("logits", &[slots, vocab], &values);
    let input = scratch.path().join("l.safetensors");
    given.write(&input);
    let printed =
        trace_json(&["trace", "tree", "--input", &input.display().to_string(), "--budget", &budget.to_string()]);
    let nodes = printed["nodes"].as_array().expect("nodes");

    // Every prefix there is, by probability.
    let log_prob = |slot: usize, token: usize| {
        let row = &values[slot * vocab..(slot + 1) * vocab];
        let total: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
        f64::from(row[token]) - total.ln()
    };
    let mut prefixes: Vec<(f64, Vec<usize>)> = Vec::new();
    let mut last: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new())];
    for slot in 0..slots {
        last = last
            .iter()
            .flat_map(|(p, path)| {
                (0..vocab).map(move |token| (p + log_prob(slot, token), [&path[..], &[token]].concat()))
            })
            .collect();
        prefixes.extend(last.iter().cloned());
    }
    prefixes.sort_by(|a, b| b.0.total_cmp(&a.0));
    assert_eq!(nodes.len(), budget);
    let mut paths: Vec<Vec<usize>> = vec![Vec::new()];
    for (node, (expected_log_prob, expected)) in nodes.iter().zip(&prefixes) {
        let parent = node["parent"].as_u64().expect("parent") as usize;
        let token = node["token"].as_u64().expect("token") as usize;
        let path = [&paths[parent][..], &[token]].concat();
        assert_eq!(&path, expected);
        assert_eq!(node["depth"].as_u64(), Some(path.len() as u64));
        let found = node["log_prob"].as_f64().expect("log_prob");
        assert!((found - expected_log_prob).abs() < 1e-5, "{found} is not {expected_log_prob}");
        paths.push(path);
    }
}

#[test]
fn acceptance_follows_its_definitions() {
    let scratch = tempfile::tempdir().expect("scratch");
    let (blocks, slots, vocab) = (40, 4, 11);
    let values = logits(blocks * slots, vocab, 99);
    // Truth: often the best or second token, so that every outcome occurs.
    let ranked = |row: usize| -> Vec<usize> {
        let row = &values[row * vocab..(row + 1) * vocab];
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        order
    };
    let rank = |n: usize, l: usize| [0, 0, 0, 1, 0, 2, 9][(n * 5 + l * 3 + n / 7) % 7];
    let truth: Vec<i64> = (0..blocks * slots).map(|row| ranked(row)[rank(row / slots, row % slots)] as i64).collect();
    let valid: Vec<i64> = (0..blocks).map(|n| (n % (slots + 1)) as i64).collect();
    let mut given = Tensors::default();
    given.put_floats("logits", &[blocks, slots, vocab], &values);
    given.put_ids("truth", &[blocks, slots], &truth);
    given.put_ids("valid", &[blocks], &valid);
    let input = scratch.path().join("l.safetensors");
    given.write(&input);
    let printed = trace_json(&["trace", "acceptance", "--input", &input.display().to_string()]);

    let log_prob = |row: usize, token: usize| {
        let row = &values[row * vocab..(row + 1) * vocab];
        let total: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
        f64::from(row[token]) - total.ln()
    };
    let mut outcomes = std::collections::BTreeSet::new();
    for n in 0..blocks {
        let usable = valid[n] as usize;
        let streak = |width: usize| (0..usable).take_while(|&l| rank(n, l) < width).count();
        // A prefix of the truth is in the tree when fewer than 8 prefixes of any length are more probable.
        let mut prefixes = Vec::new();
        let mut last = vec![0.0];
        for l in 0..slots {
            last = last
                .iter()
                .flat_map(|p| (0..vocab).map(move |token| (p, token)))
                .map(|(p, token)| p + log_prob(n * slots + l, token))
                .collect();
            prefixes.extend(last.iter().copied());
        }
        let in_tree = |depth: usize| {
            let own: f64 = (0..depth).map(|l| log_prob(n * slots + l, truth[n * slots + l] as usize)).sum();
            prefixes.iter().filter(|&&p| p > own + 1e-12).count() < 8
        };
        let tree = (1..=usable).take_while(|&depth| in_tree(depth)).count();
        let expected = [streak(1), tree, streak(8)];
        let found =
            ["chain", "ddtree8", "top8_streak"].map(|key| printed["blocks"][n][key].as_u64().expect(key) as usize);
        assert_eq!(found, expected, "block {n}: chain, ddtree8, top8_streak");
        outcomes.insert(expected);
    }
    assert!(outcomes.len() > 6, "the blocks hardly differ: {outcomes:?}");
}

#[test]
fn output_must_not_be_the_input() {
    let scratch = tempfile::tempdir().expect("scratch");
    let file = scratch.path().join("both.safetensors");
    fs::copy(root().join("testdata/llama_plain.reference.safetensors"), &file).expect("copy");
    let before = fs::read(&file).expect("input");
    let path = file.display().to_string();
    let output = draftsman(&["trace", "target", "--model", "testdata/llama_plain", "--input", &path, "--out", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(&file).expect("input"), before);
}
