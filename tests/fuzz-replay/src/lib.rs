//! What the fuzzers run. Each target is a plain function of bytes that panics if a promise is
//! broken, so that `fuzz/fuzz_targets` holds one line each and the committed corpora are replayed
//! by `cargo test -p fuzz-replay` with no fuzzer at all.
//!
//! | target | promise |
//! |---|---|
//! | [`parse`] | the fast parser says what the plain one says; lengths lie inside the bytes |
//! | [`esp_open`] | only what was sealed opens, unchanged; no bytes panic |
//!
//! A new target also goes into [`TARGETS`], `fuzz/Cargo.toml` and `examples/seeds.rs`.
#![forbid(unsafe_code)]

mod bytes;
mod esp;
mod packets;

pub use bytes::Bytes;
pub use esp::esp_open;
pub use packets::parse;

/// The body of a target: panics if its promise does not hold for these bytes.
pub type Target = fn(&[u8]);

/// Name and body of every target.
pub const TARGETS: &[(&str, Target)] = &[("parse", parse), ("esp_open", esp_open)];
