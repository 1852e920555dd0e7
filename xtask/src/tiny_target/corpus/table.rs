//! The tables of hand-written entries in `xtask/corpus/`, and how their places are filled.

use draftsman_contract::CounterRng;

use super::words::{LETTERS, LISTS, MODULES, NUMBERS, OTHER_NUMBERS, TABLES, TEXTS, WORD_LISTS, WORDS};
use super::{pick, two_numbers};

pub(super) struct Tables {
    /// `functions.txt`: the description completes "it returns …".
    pub(super) functions: Vec<FunctionEntry>,
    /// `hand_written.txt`: descriptions are whole sentences.
    pub(super) hand_written: Vec<FunctionEntry>,
    pub(super) snippets: Vec<SnippetEntry>,
}

pub(super) struct FunctionEntry {
    pub(super) names: Vec<&'static str>,
    pub(super) parameters: &'static str,
    pub(super) descriptions: Vec<&'static str>,
    pub(super) body: String,
}

pub(super) struct SnippetEntry {
    pub(super) requests: Vec<&'static str>,
    pub(super) answer: String,
}

impl Tables {
    pub(super) fn new() -> Self {
        let functions = |text: &'static str| {
            rows(text)
                .map(|line| {
                    // Names stand before the first " | ", with "|" between them.
                    let mut fields = line.splitn(4, " | ");
                    let mut field = || fields.next().unwrap_or_else(|| panic!("corpus: too few fields in {line:?}"));
                    FunctionEntry {
                        names: field().split('|').map(str::trim).collect(),
                        parameters: field().trim(),
                        descriptions: field().split("||").map(str::trim).collect(),
                        body: field().trim().replace("\\n", "\n"),
                    }
                })
                .collect()
        };
        let snippets = rows(include_str!("../../../corpus/snippets.txt"))
            .map(|line| {
                let (requests, answer) =
                    line.rsplit_once(" | ").unwrap_or_else(|| panic!("corpus: no answer in {line:?}"));
                SnippetEntry {
                    requests: requests.split("||").map(str::trim).collect(),
                    answer: answer.trim().replace("\\n", "\n"),
                }
            })
            .collect();
        Self {
            functions: functions(include_str!("../../../corpus/functions.txt")),
            hand_written: functions(include_str!("../../../corpus/hand_written.txt")),
            snippets,
        }
    }
}

fn rows(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// What stands in the places of an entry, drawn anew for each use.
pub(super) struct Filling(Vec<(&'static str, String)>);

impl Filling {
    pub(super) fn draw(rng: &mut CounterRng) -> Self {
        let (k, j) = two_numbers(rng);
        let names = [NUMBERS, LISTS, TEXTS].concat();
        let x = pick(rng, &names);
        let y = loop {
            let y = pick(rng, &names);
            if y != x {
                break y;
            }
        };
        let mut word = || pick(rng, WORDS).to_owned();
        let (w, u) = (word(), word());
        Self(vec![
            ("{L}", pick(rng, LISTS).to_owned()),
            ("{S}", pick(rng, TEXTS).to_owned()),
            ("{W}", pick(rng, WORD_LISTS).to_owned()),
            ("{N}", pick(rng, NUMBERS).to_owned()),
            ("{M}", pick(rng, OTHER_NUMBERS).to_owned()),
            ("{D}", pick(rng, TABLES).to_owned()),
            ("{c}", pick(rng, LETTERS).to_owned()),
            ("{m}", pick(rng, MODULES).to_owned()),
            ("{k}", k.to_string()),
            ("{j}", j.to_string()),
            ("{i}", (j + 1).to_string()),
            ("{h}", (k - 1).to_string()),
            ("{x}", x.to_owned()),
            ("{y}", y.to_owned()),
            ("{w}", w),
            ("{u}", u),
        ])
    }

    pub(super) fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (place, value)| text.replace(place, value))
    }
}
