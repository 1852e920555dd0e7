//! Keys (or, for the backward pass, values) with sixteen of them side by side, so that one vector holds one dimension
//! of sixteen keys.

use crate::simd::LANES;

/// Rows `[rows, kv_heads, head_dim]` stored as `[rows / 16, kv_heads, head_dim, 16]`. Lanes of the last block past
/// the end hold anything: scores of lanes don't mix, and these are never read out.
#[derive(Clone, Debug)]
pub(crate) struct PackedRows {
    data: Vec<f32>,
    rows: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl PackedRows {
    pub(crate) fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self { data: Vec::new(), rows: 0, kv_heads, head_dim }
    }

    /// All of `rows`, `[n, kv_heads, head_dim]`.
    pub(crate) fn of(rows: &[f32], kv_heads: usize, head_dim: usize) -> Self {
        let mut packed = Self::new(kv_heads, head_dim);
        packed.append(rows);
        packed
    }

    pub(crate) fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Values from one block of a key head to its next block.
    pub(crate) fn block_stride(&self) -> usize {
        self.kv_heads * self.head_dim * LANES
    }

    /// From block `block` of a key head on.
    pub(crate) fn blocks(&self, block: usize, kv_head: usize) -> &[f32] {
        &self.data[block * self.block_stride() + kv_head * self.head_dim * LANES..]
    }

    /// Appends `[n, kv_heads, head_dim]`.
    pub(crate) fn append(&mut self, rows: &[f32]) {
        let (row_size, block_size) = (self.kv_heads * self.head_dim, self.block_stride());
        let mut rows = rows.chunks_exact(row_size);
        self.data.resize(((self.rows + rows.len()).div_ceil(LANES) * block_size).max(self.data.len()), 0.0);
        while rows.len() > 0 {
            let (block, lane) = (self.rows / LANES, self.rows % LANES);
            let count = rows.len().min(LANES - lane);
            let block = &mut self.data[block * block_size..(block + 1) * block_size];
            if count == LANES {
                // A whole block, in squares that stay in registers and the first-level cache.
                let source: [&[f32]; LANES] = std::array::from_fn(|_| rows.next().unwrap_or(&[]));
                for (square, block) in block.chunks_mut(LANES * LANES).enumerate() {
                    transpose(&source, square * LANES, block);
                }
            } else {
                for (lane, row) in (lane..).zip(rows.by_ref().take(count)) {
                    block.iter_mut().skip(lane).step_by(LANES).zip(row).for_each(|(to, from)| *to = *from);
                }
            }
            self.rows += count;
        }
    }

    pub(crate) fn truncate(&mut self, rows: usize) {
        self.rows = self.rows.min(rows);
    }

    /// After the first `start` rows only `rows` of the following ones stay, counted from `start` and rising.
    pub(crate) fn keep(&mut self, start: usize, rows: &[usize]) {
        let block_size = self.block_stride();
        for (to, &from) in rows.iter().enumerate().filter(|(to, from)| to != *from) {
            let place = |row: usize| (start + row) / LANES * block_size + (start + row) % LANES;
            let (to, from) = (place(to), place(from));
            for step in (0..block_size).step_by(LANES) {
                self.data[to + step] = self.data[from + step];
            }
        }
        self.rows = start + rows.len();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.capacity() * size_of::<f32>()
    }
}

/// `block[d][lane] = source[lane][first + d]`
fn transpose(source: &[&[f32]; LANES], first: usize, block: &mut [f32]) {
    let width = block.len() / LANES;
    let mut square = [[0f32; LANES]; LANES];
    for (square, source) in square.iter_mut().zip(source) {
        square[..width].copy_from_slice(&source[first..first + width]);
    }
    for (d, lanes) in block.chunks_exact_mut(LANES).enumerate() {
        for (lane, square) in lanes.iter_mut().zip(&square) {
            *lane = square[d];
        }
    }
}
