//! Which row of a draft tree follows which: positions and visible keys of its rows.

use crate::Visible;

/// The rows of a tree that a target reads in one pass. Row 0 is the root (the anchor), every other row comes after its
/// parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeShape {
    /// Parents of rows 1, 2, ...
    parents: Vec<usize>,
    /// Rows from the root to each row, the root excluded.
    depths: Vec<usize>,
}

/// A parent that doesn't come before its child.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {row} of a draft tree has row {parent} as its parent: parents come before their children")]
pub struct ParentError {
    /// The child.
    pub row: usize,
    /// What it names as its parent.
    pub parent: usize,
}

/// The root alone.
impl Default for TreeShape {
    fn default() -> Self {
        Self { parents: Vec::new(), depths: vec![0] }
    }
}

impl TreeShape {
    /// The shape in which row i + 1 follows row `parents[i]`.
    pub fn new(parents: Vec<usize>) -> Result<Self, ParentError> {
        let mut depths = vec![0];
        for (i, &parent) in parents.iter().enumerate() {
            if parent > i {
                return Err(ParentError { row: i + 1, parent });
            }
            depths.push(depths[parent] + 1);
        }
        Ok(Self { parents, depths })
    }

    /// Rows, the root included.
    pub fn rows(&self) -> usize {
        self.depths.len()
    }

    /// Parents of rows 1, 2, ...
    pub fn parents(&self) -> &[usize] {
        &self.parents
    }

    /// Rows from the root to each row, the root excluded.
    pub fn depths(&self) -> &[usize] {
        &self.depths
    }

    /// The greatest depth.
    pub fn height(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    /// Whether every row follows the one before it.
    pub fn is_chain(&self) -> bool {
        self.parents.iter().enumerate().all(|(i, &parent)| i == parent)
    }

    /// Rows that follow each row, rising.
    pub fn children(&self) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.rows()];
        for (i, &parent) in self.parents.iter().enumerate() {
            children[parent].push(i + 1);
        }
        children
    }

    /// The rows from the root to `row`, both included; they rise.
    pub fn path(&self, row: usize) -> Vec<usize> {
        let mut path = vec![row];
        let mut at = row;
        while at > 0 {
            at = self.parents[at - 1];
            path.push(at);
        }
        path.reverse();
        path
    }

    /// Whether `rows` go from the root down, each the parent of the next. No rows at all do.
    pub fn is_path(&self, rows: &[usize]) -> bool {
        rows.first().is_none_or(|&row| row == 0)
            && rows.windows(2).all(|pair| pair[1] > 0 && self.parents.get(pair[1] - 1) == Some(&pair[0]))
    }

    /// Position of every row when the root is at `start`: siblings share one.
    pub fn positions(&self, start: u32) -> Vec<u32> {
        self.depths.iter().map(|&depth| start.saturating_add(u32::try_from(depth).unwrap_or(u32::MAX))).collect()
    }

    /// Keys that every row sees when the rows follow `past` cached keys: all of those, its ancestors and itself; with a
    /// `window` the last so many of them, counted along the path and not by row.
    pub fn visible(&self, past: usize, window: Option<usize>) -> Visible {
        let mut visible = Visible::with_capacity(self.rows());
        for row in 0..self.rows() {
            let path = self.path(row);
            let hidden = (past + path.len()).saturating_sub(window.unwrap_or(usize::MAX));
            let seen = path.into_iter().skip(hidden.saturating_sub(past)).map(|row| past + row..past + row + 1);
            visible.push_sorted(std::iter::once(hidden.min(past)..past).chain(seen));
        }
        visible
    }
}
