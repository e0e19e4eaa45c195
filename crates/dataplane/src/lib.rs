//! The walk of a batch of packets (DESIGN §2): what happens to each, decided against one
//! immutable snapshot and told by exactly one [`Verdict`].
//!
//! The crate does no I/O and reads no clock: packets come as descriptors, time as an argument. So
//! the same code runs in the daemon, in `lockgate replay`, in the benches and under the fuzzer.
#![forbid(unsafe_code)]

mod acquire;
mod acquire_switch;
mod addresses;
mod audit;
mod batch_context;
pub mod cache;
pub mod card_marks;
mod card_sas;
pub mod carve_out;
pub mod connections;
pub mod counter_copy;
pub mod counters;
mod decapsulate;
mod decide;
mod departure;
mod direct_flows;
mod direct_paths;
mod error;
mod esp;
mod esp_fragments;
pub mod explain;
mod fair_shares;
mod fastpath;
mod follow;
mod fragment;
mod frame_room;
mod general;
pub mod handover;
mod icmp_limiter;
mod ids;
mod input;
pub mod keepalive;
mod l4_checksum;
mod large_packet;
mod limiter;
pub mod lower_tier;
mod made_packet;
mod mss;
mod mtu_messages;
pub mod neighbour_queues;
mod nested;
mod outer_fragments;
mod output_batch;
mod output_path;
mod outputs;
pub mod overlays;
mod packet_sender;
pub mod path_mtu;
mod plan;
mod port;
mod reassemble;
pub mod reassembly;
mod receive;
mod round_pace;
pub mod routes;
mod row;
pub mod sa_queues;
mod sa_selectors;
mod sa_set;
mod sad;
mod seal;
mod silence;
mod slots;
pub mod snapshot;
pub mod stage;
pub mod sweep;
pub mod tap;
mod tenant_samples;
mod tracking;
mod tx_batch;
mod upper_layer;
pub mod verdict;
mod verdict_basis;
mod waiting_room;
mod waiting_row;
pub mod walk;
mod watch;
mod way_to_peer;
pub mod worker;
mod worker_share;

pub use acquire_switch::{AcquireSwitch, KeyManager};
pub use audit::{AuditCounts, Auditor, Disagreement, FastTier, Judged};
pub use cache::{CacheCounters, CacheUse, FlowCache};
pub use card_marks::CardMarks;
pub use counters::{CounterRoom, Counters, DirectCounts, L4ChecksumCounts, Ledger};
pub use error::SnapshotError;
pub use frame_room::{FRAME_BYTES, MAX_WAITING_FRAMES, largest_mtu};
pub use handover::Handovers;
pub use ids::{NetdevId, NextHopId, PortId, RouteGeneration, SetIndex};
pub use input::{Entry, Input};
pub use lower_tier::{
    ClaimBelow, FlowBelow, FlowVerdictBelow, Grounds, HostWay, JudgedBy, NetworkBelow, NotBelow,
};
pub use neighbour_queues::ResolveRequest;
pub use outputs::{AddressUpdate, Handover, HeldForm, HeldPacket, Outputs, ToHost};
pub use overlays::{Overlay, OverlayId, Overlays, SourceCheck, VirtualNetwork};
pub use path_mtu::PathMtu;
pub use policy::Generation;
pub use port::{HostService, L4Checksum, Medium, PortInfo, Side};
pub use routes::{NextHop, Prefix, RouteEntry, RouteTable, RouteTarget};
pub use sa_queues::AcquireRequest;
pub use sa_set::SaSet;
pub use sad::Sad;
pub use snapshot::{
    Neighbour, Neighbours, PortInfos, Routes, SetSizes, Snapshot, SnapshotParts, Sources,
};
pub use tap::{CapturedPacket, Tap, TapId, TapReader, TapSettings};
pub use tenant_samples::{TenantSample, TenantSampler};
pub use tx_batch::{TxBatch, TxPacket};
pub use verdict::{DropReason, HoldKind, Verdict};
pub use walk::{FastPathUse, Walk};
pub use worker::{Surroundings, VacatedSlots, Worker};
pub use worker_share::WorkerShare;
