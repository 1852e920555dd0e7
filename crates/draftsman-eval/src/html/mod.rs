//! A report that people can send: one HTML file under 1 MB, no outside request, light and dark.

mod charts;
mod curves;
mod samples;
mod style;
mod tables;
mod tree;

use std::fmt::Write as _;

use crate::report::{EvalReport, ProposerReport};
pub use samples::{Origin, SampleAnswer, ShownToken, shown_tokens};
use style::STYLE;
pub use tree::{DrawnTree, TreeNode};

/// What a page shows. A section whose data are absent is left out.
pub struct Page<'a> {
    /// Heading.
    pub title: &'a str,
    /// The numbers.
    pub report: &'a EvalReport,
    /// How a number grew with the optimizer's steps; empty without a training run.
    pub training: &'a [TrainingPoint],
    /// Answers shown token by token.
    pub samples: &'a [SampleAnswer],
    /// A draft tree as it was verified; absent where only chains were drafted.
    pub tree: Option<&'a DrawnTree>,
    /// Settings and versions: name, value.
    pub facts: &'a [(String, String)],
}

/// One validation of a training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingPoint {
    /// Completed updates.
    pub step: usize,
    /// Accepted drafts of a chain, mean over random anchors.
    pub chain_accepted_drafts: Option<f64>,
    /// Tokens a verify pass outside loops, walked over the target's answers to held-out prompts of the run.
    pub walk_acceptance_length: Option<f64>,
}

impl Page<'_> {
    /// The page.
    pub fn render(&self) -> String {
        let mut html = String::new();
        let title = escape(self.title);
        let _ = write!(
            html,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <title>{title}</title><style>{STYLE}</style></head><body><main>\n<h1>{title}</h1>\n"
        );
        self.headline(&mut html);
        self.acceptance_table(&mut html);
        self.speed_table(&mut html);
        self.growth(&mut html);
        self.slots(&mut html);
        self.histograms(&mut html);
        self.positions(&mut html);
        self.groups(&mut html);
        self.what_if(&mut html);
        if let Some(tree) = self.tree {
            tree.render(&mut html);
        }
        samples::render(self.samples, &mut html);
        self.failed(&mut html);
        self.facts(&mut html);
        html.push_str("</main></body></html>\n");
        html
    }

    fn all(&self) -> impl Iterator<Item = &ProposerReport> {
        self.report.proposers.iter()
    }

    /// The target alone, where it decoded, then every proposer.
    fn with_plain(&self) -> impl Iterator<Item = &ProposerReport> {
        self.report.plain.iter().chain(self.all())
    }

    fn headline(&self, html: &mut String) {
        let acceptance = |line: &&ProposerReport| line.outside_loops.acceptance_length_micro.unwrap_or(0.0);
        if let Some(best) = self.all().max_by(|a, b| acceptance(a).total_cmp(&acceptance(b))) {
            let speedup = best.decode_speedup_outside_loops;
            let speedup =
                speedup.map_or_else(String::new, |ratio| format!(", {ratio:.2} times plain decoding's speed"));
            let _ = writeln!(
                html,
                "<p class=\"headline\"><strong>{}</strong> tokens a pass of the target with <b>{}</b>, outside loops, \
                 over {} prompts{speedup}.</p>",
                number(best.outside_loops.acceptance_length_micro, 2),
                escape(&best.name),
                self.report.prompts
            );
        }
        let failed = match self.report.failed.len() {
            0 => String::new(),
            failed => format!(" <a href=\"#failed\">{failed} prompts were not evaluated.</a>"),
        };
        let _ = writeln!(
            html,
            "<p class=\"note\">Mean over {}, {}. A cycle is one verify pass of the target; acceptance_length is its accepted \
             drafts + 1. {} of {} answers fall into a loop; text inside loops is counted apart.{failed}</p>",
            escape(self.report.statistic),
            self.report.mode,
            self.report.looping_answers,
            self.report.prompts
        );
    }

    fn facts(&self, html: &mut String) {
        if self.facts.is_empty() {
            return;
        }
        html.push_str("<h2>Settings</h2>\n<dl>");
        for (name, value) in self.facts {
            let _ = write!(html, "<dt>{}<dd>{}", escape(name), escape(value));
        }
        html.push_str("</dl>\n");
    }
}

/// Characters shown of a name from a file.
const NAME: usize = 120;

/// A name for HTML, cut where it is longer than any name.
fn label(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        None => escape(name),
        Some((end, _)) => format!("{}…", escape(&name[..end])),
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}

/// Text for HTML. Model text may hold anything: markup becomes harmless, control bytes become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            // Direction overrides would let a text lie about its order.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
