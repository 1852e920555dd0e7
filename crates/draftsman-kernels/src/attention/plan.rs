//! How the query rows are cut into tiles that share key loads.

use std::ops::Range;

use draftsman_contract::Visible;

use crate::simd::LANES;

/// Query rows × heads of a tile at most: enough to reuse each key, few enough that their scores stay in cache.
const TILE_HEADS: usize = 48;
/// Rows of a tile at most (few heads per key head).
const TILE_ROWS: usize = 24;
/// Scores of a tile at most, unless a single row has more (values).
const TILE_SCORES: usize = 1 << 19;

/// Neighbouring rows with mostly the same visible keys.
pub(super) struct Tile {
    /// Query rows.
    pub rows: Range<usize>,
    /// The key blocks that the rows see, in [`Plan::runs`].
    pub runs: Range<usize>,
    /// The visible keys as rectangles, in [`Plan::rects`], ascending by key.
    pub rects: Range<usize>,
    /// Score columns per row and head: 16 per block of the runs.
    pub columns: usize,
    /// Virtual lists of the tile's rows are stored this far apart.
    pub stride: usize,
}

/// Consecutive key blocks (of 16 keys).
pub(super) struct Run {
    pub first_block: usize,
    pub blocks: usize,
    /// Score column of the first key of the first block.
    pub column: usize,
}

/// Keys that all of some consecutive rows see.
pub(super) struct Rect {
    pub keys: Range<usize>,
    pub rows: Range<usize>,
    /// Score column of the first key.
    pub column: usize,
    /// Where [`Plan::starts`] has the virtual index of the first key, for each of the rows.
    starts: usize,
}

/// The tiles of a [`Visible`]. Results don't depend on how it is cut, only the speed does.
pub(super) struct Plan {
    pub tiles: Vec<Tile>,
    pub runs: Vec<Run>,
    pub rects: Vec<Rect>,
    starts: Vec<usize>,
    /// Visible keys of every row.
    pub counts: Vec<usize>,
    /// Query heads per key head.
    pub group: usize,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({} rows in {} tiles)", self.counts.len(), self.tiles.len())
    }
}

impl Plan {
    pub(super) fn new(visible: &Visible, group: usize) -> Self {
        let rows = visible.rows();
        let counts = (0..rows).map(|row| visible.key_count(row)).collect();
        let mut plan =
            Self { tiles: Vec::new(), runs: Vec::new(), rects: Vec::new(), starts: Vec::new(), counts, group };
        let max_rows = (TILE_HEADS / group.max(1)).clamp(1, TILE_ROWS);
        let (mut start, mut union, mut wider) = (0, Vec::new(), Vec::new());
        while start < rows {
            union.clear();
            merge(&[], visible.row(start), &mut union);
            let (mut end, mut longest) = (start + 1, plan.counts[start]);
            while end < rows && end - start < max_rows {
                merge(&union, visible.row(end), &mut wider);
                let size: usize = wider.iter().map(ExactSizeIterator::len).sum();
                longest = longest.max(plan.counts[end]);
                let shared = size <= longest + longest / 4 + 2 * LANES;
                if !shared || (end + 1 - start) * group * (size + LANES * wider.len()) > TILE_SCORES {
                    break;
                }
                std::mem::swap(&mut union, &mut wider);
                end += 1;
            }
            plan.push_tile(visible, start..end, &union);
            start = end;
        }
        plan
    }

    /// The virtual index of the rectangle's first key in each of its rows.
    pub(super) fn starts(&self, rect: &Rect) -> &[usize] {
        &self.starts[rect.starts..rect.starts + rect.rows.len()]
    }

    /// Multiplications of one product of queries and keys.
    pub(super) fn work(&self, head_dim: usize) -> usize {
        self.counts.iter().sum::<usize>() * self.group * head_dim
    }

    fn push_tile(&mut self, visible: &Visible, rows: Range<usize>, union: &[Range<usize>]) {
        let runs = self.runs.len();
        let mut columns = 0;
        for range in union {
            let (first, last) = (range.start / LANES, range.end.div_ceil(LANES));
            // Two ranges may share a block, or touch.
            if let Some(run) = self.runs[runs..].last_mut() {
                let end = run.first_block + run.blocks;
                if first <= end {
                    run.blocks = last - run.first_block;
                    columns += (last - end) * LANES;
                    continue;
                }
            }
            self.runs.push(Run { first_block: first, blocks: last - first, column: columns });
            columns += (last - first) * LANES;
        }
        let rects = self.rects.len();
        let longest = self.push_rects(visible, rows.clone(), runs);
        self.tiles.push(Tile {
            rows,
            runs: runs..self.runs.len(),
            rects: rects..self.rects.len(),
            columns,
            stride: longest.next_multiple_of(LANES),
        });
    }

    /// Cuts the keys where any row's ranges begin or end: between two cuts every row sees all keys or none. Returns
    /// the length of the longest virtual list.
    fn push_rects(&mut self, visible: &Visible, rows: Range<usize>, first_run: usize) -> usize {
        let mut cuts: Vec<usize> = Vec::new();
        for row in rows.clone() {
            cuts.extend(visible.row(row).iter().flat_map(|range| [range.start as usize, range.end as usize]));
        }
        cuts.sort_unstable();
        cuts.dedup();
        // Per row: its next range, and how many keys its virtual list has so far.
        let mut cursors = vec![(0, 0); rows.len()];
        let mut run = first_run;
        for keys in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
            let mut open: Option<usize> = None;
            for (i, (next, count)) in cursors.iter_mut().enumerate() {
                let row = rows.start + i;
                let ranges = visible.row(row);
                while ranges.get(*next).is_some_and(|range| range.end as usize <= keys.start) {
                    *next += 1;
                }
                if ranges.get(*next).is_none_or(|range| range.start as usize > keys.start) {
                    open = None;
                    continue;
                }
                let rect = *open.get_or_insert_with(|| {
                    while self.runs[run].first_block + self.runs[run].blocks <= keys.start / LANES {
                        run += 1;
                    }
                    let column = self.runs[run].column + keys.start - self.runs[run].first_block * LANES;
                    self.rects.push(Rect { keys: keys.clone(), rows: row..row, column, starts: self.starts.len() });
                    self.rects.len() - 1
                });
                self.rects[rect].rows.end = row + 1;
                self.starts.push(*count);
                *count += keys.len();
            }
        }
        cursors.into_iter().map(|(_, count)| count).max().unwrap_or(0)
    }
}

/// The union of two ascending lists of ranges.
fn merge(a: &[Range<usize>], b: &[Range<u32>], out: &mut Vec<Range<usize>>) {
    out.clear();
    let (mut a, mut b) = (a.iter().cloned().peekable(), b.iter().map(|r| r.start as usize..r.end as usize).peekable());
    loop {
        let from_a = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) => x.start <= y.start,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => break,
        };
        let Some(next) = (if from_a { a.next() } else { b.next() }) else { break };
        match out.last_mut() {
            Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
            _ => out.push(next),
        }
    }
}
