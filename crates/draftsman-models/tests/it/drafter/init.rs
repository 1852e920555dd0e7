//! First weights: reproducible, and what "from the target" promises.

use burn::tensor::{Device, Tensor, TensorData};
use draftsman_contract::{Contract, LayerAttention};
use draftsman_models::{
    Dflash, DrafterConfig, Init, LayerWeights, LogitRows, ModelError, Target, TargetInput, Want, init,
};

use super::tiny_target::{HEAD_DIM, HIDDEN, LAYERS, tiny_target};
use crate::compare::{assert_close, values};

fn config(target: &dyn Target, layers: usize) -> DrafterConfig {
    let rope = target.spec().rope.clone();
    let contract = Contract::dflash(4, 2, vec![0, 2], vec![LayerAttention::FULL; layers], rope);
    DrafterConfig::for_target(target.spec(), layers, contract)
}

fn make(target: &dyn Target, config: &DrafterConfig, how: Init<'_>, seed: u64) -> Result<Dflash, ModelError> {
    init(config, target, how, seed, &Device::flex())
}

fn tensor(drafter: &Dflash, name: &str) -> Vec<f32> {
    let all = drafter.named_tensors();
    all.into_iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no tensor {name}")).values
}

fn layer(target: &dyn Target, id: usize) -> LayerWeights<'_> {
    target.layer_weights(id).unwrap()
}

#[test]
fn random_weights_depend_on_the_seed_and_the_name_only() {
    let target = tiny_target();
    let make = |layers, seed| make(&*target, &config(&*target, layers), Init::Random, seed).unwrap();
    let two = make(2, 7);
    assert_eq!(two.named_tensors(), make(2, 7).named_tensors());
    let (three, other_seed) = (make(3, 7), make(2, 8));
    for t in two.named_tensors() {
        assert_eq!(t.values, tensor(&three, &t.name), "{} changed with the number of layers", t.name);
        if t.shape.len() == 1 {
            assert!(t.values.iter().all(|v| *v == 1.0), "{}", t.name);
        } else {
            assert_ne!(t.values, tensor(&other_seed, &t.name), "{} ignores the seed", t.name);
        }
    }
    let fc = tensor(&two, "fc.weight");
    let deviation = (fc.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / fc.len() as f64).sqrt();
    assert!((deviation - 0.02).abs() < 0.002, "deviation {deviation}");
    assert_ne!(tensor(&two, "layers.0.mlp.up_proj.weight"), tensor(&two, "layers.0.mlp.gate_proj.weight"));
}

#[test]
fn layers_from_the_target_are_its_last_ones() {
    let target = tiny_target();
    let drafter = make(&*target, &config(&*target, 2), Init::Target { sample: &[] }, 0).unwrap();
    for (i, id) in [(0, LAYERS - 2), (1, LAYERS - 1)] {
        let from = layer(&*target, id);
        for (part, weight) in [
            ("self_attn.q_proj", from.q),
            ("self_attn.k_proj", from.k),
            ("self_attn.v_proj", from.v),
            ("self_attn.o_proj", from.o),
            ("mlp.gate_proj", from.gate),
            ("mlp.up_proj", from.up),
            ("mlp.down_proj", from.down),
        ] {
            assert_eq!(tensor(&drafter, &format!("layers.{i}.{part}.weight")), weight.to_f32(), "{part} of layer {i}");
        }
        for (part, norm) in
            [("input_layernorm", from.input_norm), ("post_attention_layernorm", from.post_attention_norm)]
        {
            assert_eq!(tensor(&drafter, &format!("layers.{i}.{part}.weight")), values(norm), "{part} of layer {i}");
        }
    }
    assert_eq!(tensor(&drafter, "norm.weight"), values(target.final_norm()));
    let norms = [LAYERS - 2, LAYERS - 1].map(|id| values(layer(&*target, id).input_norm));
    let mean: Vec<f32> = norms[0].iter().zip(&norms[1]).map(|(a, b)| (a + b) / 2.0).collect();
    assert_close("hidden_norm", &tensor(&drafter, "hidden_norm.weight"), &mean, 1e-6);
    // fc passes the last tap through: a context row is its rms norm.
    let features: Vec<f32> = (0..2 * HIDDEN).map(|i| (i as f32 * 0.7).sin()).collect();
    let expected = normed(&features[HIDDEN..], &mean);
    let features = Tensor::from_data(TensorData::new(features, [1, 2 * HIDDEN]), &Device::flex());
    assert_close("context", &values(drafter.context(features).unwrap()), &expected, 1e-5);
}

fn normed(x: &[f32], weight: &[f32]) -> Vec<f32> {
    let rms = (x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64 + 1e-5).sqrt();
    x.iter().zip(weight).map(|(v, w)| (f64::from(*v) / rms * f64::from(*w)) as f32).collect()
}

/// Mean over rows and heads of the RMS of `weight` times the normed rows.
fn mean_rms(rows: &[f32], weight: &[f32], norm: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut all = Vec::new();
    for x in rows.chunks(HIDDEN) {
        let x = normed(x, norm);
        let out: Vec<f64> = weight.chunks(HIDDEN).map(|row| dot(row, &x)).collect();
        all.extend(out.chunks(HEAD_DIM).map(|h| (h.iter().map(|v| v * v).sum::<f64>() / HEAD_DIM as f64).sqrt()));
    }
    (all.iter().sum::<f64>() / all.len() as f64) as f32
}

#[test]
fn query_and_key_norms_restore_the_scale_measured_on_the_sample() {
    let target = tiny_target();
    let sample: [&[u32]; 3] = [&[3, 5, 9], &[], &[4, 8]];
    // What enters every layer, as the target itself shows it.
    let mut inputs = vec![Vec::new(); LAYERS];
    for ids in sample.iter().filter(|ids| !ids.is_empty()) {
        let mut see = |name: &str, rows: &Tensor<2>| {
            let enters = match name.strip_prefix("layer.") {
                Some(i) => i.parse::<usize>().unwrap() + 1,
                None if name == "embed" => 0,
                None => return,
            };
            if enters < LAYERS {
                inputs[enters].extend(values(rows.clone()));
            }
        };
        let mut cache = target.new_cache();
        let want = Want { taps: Vec::new(), logits: LogitRows::Last };
        target.forward(&mut [TargetInput { ids, cache: &mut cache }], &want, Some(&mut see)).unwrap();
    }
    // Fewer layers than the target's, and as many: then the first one's input is the embedding.
    for layers in [2, LAYERS] {
        let how = Init::Target { sample: &sample };
        let drafter = make(&*target, &config(&*target, layers), how, 0).unwrap();
        for i in 0..layers {
            let id = LAYERS - layers + i;
            let from = layer(&*target, id);
            let norm = values(from.input_norm);
            for (name, weight) in [("q_norm", from.q), ("k_norm", from.k)] {
                let got = tensor(&drafter, &format!("layers.{i}.self_attn.{name}.weight"));
                let expected = mean_rms(&inputs[id], &weight.to_f32(), &norm);
                assert_close(&format!("{name} of layer {i} of {layers}"), &got, &[expected; HEAD_DIM], 1e-5);
            }
        }
    }
}

#[test]
fn without_a_sample_the_scale_is_that_of_isotropic_rows() {
    let target = tiny_target();
    let drafter = make(&*target, &config(&*target, 1), Init::Target { sample: &[] }, 0).unwrap();
    let mut rng = draftsman_contract::CounterRng::new(3, &[]);
    let rows: Vec<f32> = (0..3000 * HIDDEN).map(|_| rng.normal()).collect();
    let from = layer(&*target, LAYERS - 1);
    let measured = mean_rms(&rows, &from.q.to_f32(), &values(from.input_norm));
    let got = tensor(&drafter, "layers.0.self_attn.q_norm.weight")[0];
    // The mean of a root is a little below the root of the mean.
    assert!(got > 0.97 * measured && got < 1.15 * measured, "{got} against {measured}");
}

#[test]
fn sizes_that_are_not_the_targets_are_refused_for_copies_only() {
    let target = tiny_target();
    let mut unlike = config(&*target, 2);
    unlike.num_attention_heads = 4;
    unlike.intermediate_size = 48;
    make(&*target, &unlike, Init::Random, 0).unwrap();
    let error = make(&*target, &unlike, Init::Target { sample: &[] }, 0).unwrap_err().to_string();
    for part in ["`num_attention_heads` is 4 in the drafter and 3", "`intermediate_size` is 48", "hint"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = make(&*target, &config(&*target, 6), Init::Target { sample: &[] }, 0).unwrap_err().to_string();
    assert!(error.contains("copies 6 layers, the target has 5"), "{error}");
    unlike.vocab_size = 31;
    let error = make(&*target, &unlike, Init::Random, 0).unwrap_err().to_string();
    assert!(error.contains("`vocab_size` is 31"), "{error}");
}
