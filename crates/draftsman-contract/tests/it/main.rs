//! Tests of the contract crate, most of them against brute-force definitions.

#![expect(clippy::single_range_in_vec_init, reason = "one document or one key range is a list with one range in it")]

mod acceptance;
mod contract;
mod layout;
mod rng;
mod stats;
mod top_k;
mod tree;
mod visible;
