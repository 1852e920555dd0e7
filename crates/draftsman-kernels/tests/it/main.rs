//! Tests of the kernels: one binary, a module per subject.

mod attention;
mod cross_entropy;
mod levels;
mod linear;
mod norms;
mod support;
mod weight;
