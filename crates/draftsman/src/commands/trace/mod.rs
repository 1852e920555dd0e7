//! `draftsman trace`: named intermediate values, for stage-by-stage comparison with any other implementation.

pub(crate) mod acceptance;
pub(crate) mod drafter;
pub(crate) mod loss;
pub(crate) mod target;
pub(crate) mod tensors;
pub(crate) mod tree;
