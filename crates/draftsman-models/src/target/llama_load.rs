//! Loading a llama: names of both file formats, checks before reading, one tensor at a time.

use burn::tensor::{Device, Tensor};
use draftsman_kernels::{RopeTable, Weight, WeightDtype};

use super::TargetSpec;
use super::gguf_config::ROPE_FREQS;
use super::llama::{Layer, Llama};
use crate::error::ModelError;
use crate::weights::{GgufFile, SafetensorsSource, TensorExpectation, WeightSource, check_memory, check_tensors};

/// How a file format names and lays out the tensors of a llama.
struct Format {
    embedding: &'static str,
    final_norm: &'static str,
    head: &'static str,
    layer_prefix: &'static str,
    /// In the order of [`Part`].
    parts: [&'static str; 9],
    /// Rows of q and k are stored so that rotary pairs are neighbours (2i, 2i+1) instead of halves (i, i + d/2).
    interleaved_pairs: bool,
    ignored: fn(&str) -> bool,
}

#[derive(Clone, Copy)]
enum Part {
    InputNorm,
    Q,
    K,
    V,
    O,
    PostAttentionNorm,
    Gate,
    Up,
    Down,
}

const PARTS: [Part; 9] =
    [Part::InputNorm, Part::Q, Part::K, Part::V, Part::O, Part::PostAttentionNorm, Part::Gate, Part::Up, Part::Down];

const HUGGING_FACE: Format = Format {
    embedding: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
    layer_prefix: "model.layers.",
    parts: [
        "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ],
    interleaved_pairs: false,
    // Old exports carry the rotary frequencies, which follow from the config; and tied ones a copy of the embedding.
    ignored: |name| name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight",
};

const GGUF: Format = Format {
    embedding: "token_embd.weight",
    final_norm: "output_norm.weight",
    head: "output.weight",
    layer_prefix: "blk.",
    parts: ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"],
    interleaved_pairs: true,
    ignored: |name| name == ROPE_FREQS,
};

impl Format {
    fn name(&self, layer: usize, part: Part) -> String {
        format!("{}{layer}.{}.weight", self.layer_prefix, self.parts[part as usize])
    }
}

impl Part {
    fn shape(self, spec: &TargetSpec) -> Vec<usize> {
        let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
        let q = spec.num_heads * spec.head_dim;
        let kv = spec.num_kv_heads * spec.head_dim;
        match self {
            Self::InputNorm | Self::PostAttentionNorm => vec![hidden],
            Self::Q => vec![q, hidden],
            Self::K | Self::V => vec![kv, hidden],
            Self::O => vec![hidden, q],
            Self::Gate | Self::Up => vec![inner, hidden],
            Self::Down => vec![hidden, inner],
        }
    }
}

fn expectations(format: &Format, spec: &TargetSpec) -> Vec<TensorExpectation> {
    let table = vec![spec.vocab_size, spec.hidden_size];
    let mut expected = vec![
        TensorExpectation::new(format.embedding, table.clone()),
        TensorExpectation::new(format.final_norm, [spec.hidden_size]),
    ];
    if !spec.tied {
        expected.push(TensorExpectation::new(format.head, table));
    }
    for layer in 0..spec.num_layers {
        for part in PARTS {
            expected.push(TensorExpectation::new(format.name(layer, part), part.shape(spec)));
        }
    }
    expected
}

impl Llama {
    /// Loads from safetensors files with Hugging Face names.
    pub fn from_safetensors(
        source: &SafetensorsSource,
        spec: TargetSpec,
        device: &Device,
        dtype: WeightDtype,
    ) -> Result<Self, ModelError> {
        load(source, &HUGGING_FACE, spec, device, dtype)
    }

    /// Loads from a GGUF file; the q/k row permutation of its converter is undone.
    pub fn from_gguf(
        file: &GgufFile,
        spec: TargetSpec,
        device: &Device,
        dtype: WeightDtype,
    ) -> Result<Self, ModelError> {
        load(file, &GGUF, spec, device, dtype)
    }
}

fn load(
    source: &dyn WeightSource,
    format: &Format,
    spec: TargetSpec,
    device: &Device,
    dtype: WeightDtype,
) -> Result<Llama, ModelError> {
    // More layers than a file has tensors: refuse before listing the names that would be needed.
    if spec.num_layers > source.names().len() {
        return Err(ModelError::malformed(
            source.path(),
            format!(
                "the configuration has {} layers, the weights have {} tensors in all",
                spec.num_layers,
                source.names().len()
            ),
            "configuration and weights belong to different models",
        ));
    }
    let expected = expectations(format, &spec);
    check_tensors(source, &expected, &format.ignored)?;
    let sizes = expected.iter().map(|e| e.shape.iter().product::<usize>());
    check_memory(
        source.path(),
        sizes.clone().sum::<usize>() as u64 * dtype.bytes() as u64,
        sizes.max().unwrap_or(0) as u64,
    )?;

    let matrix = |name: &str, shape: [usize; 2]| -> Result<Weight, ModelError> {
        Ok(Weight::from_f32(source.load_f32(name)?, shape, dtype, device)?)
    };
    let norm = |name: &str| -> Result<Tensor<1>, ModelError> {
        Ok(Tensor::from_floats(source.load_f32(name)?.as_slice(), device))
    };
    let table = [spec.vocab_size, spec.hidden_size];
    let embedding = matrix(format.embedding, table)?;
    let head = if spec.tied { embedding.clone() } else { matrix(format.head, table)? };
    let layers = (0..spec.num_layers)
        .map(|layer| {
            let weight = |part: Part| -> Result<Weight, ModelError> {
                let name = format.name(layer, part);
                let shape = part.shape(&spec);
                let (rows, columns) = (shape[0], shape[1]);
                let mut values = source.load_f32(&name)?;
                if format.interleaved_pairs && matches!(part, Part::Q | Part::K) {
                    values = halves_from_pairs(&values, rows / spec.head_dim, spec.head_dim, columns);
                }
                Ok(Weight::from_f32(values, [rows, columns], dtype, device)?)
            };
            Ok(Layer {
                input_norm: norm(&format.name(layer, Part::InputNorm))?,
                q: weight(Part::Q)?,
                k: weight(Part::K)?,
                v: weight(Part::V)?,
                o: weight(Part::O)?,
                post_attention_norm: norm(&format.name(layer, Part::PostAttentionNorm))?,
                gate: weight(Part::Gate)?,
                up: weight(Part::Up)?,
                down: weight(Part::Down)?,
            })
        })
        .collect::<Result<Vec<_>, ModelError>>()?;
    Ok(Llama {
        final_norm: norm(format.final_norm)?,
        rope: RopeTable::new(&spec.rope, spec.head_dim),
        device: device.clone(),
        embedding,
        head,
        layers,
        spec,
    })
}

/// Undoes the row permutation of llama.cpp's converter: stored row 2i + s of a head is row i + s·d/2 of the model.
fn halves_from_pairs(values: &[f32], heads: usize, head_dim: usize, columns: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for row in 0..head_dim {
            let stored = head * head_dim + 2 * (row % half) + row / half;
            out.extend_from_slice(&values[stored * columns..(stored + 1) * columns]);
        }
    }
    out
}
