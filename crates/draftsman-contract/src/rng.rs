//! Random numbers as a function of seed, stream and counter.

use std::collections::BTreeSet;

/// 2^64 divided by the golden ratio, odd: the increment of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A counter-based generator: the n-th number depends only on (seed, stream, n), so that nothing needs to be saved to
/// resume and the work may be split anywhere. Name a stream by what is drawn for: `[epoch, document, anchor]`.
///
/// # Algorithm
/// All arithmetic is modulo 2^64. `mix` is the finaliser of SplitMix64:
/// `z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31`. G is 0x9e3779b97f4a7c15.
/// * Two keys from seed and stream: `a = mix(seed + G)`, `b = mix(a + G)`; for each word w of the stream
///   `a = mix(a ^ mix(w + G))`, `b = mix(b + a)`; at the end, with n the number of words, `a = mix(a ^ n)`, `b = mix(b + a)`.
/// * The n-th number, n = 1, 2, ...: `mix(mix(a + n·G) ^ b)`. That is SplitMix64 started at a, keyed once more by b, so
///   that two streams whose `a` happen to be near don't give the same numbers shifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterRng {
    a: u64,
    b: u64,
    counter: u64,
}

impl CounterRng {
    /// The generator of `stream` under `seed`, at its beginning.
    pub fn new(seed: u64, stream: &[u64]) -> Self {
        let mut a = mix(seed.wrapping_add(GOLDEN));
        let mut b = mix(a.wrapping_add(GOLDEN));
        for &word in stream {
            a = mix(a ^ mix(word.wrapping_add(GOLDEN)));
            b = mix(b.wrapping_add(a));
        }
        a = mix(a ^ stream.len() as u64);
        b = mix(b.wrapping_add(a));
        Self { a, b, counter: 0 }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        mix(mix(self.a.wrapping_add(self.counter.wrapping_mul(GOLDEN))) ^ self.b)
    }

    /// A whole number below `n`, each equally likely (Lemire's multiplication with rejection); 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        if n == 0 {
            return 0;
        }
        // Low halves under 2^64 mod n belong to the products that some results have one too many of.
        let surplus = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if product as u64 >= surplus {
                return (product >> 64) as usize;
            }
        }
    }

    /// A multiple of 2^-53 from 0 to below 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number (Box-Muller; two uniform numbers each).
    pub fn normal(&mut self) -> f32 {
        // 1 - uniform is above 0, so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.uniform();
        (radius * angle.cos()) as f32
    }

    /// Puts `items` into a random order, each order equally likely (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `k` different indices below `n`, ascending, each set equally likely (Floyd); all of them when `k >= n`.
    pub fn sample_indices(&mut self, n: usize, k: usize) -> Vec<usize> {
        if k >= n {
            return (0..n).collect();
        }
        let mut chosen = BTreeSet::new();
        for last in n - k..n {
            let index = self.below(last + 1);
            if !chosen.insert(index) {
                chosen.insert(last);
            }
        }
        chosen.into_iter().collect()
    }
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
