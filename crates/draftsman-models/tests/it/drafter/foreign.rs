//! Drafters of other trainers: torch files, wrapped names, the target's matrices saved with them.

use std::path::Path;

use burn::tensor::Device;
use draftsman_kernels::{Weight, WeightDtype};
use draftsman_models::{Dflash, NameMap, load_drafter, open_drafter};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::fixture::folder;

fn torch(name: &str) -> std::path::PathBuf {
    folder("full").join("../torch").join(name)
}

fn golden() -> Dflash {
    load_drafter(&folder("full"), &Device::flex()).unwrap()
}

/// A folder with the golden drafter's configuration and these files.
fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(folder("full").join("config.json"), dir.path().join("config.json")).unwrap();
    for (name, source) in files {
        std::fs::copy(torch(source), dir.path().join(name)).unwrap();
    }
    dir
}

fn refused<T>(result: Result<T, draftsman_models::ModelError>, expected: &[&str]) {
    let error = result.err().expect("must be refused").to_string();
    for part in expected {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn a_training_checkpoint_of_torch_is_a_drafter() {
    for name in ["drafter.pt", "pytorch_model.bin", "last.ckpt", "x.pth"] {
        // What lies beside the weights does not matter.
        let dir = folder_with(&[(name, "training.pt"), ("optimizer.pt", "evil.pt"), ("training_args.bin", "evil.pt")]);
        for path in [dir.path().to_path_buf(), dir.path().join(name)] {
            let opened = open_drafter(&path, None, &Device::flex()).unwrap();
            assert_eq!(opened.drafter.named_tensors(), golden().named_tensors(), "{name}");
            assert_eq!(opened.renamed().count(), 25);
            assert_eq!(opened.ignored().len(), 7);
            assert!(opened.copies().is_empty());
            let loaded = load_drafter(&path, &Device::flex()).unwrap();
            assert_eq!(loaded.named_tensors(), golden().named_tensors(), "{name}");
        }
    }
}

#[test]
fn folders_without_one_set_of_weights_are_refused() {
    let open = |dir: &Path| open_drafter(dir, None, &Device::flex());
    let dir = folder_with(&[("a.pt", "training.pt"), ("b.pt", "training.pt")]);
    refused(open(dir.path()), &["several files could be the weights: a.pt, b.pt"]);
    let dir = folder_with(&[("optimizer.pt", "training.pt")]);
    refused(open(dir.path()), &["neither model.safetensors nor model.safetensors.index.json"]);
    let dir = folder_with(&[("__0_0.distcp", "training.pt")]);
    refused(open(dir.path()), &["torch.distributed", "dcp_to_torch"]);
    let dir = folder_with(&[("a.pt", "evil.pt")]);
    refused(open(dir.path()), &["a.pt", "`posix.system`"]);
    let dir = folder_with(&[("a.pt", "views.pt")]);
    refused(
        open(dir.path()),
        &[
            "a.pt",
            "2 problems",
            "25 tensors are missing: `fc.weight` [32, 96], ",
            "25 tensors are not part of",
            ": `bf16`, ",
        ],
    );
    refused(open(&dir.path().join("config.json")), &["config.json", "not a drafter's weight file"]);
    refused(open(&dir.path().join("none.pt")), &["none.pt"]);
}

/// The golden drafter's tensors under other names, and more of them.
fn renamed(rename: impl Fn(&str) -> String, more: &[(&str, [usize; 2], f32)]) -> tempfile::TempDir {
    let dir = folder_with(&[]);
    let bytes = std::fs::read(folder("full").join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut views: Vec<(String, TensorView<'_>)> =
        stored.tensors().into_iter().map(|(name, view)| (rename(&name), view)).collect();
    let data: Vec<Vec<u8>> =
        more.iter().map(|(_, shape, value)| value.to_le_bytes().repeat(shape[0] * shape[1])).collect();
    for ((name, shape, _), data) in more.iter().zip(&data) {
        views.push((name.to_string(), TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap()));
    }
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn names_of_other_trainers_need_no_map_and_others_do() {
    let torchspec = |name: &str| {
        let name = match name {
            "fc.weight" => "context_proj.weight",
            "hidden_norm.weight" => "context_norm.weight",
            "norm.weight" => "final_norm.weight",
            other => other,
        };
        format!("draft_model.{name}")
    };
    let dir = renamed(torchspec, &[]);
    assert_eq!(load_drafter(dir.path(), &Device::flex()).unwrap().named_tensors(), golden().named_tensors());

    let dir = renamed(|name| name.replace("layers.", "blocks.").replace("self_attn", "attention"), &[]);
    let open = |text: &str| {
        let map = NameMap::parse(text, Path::new("map.toml")).unwrap();
        open_drafter(dir.path(), Some(&map), &Device::flex())
    };
    let text = "\"blocks.{i}.attention.*\" = \"layers.{i}.self_attn.*\"\n\
                \"blocks.{i}.mlp.*\" = \"layers.{i}.mlp.*\"\n\
                \"blocks.{i}.input_layernorm.weight\" = \"layers.{i}.input_layernorm.weight\"\n\
                \"blocks.{i}.post_attention_layernorm.weight\" = \"layers.{i}.post_attention_layernorm.weight\"";
    assert_eq!(open(text).unwrap().drafter.named_tensors(), golden().named_tensors());
    // Without one of the rules: what is missing and what is left over.
    refused(
        open(&text[..text.rfind('\n').unwrap()]),
        &[
            "`layers.1.post_attention_layernorm.weight` [32] is missing",
            "`blocks.0.post_attention_layernorm.weight` is not part",
        ],
    );
}

#[test]
fn matrices_of_the_target_must_be_the_targets() {
    let device = Device::flex();
    let matrix = |value: f32| Weight::from_f32(vec![value; 61 * 32], [61, 32], WeightDtype::Bf16, &device).unwrap();
    let dir =
        renamed(str::to_string, &[("model.embed_tokens.weight", [61, 32], 1.5), ("lm_head.weight", [61, 32], 2.0)]);
    refused(
        load_drafter(dir.path(), &device),
        &["2 problems", "`embed_tokens.weight` is a matrix of the target", "`lm_head.weight` is a matrix"],
    );
    let opened = open_drafter(dir.path(), None, &device).unwrap();
    assert_eq!(opened.drafter.named_tensors(), golden().named_tensors());
    assert_eq!(opened.copies(), ["embed_tokens.weight", "lm_head.weight"]);
    let errors = opened.check_copies(&matrix(1.5), &matrix(2.0), &device).unwrap();
    assert_eq!(errors, [("embed_tokens.weight", 0.0), ("lm_head.weight", 0.0)]);
    // 2.0 beside 2.25: 1/9.
    let errors = opened.check_copies(&matrix(1.5), &matrix(2.25), &device).unwrap();
    assert!((errors[1].1 - 1.0 / 9.0).abs() < 1e-9, "{errors:?}");
    refused(
        opened.check_copies(&matrix(1.0), &matrix(f32::NAN), &device),
        &["2 problems", "`embed_tokens.weight` is not the target's (relative error 0.500)", "`lm_head.weight` is not"],
    );
    let other = Weight::from_f32(vec![1.5; 64 * 32], [64, 32], WeightDtype::F32, &device).unwrap();
    refused(opened.check_copies(&other, &matrix(2.0), &device), &["has shape [61, 32], the target's has [64, 32]"]);
    // Told to leave them alone.
    let map = NameMap::parse("ignore = [\"*embed_tokens.weight\", \"lm_head.weight\"]", Path::new("m.toml")).unwrap();
    assert!(open_drafter(dir.path(), Some(&map), &device).unwrap().copies().is_empty());
    // A head of another vocabulary is no head of this drafter.
    let dir = renamed(str::to_string, &[("lm_head.weight", [60, 32], 2.0)]);
    refused(open_drafter(dir.path(), None, &device), &["`lm_head.weight` has shape [60, 32], expected [61, 32]"]);
}
