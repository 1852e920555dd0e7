//! Caches: verify, reject and go on equals a pass that never saw the rejected tokens, to the bit.

use burn::tensor::Device;
use draftsman_contract::CounterRng;
use draftsman_kernels::DeltaRule;
use draftsman_models::{
    LogitRows, ROLLBACK_ROWS, Target, TargetCache, TargetInput, TargetOptions, Want, open_target_with,
};

use super::{MODELS, all_layers, input_ids, open, random_ids, reference, run, testdata};
use crate::compare::{assert_close, assert_same_bits, values};

fn named(features: &[f32], logits: &[f32]) -> [(String, Vec<f32>); 2] {
    [("features".into(), features.to_vec()), ("logits".into(), logits.to_vec())]
}

/// Runs `ids` in pieces of `piece` tokens on a cache that holds what precedes them.
fn go_on(target: &dyn Target, ids: &[u32], piece: usize, cache: &mut TargetCache) -> (Vec<f32>, Vec<f32>) {
    let (mut features, mut logits) = (Vec::new(), Vec::new());
    for piece in ids.chunks(piece) {
        let (f, l) = run(target, piece, cache, &all_layers(target));
        features.extend(f);
        logits.extend(l);
    }
    (features, logits)
}

#[test]
fn any_prefix_block_acceptance_and_continuation_equal_a_fresh_pass_to_the_bit() {
    for model in MODELS {
        let target = open(model);
        let want = all_layers(&*target);
        let (vocab, width) = (target.spec().vocab_size, want.taps.len() * target.spec().hidden_size);
        let mut rng = CounterRng::new(11, &[model.len() as u64]);
        for round in 0..12 {
            let mut below = |n: usize| rng.below(n);
            let (prefix, block, piece) = (below(60), 1 + below(40), 1 + below(9));
            let (accepted, more) = (below(block + 1), 1 + below(20));
            let ids = random_ids(&mut rng, prefix + accepted + more, vocab);
            let (features, logits) = run(&*target, &ids, &mut target.new_cache(), &want);

            let mut cache = target.new_cache();
            if prefix > 0 {
                go_on(&*target, &ids[..prefix], 1 + round * 7, &mut cache);
            }
            let mut guess = ids[prefix..prefix + accepted].to_vec();
            guess.extend(random_ids(&mut rng, block - accepted, vocab));
            run(&*target, &guess, &mut cache, &want);
            let kept = prefix + accepted;
            cache.truncate(kept).unwrap();
            assert_eq!(cache.len(), kept);
            let (f, l) = go_on(&*target, &ids[kept..], piece, &mut cache);
            assert_same_bits(
                &format!("{model}: prefix {prefix}, {accepted} of {block} accepted, pieces of {piece}"),
                &named(&f, &l),
                &named(&features[kept * width..], &logits[kept * vocab..]),
            );
        }
    }
}

#[test]
fn padding_on_the_right_changes_no_real_row() {
    for model in MODELS {
        let target = open(model);
        let want = all_layers(&*target);
        let (vocab, width) = (target.spec().vocab_size, want.taps.len() * target.spec().hidden_size);
        let mut rng = CounterRng::new(12, &[]);
        let real = [5, 23, 16].map(|count| random_ids(&mut rng, count, vocab));
        let padded: Vec<Vec<u32>> =
            real.iter().map(|ids| [ids.as_slice(), &random_ids(&mut rng, 23 - ids.len(), vocab)].concat()).collect();
        let mut caches = [0, 1, 2].map(|_| target.new_cache());
        let mut batch: Vec<_> = padded.iter().zip(&mut caches).map(|(ids, cache)| TargetInput { ids, cache }).collect();
        let out = target.forward(&mut batch, &want, None).unwrap();
        let (features, logits) = (values(out.features.unwrap()), values(out.logits.unwrap()));
        let next = random_ids(&mut rng, 3, vocab);
        for (row, (ids, cache)) in real.iter().zip(&mut caches).enumerate() {
            let mut fresh = target.new_cache();
            let (f, l) = run(&*target, ids, &mut fresh, &want);
            let start = row * 23;
            assert_same_bits(
                &format!("{model}: input {row}"),
                &named(
                    &features[start * width..(start + ids.len()) * width],
                    &logits[start * vocab..(start + ids.len()) * vocab],
                ),
                &named(&f, &l),
            );
            // Without its padding the cache is that of the real tokens.
            cache.truncate(ids.len()).unwrap();
            let ((f, l), (fresh_f, fresh_l)) =
                (run(&*target, &next, cache, &want), run(&*target, &next, &mut fresh, &want));
            assert_same_bits(&format!("{model}: after input {row}"), &named(&f, &l), &named(&fresh_f, &fresh_l));
        }
    }
}

#[test]
fn a_hybrid_goes_back_into_its_last_forward_and_no_farther() {
    let target = open("qwen3_5");
    let vocab = target.spec().vocab_size;
    let last = Want { taps: vec![], logits: LogitRows::Last };
    let mut rng = CounterRng::new(13, &[]);
    let rows = ROLLBACK_ROWS + 45;
    let ids = random_ids(&mut rng, rows, vocab);
    let prefilled = || {
        let mut cache = target.new_cache();
        run(&*target, &ids, &mut cache, &last);
        cache
    };
    let fresh = |len: usize| {
        let mut cache = target.new_cache();
        if len > 0 {
            run(&*target, &ids[..len], &mut cache, &last);
        }
        run(&*target, &[7], &mut cache, &last).1
    };
    // As far as rows are kept, in one step and in two, and to nothing.
    for steps in [&[rows - 1][..], &[45], &[200, 46], &[0]] {
        let mut cache = prefilled();
        for &len in steps {
            cache.truncate(len).unwrap();
        }
        let len = *steps.last().unwrap();
        assert_eq!(run(&*target, &[7], &mut cache, &last).1, fresh(len), "back to {steps:?}");
    }
    // One row farther is refused and changes nothing.
    let mut cache = prefilled();
    let error = cache.truncate(44).unwrap_err().to_string();
    for part in ["from 301 tokens to 44", "at most 256 rows", "reach back to 45", "hint"] {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
    assert_eq!(cache.len(), rows);
    assert_eq!(run(&*target, &[7], &mut cache, &last).1, fresh(rows));
    // The newest forward is the one that can be taken back.
    assert!(cache.truncate(rows - 1).is_err());
    cache.truncate(rows).unwrap();
    assert_eq!(run(&*target, &[7], &mut cache, &last).1, fresh(rows));
}

#[test]
fn a_hybrid_cache_does_not_grow_with_the_sequence_in_its_delta_layers() {
    let target = open("qwen3_5");
    let spec = target.spec().clone();
    let delta = spec.delta.unwrap();
    let states = 4 * (delta.value_heads * delta.key_dim * delta.value_dim + (delta.conv_width - 1) * delta.channels());
    let kept_row = 4 * (delta.channels() + 2 * delta.value_heads);
    let up_to_a_delta_layer = Want { taps: vec![0], logits: LogitRows::None };
    let bytes_after = |pieces: &[usize]| {
        let mut cache = target.new_cache();
        let empty = cache.bytes();
        for &count in pieces {
            run(&*target, &vec![1; count], &mut cache, &up_to_a_delta_layer);
        }
        cache.bytes() - empty
    };
    // The first layer is the only one that ran; its rows of the last forward and the state before them are kept.
    assert_eq!(bytes_after(&[10]), states + 10 * kept_row);
    assert_eq!(bytes_after(&[40, 1]), states + kept_row);
    assert_eq!(bytes_after(&[400]), states + ROLLBACK_ROWS * kept_row);
}

#[test]
fn every_delta_rule_carries_its_state_through_caches() {
    for (rule, size, cached) in [
        (DeltaRule::Chunked { chunk: 16 }, 1e-5, 1e-5),
        (DeltaRule::Chunked { chunk: 64 }, 1e-5, 1e-5),
        (DeltaRule::FlaRounding, 0.2, 0.2),
    ] {
        let options = TargetOptions { delta_rule: rule, ..TargetOptions::default() };
        let target = open_target_with(&testdata("qwen3_5"), &Device::flex(), &options).unwrap();
        let exact = open("qwen3_5");
        let ids = &input_ids(&reference("qwen3_5"))[0];
        let want = Want { taps: vec![], logits: LogitRows::All };
        let (_, fresh) = run(&*target, ids, &mut target.new_cache(), &want);
        let (_, recurrent) = run(&*exact, ids, &mut exact.new_cache(), &want);
        assert_close(&format!("{rule:?} against recurrent"), &fresh, &recurrent, size);
        if rule == DeltaRule::FlaRounding {
            let same = fresh.iter().zip(&recurrent).filter(|(a, b)| a == b).count();
            assert!(same < fresh.len() / 10, "rounded and exact logits are the same");
        }
        let vocab = target.spec().vocab_size;
        let mut cache = target.new_cache();
        run(&*target, &ids[..70], &mut cache, &want);
        run(&*target, &ids[70..90], &mut cache, &want);
        cache.truncate(81).unwrap();
        let (_, got) = run(&*target, &ids[81..], &mut cache, &want);
        assert_close(&format!("{rule:?}, cached"), &got, &fresh[81 * vocab..], cached);
    }
    // A long prefill is cut where a chunk ends, so its rows are the same as in one piece.
    let options = TargetOptions { delta_rule: DeltaRule::Chunked { chunk: 16 }, ..TargetOptions::default() };
    let target = open_target_with(&testdata("qwen3_5"), &Device::flex(), &options).unwrap();
    let ids = random_ids(&mut CounterRng::new(14, &[]), ROLLBACK_ROWS + 77, target.spec().vocab_size);
    let mut cache = target.new_cache();
    run(&*target, &ids, &mut cache, &Want { taps: vec![], logits: LogitRows::Last });
    assert!(cache.truncate(63).is_err());
    cache.truncate(64).unwrap();
    cache.truncate(64 + 16).unwrap();
    assert_eq!(cache.len(), 64);
}
