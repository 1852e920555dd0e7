//! Integration tests of targets, drafters and their weight files.

mod compare;
mod drafter;
mod hub;
mod target;
mod weights;
