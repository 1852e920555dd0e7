//! [`TargetSpec`] from a Hugging Face config.json: which architecture it is, and what they all have in common.

use std::cell::RefCell;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::json::{Fields, read_json_object};
use super::rope_config::{RopeDefaults, read_rope_with};
use super::spec::{AttentionParts, LayerSpec, MixerKind, TargetSpec};
use crate::error::{ModelError, Problems};

/// Keys without influence on a frozen forward, in any architecture.
const INERT: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "dtype",
    "initializer_range",
    "model_type",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "transformers.js_config",
    "use_cache",
];

/// Keys that change what any of these models computes and that no forward here knows, with the values at which they
/// do nothing.
fn refuse_unsupported(config: &Fields<'_>) {
    config.only("hidden_act", &[json!("silu"), json!("swish")]);
    for key in ["mlp_bias", "qk_layernorm", "rope_interleaved"] {
        config.only(key, &[json!(false)]);
    }
    for key in ["attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"] {
        config.only(key, &[json!(1)]);
    }
    for key in ["compression_config", "final_logit_softcapping", "attn_logit_softcapping", "clip_qkv", "no_rope_layers"]
    {
        config.only(key, &[]);
    }
}

/// The configuration of a language model: the file's object, or `text_config` inside it.
pub(super) struct Config<'a> {
    pub(super) fields: Fields<'a>,
    /// The file's own object where the language model stands inside `text_config`.
    pub(super) outer: Option<Fields<'a>>,
    map: &'a Map<String, Value>,
    problems: &'a RefCell<Problems>,
}

/// Reads the spec of a target from the config.json at `path`; every problem at once.
pub fn spec_from_config(path: &Path) -> Result<TargetSpec, ModelError> {
    let map = read_json_object(path)?;
    let problems = RefCell::new(Problems::default());
    let file = Fields::new("", &map, &problems);
    let architecture = find_architecture(path, &file)?;
    for key in INERT {
        file.value(key);
    }
    let config = match file.object("text_config").filter(|_| architecture.nested) {
        None => Config { fields: file, outer: None, map: &map, problems: &problems },
        Some(text) => {
            let fields = Fields::new("text_config.", text, &problems);
            for key in INERT {
                fields.value(key);
            }
            Config { fields, outer: Some(file), map: text, problems: &problems }
        }
    };
    refuse_unsupported(&config.fields);
    let spec = (architecture.read_config)(&config);
    let mut unread_keys = config.outer.as_ref().map(Fields::unread).unwrap_or_default();
    unread_keys.extend(config.fields.unread());
    drop(config);
    let mut problems = problems.into_inner();
    spec.check(&mut problems);
    problems.into_model_result(path)?;
    Ok(TargetSpec { unread_keys, ..spec })
}

fn find_architecture(path: &Path, config: &Fields<'_>) -> Result<&'static Architecture, ModelError> {
    let hint = format!("supported: {}", Architecture::model_types().join(", "));
    let model_type = config.str("model_type");
    let Some(model_type) = model_type else {
        return Err(ModelError::config(path, "model_type", "it is missing", hint));
    };
    let Some(architecture) = Architecture::of_model_type(model_type) else {
        return Err(ModelError::unsupported(path, format!("`model_type` {model_type:?} is not supported"), hint));
    };
    if let Some(Value::Array(names)) = config.value("architectures")
        && !names.is_empty()
        && !names.iter().any(|n| architecture.classes.iter().any(|class| n == class))
    {
        return Err(ModelError::unsupported(
            path,
            format!("`architectures` {} is not supported", Value::from(names.clone())),
            format!("for `model_type` {model_type:?} these are: {}", architecture.classes.join(", ")),
        ));
    }
    Ok(architecture)
}

impl Config<'_> {
    /// The keys that every decoder has, as a dense model with full attention everywhere. `head_dim` is what the
    /// architecture takes where the key is missing; `None`: hidden_size / heads.
    pub(super) fn decoder(&self, architecture: &str, head_dim: Option<usize>, rope: &RopeDefaults) -> TargetSpec {
        let config = &self.fields;
        let hidden_size = config.required_usize("hidden_size");
        let num_heads = config.required_usize("num_attention_heads");
        let num_kv_heads = config.usize("num_key_value_heads").unwrap_or(num_heads);
        let head_dim = config.usize("head_dim").or(head_dim).unwrap_or_else(|| {
            if !hidden_size.is_multiple_of(num_heads) {
                config.problem(
                    "head_dim",
                    format!("missing, and {num_heads} heads do not divide hidden_size {hidden_size}"),
                );
            }
            (hidden_size / num_heads).max(1)
        });
        let max_positions = config.required_usize("max_position_embeddings");
        let (rope, share) = read_rope_with(config, self.map, self.problems, rope);
        let num_layers = config.required_usize("num_hidden_layers");
        let layers = TargetSpec::uniform(num_layers, LayerSpec::PLAIN, &mut self.problems.borrow_mut());
        TargetSpec {
            architecture: architecture.into(),
            num_layers,
            hidden_size,
            vocab_size: config.required_usize("vocab_size"),
            num_heads,
            num_kv_heads,
            head_dim,
            rotary_dim: (head_dim as f64 * share) as usize,
            attention: AttentionParts::default(),
            intermediate_size: 1,
            layers,
            delta: None,
            experts: None,
            rms_norm_eps: config.required_f64("rms_norm_eps"),
            rope,
            max_positions,
            tied: self.tied(),
            eos_token_ids: config.ids("eos_token_id"),
            bos_token_id: config.ids("bos_token_id").first().copied(),
            notes: Vec::new(),
            unread_keys: Vec::new(),
        }
    }

    /// The outer object speaks for the whole model: it is the one that owns the head.
    fn tied(&self) -> bool {
        const KEY: &str = "tie_word_embeddings";
        let inner = self.fields.bool(KEY);
        self.outer.as_ref().and_then(|outer| outer.bool(KEY)).or(inner).unwrap_or(false)
    }

    /// Kinds of the layers from `layer_types`, where the key is there: one of `known` names a layer.
    pub(super) fn layer_types(&self, num_layers: usize, known: &[(&str, MixerKind)]) -> Option<Vec<MixerKind>> {
        const KEY: &str = "layer_types";
        let value = self.fields.value(KEY)?;
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let kinds: Option<Vec<MixerKind>> = value.as_array().and_then(|list| {
            list.iter().map(|v| known.iter().find(|(name, _)| v == name).map(|(_, kind)| *kind)).collect()
        });
        match kinds {
            None => self.fields.problem(KEY, format!("expected a list of {}, found {value}", names.join(" and "))),
            Some(kinds) if kinds.len() != num_layers => {
                self.fields.problem(KEY, format!("{} entries, the model has {num_layers} layers", kinds.len()));
            }
            Some(kinds) => return Some(kinds),
        }
        None
    }

    /// The window of sliding layers, or `None` when sliding is off, whatever the other keys say.
    pub(super) fn window(&self) -> Option<usize> {
        let window = self.fields.usize("sliding_window");
        let on = self.fields.bool("use_sliding_window").unwrap_or(false);
        if on && window.is_none() {
            self.fields.problem("use_sliding_window", "true, and there is no `sliding_window`");
        }
        window.filter(|_| on)
    }

    /// Layers of the dense Qwen models: full, or from `max_window_layers` on sliding where sliding is on.
    pub(super) fn qwen_windows(&self, spec: &mut TargetSpec) {
        let from = self.fields.count("max_window_layers").unwrap_or(28);
        let window = self.window();
        let mut known = vec![("full_attention", MixerKind::Full)];
        if let Some(window) = window {
            known.push(("sliding_attention", MixerKind::Sliding { window }));
        }
        match (self.layer_types(spec.num_layers, &known), window) {
            (Some(kinds), _) => set_mixers(spec, kinds),
            (None, Some(window)) => {
                for layer in spec.layers.iter_mut().skip(from) {
                    layer.mixer = MixerKind::Sliding { window };
                }
            }
            (None, None) => {}
        }
    }

    /// Biases on q, k, v and o, all or none.
    pub(super) fn attention_bias(&self, default: bool) -> AttentionParts {
        let biased = self.fields.bool("attention_bias").unwrap_or(default);
        AttentionParts { qkv_bias: biased, o_bias: biased, ..AttentionParts::default() }
    }
}

/// Gives the layers their mixers, in order.
pub(super) fn set_mixers(spec: &mut TargetSpec, kinds: Vec<MixerKind>) {
    for (layer, mixer) in spec.layers.iter_mut().zip(kinds) {
        layer.mixer = mixer;
    }
}
