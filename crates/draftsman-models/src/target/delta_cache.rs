//! What a gated delta layer remembers: a state of fixed size, and enough to take back the last forward.

use burn::tensor::{Device, Int, Tensor};
use draftsman_contract::TreeShape;
use draftsman_kernels::{DeltaInputs, DeltaRule, causal_conv, conv_tail, gated_delta_rule};

use super::spec::DeltaSpec;

/// Rows of the last forward that can be taken back at least. Only they are kept of a longer one, so a layer keeps at
/// most `256 * (channels + 2 * value_heads)` values (10 MiB in Qwen3.6-27B, and nothing like it after a short forward)
/// besides its two states; a chunked rule keeps up to a chunk more.
pub const ROLLBACK_ROWS: usize = 256;

/// What the rows of a forward bring to the recurrence.
#[derive(Clone)]
pub(super) struct DeltaRows {
    /// `[rows, channels]`: queries, keys and values before the convolution.
    pub(super) qkv: Tensor<2>,
    /// `[rows, value_heads]`
    pub(super) g: Tensor<2>,
    /// `[rows, value_heads]`
    pub(super) beta: Tensor<2>,
}

impl DeltaRows {
    fn len(&self) -> usize {
        self.qkv.dims()[0]
    }

    /// Rows `start..start + len`; a view.
    pub(super) fn narrow(&self, start: usize, len: usize) -> Self {
        let part = |x: &Tensor<2>| x.clone().narrow(0, start, len);
        Self { qkv: part(&self.qkv), g: part(&self.g), beta: part(&self.beta) }
    }

    fn bytes(&self) -> usize {
        [&self.qkv, &self.g, &self.beta].into_iter().map(|x| x.shape().num_elements() * size_of::<f32>()).sum()
    }

    /// These rows, in memory of their own.
    fn select(&self, rows: &[usize]) -> Self {
        let rows = index(rows, &self.qkv.device());
        let part = |x: &Tensor<2>| x.clone().select(0, rows.clone());
        Self { qkv: part(&self.qkv), g: part(&self.g), beta: part(&self.beta) }
    }

    /// All rows in memory of their own: a view would keep those of a whole forward.
    fn copied(&self) -> Self {
        Self { qkv: copy(self.qkv.clone()), g: copy(self.g.clone()), beta: copy(self.beta.clone()) }
    }
}

fn index(rows: &[usize], device: &Device) -> Tensor<1, Int> {
    let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    Tensor::from_ints(rows.as_slice(), device)
}

/// Convolution and recurrence of one layer.
#[derive(Clone)]
pub(super) struct Recurrence {
    pub(super) sizes: DeltaSpec,
    /// `[channels, width]`
    pub(super) conv: Tensor<2>,
    pub(super) rule: DeltaRule,
}

/// Everything that the tokens so far mean to the next one.
#[derive(Clone)]
struct State {
    /// `[value_heads, K, V]`
    memory: Tensor<3>,
    /// `[width - 1, channels]`: the last inputs of the convolution.
    tail: Tensor<2>,
}

impl State {
    fn new(sizes: &DeltaSpec, device: &Device) -> Self {
        Self {
            memory: Tensor::zeros([sizes.value_heads, sizes.key_dim, sizes.value_dim], device),
            tail: Tensor::zeros([sizes.conv_width - 1, sizes.channels()], device),
        }
    }

    fn bytes(&self) -> usize {
        (self.memory.shape().num_elements() + self.tail.shape().num_elements()) * size_of::<f32>()
    }
}

impl Recurrence {
    /// Output `[rows, value_heads, V]`, and the state after the rows.
    fn run(&self, rows: &DeltaRows, before: State) -> (Tensor<3>, State) {
        let DeltaSpec { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let (count, keys) = (rows.len(), self.sizes.key_width());
        let mixed = causal_conv(rows.qkv.clone(), self.conv.clone(), before.tail.clone());
        let heads = |start, heads, dim| mixed.clone().narrow(1, start, heads * dim).reshape([count, heads, dim]);
        let inputs = DeltaInputs {
            q: heads(0, key_heads, key_dim),
            k: heads(keys, key_heads, key_dim),
            v: heads(2 * keys, value_heads, value_dim),
            g: rows.g.clone(),
            beta: rows.beta.clone(),
        };
        let (out, memory) = gated_delta_rule(inputs, before.memory, self.rule);
        (out, State { memory, tail: copy(conv_tail(before.tail, rows.qkv.clone())) })
    }

    /// Rows after which a call may be cut in two without another result.
    fn grain(&self) -> usize {
        match self.rule {
            DeltaRule::Recurrent => 1,
            DeltaRule::Chunked { chunk } => chunk.max(1),
            DeltaRule::FlaRounding => 64,
        }
    }
}

/// The values in memory of their own: a view would keep the rows of a whole forward.
fn copy(x: Tensor<2>) -> Tensor<2> {
    x.mul_scalar(1.0)
}

/// The cache of one gated delta layer.
#[derive(Clone)]
pub(super) struct DeltaCache {
    sizes: DeltaSpec,
    device: Device,
    len: usize,
    now: State,
    kept: Option<Kept>,
    /// Rows of a draft tree after the `len` tokens.
    tree: Option<Kept>,
}

/// The newest rows, and the state before them.
#[derive(Clone)]
struct Kept {
    before: State,
    rows: DeltaRows,
    recurrence: Recurrence,
}

impl DeltaCache {
    /// An empty cache; a device with autodiff is taken without it.
    pub(super) fn new(sizes: DeltaSpec, device: &Device) -> Self {
        let device = device.clone().inner();
        Self { sizes, now: State::new(&sizes, &device), device, len: 0, kept: None, tree: None }
    }

    /// Tokens held.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn sizes(&self) -> DeltaSpec {
        self.sizes
    }

    /// The shortest that [`DeltaCache::truncate`] can make it, besides empty.
    pub(super) fn shortest(&self) -> usize {
        self.len - self.kept.as_ref().map_or(0, |kept| kept.rows.len())
    }

    /// Runs new rows; returns their output `[rows, value_heads, V]`.
    pub(super) fn append(&mut self, recurrence: &Recurrence, rows: &DeltaRows) -> Tensor<3> {
        let count = rows.len();
        let surplus = count.saturating_sub(ROLLBACK_ROWS) / recurrence.grain() * recurrence.grain();
        let mut before = self.now.clone();
        let mut parts = Vec::with_capacity(2);
        if surplus > 0 {
            let (out, after) = recurrence.run(&rows.narrow(0, surplus), before);
            parts.push(out);
            before = after;
        }
        let newest = rows.narrow(surplus, count - surplus);
        let (out, now) = recurrence.run(&newest, before.clone());
        parts.push(out);
        self.now = now;
        self.kept = Some(Kept { before, rows: newest.copied(), recurrence: recurrence.clone() });
        self.len += count;
        if parts.len() == 1 { parts.swap_remove(0) } else { Tensor::cat(parts, 0) }
    }

    /// Runs the rows of a draft tree, each from the state after its parent; returns their output
    /// `[rows, value_heads, V]`. The cache stays where it is until [`DeltaCache::keep`].
    ///
    /// Rows between two forks run in one go. Of the states at forks those are held whose other branches are still to
    /// come: one for each fork above the row that runs, so never more than the tree is deep.
    pub(super) fn append_tree(&mut self, recurrence: &Recurrence, rows: &DeltaRows, shape: &TreeShape) -> Tensor<3> {
        let children = shape.children();
        let mut order = Vec::with_capacity(rows.len());
        let mut parts = Vec::new();
        let mut open = vec![(0, self.now.clone())];
        while let Some((first, before)) = open.pop() {
            let start = order.len();
            let mut last = first;
            order.push(first);
            while let [only] = children[last][..] {
                last = only;
                order.push(last);
            }
            let (out, after) = recurrence.run(&rows.select(&order[start..]), before);
            parts.push(out);
            open.extend(children[last].iter().rev().map(|&child| (child, after.clone())));
        }
        self.tree = Some(Kept { before: self.now.clone(), rows: rows.copied(), recurrence: recurrence.clone() });
        let mut places = vec![0; order.len()];
        for (place, &row) in order.iter().enumerate() {
            places[row] = place;
        }
        let out = Tensor::cat(parts, 0);
        let places = index(&places, &out.device());
        out.select(0, places)
    }

    /// Of the rows of a draft tree those of `path` stay and the others are forgotten: its tokens are read again, so the
    /// state is the one of a forward that never saw the others.
    pub(super) fn keep(&mut self, path: &[usize]) {
        if let Some(tree) = self.tree.take().filter(|_| !path.is_empty()) {
            let rows = tree.rows.select(path);
            self.now = tree.recurrence.run(&rows, tree.before.clone()).1;
            self.kept = Some(Kept { rows, ..tree });
            self.len += path.len();
        }
    }

    /// Back to the first `len` tokens: 0, or at least [`DeltaCache::shortest`]. The state before the kept rows is run
    /// over those that stay, so it is the one of a forward that never saw the others.
    pub(super) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        let stay = len - self.shortest().min(len);
        match self.kept.take() {
            Some(kept) if stay > 0 => {
                let rows = kept.rows.narrow(0, stay);
                self.now = kept.recurrence.run(&rows, kept.before.clone()).1;
                self.kept = Some(Kept { rows, ..kept });
            }
            Some(kept) if len > 0 => self.now = kept.before,
            _ => self.now = State::new(&self.sizes, &self.device),
        }
        self.len = len;
    }

    /// Memory held: the state, and while rows can be taken back also the state before them and their inputs; the inputs
    /// of a draft tree's rows until one path is kept.
    pub(super) fn bytes(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |kept| kept.before.bytes() + kept.rows.bytes());
        let tree = self.tree.as_ref().map_or(0, |tree| tree.rows.bytes());
        self.now.bytes() + kept + tree
    }
}
