//! Laboratories in network namespaces: hosts, gateways and the wire between them, real traffic,
//! captures, and the end of all of it whatever happens.
//!
//! | module | what |
//! |---|---|
//! | [`laboratory`] | namespaces with names of their own, torn down when dropped |
//! | [`namespace`] | commands, threads and settings inside one namespace |
//! | [`machine`] | system directories of its own beside a namespace |
//! | [`sites`] | the topology: host – gateway – wire – gateway – host, two sites or more |
//! | [`configuration`] | a gateway's file, with directories of its own |
//! | [`gateways`] | sites, configurations and daemons together |
//! | [`charon`], [`vici`] | one charon: started, killed, asked |
//! | [`daemon`] | one `lockgated`: started, waited for, killed, asked |
//! | [`capture`] | what passed the wire, and what it was |
//! | [`ping`], [`iperf`], [`stream`] | traffic with a result |
//! | [`vxlan`] | hosts of virtual networks |
//! | [`direct_paths`] | the agents of such hosts that hear about direct paths |
//! | [`inject`], [`listen`] | frames put on the wire as they are, at a steady rate too, and heard |
//! | [`emulated_card`] | an emulated card: started, waited for, told what happens to it |
//! | [`carded`] | a gateway with a port on one, between a client and a server |
//! | [`process`] | programs that end in time |
//! | [`programs`] | which programs a laboratory needs, and where ours are |
//! | [`interrupt`] | Ctrl-C as a flag that every wait heeds |
//!
//! Needs root. Traffic never leaves the namespaces. Every wait has an end: a limit, or Ctrl-C.
#![forbid(unsafe_code)]

pub mod capture;
pub mod carded;
pub mod charon;
pub mod configuration;
pub mod daemon;
pub mod direct_paths;
pub mod emulated_card;
mod error;
pub mod gateways;
pub mod inject;
pub mod interrupt;
pub mod iperf;
pub mod laboratory;
pub mod listen;
pub mod machine;
pub mod namespace;
pub mod ping;
pub mod process;
pub mod programs;
pub mod sealed;
pub mod sites;
pub mod stream;
pub mod vici;
pub mod vxlan;

pub use capture::{Capture, Scope, Tally};
pub use charon::{Charon, CharonPlan, ChildPlan, Esp, KeysInLog};
pub use configuration::{GatewayFile, PeerEntry};
pub use daemon::Daemon;
pub use emulated_card::{CardPlan, EmulatedCard, SeenFrame};
pub use error::LabError;
pub use gateways::Gateways;
pub use laboratory::Laboratory;
pub use listen::Listener;
pub use machine::Machine;
pub use namespace::Namespace;
pub use programs::Programs;
pub use sites::{Plan, Site, Sites};
