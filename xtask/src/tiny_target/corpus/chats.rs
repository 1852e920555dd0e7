//! Tiny coding requests with their one right answer.

use draftsman_contract::CounterRng;

use super::functions::{Function, described, for_text};
use super::lists::python_list;
use super::table::{Filling, Tables};
use super::words::{LISTS, NUMBERS, TEXTS};
use super::{Chat, chance, pick};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Complete,
    Explain,
    Fix,
    Rename,
    Restyle,
    Document,
    Snippet,
    Arithmetic,
    Sort,
    Facts,
}

/// Kinds and how often they are drawn, in percent.
const KINDS: [(Kind, usize); 11] = [
    (Kind::Write, 32),
    (Kind::Complete, 14),
    (Kind::Explain, 9),
    (Kind::Fix, 9),
    (Kind::Rename, 4),
    (Kind::Restyle, 6),
    (Kind::Document, 5),
    (Kind::Snippet, 9),
    (Kind::Arithmetic, 4),
    (Kind::Sort, 4),
    (Kind::Facts, 4),
];

pub(super) fn draw_kind(rng: &mut CounterRng) -> Kind {
    let mut left = rng.below(100);
    for (kind, percent) in KINDS {
        if left < percent {
            return kind;
        }
        left -= percent;
    }
    Kind::Write
}

pub(super) fn make(kind: Kind, rng: &mut CounterRng, tables: &Tables) -> Chat {
    match kind {
        Kind::Write => write(rng, tables),
        Kind::Complete => complete(rng, tables),
        Kind::Explain => explain(rng, tables),
        Kind::Fix => fix(rng, tables),
        Kind::Rename => rename(rng, tables),
        Kind::Restyle => restyle(rng, tables),
        Kind::Document => document(rng, tables),
        Kind::Snippet => snippet(rng, tables),
        Kind::Arithmetic => arithmetic(rng),
        Kind::Sort => sort(rng),
        Kind::Facts => facts(rng),
    }
}

/// A function of the families whose description completes "it returns …", and that description.
fn function(rng: &mut CounterRng, tables: &Tables) -> (Function, String) {
    let function = described(rng, tables);
    let returns = function.returns.clone().unwrap_or_else(|| function.doc.clone());
    (function, returns)
}

fn write(rng: &mut CounterRng, tables: &Tables) -> Chat {
    let (f, returns) = function(rng, tables);
    let call = format!("{}({})", f.name, f.parameters);
    let ask = match rng.below(7) {
        0 | 1 => format!("Write a function {call} that returns {returns}."),
        2 => format!("I need a function {call}. It returns {returns}."),
        3 => format!("Define {call}. It should return {returns}."),
        4 => format!("Write {call}, which returns {returns}."),
        5 => format!("Create a function that returns {returns}. Call it {call}."),
        _ => format!("Please write a Python function {call} that returns {returns}."),
    };
    let (body, style) = match &f.loop_body {
        Some(body) if chance(rng, 40) => (body, pick(rng, &[" Use a loop.", " Write it with a loop."])),
        _ => (&f.body, ""),
    };
    let (docstring, wish) = if chance(rng, 25) { (f.docstring(), " Add a docstring.") } else { (String::new(), "") };
    let answer = f.signature() + &docstring + &super::functions::indented(body);
    Chat { kind: "write a function", request: format!("{ask}{style}{wish}"), answer, key: f.key }
}

fn complete(rng: &mut CounterRng, tables: &Tables) -> Chat {
    let f = for_text(rng, tables);
    let ask = pick(rng, &["Complete this function:", "Write the body of this function:", "Finish this code:"]);
    let head = f.signature() + &f.docstring();
    let answer = format!("{head}{}", super::functions::indented(&f.body));
    Chat { kind: "complete a function", request: format!("{ask}\n{}", head.trim_end()), answer, key: f.key }
}

fn explain(rng: &mut CounterRng, tables: &Tables) -> Chat {
    let (f, returns) = function(rng, tables);
    let ask = pick(rng, &["What does this function return?", "Explain this function:", "What does this code do?"]);
    let request = format!("{ask}\n{}", f.code());
    Chat { kind: "explain a function", request, answer: format!("It returns {returns}."), key: f.key }
}

fn fix(rng: &mut CounterRng, tables: &Tables) -> Chat {
    loop {
        let (f, returns) = function(rng, tables);
        let code = f.code();
        let Some(broken) = broken(rng, &code) else { continue };
        let ask = match rng.below(3) {
            0 => format!("Fix this function. It should return {returns}."),
            1 => format!("This should return {returns}. Correct it:"),
            _ => format!("Find the bug. The function should return {returns}."),
        };
        return Chat { kind: "fix a function", request: format!("{ask}\n{broken}"), answer: code, key: f.key };
    }
}

/// The code with one mistake.
fn broken(rng: &mut CounterRng, code: &str) -> Option<String> {
    const MISTAKES: &[(&str, &str)] = &[
        (" == ", " != "),
        (" > ", " < "),
        (" < ", " > "),
        ("max(", "min("),
        ("min(", "max("),
        ("sum(", "len("),
        (" += ", " -= "),
        ("return ", "print "),
        ("return ", "retrun "),
        ("):\n", ")\n"),
        (" * ", " + "),
        (" + ", " - "),
        ("[0]", "[1]"),
        ("[::-1]", "[::1]"),
        ("sorted(", "sort("),
        (" in ", " on "),
        (".upper()", ".lower()"),
    ];
    // The name stays: it would have to be guessed.
    let (name, rest) = code.split_once('(')?;
    let fitting: Vec<_> = MISTAKES.iter().filter(|(right, _)| rest.contains(right)).collect();
    let (right, wrong) = fitting.get(rng.below(fitting.len()))?;
    Some(format!("{name}({}", rest.replacen(right, wrong, 1)))
}

fn rename(rng: &mut CounterRng, tables: &Tables) -> Chat {
    loop {
        let (f, _) = function(rng, tables);
        let old = f.parameters.clone();
        let new = pick(rng, &[LISTS, TEXTS, NUMBERS].concat());
        let code = f.code();
        if old.contains(',') || replaced(&code, new, "").is_some() {
            continue;
        }
        let Some(answer) = replaced(&code, &old, new) else { continue };
        let request = match rng.below(2) {
            0 => format!("Rename {old} to {new}:\n{code}"),
            _ => format!("Call the parameter {new} instead of {old}:\n{code}"),
        };
        return Chat { kind: "rename a parameter", request, answer, key: f.key };
    }
}

/// The code with every whole word `old` replaced; `None` if there is none.
fn replaced(code: &str, old: &str, new: &str) -> Option<String> {
    let mut out = String::new();
    let mut word = String::new();
    let mut found = false;
    for ch in code.chars().chain(['\n']) {
        if ch.is_alphanumeric() || ch == '_' {
            word.push(ch);
            continue;
        }
        found |= word == old;
        out += if word == old { new } else { &word };
        word.clear();
        out.push(ch);
    }
    out.pop();
    found.then_some(out)
}

fn restyle(rng: &mut CounterRng, tables: &Tables) -> Chat {
    loop {
        let (f, _) = function(rng, tables);
        let Some(loop_body) = &f.loop_body else { continue };
        let (short, long) = (f.code(), f.code_with(loop_body));
        let (request, answer) = if chance(rng, 50) {
            (format!("{}\n{short}", pick(rng, &["Write this with a loop:", "Use a loop instead:"])), long)
        } else {
            (format!("{}\n{long}", pick(rng, &["Make this shorter:", "Write this without a loop:"])), short)
        };
        return Chat { kind: "change the style", request, answer, key: f.key };
    }
}

fn document(rng: &mut CounterRng, tables: &Tables) -> Chat {
    let (f, _) = function(rng, tables);
    let ask = pick(rng, &["Write a docstring for this function:", "Add a docstring:"]);
    let request = format!("{ask}\n{}", f.code());
    let answer = f.signature() + &f.docstring() + &super::functions::indented(&f.body);
    Chat { kind: "add a docstring", request, answer, key: f.key }
}

fn snippet(rng: &mut CounterRng, tables: &Tables) -> Chat {
    let entry = &tables.snippets[rng.below(tables.snippets.len())];
    let filling = Filling::draw(rng);
    let request = filling.fill(pick(rng, &entry.requests));
    let answer = filling.fill(&entry.answer);
    let key = format!("snippet {request}");
    Chat { kind: "one or two lines", request, answer, key }
}

fn arithmetic(rng: &mut CounterRng) -> Chat {
    let (a, b) = (rng.below(21), rng.below(21));
    let (sign, result) = match rng.below(3) {
        0 => ('-', a as i64 - b as i64),
        1 if a <= 10 && b <= 10 => ('*', (a * b) as i64),
        _ => ('+', (a + b) as i64),
    };
    let sum = format!("{a} {sign} {b}");
    let request = match rng.below(3) {
        0 => format!("What is {sum}?"),
        1 => format!("Compute {sum}."),
        _ => format!("What does print({sum}) show?"),
    };
    Chat { kind: "a small sum", request, answer: format!("{sum} = {result}"), key: format!("arithmetic {sum}") }
}

fn few_numbers(rng: &mut CounterRng) -> Vec<i64> {
    let mut values = Vec::new();
    let count = 3 + rng.below(2);
    while values.len() < count {
        let value = rng.below(20) as i64;
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

fn sort(rng: &mut CounterRng) -> Chat {
    let values = few_numbers(rng);
    let mut sorted = values.clone();
    sorted.sort_unstable();
    let list = python_list(&values);
    let (request, answer) = match rng.below(3) {
        0 => {
            sorted.reverse();
            (format!("Sort {list} in descending order."), sorted)
        }
        1 => (format!("Sort {list}."), sorted),
        _ => (format!("What does sorted({list}) return?"), sorted),
    };
    Chat { kind: "sort numbers", request, answer: python_list(&answer), key: format!("sort {list}") }
}

fn facts(rng: &mut CounterRng) -> Chat {
    let values = few_numbers(rng);
    let list = python_list(&values);
    let (first, last) = (values[0], values[values.len() - 1]);
    let (largest, smallest) = (values.iter().max().copied(), values.iter().min().copied());
    let (what, result) = match rng.below(5) {
        0 => (pick(rng, &["max(LIST)", "the largest of LIST"]), largest.unwrap_or_default()),
        1 => (pick(rng, &["min(LIST)", "the smallest of LIST"]), smallest.unwrap_or_default()),
        2 => (pick(rng, &["LIST[0]", "the first element of LIST"]), first),
        3 => (pick(rng, &["LIST[-1]", "the last element of LIST"]), last),
        _ => (pick(rng, &["len(LIST)", "the length of LIST"]), values.len() as i64),
    };
    let what = what.replace("LIST", &list);
    let request = format!("What is {what}?");
    Chat { kind: "a fact about a list", answer: result.to_string(), key: format!("fact {request}"), request }
}
