//! The other instruction sets of this machine, each in a process of its own because the choice is made once.

use std::process::Command;

use crate::support::{assert_close, bits};

#[test]
fn slower_instruction_sets_pass_the_same_tests() {
    for level in ["avx2", "portable"] {
        let this = std::env::current_exe().expect("the test binary");
        let output = Command::new(this)
            .env("DRAFTSMAN_SIMD", level)
            .env("PROPTEST_CASES", "12")
            .args(["attention::", "causal_conv::", "cross_entropy::", "gated_delta::", "linear::", "norms::"])
            .output()
            .expect("the test binary runs");
        assert!(output.status.success(), "{level}: {}", String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("running 0 tests"), "{level}: no test ran");
    }
}

/// What `linear::sample` computes at a level.
fn sample(level: &str) -> Vec<f32> {
    let path = std::env::temp_dir().join(format!("draftsman-kernels-{}-{level}", std::process::id()));
    let output = Command::new(std::env::current_exe().expect("the test binary"))
        .env("DRAFTSMAN_SIMD", level)
        .env("DRAFTSMAN_SAMPLE", &path)
        .args(["linear::sample", "--exact", "--ignored"])
        .output()
        .expect("the test binary runs");
    assert!(output.status.success(), "{level}: {}", String::from_utf8_lossy(&output.stdout));
    let bytes = std::fs::read(&path).expect("the sample was written");
    std::fs::remove_file(&path).expect("it is there");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn instruction_sets_agree() {
    let best = sample("avx512");
    assert!(best.len() > 10_000, "{} values", best.len());
    // Both fuse multiply and add and have the same lanes.
    assert_eq!(bits(&sample("avx2")), bits(&best), "avx2");
    assert_close("portable", &sample("portable"), &best, 1e-6);
}
