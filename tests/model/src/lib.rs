//! Oracles: what the RFCs say, written a second time, slowly and obviously.
//!
//! Nothing here calls the code it is compared with; it shares only the nouns (policies, flows).
//! The comparisons stand in `tests/`.
#![forbid(unsafe_code)]

pub mod spd;
