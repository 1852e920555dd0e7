//! Layers left in the file: the same bits, and a file that breaks under way.

use burn::tensor::Device;
use draftsman_kernels::WeightDtype;
use draftsman_models::{LogitRows, TargetInput, Want, open_target, open_target_streamed};

use super::{GGUF, MODELS, all_layers, input_ids, reference, run, testdata};
use crate::compare::{assert_same_bits, values};

#[test]
fn streamed_equals_resident_to_the_bit() {
    for (model, golden) in MODELS.map(|m| (m, m)).into_iter().chain(GGUF) {
        for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
            let path = testdata(model);
            let resident = open_target(&path, &Device::flex(), dtype).unwrap();
            let streamed = open_target_streamed(&path, &Device::flex(), dtype).unwrap();
            assert_eq!(streamed.spec(), resident.spec());
            assert!(streamed.layer_weights(0).is_none());
            let ids = input_ids(&reference(golden));
            let outputs = [&resident, &streamed].map(|target| {
                let mut caches = [target.new_cache(), target.new_cache()];
                let mut batch: Vec<_> =
                    ids.iter().zip(&mut caches).map(|(ids, cache)| TargetInput { ids, cache }).collect();
                let out = target.forward(&mut batch, &all_layers(&**target), None).unwrap();
                // And on the caches.
                let (f, l) = run(&**target, &ids[1][..9], &mut caches[0], &all_layers(&**target));
                [values(out.features.unwrap()), values(out.logits.unwrap()), f, l]
                    .into_iter()
                    .zip(["features", "logits", "cached features", "cached logits"])
                    .map(|(values, name)| (name.to_string(), values))
                    .collect::<Vec<_>>()
            });
            assert_same_bits(&format!("{model}, {dtype:?}"), &outputs[1], &outputs[0]);
        }
    }
}

#[test]
fn a_file_that_breaks_under_way_leaves_the_caches_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(testdata("qwen3_5_nested")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let target = open_target_streamed(dir.path(), &Device::flex(), WeightDtype::F32).unwrap();
    let ids = &input_ids(&reference("qwen3_5_nested"))[0];
    let want = Want { taps: vec![], logits: LogitRows::All };
    let (_, expected) = run(&*target, ids, &mut target.new_cache(), &want);

    let mut cache = target.new_cache();
    run(&*target, &ids[..20], &mut cache, &want);
    run(&*target, &ids[20..30], &mut cache, &want);
    let bytes = cache.bytes();
    // The later layers are in the second file; the earlier ones run before it is missed.
    let path = dir.path().join("model-00002-of-00002.safetensors");
    let whole = std::fs::read(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let mut ran = Vec::new();
    let mut record = |name: &str, _: &burn::tensor::Tensor<2>| ran.push(name.to_string());
    let error = target
        .forward(&mut [TargetInput { ids: &ids[30..50], cache: &mut cache }], &want, Some(&mut record))
        .err()
        .expect("the second file is cut short")
        .to_string();
    assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
    assert!(ran.contains(&"layer.0".to_string()) && !ran.contains(&"final_norm".to_string()), "{ran:?}");
    assert_eq!((cache.len(), cache.bytes()), (30, bytes));

    // The same file again, in place: the mapping sees it, and the cache goes on, or back first.
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(&whole).unwrap();
    cache.truncate(25).unwrap();
    let (_, got) = run(&*target, &ids[25..], &mut cache, &want);
    assert_eq!(got, expected[25 * target.spec().vocab_size..]);
}
