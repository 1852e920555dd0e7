//! What a target is, what it needs to run, and what a drafter for it needs: from its configuration alone.

use std::path::Path;

use draftsman_contract::{Contract, LayerAttention, RopeSpec};
use draftsman_models::{
    DrafterConfig, MixerKind, ROLLBACK_ROWS, TargetSpec, TensorExpectation, check_target_files, read_target_spec,
    target_tensors,
};
use draftsman_train::default_target_layer_ids;
use serde_json::json;

use crate::Outcome;
use crate::printer::Printer;

/// Layers and taps of the drafter whose needs are shown: the defaults of a recipe.
const DRAFTER_LAYERS: usize = 5;
const TAPS: usize = 5;
const BLOCK_SIZE: usize = 16;
/// Weight, gradient, two moments and the master copy of a trained value, in f32.
const TRAINED_BYTES: u64 = 5 * 4;

pub(super) fn show(path: &Path, list_tensors: bool, printer: &Printer) -> anyhow::Result<Outcome> {
    let spec = read_target_spec(path)?;
    let tensors = target_tensors(&spec)?;
    let size = Size::of(&spec, &tensors);
    let kinds = layer_kinds(&spec);
    let drafter = drafter_parameters(&spec);
    let stored = check_target_files(path)?;

    printer.line(format!("target `{}`", path.display()));
    let row = |name: &str, text: String| printer.line(format!("  {name:<22}{text}"));
    row("architecture", format!("{}, {} layers", spec.architecture, spec.num_layers));
    for (kind, layers) in &kinds {
        row("", format!("{} {kind}: {}", layers.len(), ranges(layers)));
    }
    row("hidden, MLP", format!("{}, {}", spec.hidden_size, spec.intermediate_size));
    let rotated =
        if spec.rotary_dim == spec.head_dim { String::new() } else { format!(", {} rotated", spec.rotary_dim) };
    row(
        "heads",
        format!("{} query, {} key/value, {} dimensions{rotated}", spec.num_heads, spec.num_kv_heads, spec.head_dim),
    );
    if let Some(delta) = &spec.delta {
        row(
            "gated delta",
            format!(
                "{} key heads of {}, {} value heads of {}, convolution over {} tokens",
                delta.key_heads, delta.key_dim, delta.value_heads, delta.value_dim, delta.conv_width
            ),
        );
    }
    if let Some(experts) = &spec.experts {
        let shared = experts.shared_intermediate_size.map_or(String::new(), |n| format!(", and a shared one of {n}"));
        row(
            "experts",
            format!("{} of {} a token, {} wide{shared}", experts.per_token, experts.count, experts.intermediate_size),
        );
    }
    row("vocabulary", format!("{} rows, head {}", spec.vocab_size, if spec.tied { "tied" } else { "own" }));
    row("positions", spec.max_positions.to_string());
    row("rope", rope(&spec.rope));
    row("parameters", format!("{} ({} a layer at most)", count(size.parameters), count(size.largest_layer)));
    if let Some(stored) = &stored {
        let types: Vec<String> = stored.iter().map(|(kind, tensors)| format!("{tensors} {kind}")).collect();
        row("stored as", format!("{} tensors", types.join(", ")));
    }
    for (dtype, bytes) in [("f32", 4), ("bf16", 2)] {
        row(
            &format!("memory in {dtype}"),
            format!(
                "{} of weights; {} with --stream",
                memory(size.parameters * bytes),
                memory((size.ends + size.largest_layer) * bytes)
            ),
        );
    }
    let states = match size.sequence_bytes {
        0 => String::new(),
        bytes => format!(", and {} of states", memory(bytes)),
    };
    row("memory of a sequence", format!("{} a token{states}", memory(size.token_bytes)));
    if let Some(parameters) = drafter {
        row(
            "drafter for it",
            format!(
                "{DRAFTER_LAYERS} layers: {}, {} to train; features of {TAPS} taps: {} a token",
                count(parameters),
                memory(parameters * TRAINED_BYTES),
                memory(feature_bytes(&spec))
            ),
        );
    }
    row("stop ids", format!("{:?}", spec.eos_token_ids));
    for note in &spec.notes {
        row("note", note.clone());
    }
    if !spec.unread_keys.is_empty() {
        row("keys not read", spec.unread_keys.join(", "));
    }
    if list_tensors {
        printer.line("tensors");
        for TensorExpectation { name, shape } in &tensors {
            printer.line(format!("  {name} {shape:?}"));
        }
    }
    let layers: Vec<_> = kinds.iter().map(|(kind, layers)| json!({ "kind": kind, "layers": layers })).collect();
    let tensors: Vec<_> = tensors.iter().map(|t| json!({ "name": t.name, "shape": t.shape })).collect();
    printer.document(&json!({
        "kind": "target",
        "architecture": spec.architecture,
        "num_layers": spec.num_layers,
        "layer_kinds": layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rotary_dim": spec.rotary_dim,
        "vocab_size": spec.vocab_size,
        "tied": spec.tied,
        "max_positions": spec.max_positions,
        "rope": spec.rope,
        "parameters": size.parameters,
        "stored_tensors": stored,
        "weights_f32_bytes": size.parameters * 4,
        "weights_bf16_bytes": size.parameters * 2,
        "streamed_bf16_bytes": (size.ends + size.largest_layer) * 2,
        "cache_bytes_per_token": size.token_bytes,
        "cache_bytes_per_sequence": size.sequence_bytes,
        "drafter_parameters": drafter,
        "drafter_training_bytes": drafter.map(|parameters| parameters * TRAINED_BYTES),
        "feature_bytes_per_token": feature_bytes(&spec),
        "eos_token_ids": spec.eos_token_ids,
        "notes": spec.notes,
        "unread_keys": spec.unread_keys,
        "tensors": list_tensors.then_some(tensors),
    }))?;
    Ok(Outcome::Done)
}

/// Parameters, and bytes of the caches, of a target.
struct Size {
    parameters: u64,
    /// Embedding, head and final norm.
    ends: u64,
    largest_layer: u64,
    /// Keys and values in f32.
    token_bytes: u64,
    /// States of the gated delta layers in f32, with what a rollback needs.
    sequence_bytes: u64,
}

impl Size {
    fn of(spec: &TargetSpec, tensors: &[TensorExpectation]) -> Self {
        let mut ends = 0;
        let mut layers = vec![0; spec.num_layers];
        for TensorExpectation { name, shape } in tensors {
            let elements: u64 = shape.iter().map(|&n| n as u64).product();
            let layer = name.split_once("layers.").and_then(|(_, rest)| rest.split('.').next()?.parse::<usize>().ok());
            match layer.and_then(|layer| layers.get_mut(layer)) {
                Some(layer) => *layer += elements,
                None => ends += elements,
            }
        }
        let delta_layers = spec.delta_layers() as u64;
        let attention_layers = spec.num_layers as u64 - delta_layers;
        let delta = spec.delta.map_or(0, |delta| {
            let state = delta.value_heads * delta.key_dim * delta.value_dim + (delta.conv_width - 1) * delta.channels();
            let kept = ROLLBACK_ROWS * (delta.channels() + 2 * delta.value_heads);
            (2 * state + kept) as u64
        });
        Self {
            parameters: ends + layers.iter().sum::<u64>(),
            ends,
            largest_layer: layers.iter().copied().max().unwrap_or(0),
            token_bytes: attention_layers * (2 * spec.num_kv_heads * spec.head_dim) as u64 * 4,
            sequence_bytes: delta_layers * delta * 4,
        }
    }
}

/// Layers by what they are, in the order in which the kinds appear.
fn layer_kinds(spec: &TargetSpec) -> Vec<(String, Vec<usize>)> {
    let mut kinds: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, layer) in spec.layers.iter().enumerate() {
        let mixer = match layer.mixer {
            MixerKind::Full => "full attention".to_owned(),
            MixerKind::Sliding { window } => format!("sliding attention over {window}"),
            MixerKind::GatedDelta => "gated delta".to_owned(),
        };
        let kind = if layer.sparse { format!("{mixer} with experts") } else { mixer };
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, layers)) => layers.push(index),
            None => kinds.push((kind, vec![index])),
        }
    }
    kinds
}

/// `0-2, 4-6, …`: runs of numbers, cut when there are many.
fn ranges(numbers: &[usize]) -> String {
    const SHOWN: usize = 4;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => runs.push((n, n)),
        }
    }
    let words: Vec<String> = runs
        .iter()
        .take(SHOWN)
        .map(|&(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") })
        .collect();
    let more = if runs.len() > SHOWN { format!(", … {}", numbers[numbers.len() - 1]) } else { String::new() };
    format!("{}{more}", words.join(", "))
}

pub(super) fn rope(spec: &RopeSpec) -> String {
    let scaling = spec.scaling.as_ref().and_then(|scaling| serde_json::to_value(scaling).ok());
    let scaling = scaling.map_or(String::new(), |value| {
        format!(", {}", value.to_string().replace(['"', '{', '}'], "").replace(':', " ").replace(',', ", "))
    });
    format!("theta {}{scaling}", spec.theta)
}

/// Trainable values of a drafter with the defaults of a recipe; `None` for a target too shallow for its taps.
fn drafter_parameters(spec: &TargetSpec) -> Option<u64> {
    (spec.num_layers > TAPS).then(|| {
        let taps = default_target_layer_ids(spec.num_layers, TAPS);
        let attention = vec![LayerAttention::published(None, None); DRAFTER_LAYERS];
        let contract = Contract::dflash(BLOCK_SIZE, 0, taps, attention, spec.rope.clone());
        let config = DrafterConfig::for_target(spec, DRAFTER_LAYERS, contract);
        config.tensors().iter().map(|t| t.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
    })
}

/// Outputs of the tapped layers for one token, f32.
fn feature_bytes(spec: &TargetSpec) -> u64 {
    (TAPS * spec.hidden_size * 4) as u64
}

fn count(parameters: u64) -> String {
    match parameters as f64 {
        n if n >= 1e9 => format!("{:.3} B", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n => format!("{:.1} K", n / 1e3),
    }
}

fn memory(bytes: u64) -> String {
    match bytes as f64 {
        n if n >= (1u64 << 30) as f64 => format!("{:.2} GiB", n / (1u64 << 30) as f64),
        n if n >= f64::from(1 << 20) => format!("{:.1} MiB", n / f64::from(1 << 20)),
        n => format!("{:.1} KiB", n / 1024.0),
    }
}
