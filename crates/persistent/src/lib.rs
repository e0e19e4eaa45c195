//! Lists whose changed copies share what did not change: a copy costs nothing, a change costs one
//! page, and what two lists differ in is found without looking at what they share.
//!
//! For what packets look up by number. Tables that only the control thread reads are maps of
//! `imbl`, which finds entries more slowly.

#![forbid(unsafe_code)]

mod slotted;

pub use slotted::Slotted;
