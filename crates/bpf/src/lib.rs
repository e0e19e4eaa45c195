//! The steering program: XDP in front of a netdev, which leaves to Linux what is Linux's and sends
//! everything else to a worker's AF_XDP socket.
//!
//! # The kernel's interface
//!
//! An *XDP program* is run by the kernel for every frame that a netdev receives, before the kernel
//! makes anything of it. Ours (`c/steer.bpf.c`) answers `XDP_PASS`, the way into the Linux stack,
//! or redirects the frame into the socket that its *XSKMAP* holds for the receive queue; a queue
//! without a socket drops. One program and its maps belong to one netdev: [`Steering`]. The kernel
//! tier of overlays (`c/overlay.bpf.c`) is a second program, to which the first one jumps; its
//! tables serve all netdevs: [`tier`].
//!
//! ```text
//!              ┌─ to Linux: other stations, ARP, non-IP, our addresses, allow_host
//!  frame → XDP ┼─ of an overlay, and in the tier's tables: to its host
//!              └─ everything else: 32-byte mark in front, → socket of this queue, or dropped
//! ```
//!
//! The program is attached to the netdev itself (by netlink), not through a link or a file: it
//! stays when the process ends, however it ends, and since a closed socket leaves the XSKMAP by
//! itself, the port is closed then. A restarted process loads a new program, puts its sockets in,
//! and [`Steering::attach`] swaps the programs in one step.
//!
//! **Fail closed.** Before its tables are set a program passes nothing. What it cannot read goes to
//! the worker, never to Linux. A table is built aside and put in place by one pointer: at no moment
//! does a frame see half of a change. A program of somebody else's is never replaced or detached.
//!
//! **The mark.** [`wire::Mark`]: its bytes end where the frame begins. Frames of an earlier program
//! carry another incarnation.
//!
//! **A card's header.** The netdev of an emulated card ([`LinkForm::Carded`]) hands every frame
//! over behind a [`wire::CardHeader`], with the card's tag. The program takes it away from every
//! frame, puts the tag into the mark, and drops what comes without it (`no_card_header`).
//!
//! **Frame size.** In native mode a frame must fit one page with the kernel's own room around it:
//! a netdev's MTU up to 3498 or so, and no frames of several buffers (no LRO, no jumbo frames).
//! Attaching is refused otherwise. veth turns its peer's segmentation offload off by itself, but
//! not its checksum and VLAN offloads: `ethtool -K PEER tx off txvlan off`.
//!
//! Not handled here: tags that the netdev strips before XDP sees the frame (`ethtool -K DEV rxvlan
//! off`): such a frame looks untagged.
//!
//! | module | what |
//! |---|---|
//! | `layout` | the types and numbers shared with the programs |
//! | `counters` | sums of the program's counters |
//! | `steering` | a loaded program, its tables and counters |
//! | [`tier`] | the tables of the kernel tier of overlays |
//! | `index` | its way from a key to a slot |
//! | `samples`, `answered` | samples of what it answered: the ring, and as they are read |
//! | `maps` | maps that the process makes |
//! | `attach` | which program a netdev runs, replaced and detached with care |
//! | `probe` | what this machine has of what is needed |
//! | [`traffic`] | frames for benches, made and counted by XDP programs |
//! | `messages` | what libbpf says, caught for our errors |
#![deny(clippy::undocumented_unsafe_blocks)]

mod answered;
mod attach;
mod counters;
mod error;
mod features;
mod index;
mod known;
mod layout;
mod maps;
mod messages;
mod probe;
mod samples;
mod steering;
pub mod tier;
pub mod traffic;

pub use answered::{Answered, AnsweredSample};
pub use attach::{
    Attached, AttachedProgram, Mode, ModeChoice, NativeRefusal, Owner, attached, detach,
};
pub use error::BpfError;
pub use features::{DriverFeatures, driver_features};
pub use layout::{
    Counter, KernelCounters, MAX_ADDRESSES, MAX_CARRIED_SAS, MAX_ENTRANCES, MAX_EXITS,
    MAX_OVERLAYS, MAX_PORTS, MAX_PREFIXES, MAX_QUEUES, MAX_SERVICES, MAX_TIER_OVERLAYS, Miss,
    XDP_ACTIONS,
};
pub use probe::{Feature, Finding, probe};
pub use steering::{
    Action, Carried, CounterReader, Inside, LinkForm, PortRule, Prefix, Run, Scope, Service, Side,
    Steering,
};

/// Name of our program in the kernel: whose program a netdev runs is told by it.
pub const PROGRAM: &str = "lockgate_steer";
