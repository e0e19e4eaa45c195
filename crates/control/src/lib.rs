//! Compiles a configuration, its keys and the kernel's state to the snapshots that workers use.
//!
//! | from | by | comes |
//! |---|---|---|
//! | [`config::Validated`], keys | [`Compiler`] | [`Compiled`]: policies, SAs in their slots |
//! | a change of single policies | [`Compiler::change_policies`] | the next [`Compiled`] |
//! | [`linux::View`] | [`live_parts`] | [`LiveParts`]: ports, routes, neighbours |
//! | what charon makes by itself | [`Compiler::change_ike`] | likewise |
//! | SAs put or deleted | [`Compiled::with_put`], [`Compiled::without`] | likewise |
//! | both | [`Compiled::assemble`] | [`dataplane::Snapshot`] |
//! | policies and netdevs | [`guard::Guard`] | the nftables table that stands behind Lockgate |
//! | a snapshot and a question | [`explain`] | the same answer in words |
//!
//! A configuration by itself, without a kernel, is compiled by [`compile`]: for `replay` and
//! `explain` over files.
#![forbid(unsafe_code)]

mod associations;
mod carried;
mod change;
mod compile;
mod compiled;
mod connections;
mod explained;
pub mod guard;
mod host_routes;
mod identifications;
mod ike;
mod ike_peers;
mod kept_sas;
mod listing;
mod live;
mod live_parts;
mod lookup_order;
mod move_error;
mod netdevs;
mod overlays;
mod owner;
mod peer_address;
mod planner;
mod port_slots;
mod put_sas;
mod remote_end;
mod roaming;
mod set_numbers;
mod takeover;
mod two_layers;

pub use carried::{CarriedFlow, Inexact, MAX_CARRIED, NotCarried, carried_flows};
pub use change::{AdoptedBase, ChangeRefused, NotAdopted, RebuildJob, RebuiltBase};
pub use compile::{CompileError, compile};
pub use compiled::{Compiled, RefusedKey};
pub use explained::{
    DeadPort, Explained, InsideText, Picture, PolicyLookup, Question, QuestionError, Routing,
    RulePlace, Spis, TunnelEnds, explain, flow_text, port_named, questions, set_of,
};
pub use host_routes::{HostRouteSkipped, host_mtu, host_routes};
pub use ike::{ChangedIke, IkeAction, IkeChange, IkePolicy};
pub use ike_peers::IKE_NAMES;
pub use live::Compiler;
pub use live_parts::{Cure, LiveParts, LiveProblem, PortState, live_parts, live_parts_towards};
pub use lookup_order::{LookupPlace, Ordered, lookup_order};
pub use move_error::MoveError;
pub use netdevs::{PortRefusal, PortRefusalReason, check_netdevs};
pub use overlays::EndpointsError;
pub use owner::{KeyManager, SaOwner};
pub use peer_address::{PeerAddress, PeerEnds};
pub use planner::{Planner, PreparedConfiguration};
pub use port_slots::PortSlots;
pub use put_sas::{
    CardUse, CardWish, ChangedSas, CountedByCard, DeleteRefusal, GoneReason, GoneSa, LINGER_NS,
    LimitMistake, MAX_OUTBOUND_OF_PEER, MAX_PUT_SAS, MAX_RESERVED, MOST_LINGER_NS, OpeningWorker,
    PutPlan, PutRefusal, PutSa, RESERVED_NS, RefusedPut, ReserveRefusal, ReservedSpis, SaName,
    SpiRequest, carried_by_linux, cipher_of, limits as limits_by_use, planned_sas,
};
pub use remote_end::RemoteEnd;
pub use roaming::{MovedEnds, MovedPeer, MovedSet};
pub use takeover::{Takeover, Takeovers, action_text, takeovers_of};
pub use two_layers::OuterWithoutPolicy;
