//! Comparing tensors: close to golden values, or equal to the bit; failures name the first wrong value.

use burn::tensor::Tensor;

/// Values of a tensor, row-major.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Relative error ‖x − g‖ / ‖g‖, with the first wrong value named on failure.
pub(crate) fn assert_close(what: &str, got: &[f32], golden: &[f32], tolerance: f64) {
    assert_eq!(got.len(), golden.len(), "{what}: number of values");
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = square(&mut got.iter().zip(golden).map(|(x, g)| f64::from(*x) - f64::from(*g)));
    let size = square(&mut golden.iter().map(|g| f64::from(*g)));
    // Written so that a NaN fails.
    if difference <= tolerance * size {
        return;
    }
    let scale = size / (golden.len() as f64).sqrt();
    let wrong = got
        .iter()
        .zip(golden)
        .position(|(x, g)| {
            let gap = (f64::from(*x) - f64::from(*g)).abs();
            gap.is_nan() || gap > tolerance * scale
        })
        .unwrap_or(0);
    panic!(
        "{what}: relative error {:.2e} (at most {tolerance:.0e}); index {wrong} is {}, golden {}",
        difference / size,
        got[wrong],
        golden[wrong]
    );
}

/// Equality to the bit, with the first difference named.
pub(crate) fn assert_same_bits(what: &str, got: &[(String, Vec<f32>)], expected: &[(String, Vec<f32>)]) {
    assert_eq!(got.len(), expected.len(), "{what}: number of tensors");
    for ((name, got), (expected_name, expected)) in got.iter().zip(expected) {
        assert_eq!(name, expected_name, "{what}");
        assert_eq!(got.len(), expected.len(), "{what}, {name}: number of values");
        let wrong = got.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(i) = wrong {
            panic!("{what}, {name}: index {i} is {:?}, expected {:?}", got[i], expected[i]);
        }
    }
}
