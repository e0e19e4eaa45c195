//! The ring in which the kernel tier leaves samples of what it answered.
//!
//! The program waits for nobody, and wakes nobody: a sample that finds no room is counted and lost.

use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder};
use wire::shared::Shared;

use crate::BpfError;
use crate::layout::SampleEntry;
use crate::maps::make;

/// Bytes of the ring: 819 samples.
const RING_BYTES: u32 = 64 << 10;
/// Samples that are taken at once at most, however fast new ones come.
const AT_ONCE: usize = 1024;

/// The ring, and its reader.
pub(crate) struct Samples {
    pub(crate) map: MapHandle,
    /// Samples that found no room, by core.
    pub(crate) unheard: MapHandle,
    reader: Mutex<RingBuffer<'static>>,
    /// Samples that the reader has read.
    read: Arc<Mutex<Vec<SampleEntry>>>,
}

impl Samples {
    /// Makes an empty ring.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub(crate) fn new() -> Result<Samples, BpfError> {
        let map = make("lockgate_audit", MapType::RingBuf, (0, 0), RING_BYTES)?;
        let unheard = make("lockgate_lost", MapType::PercpuArray, (4, 8), 1)?;
        let read = Arc::new(Mutex::new(Vec::new()));
        let filled = read.clone();
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            let mut filled = filled.lock().unwrap_or_else(PoisonError::into_inner);
            filled.extend(bytes.get(..size_of::<SampleEntry>()).map(SampleEntry::read));
            0
        };
        let error = |source| BpfError::Table { table: "samples", source };
        builder.add(&map, take).map_err(error)?;
        let reader = Mutex::new(builder.build().map_err(error)?);
        Ok(Samples { map, unheard, reader, read })
    }

    /// Returns what is there, oldest first, up to [`AT_ONCE`]. Waits for nothing.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub(crate) fn take(&self) -> Result<Vec<SampleEntry>, BpfError> {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let count = reader.consume_raw_n(AT_ONCE);
        if count < 0 {
            let source = std::io::Error::from_raw_os_error(-count).into();
            return Err(BpfError::Table { table: "samples", source });
        }
        Ok(std::mem::take(&mut self.read.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
