//! `eval --stats` against the tensors that `trace` gives, and on models that are broken.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::bad_input::broken_copy;
use crate::run::{draftsman, stderr};
use crate::tensors::Tensors;
use crate::trees::write_drafter;

/// Overwrites the first values of a tensor.
fn poison(file: &Path, name: &str, values: &[f32]) {
    let bytes = fs::read(file).expect("read");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let old = tensors.tensor(name).expect("the tensor").data();
    // The data of a tensor are a part of the file: its distance from the start is where they lie.
    let at = old.as_ptr() as usize - bytes.as_ptr() as usize;
    let mut changed = bytes.clone();
    for (index, value) in values.iter().enumerate() {
        changed[at + 4 * index..at + 4 * (index + 1)].copy_from_slice(&value.to_le_bytes());
    }
    fs::write(file, changed).expect("write");
}

fn succeeded(output: Output) -> Output {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn names(tensors: &Value) -> Vec<(&str, u64, u64)> {
    let fact = |t: &Value, key: &str| t[key].as_u64().expect("a count");
    let tensors = tensors.as_array().expect("tensors");
    tensors.iter().map(|t| (t["name"].as_str().expect("a name"), fact(t, "rows"), fact(t, "dim"))).collect()
}

#[test]
fn recorded_answers_have_the_moments_of_the_traced_tensors() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = |file: &str| scratch.path().join(file).display().to_string();
    write_drafter("llama_plain", Path::new(&path("drafter")));
    let ids: Vec<i64> = (0..24).map(|i| (i * 7 + 3) % 149).collect();
    let line = json!({ "id": "a", "prompt_ids": ids[..5], "response_ids": ids[5..] });
    fs::write(path("answers.jsonl"), format!("{line}\n")).expect("write");
    let (target, answers, drafter, out) =
        ("testdata/llama_plain", path("answers.jsonl"), path("drafter"), path("o.json"));
    let stats = ["eval", "-t", target, "--stats", "--answers", &answers];
    let with = [&stats[..], &["-d", &drafter, "-d", "ngram", "--out", &out]].concat();
    let output = succeeded(draftsman(&[&with[..], &["--json"]].concat()));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let written: Value = serde_json::from_slice(&fs::read(&out).expect("the report")).expect("JSON");
    assert_eq!(report, written);
    assert!(stderr(&output, scratch.path()).contains("`ngram` has no tensors"));
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&report), "stats_version documents documents_without_answer target drafters");
    assert_eq!(keys(&report["drafters"][0]), "name target_layer_ids block_size anchors blocks tensors");
    assert_eq!(keys(&report["target"][0]), "name rows dim mean std rms min max nan infinite non_finite_share");
    assert_eq!(
        names(&report["target"]),
        [("aux_hidden.layer.0", 24, 36), ("last_hidden", 24, 36), ("logits", 24, 150)]
    );
    // Anchors 5, 10, 15, 20: four blocks of six rows.
    assert_eq!(
        names(&report["drafters"][0]["tensors"]),
        [("context", 24, 36), ("drafter.layer.0", 24, 36), ("drafter.final_norm", 24, 36), ("drafter.logits", 24, 150)]
    );

    let mut input = Tensors::default();
    input.put_ids("input_ids", &[1, 24], &ids);
    input.write(Path::new(&path("in.safetensors")));
    let (from, to) = (path("in.safetensors"), path("out.safetensors"));
    succeeded(draftsman(&["trace", "target", "--model", target, "--input", &from, "--out", &to]));
    let traced = Tensors::read(Path::new(&to));
    let check = |stats: &Value, values: &[f32]| {
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let std = (values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n).sqrt();
        for (key, expected) in [
            ("mean", mean),
            ("std", std),
            ("min", values.iter().copied().fold(f32::INFINITY, f32::min).into()),
            ("max", values.iter().copied().fold(f32::NEG_INFINITY, f32::max).into()),
        ] {
            let found = stats[key].as_f64().expect("a number");
            assert!((found - expected).abs() <= 1e-6 * std, "{}: {key} {found}, expected {expected}", stats["name"]);
        }
    };
    for (at, name) in ["layer.0", "final_norm", "logits"].into_iter().enumerate() {
        check(&report["target"][at], &traced.floats(name));
    }

    // The blocks and features of the same document, traced.
    let mut input = Tensors::default();
    input.put_floats("features", &[24, 36], &traced.floats("layer.0"));
    let mask = 149;
    let anchors = [5, 10, 15, 20];
    let blocks: Vec<i64> = anchors.iter().flat_map(|&at| [ids[at], mask, mask, mask, mask, mask]).collect();
    input.put_ids("block_ids", &[4, 6], &blocks);
    input.put_ids("anchors", &[4], &anchors.map(|at| at as i64));
    input.write(Path::new(&from));
    succeeded(draftsman(&[
        "trace",
        "drafter",
        "--drafter",
        &drafter,
        "--target",
        target,
        "--input",
        &from,
        "--out",
        &to,
    ]));
    let traced = Tensors::read(Path::new(&to));
    for (at, name) in ["context", "layer.0", "final_norm", "logits"].into_iter().enumerate() {
        check(&report["drafters"][0]["tensors"][at], &traced.floats(name));
    }

    let shown = succeeded(draftsman(&with));
    let shown = String::from_utf8(shown.stdout).expect("text");
    for word in
        ["target llama_plain: all rows of 1 documents", "drafter.final_norm", "4 blocks of 6 rows", "non-finite"]
    {
        assert!(shown.contains(word), "{word}:\n{shown}");
    }
    // Without a drafter the taps are the default ones.
    let output = succeeded(draftsman(&[&stats[..], &["--json", "--quiet"]].concat()));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(names(&report["target"])[0].0, "aux_hidden.layer.1");
    assert_eq!(report["drafters"], json!([]));
}

#[test]
fn the_first_broken_tensor_is_named() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = |file: &str| scratch.path().join(file).display().to_string();
    // Only the second prompt holds token 99.
    let lines = r#"{"id": "a", "prompt_ids": [3, 9, 4]}
{"id": "b", "prompt_ids": [8, 99, 1, 30]}
"#;
    fs::write(path("prompts.jsonl"), lines).expect("write");
    let prompts = path("prompts.jsonl");
    let (few, row) = (vec![f32::NAN], [vec![0.0; 99 * 32], vec![f32::NAN; 32]].concat());
    for (name, tensor, values, first, unanswered) in [
        ("layer0", "model.layers.0.mlp.down_proj.weight", &few, "aux_hidden.layer.1", 2),
        ("layer1", "model.layers.1.self_attn.v_proj.weight", &few, "aux_hidden.layer.1", 2),
        ("layer2", "model.layers.2.mlp.down_proj.weight", &few, "last_hidden", 2),
        ("norm", "model.norm.weight", &few, "last_hidden", 2),
        ("embedding", "model.embed_tokens.weight", &row, "aux_hidden.layer.1", 1),
    ] {
        let target = broken_copy(scratch.path(), "llama_scaled", name, |folder| {
            poison(&folder.join("model.safetensors"), tensor, values);
        });
        let arguments = ["eval", "-t", &target, "--stats", "-p", &prompts, "--max-new-tokens", "6", "--json"];
        let output = succeeded(draftsman(&arguments));
        let text = stderr(&output, scratch.path());
        let warning = format!("warning: target: the first tensor with NaN or infinite values is `{first}`");
        assert!(text.contains(&warning), "{name}:\n{text}");
        assert!(text.contains(&format!("{unanswered} questions have no answer")), "{name}:\n{text}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["documents_without_answer"], unanswered, "{name}");
        assert!(report["target"][2]["nan"].as_u64() > Some(0), "{name}: {}", report["target"][2]);
    }
    // Finite weights, and a drafter whose outputs are not.
    write_drafter("llama_scaled", Path::new(&path("drafter")));
    poison(&scratch.path().join("drafter/model.safetensors"), "layers.0.mlp.down_proj.weight", &[f32::MAX; 48]);
    poison(&scratch.path().join("drafter/model.safetensors"), "layers.0.mlp.up_proj.weight", &[1e30; 48]);
    let drafter = path("drafter");
    let output = succeeded(draftsman(&[
        "eval",
        "-t",
        "testdata/llama_scaled",
        "--stats",
        "-p",
        &prompts,
        "-d",
        &drafter,
        "--max-new-tokens",
        "6",
    ]));
    let text = stderr(&output, scratch.path());
    let warning = "warning: drafter SCRATCH/drafter: the first tensor with NaN or infinite values is `drafter.layer.0`";
    assert!(text.contains(warning), "{text}");
    // Not beside other modes.
    let output = draftsman(&["eval", "-t", "testdata/llama_scaled", "--stats", "--replay", "-p", &prompts]);
    assert_eq!(output.status.code(), Some(2));
}
