//! Functions put together from a condition, a change and a summary of a list.

use draftsman_contract::CounterRng;

use super::pick;
use super::words::{LETTERS, LISTS, WORD_LISTS, WORDS};

/// A function over one list.
pub(super) struct Made {
    pub(super) key: String,
    pub(super) name: String,
    pub(super) parameter: &'static str,
    pub(super) returns: String,
    pub(super) body: String,
    pub(super) loop_body: Option<String>,
    pub(super) example: Option<(String, String)>,
}

/// Which numbers are kept.
struct Condition {
    expression: String,
    words: String,
    /// Whether the words stand after the noun.
    after: bool,
    /// Part of a name.
    name: String,
    /// Of a number, with the small number of the condition.
    test: fn(i64, i64) -> bool,
}

/// What becomes of a number.
struct Change {
    expression: String,
    /// What stands before "of".
    words: String,
    /// Part of a name.
    name: String,
    /// Of a number, with the small number of the change.
    value: fn(i64, i64) -> i64,
}

const PLAIN: usize = 0;

fn number_condition(rng: &mut CounterRng, k: i64) -> (usize, Condition) {
    let before = |expression: &str, word: &str, test| Condition {
        expression: expression.into(),
        words: word.into(),
        after: false,
        name: word.into(),
        test,
    };
    let after = |sign: &str, words: &str, name: &str, test| Condition {
        expression: format!("x {sign}"),
        words: format!("{words} {k}"),
        after: true,
        name: format!("{name}_{k}"),
        test,
    };
    let which = rng.below(12);
    let condition = match which {
        PLAIN => before("", "", |_, _| true),
        1 => before("x % 2 == 0", "even", |x, _| x % 2 == 0),
        2 => before("x % 2 == 1", "odd", |x, _| x.rem_euclid(2) == 1),
        3 => before("x > 0", "positive", |x, _| x > 0),
        4 => before("x < 0", "negative", |x, _| x < 0),
        5 => before("x != 0", "nonzero", |x, _| x != 0),
        6 => after(&format!("> {k}"), "greater than", "above", |x, k| x > k),
        7 => after(&format!("< {k}"), "less than", "below", |x, k| x < k),
        8 => after(&format!(">= {k}"), "of at least", "from", |x, k| x >= k),
        9 => after(&format!("<= {k}"), "of at most", "up_to", |x, k| x <= k),
        10 => after(&format!("% {k} == 0"), "divisible by", "by", |x, k| x % k == 0),
        _ => after(&format!("!= {k}"), "other than", "not", |x, k| x != k),
    };
    (which, condition)
}

fn number_change(rng: &mut CounterRng, k: i64) -> (usize, Change) {
    let change = |expression: &str, words: &str, name: &str, value| Change {
        expression: expression.into(),
        words: words.into(),
        name: name.into(),
        value,
    };
    // Half of all functions leave the numbers as they are.
    let which = rng.below(16).saturating_sub(7);
    let change = match which {
        PLAIN => change("x", "", "", |x, _| x),
        1 => change("x * x", "squares", "squares", |x, _| x * x),
        2 => change("x ** 3", "cubes", "cubes", |x, _| x * x * x),
        3 => change("2 * x", "doubles", "doubles", |x, _| 2 * x),
        4 => change("-x", "negatives", "negated", |x, _| -x),
        5 => change("abs(x)", "absolute values", "absolute", |x, _| x.abs()),
        6 => change(&format!("x % {k}"), &format!("remainders by {k}"), &format!("mod_{k}"), i64::rem_euclid),
        7 => change(&format!("{k} * x"), &format!("{k}-fold values"), &format!("times_{k}"), |x, k| k * x),
        _ => change(&format!("x // {k}"), &format!("quotients by {k}"), &format!("over_{k}"), i64::div_euclid),
    };
    (which, change)
}

/// Keeps some numbers of a list, changes them, sums them up.
pub(super) fn of_numbers(rng: &mut CounterRng) -> Made {
    let list = pick(rng, LISTS);
    let (k, k2) = (2 + rng.below(8) as i64, 2 + rng.below(8) as i64);
    let (condition_id, condition) = number_condition(rng, k);
    let (change_id, change) = number_change(rng, k2);
    let noun = "numbers";
    let kept = match (condition.words.as_str(), condition.after) {
        ("", _) => format!("the {noun} in {list}"),
        (words, false) => format!("the {words} {noun} in {list}"),
        (words, true) => format!("the {noun} in {list} {words}"),
    };
    let changed = match change.words.as_str() {
        "" => kept.clone(),
        words => format!("the {words} of {kept}"),
    };
    let filter = if condition_id == PLAIN { String::new() } else { format!(" if {}", condition.expression) };
    let each = format!("{} for x in {list}{filter}", change.expression);
    let whole = change_id == PLAIN && condition_id == PLAIN;
    let over = |function: &str| match whole {
        true => format!("return {function}({list})"),
        false => format!("return {function}({each})"),
    };
    let loop_over = |start: &str, step: &str, end: &str| {
        let step = step.replace('Y', &change.expression);
        let inner = if condition_id == PLAIN {
            format!("    {step}")
        } else {
            format!("    if {}:\n        {step}", condition.expression)
        };
        Some(format!("{start}\nfor x in {list}:\n{inner}\nreturn {end}"))
    };
    let summary = rng.below(11);
    let (stem, returns, body, loop_body) = match summary {
        0 | 1 => ("sum", format!("the sum of {changed}"), over("sum"), loop_over("total = 0", "total += Y", "total")),
        2 => {
            let body = match condition_id {
                PLAIN => format!("return len({list})"),
                _ => format!("return sum(1 for x in {list}{filter})"),
            };
            ("count", format!("how many there are of {kept}"), body, loop_over("count = 0", "count += 1", "count"))
        }
        3 | 4 => {
            let body = if whole { format!("return list({list})") } else { format!("return [{each}]") };
            ("list", format!("a list of {changed}"), body, loop_over("result = []", "result.append(Y)", "result"))
        }
        5 => ("largest", format!("the largest of {changed}"), over("max"), None),
        6 => ("smallest", format!("the smallest of {changed}"), over("min"), None),
        7 => ("sorted", format!("{changed} in ascending order"), over("sorted"), None),
        8 => {
            let step = "result *= Y";
            let body = loop_over("result = 1", step, "result").unwrap_or_default();
            ("product", format!("the product of {changed}"), body, None)
        }
        9 => ("distinct", format!("the set of {changed}"), over("set"), None),
        _ => {
            let body = format!("return next(({each}), None)");
            ("first", format!("the first of {changed}, or None"), body, None)
        }
    };
    let change_name = if summary == 2 { "" } else { &change.name };
    let name = [stem, change_name, &condition.name].into_iter().filter(|part| !part.is_empty());
    let name = name.collect::<Vec<_>>().join("_");
    let key = format!("numbers {stem} {} {condition_id}", if summary == 2 { 0 } else { change_id });
    let values: Vec<i64> = (0..3 + rng.below(3)).map(|_| rng.below(12) as i64 - 2).collect();
    let results = values.iter().filter(|&&x| (condition.test)(x, k)).map(|&x| (change.value)(x, k2));
    let results: Vec<i64> = results.collect();
    let result = match stem {
        "sum" => Some(results.iter().sum::<i64>().to_string()),
        "count" => Some(results.len().to_string()),
        "list" => Some(python_list(&results)),
        "largest" => results.iter().max().map(ToString::to_string),
        "smallest" => results.iter().min().map(ToString::to_string),
        "product" => Some(results.iter().product::<i64>().to_string()),
        "sorted" => {
            let mut results = results.clone();
            results.sort_unstable();
            Some(python_list(&results))
        }
        "first" => results.first().map(ToString::to_string),
        _ => None,
    };
    let example = result.map(|result| (python_list(&values), result));
    Made { key, name, parameter: list, returns, body, loop_body, example }
}

/// As Python prints it.
pub(super) fn python_list(values: &[i64]) -> String {
    format!("{values:?}")
}

/// Keeps some words of a list and changes them.
pub(super) fn of_words(rng: &mut CounterRng) -> Made {
    let list = pick(rng, WORD_LISTS);
    let (k, c, word) = (2 + rng.below(6), pick(rng, LETTERS), pick(rng, WORDS));
    let condition_id = rng.below(10);
    let (condition, kept, condition_name) = match condition_id {
        PLAIN => (String::new(), String::new(), String::new()),
        1 => (format!("len(w) > {k}"), format!(" longer than {k}"), format!("longer_{k}")),
        2 => (format!("len(w) < {k}"), format!(" shorter than {k}"), format!("shorter_{k}")),
        3 => (format!("len(w) == {k}"), format!(" of length {k}"), format!("length_{k}")),
        4 => (format!("w.startswith('{c}')"), format!(" starting with '{c}'"), format!("starting_{c}")),
        5 => (format!("w.endswith('{c}')"), format!(" ending with '{c}'"), format!("ending_{c}")),
        6 => (format!("'{c}' in w"), format!(" with '{c}'"), format!("with_{c}")),
        7 => (format!("'{c}' not in w"), format!(" without '{c}'"), format!("without_{c}")),
        8 => ("w == w[::-1]".into(), " that are palindromes".into(), "palindromes".into()),
        _ => (format!("w != '{word}'"), format!(" other than '{word}'"), format!("not_{word}")),
    };
    let change_id = rng.below(8).saturating_sub(1);
    let (change, changed, change_name) = match change_id {
        PLAIN => ("w".to_owned(), "", "words"),
        1 => ("w.upper()".into(), " in upper case", "upper"),
        2 => ("w[::-1]".into(), " reversed", "reversed"),
        3 => ("len(w)".into(), " as lengths", "lengths"),
        4 => ("w[0]".into(), " as first letters", "initials"),
        5 => (format!("w + '{c}'"), " with an ending", "suffixed"),
        _ => ("w.title()".into(), " capitalised", "titles"),
    };
    let changed = if change_id == 5 { format!(" followed by '{c}'") } else { changed.to_owned() };
    let filter = if condition_id == PLAIN { String::new() } else { format!(" if {condition}") };
    let each = format!("{change} for w in {list}{filter}");
    let what = format!("the words in {list}{kept}{changed}");
    let summary = rng.below(6);
    let (stem, returns, body) = match summary {
        0 | 1 => ("list", format!("a list of {what}"), format!("return [{each}]")),
        2 => {
            let counted = match condition_id {
                PLAIN => format!("return len({list})"),
                _ => format!("return sum(1 for w in {list}{filter})"),
            };
            ("count", format!("how many there are of the words in {list}{kept}"), counted)
        }
        3 => ("sorted", format!("the sorted list of {what}"), format!("return sorted({each})")),
        4 => ("set", format!("the set of {what}"), format!("return {{{each}}}")),
        _ => ("first", format!("the first of {what}, or None"), format!("return next(({each}), None)")),
    };
    let loop_body = matches!(summary, 0 | 1).then(|| {
        let inner = if condition_id == PLAIN {
            format!("    result.append({change})")
        } else {
            format!("    if {condition}:\n        result.append({change})")
        };
        format!("result = []\nfor w in {list}:\n{inner}\nreturn result")
    });
    let change_name = if stem == "count" { "words" } else { change_name };
    let name = [stem, change_name, &condition_name].into_iter().filter(|part| !part.is_empty());
    let name = name.collect::<Vec<_>>().join("_");
    let key = format!("words {stem} {} {condition_id}", if stem == "count" { 0 } else { change_id });
    Made { key, name, parameter: list, returns, body, loop_body, example: None }
}
