//! What a forward refuses, and that a refusal changes nothing.

use draftsman_models::{LogitRows, Target, TargetCache, TargetInput, Want};

use super::open;

fn refuse(target: &dyn Target, ids: &[u32], cache: &mut TargetCache, want: &Want, expected: &str) {
    let before = cache.len();
    let error = match target.forward(&mut [TargetInput { ids, cache }], want, None) {
        Ok(_) => panic!("{ids:?} with {want:?} was accepted, expected: {expected}"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    assert_eq!(cache.len(), before, "{expected}: the cache changed");
}

#[test]
fn bad_inputs_are_errors_and_change_no_cache() {
    let target = open("llama_plain"); // 4 layers, 150 tokens, 256 positions
    let want = |taps: &[usize], logits| Want { taps: taps.to_vec(), logits };
    let mut cache = target.new_cache();
    let last = want(&[], LogitRows::Last);
    refuse(&*target, &[1], &mut cache, &want(&[0, 4], LogitRows::Last), "layer id 4 is out of range: the target has 4");
    refuse(&*target, &[1], &mut cache, &want(&[], LogitRows::None), "neither taps nor logits");
    refuse(&*target, &[], &mut cache, &last, "at least one token");
    refuse(&*target, &[1, 150], &mut cache, &last, "token id 150 at index 1 is outside the target's vocabulary of 150");
    refuse(
        &*target,
        &[1; 257],
        &mut cache,
        &last,
        "needs 257 positions, and the target's max_position_embeddings is 256",
    );
    refuse(&*target, &[1], &mut cache, &want(&[], LogitRows::Rows(vec![1])), "row 1 were asked for");
    let other = open("llama_scaled");
    refuse(&*target, &[1], &mut other.new_cache(), &last, "belongs to another target");

    // Exactly full is allowed, one more is not.
    target.forward(&mut [TargetInput { ids: &[1; 250], cache: &mut cache }], &last, None).unwrap();
    refuse(&*target, &[1; 7], &mut cache, &last, "needs 257 positions");
    target.forward(&mut [TargetInput { ids: &[1; 6], cache: &mut cache }], &last, None).unwrap();
    assert_eq!(cache.len(), 256);
}

#[test]
fn a_cache_filled_up_to_a_tap_serves_no_deeper_layer() {
    let target = open("llama_plain");
    let features = |tap| Want { taps: vec![tap], logits: LogitRows::None };
    let mut cache = target.new_cache();
    target.forward(&mut [TargetInput { ids: &[1, 2, 3], cache: &mut cache }], &features(1), None).unwrap();
    refuse(&*target, &[4], &mut cache, &features(2), "holds 3 tokens in its first 2 layers only, and this call runs 3");
    refuse(&*target, &[4], &mut cache, &Want { taps: vec![], logits: LogitRows::Last }, "in its first 2 layers only");
    target.forward(&mut [TargetInput { ids: &[4], cache: &mut cache }], &features(1), None).unwrap();
    target.forward(&mut [TargetInput { ids: &[5], cache: &mut cache }], &features(0), None).unwrap();
    refuse(&*target, &[4], &mut cache, &features(1), "holds 5 tokens in its first 1 layers only");
    // What was cut off no longer counts.
    cache.truncate(4).unwrap();
    target.forward(&mut [TargetInput { ids: &[6], cache: &mut cache }], &features(1), None).unwrap();
    refuse(&*target, &[4], &mut cache, &features(2), "holds 5 tokens in its first 2 layers only");
    cache.truncate(0).unwrap();
    target.forward(&mut [TargetInput { ids: &[4], cache: &mut cache }], &features(3), None).unwrap();
}
