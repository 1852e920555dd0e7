//! The real SmolLM2-135M-Instruct against PyTorch (`scripts/golden/smollm2_greedy.py`). Needs the model:
//! `DRAFTSMAN_SMOLLM2=path/to/SmolLM2-135M-Instruct.Q4_1.gguf cargo test --release smollm2`.

use std::path::Path;

use burn::tensor::Device;
use draftsman_contract::argmax;
use draftsman_kernels::WeightDtype;
use draftsman_models::{LogitRows, TargetInput, Want, open_target};
use serde::Deserialize;

use super::testdata;
use crate::compare::values;

/// Two implementations may choose differently where the two largest logits are closer than this.
const NEAR_TIE: f64 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    model_sha256: String,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    text: String,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    gaps: Vec<f64>,
}

fn sha256(path: &Path) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(std::fs::read(path).unwrap());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
#[expect(
    clippy::print_stderr,
    reason = "a test that needs a file the repository does not hold says that it did nothing"
)]
fn smollm2_greedy_text_equals_pytorch() {
    let Some(path) = std::env::var_os("DRAFTSMAN_SMOLLM2") else {
        eprintln!("skipped: set DRAFTSMAN_SMOLLM2 to the path of SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let path = Path::new(&path);
    let golden: Golden = serde_json::from_slice(&std::fs::read(testdata("smollm2_greedy.json")).unwrap()).unwrap();
    assert_eq!(sha256(path), golden.model_sha256, "DRAFTSMAN_SMOLLM2 is another file than the golden run's");
    assert_eq!(golden.runs.len(), 10);
    let target = open_target(path, &Device::flex(), WeightDtype::F32).unwrap();
    let want = Want { taps: vec![], logits: LogitRows::Last };
    let mut near_ties = Vec::new();
    for run in &golden.runs {
        assert_eq!((run.output_ids.len(), run.gaps.len()), (64, 64));
        let mut cache = target.new_cache();
        let mut ids = run.prompt_ids.clone();
        for (step, (&expected, &gap)) in run.output_ids.iter().zip(&run.gaps).enumerate() {
            let out = target.forward(&mut [TargetInput { ids: &ids, cache: &mut cache }], &want, None).unwrap();
            let logits = values(out.logits.unwrap());
            let got = argmax(&logits) as u32;
            if got != expected {
                let ours = logits[got as usize] - logits[expected as usize];
                let what = format!(
                    "{:?}, token {step}: {got}, PyTorch {expected}; gap {ours:.2e} here, {gap:.2e} there",
                    run.text
                );
                assert!(gap < NEAR_TIE && f64::from(ours) < NEAR_TIE, "{what}");
                near_ties.push(what);
            }
            // The golden token, so that a near-tie does not end the comparison.
            ids = vec![expected];
        }
    }
    eprintln!("640 tokens compared, {} differ at a near-tie (gap < {NEAR_TIE:.0e}) {near_ties:#?}", near_ties.len());
}
