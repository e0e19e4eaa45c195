//! To be written.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "the daemon is being written")]
mod api;
#[allow(dead_code, reason = "the daemon is being written")]
mod assign;
mod backend;
mod device;
#[allow(dead_code, reason = "the daemon is being written")]
mod events;
#[allow(dead_code, reason = "the daemon is being written")]
mod hardening;
#[allow(dead_code, reason = "the daemon is being written")]
mod metrics;
#[allow(dead_code, reason = "the daemon is being written")]
mod notify;
mod revisions;
mod totals;
mod worker;

fn main() {}
