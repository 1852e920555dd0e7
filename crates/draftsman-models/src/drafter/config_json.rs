//! A drafter's `config.json`: the published keys at both nestings, and Draftsman's contract beside them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use draftsman_contract::{Contract, LayerAttention, RopeSpec};
use serde_json::{Map, Value, json};

use super::config::DrafterConfig;
use crate::error::{ModelError, Problems};
use crate::target::json::{Fields, read_json_object};
use crate::target::rope_config::read_rope;

/// Key of the contract in `config.json`.
const CONTRACT_KEY: &str = "draftsman_contract";
/// Object that holds the drafting keys; the official code reads it before the top level.
const NESTED_KEY: &str = "dflash_config";
/// Published class of DFlash v1.
const ARCHITECTURE: &str = "DFlashDraftModel";

/// Drafting keys, looked up in `dflash_config` first and at top level second.
const NESTED_OR_TOP: [&str; 6] = [
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "input_embedding_scale",
    "output_multiplier",
    "final_logit_softcapping",
];
/// Keys that are read at top level; everything else there is kept as it is.
const TOP_ONLY: [&str; 20] = [
    CONTRACT_KEY,
    NESTED_KEY,
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "num_target_layers",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "is_causal",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
];
/// Keys that are checked or that saving writes anew.
const WRITTEN: [&str; 7] =
    ["architectures", "model_type", "attention_bias", "hidden_act", "partial_rotary_factor", "dtype", "torch_dtype"];
/// Keys of `dflash_config` that are read and not written back there.
const NESTED_ONLY: [&str; 3] = ["causal", "use_swa", "swa_window_size"];
/// Keys that announce a part that DFlash v1 does not have.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("selector_rank", "DFlash 2 (candidate selector)"),
    ("conv_kernel_size", "DFlash 2 (in-block convolutions)"),
    ("markov_rank", "DSpark (Markov head)"),
    ("projector_type", "a drafter with a logit projector (DSpark or Domino)"),
    ("sample_from_anchor", "the speculators dialect"),
    ("speculators_model_type", "the speculators dialect"),
];

impl DrafterConfig {
    /// Reads a `config.json`. Everything wrong with it is reported together.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let value = Value::Object(read_json_object(path)?);
        Self::from_json(&value, path)
    }

    /// Reads a parsed `config.json`; `path` is named in errors.
    ///
    /// With a `draftsman_contract`, published keys must agree with it; without one, the contract is derived from the
    /// published keys, and what they do not say is listed in `contract.guesses`.
    pub fn from_json(value: &Value, path: &Path) -> Result<Self, ModelError> {
        Self::parse(value).map_err(|problems| ModelError::Problems { path: path.to_path_buf(), problems })
    }

    fn parse(value: &Value) -> Result<Self, Problems> {
        let Some(top) = value.as_object() else {
            return Err(Problems(vec!["not a JSON object\n    hint: is this the config.json of a drafter?".into()]));
        };
        let mut reader = Reader {
            top,
            nested: top.get(NESTED_KEY).and_then(Value::as_object),
            problems: Problems::default(),
            guesses: Vec::new(),
        };
        reader.refuse_other_algorithms();
        if !reader.problems.is_empty() {
            // Another algorithm's keys; complaining about the ones it lacks would only confuse.
            return Err(reader.problems);
        }
        let published = reader.published();
        let contract = match reader.top(CONTRACT_KEY) {
            Some(value) => match serde_json::from_value::<Contract>(value.clone()) {
                Ok(contract) => {
                    published.check_against(&contract, &mut reader.problems);
                    Some(contract)
                }
                Err(error) => {
                    reader.problems.push(format!("`{CONTRACT_KEY}`: {error}"));
                    None
                }
            },
            None => reader.derive_contract(published),
        };
        match reader.config(contract) {
            Some(config) if reader.problems.is_empty() => {
                config.validate().into_result()?;
                Ok(config)
            }
            Some(config) => {
                reader.problems.0.extend(config.validate().0);
                Err(reader.problems)
            }
            None => {
                if reader.problems.is_empty() {
                    reader.problems.push("it is incomplete");
                }
                Err(reader.problems)
            }
        }
    }

    /// The published `config.json` with the contract in it. Fails where the published keys cannot say what the
    /// contract says, because other programs would then run the drafter with another meaning.
    pub fn to_json(&self) -> Result<Value, Problems> {
        self.publishable().into_result()?;
        let contract = &self.contract;
        let sliding = |rule: &LayerAttention| rule.window.is_some();
        let window = contract.attention.iter().find_map(|rule| rule.window);
        let layer_types: Vec<&str> = contract
            .attention
            .iter()
            .map(|rule| if sliding(rule) { "sliding_attention" } else { "full_attention" })
            .collect();
        let mut nested = match self.extra.get(NESTED_KEY) {
            Some(Value::Object(kept)) => kept.clone(),
            _ => Map::new(),
        };
        nested.insert("mask_token_id".into(), json!(contract.mask_token_id));
        nested.insert("target_layer_ids".into(), json!(contract.target_layer_ids));
        if self.input_embedding_scale != 1.0 {
            nested.insert("input_embedding_scale".into(), json!(self.input_embedding_scale));
        }
        if self.output_multiplier != 1.0 {
            nested.insert("output_multiplier".into(), json!(self.output_multiplier));
        }
        if let Some(cap) = self.final_logit_softcapping {
            nested.insert("final_logit_softcapping".into(), json!(cap));
        }
        let scaling = contract.rope.scaling.as_ref().map(serde_json::to_value);
        let scaling = scaling.transpose().map_err(|e| Problems(vec![format!("rope scaling: {e}")]))?;
        let stated = serde_json::to_value(contract).map_err(|e| Problems(vec![format!("contract: {e}")]))?;
        let written = json!({
            "architectures": [ARCHITECTURE],
            "model_type": "qwen3",
            "block_size": contract.block_size,
            NESTED_KEY: nested,
            "num_target_layers": self.num_target_layers,
            "num_hidden_layers": self.num_hidden_layers,
            "layer_types": layer_types,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": contract.rope.theta,
            "rope_scaling": scaling,
            "sliding_window": window,
            "use_sliding_window": window.is_some(),
            "max_window_layers": self.num_hidden_layers,
            "max_position_embeddings": self.max_position_embeddings,
            "attention_bias": false,
            "hidden_act": "silu",
            "vocab_size": self.vocab_size,
            CONTRACT_KEY: stated,
        });
        // Kept keys first, so that ours win where both exist.
        let mut object = self.extra.clone();
        object.remove("is_causal");
        if let Value::Object(written) = written {
            object.extend(written);
        }
        if let Some(is_causal) = self.is_causal_key() {
            object.insert("is_causal".into(), json!(is_causal));
        }
        Ok(Value::Object(object))
    }

    /// What the published keys cannot express (empty = nothing).
    pub fn publishable(&self) -> Problems {
        let mut problems = Problems::default();
        let attention = &self.contract.attention;
        let windows: BTreeSet<usize> = attention.iter().filter_map(|rule| rule.window).collect();
        if windows.len() > 1 {
            problems.push(format!(
                "the layers have the windows {windows:?}, and the published config has one `sliding_window`"
            ));
        }
        if !self.default_causality() && attention.iter().any(|rule| rule.causal != attention[0].causal) {
            problems.push(
                "the layers mix causal and bidirectional blocks in a way that the published `is_causal` cannot \
                 say (all alike, or exactly the sliding layers causal)",
            );
        }
        problems
    }

    /// Sliding layers causal inside the block, full layers not.
    fn default_causality(&self) -> bool {
        self.contract.attention.iter().all(|rule| *rule == LayerAttention::published(rule.window, None))
    }

    /// `is_causal` where the default rule does not give what the contract says.
    fn is_causal_key(&self) -> Option<bool> {
        if self.default_causality() {
            return None;
        }
        self.contract.attention.first().map(|rule| rule.causal)
    }
}

/// What the published keys say about the meaning of a drafter; `None` where they are silent.
struct Published {
    block_size: Option<usize>,
    mask_token_id: Option<u32>,
    target_layer_ids: Option<Vec<usize>>,
    windows: Option<Vec<Option<usize>>>,
    is_causal: Option<bool>,
    rope: Option<RopeSpec>,
}

impl Published {
    /// Other programs run the published keys, Draftsman runs the contract: they must not differ.
    fn check_against(&self, contract: &Contract, problems: &mut Problems) {
        fn differ<T: PartialEq + std::fmt::Debug>(key: &str, published: Option<&T>, ours: &T, problems: &mut Problems) {
            if let Some(published) = published.filter(|published| *published != ours) {
                problems.push(format!(
                    "`{key}` is {published:?}, but `{CONTRACT_KEY}` says {ours:?}\n    hint: one of the two was \
                     edited; make them agree"
                ));
            }
        }
        differ("block_size", self.block_size.as_ref(), &contract.block_size, problems);
        differ("mask_token_id", self.mask_token_id.as_ref(), &contract.mask_token_id, problems);
        differ("target_layer_ids", self.target_layer_ids.as_ref(), &contract.target_layer_ids, problems);
        let windows: Vec<Option<usize>> = contract.attention.iter().map(|rule| rule.window).collect();
        differ("layer_types` / `sliding_window", self.windows.as_ref(), &windows, problems);
        if let Some(is_causal) = self.is_causal {
            let causal: Vec<bool> = contract.attention.iter().map(|rule| rule.causal).collect();
            differ("is_causal", Some(&vec![is_causal; causal.len()]), &causal, problems);
        }
        differ("rope_theta` / `rope_scaling", self.rope.as_ref(), &contract.rope, problems);
    }
}

/// Looks keys up, collects problems and guesses.
struct Reader<'a> {
    top: &'a Map<String, Value>,
    nested: Option<&'a Map<String, Value>>,
    problems: Problems,
    guesses: Vec<String>,
}

impl<'a> Reader<'a> {
    fn top(&self, key: &str) -> Option<&'a Value> {
        self.top.get(key).filter(|value| !value.is_null())
    }

    fn nested(&self, key: &str) -> Option<&'a Value> {
        self.nested.and_then(|nested| nested.get(key)).filter(|value| !value.is_null())
    }

    /// The published resolution: `dflash_config` first, then the top level. Returns where it was found, too.
    fn drafting(&self, key: &str) -> Option<(String, &'a Value)> {
        match self.nested(key) {
            Some(value) => Some((format!("{NESTED_KEY}.{key}"), value)),
            None => self.top(key).map(|value| (key.to_string(), value)),
        }
    }

    fn wrong<T>(&mut self, key: &str, value: &Value, expected: &str) -> Option<T> {
        let mut shown = value.to_string();
        if shown.chars().count() > 60 {
            shown = shown.chars().take(60).chain("…".chars()).collect();
        }
        self.problems.push(format!("`{key}` is {shown}, expected {expected}"));
        None
    }

    fn as_size(&mut self, key: &str, value: &Value) -> Option<usize> {
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Some(n),
            None => self.wrong(key, value, "a whole number"),
        }
    }

    fn as_number(&mut self, key: &str, value: &Value) -> Option<f64> {
        match value.as_f64().filter(|n| n.is_finite()) {
            Some(n) => Some(n),
            None => self.wrong(key, value, "a number"),
        }
    }

    fn as_bool(&mut self, key: &str, value: &Value) -> Option<bool> {
        match value.as_bool() {
            Some(b) => Some(b),
            None => self.wrong(key, value, "true or false"),
        }
    }

    fn size(&mut self, key: &str) -> Option<usize> {
        let value = self.top(key)?;
        self.as_size(key, value)
    }

    fn required_size(&mut self, key: &str) -> Option<usize> {
        if self.top(key).is_none() {
            self.problems.push(format!("`{key}` is missing"));
        }
        self.size(key)
    }

    fn bool(&mut self, key: &str) -> Option<bool> {
        let value = self.top(key)?;
        self.as_bool(key, value)
    }

    /// An optional factor of the drafting keys.
    fn factor(&mut self, key: &str) -> Option<f64> {
        let (key, value) = self.drafting(key)?;
        self.as_number(&key, value)
    }

    fn guess(&mut self, guess: impl Into<String>) {
        self.guesses.push(guess.into());
    }

    /// Drafters whose mathematics this file does not describe: better no result than a wrong one.
    fn refuse_other_algorithms(&mut self) {
        const HINT: &str = "    hint: this version runs DFlash v1 (`DFlashDraftModel`)";
        for (key, meaning) in UNSUPPORTED {
            if let Some((key, value)) = self.drafting(key) {
                self.problems.push(format!("`{key}` is {value}: {meaning}\n{HINT}"));
            }
        }
        match self.top("architectures") {
            Some(Value::Array(names)) if names.iter().any(|name| name.as_str() == Some(ARCHITECTURE)) => {}
            Some(other) => self.problems.push(format!("`architectures` is {other}\n{HINT}")),
            None => self.guess(format!("`architectures` absent: {ARCHITECTURE}")),
        }
        for (key, plain) in
            [("attention_bias", json!(false)), ("hidden_act", json!("silu")), ("partial_rotary_factor", json!(1.0))]
        {
            if let Some(value) = self.top(key).filter(|value| **value != plain && value.as_f64() != Some(1.0)) {
                self.problems.push(format!("`{key}` is {value}, and DFlash v1 has {plain}"));
            }
        }
        if let (Some(draft), Some(all)) = (self.top("draft_vocab_size"), self.top("vocab_size"))
            && draft != all
        {
            self.problems.push(format!("`draft_vocab_size` is {draft} of {all}: a reduced vocabulary\n{HINT}"));
        }
    }

    fn published(&mut self) -> Published {
        Published {
            block_size: self.drafting("block_size").and_then(|(key, value)| self.as_size(&key, value)),
            mask_token_id: self.drafting("mask_token_id").and_then(|(key, value)| {
                match value.as_u64().and_then(|id| u32::try_from(id).ok()) {
                    Some(id) => Some(id),
                    None => self.wrong(&key, value, "a token id"),
                }
            }),
            target_layer_ids: self.drafting("target_layer_ids").and_then(|(key, value)| self.layer_ids(&key, value)),
            windows: self.windows(),
            is_causal: self.is_causal(),
            rope: self.states_rope_theta().then(|| self.rope()),
        }
    }

    fn layer_ids(&mut self, key: &str, value: &Value) -> Option<Vec<usize>> {
        let ids: Option<Vec<usize>> = value
            .as_array()
            .and_then(|ids| ids.iter().map(|id| id.as_u64().and_then(|id| usize::try_from(id).ok())).collect());
        match ids {
            Some(ids) => Some(ids),
            None => self.wrong(key, value, "a list of 0-based layer numbers"),
        }
    }

    /// The window of every layer.
    fn windows(&mut self) -> Option<Vec<Option<usize>>> {
        let layers = self.top("num_hidden_layers").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())?;
        const MOST: usize = 1 << 12;
        if layers > MOST {
            self.problems.push(format!("`num_hidden_layers` is {layers}, above any real drafter ({MOST})"));
            return None;
        }
        if self.nested("use_swa").and_then(Value::as_bool) == Some(true) {
            let value = self.nested("swa_window_size")?;
            let window = self.as_size("dflash_config.swa_window_size", value)?;
            self.guess("`dflash_config.use_swa`: every layer slides, whatever `layer_types` says (ModelOpt's export)");
            return Some(vec![Some(window); layers]);
        }
        let window = self.size("sliding_window");
        let Some(types) = self.top("layer_types") else {
            // The rule of the configuration class for files without a list.
            let first = self.size("max_window_layers").unwrap_or(layers);
            let slides = self.bool("use_sliding_window").unwrap_or(false);
            let sliding = |layer: usize| window.filter(|_| slides && layer >= first);
            self.guess(
                "`layer_types` absent: layers slide from `max_window_layers` on if `use_sliding_window` is true",
            );
            return Some((0..layers).map(sliding).collect());
        };
        let Some(types) = types.as_array() else {
            return self.wrong("layer_types", types, "a list with one entry a layer");
        };
        if types.len() != layers {
            self.problems.push(format!("`layer_types` has {} entries for {layers} layers", types.len()));
            return None;
        }
        let mut windows = Vec::with_capacity(layers);
        for (i, kind) in types.iter().enumerate() {
            windows.push(match kind.as_str() {
                Some("full_attention") => None,
                Some("sliding_attention") if window.is_some() => window,
                Some("sliding_attention") => {
                    self.problems.push(format!("`layer_types[{i}]` slides, but `sliding_window` is missing"));
                    return None;
                }
                _ => {
                    return self.wrong(
                        &format!("layer_types[{i}]"),
                        kind,
                        "\"full_attention\" or \"sliding_attention\"",
                    );
                }
            });
        }
        if windows.iter().any(Option::is_some) && self.bool("use_sliding_window") == Some(false) {
            self.guess("`use_sliding_window` is false, but `layer_types` names sliding layers: they slide");
        }
        Some(windows)
    }

    fn is_causal(&mut self) -> Option<bool> {
        if let Some(value) = self.top("is_causal") {
            return self.as_bool("is_causal", value);
        }
        let value = self.nested("causal")?;
        self.guess("`dflash_config.causal` taken for every layer, as vLLM does; the official code does not read it");
        self.as_bool("dflash_config.causal", value)
    }

    /// The rope of the published keys, read as a target's. Without a `rope_theta` its base is the library's default.
    fn rope(&mut self) -> RopeSpec {
        let problems = RefCell::new(std::mem::take(&mut self.problems));
        let spec = read_rope(&Fields::new("", self.top, &problems), self.top, &problems);
        self.problems = problems.into_inner();
        spec
    }

    fn states_rope_theta(&self) -> bool {
        let inner = self.top("rope_parameters").and_then(|parameters| parameters.get("rope_theta"));
        self.top("rope_theta").or(inner.filter(|theta| !theta.is_null())).is_some()
    }

    /// The contract that the published keys imply.
    fn derive_contract(&mut self, published: Published) -> Option<Contract> {
        let block_size = match published.block_size {
            Some(size) => size,
            None => {
                self.guess("`block_size` absent: 16 (the official default)");
                16
            }
        };
        for (key, missing) in [
            ("mask_token_id", published.mask_token_id.is_none()),
            ("target_layer_ids", published.target_layer_ids.is_none()),
        ] {
            if missing && self.drafting(key).is_none() {
                self.problems.push(format!(
                    "`{key}` is missing (looked in `{NESTED_KEY}` and at top level)\n    hint: it cannot be guessed; \
                     it must be what the drafter was trained with"
                ));
            }
        }
        if published.is_causal.is_none() {
            self.guess("`is_causal` absent: sliding layers are causal inside the block, full layers bidirectional");
        }
        let rope = match published.rope {
            Some(rope) => rope,
            None => {
                let rope = self.rope();
                self.guess(format!("`rope_theta` absent: {} (the library's default)", rope.theta));
                rope
            }
        };
        for guess in [
            "context rule not stated: strictly before the anchor",
            "slot layout not stated: slot k predicts the token at anchor + k, slot 0 is unused",
            "position origin not stated: a document's first token is at 0",
            "label source not stated: the target's own tokens",
            "feature noise not stated: none",
            "target, tokenizer, chat template and thinking mode not stated: unknown",
        ] {
            self.guess(guess);
        }
        let attention = published
            .windows?
            .into_iter()
            .map(|window| LayerAttention::published(window, published.is_causal))
            .collect();
        let mut contract =
            Contract::dflash(block_size, published.mask_token_id?, published.target_layer_ids?, attention, rope);
        contract.guesses = std::mem::take(&mut self.guesses);
        Some(contract)
    }

    /// Sizes and scales around the contract. All keys are looked at even when one is missing.
    fn config(&mut self, contract: Option<Contract>) -> Option<DrafterConfig> {
        let hidden_size = self.required_size("hidden_size");
        let intermediate_size = self.required_size("intermediate_size");
        let num_hidden_layers = self.required_size("num_hidden_layers");
        let num_attention_heads = self.required_size("num_attention_heads");
        let num_key_value_heads = self.required_size("num_key_value_heads");
        let head_dim = self.required_size("head_dim");
        let vocab_size = self.required_size("vocab_size");
        let rms_norm_eps = self.top("rms_norm_eps").and_then(|value| self.as_number("rms_norm_eps", value));
        let max_position_embeddings = self.size("max_position_embeddings");
        let num_target_layers = self.size("num_target_layers");
        let input_embedding_scale = self.factor("input_embedding_scale");
        let output_multiplier = self.factor("output_multiplier");
        let softcap = self.factor("final_logit_softcapping");
        let mut extra = self.top.clone();
        let known = [&TOP_ONLY[..], &NESTED_OR_TOP, &WRITTEN].concat();
        extra.retain(|key, _| !known.contains(&key.as_str()));
        if let Some(nested) = self.nested {
            let mut kept = nested.clone();
            kept.retain(|key, _| !NESTED_ONLY.contains(&key.as_str()) && !NESTED_OR_TOP.contains(&key.as_str()));
            if !kept.is_empty() {
                extra.insert(NESTED_KEY.into(), Value::Object(kept));
            }
        }
        let mut contract = contract?;
        if rms_norm_eps.is_none() && self.top("rms_norm_eps").is_none() && !contract.guesses.is_empty() {
            contract.guesses.push("`rms_norm_eps` absent: 1e-6 (the library's default)".into());
        }
        Some(DrafterConfig {
            hidden_size: hidden_size?,
            intermediate_size: intermediate_size?,
            num_hidden_layers: num_hidden_layers?,
            num_attention_heads: num_attention_heads?,
            num_key_value_heads: num_key_value_heads?,
            head_dim: head_dim?,
            vocab_size: vocab_size?,
            rms_norm_eps: rms_norm_eps.unwrap_or(1e-6),
            max_position_embeddings: max_position_embeddings.unwrap_or(32_768),
            num_target_layers,
            input_embedding_scale: input_embedding_scale.unwrap_or(1.0) as f32,
            output_multiplier: output_multiplier.unwrap_or(1.0) as f32,
            final_logit_softcapping: softcap.map(|cap| cap as f32).filter(|cap| *cap > 0.0),
            contract,
            extra,
        })
    }
}
