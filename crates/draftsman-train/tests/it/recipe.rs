//! Recipes: what loads, what is refused and in which words.

use draftsman_train::{HARMLESS_KEYS, Recipe, Start, default_target_layer_ids};

use crate::tiny;

const SMALL: &str = "[drafter]\nmask_token_id = 39\n[train]\nsteps = 3\n";

fn problems(text: &str, overrides: &[&str]) -> Vec<String> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    Recipe::parse(text, "test.toml", &overrides).unwrap_err().problems
}

fn check(text: &str, overrides: &[&str], expected: &[&str]) {
    assert_eq!(problems(text, overrides), expected, "recipe:\n{text}\noverrides: {overrides:?}");
}

#[test]
fn unknown_keys_come_with_a_suggestion() {
    check(
        "[drafter]\nmask_token_id = 1\nblok_size = 8\n[train]\nsteps = 3\nlearning_rat = 0.1\n",
        &[],
        &[
            "drafter.blok_size is unknown (did you mean \"block_size\"?)",
            "train.learning_rat is unknown (did you mean \"learning_rate\"?)",
        ],
    );
    check(&format!("{SMALL}[trian]\nx = 1\n"), &[], &["section [trian] is unknown (did you mean \"train\"?)"]);
    check(
        &format!("block_size = 8\n{SMALL}"),
        &[],
        &["block_size outside a section is unknown (known: drafter, data, features, train)"],
    );
}

#[test]
fn overrides() {
    check(SMALL, &["train.stesp=4"], &["override \"train.stesp=4\": train.stesp is unknown (did you mean \"steps\"?)"]);
    check(SMALL, &["steps=4"], &["override \"steps=4\" names no section (did you mean \"train.steps\"?)"]);
    check(SMALL, &["stepz=4"], &["override \"stepz=4\" names no section (did you mean \"train.steps\"?)"]);
    check(
        SMALL,
        &["trainer.steps=4"],
        &["override \"trainer.steps=4\": section trainer is unknown (did you mean \"train\"?)"],
    );
    check(SMALL, &["train.steps"], &["override \"train.steps\" must have the form section.key=value"]);
    check(
        SMALL,
        &["train.steps=many"],
        &["train.steps (from the override) must be a whole number, 0 or more, not \"many\""],
    );
    check(SMALL, &["data.walk_prompts=70000"], &["data.walk_prompts (from the override) must be 0 to 65536"]);
    check(
        SMALL,
        &["data.walk_new_tokens=1"],
        &["data.walk_new_tokens (from the override) must be 2 to 1073741824: the first token needs no drafter"],
    );
    let overrides =
        ["drafter.init=target".to_owned(), "train.betas=[0.8, 0.99]".to_owned(), "train.learning_rate=1".to_owned()];
    let recipe = Recipe::parse(SMALL, "test.toml", &overrides).unwrap();
    assert_eq!(recipe.drafter.init, Start::Target);
    assert_eq!(recipe.train.betas, [0.8, 0.99]);
    assert_eq!(recipe.train.learning_rate, 1.0);
    assert_eq!(recipe.train.steps, 3);
}

#[test]
fn all_problems_at_once() {
    check(
        "[drafter]\nblock_size = 1\ninit = \"zero\"\nlayer_types = [\"full_attention\"]\n[data]\nvalidation_count = 1\nvalidation_share = 0.5\n\
         [train]\nlearning_rate = -1\nbetas = [0.9]\nschedule = 3\n",
        &["train.accumulation=0"],
        &[
            "drafter.mask_token_id is missing (a token that never occurs in the data; SmolLM2: 16)",
            "drafter.init must be \"target\" or \"random\", not \"zero\"",
            "drafter.block_size must be 2 to 256, not 1",
            "drafter.layer_types lists 1 layers, drafter.num_hidden_layers says 5",
            "data.validation_share and data.validation_count are both given: give one",
            "train.steps is missing (optimizer updates of the whole run)",
            "train.schedule must be \"cosine\" or \"linear-tail\" or \"constant\", not 3",
            "train.accumulation (from the override) must be 1 to 1073741824",
            "train.learning_rate must be above 0",
            "train.betas must be two numbers, each 0 or more and below 1",
        ],
    );
}

#[test]
fn errors_name_the_file() {
    let missing = Recipe::load(std::path::Path::new("/nowhere/r.toml"), &[]).unwrap_err().to_string();
    assert!(missing.starts_with("recipe /nowhere/r.toml: cannot read: "), "{missing}");
    let broken = Recipe::parse("[drafter\n", "bad.toml", &[]).unwrap_err().to_string();
    assert!(broken.starts_with("recipe bad.toml: not TOML: TOML parse error at line 1"), "{broken}");
    let two = Recipe::parse("", "empty.toml", &[]).unwrap_err().to_string();
    assert_eq!(
        two,
        "recipe empty.toml: 2 problems:\n  - drafter.mask_token_id is missing (a token that never occurs in the data; SmolLM2: 16)\n  - \
         train.steps is missing (optimizer updates of the whole run)"
    );
    let newer = problems(&format!("recipe_version = 2\n{SMALL}"), &[]);
    assert_eq!(newer, ["recipe_version 2 is unknown (this program reads 1)"]);
}

#[test]
fn a_resolved_recipe_loads_again() {
    let target = tiny::target(1);
    for text in [
        SMALL,
        "[drafter]\nmask_token_id=39\nnum_hidden_layers=2\nlayer_types=[\"sliding_attention\",\"full_attention\"]\nsliding_window=9\n\
         is_causal=false\nrope_theta=5e5\n[data]\nvalidation_count=3\nmax_length=50\n[train]\nsteps=9\nnormalise=\"sequences\"\nholes=\"skip\"\n\
         schedule=\"linear-tail\"\nseed=18446744073\nlearning_rate=0.1234567891234567\n",
    ] {
        let recipe = Recipe::parse(text, "test.toml", &[]).unwrap().resolve(target.spec(), "test.toml").unwrap();
        let written = recipe.to_toml().unwrap();
        let again = Recipe::parse(&written, "written.toml", &[]).unwrap();
        assert_eq!(again, recipe, "{written}");
        assert_eq!(again.resolve(target.spec(), "written.toml").unwrap(), recipe);
        assert!(recipe.differences(&again).unwrap().is_empty());
        assert!(
            recipe.drafter.target_layer_ids.is_some()
                && recipe.train.gamma.is_some()
                && recipe.drafter.head_dim.is_some()
        );
    }
}

#[test]
fn what_does_not_fit_the_target_is_found_before_training() {
    let target = tiny::target(1);
    let text =
        "[drafter]\nmask_token_id = 4000\ntarget_layer_ids = [1, 9]\n[data]\nmax_length = 100000\n[train]\nsteps = 1\n";
    let problems = Recipe::parse(text, "t", &[]).unwrap().resolve(target.spec(), "t").unwrap_err().problems;
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert_eq!(problems[0], "data.max_length is 100000, and the target's context is 192");
    assert!(
        problems.iter().any(|problem| problem.contains("mask_token_id") && problem.contains("4000")),
        "{problems:#?}"
    );
    assert!(
        problems.iter().any(|problem| problem.contains("target_layer_ids") && problem.contains('9')),
        "{problems:#?}"
    );
}

#[test]
fn differences_are_named_by_key() {
    let first = Recipe::parse(SMALL, "a", &[]).unwrap();
    let second = Recipe::parse(SMALL, "b", &["train.gamma=3".into(), "train.log_every=1".into()]).unwrap();
    let differences = first.differences(&second).unwrap();
    let shown: Vec<String> = differences.iter().map(|d| format!("{} {} {}", d.key, d.was, d.now)).collect();
    assert_eq!(shown, ["train.gamma absent 3.0", "train.log_every 10 1"]);
    assert!(HARMLESS_KEYS.contains(&"train.log_every") && !HARMLESS_KEYS.contains(&"train.gamma"));
}

/// The override keys and the keys that a recipe file may hold are one list: every key of a resolved recipe can be overridden.
#[test]
fn every_key_can_be_overridden() {
    let target = tiny::target(1);
    let text = "[drafter]\nmask_token_id=39\nnum_hidden_layers=1\nlayer_types=[\"sliding_attention\"]\nsliding_window=9\nis_causal=false\n\
                rope_theta=5e5\n[data]\nmax_length=50\nvalidation_share=0.1\n[train]\nsteps=9\n";
    let recipe = Recipe::parse(text, "t", &[]).unwrap().resolve(target.spec(), "t").unwrap();
    let table: toml::Table = toml::from_str(&recipe.to_toml().unwrap()).unwrap();
    let mut overrides = vec![];
    for (section, value) in table {
        for (key, value) in value.as_table().into_iter().flatten() {
            overrides.push(format!("{section}.{key}={value}"));
        }
    }
    assert!(overrides.len() > 35, "{overrides:#?}");
    assert_eq!(Recipe::parse("", "empty", &overrides).unwrap(), recipe);
}

#[test]
fn published_layer_rule() {
    for (layers, count, expected) in [
        (36, 5, vec![1, 9, 17, 25, 33]),
        (30, 5, vec![1, 8, 14, 20, 27]),
        (32, 5, vec![1, 8, 15, 22, 29]),
        (24, 3, vec![1, 11, 21]),
        (61, 6, vec![1, 12, 24, 35, 47, 58]),
        (7, 3, vec![1, 2, 4]),
        (24, 1, vec![12]),
    ] {
        assert_eq!(default_target_layer_ids(layers, count), expected, "{count} of {layers}");
    }
}

#[test]
fn shipped_recipes_load() {
    for name in ["smollm2.toml", "smollm2-smoke.toml"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(name);
        Recipe::load(&path, &[]).unwrap();
    }
}
