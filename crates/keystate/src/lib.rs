//! To be written.
#![deny(clippy::undocumented_unsafe_blocks)]
