//! Tests of the kernels: one binary, a module per subject.

mod attention;
mod causal_conv;
mod cross_entropy;
mod delta_gates;
mod gated_delta;
mod levels;
mod linear;
mod norms;
mod support;
mod weight;
