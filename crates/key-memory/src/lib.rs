//! Memory that outlives the process and keeps records with keys for the next one.
//!
//! A descriptor of the kernel owns the memory, so SIGKILL changes no word. A service
//! manager keeps the descriptor while the daemon restarts; without a descriptor the memory is gone.
//!
//! | file | content |
//! |---|---|
//! | `descriptor.rs` | how the memory is made, and the proof of a descriptor from outside |
//! | `manager.rs` | the service manager's store of descriptors |
//! | `cells.rs` | records in cells: the order of stores, which exposes a torn record |
//!
//! The invariant of `cells.rs`: after a stop between any two stores, the next process finds each
//! record whole, in its old or its new version, or finds no record. Key bytes outside of a whole
//! record are zeroized when the memory is opened.
//!
//! Not here: whether a restored key may still be used. The caller compares each record with the
//! state of sequence numbers.
#![deny(clippy::undocumented_unsafe_blocks)]

mod cells;
mod descriptor;
mod manager;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use zeroize::Zeroizing;

use cells::Cells;

pub use cells::{MAX_PAYLOAD, RecordKey, StoreRefused};
pub use descriptor::{DescriptorRefused, MemoryKind, MemoryUnavailable, supported_kind};
pub use manager::{DESCRIPTOR_NAME, KeptMemory, NoMemory, start};

/// Cells of a gateway's memory: room for as many small records, 1 KiB each when used.
pub const GATEWAY_CELLS: u32 = 131_072;

/// Records that the next process finds, mapped into this one.
///
/// One process at a time changes the memory; the caller sees to the bound.
pub struct StoredMemory {
    descriptor: OwnedFd,
    kind: MemoryKind,
    cells: Cells,
}

/// A record that an earlier process stored.
pub struct StoredRecord {
    /// The name of the record.
    pub key: RecordKey,
    /// The bytes as stored, zeroized after use.
    pub payload: Zeroizing<Vec<u8>>,
}

impl StoredMemory {
    /// Makes an empty memory of the safest kind that the kernel offers now.
    ///
    /// # Errors
    /// The reason why keys cannot be stored on this machine.
    pub fn create(cells: u32) -> Result<StoredMemory, MemoryUnavailable> {
        let (descriptor, kind) = descriptor::create(cells::memory_bytes(cells))?;
        let words = descriptor::map(&descriptor, cells::memory_words(cells))
            .map_err(|error| MemoryUnavailable::System(error.to_string()))?;
        let cells = Cells::format(words, cells);
        Ok(StoredMemory { descriptor, kind, cells })
    }

    /// Opens the memory of an earlier process and zeroizes what a stop left unfinished in it.
    ///
    /// # Errors
    /// The descriptor is no memory with this many cells. Nothing in a refused memory was read as a
    /// record.
    pub fn open(descriptor: OwnedFd, cells: u32) -> Result<StoredMemory, DescriptorRefused> {
        let kind = descriptor::check(&descriptor, cells::memory_bytes(cells))?;
        let words = descriptor::map(&descriptor, cells::memory_words(cells))
            .map_err(|error| DescriptorRefused::System(error.to_string()))?;
        let cells = Cells::recover(words, cells).ok_or(DescriptorRefused::Foreign)?;
        Ok(StoredMemory { descriptor, kind, cells })
    }

    /// Returns the kind of memory below the records.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns all records, the one stored first in front. A replaced record counts as new.
    pub fn records(&self) -> Vec<StoredRecord> {
        self.cells.records()
    }

    /// Stores a record, in place of the one with the same key. The old version stays until the new
    /// one is whole.
    ///
    /// # Errors
    /// The payload is too long or no cell is free; the old version stays.
    pub fn store(&mut self, key: RecordKey, payload: &[u8]) -> Result<(), StoreRefused> {
        self.cells.store(key, payload)
    }

    /// Zeroizes a record and frees its cells. An absent record is no fault.
    pub fn remove(&mut self, key: RecordKey) {
        self.cells.remove(key);
    }

    /// Zeroizes all records.
    pub fn erase(&mut self) {
        self.cells.erase();
    }
}

impl AsFd for StoredMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
