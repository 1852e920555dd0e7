//! Decoding on tiny random models: speculative = plain, batched = single, and the edges of the loop.

mod branching;
mod lockstep;
mod ngram;
mod sampling;
mod speculative;
mod tiny;
mod trees;
