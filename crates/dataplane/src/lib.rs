//! The walk of a batch of packets (DESIGN §2): what happens to each, decided against one
//! immutable snapshot and told by exactly one [`Verdict`].
//!
//! No I/O and no clock: packets come as descriptors, time as an argument, so that the same code
//! runs in the daemon, in `lockgate replay`, in the benches and under the fuzzer.
#![forbid(unsafe_code)]

mod actions;
pub mod cache;
pub mod carve_out;
pub mod counters;
mod decide;
mod esp;
mod esp_fragments;
pub mod explain;
mod fragment;
pub mod handover;
pub mod holding;
pub mod keepalive;
mod l4_checksum;
mod limiter;
mod mss;
mod open;
mod plan;
mod receive;
pub mod routes;
mod seal;
mod sends;
pub mod snapshot;
pub mod stage;
pub mod tap;
pub mod verdict;
pub mod walk;
pub mod worker;

pub use actions::Actions;
pub use cache::{CacheCounters, CacheUse, FlowCache};
pub use counters::{Counters, Ledger};
pub use esp::Moved;
pub use handover::{Handovers, Share};
pub use holding::Wanted;
pub use l4_checksum::{L4Checksum, L4ChecksumCounts};
pub use policy::Generation;
pub use routes::{NextHop, NextHopId, Prefix, RouteEntry, RouteTable, RouteTarget};
pub use sends::{Send, Sends};
pub use snapshot::{
    DeviceId, HostService, Layout, Medium, Neighbour, PortId, PortInfo, RouteGeneration, SaSet,
    SetIndex, Side, Snapshot, SnapshotError, SnapshotParts,
};
pub use tap::{Tap, TapId, TapReader, TapSettings, Tapped};
pub use verdict::{DropReason, HoldKind, Verdict};
pub use walk::{Handover, Held, Outputs, ToHost, Walk};
pub use worker::{Surroundings, Worker};
