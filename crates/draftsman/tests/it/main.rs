//! The program as a user meets it: outputs, exit codes and every kind of bad input.

mod bad_input;
mod eval;
mod models;
mod page;
mod quickstart;
mod run;
mod show;
mod stats;
mod tensors;
mod trace;
mod trees;
mod walked_training;
