//! `eval` as a whole: suites and conversations, prompts that fail, hostile models, watched runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::models::{copy_model, edit_json};
use crate::run::{draftsman, root, stderr};
use crate::trees::write_drafter;

const TINY: &str = "crates/draftsman/assets/tiny-target";

/// A scratch folder with short names for what lies in it.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("scratch"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("write");
        path
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("read")
    }

    /// A copy of a model folder, changed.
    fn copy(&self, model: &str, name: &str, change: impl Fn(&Path)) -> String {
        copy_model(&root().join(model), &self.0.path().join(name), change)
    }

    /// Runs the program and demands its exit code; stdout as JSON if it is.
    fn run(&self, arguments: &[&str], code: i32) -> (Value, String) {
        let output = draftsman(arguments);
        let text = stderr(&output, self.0.path());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}:\n{text}");
        (serde_json::from_slice(&output.stdout).unwrap_or(Value::Null), text)
    }
}

fn texts<'a>(rows: &'a Value, key: &str) -> Vec<&'a str> {
    rows.as_array().expect("a list").iter().map(|row| row[key].as_str().unwrap_or_default()).collect()
}

const CHATS: &str = r#"{"id": "a", "source": "code", "messages": [{"role": "user", "content": "Write a function that adds two numbers."}]}
{"id": "b", "source": "sums", "messages": [{"role": "user", "content": "2 + 3"}]}
{"id": "c", "source": "code", "messages": [{"role": "user", "content": "Write a function that doubles x."}]}
"#;

const CONVERSATIONS: &str = r#"{"question_id": 81, "category": "code", "turns": ["Write a function that adds two numbers.", "Now one that adds three."]}
{"question_id": 82, "category": "code", "turns": ["Write a function that doubles x.", "Shorter."]}
"#;

#[test]
fn suites_and_conversations_are_told_apart() {
    let scratch = Scratch::new();
    let (chats, talks) = (scratch.write("chats.jsonl", CHATS), scratch.write("Talks.jsonl", CONVERSATIONS));
    let csv = scratch.path("rows.csv");
    let suites = ["-p", &chats, "-p", &talks, "--max-new-tokens", "24", "-d", "ngram", "--json", "--quiet"];
    let eval = |more: &[&str], code| scratch.run(&[&["eval", "-t", TINY], &suites[..], more].concat(), code).0;
    let live = eval(&["--num-prompts", "2,1", "--check-replay", "--csv", &csv], 0);
    assert_eq!((&live["prompts"], &live["report_version"]), (&json!(4), &json!(3)));
    let line = &live["proposers"][0];
    assert_eq!(texts(&line["per_prompt"], "id"), ["a", "b", "81#1", "81#2"]);
    assert_eq!(texts(&line["per_prompt"], "suite"), ["chats", "chats", "talks", "talks"]);
    assert_eq!(texts(&line["by_group"], "suite"), ["chats", "chats", "chats", "talks", "talks"]);
    assert_eq!(texts(&line["by_group"], "category"), ["", "code", "sums", "", "code"]);
    let prompt_tokens: Vec<u64> =
        line["per_prompt"].as_array().unwrap().iter().map(|row| row["prompt_tokens"].as_u64().unwrap()).collect();
    assert!(prompt_tokens[3] > prompt_tokens[2] + 10, "the answer is in the next question: {prompt_tokens:?}");
    assert_eq!(line["lossless"]["identical_answers"], 4);

    let replayed = eval(&["--num-prompts", "2,1", "--replay"], 0);
    for key in ["outside_loops", "all_tokens", "inside_loops", "by_position"] {
        assert_eq!(replayed["proposers"][0][key], line[key], "{key}");
    }
    let sampled = ["--temperature", "0.9", "--seed", "3", "--max-blocks", "4"];
    let (live, replayed) = (eval(&sampled, 0), eval(&[&sampled[..], &["--replay"]].concat(), 0));
    assert_eq!(live["prompts"], 7, "one number for all is no limit");
    assert_eq!(live["proposers"][0]["all_tokens"], replayed["proposers"][0]["all_tokens"]);
    let most = live["proposers"][0]["per_prompt"].as_array().unwrap().iter().map(|row| row["cycles"].as_u64().unwrap());
    assert_eq!(most.max(), Some(4));

    let rows: Vec<Vec<String>> =
        scratch.read("rows.csv").lines().map(|row| row.split(',').map(str::to_owned).collect()).collect();
    assert_eq!(rows.len(), 1 + 2 * 4);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{rows:?}");
    assert_eq!(rows[8][..5], ["ngram", "talks", "code", "81#2", "ok"]);

    let (_, error) = scratch.run(&[&["eval", "-t", TINY], &suites[..], &["--num-prompts", "1,2,3"]].concat(), 2);
    assert!(error.contains("3 numbers for 2 suites") && error.contains("hint:"), "{error}");
    let (_, error) = scratch.run(&[&["eval", "-t", TINY], &suites[..], &["-p", &chats]].concat(), 2);
    assert!(error.contains("both the suite `chats`"), "{error}");
}

/// Token 7 of this copy of the tiny llama is poison: whoever reads it has NaN for logits.
fn poisoned(scratch: &Scratch) -> String {
    scratch.copy("testdata/llama_scaled", "poisoned", |folder| {
        let path = folder.join("model.safetensors");
        let bytes = fs::read(&path).expect("read");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let weight = tensors.tensor("model.embed_tokens.weight").expect("an embedding");
        let row = weight.data().len() / weight.shape()[0];
        let start = weight.data().as_ptr() as usize - bytes.as_ptr() as usize + 7 * row;
        let mut changed = bytes.clone();
        // All ones are a NaN in every floating-point format.
        changed[start..start + row].fill(0xff);
        fs::write(&path, changed).expect("write");
    })
}

#[test]
fn a_prompt_that_fails_is_a_row_and_the_others_stay() {
    let scratch = Scratch::new();
    let target = poisoned(&scratch);
    let long = format!("{{\"id\": \"long\", \"prompt_ids\": {:?}}}\n", vec![5; 5000]);
    let foreign = "{\"id\": \"=foreign\", \"prompt_ids\": [5, 999999]}\n";
    let nan = "{\"id\": \"nan\", \"prompt_ids\": [3, 7, 4]}\n";
    let fine = "{\"id\": \"fine\", \"prompt_ids\": [3, 9, 4]}\n{\"id\": \"too\", \"prompt_ids\": [8, 8, 1]}\n";
    let prompts = scratch.write("p.jsonl", &[&long, foreign, nan, fine].concat());
    let (out, csv, html) = (scratch.path("r.json"), scratch.path("r.csv"), scratch.path("r.html"));
    let files = ["--out", &out, "--csv", &csv, "--html", &html];
    let eval = |prompts: &str, more: &[&str], code| {
        let common = ["eval", "-t", &target, "-p", prompts, "--max-new-tokens", "12", "--json"];
        scratch.run(&[&common, more].concat(), code)
    };
    let (live, text) = eval(&prompts, &files, 1);
    let (replayed, _) = eval(&prompts, &["--replay"], 1);
    for (report, failed) in [(&live, ["long", "=foreign", "nan"]), (&replayed, ["long", "=foreign", "nan"])] {
        assert_eq!(texts(&report["failed"], "id"), failed);
        assert_eq!(texts(&report["proposers"][0]["per_prompt"], "id"), ["fine", "too"]);
        assert_eq!(report["prompts"], 2);
        for (failed, problem) in report["failed"].as_array().unwrap().iter().zip(["context", "999999", "not finite"]) {
            assert!(failed["problem"].as_str().unwrap().contains(problem), "{failed}");
        }
    }
    assert_eq!(live["proposers"][0]["all_tokens"], replayed["proposers"][0]["all_tokens"]);
    assert!(text.contains("`nan` was not evaluated"), "{text}");
    // What was measured is written, in all forms.
    assert_eq!(serde_json::from_str::<Value>(&scratch.read("r.json")).expect("JSON"), live);
    let rows = scratch.read("r.csv");
    assert!(rows.contains("ngram,p,,fine,ok,") && rows.contains(",p,,'=foreign,failed: "), "{rows}");
    assert!(scratch.read("r.html").contains("fine"));

    // Nothing left is an error, and writes nothing.
    for more in [&[][..], &["--replay"]] {
        for (text, problem) in [(nan, "not finite"), (long.as_str(), "context"), (foreign, "999999")] {
            let none = scratch.path("none.json");
            let prompts = scratch.write("bad.jsonl", text);
            let (_, error) = eval(&prompts, &[more, &["--out", &none]].concat(), 2);
            assert!(error.contains(problem) && error.matches("error:").count() == 1, "{error}");
            assert!(!Path::new(&none).exists());
        }
    }
}

#[test]
fn a_model_that_prints_markup_and_escapes_harms_nobody() {
    let scratch = Scratch::new();
    // Without merges every token can have any text; what the model answers is then hostile.
    let target = scratch.copy(TINY, "hostile", |folder| {
        edit_json(&folder.join("tokenizer.json"), |tokenizer| {
            tokenizer["model"]["merges"] = json!([]);
            let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary").clone();
            // ESC is `ě` in the bytes of a byte-level vocabulary.
            let name = |token: String, id: u64| match id {
                0..300 => token,
                id if id % 2 == 0 => format!("<script>alert({id})</script>"),
                id => format!("ě[31m{id}"),
            };
            let changed: serde_json::Map<String, Value> =
                vocab.into_iter().map(|(token, id)| (name(token, id.as_u64().expect("an id")), id)).collect();
            tokenizer["model"]["vocab"] = changed.into();
        });
    });
    let id = "</td><script>x</script>\\u001b[2J";
    let prompts = scratch.write("p.jsonl", &format!("{{\"id\": \"{id}\", \"prompt_ids\": [1, 900, 901, 902, 903]}}\n"));
    let (out, csv, html) = (scratch.path("r.json"), scratch.path("r.csv"), scratch.path("r.html"));
    let files = ["--out", &out, "--csv", &csv, "--html", &html];
    let common = ["eval", "-t", &target, "-p", &prompts, "--max-new-tokens", "40", "-d", "ngram"];
    let output = draftsman(&[&common[..], &files].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = scratch.read("r.html");
    assert!(page.contains("&lt;script&gt;alert("), "the answer is shown, as text");
    assert!(!page.contains("<script"), "markup of the model reached the page");
    for (what, bytes) in [
        ("the page", page.as_bytes()),
        ("the rows", scratch.read("r.csv").as_bytes()),
        ("stdout", &output.stdout),
        ("stderr", &output.stderr),
        ("the document", scratch.read("r.json").as_bytes()),
    ] {
        assert!(!bytes.contains(&0x1b), "an escape code of the model reached {what}");
    }
}

#[test]
fn thinking_reaches_the_template_and_the_report() {
    let scratch = Scratch::new();
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined %}{{ ' yes' if enable_thinking else ' no, never, not at all' }}{% endif %}";
    let target = scratch.copy(TINY, "thinker", |folder| {
        edit_json(&folder.join("tokenizer_config.json"), |config| config["chat_template"] = json!(template));
    });
    let prompts = scratch.write("p.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"2 + 3\"}]}\n");
    let eval = |target: &str, more: &[&str], code| {
        let common = ["eval", "-t", target, "-p", &prompts, "--max-new-tokens", "8", "--json", "--quiet"];
        scratch.run(&[&common, more].concat(), code)
    };
    let tokens = |report: &Value| report["proposers"][0]["per_prompt"][0]["prompt_tokens"].as_u64().unwrap();
    let (untold, _) = eval(&target, &[], 0);
    let (on, _) = eval(&target, &["--thinking", "on"], 0);
    let (off, _) = eval(&target, &["--thinking", "off"], 0);
    assert_eq!((&untold["thinking"], &on["thinking"], &off["thinking"]), (&Value::Null, &json!("on"), &json!("off")));
    assert!(
        tokens(&untold) < tokens(&on) && tokens(&on) < tokens(&off),
        "{} {} {}",
        tokens(&untold),
        tokens(&on),
        tokens(&off)
    );
    let (_, error) = eval(TINY, &["--thinking", "on"], 2);
    assert!(error.contains("enable_thinking") && error.contains("hint:"), "{error}");
    eval(&target, &["--thinking", "maybe"], 2);
}

#[test]
fn another_making_of_the_features_is_told() {
    let scratch = Scratch::new();
    let drafter = scratch.path("drafter");
    write_drafter("qwen3_5", Path::new(&drafter));
    let prompts = scratch.write("p.jsonl", "{\"prompt_ids\": [3, 9, 4]}\n");
    let eval = |more: &[&str]| {
        let common = ["eval", "-t", "testdata/qwen3_5", "-p", &prompts, "-d", &drafter, "--max-new-tokens", "4"];
        scratch.run(&[&common, more].concat(), 0).1
    };
    let contract = |features: Value| {
        edit_json(&Path::new(&drafter).join("config.json"), |config| {
            config["draftsman_contract"]["features"] = features.clone();
        });
    };
    assert!(!eval(&[]).contains("was trained with another"), "what is not stated is not compared");
    contract(json!({ "engine": "draftsman 0.0.9", "dtype": "f32", "linear_attention": "recurrent" }));
    assert!(!eval(&[]).contains("was trained with another"));
    let text = eval(&["--dtype", "bf16", "--delta-rule", "chunked"]);
    assert!(text.contains("another dtype of its features: f32 there, bf16 here"), "{text}");
    assert!(text.contains("another linear attention of its features: recurrent there, chunked"), "{text}");
    contract(json!({ "engine": "vllm 0.20", "dtype": "bfloat16", "linear_attention": null }));
    let text = eval(&[]);
    assert!(text.contains("another engine of its features: vllm there, draftsman here"), "{text}");
}

/// Every key of a JSON value, at any depth.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                found.insert(key.clone());
                keys(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

#[cfg(unix)]
#[test]
fn outputs_are_kept_apart_and_links_stay_links() {
    let scratch = Scratch::new();
    let prompts = scratch.write("p.jsonl", "{\"prompt_ids\": [3, 9, 4]}\n");
    let eval = |more: &[&str], code| {
        let common = ["eval", "-t", "testdata/llama_plain", "-p", &prompts, "--max-new-tokens", "9", "--quiet"];
        let output = draftsman(&[&common, more].concat());
        let text = stderr(&output, scratch.0.path());
        assert_eq!(output.status.code(), Some(code), "{more:?}: {text}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), text)
    };
    let (file, link, dangling) = (scratch.write("file", ""), scratch.path("link"), scratch.path("dangling"));
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    std::os::unix::fs::symlink(scratch.path("nothing"), &dangling).expect("a link");
    eval(&["--out", &link], 0);
    assert!(Path::new(&link).is_symlink() && scratch.read("file").contains("report_version"));
    for same in [file.as_str(), &link, &format!("{}/./file", scratch.0.path().display())] {
        let (_, error) = eval(&["--out", &file, "--csv", same], 2);
        assert!(error.contains("is the path of two outputs"), "{error}");
    }
    assert!(eval(&["--html", &dangling], 2).1.contains("link to nothing"));

    // Its temporary name is too long for the system: only this output is lost, and told.
    let (long, out) = (scratch.path(&"x".repeat(250)), scratch.path("r.json"));
    let (table, error) = eval(&["--csv", &long, "--out", &out, "--html", &scratch.path("r.html")], 2);
    assert!(table.contains("acceptance_length") && error.contains("cannot write"), "{error}");
    assert!(Path::new(&out).exists() && Path::new(&scratch.path("r.html")).exists());
}

#[test]
fn recorded_answers_must_be_the_targets() {
    let scratch = Scratch::new();
    let prompts = scratch.write("p.jsonl", CHATS);
    let answers = scratch.path("answers.jsonl");
    let made =
        ["data", "regenerate", "-t", TINY, "--prompts", &prompts, "--max-new-tokens", "20", "--keep-loops", "-q"];
    scratch.run(&[&made[..], &["--out", &answers]].concat(), 0);
    let replay = |target: &str, answers: &str, more: &[&str], code| {
        let common = ["eval", "-t", target, "--replay", "--answers", answers, "--json"];
        scratch.run(&[&common, more].concat(), code)
    };
    let (report, text) = replay(TINY, &answers, &[], 0);
    assert_eq!(
        (&report["max_new_tokens"], &report["prompts"]),
        (&json!(20), &json!(3)),
        "the budget of the answers: {text}"
    );
    // Told by the settings, and without them by the answers.
    let wrong = scratch
        .write("wrong.jsonl", &scratch.read("answers.jsonl").replace("\"response_ids\":[", "\"response_ids\":[9,9,9,"));
    let (_, text) = replay(TINY, &wrong, &[], 0);
    assert!(text.contains("this is not what decoding would walk") && text.contains("taken as greedy"), "{text}");
    let settings = "answers.jsonl.settings.json";
    let mut changed: Value = serde_json::from_str(&scratch.read(settings)).expect("JSON");
    changed["model_sha256"] = json!("00");
    scratch.write(settings, &changed.to_string());
    let (_, error) = replay(TINY, &answers, &[], 2);
    assert!(error.contains("was written by another target") && error.contains("--other-target"), "{error}");
    let (_, text) = replay(TINY, &answers, &["--other-target"], 0);
    assert!(text.contains("warning:") && text.contains("another target"), "{text}");
    // A record that does not fit is a row; one that is empty, too.
    let line = scratch.read("answers.jsonl").lines().next().expect("a line").to_owned();
    let mut long: Value = serde_json::from_str(&line).expect("JSON");
    long["id"] = json!("long");
    long["prompt_ids"] = json!(vec![5; 3000]);
    let mut empty = long.clone();
    (empty["id"], empty["prompt_ids"], empty["response_ids"]) = (json!("empty"), json!([5]), json!([]));
    let mixed = scratch.write("mixed.jsonl", &format!("{long}\n{line}\n{empty}\n"));
    for more in [&["-d", "ngram"][..], &["-d", "none"]] {
        let (report, _) = replay(TINY, &mixed, more, 1);
        assert_eq!(texts(&report["failed"], "id"), ["long", "empty"]);
        assert_eq!(report["prompts"], 1);
    }
    // The settings just read are an input.
    scratch.write("mixed.jsonl.settings.json", "{}");
    let (_, error) = replay(TINY, &mixed, &["--out", &scratch.path("mixed.jsonl.settings.json")], 2);
    assert!(error.contains("is the input file"), "{error}");
    // A target whose logits are no numbers writes nothing.
    let nan = scratch.write("nan.jsonl", "{\"id\": \"a\", \"prompt_ids\": [3, 7], \"response_ids\": [4, 5]}\n");
    let (_, error) = replay(&poisoned(&scratch), &nan, &[], 2);
    assert!(error.contains("not finite"), "{error}");
    // One name for two answers.
    let line = scratch.read("answers.jsonl").lines().next().expect("a line").to_owned();
    let twice = scratch.write("twice.jsonl", &format!("{line}\n{line}\n"));
    let (_, error) = replay(TINY, &twice, &[], 2);
    assert!(error.contains("occurs twice"), "{error}");
}

#[test]
fn gates_and_names_mean_something() {
    let scratch = Scratch::new();
    let (drafter, out) = (scratch.path("drafter"), scratch.path("r.json"));
    write_drafter("llama_plain", Path::new(&drafter));
    let prompts = scratch
        .write("p.jsonl", "{\"id\": \"a\\nb\", \"prompt_ids\": [3, 9, 4]}\n{\"id\": \"c\", \"prompt_ids\": [4]}\n");
    let common = ["eval", "-t", "testdata/llama_plain", "-p", &prompts, "--max-new-tokens", "9"];
    let eval = |more: &[&str], code| scratch.run(&[&common, more].concat(), code).1;
    let text = eval(&["-d", &drafter, "--out", &out], 0);
    assert!(text.contains("a\u{fffd}b") && !text.contains("a\nb"), "{text}");
    assert!(eval(&["-d", &drafter, "-d", &drafter], 2).contains("two lines would be called"));
    assert!(eval(&["-d", &drafter, "--tree-budget", "4,4"], 2).contains("two lines would be called"));
    assert!(eval(&["-d", &drafter, "--tree-budget", "4", "--what-if"], 2).contains("judges the chain"));
    assert!(eval(&["-d", "ngram", "--what-if"], 2).contains("judges the chain"));
    assert!(eval(&["--temperature", "nan"], 2).contains("`temperature`"));
    let (_, error) = scratch.run(&["eval", "-t", "testdata/llama_plain", "--validation", "-d", "ngram"], 2);
    assert!(error.contains("has no validation anchors"), "{error}");
    eval(&["--max-blocks", "0"], 2);
    eval(&["--max-new-tokens", "0"], 2);
    for gate in ["nan", "0", "-1", "inf", "1e400", "x"] {
        scratch.run(&["compare", &out, &out, &format!("--fail-under={gate}")], 2);
    }
    scratch.run(&["compare", &out, &out, "--fail-under", "0.98"], 0);
    let clash = scratch
        .write("clash.jsonl", "{\"id\": \"x\", \"turns\": [\"a\", \"b\"]}\n{\"id\": \"x#2\", \"turns\": [\"c\"]}\n");
    let (_, error) = scratch.run(&["eval", "-t", TINY, "-p", &clash], 2);
    assert!(error.contains("the name `x#2` occurs twice"), "{error}");
    // Results of other settings are not compared.
    let short = scratch.path("short.json");
    eval(&["-d", &drafter, "--max-blocks", "1", "--out", &short], 0);
    let (_, error) = scratch.run(&["compare", &out, &short], 2);
    assert!(error.contains("blocks all and 1"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_loses_no_file() {
    let scratch = Scratch::new();
    let prompts = scratch.write("p.jsonl", "{\"prompt_ids\": [3, 9, 4]}\n");
    let out = scratch.path("r.json");
    // The reading end is closed before anything is printed.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_draftsman"))
        .args(["eval", "-t", "testdata/llama_plain", "-p", &prompts, "--max-new-tokens", "9", "--quiet", "-o", &out])
        .current_dir(root())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("it ends").success());
    assert!(Path::new(&out).exists());
}

#[test]
fn every_key_of_a_report_is_documented() {
    let scratch = Scratch::new();
    let drafter = scratch.path("drafter");
    write_drafter("llama_plain", Path::new(&drafter));
    let prompts = scratch.write("p.jsonl", "{\"prompt_ids\": [3, 9, 4]}\n{\"prompt_ids\": [999999]}\n");
    let common = ["eval", "-t", "testdata/llama_plain", "-p", &prompts, "-d", &drafter, "--json", "--quiet"];
    let (report, _) = scratch.run(&[&common[..], &["--what-if", "--max-new-tokens", "9"]].concat(), 1);
    let mut found = BTreeSet::new();
    keys(&report, &mut found);
    let docs = fs::read_to_string(root().join("docs/eval-report.md")).expect("docs");
    let missing: Vec<&String> = found.iter().filter(|key| !docs.contains(&format!("`{key}`"))).collect();
    assert!(found.len() > 60 && missing.is_empty(), "not in docs/eval-report.md: {missing:?}");
}

#[test]
fn a_drafter_of_another_target_is_refused_unless_wanted() {
    let scratch = Scratch::new();
    let drafter = scratch.path("drafter");
    write_drafter("qwen3_5", Path::new(&drafter));
    let prompts = scratch.write("p.jsonl", "{\"prompt_ids\": [3, 9, 4]}\n");
    let out = scratch.path("r.json");
    let run = |target: &str, more: &[&str], code| {
        let common = ["eval", "-t", target, "-p", &prompts, "-d", &drafter, "--max-new-tokens", "4", "-o", &out];
        scratch.run(&[&common, more].concat(), code).1
    };
    edit_json(&Path::new(&drafter).join("config.json"), |config| {
        config["draftsman_contract"]["target"]["layers_sha256"] = json!("0123abcd");
    });
    let error = run("testdata/qwen3_5", &[], 2);
    for word in ["SCRATCH/drafter", "layers_sha256 0123abcd there", "hint:", "--other-target"] {
        assert!(error.contains(word), "{error}");
    }
    assert!(!Path::new(&out).exists());
    let warned = run("testdata/qwen3_5", &["--other-target"], 0);
    assert!(warned.contains("warning:") && warned.contains("layers_sha256 0123abcd there"), "{warned}");
    // Another shape is no question of hashes.
    let error = run("testdata/llama_plain", &["--other-target"], 2);
    assert!(error.contains("does not fit the target"), "{error}");
}

#[test]
fn a_run_is_watched_and_not_touched() {
    let scratch = Scratch::new();
    let recipe = scratch.write(
        "r.toml",
        "[drafter]\nblock_size = 4\nnum_hidden_layers = 1\ntarget_layer_ids = [0, 1]\nmask_token_id = 5\n\
         [data]\nvalidation_count = 1\n[train]\nsteps = 6\nlearning_rate = 1e-2\ncheckpoint_every = 2\nkeep_checkpoints = 9\n",
    );
    let record = "{\"input_ids\": [1, 2, 3, 4, 6, 7, 8, 9], \"loss_mask\": [0, 0, 1, 1, 1, 1, 1, 1]}\n";
    let data = scratch.write("d.jsonl", &record.repeat(4));
    let (target, run, out) = ("testdata/llama_scaled", scratch.path("run"), scratch.path("curve.jsonl"));
    let train = ["train", "-t", target, "--recipe", &recipe, "--data", &data, "--out", &run, "--quiet"];
    scratch.run(&[&train[..], &["--stop-after", "3"]].concat(), 0);
    let prompts = scratch
        .write("p.jsonl", "{\"id\": \"a\", \"prompt_ids\": [3, 9, 4]}\n{\"id\": \"b\", \"prompt_ids\": [8, 8]}\n");
    let watch = |more: &[&str], code| {
        let common = ["eval", "-t", target, "--watch", &run, "-p", &prompts, "--max-new-tokens", "12", "--json"];
        scratch.run(&[&common, more].concat(), code)
    };
    let tree = |folder: &str| {
        let mut files = Vec::new();
        let mut folders = vec![Path::new(folder).to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path)
                } else {
                    files.push((path.clone(), fs::read(&path).expect("read")))
                }
            }
        }
        files.sort();
        files
    };
    let before = tree(&run);
    let steps = |curve: &Value| {
        let points = curve.as_array().expect("lines").iter().filter(|line| line["kind"] == "point");
        points
            .map(|point| (point["step"].as_u64().unwrap(), point["draft"].as_str().unwrap().to_owned()))
            .collect::<Vec<_>>()
    };
    let chain = |step: u64| (step, "chain".to_owned());
    let (first, _) = watch(&["--out", &out, "--once", "--num-prompts", "2"], 0);
    assert_eq!(steps(&first), [0, 2, 3].map(chain));
    assert!(tree(&run) == before, "watching changed the run");

    // The run goes on; the watcher goes on and ends with its last step, by itself.
    scratch.run(&[&train[..], &["--resume"]].concat(), 0);
    let (second, text) = watch(&["--out", &out, "--poll-seconds", "1"], 0);
    assert_eq!(steps(&second), [0, 2, 3, 4, 6].map(chain));
    assert_eq!(second.as_array().unwrap()[..4], first.as_array().unwrap()[..], "earlier points stay as they are");
    assert!(!text.contains("step 2:"), "known points are not measured again: {text}");
    let lines: Vec<Value> =
        scratch.read("curve.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(json!(lines), second);

    // The point is what `eval` of that checkpoint says.
    let checkpoint = format!("{run}/checkpoints/step-00000004");
    let common = ["eval", "-t", target, "-p", &prompts, "-d", &checkpoint, "--max-new-tokens", "12", "--json"];
    let (report, _) = scratch.run(&common, 0);
    assert_eq!(
        second[4]["acceptance_length_micro"],
        report["proposers"][0]["outside_loops"]["acceptance_length_micro"]
    );

    // A damaged checkpoint is passed over, the others are measured.
    fs::write(format!("{checkpoint}/model.safetensors"), b"x").expect("write");
    let trees = scratch.path("trees.jsonl");
    let (curve, text) = watch(&["--out", &trees, "--once", "--tree-budget", "0,4"], 1);
    assert!(text.contains("step 4 is passed over"), "{text}");
    assert_eq!(steps(&curve).len(), 8);
    assert_eq!(steps(&curve)[1].1, "ddtree4");

    // Without --once it is tried again before the watch ends, although the last step is done.
    let again = scratch.path("again.jsonl");
    let (curve, text) = watch(&["--out", &again, "--poll-seconds", "1", "--tree-budget", "4,4"], 1);
    assert!(text.contains("step 4 is tried again later") && text.contains("step 4 is passed over"), "{text}");
    assert_eq!(steps(&curve).len(), 4);

    let refused = |more: &[&str], expected: &str| {
        let (_, error) = watch(more, 2);
        assert!(error.contains(expected), "{error}");
    };
    refused(&["--out", &out, "--once", "--temperature", "0.5"], "other settings");
    refused(&["--out", &out, "--once", "--dtype", "bf16"], "other settings");
    refused(&["--out", &out, "--once", "--num-prompts", "1"], "other settings");
    let other = scratch
        .write("q.jsonl", "{\"id\": \"a\", \"prompt_ids\": [3, 9, 5]}\n{\"id\": \"b\", \"prompt_ids\": [8, 8]}\n");
    let common = ["eval", "-t", target, "--watch", &run, "--max-new-tokens", "12", "--once", "--out", &out];
    let (_, error) = scratch.run(&[&common[..], &["-p", &other]].concat(), 2);
    assert!(error.contains("on other prompts"), "{error}");

    // Another way to draft adds its own points, and a cut-off line is measured again.
    fs::write(&trees, scratch.read("trees.jsonl").trim_end().rsplit_once(',').expect("a line").0).expect("write");
    let (curve, text) = watch(&["--out", &trees, "--once", "--tree-budget", "0,4,8"], 1);
    assert!(text.contains("cut off and left out"), "{text}");
    assert_eq!(steps(&curve).iter().filter(|point| point.1 == "ddtree8").count(), 4);
    assert_eq!(steps(&curve).len(), 12);
    let headless = scratch.read("trees.jsonl").split_once('\n').expect("lines").1.to_owned();
    let headless = scratch.write("headless.jsonl", &headless);
    refused(&["--out", &headless, "--once"], "its settings are missing");

    // What belongs to a checkpoint's run is no place for a result.
    let common = ["eval", "-t", target, "-p", &prompts, "-d", &checkpoint, "--out"];
    let (_, error) = scratch.run(&[&common[..], &[&format!("{run}/recipe.toml")]].concat(), 2);
    assert!(error.contains("is a file of the input"), "{error}");

    // A run that was started anew is another run, whatever its steps are called.
    let again = ["train.learning_rate=1e-3", "--overwrite"];
    scratch.run(&[&train[..], &again].concat(), 0);
    refused(&["--out", &out, "--once"], "of another run");
    refused(&["--out", &format!("{run}/curve.jsonl")], "lies in the run");
    refused(&["--once"], "--out");
    refused(&["--out", &prompts, "--once"], "is the input file");
    let (_, error) = scratch.run(&["eval", "-t", target, "--watch", TINY, "-p", &prompts, "-o", &trees], 2);
    assert!(error.contains("is no run"), "{error}");
}
