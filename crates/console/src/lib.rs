//! What `lockgate`, `lockgate-bench` and `lockgate-demo` share at the terminal: printing, tables,
//! JSON, the reading of a command line, and how a failure is told.
//!
//! Answers go to standard output, errors to standard error. Where JSON is asked for, an error is an
//! answer too: `{"error":{"message":…,"exit_code":…}}`, one line on standard output.
#![forbid(unsafe_code)]

pub mod failure;
pub mod line;
pub mod output;
pub mod terminal;
