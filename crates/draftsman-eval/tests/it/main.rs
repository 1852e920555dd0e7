//! Evaluation on tiny random models.

mod anchored;
mod architectures;
#[path = "../../../draftsman-decode/tests/it/branching.rs"]
mod branching;
mod compare;
mod html;
mod lossless;
mod prepared_walk;
mod published;
mod replay;
mod suite;
mod tensor_stats;
#[path = "../../../draftsman-decode/tests/it/tiny.rs"]
mod tiny;
mod walk;
mod walked;
