//! The one place that writes to the terminal: data to stdout, everything else to stderr.

use std::io::{IsTerminal, Write};

use serde::Serialize;

use crate::hints::hint_for;

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
        if !text.contains("hint:")
            && let Some(hint) = hint_for(error)
        {
            text.push_str(&format!("\n\nhint: {hint}"));
        }
        write_stderr(&format!("{} {}", paint("error:", "31"), clean(&text)));
    }
}

/// Nobody may be reading the log: that must not end a training run.
fn write_stderr(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A closed pipe ends the program quietly, as `head` expects; any other failure loses the result and is an error.
fn write_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        let broken = error.kind() == std::io::ErrorKind::BrokenPipe;
        if !broken {
            write_stderr(&format!("{} cannot write to stdout: {error}", paint("error:", "31")));
        }
        #[expect(clippy::exit, reason = "nobody reads stdout any more, or the result is lost")]
        std::process::exit(if broken { 0 } else { 2 });
    }
}

fn paint(word: &str, colour: &str) -> String {
    if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{colour};1m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}

/// Model text and file names may hold control or escape bytes, or turn the reading direction: they never reach the
/// terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// A name for one line of output: it cannot begin another line.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) || matches!(c, '\u{2028}' | '\u{2029}') { '\u{fffd}' } else { c }).collect()
}

fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
