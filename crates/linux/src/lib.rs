//! Reads and writes the kernel's network state, by netlink and `nft`.
//!
//! | module | |
//! |---|---|
//! | `link_watch` | notifications about netdevs, at once |
//! | [`mirror`] | a live copy of netdevs, addresses, routes, neighbours; the host port's routes |
//! | [`view`] | the copy itself, as plain data |
//! | [`ethtool`] | queues and receive offloads of a netdev |
//! | [`xfrm`] | SAs and policies that Linux carries |
//! | [`tcp_user`] | the user of a local TCP connection |
//! | [`nft`] | a table of nftables: put in place, listed, watched, removed |
//!
//! Nothing here knows a configuration: the caller says what it wants. Every function works in the
//! network namespace of the thread that calls it.
#![forbid(unsafe_code)]

pub mod ethtool;
mod link_watch;
pub mod mirror;
mod netlink;
pub mod nft;
mod tcp_user;
pub mod view;
pub mod xfrm;

pub use ethtool::{Channels, Ethtool, Offload};
pub use link_watch::{ChangedLinks, LinkWatch};
pub use mirror::{
    Changes, HostPortError, HostRoute, Lists, Mirror, MirrorError, Note, ResyncReason, read_link,
};
pub use netlink::NetlinkError;
pub use tcp_user::tcp_user;
pub use view::{
    HOST_ROUTE_PROTOCOL, HOST_ROUTE_TABLE, Hop, KernelRoute, LOCAL_TABLE, Link, LinkKind,
    MAIN_TABLE, NeighbourEntry, NeighbourState, Refused, RouteKind, RouteList, RouteStatus,
    Usability, View,
};

/// Bytes of memory that this machine has; `None`: Linux does not say.
pub fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
