//! What the processor can do that Rust has no safe words for: memory asked for ahead of its use,
//! vector lanes, AES rounds, huge pages. The crates above stay free of unsafe code.
//!
//! | module | what |
//! |---|---|
//! | `prefetch` | lines that are asked for ahead of their use |
#![deny(clippy::undocumented_unsafe_blocks)]

mod prefetch;

pub use prefetch::{prefetch, prefetch_ref};
