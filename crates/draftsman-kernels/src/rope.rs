//! rope
