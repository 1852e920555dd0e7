//! Names of other trainers: wrappers undone, name maps, and what neither explains.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use draftsman_models::{ModelError, NameMap, RenamedSource, WeightSource};
use proptest::prelude::*;

use super::refused;

/// Tensors without values: the shape tells which is which.
struct Names(Vec<(String, [usize; 1])>);

impl WeightSource for Names {
    fn path(&self) -> &Path {
        Path::new("x.pt")
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, shape)| shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<(String, bool)> {
        self.shape(name).map(|_| ("float32".into(), true))
    }

    fn load_f32(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        Ok(vec![self.shape(name).unwrap()[0] as f32])
    }
}

const KNOWN: [&str; 5] = [
    "fc.weight",
    "norm.weight",
    "layers.0.self_attn.q_proj.weight",
    "layers.1.self_attn.q_proj.weight",
    "layers.1.mlp.up_proj.weight",
];

fn rename(names: &[&str], map: Option<&NameMap>) -> Result<RenamedSource, ModelError> {
    let source = Names(names.iter().enumerate().map(|(i, name)| (name.to_string(), [i])).collect());
    let known: BTreeSet<String> = KNOWN.iter().map(|name| name.to_string()).collect();
    RenamedSource::new(Box::new(source), &known, &[("projection.weight", "fc.weight")], map)
}

fn toml(text: &str) -> NameMap {
    NameMap::parse(text, Path::new("map.toml")).unwrap()
}

#[test]
fn wrappers_and_containers_are_undone() {
    let check = |old: &str, new: &str| {
        let source = rename(&["other", old], None).unwrap();
        let mut expected = vec![new, "other"];
        expected.sort_unstable();
        assert_eq!(source.names(), expected, "{old}");
        assert_eq!(source.load_f32(new).unwrap(), [1.0], "{old}");
        assert_eq!(source.shape(new).unwrap(), [1], "{old}");
        assert_eq!(source.old_name(new), Some(old));
        assert_eq!(source.renamed().collect::<Vec<_>>(), if old == new { vec![] } else { vec![(new, old)] }, "{old}");
    };
    for prefix in [
        "",
        "module.",
        "_orig_mod.",
        "_fsdp_wrapped_module.",
        "_checkpoint_wrapped_module.",
        "draft_model.",
        "model.",
        "module._orig_mod.model.",
        "_orig_mod.module.draft_model.module.",
        "state_dict.model.draft_model._fsdp_wrapped_module._orig_mod.",
        "model_state_dict.model.model.",
    ] {
        check(&format!("{prefix}fc.weight"), "fc.weight");
        check(&format!("{prefix}layers.1.self_attn.q_proj.weight"), "layers.1.self_attn.q_proj.weight");
    }
    check(
        "model.layers.1._fsdp_wrapped_module._checkpoint_wrapped_module.self_attn._orig_mod.q_proj.weight",
        "layers.1.self_attn.q_proj.weight",
    );
    check("draft_model.projection.weight", "fc.weight");
    // Not names of this model, whatever is taken off: they stay, and the model reports them.
    for other in
        ["model.fc.bias", "target_model.norm.weight", "ema.fc.weight", "layers.2.self_attn.q_proj.weight", "fc"]
    {
        check(other, other);
    }
    let source = rename(&["fc.weight"], None).unwrap();
    refused(source.load_f32("norm.weight"), &["x.pt", "`norm.weight` is missing"]);
    assert_eq!((source.shape("norm.weight"), source.dtype("norm.weight")), (None, None));
}

#[test]
fn states_of_training_are_left_out() {
    let names = ["fc.weight", "optimizer.state.0.exp_avg", "module.optim.x", "rng_state", "lr_scheduler.y", "step"];
    let source = rename(&names, None).unwrap();
    assert_eq!(source.names(), ["fc.weight", "step"]);
    assert_eq!(source.ignored(), ["optimizer.state.0.exp_avg", "module.optim.x", "rng_state", "lr_scheduler.y"]);
}

#[test]
fn what_cannot_be_told_apart_is_refused() {
    refused(
        rename(
            &["model.fc.weight", "fc.weight", "module.norm.weight", "draft_model.norm.weight", "x._flat_param"],
            None,
        ),
        &[
            "x.pt",
            "3 problems",
            "tensors `model.fc.weight`, `fc.weight` would all become `fc.weight`",
            "`module.norm.weight`, `draft_model.norm.weight` would all become `norm.weight`",
            "tensor `x._flat_param` holds many parameters that FSDP flattened",
        ],
    );
    let map = toml("ignore = [\"model.*\"]");
    assert_eq!(rename(&["model.fc.weight", "fc.weight"], Some(&map)).unwrap().ignored(), ["model.fc.weight"]);
}

#[test]
fn a_map_says_which_tensor_is_which() {
    let names =
        ["blocks.0.att.wq", "blocks.1.att.wq", "enc.mlp.1.up_proj.weight", "proj", "module.norm.weight", "old.a.b"];
    let expected = [
        ("fc.weight", "proj"),
        ("layers.0.self_attn.q_proj.weight", "blocks.0.att.wq"),
        ("layers.1.mlp.up_proj.weight", "enc.mlp.1.up_proj.weight"),
        ("layers.1.self_attn.q_proj.weight", "blocks.1.att.wq"),
        ("norm.weight", "module.norm.weight"),
    ];
    let toml = toml(
        r#"
        proj = "fc.weight"
        "blocks.{i}.att.wq" = "layers.{i}.self_attn.q_proj.weight"
        "enc.*.{i}.up_proj.*" = "layers.*.{i}.up_proj.*"
        ignore = ["old.*"]
        "#,
    );
    // Wildcards fill by place, so `*` and `{i}` above would give `layers.mlp.1`; a map that means it says so.
    refused(
        rename(&names, Some(&toml)),
        &["would become `layers.mlp.1.up_proj.weight`, which this model does not have"],
    );
    let json = |text: &str| NameMap::parse(text, Path::new("map.json")).unwrap();
    let map = json(
        r#"{"proj": "fc.weight", "blocks": {"{i}.att.wq": "layers.*.self_attn.q_proj.weight"},
            "enc.mlp.{n}.*": "layers.{n}.mlp.*", "ignore": ["old.*"]}"#,
    );
    let source = rename(&names, Some(&map)).unwrap();
    assert_eq!(source.renamed().collect::<Vec<_>>(), expected);
    assert_eq!(source.ignored(), ["old.a.b"]);
    // A rule may be about the name without its wrappers, and comes before the name itself.
    let map = json(r#"{"proj": "fc.weight", "norm.weight": "fc.weight"}"#);
    refused(rename(&["module.proj", "norm.weight"], Some(&map)), &["would all become `fc.weight`"]);
    // Unquoted dots are tables in TOML.
    let map = NameMap::parse("a.b.c = \"fc.weight\"", Path::new("map.toml")).unwrap();
    assert_eq!(rename(&["a.b.c"], Some(&map)).unwrap().names(), ["fc.weight"]);
}

#[test]
fn rules_that_lead_nowhere_are_reported_together() {
    let map = toml(
        r#"
        "fc" = "fc.wieght"
        "b.{i}.q" = "layer.{i}.self_attn.q_proj.weight"
        "c.*" = "nothing.like.it.*"
        "gone.{i}" = "layers.{i}.mlp.up_proj.weight"
        "b.*.q" = "layers.*.mlp.up_proj.weight"
        ignore = ["none.*"]
        "#,
    );
    refused(
        rename(&["fc", "b.1.q"], Some(&map)),
        &[
            "x.pt",
            "map.toml: this model has no tensor `fc.wieght`\n    hint: did you mean `fc.weight`?",
            "no tensor `layer.{i}.self_attn.q_proj.weight`\n    hint: did you mean `layers.{i}.self_attn.q_proj.weight`?",
            "no tensor `nothing.like.it.*`\n",
            "`gone.{i}` matches no tensor of the file",
            "`none.*` matches no tensor of the file",
            "tensor `b.1.q`: two rules of map.toml say different things about it: `b.",
        ],
    );
    let check = |name: &str, text: &str, expected: &[&str]| {
        refused(NameMap::parse(text, &PathBuf::from(name)), &[&[name], expected].concat());
    };
    check("m.toml", "", &["names no tensor"]);
    check("m.toml", "a = b", &["hint"]);
    check("m.toml", "a = \"b\"\na = \"c\"", &["duplicate"]);
    check("m.json", "{\"a\": \"b\", \"a\": \"c\"}", &["`a` is listed twice"]);
    check("m.json", "[]", &["expected an object"]);
    check("m.json", &"{\"a\":".repeat(10_000), &["recursion limit"]);
    check("m.toml", "a = 3", &["`a` is 3, expected a name in quotes"]);
    check("m.toml", "\"a.{i}\" = \"b\"", &["`a.{i}` has 1 wildcards and `b` has 0"]);
    check(
        "m.toml",
        "\"a{i\" = \"b\"\n\"c*{i}\" = \"d\"\n\"*e*f*\" = \"*g*h*\"\n\"\" = \"i\"\nignore = [3]",
        &[
            "`a{i`: a number is written as {i}",
            "`c*{i}`: two wildcards need text between them",
            "`*e*f*`: more than 2 `*`",
            "a name is empty",
            "`ignore`: 3: not a string",
        ],
    );
}

proptest! {
    /// However a name is wrapped, it is found again.
    #[test]
    fn any_wrapping_is_undone(
        name in proptest::sample::select(KNOWN.to_vec()),
        outer in proptest::collection::vec(proptest::sample::select(vec![
            "state_dict", "model", "draft_model", "module", "_orig_mod", "_fsdp_wrapped_module",
        ]), 0..6),
        inner in proptest::collection::vec((0usize..6, proptest::sample::select(vec![
            "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
        ])), 0..4),
    ) {
        let mut parts: Vec<&str> = name.split('.').collect();
        for (at, wrapper) in inner {
            parts.insert(at.min(parts.len() - 1), wrapper);
        }
        let wrapped = outer.into_iter().chain(parts).collect::<Vec<_>>().join(".");
        let source = rename(&[&wrapped], None).unwrap();
        prop_assert_eq!(source.names(), [name]);
        prop_assert_eq!(source.old_name(name), Some(wrapped.as_str()));
    }
}
