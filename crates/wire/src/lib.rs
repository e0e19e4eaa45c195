//! Reads and writes the bytes of a packet: header views, checksums, the flow that a selector
//! matches, and the frames that packets lie in.
//!
//! Panic contract of the whole crate: no function panics on any bytes. Views are checked once, at
//! `parse` or at their `new`; their accessors then read inside the checked length.
//!
//! Not here: ports, policies, keys, clocks.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod arp;
pub mod build;
pub mod card_header;
pub mod checksum;
pub mod direct_path;
pub mod discovery;
pub mod flow;
pub mod frame;
pub mod glance;
pub mod icmp;
mod ip_header;
pub mod link;
pub mod mark;
pub mod outer;
pub mod overlay;
pub mod packet;
pub mod shared;
pub mod upper_checksum;
pub mod vni;

pub use card_header::CardHeader;
pub use direct_path::{DirectFlow, DirectPath};
pub use flow::{Address, Family, Flow, Upper};
pub use frame::{BATCH, Descriptor, FrameId, Frames, HEADROOM, Port, Received};
pub use link::LinkAddress;
pub use mark::{Claim, ClaimKind, Deciphered, Mark, MarkVlan};
pub use packet::{Fragment, FragmentFields, FragmentHeader, Packet, ParseError};
pub use upper_checksum::UpperChecksum;
pub use vni::Vni;
