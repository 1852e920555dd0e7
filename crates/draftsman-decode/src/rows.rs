//! Reading tensors back to the host, with the shapes checked.

use burn::tensor::{Int, Tensor};

use crate::DecodeError;

/// Logits on the host, `[rows, vocab]`.
#[derive(Debug, Clone)]
pub struct LogitTable {
    values: Vec<f32>,
    vocab: usize,
}

impl LogitTable {
    /// Reads `logits` `[rows, vocab]` back; `rows` is what was asked for.
    pub fn read(logits: Option<Tensor<2>>, rows: usize) -> Result<Self, DecodeError> {
        let Some(logits) = logits else {
            return Err(DecodeError::Shape { what: "logits", got: "nothing".into(), expected: format!("{rows} rows") });
        };
        let [got, vocab] = logits.dims();
        if got != rows {
            return Err(DecodeError::Shape {
                what: "logits",
                got: format!("[{got}, {vocab}]"),
                expected: format!("[{rows}, {vocab}]"),
            });
        }
        let values = logits
            .try_into_data_as::<f32>()
            .map_err(|e| DecodeError::Device { what: "logits", message: e.to_string() })?
            .try_into_vec::<f32>()
            .map_err(|e| DecodeError::Device { what: "logits", message: format!("{e:?}") })?;
        Ok(Self { values, vocab })
    }

    /// Row `i`, `[vocab]`. Panics past the end: the number of rows was checked in [`LogitTable::read`].
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.vocab..(i + 1) * self.vocab]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.vocab).unwrap_or(0)
    }
}

/// Rows of `[all, width]` in the order given; a view where they are its first ones.
pub(crate) fn select_rows(x: Tensor<2>, rows: &[usize]) -> Tensor<2> {
    if rows.iter().enumerate().all(|(i, &row)| i == row) {
        return x.narrow(0, 0, rows.len());
    }
    let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    let index = Tensor::<1, Int>::from_ints(rows.as_slice(), &x.device());
    x.select(0, index)
}
