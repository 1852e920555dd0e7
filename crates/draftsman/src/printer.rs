//! The one place that writes to the terminal: data to stdout, everything else to stderr.

use std::io::{IsTerminal, Write};

use serde::Serialize;

/// Writes results, notes and errors in the form the user asked for.
pub(crate) struct Printer {
    json: bool,
    quiet: bool,
}

impl Printer {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet }
    }

    /// A line of the result, on stdout; left out under `--json`.
    pub(crate) fn line(&self, text: impl AsRef<str>) {
        if !self.json {
            write_stdout(&clean(text.as_ref()));
        }
    }

    /// A piece of streamed text, on stdout, without a line break; left out under `--json`.
    pub(crate) fn piece(&self, text: impl AsRef<str>) {
        if !self.json {
            let mut out = std::io::stdout().lock();
            // A reader that went away shows at the next `line`.
            let _ = write!(out, "{}", clean(text.as_ref())).and_then(|()| out.flush());
        }
    }

    /// The machine-readable result, on stdout; written only under `--json`.
    pub(crate) fn document(&self, value: &impl Serialize) -> anyhow::Result<()> {
        if self.json {
            write_stdout(&serde_json::to_string_pretty(value)?);
        }
        Ok(())
    }

    /// A result whose only form is JSON (`trace tree`, `trace acceptance`).
    pub(crate) fn json_line(&self, value: &impl Serialize) -> anyhow::Result<()> {
        write_stdout(&serde_json::to_string(value)?);
        Ok(())
    }

    /// Progress and remarks, on stderr.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            write_stderr(&clean(text.as_ref()));
        }
    }

    /// Something the user should know but that stops nothing, on stderr, also under `--quiet`.
    pub(crate) fn warning(&self, text: impl AsRef<str>) {
        write_stderr(&format!("{} {}", paint("warning:", "33"), clean(text.as_ref())));
    }

    /// The error that ended the program, with its causes; `hint:` lines stand apart.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        let mut text = error.to_string();
        for cause in error.chain().skip(1) {
            let cause = cause.to_string();
            if !text.contains(&cause) {
                text.push_str(&format!("\n  caused by: {cause}"));
            }
        }
        write_stderr(&format!("{} {}", paint("error:", "31"), clean(&text)));
    }
}

/// Nobody may be reading the log: that must not end a training run.
fn write_stderr(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A closed pipe ends the program quietly, as `head` expects.
fn write_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        #[expect(clippy::exit, reason = "nobody reads stdout any more: a broken pipe is success")]
        std::process::exit(0);
    }
}

fn paint(word: &str, colour: &str) -> String {
    if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{colour};1m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}

/// Model text and file names may hold control or escape bytes: they never reach the terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}
