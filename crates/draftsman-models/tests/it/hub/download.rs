//! Downloads from a hub that this test plays.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use draftsman_models::{DownloadProgress, HubEnv, ModelError, Token, download_model, resolve_model};
use sha2::{Digest, Sha256};

use super::{COMMIT, refused};

const SECRET: &str = "hf_secret";

/// What a client asked for.
#[derive(Debug, Clone)]
struct Request {
    path: String,
    headers: BTreeMap<String, String>,
}

/// A response: status line, headers, body.
type Response = (&'static str, Vec<(&'static str, String)>, Vec<u8>);
type Answer = Arc<Mutex<dyn FnMut(&Request) -> Response + Send>>;

/// Answers on a port of this machine until the test ends; keeps what it was asked.
struct Hub {
    address: String,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Hub {
    fn new(answer: impl FnMut(&Request) -> Response + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer): (_, Answer) = (asked.clone(), Arc::new(Mutex::new(answer)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let request = read(&stream);
                log.lock().unwrap().push(request.clone());
                let (status, headers, body) = answer.lock().unwrap()(&request);
                write(stream, status, &headers, &body);
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<Request> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn read(stream: &TcpStream) -> Request {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_string())))
        .collect();
    Request { path, headers }
}

fn write(mut stream: TcpStream, status: &str, headers: &[(&str, String)], body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let _ = stream.write_all(&[head.as_bytes(), b"\r\n", body].concat());
}

fn ok(body: impl Into<Vec<u8>>) -> Response {
    ("200 OK", vec![], body.into())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

const CONFIG: &[u8] = b"{\"model_type\":\"llama\"}";

fn weights() -> Vec<u8> {
    (0..100_000u32).flat_map(u32::to_le_bytes).collect()
}

/// The hub's description of a model with these files: name, contents, whether it is a large file.
fn info(files: &[(&str, &[u8], bool)]) -> String {
    let siblings: Vec<_> = files
        .iter()
        .map(|(name, body, large)| {
            let mut file = serde_json::json!({"rfilename": name, "size": body.len(), "blobId": "a".repeat(39) + &name.len().to_string()[..1]});
            if *large {
                file["lfs"] = serde_json::json!({"sha256": sha256(body), "size": body.len(), "pointerSize": 134});
            }
            file
        })
        .collect();
    serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string()
}

fn env(hub: &Hub, cache: &tempfile::TempDir) -> HubEnv {
    HubEnv {
        cache: Some(cache.path().to_path_buf()),
        offline: false,
        token: Token::new(SECRET),
        endpoint: hub.address.clone(),
    }
}

fn download(hub: &Hub, cache: &tempfile::TempDir) -> Result<PathBuf, ModelError> {
    download_model("org/name", &env(hub, cache), &mut |_| {})
}

/// A hub with a config, weights behind a redirect to another host, and files nobody needs.
fn model() -> Hub {
    let storage = Hub::new(|request| {
        assert!(!request.headers.contains_key("authorization"), "the token left the hub: {request:?}");
        match request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')) {
            Some(start) => {
                let (start, all) = (start.parse::<usize>().unwrap(), weights());
                let range = format!("bytes {start}-{}/{}", all.len() - 1, all.len());
                ("206 Partial Content", vec![("Content-Range", range)], all[start..].to_vec())
            }
            None => ok(weights()),
        }
    });
    // Another name of the same machine.
    let storage = storage.address.replace("127.0.0.1", "localhost");
    Hub::new(move |request| match request.path.as_str() {
        "/api/models/org/name/revision/main?blobs=true" => ok(info(&[
            (".gitattributes", b"x", false),
            ("README.md", b"x", false),
            ("config.json", CONFIG, false),
            ("model.safetensors", &weights(), true),
            ("consolidated.safetensors", &weights(), true),
            ("modeling.py", b"evil", false),
            ("onnx/config.json", b"x", false),
            ("../../config.json", b"x", false),
        ])),
        path if path == format!("/org/name/resolve/{COMMIT}/config.json") => ok(CONFIG),
        path if path == format!("/org/name/resolve/{COMMIT}/model.safetensors") => {
            ("302 Found", vec![("Location", format!("{storage}/blob?signature=s3cr3t"))], vec![])
        }
        _ => ("404 Not Found", vec![], vec![]),
    })
}

#[test]
fn a_model_is_fetched_once_and_found_again() {
    let (hub, cache) = (model(), tempfile::tempdir().unwrap());
    refused(resolve_model("org/name", &env(&hub, &cache)), &["--download"]);
    assert!(hub.asked().is_empty(), "nothing is fetched unless it is asked for");
    let mut seen: Vec<(String, u64, u64)> = Vec::new();
    let mut progress = |p: &DownloadProgress<'_>| seen.push((p.file.to_string(), p.done, p.total));
    let folder = download_model("org/name", &env(&hub, &cache), &mut progress).unwrap();
    assert_eq!(folder, cache.path().join("models--org--name/snapshots").join(COMMIT));
    assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), CONFIG);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "nothing else is fetched");
    assert_eq!(seen.last().unwrap(), &("model.safetensors".to_string(), 400_000, 400_000));
    assert!(hub.asked().iter().all(|request| request.headers["authorization"] == "Bearer hf_secret"));
    let blob = cache.path().join("models--org--name/blobs").join(sha256(&weights()));
    assert!(blob.is_file(), "a large file lies under its hash");
    for argument in ["org/name", &format!("org/name@{COMMIT}")] {
        assert_eq!(resolve_model(argument, &env(&hub, &cache)).unwrap(), folder);
    }
    assert!(hub.asked().is_empty(), "the cache is enough");
    assert_eq!(download(&hub, &cache).unwrap(), folder);
    assert_eq!(hub.asked().len(), 1, "what is here is not fetched again");
}

#[test]
fn an_interrupted_download_goes_on() {
    let (hub, cache) = (model(), tempfile::tempdir().unwrap());
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let incomplete = blobs.join(format!("{}.incomplete", sha256(&weights())));
    std::fs::write(&incomplete, &weights()[..123_457]).unwrap();
    let folder = download(&hub, &cache).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert!(hub.asked().iter().any(|request| request.headers.get("range").is_some_and(|r| r == "bytes=123457-")));
    assert!(!incomplete.exists());
    // What was there was something else: found out, and the next call starts anew.
    std::fs::remove_file(blobs.join(sha256(&weights()))).unwrap();
    std::fs::write(&incomplete, vec![7; 1000]).unwrap();
    refused(download(&hub, &cache), &["model.safetensors", "not the file that the hub describes"]);
    assert!(!incomplete.exists());
    assert_eq!(std::fs::read(download(&hub, &cache).unwrap().join("model.safetensors")).unwrap(), weights());
}

#[test]
fn shards_are_those_the_index_names() {
    let index = r#"{"weight_map":{"a":"part-1.safetensors","b":"part-2.safetensors","c":"part-1.safetensors"}}"#;
    let hub = Hub::new(move |request| match request.path.rsplit('/').next().unwrap() {
        "main?blobs=true" => ok(info(&[
            ("model.safetensors.index.json", index.as_bytes(), false),
            ("part-1.safetensors", b"one", true),
            ("part-2.safetensors", b"two", true),
            ("part-3.safetensors", b"three", true),
        ])),
        "model.safetensors.index.json" => ok(index),
        "part-1.safetensors" => ok("one"),
        "part-2.safetensors" => ok("two"),
        _ => ("500 Oops", vec![], vec![]),
    });
    let cache = tempfile::tempdir().unwrap();
    let folder = download(&hub, &cache).unwrap();
    assert_eq!(std::fs::read(folder.join("part-2.safetensors")).unwrap(), b"two");
    assert!(!folder.join("part-3.safetensors").exists());
}

#[test]
fn a_hub_that_lies_is_refused() {
    let check = |description: String, body: &'static [u8], expected: &[&str]| {
        let hub =
            Hub::new(move |request| if request.path.starts_with("/api") { ok(description.clone()) } else { ok(body) });
        let cache = tempfile::tempdir().unwrap();
        refused(download(&hub, &cache), expected);
        assert!(!cache.path().join("models--org--name/refs/main").exists());
        assert!(resolve_model("org/name", &env(&hub, &cache)).is_err());
    };
    let weights: &[(&str, &[u8], bool)] = &[("model.safetensors", b"0123456789", true)];
    check(info(weights), b"012345678", &["model.safetensors", "it ended after 9 of 10 bytes"]);
    check(info(weights), b"0123456789a", &["not the file that the hub describes"]);
    check(info(weights), b"0123456780", &["not the file that the hub describes"]);
    check("[]".into(), b"", &["revision/main", "not the description of a model"]);
    check(info(&[]), b"", &["neither model.safetensors nor pytorch_model.bin"]);
    check(info(weights).replace(COMMIT, "../../../x"), b"", &["the commit is called"]);
    check(info(weights).replace(&sha256(b"0123456789"), "../../../x"), b"", &["does not say its length and hash"]);
    check(info(weights).replace(&sha256(b"0123456789"), &"/".repeat(64)), b"", &["does not say its length and hash"]);
    check(
        info(&[("config.json", b"", false)]).replace("\"size\":0", "\"size\":99999999999"),
        b"",
        &["config.json: 99999999999 bytes, at most"],
    );
    let index = info(&[("model.safetensors.index.json", b"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", false)]);
    check(index, b"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", &["not a plain .safetensors file name"]);
    let index = info(&[("model.safetensors.index.json", b"{\"weight_map\":{\"a\":\"x.safetensors\"}}", false)]);
    check(index, b"{\"weight_map\":{\"a\":\"x.safetensors\"}}", &["x.safetensors", "though its index names it"]);
}

#[test]
fn refusals_say_what_to_do_and_no_secret() {
    let cache = tempfile::tempdir().unwrap();
    for (status, with_token, expected) in [
        ("401 Unauthorized", false, "needs a token (status 401)\n  hint: set HF_TOKEN"),
        ("401 Unauthorized", true, "refuses this token (status 401)"),
        ("403 Forbidden", true, "terms are accepted on its page"),
        ("404 Not Found", true, "no such model, revision or file (status 404)"),
        ("429 Slow", true, "too many requests"),
        ("503 Busy", true, "the hub failed (status 503)"),
    ] {
        let hub = Hub::new(move |_| (status, vec![], SECRET.into()));
        let mut env = env(&hub, &cache);
        if !with_token {
            env.token = None;
        }
        env.endpoint = env.endpoint.replace("http://", "http://user:passw0rd@");
        let error = download_model("org/name", &env, &mut |_| {}).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected.split('\n').next().unwrap()) && error.to_string().contains(expected), "{error}");
        assert!(!text.contains(SECRET) && !text.contains("passw0rd") && !text.contains("user:"), "{text}");
    }
    // Redirects without an end, to nowhere, to a signed address.
    for (location, expected) in [
        ("/again?signature=s3cr3t", "without an end"),
        ("http://127.0.0.1:1/x?signature=s3cr3t", ""),
        ("http://[bad?signature=s3cr3t", ""),
    ] {
        let hub = Hub::new(move |_| ("302 Found", vec![("Location", location.to_string())], vec![]));
        let error = download(&hub, &cache).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("s3cr3t") && !error.contains(SECRET), "{error}");
    }
    let hub = model();
    let with = |endpoint: &str| {
        let env = HubEnv { endpoint: endpoint.into(), ..env(&hub, &cache) };
        download_model("org/name", &env, &mut |_| {})
    };
    refused(
        with("http://example.com"),
        &["HF_ENDPOINT http://example.com: the token would be sent without encryption"],
    );
    for bad in ["", "huggingface.co", "ftp://x", "http://", "file:///etc/passwd", "https://x?y=s3cr3t"] {
        let error = with(bad).unwrap_err().to_string();
        assert!(error.contains("not the address of a hub") && !error.contains("s3cr3t"), "{error}");
    }
    let offline = HubEnv { offline: true, ..env(&hub, &cache) };
    refused(download_model("org/name", &offline, &mut |_| {}), &["HF_HUB_OFFLINE is set"]);
    refused(download_model("org/../name", &env(&hub, &cache), &mut |_| {}), &["there is no such file or folder"]);
    assert!(hub.asked().is_empty());
}
