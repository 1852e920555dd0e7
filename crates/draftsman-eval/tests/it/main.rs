//! Evaluation on tiny random models.

mod anchored;
mod architectures;
mod compare;
mod html;
mod lossless;
mod published;
mod replay;
mod suite;
#[path = "../../../draftsman-decode/tests/it/tiny.rs"]
mod tiny;
mod walk;
mod walked;
