//! Tests of the kernels: one binary, a module per subject.

mod attention;
mod levels;
mod norms;
mod support;
