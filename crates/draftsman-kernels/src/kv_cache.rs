//! Keys and values of the rows that a model has already seen, for one layer.

use burn::tensor::{Device, Int, Tensor};

use crate::attention::PackedRows;
use crate::flex::to_vec;

/// A buffer that grows at the end and can be cut back. On the CPU device it is plain memory in the layout that
/// [`crate::attention_cached`] reads; on other devices a pair of tensors that doubles when full.
#[derive(Clone, Debug)]
pub struct KvCache {
    kv_heads: usize,
    head_dim: usize,
    len: usize,
    store: Store,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one per layer, and the large variant is the common one")]
pub(crate) enum Store {
    Host {
        keys: PackedRows,
        /// `[len, kv_heads, head_dim]`
        values: Vec<f32>,
    },
    Device {
        device: Device,
        /// Keys and values, `[capacity, kv_heads, head_dim]`.
        buffers: Option<[Tensor<3>; 2]>,
    },
}

impl KvCache {
    /// An empty cache; a device with autodiff is taken without it.
    pub fn new(kv_heads: usize, head_dim: usize, device: &Device) -> Self {
        let store = if *device == Device::flex() {
            Store::Host { keys: PackedRows::new(kv_heads, head_dim), values: Vec::new() }
        } else {
            Store::Device { device: device.clone().inner(), buffers: None }
        };
        Self { kv_heads, head_dim, len: 0, store }
    }

    /// Rows held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no rows are held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Key heads of a row.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Values of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Appends rows; gradients don't reach into the cache.
    ///
    /// * `k`, `v` `[rows, kv_heads, head_dim]`
    ///
    /// # Panics
    /// When a shape is another one.
    pub fn append(&mut self, k: Tensor<3>, v: Tensor<3>) {
        let (rows, expected) = (k.dims()[0], [k.dims()[0], self.kv_heads, self.head_dim]);
        assert_eq!(k.dims(), expected, "KvCache: keys of another shape than [rows, kv_heads, head_dim]");
        assert_eq!(v.dims(), expected, "KvCache: values of another shape than the keys");
        if rows == 0 {
            return;
        }
        match &mut self.store {
            Store::Host { keys, values } => {
                keys.append(&to_vec(k.inner()));
                values.extend_from_slice(&to_vec(v.inner()));
            }
            Store::Device { device, buffers } => {
                let needed = self.len + rows;
                let old = buffers.take();
                let capacity = old.as_ref().map_or(0, |[k, _]| k.dims()[0]);
                let mut new = match old {
                    Some(buffers) if needed <= capacity => buffers,
                    old => {
                        let capacity = needed.next_power_of_two().max(64);
                        let empty = || Tensor::zeros([capacity, self.kv_heads, self.head_dim], &*device);
                        match old {
                            None => [empty(), empty()],
                            Some(old) => old.map(|old| {
                                let used = old.narrow(0, 0, self.len);
                                if self.len == 0 { empty() } else { empty().slice_assign([0..self.len], used) }
                            }),
                        }
                    }
                };
                for (buffer, rows) in new.iter_mut().zip([k, v]) {
                    let rows = rows.inner();
                    let owned = std::mem::replace(buffer, Tensor::zeros([1, 1, 1], &*device));
                    let rows = rows.cast(owned.dtype());
                    *buffer = owned.slice_assign([self.len..needed], rows);
                }
                *buffers = Some(new);
            }
        }
        self.len += rows;
    }

    /// Forgets all rows from `len` on (nothing when there are no more than that).
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        if let Store::Host { keys, values } = &mut self.store {
            keys.truncate(self.len);
            values.truncate(self.len * self.kv_heads * self.head_dim);
        }
    }

    /// After the first `start` rows only `rows` of the following ones stay, counted from `start` and rising.
    ///
    /// # Panics
    /// When they don't rise, or when there are no such rows.
    pub fn keep(&mut self, start: usize, rows: &[usize]) {
        assert!(
            start <= self.len
                && rows.windows(2).all(|pair| pair[0] < pair[1])
                && rows.last().is_none_or(|&last| last < self.len - start),
            "KvCache: rows {rows:?} after the first {start} of {} are not there, or don't rise",
            self.len
        );
        if rows.last().is_some_and(|&last| last + 1 > rows.len()) {
            match &mut self.store {
                Store::Host { keys, values } => {
                    keys.keep(start, rows);
                    let size = self.kv_heads * self.head_dim;
                    for (to, &from) in rows.iter().enumerate() {
                        let from = (start + from) * size;
                        values.copy_within(from..from + size, (start + to) * size);
                    }
                }
                Store::Device { device, buffers } => {
                    let index: Vec<i32> = rows.iter().map(|&row| (start + row) as i32).collect();
                    for buffer in buffers.iter_mut().flatten() {
                        let owned = std::mem::replace(buffer, Tensor::zeros([1, 1, 1], &*device));
                        let index = Tensor::<1, Int>::from_ints(index.as_slice(), &owned.device());
                        let kept = owned.clone().select(0, index);
                        *buffer = owned.slice_assign([start..start + rows.len()], kept);
                    }
                }
            }
        }
        self.truncate(start + rows.len());
    }

    /// Memory held, grown room included.
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::Host { keys, values } => keys.bytes() + values.capacity() * size_of::<f32>(),
            Store::Device { buffers, .. } => buffers.iter().flatten().map(|t| t.shape().num_elements() * 4).sum(),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The rows held as tensors `[len, kv_heads, head_dim]`, where the cache is on a device and not empty.
    pub(crate) fn tensors(&self) -> Option<(Tensor<3>, Tensor<3>)> {
        match &self.store {
            Store::Device { buffers: Some([k, v]), .. } if self.len > 0 => {
                Some((k.clone().narrow(0, 0, self.len), v.clone().narrow(0, 0, self.len)))
            }
            _ => None,
        }
    }
}
