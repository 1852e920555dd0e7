//! One draft tree as the target verified it.

use std::fmt::Write as _;

use draftsman_decode::{Cycle, Generation};

use super::{escape, label};

/// A verified tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnTree {
    /// Who drafted it.
    pub proposer: String,
    /// Name of the prompt.
    pub id: String,
    /// Index of the anchor in prompt + answer.
    pub position: usize,
    /// The anchor, then drafts; every node comes after the one it follows, and siblings come best first.
    pub nodes: Vec<TreeNode>,
    /// The target's own token after the accepted drafts; absent where the answer ended before it.
    pub bonus: Option<String>,
    /// Refused drafts that are not among the nodes.
    pub left_out: usize,
}

/// A node of a [`DrawnTree`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeNode {
    /// In words.
    pub text: String,
    /// Index of the node it follows; none for the anchor.
    pub parent: Option<usize>,
    /// Whether it became part of the answer.
    pub accepted: bool,
}

/// Rows that are drawn beside the accepted ones: the first, which are the best.
const MOST_ROWS: usize = 48;

impl DrawnTree {
    /// The tree of `answers` (the prompt's name, the answer) that shows best what trees are for: of those that accept a
    /// draft other than the drafter's first choice, the one that accepts most; the earliest of several. Where every tree
    /// accepts first choices only, the one that accepts most. None without trees. `decode` gives the words of an id.
    pub fn choose<'a>(
        proposer: &str,
        answers: impl Iterator<Item = (String, &'a Generation)>,
        decode: &dyn Fn(u32) -> String,
    ) -> Option<Self> {
        let mut best: Option<((bool, usize), Self)> = None;
        for (id, generation) in answers {
            for cycle in &generation.cycles {
                let Some(rank) = rank(cycle, &generation.ids) else { continue };
                if best.as_ref().is_none_or(|(so_far, _)| rank > *so_far) {
                    let tree = Self::of(cycle, &generation.ids, proposer, &id, decode)?;
                    best = Some((rank, tree));
                }
            }
        }
        best.map(|(_, tree)| tree)
    }

    /// The tree of `cycle` in an answer whose prompt and answer are `ids`. None for a chain.
    pub fn of(
        cycle: &Cycle,
        ids: &[u32],
        proposer: &str,
        prompt_id: &str,
        decode: &dyn Fn(u32) -> String,
    ) -> Option<Self> {
        let parents = cycle.parents.as_ref()?;
        let path = cycle.path(ids);
        let mut place = vec![None; cycle.block.len()];
        let mut nodes = Vec::new();
        for (row, &token) in cycle.block.iter().enumerate() {
            // The parents of a kept row are kept: they stand before it, or on the path as it does.
            if row < MOST_ROWS || path.contains(&row) {
                place[row] = Some(nodes.len());
                let parent = row.checked_sub(1).and_then(|draft| place[parents[draft]]);
                nodes.push(TreeNode { text: decode(token), parent, accepted: path.contains(&row) });
            }
        }
        Some(Self {
            proposer: proposer.to_owned(),
            id: prompt_id.to_owned(),
            position: cycle.start,
            left_out: cycle.block.len() - nodes.len(),
            nodes,
            bonus: ids.get(cycle.start + path.len()).filter(|_| cycle.committed == path.len()).map(|&id| decode(id)),
        })
    }
}

/// Whether the tree of `cycle` accepts a draft that is not the first choice after its parent, and how many it accepts.
/// None for a chain, and where the answer ended within the accepted drafts.
fn rank(cycle: &Cycle, ids: &[u32]) -> Option<(bool, usize)> {
    let parents = cycle.parents.as_ref()?;
    let path = cycle.path(ids);
    let first_choice = |row: usize| parents.iter().position(|&parent| parent == parents[row - 1]) == Some(row - 1);
    let whole = path.len() == cycle.accepted + 1;
    whole.then(|| (path[1..].iter().any(|&row| !first_choice(row)), cycle.accepted))
}

const NODE_WIDTH: usize = 90;
const NODE_HEIGHT: usize = 24;
const COLUMN: usize = 106;
const LINE: usize = 32;

/// Width of a node's text, in letters.
const LETTERS: usize = 12;

/// A box of the picture.
struct Shown<'a> {
    text: &'a str,
    parent: Option<usize>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Anchor,
    Accepted,
    Refused,
    Bonus,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Anchor => "anchor",
            Self::Accepted => "yes",
            Self::Refused => "no",
            Self::Bonus => "bonus",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Anchor => "the newest token",
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Bonus => "the target's own",
        }
    }
}

impl DrawnTree {
    pub(super) fn render(&self, html: &mut String) {
        let shown = self.shown();
        let (columns, lines) = layout(&shown);
        let accepted: Vec<String> =
            shown.iter().filter(|node| node.kind == Kind::Accepted).map(|node| cut(node.text)).collect();
        let refused = shown.iter().filter(|node| node.kind == Kind::Refused).count();
        let _ = write!(
            html,
            "<h2>A draft tree</h2>\n<p class=\"note\">Drafted by <b>{}</b> at position {} of {}: the target read all \
             of it in one pass and went down the heavy line, {} accepted drafts. Where drafts branch, the \
             uppermost is the drafter&#39;s first choice.{}</p>\n<p class=\"legend\">",
            escape(&self.proposer),
            self.position,
            label(&self.id),
            accepted.len(),
            match self.left_out {
                0 => String::new(),
                more => format!(" {more} more refused drafts are not drawn."),
            }
        );
        for kind in [Kind::Anchor, Kind::Accepted, Kind::Bonus, Kind::Refused] {
            let _ = write!(html, "<span class=\"node {}\">{}</span>", kind.class(), escape(kind.words()));
        }
        let width = columns.iter().max().unwrap_or(&0) * COLUMN + NODE_WIDTH + 4;
        let height = lines.iter().max().unwrap_or(&0) * LINE + NODE_HEIGHT + 4;
        let label = format!(
            "Draft tree: accepted {}; {refused} drafts refused; the target's own token is {}",
            if accepted.is_empty() { "nothing".to_owned() } else { accepted.join(", ") },
            self.bonus.as_deref().map_or("none".to_owned(), cut)
        );
        let _ = write!(
            html,
            "</p>\n<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"A draft tree\">\
             <svg class=\"tree\" style=\"width:{width}px\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">",
            escape(&label)
        );
        let corner = |index: usize| (columns[index] * COLUMN + 2, lines[index] * LINE + 2);
        // Lines first, so that boxes lie on them; the taken ones last.
        for taken in [false, true] {
            for (index, node) in shown.iter().enumerate().filter(|(_, node)| (node.kind != Kind::Refused) == taken) {
                let Some(parent) = node.parent else { continue };
                let ((from, top), (to, y)) = (corner(parent), corner(index));
                let (from, top, y) = (from + NODE_WIDTH, top + NODE_HEIGHT / 2, y + NODE_HEIGHT / 2);
                let middle = (from + to) / 2;
                let class = node.kind.class();
                let _ =
                    write!(html, "<path class=\"{class}\" d=\"M{from} {top}C{middle} {top} {middle} {y} {to} {y}\"/>");
            }
        }
        for (index, node) in shown.iter().enumerate() {
            let (x, y) = corner(index);
            let title: String = node.text.chars().take(80).collect();
            let _ = write!(
                html,
                "<g class=\"node {}\"><title>{}: {}</title><rect x=\"{x}\" y=\"{y}\" width=\"{NODE_WIDTH}\" \
                 height=\"{NODE_HEIGHT}\" rx=\"5\"/><text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text></g>",
                node.kind.class(),
                escape(node.kind.words()),
                escape(&title),
                x + NODE_WIDTH / 2,
                y + 16,
                escape(&cut(node.text))
            );
        }
        html.push_str("</svg></div>\n");
    }

    /// The boxes: the nodes with the bonus token, which is the first to follow the last accepted node.
    fn shown(&self) -> Vec<Shown<'_>> {
        let last = self.nodes.iter().rposition(|node| node.accepted).unwrap_or(0);
        let moved = |index: usize| index + usize::from(self.bonus.is_some() && index > last);
        let mut shown = Vec::with_capacity(self.nodes.len() + 1);
        for (index, node) in self.nodes.iter().enumerate() {
            let kind = match (node.parent, node.accepted) {
                (None, _) => Kind::Anchor,
                (_, true) => Kind::Accepted,
                (_, false) => Kind::Refused,
            };
            let parent = node.parent.filter(|&parent| parent < index).map(moved);
            shown.push(Shown { text: &node.text, parent, kind });
            if index == last {
                shown.extend(self.bonus.iter().map(|text| Shown { text, parent: Some(last), kind: Kind::Bonus }));
            }
        }
        shown
    }
}

/// Column and line of every box: one column a depth, the first child on its parent's line, its siblings below.
fn layout(shown: &[Shown<'_>]) -> (Vec<usize>, Vec<usize>) {
    // Lines that a box takes with all that follow it.
    let mut spans = vec![0; shown.len()];
    for (index, node) in shown.iter().enumerate().rev() {
        spans[index] = spans[index].max(1);
        if let Some(parent) = node.parent {
            spans[parent] += spans[index];
        }
    }
    let (mut columns, mut lines) = (vec![0; shown.len()], vec![0; shown.len()]);
    let mut next_line = vec![0; shown.len()];
    let mut below_all = 0;
    for (index, node) in shown.iter().enumerate() {
        let line = match node.parent {
            Some(parent) => {
                columns[index] = columns[parent] + 1;
                &mut next_line[parent]
            }
            None => &mut below_all,
        };
        lines[index] = *line;
        *line += spans[index];
        next_line[index] = lines[index];
    }
    (columns, lines)
}

/// A text that fits a box, its blanks visible.
fn cut(text: &str) -> String {
    if text.is_empty() {
        return "(empty)".to_owned();
    }
    let (mut out, mut width) = (String::new(), 0);
    for c in text.chars() {
        // Scripts of the Far East, and pictures, are about two letters wide.
        width += if c < '\u{1100}' || matches!(c, '\u{2000}'..='\u{2bff}') { 1 } else { 2 };
        if width > LETTERS {
            out.pop();
            out.push('…');
            break;
        }
        out.push(match c {
            ' ' => '␣',
            '\n' => '⏎',
            '\t' => '⇥',
            c => c,
        });
    }
    out
}
