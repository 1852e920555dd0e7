//! What people read, as snapshots: a change of the words is a change to look at.

use std::fs;

use crate::run::{draftsman, stderr};

/// stdout and stderr of a run, as one text.
fn shown(arguments: &[&str]) -> String {
    let scratch = tempfile::tempdir().expect("scratch");
    let output = draftsman(arguments);
    format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        output.status.code().expect("an exit code"),
        String::from_utf8_lossy(&output.stdout),
        stderr(&output, scratch.path())
    )
}

#[test]
fn inspect() {
    for name in ["llama_plain", "llama_scaled.gguf", "gpt_oss", "qwen3_5_moe", "drafter_sliding"] {
        insta::assert_snapshot!(format!("inspect_{name}"), shown(&["inspect", &format!("testdata/{name}")]));
    }
    insta::assert_snapshot!("inspect_qwen3_6_27b", shown(&["inspect", "testdata/configs/qwen3_6_27b.json"]));
    insta::assert_snapshot!("inspect_json", shown(&["--json", "inspect", "testdata/llama_plain"]));
}

#[test]
fn inspect_knows_the_shapes_of_qwen3_6_27b() {
    let output = draftsman(&["--json", "inspect", "testdata/configs/qwen3_6_27b.json", "--tensors"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["parameters"].as_u64().map(|n| (n + 500_000) / 1_000_000), Some(26_896));
    let tensors = found["tensors"].as_array().expect("tensors");
    let shape = |name: &str| {
        let name = format!("model.{name}");
        tensors.iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("`{name}` is missing"))["shape"].to_string()
    };
    // Published shapes: three linear layers, then a full one.
    for (name, expected) in [
        ("embed_tokens.weight", "[248320,5120]"),
        ("layers.0.linear_attn.in_proj_qkv.weight", "[10240,5120]"),
        ("layers.1.linear_attn.in_proj_z.weight", "[6144,5120]"),
        ("layers.2.linear_attn.in_proj_b.weight", "[48,5120]"),
        ("layers.4.linear_attn.in_proj_a.weight", "[48,5120]"),
        ("layers.62.linear_attn.conv1d.weight", "[10240,1,4]"),
        ("layers.62.linear_attn.A_log", "[48]"),
        ("layers.62.linear_attn.dt_bias", "[48]"),
        ("layers.62.linear_attn.norm.weight", "[128]"),
        ("layers.62.linear_attn.out_proj.weight", "[5120,6144]"),
        ("layers.3.self_attn.q_proj.weight", "[12288,5120]"),
        ("layers.63.self_attn.k_proj.weight", "[1024,5120]"),
        ("layers.63.self_attn.o_proj.weight", "[5120,6144]"),
        ("layers.63.self_attn.q_norm.weight", "[256]"),
        ("layers.63.mlp.down_proj.weight", "[5120,17408]"),
    ] {
        assert_eq!(shape(name), expected, "{name}");
    }
    assert_eq!(tensors.len(), 3 + 48 * 14 + 16 * 11);
}

#[test]
fn help() {
    insta::assert_snapshot!("help", shown(&["--help"]));
}

#[test]
fn errors() {
    let scratch = tempfile::tempdir().expect("scratch");
    let ids = scratch.path().join("ids.json");
    fs::write(&ids, "[1, 2, 3]").expect("write");
    let ids = ids.display().to_string();
    insta::assert_snapshot!(
        "drafter_of_another_target",
        shown(&["generate", "-t", "testdata/llama_plain", "-d", "testdata/drafter_full", "--prompt-ids", &ids])
    );
    insta::assert_snapshot!(
        "typo_in_an_override",
        shown(&[
            "train",
            "-t",
            "testdata/llama_plain",
            "-r",
            "recipes/smollm2.toml",
            "-d",
            "d",
            "-o",
            "o",
            "train.stepps=3"
        ])
    );
}

#[test]
fn speculative_generation_is_machine_readable() {
    let scratch = tempfile::tempdir().expect("scratch");
    let ids = scratch.path().join("ids.json");
    fs::write(&ids, "[1, 9, 4, 9, 4, 9]").expect("write");
    let ids = ids.display().to_string();
    insta::assert_snapshot!(
        "generate_ngram_json",
        shown(&[
            "generate",
            "-t",
            "testdata/llama_plain",
            "-d",
            "ngram",
            "--prompt-ids",
            &ids,
            "--max-new-tokens",
            "12",
            "--json",
            "--quiet"
        ])
    );
}
