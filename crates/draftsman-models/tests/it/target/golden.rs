//! Numbers: against transformers, and against itself when cached, batched or cut short.

use burn::tensor::Tensor;
use draftsman_models::{LogitRows, Target, TargetInput, TargetOutput, Want, WeightSource};

use super::{GGUF, MODELS, all_layers, input_ids, open, reference, run, tolerance};
use crate::compare::{assert_close, assert_same_bits, values};

/// All rows of the golden batch in one forward, every observed tensor by name.
fn observe(target: &dyn Target, ids: &[Vec<u32>]) -> (TargetOutput, Vec<(String, Vec<f32>)>) {
    let mut caches: Vec<_> = ids.iter().map(|_| target.new_cache()).collect();
    let mut batch: Vec<_> = ids.iter().zip(&mut caches).map(|(ids, cache)| TargetInput { ids, cache }).collect();
    let mut seen = Vec::new();
    let mut record = |name: &str, x: &Tensor<2>| seen.push((name.to_string(), values(x.clone())));
    let out = target.forward(&mut batch, &all_layers(target), Some(&mut record)).unwrap();
    (out, seen)
}

#[test]
fn every_layer_and_the_logits_equal_transformers() {
    for (model, golden) in MODELS.map(|m| (m, m)).into_iter().chain(GGUF) {
        let (target, reference) = (open(model), reference(golden));
        let (out, mut seen) = observe(&*target, &input_ids(&reference));
        let layers = target.spec().num_layers;
        let mut names: Vec<String> = vec!["embed".into()];
        names.extend((0..layers).map(|i| format!("layer.{i}")));
        names.push("final_norm".into());
        assert_eq!(seen.iter().map(|(n, _)| n).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
        seen.push(("logits".into(), values(out.logits.unwrap())));
        for (name, got) in &seen {
            assert_close(&format!("{model}: {name}"), got, &reference.load_f32(name).unwrap(), tolerance(&*target));
        }
    }
}

#[test]
fn taps_are_raw_layer_outputs_in_the_order_asked_for() {
    for model in MODELS {
        let target = open(model);
        let (hidden, layers) = (target.spec().hidden_size, target.spec().num_layers);
        let ids = input_ids(&reference(model));
        let (_, seen) = observe(&*target, &ids);
        let last = layers - 1;
        for taps in [vec![0], vec![last], vec![1, 0], vec![last, 0, last]] {
            for logits in [LogitRows::None, LogitRows::Last] {
                let mut cache = target.new_cache();
                let (features, _) = run(&*target, &ids[0], &mut cache, &Want { taps: taps.clone(), logits });
                for (row, row_values) in features.chunks(taps.len() * hidden).enumerate() {
                    for (tap, got) in taps.iter().zip(row_values.chunks(hidden)) {
                        let expected = &seen[tap + 1].1[row * hidden..(row + 1) * hidden];
                        assert_eq!(got, expected, "{model}: row {row} of layer {tap}, taps {taps:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn cached_blocks_with_rollback_equal_a_fresh_pass_to_the_bit() {
    for model in MODELS {
        let target = open(model);
        let ids = &input_ids(&reference(model))[0];
        let want = all_layers(&*target);
        let (vocab, width) = (target.spec().vocab_size, want.taps.len() * target.spec().hidden_size);
        let (features, logits) = run(&*target, ids, &mut target.new_cache(), &want);
        // (prefix, block, accepted of the block, continuation by pieces of)
        for (prefix, block, accepted, piece) in [(1, 8, 0, 1), (17, 16, 5, 3), (20, 16, 16, 7), (30, 1, 1, 1)] {
            let mut cache = target.new_cache();
            run(&*target, &ids[..prefix], &mut cache, &Want { taps: vec![], logits: LogitRows::Last });
            // The block's rejected tail holds other tokens than the text.
            let mut guess: Vec<u32> = ids[prefix..prefix + block].to_vec();
            guess[accepted..].iter_mut().for_each(|id| *id = (*id + 1) % vocab as u32);
            run(&*target, &guess, &mut cache, &want);
            cache.truncate(prefix + accepted).unwrap();
            assert_eq!(cache.len(), prefix + accepted);
            let mut at = prefix + accepted;
            while at < ids.len() {
                let next = (at + piece).min(ids.len());
                let (f, l) = run(&*target, &ids[at..next], &mut cache, &want);
                let what = format!("{model}: prefix {prefix}, {accepted} of {block} accepted, rows {at}..{next}");
                assert_same_bits(
                    &what,
                    &[("features".into(), f), ("logits".into(), l)],
                    &[
                        ("features".into(), features[at * width..next * width].to_vec()),
                        ("logits".into(), logits[at * vocab..next * vocab].to_vec()),
                    ],
                );
                at = next;
            }
        }
    }
}

#[test]
fn inputs_of_a_batch_equal_single_runs_to_the_bit() {
    for model in MODELS {
        let target = open(model);
        let ids = input_ids(&reference(model));
        let want = all_layers(&*target);
        let (vocab, width) = (target.spec().vocab_size, want.taps.len() * target.spec().hidden_size);
        // Inputs of several lengths, with unequal pasts.
        let inputs = [(0, &ids[0][..5]), (9, &ids[1][9..10]), (3, &ids[0][3..30]), (20, &ids[1][20..33])];
        let pasts = [&ids[0][..0], &ids[1][..9], &ids[0][..3], &ids[1][..20]];
        let filled = |past: &[u32]| {
            let mut cache = target.new_cache();
            if !past.is_empty() {
                run(&*target, past, &mut cache, &want);
            }
            cache
        };
        let mut caches: Vec<_> = pasts.iter().map(|past| filled(past)).collect();
        let mut batch: Vec<_> =
            inputs.iter().zip(&mut caches).map(|((_, ids), cache)| TargetInput { ids, cache }).collect();
        let out = target.forward(&mut batch, &want, None).unwrap();
        let (features, logits) = (values(out.features.unwrap()), values(out.logits.unwrap()));
        let mut last = Vec::new();
        let mut row = 0;
        for ((past, input), past_ids) in inputs.iter().zip(pasts) {
            let (f, l) = run(&*target, input, &mut filled(past_ids), &want);
            let rows = row..row + input.len();
            assert_same_bits(
                &format!("{model}: input of {} tokens after {past}", input.len()),
                &[
                    ("features".into(), features[rows.start * width..rows.end * width].to_vec()),
                    ("logits".into(), logits[rows.start * vocab..rows.end * vocab].to_vec()),
                ],
                &[("features".into(), f), ("logits".into(), l.clone())],
            );
            last.extend_from_slice(&l[l.len() - vocab..]);
            row = rows.end;
        }
        for (cache, (past, input)) in caches.iter().zip(inputs) {
            assert_eq!(cache.len(), past + input.len());
        }
        // Chosen rows are the same rows.
        for (rows, expected) in [
            (LogitRows::Last, last),
            (LogitRows::Rows(vec![7, 0]), [&logits[7 * vocab..8 * vocab], &logits[..vocab]].concat()),
        ] {
            let mut caches: Vec<_> = pasts.iter().map(|past| filled(past)).collect();
            let mut batch: Vec<_> =
                inputs.iter().zip(&mut caches).map(|((_, ids), cache)| TargetInput { ids, cache }).collect();
            let out = target.forward(&mut batch, &Want { taps: vec![], logits: rows.clone() }, None).unwrap();
            assert!(out.features.is_none());
            assert_eq!(values(out.logits.unwrap()), expected, "{model}: {rows:?}");
        }
    }
}
