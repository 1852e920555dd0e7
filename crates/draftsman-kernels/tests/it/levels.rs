//! The other instruction sets of this machine, each in a process of its own because the choice is made once.

use std::process::Command;

#[test]
fn slower_instruction_sets_pass_the_same_tests() {
    for level in ["avx2", "portable"] {
        let this = std::env::current_exe().expect("the test binary");
        let output = Command::new(this)
            .env("DRAFTSMAN_SIMD", level)
            .env("PROPTEST_CASES", "12")
            .args(["attention::", "norms::"])
            .output()
            .expect("the test binary runs");
        assert!(output.status.success(), "{level}: {}", String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("running 0 tests"), "{level}: no test ran");
    }
}
