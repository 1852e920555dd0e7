//! Bad input: one clear error with file and key, exit code 2, nothing written.

use std::fs;
use std::path::Path;

use crate::models::{copy_model, edit_json};
use crate::run::{draftsman, root, stderr};
use crate::tensors::Tensors;

/// Runs the program on bad input and demands exit code 2, every expected word in the error, and no new file.
fn check(scratch: &Path, arguments: &[&str], expected: &[&str]) {
    let before = listing(scratch);
    let output = draftsman(arguments);
    let text = stderr(&output, scratch);
    assert_eq!(output.status.code(), Some(2), "{arguments:?} ended with {:?}:\n{text}", output.status);
    for word in expected {
        assert!(text.contains(word), "{arguments:?} does not say {word:?}:\n{text}");
    }
    assert_eq!(text.matches("error:").count(), 1, "one error is one error:\n{text}");
    assert_eq!(listing(scratch), before, "{arguments:?} wrote something");
}

fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("scratch folder")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A copy of the tiny llama with one file changed.
fn broken_llama(scratch: &Path, name: &str, change: impl Fn(&Path)) -> String {
    broken_copy(scratch, "llama_plain", name, change)
}

/// A copy of a model of testdata with one file changed.
pub(crate) fn broken_copy(scratch: &Path, model: &str, name: &str, change: impl Fn(&Path)) -> String {
    copy_model(&root().join("testdata").join(model), &scratch.join(name), change)
}

/// Writes a safetensors file again without one of its tensors.
fn drop_tensor(path: &Path, name: &str) {
    let bytes = fs::read(path).expect("read");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let kept: Vec<_> = tensors.tensors().into_iter().filter(|(key, _)| key != name).collect();
    assert_eq!(kept.len() + 1, tensors.len(), "`{name}` is there");
    let bytes = safetensors::serialize(kept, None).expect("serialize");
    fs::write(path, bytes).expect("write");
}

#[test]
fn models() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let ids = scratch.join("ids.json");
    fs::write(&ids, "[1, 2, 3]").expect("ids");
    let ids = ids.display().to_string();

    let truncated = broken_llama(scratch, "truncated", |folder| {
        let path = folder.join("model-00001-of-00002.safetensors");
        let bytes = fs::read(&path).expect("read");
        fs::write(path, &bytes[..bytes.len() / 2]).expect("write");
    });
    check(scratch, &["generate", "-t", &truncated, "--prompt-ids", &ids], &["model-00001-of-00002.safetensors"]);

    let gguf = scratch.join("short.gguf");
    let bytes = fs::read(root().join("testdata/llama_scaled.gguf")).expect("gguf");
    fs::write(&gguf, &bytes[..bytes.len() / 3]).expect("write");
    check(scratch, &["generate", "-t", &gguf.display().to_string(), "--prompt-ids", &ids], &["short.gguf"]);

    let missing = broken_copy(scratch, "llama_scaled", "missing", |folder| {
        drop_tensor(&folder.join("model.safetensors"), "model.layers.1.mlp.up_proj.weight");
    });
    check(
        scratch,
        &["generate", "-t", &missing, "--prompt-ids", &ids],
        &["model.safetensors", "model.layers.1.mlp.up_proj.weight"],
    );

    let wrong = broken_llama(scratch, "wrong", |folder| {
        edit_json(&folder.join("config.json"), |json| {
            let old = json["intermediate_size"].as_u64().expect("a size");
            json["intermediate_size"] = (old + 8).into();
        });
    });
    check(
        scratch,
        &["generate", "-t", &wrong, "--prompt-ids", &ids],
        &["mlp.gate_proj.weight", "mlp.down_proj.weight", "model-0000"],
    );

    check(scratch, &["inspect", "no/such/model"], &["no/such/model", "hint:"]);
    // `inspect` reads no weight, but says when the files do not fit.
    check(scratch, &["inspect", &truncated], &["model-00001-of-00002.safetensors", "hint:"]);
    check(scratch, &["inspect", &wrong], &["mlp.gate_proj.weight", "hint:"]);
    let rope = broken_llama(scratch, "rope", |folder| {
        edit_json(&folder.join("config.json"), |json| {
            json["rope_parameters"] = serde_json::json!({ "full_attention": { "rope_type": "linear", "factor": 2.0 } });
        });
    });
    check(scratch, &["inspect", &rope], &["rope/config.json", "rope_parameters.full_attention"]);
    let huge = broken_llama(scratch, "huge", |folder| {
        edit_json(&folder.join("config.json"), |json| {
            for key in ["hidden_size", "vocab_size", "intermediate_size"] {
                json[key] = 2_147_483_648u64.into();
            }
        });
    });
    check(scratch, &["inspect", &huge], &["huge/config.json", "not believed"]);
    #[cfg(unix)]
    {
        let pipe = scratch.join("pipe.gguf");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        check(scratch, &["inspect", &pipe.display().to_string()], &["pipe.gguf", "not a regular file"]);
    }
    check(
        scratch,
        &["generate", "-t", "testdata/llama_plain", "-d", "testdata/llama_plain", "--prompt-ids", &ids],
        &["testdata/llama_plain"],
    );
}

#[test]
fn drafters() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let ids = scratch.join("ids.json");
    fs::write(&ids, "[1, 2, 3]").expect("ids");
    let ids = ids.display().to_string();
    let generate = |drafter: &str, expected: &[&str]| {
        check(scratch, &["generate", "-t", "testdata/llama_plain", "-d", drafter, "--prompt-ids", &ids], expected);
    };
    // Another target's drafter: every difference at once.
    generate("testdata/drafter_full", &["`vocab_size` is 61", "150", "`hidden_size` is 32", "36", "hint:"]);
    let broken = |name: &str, change: fn(&mut serde_json::Value)| {
        broken_copy(scratch, "drafter_full", name, |folder| edit_json(&folder.join("config.json"), change))
    };
    let mask = broken("mask", |json| json["dflash_config"]["mask_token_id"] = 61.into());
    generate(&mask, &["mask/config.json", "mask_token_id", "61", "hint:"]);
    let taps = broken("taps", |json| json["dflash_config"]["target_layer_ids"] = serde_json::json!([1, 3, 9]));
    generate(&taps, &["taps/config.json", "target_layer_ids", "0..=8", "hint:"]);
    let missing = broken_copy(scratch, "drafter_full", "missing", |folder| {
        drop_tensor(&folder.join("model.safetensors"), "hidden_norm.weight");
    });
    let input = root().join("testdata/drafter_full/golden.safetensors").display().to_string();
    let out = scratch.join("out.safetensors").display().to_string();
    check(
        scratch,
        &["trace", "drafter", "--drafter", &missing, "--input", &input, "--out", &out],
        &["missing/model.safetensors", "hidden_norm.weight"],
    );
}

#[test]
fn training_data() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let write = |name: &str, text: &str| {
        let path = scratch.join(name);
        fs::write(&path, text).expect("write");
        path.display().to_string()
    };
    let recipe = write(
        "r.toml",
        "[drafter]\nblock_size = 4\nnum_hidden_layers = 1\ntarget_layer_ids = [0, 2]\nmask_token_id = 5\n\
         [train]\nsteps = 2\nlearning_rate = 1e-3\n",
    );
    let out = scratch.join("run").display().to_string();
    let train = |recipe: &str, data: &str, expected: &[&str]| {
        check(
            scratch,
            &["train", "-t", "testdata/llama_plain", "--recipe", recipe, "--data", data, "--out", &out],
            expected,
        );
    };
    let good = "{\"input_ids\": [1, 2, 3, 4, 6, 7], \"loss_mask\": [0, 0, 1, 1, 1, 1]}\n";
    let long = format!("{{\"input_ids\": {:?}, \"loss_mask\": {:?}}}\n", vec![1; 257], vec![1; 257]);
    for (name, text, expected) in [
        ("malformed.jsonl", format!("{good}{{\"input_ids\": [1, 2], \"loss_mask\"\n"), vec!["malformed.jsonl:2:", "JSON"]),
        ("empty.jsonl", String::new(), vec!["empty.jsonl"]),
        ("mute.jsonl", good.replace('1', "0"), vec!["mute.jsonl", "supervised"]),
        ("long.jsonl", format!("{good}{long}"), vec!["long.jsonl:2", "257", "256"]),
        ("lengths.jsonl", good.replace("7]", "7, 8]"), vec!["lengths.jsonl:1", "7", "6"]),
        ("vocabulary.jsonl", good.replace("7]", "150]"), vec!["vocabulary.jsonl:1", "150"]),
        ("mask.jsonl", good.replace("7]", "5]"), vec!["mask.jsonl:1", "5", "mask"]),
        ("chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n".to_owned(), vec!["chat.jsonl:1", "tokenizer"]),
    ] {
        train(&recipe, &write(name, &text), &expected);
    }
    train(&recipe, "no/such.jsonl", &["no/such.jsonl"]);
    let data = write("good.jsonl", &good.repeat(4));
    train("recipes/smollm2-smoke.toml", &data, &["target_layer_ids", "8", "hint:"]);
    let mask = write(
        "mask.toml",
        "[drafter]\nblock_size = 4\nnum_hidden_layers = 1\ntarget_layer_ids = [0]\nmask_token_id = 150\n[train]\nsteps = 2\nlearning_rate = 1e-3\n",
    );
    train(&mask, &data, &["mask_token_id", "150"]);
}

#[test]
fn prompts() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let write = |name: &str, text: &str| {
        let path = scratch.join(name);
        fs::write(&path, text).expect("write");
        path.display().to_string()
    };
    let generate = |ids: &str, expected: &[&str]| {
        check(scratch, &["generate", "-t", "testdata/llama_plain", "--prompt-ids", ids], expected);
    };
    generate(&write("words.json", "[\"a\"]"), &["words.json"]);
    generate(&write("large.json", "[999999999]"), &["999999999"]);
    generate(&write("long.json", &format!("{:?}", vec![1; 4096])), &["4096"]);
    generate(&write("empty.json", "[]"), &["empty"]);
}

#[test]
fn recipes() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let recipe = scratch.join("r.toml");
    fs::write(&recipe, "[train]\nlearning_rat = 1e-3\n").expect("write");
    let recipe = recipe.display().to_string();
    let data = scratch.join("d.jsonl");
    fs::write(&data, "{\"input_ids\": [1, 2], \"loss_mask\": [0, 1]}\n").expect("write");
    let data = data.display().to_string();
    let out = scratch.join("run").display().to_string();
    let train = |recipe: &str, more: &[&str], expected: &[&str]| {
        let mut arguments =
            vec!["train", "-t", "testdata/llama_plain", "--recipe", recipe, "--data", &data, "--out", &out];
        arguments.extend(more);
        check(scratch, &arguments, expected);
    };
    train(&recipe, &[], &["r.toml", "learning_rat", "learning_rate"]);
    train("recipes/smollm2.toml", &["train.stepss=3"], &["train.stepss", "steps"]);
    train("recipes/smollm2.toml", &["train.steps=many"], &["train.steps"]);
}

#[test]
fn outputs_never_replace_inputs() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let model = broken_llama(scratch, "model", |_| {});
    let input = root().join("testdata/llama_plain.reference.safetensors").display().to_string();
    let weights = scratch.join("model/model-00001-of-00002.safetensors");
    let before = fs::read(&weights).expect("weights");
    let prompts = scratch.join("p.jsonl");
    fs::write(&prompts, "{\"prompt_ids\": [1, 2, 3]}\n").expect("write");
    let prompts = prompts.display().to_string();
    for out in [weights.display().to_string(), format!("{model}/config.json")] {
        check(scratch, &["trace", "target", "--model", &model, "--input", &input, "--out", &out], &["output", "hint:"]);
        check(scratch, &["eval", "-t", &model, "-p", &prompts, "-d", "none", "-o", &out], &["output", "hint:"]);
    }
    check(scratch, &["eval", "-t", &model, "-p", &prompts, "-d", "none", "-o", &prompts], &["p.jsonl", "input"]);
    check(scratch, &["eval", "-t", &model, "-p", &prompts, "-d", "none", "-o", &model], &["not a plain file"]);
    check(
        scratch,
        &["eval", "-t", &model, "-p", &prompts, "-d", "none", "-o", "no/such/folder/x"],
        &["no/such/folder"],
    );
    assert_eq!(fs::read(&weights).expect("weights"), before);
}

#[test]
fn numbers_that_nobody_means() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let data = scratch.join("d.jsonl");
    fs::write(&data, "{\"input_ids\": [1, 2], \"loss_mask\": [0, 1]}\n").expect("write");
    let data = data.display().to_string();
    let out = scratch.join("run").display().to_string();
    for change in [
        "train.sequences_per_step=1000000000000",
        "train.anchors_per_sequence=0",
        "drafter.num_hidden_layers=1000000000",
        "drafter.intermediate_size=100000000000",
        "train.learning_rate=nan",
    ] {
        let key = change.split_once('=').expect("key=value").0;
        check(
            scratch,
            &["train", "-t", "testdata/llama_plain", "-r", "recipes/smollm2.toml", "-d", &data, "-o", &out, change],
            &[key, "hint:"],
        );
    }
    for arguments in [
        vec!["--threads", "100000", "inspect", "testdata/llama_plain"],
        vec!["trace", "tree", "--input", "x", "--budget", "1099511627776"],
    ] {
        let output = draftsman(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn scores_that_are_no_numbers() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut scores = vec![0.5; 15];
        scores[7] = bad;
        let mut tensors = Tensors::default();
        tensors.put_floats("logits", &[1, 3, 5], &scores);
        tensors.put_ids("truth", &[1, 3], &[0, 0, 0]);
        tensors.put_ids("valid", &[1], &[3]);
        let input = scratch.join("acceptance.safetensors");
        tensors.write(&input);
        let input = input.display().to_string();
        check(scratch, &["trace", "acceptance", "--input", &input], &["logits", "index 7"]);
        let mut tensors = Tensors::default();
        tensors.put_floats("logits", &[3, 5], &scores);
        let input = scratch.join("tree.safetensors");
        tensors.write(&input);
        check(scratch, &["trace", "tree", "--budget", "4", "--input", &input.display().to_string()], &["index 7"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_draftsman"))
        .args(["--json", "inspect", "testdata/llama_plain"])
        .current_dir(root())
        .stdout(fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to stdout"));
}

#[test]
fn a_run_is_not_resumed_with_another_target() {
    let scratch = tempfile::tempdir().expect("scratch");
    let scratch = scratch.path();
    let target = broken_copy(scratch, "llama_scaled", "target", |_| {});
    // Embedding and head stay the same: only a layer differs.
    let sister = broken_copy(scratch, "llama_scaled", "sister", |folder| {
        let path = folder.join("model.safetensors");
        let bytes = fs::read(&path).expect("read");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let weight = tensors.tensor("model.layers.0.mlp.down_proj.weight").expect("a weight");
        let start = weight.data().as_ptr() as usize - bytes.as_ptr() as usize;
        let mut changed = bytes.clone();
        changed[start..start + weight.data().len()].fill(0);
        fs::write(&path, changed).expect("write");
    });
    let write = |name: &str, text: &str| {
        let path = scratch.join(name);
        fs::write(&path, text).expect("write");
        path.display().to_string()
    };
    let recipe = write(
        "r.toml",
        "[drafter]\nblock_size = 4\nnum_hidden_layers = 1\ntarget_layer_ids = [0, 1]\nmask_token_id = 5\n\
         [data]\nvalidation_count = 1\n[train]\nsteps = 4\nlearning_rate = 1e-3\n",
    );
    let record = "{\"input_ids\": [1, 2, 3, 4, 6, 7, 8, 9], \"loss_mask\": [0, 0, 1, 1, 1, 1, 1, 1]}\n";
    let data = write("d.jsonl", &record.repeat(4));
    let out = scratch.join("run").display().to_string();
    let common = ["--recipe", &recipe, "--data", &data, "--out", &out, "--quiet"];
    let first = draftsman(&[&["train", "-t", &target, "--stop-after", "2"][..], &common].concat());
    assert!(first.status.success(), "{}", stderr(&first, scratch));
    check(
        scratch,
        &[&["train", "-t", &sister, "--resume"][..], &common].concat(),
        &["target", "layers_sha256", "hint:"],
    );
    let second = draftsman(&[&["train", "-t", &target, "--resume"][..], &common].concat());
    assert!(second.status.success(), "{}", stderr(&second, scratch));
}
