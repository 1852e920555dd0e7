//! First weights of a drafter: random, or grown out of the target's last layers.

use std::ops::Range;
use std::path::Path;

use burn::tensor::{Device, Tensor};
use draftsman_contract::CounterRng;
use draftsman_kernels::{Weight, linear, rms_norm};

use super::config::{DrafterConfig, check_pair};
use super::dflash::Dflash;
use crate::error::{ModelError, Problems};
use crate::target::{LayerWeights, LogitRows, Target, TargetInput, Want};
use crate::weights::{TensorExpectation, check_memory};

/// Where the first weights come from.
#[derive(Clone, Copy, Debug)]
pub enum Init<'a> {
    /// Linear weights normal with deviation 0.02, norms 1.
    Random,
    /// The drafter's layers start as the target's last ones, which already turn deep features into next tokens:
    ///
    /// * layer i of L is target layer N − L + i, MLP and norms included; heads and sizes must be the target's;
    /// * a target without q/k norms gets norm weights that restore its own scale: the mean RMS of a query (key) head
    ///   over `sample`, or over isotropic input when `sample` is empty;
    /// * `fc` is the identity on the last tap and zero elsewhere, and `hidden_norm` is the mean of the copied layers'
    ///   input norms, so that context rows look like the input those layers know;
    /// * the final norm is the target's.
    Target {
        /// Texts on which the scale of queries and keys is measured; a few hundred tokens are enough.
        sample: &'a [&'a [u32]],
    },
}

/// A new drafter of configuration `config` for `target`, on `device`. The same `seed` gives the same weights, tensor by
/// tensor: adding a layer changes no other tensor.
pub fn init(
    config: &DrafterConfig,
    target: &dyn Target,
    init: Init<'_>,
    seed: u64,
    device: &Device,
) -> Result<Dflash, ModelError> {
    let mut problems = config.publishable();
    if let Err(found) = check_pair(config, target.spec()) {
        problems.0.extend(found.0);
    }
    if matches!(init, Init::Target { .. }) {
        check_same_layers(config, target, &mut problems);
    }
    problems
        .into_result()
        .map_err(|problems| ModelError::InvalidInput(format!("drafter configuration: {problems}")))?;
    let elements = |tensor: &TensorExpectation| tensor.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64));
    let parameters = config.tensors().iter().map(elements).fold(0, u64::saturating_add);
    check_memory(Path::new("the drafter"), parameters.saturating_mul(4), 0)?;
    match init {
        Init::Random => {
            Dflash::from_tensors(config.clone(), device, &mut |name, shape| Ok(random_values(name, shape, seed)))
        }
        Init::Target { sample } => {
            let layers = copy_layers(config, target, sample)?;
            Dflash::from_tensors(config.clone(), device, &mut |name, _| from_target(config, target, &layers, name))
        }
    }
}

/// Normal(0, 0.02) for matrices, ones for norms.
fn random_values(name: &str, shape: &[usize], seed: u64) -> Vec<f32> {
    const DEVIATION: f32 = 0.02;
    let count = shape.iter().product();
    if shape.len() == 1 {
        return vec![1.0; count];
    }
    // FNV-1a of the name: a stream of its own for every tensor.
    let stream = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut rng = CounterRng::new(seed, &[stream]);
    (0..count).map(|_| rng.normal() * DEVIATION).collect()
}

/// The drafter's layers must have the target's sizes to be copies of them.
fn check_same_layers(config: &DrafterConfig, target: &dyn Target, problems: &mut Problems) {
    let spec = target.spec();
    for (key, ours, theirs) in [
        ("num_attention_heads", config.num_attention_heads, spec.num_heads),
        ("num_key_value_heads", config.num_key_value_heads, spec.num_kv_heads),
        ("head_dim", config.head_dim, spec.head_dim),
        ("intermediate_size", config.intermediate_size, spec.intermediate_size),
    ] {
        if ours != theirs {
            problems.push(format!(
                "init = \"target\" copies layers, but `{key}` is {ours} in the drafter and {theirs} in the target\n    \
                 hint: use the target's sizes, or init = \"random\""
            ));
        }
    }
    if config.num_hidden_layers > spec.num_layers {
        problems.push(format!(
            "init = \"target\" copies {} layers, the target has {}",
            config.num_hidden_layers, spec.num_layers
        ));
    }
}

/// What a drafter layer takes from a target layer besides the matrices.
struct CopiedLayer<'a> {
    weights: LayerWeights<'a>,
    /// `q_norm` and `k_norm` of the drafter, `[head_dim]`: the target's, or one value for the whole head.
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
}

fn copy_layers<'a>(
    config: &DrafterConfig,
    target: &'a dyn Target,
    sample: &[&[u32]],
) -> Result<Vec<CopiedLayer<'a>>, ModelError> {
    let spec = target.spec();
    let copied = spec.num_layers - config.num_hidden_layers..spec.num_layers;
    let mut inputs = layer_inputs(target, copied.clone(), sample)?.into_iter();
    copied
        .map(|id| {
            let weights = target.layer_weights(id).ok_or_else(|| {
                ModelError::InvalidInput(format!(
                    "init = \"target\": layer {id} of the target has no plain attention and MLP to copy\n  hint: use \
                     init = \"random\""
                ))
            })?;
            let (query_scale, key_scale) = match inputs.next() {
                Some(input) => {
                    let input = rms_norm(input, weights.input_norm.clone(), spec.rms_norm_eps);
                    (
                        measured_scale(input.clone(), weights.q, config.head_dim),
                        measured_scale(input, weights.k, config.head_dim),
                    )
                }
                None => (isotropic_scale(&weights, weights.q), isotropic_scale(&weights, weights.k)),
            };
            let norm = |own: &Option<Tensor<1>>, scale: f32| match own {
                Some(norm) => norm.to_data().iter::<f32>().collect(),
                None => vec![scale; config.head_dim],
            };
            let (q_norm, k_norm) = (norm(&weights.q_norm, query_scale), norm(&weights.k_norm, key_scale));
            Ok(CopiedLayer { weights, q_norm, k_norm })
        })
        .collect()
}

/// Rows that enter each of the target's `layers` on the sample texts, `[rows, hidden]` a layer; nothing without texts.
fn layer_inputs(target: &dyn Target, layers: Range<usize>, sample: &[&[u32]]) -> Result<Vec<Tensor<2>>, ModelError> {
    let hidden = target.spec().hidden_size;
    // The input of layer 0 is the embedding, that of any other the output of the one below.
    let want = Want { taps: (layers.start.saturating_sub(1)..layers.end - 1).collect(), logits: LogitRows::None };
    let mut inputs: Vec<Vec<Tensor<2>>> = vec![Vec::new(); layers.len()];
    for &ids in sample.iter().filter(|ids| !ids.is_empty()) {
        let mut cache = target.new_cache();
        let mut batch = [TargetInput { ids, cache: &mut cache }];
        let mut embedded = None;
        let mut keep = |name: &str, value: &Tensor<2>| {
            if name == "embed" {
                embedded = Some(value.clone());
            }
        };
        let output = target.forward(&mut batch, &want, Some(&mut keep))?;
        let taps = output.features.into_iter().flat_map(|features| features.split(hidden, 1));
        let first = if layers.start == 0 { embedded } else { None };
        for (rows, input) in inputs.iter_mut().zip(first.into_iter().chain(taps)) {
            rows.push(input);
        }
    }
    Ok(inputs.into_iter().filter(|rows| !rows.is_empty()).map(|rows| Tensor::cat(rows, 0)).collect())
}

/// Mean over rows and heads of the RMS of a projected head.
fn measured_scale(input: Tensor<2>, weight: &Weight, head_dim: usize) -> f32 {
    let projected: Vec<f32> = linear(input, weight).into_data().iter::<f32>().collect();
    let heads = projected.chunks_exact(head_dim);
    let count = heads.len().max(1) as f64;
    let sum: f64 =
        heads.map(|head| (head.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / head_dim as f64).sqrt()).sum();
    (sum / count) as f32
}

/// RMS of a projected head if the normed rows pointed in every direction alike.
fn isotropic_scale(layer: &LayerWeights<'_>, weight: &Weight) -> f32 {
    let norm: Vec<f32> = layer.input_norm.clone().into_data().iter::<f32>().collect();
    let matrix = weight.to_f32();
    let rows = (matrix.len() / norm.len().max(1)).max(1) as f64;
    let square: f64 = matrix
        .chunks_exact(norm.len().max(1))
        .map(|row| row.iter().zip(&norm).map(|(w, n)| f64::from(w * n).powi(2)).sum::<f64>())
        .sum();
    (square / rows).sqrt() as f32
}

fn from_target(
    config: &DrafterConfig,
    target: &dyn Target,
    layers: &[CopiedLayer<'_>],
    name: &str,
) -> Result<Vec<f32>, ModelError> {
    let vector = |t: &Tensor<1>| -> Vec<f32> { t.clone().into_data().iter::<f32>().collect() };
    let hidden = config.hidden_size;
    match name {
        "fc.weight" => {
            let width = config.contract.target_layer_ids.len() * hidden;
            let mut values = vec![0.0; hidden * width];
            for row in 0..hidden {
                values[row * width + (width - hidden) + row] = 1.0;
            }
            return Ok(values);
        }
        "hidden_norm.weight" => {
            let mut mean = vec![0.0; hidden];
            for layer in layers {
                for (sum, value) in mean.iter_mut().zip(vector(&layer.weights.input_norm)) {
                    *sum += value / layers.len() as f32;
                }
            }
            return Ok(mean);
        }
        "norm.weight" => return Ok(vector(&target.final_norm())),
        _ => {}
    }
    let layer_and_tensor = name
        .strip_prefix("layers.")
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(i, tensor)| Some((layers.get(i.parse::<usize>().ok()?)?, tensor)));
    let Some((layer, tensor)) = layer_and_tensor else {
        return Err(ModelError::InvalidInput(format!("init = \"target\": no rule for tensor `{name}`")));
    };
    let weights = &layer.weights;
    Ok(match tensor {
        "input_layernorm.weight" => vector(&weights.input_norm),
        "post_attention_layernorm.weight" => vector(&weights.post_attention_norm),
        "self_attn.q_norm.weight" => layer.q_norm.clone(),
        "self_attn.k_norm.weight" => layer.k_norm.clone(),
        "self_attn.q_proj.weight" => weights.q.to_f32(),
        "self_attn.k_proj.weight" => weights.k.to_f32(),
        "self_attn.v_proj.weight" => weights.v.to_f32(),
        "self_attn.o_proj.weight" => weights.o.to_f32(),
        "mlp.gate_proj.weight" => weights.gate.to_f32(),
        "mlp.up_proj.weight" => weights.up.to_f32(),
        "mlp.down_proj.weight" => weights.down.to_f32(),
        _ => return Err(ModelError::InvalidInput(format!("init = \"target\": no rule for tensor `{name}`"))),
    })
}
