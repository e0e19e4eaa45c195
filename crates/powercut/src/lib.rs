//! A disk in memory below SQLite that loses what was not synced: for tests.
//!
//! The disk keeps apart, for every file, what is durable and what was done since its last sync. It
//! can note at each sync the states in which a power cut would find it ([`Disk::cuts`]). Each of
//! them makes the disk that is there after the cut ([`Cut::disk`]): without what was not synced,
//! or with any part of it, as real disks write in any order and tear a write between sectors.
//!
//! The first sync of a file that was made also syncs the directory, as SQLite's own file system
//! does it for journals: names that were made are there from then on, and names that were removed
//! are gone for good. Until then a file that was removed may come back.
//!
//! Not modelled: sectors that were not written to and change all the same, and a disk that reports
//! a sync as done that it did not do (but see [`Disk::ignore_syncs`], for controls).

#![deny(clippy::undocumented_unsafe_blocks)]

mod disk;
mod vfs;

pub use disk::{Cut, Disk, Loss};
pub use vfs::name;
