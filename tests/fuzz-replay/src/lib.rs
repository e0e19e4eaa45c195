//! Holds the targets that the fuzzers run. Each target is a plain function of bytes that panics if
//! a promise is broken, so that `fuzz/fuzz_targets` holds one line each and the committed corpora
//! are replayed by `cargo test -p fuzz-replay` with no fuzzer at all.
//!
//! | target | promise |
//! |---|---|
//! | [`parse`] | the fast parser says what the plain one says; lengths lie inside the bytes |
//! | [`esp_open`] | only what was sealed opens, unchanged; no bytes panic |
//! | [`configuration`] | mistakes have a place; what is good prints as what means the same |
//! | [`overlay`] | no bytes reach another tenant, the books balance |
//! | [`card_link`] | a line that is read is read the same again; streams are cut anywhere |
//! | [`charon`] | a message that is read is read the same again, and shows no key |
//! | [`walk`] | the books balance, and what leaves may leave by the oracle's reading of the SPD |
//!
//! A new target also goes into [`TARGETS`], `fuzz/Cargo.toml` and `examples/seeds.rs`.
#![forbid(unsafe_code)]

mod bytes;
mod card_link;
mod charon;
mod configuration;
mod esp;
mod overlay;
mod parsers;
mod walk;

pub use bytes::Bytes;
pub use card_link::card_link;
pub use charon::charon;
pub use configuration::configuration;
pub use esp::esp_open;
pub use overlay::overlay;
pub use parsers::parse;
pub use walk::walk;

/// The body of a target: panics if its promise does not hold for these bytes.
pub type Target = fn(&[u8]);

/// Name and body of every target.
pub const TARGETS: &[(&str, Target)] = &[
    ("parse", parse),
    ("esp_open", esp_open),
    ("configuration", configuration),
    ("overlay", overlay),
    ("card_link", card_link),
    ("charon", charon),
    ("walk", walk),
];
