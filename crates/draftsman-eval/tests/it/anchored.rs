//! Validation at random anchors against the long way round.

use draftsman_contract::{HoleRule, argmax, log_sum_exp};
use draftsman_decode::{DflashProposer, GenerateOptions, Proposer, generate};
use draftsman_eval::{PreparedValidation, Validation, validate};
use draftsman_kernels::head_logits;
use draftsman_models::{LogitRows, Target, TargetInput, Want};

use crate::tiny;

const BLOCK: usize = 6;

/// Greedy answers as documents: the prompt is unsupervised, and one token in the middle of the second answer too.
fn documents(target: &dyn Target) -> Vec<(Vec<u32>, Vec<bool>)> {
    (0..4)
        .map(|i| {
            let prompt = tiny::prompt(i, 3 + 2 * i as usize);
            let ids = generate(target, None, &prompt, &GenerateOptions::greedy(20, &[])).unwrap().ids;
            let mut mask: Vec<bool> = (0..ids.len()).map(|at| at >= prompt.len()).collect();
            if i == 1 {
                mask[prompt.len() + 9] = false;
            }
            (ids, mask)
        })
        .collect()
}

#[test]
fn every_block_is_judged_as_decoding_would_draft_it() {
    let target = tiny::target(7);
    let drafter = tiny::drafter(target.as_ref(), BLOCK, 7);
    let gamma = 3.0;
    for holes in [HoleRule::Cut, HoleRule::Skip] {
        let validation = Validation::draw(documents(target.as_ref()), 1000, 1, holes, gamma);
        assert!(validation.anchors() > 60);
        let report = validate(target.as_ref(), &drafter, &validation).unwrap();

        let (mut numerator, mut denominator) = (0.0, 0.0);
        let (mut hits, mut valid) = (vec![0u64; BLOCK - 1], vec![0u64; BLOCK - 1]);
        let mut chain = Vec::new();
        for document in &validation.documents {
            for &anchor in &document.anchors {
                // Decode: features of the rows before the anchor alone, one block.
                let features = target
                    .forward(
                        &mut [TargetInput { ids: &document.ids[..anchor], cache: &mut target.new_cache() }],
                        &Want { taps: tiny::TAPS.to_vec(), logits: LogitRows::None },
                        None,
                    )
                    .unwrap()
                    .features;
                let mut proposer = DflashProposer::new("d", &drafter, target.as_ref(), None).unwrap();
                proposer.begin();
                proposer.observe(features.clone(), &document.ids[..anchor]).unwrap();
                let drafts = proposer.propose(&document.ids[..=anchor], BLOCK - 1).unwrap();
                let logits = draft_logits(target.as_ref(), &drafter, features.unwrap(), document.ids[anchor], anchor);

                let mut unbroken = true;
                let mut accepted = 0;
                let mut matching = true;
                assert_eq!(drafts.len(), BLOCK - 1);
                for (slot, (&draft, logits)) in drafts.iter().zip(&logits).enumerate() {
                    assert_eq!(draft as usize, argmax(logits));
                    let at = anchor + 1 + slot;
                    let supervised = document.loss_mask.get(at) == Some(&true);
                    unbroken &= supervised;
                    if !supervised || (holes == HoleRule::Cut && !unbroken) {
                        continue;
                    }
                    let token = document.ids[at];
                    let weight = (-(slot as f64) / gamma).exp();
                    numerator += weight * (log_sum_exp(logits) - f64::from(logits[token as usize]));
                    denominator += weight;
                    valid[slot] += 1;
                    hits[slot] += u64::from(draft == token);
                    matching &= unbroken && draft == token;
                    accepted += u64::from(matching);
                }
                chain.push(accepted);
            }
        }
        assert_eq!(report.anchors, chain.len());
        assert_eq!((&report.chain.slot_hits, &report.chain.slot_valid), (&hits, &valid));
        assert_eq!(report.chain.accepted, chain.iter().sum::<u64>());
        assert_eq!(report.chain_accepted_drafts, Some(chain.iter().sum::<u64>() as f64 / chain.len() as f64));
        assert!((report.loss_denominator - denominator).abs() < 1e-5 * denominator);
        assert!(
            (report.loss - numerator / denominator).abs() < 1e-5 * report.loss,
            "{} {}",
            report.loss,
            numerator / denominator
        );
        // Wider ways accept at least as much, for every block and hence in the mean.
        assert!(report.top8_streak.accepted >= report.ddtree8.accepted);
        assert!(report.top8_streak.accepted > report.chain.accepted);
        assert_eq!(report.chain.responses.len(), validation.documents.len());
    }
}

/// Logits of the predicting slots, `[BLOCK - 1][vocab]`, by the training path with a context of its own.
fn draft_logits(
    target: &dyn Target,
    drafter: &draftsman_models::Dflash,
    features: burn::tensor::Tensor<2>,
    anchor_id: u32,
    anchor: usize,
) -> Vec<Vec<f32>> {
    use draftsman_contract::{BlockLayout, LayoutRules, default_gamma};
    use draftsman_models::Context;
    let contract = &drafter.config().contract;
    let rules = LayoutRules::from(contract, HoleRule::Cut, default_gamma(BLOCK));
    let layout = BlockLayout::decode(&rules, anchor, BLOCK);
    let mut ids = vec![0; anchor];
    ids.push(anchor_id);
    let block = drafter.embed(&layout.block_ids(&ids, tiny::MASK), target.embedding()).unwrap();
    let positions: Vec<u32> = (0..anchor as u32).collect();
    let context = Context::Rows { context: drafter.context(features).unwrap(), positions: &positions };
    let hidden = drafter.forward(block, &layout, context, None).unwrap();
    let logits = head_logits(hidden, target.head(), &drafter.head_options(0));
    let values: Vec<f32> = logits.into_data().iter::<f32>().collect();
    values.chunks(tiny::VOCAB as usize).skip(1).map(<[f32]>::to_vec).collect()
}

#[test]
fn it_is_deterministic_and_the_same_prepared_or_saved() {
    let target = tiny::target(8);
    let drafter = tiny::drafter(target.as_ref(), BLOCK, 8);
    let validation = Validation::draw(documents(target.as_ref()), 5, 1, HoleRule::Cut, 4.0);
    assert_eq!(validation, Validation::draw(documents(target.as_ref()), 5, 1, HoleRule::Cut, 4.0));
    assert_ne!(validation, Validation::draw(documents(target.as_ref()), 5, 2, HoleRule::Cut, 4.0));
    let report = validate(target.as_ref(), &drafter, &validation).unwrap();
    let saved = serde_json::to_string(&validation).unwrap();
    assert!(saved.contains("\"loss_mask\":[0,0,0,1"), "{saved}");
    let loaded: Validation = serde_json::from_str(&saved).unwrap();
    assert_eq!(loaded, validation);
    assert_eq!(validate(target.as_ref(), &drafter, &loaded).unwrap(), report);
    let prepared = PreparedValidation::new(target.as_ref(), &validation, &tiny::TAPS).unwrap();
    assert_eq!(prepared.judge(&drafter).unwrap(), report);
    // A drafter in training gives the same numbers as its inference copy.
    assert_eq!(prepared.judge(&drafter.clone().trainable()).unwrap(), report);
    // More anchors than one forward takes: blocks don't see each other.
    let many = Validation::draw(documents(target.as_ref()), 1000, 1, HoleRule::Cut, 4.0);
    let mut twice = many.clone();
    for document in &mut twice.documents {
        document.anchors =
            [&document.anchors[..], &document.anchors, &document.anchors, &document.anchors, &document.anchors]
                .concat();
        assert!(document.anchors.len() > 64);
    }
    let one = validate(target.as_ref(), &drafter, &many).unwrap();
    let five = validate(target.as_ref(), &drafter, &twice).unwrap();
    assert_eq!(five.chain.accepted, 5 * one.chain.accepted);
    assert_eq!(five.ddtree8.accepted, 5 * one.ddtree8.accepted);
    assert!((five.loss - one.loss).abs() < 1e-12 * one.loss);
}

#[test]
fn unusable_validation_is_refused() {
    let target = tiny::target(8);
    let drafter = tiny::drafter(target.as_ref(), BLOCK, 8);
    let good = Validation::draw(documents(target.as_ref()), 5, 1, HoleRule::Cut, 4.0);
    let check = |change: &dyn Fn(&mut Validation), expected: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = validate(target.as_ref(), &drafter, &bad).expect_err(expected).to_string();
        assert!(error.contains(expected), "`{error}` should say `{expected}`");
    };
    check(&|v| v.version = 3, "version 3");
    check(&|v| v.documents.clear(), "no anchor");
    check(&|v| v.documents[1].anchors[0] = 0, "document 1: anchor 0");
    check(&|v| v.documents[2].loss_mask.truncate(3), "document 2: loss mask");
    check(&|v| v.documents[0].ids[0] = 40, "token id 40");
    assert!(
        serde_json::from_str::<Validation>("{\"version\":1,\"holes\":\"cut\",\"gamma\":1,\"documents\":[],\"x\":1}")
            .is_err()
    );
    let mut other = tiny::drafter_config(BLOCK);
    other.contract.target_layer_ids = vec![1, 2];
    let other = drafter.with_config(other).unwrap();
    let prepared = PreparedValidation::new(target.as_ref(), &good, &tiny::TAPS).unwrap();
    assert!(prepared.judge(&other).unwrap_err().to_string().contains("[1, 2]"));
}
