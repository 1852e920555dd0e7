//! swiglu
