//! Training on tiny random models.

mod adamw;
mod checkpoint;
mod data;
mod fixture;
mod learning;
mod loss;
mod order;
mod recipe;
mod resume;
mod schedule;
#[path = "../../../draftsman-decode/tests/it/tiny.rs"]
mod tiny;
