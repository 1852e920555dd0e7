//! Answers token by token, coloured by who made each token.

use std::fmt::Write as _;

use draftsman_decode::Cycle;

use super::{escape, label};

/// An answer with what was drafted for it.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleAnswer {
    /// The suite of the prompt; may be empty.
    pub suite: String,
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

/// Slots with a colour of their own; deeper ones share the last.
const COLOURS: usize = 7;

/// Tokens of an answer that are shown.
const MOST_TOKENS: usize = 600;

/// Bytes of all shown answers together: tokens may be long, and a page is under 1 MB.
const MOST_BYTES: usize = 500_000;

/// Characters shown of the beginning, and of the end, of a longer prompt.
const PROMPT_PART: usize = 700;

pub(super) fn render(samples: &[SampleAnswer], html: &mut String) {
    if samples.is_empty() {
        return;
    }
    html.push_str(
        "<h2>Answers, token by token</h2>\n<p class=\"legend\"><span class=\"t\">the target&#39;s own</span>",
    );
    let slot = |token: &ShownToken| if let Origin::Draft(slot) = token.origin { slot } else { 0 };
    let deepest = samples.iter().flat_map(|sample| &sample.tokens).map(slot).max().unwrap_or(0);
    for slot in 1..=deepest.min(COLOURS) {
        let or_deeper = if slot == COLOURS && deepest > COLOURS { "+" } else { "" };
        let _ = write!(html, "<span class=\"d s{slot}\">slot {slot}{or_deeper}</span>");
    }
    html.push_str("<span class=\"x\">refused</span></p>\n");
    for sample in samples {
        answer(sample, MOST_BYTES / samples.len(), html);
    }
}

fn answer(sample: &SampleAnswer, most_bytes: usize, html: &mut String) {
    let suite = if sample.suite.is_empty() { String::new() } else { format!("{} · ", label(&sample.suite)) };
    let _ = write!(
        html,
        "<details open><summary>{suite}{} <small>drafted by {}</small></summary><pre class=\"prompt\">{}</pre><pre>",
        label(&sample.id),
        escape(&sample.proposer),
        escape(&both_ends(&sample.prompt))
    );
    let limit = html.len() + most_bytes;
    let mut shown = 0;
    for ShownToken { text, origin } in sample.tokens.iter().take(MOST_TOKENS) {
        let text = escape(text);
        if html.len() + text.len() > limit {
            break;
        }
        shown += 1;
        let _ = match origin {
            Origin::Target => write!(html, "<span class=\"t\">{text}</span>"),
            Origin::Draft(slot) => {
                write!(html, "<span class=\"d s{}\" title=\"slot {slot}\">{text}</span>", (*slot).min(COLOURS))
            }
            // A refused line break would tear the answer apart.
            Origin::Rejected => write!(html, "<s class=\"x\">{}</s>", text.replace('\n', "⏎")),
        };
    }
    html.push_str("</pre>");
    if shown < sample.tokens.len() {
        let _ = write!(
            html,
            "<p class=\"cut\">The first {shown} of {} tokens, refused ones included.</p>",
            sample.tokens.len()
        );
    }
    html.push_str("</details>\n");
}

/// A long text without its middle.
fn both_ends(text: &str) -> String {
    let count = text.chars().count();
    if count <= 2 * PROMPT_PART {
        return text.to_owned();
    }
    let first: String = text.chars().take(PROMPT_PART).collect();
    let last: String = text.chars().skip(count - PROMPT_PART).collect();
    format!("{first}\n[… {} characters left out …]\n{last}", count - 2 * PROMPT_PART)
}
