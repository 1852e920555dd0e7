//! A report that people can send: one HTML file, no outside request, light and dark.

mod charts;
mod style;

use std::fmt::Write as _;

use draftsman_decode::Cycle;

use crate::report::{EvalReport, ProposerReport};
use charts::{Line, bars, lines};
use style::STYLE;

/// What a page shows.
pub struct Page<'a> {
    /// Heading.
    pub title: &'a str,
    /// The numbers.
    pub report: &'a EvalReport,
    /// How a number grew with the optimizer's steps; empty without a training run.
    pub training: &'a [TrainingPoint],
    /// Answers shown token by token.
    pub samples: &'a [SampleAnswer],
    /// Settings and versions: name, value.
    pub facts: &'a [(String, String)],
}

/// One validation of a training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingPoint {
    /// Completed updates.
    pub step: usize,
    /// Accepted drafts of a chain, mean over random anchors.
    pub chain_accepted_drafts: f64,
}

/// An answer with what was drafted for it.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleAnswer {
    /// Name of the prompt.
    pub id: String,
    /// The prompt in words.
    pub prompt: String,
    /// Who drafted.
    pub proposer: String,
    /// The answer's tokens, with the first rejected draft of a block where it stood.
    pub tokens: Vec<ShownToken>,
}

/// A token of a [`SampleAnswer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownToken {
    /// In words.
    pub text: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a shown token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The target itself.
    Target,
    /// An accepted draft in this slot, 1 being the first.
    Draft(usize),
    /// A draft that the target refused; no part of the answer.
    Rejected,
}

/// The tokens of an answer by their origin. `decode` gives the words of an id.
pub fn shown_tokens(
    ids: &[u32],
    prompt_len: usize,
    cycles: &[Cycle],
    decode: &dyn Fn(u32) -> String,
) -> Vec<ShownToken> {
    let mut shown = Vec::new();
    let mut push = |id: u32, origin| shown.push(ShownToken { text: decode(id), origin });
    // The prefill's own token comes before the first cycle.
    if let Some(&first) = ids.get(prompt_len) {
        push(first, Origin::Target);
    }
    for cycle in cycles {
        for offset in 1..=cycle.committed {
            let Some(&id) = ids.get(cycle.start + offset) else { break };
            push(id, if offset <= cycle.accepted { Origin::Draft(offset) } else { Origin::Target });
        }
        if let Some(rejected) = cycle.rejected(ids) {
            push(rejected, Origin::Rejected);
        }
    }
    shown
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
             <title>{title}</title><style>{STYLE}</style></head><body><main>\n<h1>{title}</h1>\n"
        );
        self.headline(&mut html);
        self.table(&mut html);
        if self.training.len() > 1 {
            self.growth(&mut html);
        }
        self.slots(&mut html);
        self.samples(&mut html);
        self.facts(&mut html);
        html.push_str("</main></body></html>\n");
        html
    }

    fn all(&self) -> impl Iterator<Item = &ProposerReport> {
        self.report.proposers.iter()
    }

    fn headline(&self, html: &mut String) {
        let best = self.all().max_by(|a, b| acceptance(a).total_cmp(&acceptance(b)));
        if let Some(best) = best {
            let _ = writeln!(
                html,
                "<p class=\"headline\"><strong>{}</strong> tokens a pass of the target with <b>{}</b>, outside loops, \
                 over {} prompts.</p>",
                number(best.outside_loops.acceptance_length_micro, 2),
                escape(&best.name),
                self.report.prompts
            );
        }
        let _ = writeln!(
            html,
            "<p class=\"note\">{} ({}). acceptance_length is accepted drafts + 1. {} of {} answers fall into a loop; \
             text inside loops is counted apart.</p>",
            escape(self.report.statistic),
            self.report.mode,
            self.report.looping_answers,
            self.report.prompts
        );
    }

    fn table(&self, html: &mut String) {
        html.push_str(
            "<div class=\"wide\"><table><thead><tr><th>drafter<th>acceptance_length<th>95&nbsp;%<th>macro<th>all \
             tokens<th>cycles<th>tokens/s<th>against plain<th>lossless</thead><tbody>\n",
        );
        for line in self.report.plain.iter().chain(self.all()) {
            let outside = &line.outside_loops;
            let interval = outside
                .acceptance_length_micro_interval_95
                .as_ref()
                .map_or("–".to_owned(), |i| format!("{:.2}–{:.2}", i.low, i.high));
            let lossless = line.lossless.as_ref().map_or("–".to_owned(), |lossless| {
                format!("{:?} ({}/{})", lossless.verdict, lossless.identical_answers, lossless.answers)
            });
            let _ = writeln!(
                html,
                "<tr><th>{}<td>{}<td>{interval}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{lossless}",
                escape(&line.name),
                number(outside.acceptance_length_micro, 3),
                number(outside.acceptance_length_macro, 3),
                number(line.all_tokens.acceptance_length_micro, 3),
                outside.cycles,
                number(line.speed.as_ref().and_then(|s| s.decode_outside_loops.tokens_per_s), 1),
                number(line.decode_speedup_outside_loops, 2),
            );
        }
        html.push_str("</tbody></table></div>\n");
    }

    fn growth(&self, html: &mut String) {
        let points: Vec<(f64, f64)> = self.training.iter().map(|p| (p.step as f64, p.chain_accepted_drafts)).collect();
        html.push_str("<h2>Growth in training</h2>\n<p class=\"note\">Accepted drafts of a chain on held-out texts, mean over random anchors (another statistic than the table's), by completed updates.</p>\n");
        html.push_str(&lines(&[Line { name: "chain", points: &points }], "updates", "accepted drafts"));
    }

    fn slots(&self, html: &mut String) {
        let curves: Vec<(String, Vec<(f64, f64)>)> = self
            .all()
            .map(|line| {
                let shares = &line.outside_loops.accepted_share_at_slot;
                (line.name.clone(), shares.iter().enumerate().map(|(i, &share)| ((i + 1) as f64, share)).collect())
            })
            .filter(|(_, points): &(String, Vec<(f64, f64)>)| !points.is_empty())
            .collect();
        if curves.is_empty() {
            return;
        }
        html.push_str("<h2>How far drafts are accepted</h2>\n<p class=\"note\">Share of passes that accept at least so many drafts.</p>\n");
        let named: Vec<Line<'_>> = curves.iter().map(|(name, points)| Line { name, points }).collect();
        html.push_str(&lines(&named, "draft", "share of passes"));
        html.push_str("<h2>Passes by accepted drafts</h2>\n<div class=\"row\">");
        for line in self.all() {
            // As many bars for everybody, so that they can be compared at a glance.
            let mut counts = line.outside_loops.cycles_by_accepted_drafts.clone();
            counts.resize(counts.len().max(line.block_size), 0);
            html.push_str(&bars(&line.name, &counts));
        }
        html.push_str("</div>\n");
    }

    fn samples(&self, html: &mut String) {
        if self.samples.is_empty() {
            return;
        }
        html.push_str(
            "<h2>Answers, token by token</h2>\n<p class=\"legend\"><span class=\"t\">the target's own</span>",
        );
        for slot in 1..=7 {
            let _ = write!(html, "<span class=\"d s{slot}\">slot {slot}</span>");
        }
        html.push_str("<span class=\"x\">refused</span></p>\n");
        for sample in self.samples {
            let _ = write!(
                html,
                "<details open><summary>{} <small>drafted by {}</small></summary><pre class=\"prompt\">{}</pre><pre>",
                escape(&sample.id),
                escape(&sample.proposer),
                escape(&sample.prompt)
            );
            for ShownToken { text, origin } in &sample.tokens {
                let text = escape(text);
                let _ = match origin {
                    Origin::Target => write!(html, "<span class=\"t\">{text}</span>"),
                    Origin::Draft(slot) => write!(html, "<span class=\"d s{}\">{text}</span>", (*slot).min(7)),
                    // A refused line break would tear the answer apart.
                    Origin::Rejected => write!(html, "<span class=\"x\">{}</span>", text.replace('\n', "⏎")),
                };
            }
            html.push_str("</pre></details>\n");
        }
    }

    fn facts(&self, html: &mut String) {
        html.push_str("<h2>Settings</h2>\n<dl>");
        for (name, value) in self.facts {
            let _ = write!(html, "<dt>{}<dd>{}", escape(name), escape(value));
        }
        html.push_str("</dl>\n");
    }
}

fn acceptance(line: &ProposerReport) -> f64 {
    line.outside_loops.acceptance_length_micro.unwrap_or(0.0)
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
