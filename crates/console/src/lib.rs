//! Terminal code shared by `lockgate`, `lockgate-bench` and `lockgate-demo`: printing, tables,
//! JSON, parsing of the command line, and reports of failures.
//!
//! Answers go to standard output, errors to standard error. Where JSON is asked for, an error is an
//! answer too: `{"error":{"message":…,"exit_code":…}}`, one line on standard output.
#![forbid(unsafe_code)]

pub mod failure;
pub mod line;
pub mod output;
pub mod terminal;
