//! HTTP, as little of it as a hub needs, and errors in which no secret can be.

use std::io::Read;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response as HttpResponse, StatusCode, Uri};
use ureq::{Agent, Body, BodyReader};

use crate::error::ModelError;
use crate::hub::env::{HubEnv, Token};

const CONNECT: Duration = Duration::from_secs(20);
/// A server that says nothing for so long has gone away.
const SILENCE: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: u32 = 8;

pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
}

impl Client {
    pub(super) fn new(env: &HubEnv) -> Result<Self, ModelError> {
        let uri: Option<Uri> = env.endpoint.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let scheme = uri.as_ref().and_then(Uri::scheme_str).unwrap_or_default();
        let bad = |what: &str| ModelError::Download {
            address: format!("HF_ENDPOINT {}", without_secrets(&env.endpoint)),
            what: what.into(),
            hint: "it is an address like https://huggingface.co".into(),
        };
        if host.is_empty() || !["http", "https"].contains(&scheme) || env.endpoint.contains(['?', '#']) {
            return Err(bad("not the address of a hub"));
        }
        let local = ["localhost", "127.0.0.1", "[::1]"].contains(&host);
        if env.token.is_some() && scheme != "https" && !local {
            return Err(bad("the token would be sent without encryption"));
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(MAX_REDIRECTS)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .user_agent(concat!("draftsman/", env!("CARGO_PKG_VERSION")));
        if local {
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().into(), endpoint: env.endpoint.clone(), token: env.token.clone() })
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.endpoint)
    }

    /// Asks for a file from byte `start` on; whether the server follows is for [`Response::start`] to say.
    pub(super) fn get(&self, url: &str, start: u64) -> Result<Response<'_>, ModelError> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {}", token.secret()));
        }
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        let response = request.call().map_err(|e| self.error(url, describe(&e)))?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.refusal(url, status));
        }
        let start = match status {
            StatusCode::PARTIAL_CONTENT => range_start(&response)
                .ok_or_else(|| self.error(url, "the answer does not say which part of the file it is"))?,
            _ => 0,
        };
        Ok(Response { client: self, url: url.to_string(), start, body: response.into_body().into_reader() })
    }

    fn refusal(&self, url: &str, status: StatusCode) -> ModelError {
        let (what, hint) = match status.as_u16() {
            401 | 403 if self.token.is_none() => ("needs a token", "set HF_TOKEN, or run `hf auth login`"),
            401 | 403 => ("refuses this token", "a gated model's terms are accepted on its page on the hub"),
            404 => ("has no such model, revision or file", "check org/name@revision"),
            429 => ("has had too many requests", "wait, then go on: what is here stays"),
            _ => ("failed", "try again later: what is here stays"),
        };
        let what = format!("the hub {what} (status {})", status.as_u16());
        ModelError::Download { address: self.shown(url), what, hint: hint.into() }
    }

    pub(super) fn error(&self, url: &str, what: impl Into<String>) -> ModelError {
        let mut what = what.into();
        if let Some(token) = &self.token {
            what = what.replace(token.secret(), "***");
        }
        ModelError::Download {
            address: self.shown(url),
            what,
            hint: "try again: what is here stays; HF_ENDPOINT names another hub".into(),
        }
    }

    /// An address as it may be printed.
    pub(super) fn shown(&self, url: &str) -> String {
        without_secrets(url)
    }
}

/// An answer that is being received.
pub(super) struct Response<'a> {
    client: &'a Client,
    url: String,
    start: u64,
    body: BodyReader<'static>,
}

impl Response<'_> {
    /// First byte of the file that it holds.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The whole body as text.
    pub(super) fn text(self, longest: u64) -> Result<String, ModelError> {
        let mut text = String::new();
        let read = self.body.take(longest + 1).read_to_string(&mut text);
        let read = read.map_err(|e| self.client.error(&self.url, format!("no text: {e}")))?;
        if read as u64 > longest {
            return Err(self.client.error(&self.url, format!("more than {longest} bytes")));
        }
        Ok(text)
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.body.read(buffer)
    }
}

/// `Content-Range: bytes START-END/TOTAL`
fn range_start(response: &HttpResponse<Body>) -> Option<u64> {
    let range = response.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// What went wrong, without the addresses that a redirect may have led to: they hold signatures.
fn describe(error: &ureq::Error) -> String {
    match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "a bad address".into(),
        ureq::Error::HostNotFound => "the host is not found".into(),
        ureq::Error::TooManyRedirects => "it leads from place to place without an end".into(),
        ureq::Error::Timeout(timeout) => format!("no answer in time ({timeout})"),
        other => other.to_string(),
    }
}

/// An address without user, password and query.
fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (host, path) = rest.split_once('/').map_or((rest, String::new()), |(host, path)| (host, format!("/{path}")));
    let host = host.rsplit('@').next().unwrap_or_default();
    if scheme.is_empty() { format!("{host}{path}") } else { format!("{scheme}://{host}{path}") }
}
