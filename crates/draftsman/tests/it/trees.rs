//! Draft trees on the command line.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use draftsman_kernels::WeightDtype;
use draftsman_models::{DrafterConfig, Init, init, open_target, save_drafter};
use serde_json::{Value, json};

use crate::run::{draftsman, root};

/// A random drafter for the target `name` of the golden models.
pub(crate) fn write_drafter(name: &str, folder: &Path) {
    let target = open_target(&root().join("testdata").join(name), &Device::flex(), WeightDtype::F32).expect("a target");
    let spec = target.spec();
    let raw = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": spec.hidden_size, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "vocab_size": spec.vocab_size, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 512, "num_target_layers": spec.num_layers, "block_size": 6,
        "dflash_config": { "target_layer_ids": [0], "mask_token_id": spec.vocab_size - 1 },
    });
    let config = DrafterConfig::from_json(&raw, Path::new("config.json")).expect("a drafter");
    let drafter = init(&config, target.as_ref(), Init::Random, 5, &Device::flex()).expect("a drafter");
    save_drafter(&drafter, folder, WeightDtype::F32).expect("saved");
}

fn run_json(arguments: &[&str]) -> Value {
    let output = draftsman(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn generate_and_eval_with_trees() {
    for name in ["llama_plain", "qwen3_5"] {
        let scratch = tempfile::tempdir().expect("scratch");
        let path = |file: &str| scratch.path().join(file).display().to_string();
        write_drafter(name, Path::new(&path("drafter")));
        let target = format!("testdata/{name}");
        fs::write(path("ids.json"), "[3, 9, 4, 9, 4, 9]").expect("write");
        let generate = |more: &[&str]| {
            let (ids, drafter) = (path("ids.json"), path("drafter"));
            let mut arguments = vec!["generate", "-t", &target, "--prompt-ids", &ids, "--json", "--quiet"];
            arguments.extend(["--max-new-tokens", "20"]);
            if more.contains(&"--tree-budget") {
                arguments.extend(["-d", &drafter]);
            }
            arguments.extend(more);
            run_json(&arguments)
        };
        for sampling in [&[][..], &["--temperature", "0.8", "--top-k", "30", "--top-p", "0.9", "--seed", "4"]] {
            let plain = generate(sampling);
            for (budget, more) in
                [("0", &[][..]), ("4", &[]), ("16", &["--tree-seeded"]), ("64", &["--draft-temperature", "1.5"])]
            {
                let tree = generate(&[&["--tree-budget", budget], more, sampling].concat());
                assert_eq!(tree["output_ids"], plain["output_ids"], "{name}, {budget} nodes");
                let mut branched = 0;
                for cycle in tree["cycles"].as_array().expect("cycles") {
                    let block = cycle["block"].as_array().expect("a block");
                    assert!(block.len() <= 1 + budget.parse::<usize>().expect("a number").max(5));
                    let Some(parents) = cycle["parents"].as_array() else { continue };
                    branched += 1;
                    assert_eq!((parents.len(), &parents[0]), (block.len(), &json!(-1)));
                    for (row, parent) in parents.iter().enumerate().skip(1) {
                        assert!(parent.as_u64().is_some_and(|parent| parent < row as u64), "{parents:?}");
                    }
                }
                assert_eq!(branched > 0, budget != "0", "{name}, {budget} nodes: {branched} trees");
            }
        }

        let lines = r#"{"id": "a", "prompt_ids": [3, 9, 4]}
{"id": "b", "prompt_ids": [8, 8, 1, 30]}
"#;
        fs::write(path("prompts.jsonl"), lines).expect("write");
        let (prompts, drafter) = (path("prompts.jsonl"), path("drafter"));
        let combined = format!("ngram+{drafter}");
        let eval = |more: &[&str]| {
            let mut arguments = vec!["eval", "-t", &target, "-p", &prompts, "-d", &drafter, "-d", "ngram"];
            arguments.extend(["-d", &combined, "--json", "--quiet", "--max-new-tokens", "24"]);
            arguments.extend(["--tree-budget", "0,4,16", "--tree-seeded"]);
            arguments.extend(more);
            run_json(&arguments)
        };
        let (live, replayed) = (eval(&["--check-replay"]), eval(&["--replay"]));
        let of = |report: &Value, key: &str| {
            let lines = report["proposers"].as_array().expect("lines");
            lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>()
        };
        let names: Vec<String> = [drafter.as_str(), "ngram", combined.as_str()]
            .into_iter()
            .flat_map(|name| match name {
                "ngram" => vec![name.to_owned()],
                _ => ["", " ddtree4 seeded", " ddtree16 seeded"].map(|tree| format!("{name}{tree}")).to_vec(),
            })
            .collect();
        assert_eq!(of(&live, "name"), names);
        assert_eq!(of(&live, "block_size"), [6, 5, 17, 6, 6, 6, 17]);
        assert_eq!(of(&live, "all_tokens"), of(&replayed, "all_tokens"));
        assert!(of(&live, "lossless").iter().all(|lossless| lossless["verdict"] == "identical"));
    }
}

#[test]
fn bad_tree_and_sampling_arguments_are_refused() {
    let scratch = tempfile::tempdir().expect("scratch");
    let path = |file: &str| scratch.path().join(file).display().to_string();
    write_drafter("llama_plain", Path::new(&path("drafter")));
    fs::write(path("ids.json"), "[3, 9]").expect("write");
    let check = |more: &[&str], expected: &str| {
        let (ids, drafter) = (path("ids.json"), path("drafter"));
        let mut arguments = vec!["generate", "-t", "testdata/llama_plain", "-d", &drafter, "--prompt-ids", &ids];
        arguments.extend(more);
        let output = draftsman(&arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expected), "`{text}` should say `{expected}`");
    };
    check(&["--tree-budget", "-1"], "unexpected argument");
    check(&["--tree-budget", "5000"], "from 0 to 4096");
    check(&["--tree-budget", "8", "--draft-temperature", "0"], "`draft_temperature`");
    check(&["--temperature", "1", "--top-p", "0"], "`top_p`");
    check(&["--temperature", "1", "--top-p", "1.5"], "`top_p`");
}
