//! Names and words.

use draftsman_contract::CounterRng;

use super::pick;

pub(super) const LISTS: &[&str] =
    &["values", "numbers", "nums", "items", "data", "xs", "scores", "prices", "points", "readings"];
pub(super) const TEXTS: &[&str] = &["text", "s", "word", "line", "string", "message", "title", "phrase"];
pub(super) const WORD_LISTS: &[&str] = &["words", "names", "strings", "labels", "tokens", "lines"];
pub(super) const NUMBERS: &[&str] = &["n", "number", "value", "amount", "size", "level"];
pub(super) const OTHER_NUMBERS: &[&str] = &["m", "other", "y", "step", "factor", "limit"];
pub(super) const TABLES: &[&str] = &["table", "mapping", "stock", "ages", "entries", "record"];
pub(super) const LETTERS: &[&str] = &["a", "b", "e", "i", "k", "l", "m", "n", "o", "r", "s", "t"];
pub(super) const MODULES: &[&str] = &["math", "random", "os", "sys", "re", "json", "time", "string"];
pub(super) const WORDS: &[&str] = &[
    "apple", "river", "stone", "lamp", "cloud", "garden", "window", "pepper", "music", "silver", "tiger", "orange",
    "bridge", "candle", "forest", "pencil", "rocket", "island", "button", "carpet", "engine", "flower", "guitar",
    "hammer", "jacket", "kettle", "ladder", "marble", "needle", "ocean", "pillow", "ribbon", "saddle", "tunnel",
    "valley", "yellow", "anchor", "basket", "desert", "falcon", "harbor", "jungle", "lemon", "meadow", "parrot",
    "radar", "salmon", "temple", "velvet", "willow",
];
const VERBS: &[&str] = &[
    "get", "find", "make", "pick", "take", "read", "build", "check", "solve", "run", "test", "use", "load", "show",
    "compute", "process", "handle", "update", "select", "collect",
];

/// A name that says nothing about what the function does.
pub(super) fn free_name(rng: &mut CounterRng) -> String {
    match rng.below(10) {
        0 => pick(rng, &["f", "g", "h", "func", "helper", "solution", "task", "main"]).to_owned(),
        1 => format!("{}_{}", pick(rng, VERBS), 1 + rng.below(9)),
        2 | 3 => pick(rng, WORDS).to_owned(),
        _ => format!("{}_{}", pick(rng, VERBS), pick(rng, WORDS)),
    }
}
