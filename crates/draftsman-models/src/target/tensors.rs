//! How an architecture asks for its tensors: by name and stored shape, once. The same code that loads a model lists
//! what it needs, so that everything is checked before anything is read.

use std::cell::RefCell;

use burn::tensor::{Device, Tensor};
use draftsman_kernels::{Weight, WeightDtype};

use crate::error::ModelError;
use crate::weights::{TensorExpectation, WeightSource};

/// How a file spells names and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Hugging Face names below a prefix (`model.`, `model.language_model.`).
    HuggingFace { prefix: &'static str },
    /// llama.cpp's names, with those that the architecture calls otherwise.
    Gguf { renames: &'static [(&'static str, &'static str)] },
}

/// Stems of llama.cpp's names, by those of Hugging Face.
const GGUF_STEMS: &[(&str, &str)] = &[
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

impl Format {
    /// Full name of a tensor that Hugging Face calls `local` inside the model, or inside decoder layer `layer`.
    fn name(self, layer: Option<usize>, local: &str) -> String {
        match (self, layer) {
            // The head stands beside the model.
            (Self::HuggingFace { .. }, None) if local.starts_with("lm_head.") => local.to_string(),
            (Self::HuggingFace { prefix }, None) => format!("{prefix}{local}"),
            (Self::HuggingFace { prefix }, Some(layer)) => format!("{prefix}layers.{layer}.{local}"),
            (Self::Gguf { renames }, layer) => {
                let (stem, end) = match local.rsplit_once('.') {
                    Some((stem, end @ ("weight" | "bias"))) => (stem, Some(end)),
                    _ => (local, None),
                };
                let known = renames.iter().chain(GGUF_STEMS).find(|(from, _)| *from == stem);
                let stem = known.map_or(stem, |(_, to)| to);
                let name = end.map_or_else(|| stem.to_string(), |end| format!("{stem}.{end}"));
                layer.map_or_else(|| name.clone(), |layer| format!("blk.{layer}.{name}"))
            }
        }
    }
}

/// What a model, or a layer of it, needs of its file and of memory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Tensors of floats.
    pub(super) floats: Vec<TensorExpectation>,
    /// Tensors of bytes.
    pub(super) bytes: Vec<TensorExpectation>,
    /// Memory of what is made of them.
    pub(super) resident_bytes: u64,
    /// Elements of the largest tensor.
    pub(super) largest: u64,
}

enum Mode<'a> {
    /// Records names and shapes; what is built holds nothing.
    List {
        listing: &'a RefCell<Listing>,
        source: Option<&'a dyn WeightSource>,
    },
    Load(&'a dyn WeightSource),
}

/// The tensors of one file, seen from the model or from one of its layers.
pub(super) struct Tensors<'a> {
    mode: Mode<'a>,
    format: Format,
    zero_centred_norms: bool,
    layer: Option<usize>,
    dtype: WeightDtype,
    device: &'a Device,
}

impl<'a> Tensors<'a> {
    /// Reads from `source`.
    pub(super) fn load(source: &'a dyn WeightSource, format: Format, dtype: WeightDtype, device: &'a Device) -> Self {
        Self { mode: Mode::Load(source), format, zero_centred_norms: false, layer: None, dtype, device }
    }

    /// Only records; `source`, where there is one, says which of several forms the file holds.
    pub(super) fn list(
        listing: &'a RefCell<Listing>,
        source: Option<&'a dyn WeightSource>,
        format: Format,
        dtype: WeightDtype,
        device: &'a Device,
    ) -> Self {
        Self { mode: Mode::List { listing, source }, format, zero_centred_norms: false, layer: None, dtype, device }
    }

    /// Norm weights of Hugging Face files are w where 1 + w is meant.
    pub(super) fn zero_centred_norms(self, zero_centred_norms: bool) -> Self {
        Self { zero_centred_norms, ..self }
    }

    /// Names from here on are inside decoder layer `layer`.
    pub(super) fn layer(self, layer: usize) -> Self {
        Self { layer: Some(layer), ..self }
    }

    /// The file is llama.cpp's, whose converter changes values too.
    pub(super) fn is_gguf(&self) -> bool {
        matches!(self.format, Format::Gguf { .. })
    }

    pub(super) fn name(&self, local: &str) -> String {
        self.format.name(self.layer, local)
    }

    fn source(&self) -> Option<&'a dyn WeightSource> {
        match self.mode {
            Mode::List { source, .. } => source,
            Mode::Load(source) => Some(source),
        }
    }

    /// Whether the file holds this tensor; without a file, no.
    pub(super) fn has(&self, local: &str) -> bool {
        self.source().is_some_and(|source| source.shape(&self.name(local)).is_some())
    }

    /// Stored values, row-major; `None` while listing.
    pub(super) fn values(&self, local: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, ModelError> {
        let name = self.name(local);
        match self.mode {
            Mode::List { listing, .. } => {
                let mut listing = listing.borrow_mut();
                listing.largest = listing.largest.max(elements(shape));
                listing.floats.push(TensorExpectation::new(name, shape));
                Ok(None)
            }
            Mode::Load(source) => {
                let values = source.load_f32(&name)?;
                source.release(&name);
                Ok(Some(values))
            }
        }
    }

    /// Stored bytes; `None` while listing.
    pub(super) fn bytes(&self, local: &str, shape: &[usize]) -> Result<Option<Vec<u8>>, ModelError> {
        let name = self.name(local);
        match self.mode {
            Mode::List { listing, .. } => {
                listing.borrow_mut().bytes.push(TensorExpectation::new(name, shape));
                Ok(None)
            }
            Mode::Load(source) => {
                let bytes = source.load_u8(&name)?;
                source.release(&name);
                Ok(Some(bytes))
            }
        }
    }

    /// A matrix in the compute dtype, of values that came from [`Tensors::values`].
    pub(super) fn weight(&self, values: Option<Vec<f32>>, shape: [usize; 2]) -> Result<Weight, ModelError> {
        self.count(elements(&shape), self.dtype.bytes());
        Ok(match values {
            Some(values) => Weight::from_f32(values, shape, self.dtype, self.device)?,
            None => Weight::from_f32(Vec::new(), [0, 0], WeightDtype::F32, &Device::flex())?,
        })
    }

    /// A vector in f32, of values that came from [`Tensors::values`].
    pub(super) fn tensor<const D: usize>(&self, values: Option<Vec<f32>>, shape: [usize; D]) -> Tensor<D> {
        self.count(elements(&shape), size_of::<f32>());
        match values {
            Some(values) => Tensor::from_data(burn::tensor::TensorData::new(values, shape), self.device),
            None => Tensor::zeros([0; D], &Device::flex()),
        }
    }

    /// A matrix `[out, in]` as it is stored.
    pub(super) fn matrix(&self, local: &str, shape: [usize; 2]) -> Result<Weight, ModelError> {
        self.weight(self.values(local, &shape)?, shape)
    }

    /// A vector as it is stored.
    pub(super) fn vector(&self, local: &str, len: usize) -> Result<Tensor<1>, ModelError> {
        Ok(self.tensor(self.values(local, &[len])?, [len]))
    }

    /// A vector that only some models have.
    pub(super) fn vector_if(&self, there: bool, local: &str, len: usize) -> Result<Option<Tensor<1>>, ModelError> {
        there.then(|| self.vector(local, len)).transpose()
    }

    /// The weight of an RMS norm, as the factor it is: zero-centred ones get their 1 in f32, where it costs no bits.
    pub(super) fn norm(&self, local: &str, len: usize) -> Result<Tensor<1>, ModelError> {
        let mut values = self.values(local, &[len])?;
        if self.zero_centred_norms && !self.is_gguf() {
            values.iter_mut().flatten().for_each(|w| *w += 1.0);
        }
        Ok(self.tensor(values, [len]))
    }

    fn count(&self, elements: u64, element_bytes: usize) {
        if let Mode::List { listing, .. } = self.mode {
            let resident = &mut listing.borrow_mut().resident_bytes;
            *resident = resident.saturating_add(elements.saturating_mul(element_bytes as u64));
        }
    }
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|&n| n as u64).fold(1, u64::saturating_mul)
}
