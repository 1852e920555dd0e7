//! From a model argument to a path.

#[cfg(feature = "download")]
mod download;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use draftsman_models::{HubEnv, Token, resolve_model};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn env(cache: &Path) -> HubEnv {
    HubEnv { cache: Some(cache.to_path_buf()), offline: false, token: None, endpoint: "http://127.0.0.1:9".into() }
}

fn refused<T: std::fmt::Debug>(result: Result<T, draftsman_models::ModelError>, expected: &[&str]) {
    let error = result.expect_err("must be refused").to_string();
    for part in expected {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

/// `models--org--name` with one snapshot whose config.json is a link to a blob, and these refs.
fn cached(refs: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("models--org--name");
    let snapshot = model.join("snapshots").join(COMMIT);
    for folder in [&model.join("blobs"), &model.join("refs"), &snapshot] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(model.join("blobs/b10b"), "{}").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../blobs/b10b", snapshot.join("config.json")).unwrap();
    #[cfg(not(unix))]
    std::fs::copy(model.join("blobs/b10b"), snapshot.join("config.json")).unwrap();
    for (name, commit) in refs {
        std::fs::write(model.join("refs").join(name), commit).unwrap();
    }
    dir
}

#[test]
fn what_exists_is_taken_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.gguf");
    std::fs::write(&file, "").unwrap();
    for path in [dir.path(), &file] {
        assert_eq!(resolve_model(path.to_str().unwrap(), &env(dir.path())).unwrap(), path);
    }
}

#[test]
fn a_model_of_the_cache_is_found_by_branch_tag_and_commit() {
    let dir = cached(&[("main", COMMIT), ("v1.0", &format!("{COMMIT}\n"))]);
    let snapshot = dir.path().join("models--org--name/snapshots").join(COMMIT);
    for argument in ["org/name", "org/name@main", "org/name@v1.0", &format!("org/name@{COMMIT}")] {
        let found = resolve_model(argument, &env(dir.path())).unwrap();
        assert_eq!(found, snapshot, "{argument}");
        assert_eq!(std::fs::read_to_string(found.join("config.json")).unwrap(), "{}");
    }
}

#[test]
fn a_missing_model_says_where_it_was_looked_for() {
    let dir = cached(&[("v1.0", COMMIT), ("gone", &COMMIT.replace('0', "f"))]);
    let place = dir.path().join("models--org--other");
    let check = |argument: &str, env: &HubEnv, expected: &[&str]| refused(resolve_model(argument, env), expected);
    let env = env(dir.path());
    check(
        "org/other",
        &env,
        &["`org/other` is not here", place.to_str().unwrap(), "--download", "hf download org/other"],
    );
    check("org/name", &env, &["`org/name`", "snapshots", "other revisions of it: gone, v1.0"]);
    check("org/name@gone", &env, &["snapshots", "other revisions of it: v1.0"]);
    check("org/other", &HubEnv { offline: true, ..env.clone() }, &["HF_HUB_OFFLINE is set"]);
    check("org/other", &HubEnv { cache: None, ..env.clone() }, &["`org/other`", "HF_HOME"]);
}

#[test]
fn arguments_that_could_leave_the_cache_are_refused() {
    let dir = cached(&[("main", COMMIT)]);
    let model = dir.path().join("models--org--name");
    std::fs::create_dir_all(dir.path().join("models--..--name/snapshots/main")).unwrap();
    std::fs::create_dir_all(model.join("snapshots/x")).unwrap();
    for argument in [
        "",
        "name",
        "/no/such",
        "./no/such",
        "../no/such",
        "~/no/such",
        "no.gguf",
        "org/no.gguf",
        "\\\\host\\share",
        "org/",
        "/name",
        "org//name",
        "org/name/more",
        "../name",
        "org/..",
        "org/.",
        "./name",
        "org/na..me",
        "org/.name",
        "org/name@",
        "org/name@..",
        "org/name@../../x",
        "org/name@refs/pr/1",
        "org/name@/etc",
        "org/name@a\\b",
        "org/name@main@main",
        "o--rg/name",
        "org/na--me",
        "org/name.",
        "org/na me",
        "org/na\u{e9}",
        "org/na\0me",
        "org/name@\u{1b}[31m",
        "c:/name",
        &format!("org/{}", "n".repeat(129)),
    ] {
        refused(resolve_model(argument, &env(dir.path())), &["there is no such file or folder", "hint"]);
    }
    // A cache that somebody tampered with.
    for (commit, expected) in [
        ("../../../etc", "is no commit hash"),
        ("", "is no commit hash"),
        ("a/b", "is no commit hash"),
        (&"a".repeat(300), "300 bytes"),
    ] {
        std::fs::write(model.join("refs/main"), commit).unwrap();
        refused(resolve_model("org/name", &env(dir.path())), &["refs", "main", expected]);
    }
}

#[test]
fn the_environment_is_read_as_hugging_faces_tools_read_it() {
    let read = |variables: &[(&str, &str)]| {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        HubEnv::from_variables(move |name| {
            variables.iter().find(|(other, _)| other == name).map(|(_, value)| OsString::from(value))
        })
    };
    let cache = |variables: &[(&str, &str)]| read(variables).cache;
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!(cache(&[]), None);
    assert_eq!(cache(&[("HOME", "/h")]), path("/h/.cache/huggingface/hub"));
    assert_eq!(cache(&[("USERPROFILE", "/u")]), path("/u/.cache/huggingface/hub"));
    assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), path("/x/huggingface/hub"));
    assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f")]), path("/f/hub"));
    assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/f")]), path("/h/f/hub"));
    assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "")]), path("/h/.cache/huggingface/hub"));
    assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), path("/c"));
    assert_eq!(cache(&[("HF_HOME", "/f"), ("HUGGINGFACE_HUB_CACHE", "/old")]), path("/old"));
    for (value, offline) in [("1", true), ("true", true), ("YES", true), ("on", true), ("0", false), ("", false)] {
        assert_eq!(read(&[("HF_HUB_OFFLINE", value)]).offline, offline, "{value:?}");
    }
    assert_eq!(read(&[]).endpoint, "https://huggingface.co");
    assert_eq!(read(&[("HF_ENDPOINT", "https://mirror/")]).endpoint, "https://mirror");
    // A token: from the variable, from the file it names, or from where `hf auth login` puts it.
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    assert_eq!(read(&[("HF_HOME", home)]).token, None);
    std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
    assert_eq!(read(&[("HF_HOME", home)]).token, Token::new("hf_file"));
    assert_eq!(read(&[("HF_HOME", home), ("HF_TOKEN", " hf_variable ")]).token, Token::new("hf_variable"));
    let file = dir.path().join("other");
    std::fs::write(&file, "hf_other").unwrap();
    let env = read(&[("HF_HOME", home), ("HF_TOKEN_PATH", file.to_str().unwrap())]);
    assert_eq!(env.token, Token::new("hf_other"));
    assert!(!format!("{env:?}").contains("hf_other"), "{env:?}");
    assert_eq!(Token::new("  "), None);
}
