//! Wraps processor features that safe Rust cannot express: prefetches, vector lanes, AES rounds,
//! huge pages. The crates above stay free of unsafe code.
//!
//! | module | what |
//! |---|---|
//! | [`aes`] | a keyed hash by AES rounds |
//! | [`lanes`] | sixteen numbers compared at once |
//! | [`memory`] | large zeroed tables of cache lines, on huge pages |
//! | `prefetch` | lines that are asked for ahead of their use |
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod aes;
pub mod lanes;
pub mod memory;
mod prefetch;

pub use prefetch::{prefetch, prefetch_all, prefetch_bytes, prefetch_ref};
