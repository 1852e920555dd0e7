//! Which keys each query row may see.

use std::ops::Range;

/// The visible keys of every query row: per row a list of half-open key ranges, ascending, disjoint, none empty and
/// none touching the next (so that equal sets of keys are equal values). Stored as one list with row offsets.
///
/// Attention kernels take only this, never a rule about windows, blocks or documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Row i owns `ranges[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<u32>,
    ranges: Vec<Range<u32>>,
}

/// Why ranges were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VisibleError {
    /// Ranges of a row that go backwards or overlap.
    #[error("visible keys of row {row}: range {}..{} begins before the previous one ends ({previous_end})", .range.start, .range.end)]
    NotAscending {
        /// The query row.
        row: usize,
        /// The offending range.
        range: Range<u32>,
        /// End of the range before it.
        previous_end: u32,
    },
    /// A range that ends before it begins.
    #[error("visible keys of row {row}: range {}..{} ends before it begins", .range.start, .range.end)]
    Reversed {
        /// The query row.
        row: usize,
        /// The offending range.
        range: Range<u32>,
    },
    /// Keys that don't exist.
    #[error("a row may see keys up to {needed}, but there are only {keys} keys")]
    TooFewKeys {
        /// Keys there are.
        keys: usize,
        /// Keys there would have to be.
        needed: usize,
    },
}

impl Visible {
    /// No rows yet; room for `rows` of them.
    pub fn with_capacity(rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, ranges: Vec::with_capacity(rows) }
    }

    /// `rows` queries after `past` cached keys: row i sees keys `0..past + i + 1`.
    pub fn causal(past: usize, rows: usize) -> Self {
        Self::causal_window(past, rows, usize::MAX)
    }

    /// As [`Visible::causal`], but only the last `window` keys, the query's own included.
    pub fn causal_window(past: usize, rows: usize, window: usize) -> Self {
        let mut visible = Self::with_capacity(rows);
        for row in 0..rows {
            let end = past + row + 1;
            visible.push_sorted(std::iter::once(end.saturating_sub(window)..end));
        }
        visible
    }

    /// From explicit rows; empty ranges are dropped and touching ones joined.
    pub fn from_rows<R>(rows: impl IntoIterator<Item = R>) -> Result<Self, VisibleError>
    where
        R: IntoIterator<Item = Range<u32>>,
    {
        let mut visible = Self::with_capacity(0);
        for (row, ranges) in rows.into_iter().enumerate() {
            let mut previous_end = 0;
            for range in ranges {
                if range.start > range.end {
                    return Err(VisibleError::Reversed { row, range });
                }
                if range.is_empty() {
                    continue;
                }
                if range.start < previous_end {
                    return Err(VisibleError::NotAscending { row, range, previous_end });
                }
                previous_end = range.end;
                visible.push_range(range);
            }
            visible.end_row();
        }
        Ok(visible)
    }

    /// Appends a row of ranges that the caller knows to be ascending and disjoint.
    pub(crate) fn push_sorted(&mut self, ranges: impl IntoIterator<Item = Range<usize>>) {
        for range in ranges {
            if range.start < range.end {
                self.push_range(to_u32(range.start)..to_u32(range.end));
            }
        }
        self.end_row();
    }

    fn push_range(&mut self, range: Range<u32>) {
        let row_start = self.offsets.last().map_or(0, |&offset| offset as usize);
        match self.ranges[row_start..].last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    fn end_row(&mut self) {
        self.offsets.push(to_u32(self.ranges.len()));
    }

    /// Number of query rows.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The key ranges of one row, ascending.
    pub fn row(&self, row: usize) -> &[Range<u32>] {
        &self.ranges[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// The keys of one row, ascending.
    pub fn keys(&self, row: usize) -> impl Iterator<Item = u32> + '_ {
        self.row(row).iter().cloned().flatten()
    }

    /// How many keys one row sees.
    pub fn key_count(&self, row: usize) -> usize {
        self.row(row).iter().map(ExactSizeIterator::len).sum()
    }

    /// One past the largest key that any row sees (0 when none sees any): the number of keys there must be.
    pub fn max_key(&self) -> usize {
        self.ranges.iter().map(|range| range.end as usize).max().unwrap_or(0)
    }

    /// Whether `keys` keys are enough.
    pub fn check_keys(&self, keys: usize) -> Result<(), VisibleError> {
        let needed = self.max_key();
        if needed <= keys { Ok(()) } else { Err(VisibleError::TooFewKeys { keys, needed }) }
    }
}

/// Keys are counted in 32 bits. A row that long can't be held in memory as keys and values, so the saturated value is
/// out of every real bound and [`Visible::check_keys`] refuses it.
fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
