//! What a target is: sizes, kinds of layers, everything its forward needs to know besides the weights.

use draftsman_contract::RopeSpec;

use crate::error::Problems;

/// Most decoder layers a model may claim: a configuration alone must not make us allocate.
const MAX_LAYERS: usize = 4096;
/// Most experts of all layers together, for the same reason.
const MAX_EXPERTS: usize = 1 << 18;

/// Most values of one matrix, for the same reason.
const MAX_MATRIX: usize = 1 << 38;

/// What a target is, read from its own configuration; the fields that a drafter is checked against.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetSpec {
    /// Architecture family, e.g. `llama`.
    pub architecture: String,
    /// Decoder layers; taps are `0..num_layers`.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding (may exceed the tokenizer's ids).
    pub vocab_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Dimensions of a head (not always `hidden_size / num_heads`).
    pub head_dim: usize,
    /// Leading dimensions of a head that are rotated; the others pass. Usually `head_dim`.
    pub rotary_dim: usize,
    /// What an attention layer has beyond its four matrices.
    pub attention: AttentionParts,
    /// Width of the dense MLP. Where the configuration names none because every layer is sparse, the width that one
    /// token uses: its experts' and the shared expert's.
    pub intermediate_size: usize,
    /// One entry a decoder layer.
    pub layers: Vec<LayerSpec>,
    /// Sizes of the gated delta layers, where there are any.
    pub delta: Option<DeltaSpec>,
    /// Experts of the sparse layers, where there are any.
    pub experts: Option<ExpertSpec>,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// Rotary embedding.
    pub rope: RopeSpec,
    /// Longest sequence the model was made for.
    pub max_positions: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// Ids that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Id that starts a text, where there is one.
    pub bos_token_id: Option<u32>,
    /// Parts of the model that are not run, a sentence each (a vision tower, say).
    pub notes: Vec<String>,
    /// Keys of the configuration that were not read (listed by `inspect`; keys known to change the mathematics are
    /// errors instead).
    pub unread_keys: Vec<String>,
}

/// One decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSpec {
    /// How rows of a sequence see each other.
    pub mixer: MixerKind,
    /// The MLP is a choice of experts.
    pub sparse: bool,
}

impl LayerSpec {
    /// Full attention and a dense MLP.
    pub const PLAIN: Self = Self { mixer: MixerKind::Full, sparse: false };
}

/// How rows of a sequence see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MixerKind {
    /// Causal attention over everything before.
    Full,
    /// Causal attention over the last `window` tokens, the row's own included.
    Sliding {
        /// Keys a row sees at most.
        window: usize,
    },
    /// Gated delta rule: a state of fixed size in place of keys and values.
    GatedDelta,
}

/// What an attention layer has beyond q, k, v and o.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttentionParts {
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// A bias on o.
    pub o_bias: bool,
    /// RMS norms of every query and key head, before the rotation.
    pub qk_norm: bool,
    /// A sigmoid gate on the output of every head, made from the layer's input.
    pub output_gate: bool,
    /// A learned logit per head that takes part in the softmax and has no value.
    pub sinks: bool,
}

/// Sizes of a gated delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaSpec {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads; value head h reads key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Dimensions of a query or key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution over q, k and v.
    pub conv_width: usize,
}

impl DeltaSpec {
    /// Width of all query heads, and of all key heads.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all value heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }
}

/// The experts of a sparse layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSpec {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token uses.
    pub per_token: usize,
    /// Width of an expert.
    pub intermediate_size: usize,
    /// Width of the expert that every token uses, where there is one.
    pub shared_intermediate_size: Option<usize>,
    /// How a token's experts are chosen and weighted.
    pub routing: Routing,
    /// What an expert computes between its matrices.
    pub activation: ExpertActivation,
    /// Router and experts have biases.
    pub biased: bool,
}

/// How a token's experts are chosen and weighted. Of equal scores the first expert wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Softmax over all experts, then the largest.
    SoftmaxTopK {
        /// The chosen weights are divided by their sum.
        renormalise: bool,
    },
    /// The largest logits, then softmax over them.
    TopKSoftmax,
}

/// What an expert computes between its matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// silu(gate) · up
    Swiglu,
    /// gate · sigmoid(alpha · gate) · (up + 1), with gate at most `limit` and up within ±`limit`
    ClampedSwiglu {
        /// Gain of the sigmoid.
        alpha: f32,
        /// Bound of gate and up.
        limit: f32,
    },
}

impl TargetSpec {
    /// How many layers mix by the gated delta rule.
    pub fn delta_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.mixer == MixerKind::GatedDelta).count()
    }

    /// What must hold whatever file the numbers came from.
    pub(super) fn check(&self, problems: &mut Problems) {
        let Self { num_heads, num_kv_heads, head_dim, rotary_dim, rms_norm_eps, .. } = *self;
        // Products of these are computed later; a hostile file must not make them overflow.
        let mut widest = vec![
            self.num_layers,
            self.hidden_size,
            self.vocab_size,
            num_heads,
            num_kv_heads,
            head_dim,
            self.intermediate_size,
            self.max_positions,
        ];
        if let Some(delta) = self.delta {
            widest.extend([delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.conv_width]);
        }
        if let Some(experts) = self.experts {
            widest.extend([experts.count, experts.per_token, experts.intermediate_size]);
            widest.extend(experts.shared_intermediate_size);
        }
        if widest.iter().any(|&n| n == 0 || n > 1 << 31) {
            problems.push("a dimension is 0 or larger than 2^31");
            return;
        }
        let query = num_heads.saturating_mul(head_dim);
        let widest = self.vocab_size.max(self.intermediate_size).max(query);
        if self.hidden_size.saturating_mul(widest) > MAX_MATRIX {
            problems.push(format!("a matrix of {} x {widest} values is not believed", self.hidden_size));
            return;
        }
        if !num_heads.is_multiple_of(num_kv_heads) {
            problems.push(format!("{num_kv_heads} key/value heads do not divide {num_heads} query heads"));
        }
        if !head_dim.is_multiple_of(2) {
            problems.push(format!("head_dim {head_dim} is odd, rotary pairs need an even one"));
        } else if !rotary_dim.is_multiple_of(2) || rotary_dim == 0 || rotary_dim > head_dim {
            problems.push(format!("{rotary_dim} rotated dimensions: an even number of 2 to {head_dim} is needed"));
        }
        // 1 stands for a key that is missing, which is reported already.
        if !(rms_norm_eps > 0.0 && rms_norm_eps <= 1.0) {
            problems.push(format!("rms_norm_eps {rms_norm_eps} is not between 0 and 1"));
        }
        if let Some(DeltaSpec { key_heads, value_heads, .. }) = self.delta
            && !value_heads.is_multiple_of(key_heads)
        {
            problems.push(format!("{key_heads} linear key heads do not divide {value_heads} linear value heads"));
        }
        if let Some(ExpertSpec { count, per_token, .. }) = self.experts {
            if per_token > count {
                problems.push(format!("{per_token} experts a token are more than the {count} there are"));
            }
            if count.saturating_mul(self.num_layers) > MAX_EXPERTS {
                problems.push(format!("{count} experts in {} layers are not believed", self.num_layers));
            }
        }
        for problem in self.rope.problems() {
            problems.push(problem);
        }
    }

    /// `layers` copies of one kind of layer; a number that no model has is a problem and gives none.
    pub(super) fn uniform(layers: usize, layer: LayerSpec, problems: &mut Problems) -> Vec<LayerSpec> {
        if layers > MAX_LAYERS {
            problems.push(format!("{layers} decoder layers, at most {MAX_LAYERS} are believed"));
            return Vec::new();
        }
        vec![layer; layers]
    }
}
