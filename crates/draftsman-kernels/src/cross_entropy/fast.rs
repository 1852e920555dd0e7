//! The CPU path.
//!
//! Without a gradient: logits of some rows at a time (parallel over the vocabulary), then each row's softmax.
//! With one: rows are dealt to tasks, and each task walks the vocabulary once in blocks: products, running softmax,
//! and the block's share of the hidden gradient while the head rows are in cache. Both walk a row through the same
//! blocks, so they agree bit for bit.

use std::sync::Mutex;

use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use super::row::{BLOCK, Row, Transform};
use super::{CrossEntropy, HeadOptions};
use crate::Weight;
use crate::flex::values;
use crate::simd::aligned::Aligned;
use crate::simd::dot_gemm::{Sizes, dot_block, dot_gemm, pack_rows, packed_len};
use crate::simd::outer_gemm::{outer_block, pack_tile};
use crate::simd::{Element, Kernel, Simd, level, math, run};
use crate::weight::{HostWeight, host, with_slice};

/// Rows whose logits are held at a time without a gradient.
const LOGIT_ROWS: usize = 96;
/// The most rows of a task with a gradient: what it touches stays in the second-level cache.
const TASK_ROWS: usize = 128;

/// One call, as it crosses the door to the backend.
pub(super) struct Job {
    head: HostWeight,
    labels: Vec<Option<u32>>,
    weights: Vec<f32>,
    opts: HeadOptions,
    rows: Mutex<Vec<Row>>,
}

pub(super) fn denominator(labels: &[Option<u32>], weights: &[f32]) -> f64 {
    labels.iter().zip(weights).filter(|(label, _)| label.is_some()).map(|(_, weight)| f64::from(*weight)).sum()
}

pub(super) fn linear_cross_entropy(
    h: Tensor<2>,
    head: &Weight,
    labels: &[Option<u32>],
    weights: &[f32],
    opts: &HeadOptions,
) -> CrossEntropy {
    let job = std::sync::Arc::new(Job {
        head: head.to_host(),
        labels: labels.to_vec(),
        weights: weights.to_vec(),
        opts: *opts,
        rows: Mutex::default(),
    });
    let numerator = op::head_loss(h, job.clone());
    let rows = std::mem::take(&mut *job.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    CrossEntropy {
        numerator,
        denominator: denominator(labels, weights),
        top: rows.iter().map(Row::top).collect(),
        label_log_prob: rows.iter().map(Row::label_log_prob).collect(),
    }
}

pub(super) fn head_top_k(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Vec<Vec<(u32, f32)>> {
    let rows = h.dims()[0];
    let h = host::primitive(h);
    let rows = with_slice!(head.to_host().slice(), |w| softmax_rows(values(&h), w, &vec![None; rows], opts));
    rows.iter().map(Row::top).collect()
}

pub(super) fn head_logits(h: Tensor<2>, head: &Weight, opts: &HeadOptions) -> Tensor<2> {
    let device = h.device();
    let ([rows, k], [vocab, _]) = (h.dims(), head.shape());
    let h = host::primitive(h);
    let mut logits = vec![0f32; rows * vocab];
    with_slice!(head.to_host().slice(), |w| dot_gemm(
        level(),
        values(&h),
        w,
        &mut logits,
        Sizes { rows, outs: vocab, k }
    ));
    let transform = Transform::new(opts);
    logits.par_chunks_mut(BLOCK * 64).for_each(|x| run(Apply { transform, x }));
    // Moves the values; the device brings autodiff along.
    Tensor::from_data(TensorData::new(logits, [rows, vocab]), &device)
}

struct Apply<'a> {
    transform: Transform,
    x: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.transform.apply(s, self.x);
    }
}

impl Job {
    /// Σ weight·cross-entropy, serially in row order; keeps the rows.
    fn finish(&self, rows: Vec<Row>) -> f32 {
        let loss = rows.iter().zip(&self.weights).zip(&self.labels).filter(|(_, label)| label.is_some());
        let loss: f64 = loss.map(|((row, weight), _)| -f64::from(row.label_log_prob()) * f64::from(*weight)).sum();
        *self.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = rows;
        loss as f32
    }

    fn loss(&self, h: &[f32]) -> f32 {
        self.finish(with_slice!(self.head.slice(), |w| softmax_rows(h, w, &self.labels, &self.opts)))
    }

    fn loss_and_gradient(&self, h: &[f32]) -> (f32, Vec<f32>) {
        let (rows, gradient) = with_slice!(self.head.slice(), |w| gradient_rows(h, w, self));
        (self.finish(rows), gradient)
    }
}

/// The softmax of every row of `h` `[rows, hidden]` through `w` `[vocab, hidden]`.
fn softmax_rows<E: Element>(h: &[f32], w: &[E], labels: &[Option<u32>], opts: &HeadOptions) -> Vec<Row> {
    let mut rows: Vec<Row> = labels.iter().map(|label| Row::new(*label, opts.top_k)).collect();
    if rows.is_empty() || h.is_empty() {
        return rows;
    }
    let k = h.len() / rows.len();
    let vocab = w.len() / k;
    let transform = Transform::new(opts);
    let mut logits = vec![0f32; LOGIT_ROWS.min(rows.len()) * vocab];
    for (rows, h) in rows.chunks_mut(LOGIT_ROWS).zip(h.chunks(LOGIT_ROWS * k)) {
        let logits = &mut logits[..rows.len() * vocab];
        dot_gemm(level(), h, w, logits, Sizes { rows: rows.len(), outs: vocab, k });
        rows.par_iter_mut()
            .zip(logits.par_chunks_mut(vocab))
            .for_each(|(row, logits)| run(Softmax { row, logits, transform }));
    }
    rows
}

struct Softmax<'a> {
    row: &'a mut Row,
    logits: &'a mut [f32],
    transform: Transform,
}

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, block) in self.logits.chunks_mut(BLOCK).enumerate() {
            self.row.block(s, self.transform, i * BLOCK, block);
        }
    }
}

/// As [`softmax_rows`] with the gradient of Σ weight·cross-entropy in `h` `[rows, hidden]`.
fn gradient_rows<E: Element>(h: &[f32], w: &[E], job: &Job) -> (Vec<Row>, Vec<f32>) {
    let mut gradient = vec![0f32; h.len()];
    let n = job.labels.len();
    let mut rows: Vec<Row> = job.labels.iter().map(|label| Row::new(*label, job.opts.top_k)).collect();
    if n == 0 || h.is_empty() {
        return (rows, gradient);
    }
    let k = h.len() / n;
    let (active, passive): (Vec<usize>, Vec<usize>) =
        (0..n).partition(|row| job.labels[*row].is_some() && job.weights[*row] != 0.0);
    // Rows nobody asks anything about.
    let passive: Vec<usize> =
        passive.into_iter().filter(|row| job.opts.top_k > 0 || job.labels[*row].is_some()).collect();
    let threads = rayon::current_num_threads();
    let tasks = threads * (active.len() + passive.len()).div_ceil(threads * TASK_ROWS).max(1);
    let share = |all: &[usize], task: usize| all[all.len() * task / tasks..all.len() * (task + 1) / tasks].to_vec();
    let done: Vec<Done> = (0..tasks)
        .into_par_iter()
        .map(|task| {
            let mut members = share(&active, task);
            let with_gradient = members.len();
            members.extend(share(&passive, task));
            run(Walk { h, w, job, k, members, with_gradient })
        })
        .collect();
    for Done { members, walked, gradient: part } in done {
        for (row, part) in members.iter().zip(part.chunks_exact(k)) {
            gradient[row * k..(row + 1) * k].copy_from_slice(part);
        }
        for (row, walked) in members.iter().zip(walked) {
            rows[*row] = walked;
        }
    }
    (rows, gradient)
}

/// Some rows' walk through the vocabulary; the first `with_gradient` of them want a gradient.
struct Walk<'a, E> {
    h: &'a [f32],
    w: &'a [E],
    job: &'a Job,
    k: usize,
    members: Vec<usize>,
    with_gradient: usize,
}

struct Done {
    members: Vec<usize>,
    walked: Vec<Row>,
    /// `[with_gradient, hidden]`
    gradient: Vec<f32>,
}

impl<E: Element> Kernel for Walk<'_, E> {
    type Output = Done;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Done {
        let Self { h, w, job, k, members, with_gradient } = self;
        let (n, vocab, tile) = (members.len(), w.len() / k, S::OUTER_ROWS);
        let transform = Transform::new(&job.opts);
        let mut walked: Vec<Row> = members.iter().map(|row| Row::new(job.labels[*row], job.opts.top_k)).collect();
        let mut gradient = vec![0f32; with_gradient * k];
        if n == 0 {
            return Done { members, walked, gradient };
        }
        let mut packed = Aligned::zeros(packed_len(n, k));
        pack_rows(
            s,
            n,
            k,
            #[inline(always)]
            |i| &h[members[i] * k..(members[i] + 1) * k],
            &mut packed,
        );
        let mut logits = Aligned::zeros(n * BLOCK);
        let mut shares = Aligned::zeros(with_gradient.next_multiple_of(tile) * BLOCK);
        let mut first = 0;
        while first < vocab {
            let outs = BLOCK.min(vocab - first);
            let w = &w[first * k..(first + outs) * k];
            dot_block(s, &packed, w, &mut logits, BLOCK, Sizes { rows: n, outs, k });
            for (i, row) in walked.iter_mut().enumerate() {
                let rescale = row.block(s, transform, first, &mut logits[i * BLOCK..i * BLOCK + outs]);
                if i < with_gradient && rescale != 1.0 {
                    math::scale(s, rescale, &mut gradient[i * k..(i + 1) * k]);
                }
            }
            let mut i = 0;
            while i < with_gradient {
                let rows = tile.min(with_gradient - i);
                pack_tile(s, &logits[i * BLOCK..], BLOCK, rows, outs, &mut shares[i * outs..]);
                i += tile;
            }
            outer_block(s, &shares, w, &mut gradient, with_gradient, outs);
            first += outs;
        }
        let mut label_row = vec![0f32; k];
        for ((row, member), gradient) in walked.iter().zip(&members).zip(gradient.chunks_exact_mut(k)) {
            let Some(label) = job.labels[*member] else { continue };
            let (all, own) = row.gradient_factors(transform, job.weights[*member]);
            for (to, from) in label_row.iter_mut().zip(&w[label as usize * k..]) {
                *to = from.widen();
            }
            math::scale(s, all, gradient);
            math::axpy(s, own, &label_row, gradient);
        }
        Done { members, walked, gradient }
    }
}

mod op {
    use std::sync::Arc;

    use burn::backend::{
        Autodiff, Backend, Dispatch, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        backend_extension,
        tensor::FloatTensor,
    };
    use burn::tensor::Tensor;
    use burn_flex::FlexTensor;

    use super::Job;
    use crate::flex::{tensor, values};

    #[backend_extension(Autodiff, Flex)]
    trait HeadOps: Backend {
        fn head_loss(h: FloatTensor<Self>, job: Arc<Job>) -> FloatTensor<Self>;
    }

    pub(super) fn head_loss(h: Tensor<2>, job: Arc<Job>) -> Tensor<1> {
        Tensor::from_dispatch(Dispatch::head_loss(h.into_dispatch(), job))
    }

    impl HeadOps for Flex {
        fn head_loss(h: FlexTensor, job: Arc<Job>) -> FlexTensor {
            tensor(vec![job.loss(values(&h.to_contiguous()))], [1])
        }
    }

    #[derive(Debug)]
    struct HeadBackward;

    impl Backward<Flex, 1> for HeadBackward {
        /// The gradient for an incoming gradient of 1.
        type State = FlexTensor;

        fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
            let [node] = ops.parents;
            let factor = grads.consume::<Flex>(&ops.node).to_contiguous();
            let Some(node) = node else { return };
            let factor = values(&factor)[0];
            let gradient = values(&ops.state).iter().map(|g| g * factor).collect();
            grads.register::<Flex>(node.id, tensor(gradient, ops.state.layout().shape().clone()));
        }
    }

    impl<C: CheckpointStrategy> HeadOps for Autodiff<Flex, C> {
        fn head_loss(h: FloatTensor<Self>, job: Arc<Job>) -> FloatTensor<Self> {
            match HeadBackward.prepare::<C>([h.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let h = h.into_primitive().to_contiguous();
                    let (loss, gradient) = job.loss_and_gradient(values(&h));
                    prep.finish(tensor(gradient, h.layout().shape().clone()), tensor(vec![loss], [1]))
                }
                OpsKind::UnTracked(prep) => prep.finish(Flex::head_loss(h.into_primitive(), job)),
            }
        }
    }
}
