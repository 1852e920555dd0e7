//! Short Python functions.

use draftsman_contract::CounterRng;

use super::table::{Filling, FunctionEntry, Tables};
use super::words::free_name;
use super::{chance, lists, pick};

/// A Python function that does something known.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(super) key: String,
    pub(super) name: String,
    pub(super) parameters: String,
    /// Completes "it returns …"; `None` where the description is a sentence of another form.
    pub(super) returns: Option<String>,
    /// A sentence.
    pub(super) doc: String,
    /// The usual body, not indented.
    pub(super) body: String,
    /// The same with a loop in place of a comprehension.
    pub(super) loop_body: Option<String>,
    /// A call's arguments and its result.
    pub(super) example: Option<(String, String)>,
    /// How the function is written in a file: whether it has a docstring, an example in it, a loop.
    layout: Layout,
}

#[derive(Debug, Clone, Copy)]
struct Layout {
    docstring: bool,
    example: bool,
    with_loop: bool,
}

impl Function {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn signature(&self) -> String {
        format!("def {}({}):\n", self.name, self.parameters)
    }

    /// The whole function with the usual body.
    pub(super) fn code(&self) -> String {
        self.signature() + &indented(&self.body)
    }

    /// The whole function with this body.
    pub(super) fn code_with(&self, body: &str) -> String {
        self.signature() + &indented(body)
    }

    pub(super) fn docstring(&self) -> String {
        format!("    \"\"\"{}\"\"\"\n", self.doc)
    }

    /// Signature and docstring as the file has them: what a model is given to continue.
    pub(crate) fn head(&self) -> String {
        let mut head = self.signature();
        match (&self.example, self.layout) {
            (Some((arguments, result)), Layout { docstring: true, example: true, .. }) => {
                let name = &self.name;
                head += &format!("    \"\"\"{}\n\n    >>> {name}({arguments})\n    {result}\n    \"\"\"\n", self.doc);
            }
            (_, Layout { docstring: true, .. }) => head += &self.docstring(),
            _ => {}
        }
        head
    }

    /// The function as a file has it.
    pub(crate) fn text(&self) -> String {
        let body = self.loop_body.as_ref().filter(|_| self.layout.with_loop).unwrap_or(&self.body);
        self.head() + &indented(body)
    }
}

/// Four spaces in front of every line, no line break at the end.
pub(super) fn indented(body: &str) -> String {
    body.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// A function of any family.
pub(super) fn for_text(rng: &mut CounterRng, tables: &Tables) -> Function {
    if chance(rng, 25) {
        let index = rng.below(tables.hand_written.len());
        from_entry(rng, &tables.hand_written[index], &format!("hand {index}"), false)
    } else {
        described(rng, tables)
    }
}

/// A function whose description completes "it returns …".
pub(super) fn described(rng: &mut CounterRng, tables: &Tables) -> Function {
    if chance(rng, 45) {
        let made = if chance(rng, 65) { lists::of_numbers(rng) } else { lists::of_words(rng) };
        let lists::Made { key, name, parameter, returns, body, loop_body, example } = made;
        let name = if chance(rng, 50) { name } else { free_name(rng) };
        Function {
            key,
            name,
            parameters: parameter.to_owned(),
            doc: format!("Return {returns}."),
            returns: Some(returns),
            body,
            loop_body,
            example,
            layout: layout(rng),
        }
    } else {
        let index = rng.below(tables.functions.len());
        from_entry(rng, &tables.functions[index], &format!("table {index}"), true)
    }
}

fn from_entry(rng: &mut CounterRng, entry: &FunctionEntry, key: &str, completes: bool) -> Function {
    let filling = Filling::draw(rng);
    let name = filling.fill(pick(rng, &entry.names));
    let body = filling.fill(&entry.body);
    // A function that calls itself keeps the first name, which stands in its body.
    let recursive = !completes && entry.names.iter().any(|name| body.contains(&format!("{name}(")));
    let name = match () {
        () if recursive => entry.names[0].to_owned(),
        () if chance(rng, 50) => free_name(rng),
        () => name,
    };
    let parameters = filling.fill(entry.parameters);
    let description = filling.fill(pick(rng, &entry.descriptions));
    let (returns, doc) = if completes {
        let doc = format!("Return {description}.");
        (Some(description), doc)
    } else {
        (None, description)
    };
    // The names of parameters are part of the key: an entry is never held out whole, but with some names.
    let key = format!("{key} {} {}", parameters, if completes { "" } else { &name });
    Function { key, name, parameters, returns, doc, body, loop_body: None, example: None, layout: layout(rng) }
}

fn layout(rng: &mut CounterRng) -> Layout {
    Layout { docstring: chance(rng, 65), example: chance(rng, 50), with_loop: chance(rng, 40) }
}
