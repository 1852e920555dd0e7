//! Decoding on tiny random models: speculative = plain, batched = single, and the edges of the loop.

mod lockstep;
mod ngram;
mod sampling;
mod speculative;
mod tiny;
