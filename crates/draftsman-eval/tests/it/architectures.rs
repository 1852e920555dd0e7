//! Every target architecture: speculative = plain and replay = live, token for token, with drafts rejected in all places.

use std::path::Path;

use draftsman_contract::{CounterRng, TreeRule};
use draftsman_decode::{DflashProposer, GenerateOptions, NgramProposer, Proposer, generate};
use draftsman_eval::{EvalPrompt, TargetAnswer, first_cycle_difference, replay};
use draftsman_kernels::{DeviceKind, WeightDtype, open};
use draftsman_models::{Dflash, DrafterConfig, Init, Target, init, open_target};
use serde_json::json;

use crate::branching::Branching;
use crate::walk::Hinted;

pub(crate) const TARGETS: [&str; 12] = [
    "llama_plain",
    "llama_scaled",
    "qwen2",
    "qwen2_untied",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_mixed",
    "qwen3_5",
    "qwen3_5_nested",
    "qwen3_5_moe",
    "gpt_oss",
    "gpt_oss_mxfp4",
];

/// A random drafter for any target.
pub(crate) fn drafter(target: &dyn Target, block_size: usize) -> Dflash {
    let spec = target.spec();
    let mut taps = vec![0, spec.num_layers - 2];
    taps.dedup();
    let raw = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": spec.hidden_size, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "vocab_size": spec.vocab_size, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 512, "num_target_layers": spec.num_layers,
        "block_size": block_size,
        "dflash_config": { "target_layer_ids": taps, "mask_token_id": spec.vocab_size - 1 },
    });
    let config = DrafterConfig::from_json(&raw, Path::new("config.json of the drafter")).unwrap();
    init(&config, target, Init::Random, 3, target.device()).unwrap()
}

#[test]
fn speculative_is_plain_and_replay_is_live() {
    for name in TARGETS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
        let target = open_target(&path, &open(DeviceKind::Flex).unwrap(), WeightDtype::F32).unwrap();
        let target = target.as_ref();
        let drafter = drafter(target, 6);
        let (mut accepted, mut rejected) = (0, 0);
        for seed in 0..3 {
            let mut rng = CounterRng::new(seed, &[5]);
            let ids: Vec<u32> = (0..7 + 9 * seed).map(|_| rng.below(target.spec().vocab_size - 1) as u32).collect();
            let prompt = EvalPrompt::new(0, seed.to_string(), ids);
            let options = GenerateOptions::greedy(30, &[]);
            let plain = generate(target, None, &prompt.ids, &options).unwrap();
            let answer = TargetAnswer { output_ids: plain.output_ids().to_vec(), finish: plain.finish };
            let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![
                Box::new(NgramProposer::new(6)),
                Box::new(DflashProposer::new("drafter", &drafter, target, None).unwrap()),
                Box::new(Hinted::new(&plain.ids, 2)),
                Box::new(Hinted::new(&plain.ids, 5)),
                Box::new(Hinted::new(&plain.ids, 1000)),
            ];
            for proposer in &mut proposers {
                let live = generate(target, Some(proposer.as_mut()), &prompt.ids, &options).unwrap();
                assert_eq!(live.ids, plain.ids, "{name}, prompt {seed}, {}", proposer.name());
                let replayed = replay(target, proposer.as_mut(), &prompt, &answer, &options).unwrap();
                let difference = first_cycle_difference(&live.cycles, &replayed);
                assert_eq!(difference, None, "{name}, prompt {seed}, {}", proposer.name());
                accepted += live.cycles.iter().map(|c| c.accepted).sum::<usize>();
                rejected += live.cycles.iter().map(|c| c.block.len() - 1 - c.accepted).sum::<usize>();
            }
        }
        assert!(accepted > 100 && rejected > 100, "{name}: {accepted} drafts accepted, {rejected} rejected");
    }
}

#[test]
fn trees_are_plain_and_their_replay_is_live() {
    for name in TARGETS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name);
        let target = open_target(&path, &open(DeviceKind::Flex).unwrap(), WeightDtype::F32).unwrap();
        let target = target.as_ref();
        let vocab = target.spec().vocab_size;
        let drafter = drafter(target, 7);
        let (mut deepest, mut side) = (0, 0);
        for (seed, temperature) in [(0, 0.0), (1, 0.0), (2, 0.7)] {
            let mut rng = CounterRng::new(seed, &[6]);
            let ids: Vec<u32> = (0..7 + 9 * seed).map(|_| rng.below(vocab - 1) as u32).collect();
            let prompt = EvalPrompt::new(0, seed.to_string(), ids);
            let longer = GenerateOptions { temperature, seed, top_k: 20, ..GenerateOptions::greedy(60, &[]) };
            let known = generate(target, None, &prompt.ids, &longer).unwrap().ids;
            // One ends by its budget, one in the middle of a block.
            let stop = vec![known[prompt.ids.len() + 25]];
            for options in [
                GenerateOptions { max_new_tokens: 30, ..longer.clone() },
                GenerateOptions { max_new_tokens: 40, stop_ids: stop, ..longer.clone() },
            ] {
                let plain = generate(target, None, &prompt.ids, &options).unwrap();
                let answer = TargetAnswer { output_ids: plain.output_ids().to_vec(), finish: plain.finish };
                for (budget, seeded) in [(4, false), (8, false), (16, true), (64, false)] {
                    let rule = TreeRule { seeded, ..TreeRule::best_first(budget) };
                    let dflash = DflashProposer::new("drafter", &drafter, target, None).unwrap();
                    let mut proposers: Vec<Box<dyn Proposer + '_>> = vec![
                        Box::new(dflash.with_tree(rule).unwrap()),
                        Box::new(Branching::new(&known, vocab, 9, &[], rule)),
                    ];
                    for proposer in &mut proposers {
                        let what = format!("{name}, prompt {seed}, {} {rule:?}", proposer.name());
                        let live = generate(target, Some(proposer.as_mut()), &prompt.ids, &options).unwrap();
                        assert_eq!((&live.ids, &live.gaps), (&plain.ids, &plain.gaps), "{what}");
                        let replayed = replay(target, proposer.as_mut(), &prompt, &answer, &options).unwrap();
                        assert_eq!(first_cycle_difference(&live.cycles, &replayed), None, "{what}");
                        deepest = live.cycles.iter().map(|c| c.accepted).fold(deepest, usize::max);
                        side += live.cycles.iter().filter(|c| c.parents.is_some() && c.accepted > 0).count();
                    }
                }
            }
        }
        assert!(deepest >= 6 && side > 50, "{name}: {deepest} drafts accepted at most, {side} trees with some");
    }
}
