//! A target on the software GPU device: golden layers, caches that roll back, a batch.

use std::path::Path;

use burn::tensor::{Device, Tensor};
use draftsman_kernels::{DeviceKind, WeightDtype, open};
use draftsman_models::{LogitRows, SafetensorsSource, TargetCache, TargetInput, Want, WeightSource, open_target};

use crate::compare::{assert_close, values};

#[test]
fn the_target_computes_the_same_on_the_software_gpu() {
    let gpu = open(DeviceKind::Wgpu).expect("a Vulkan driver (mesa-vulkan-drivers) is needed for this test");
    for model in ["llama_scaled", "llama_plain", "qwen3", "qwen3_moe", "qwen3_5", "gpt_oss"] {
        let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
        let golden = SafetensorsSource::open_file(&testdata.join(format!("{model}.reference.safetensors"))).unwrap();
        let target = open_target(&testdata.join(model), &gpu, WeightDtype::F32).unwrap();
        assert_ne!(*target.device(), Device::flex(), "the target is on the GPU device");
        let length = golden.shape("input_ids").unwrap()[1];
        let ids: Vec<u32> = golden.load_i64("input_ids").unwrap().into_iter().map(|id| id as u32).collect();
        let (layers, vocab) = (target.spec().num_layers, target.spec().vocab_size);
        let want = Want { taps: (0..layers).collect(), logits: LogitRows::All };

        let mut caches = [target.new_cache(), target.new_cache()];
        let mut seen = Vec::new();
        let mut record = |name: &str, x: &Tensor<2>| seen.push((name.to_string(), values(x.clone())));
        let mut batch: Vec<_> =
            ids.chunks(length).zip(&mut caches).map(|(ids, cache)| TargetInput { ids, cache }).collect();
        let out = target.forward(&mut batch, &want, Some(&mut record)).unwrap();
        seen.push(("logits".into(), values(out.logits.unwrap())));
        for (name, got) in &seen {
            assert_close(&format!("{model}, GPU: {name}"), got, &golden.load_f32(name).unwrap(), 1e-4);
        }

        // Prefix, a block that is rejected, and the continuation on the truncated cache.
        let ids = &ids[..length];
        let mut cache = target.new_cache();
        let run = |range: std::ops::Range<usize>, cache: &mut TargetCache| {
            let out = target.forward(&mut [TargetInput { ids: &ids[range], cache }], &want, None).unwrap();
            values(out.logits.unwrap())
        };
        run(0..17, &mut cache);
        run(3..19, &mut cache);
        cache.truncate(17).unwrap();
        let got = run(17..length, &mut cache);
        let expected = &golden.load_f32("logits").unwrap()[17 * vocab..length * vocab];
        assert_close(&format!("{model}, GPU: logits after a rollback"), &got, expected, 1e-4);
    }
}
