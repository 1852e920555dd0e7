//! Drafters: the trained part.
