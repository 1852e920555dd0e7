//! Tests of the contract crate, most of them against brute-force definitions.

mod acceptance;
mod contract;
mod layout;
mod rng;
mod stats;
mod top_k;
mod tree;
mod visible;
