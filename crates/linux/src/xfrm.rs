//! SAs and policies in Linux (xfrm), for netdevs whose card does ESP: put in, taken out, read,
//! listened to.
//!
//! | part | |
//! |---|---|
//! | `encode` | requests as bytes |
//! | `decode` | the kernel's answers |
//! | `socket` | requests and answers over netlink, and what the kernel tells by itself |
//!
//! **Keys** are in requests and in answers: an answer to a question for a state has its key. What
//! holds either is wiped when it goes, and nothing here shows one.
//!
//! **What the kernel says of offload is looked at again.** A kernel that is built without offload
//! takes a state that asks for it and says nothing: [`Xfrm::add_sa`] reads the state back, and
//! takes it out if no card has it.

mod decode;
mod encode;
mod socket;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

pub use socket::{Xfrm, XfrmError, XfrmEvents};

/// Numbers by which SAs and policies belong together (`reqid`) that are Lockgate's: `LG` and 16
/// bits. Nothing with another number is touched.
pub const REQIDS: RangeInclusive<u32> = 0x4c47_0000..=0x4c47_ffff;

/// Part of the work that a card does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OffloadMode {
    /// The cipher alone.
    Crypto,
    /// Headers, cipher, numbers, windows.
    Packet,
}

impl OffloadMode {
    /// `crypto` or `packet`.
    pub const fn name(self) -> &'static str {
        match self {
            OffloadMode::Crypto => "crypto",
            OffloadMode::Packet => "packet",
        }
    }
}

/// A netdev whose card is to do ESP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OffloadTo {
    /// Its index.
    pub ifindex: u32,
    /// The part of the work.
    pub mode: OffloadMode,
}

/// Direction of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SaWay {
    /// It seals.
    Out,
    /// It opens.
    In,
}

/// Direction of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum PolicyWay {
    /// Packets for the gateway itself.
    In,
    /// Packets that are forwarded after they were opened.
    Forward,
    /// Packets that leave.
    Out,
}

impl PolicyWay {
    /// `in`, `fwd` or `out`, as `ip xfrm policy` writes them.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyWay::In => "in",
            PolicyWay::Forward => "fwd",
            PolicyWay::Out => "out",
        }
    }
}

/// Addresses of ESP packets, of one family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct XfrmEnds {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
}

/// Limits of an SA's use; `None`: it has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct XfrmLimits {
    /// Packets after which the kernel tells.
    pub soft_packets: Option<u64>,
    /// Packets beyond which nothing passes.
    pub hard_packets: Option<u64>,
    /// Bytes after which the kernel tells.
    pub soft_bytes: Option<u64>,
    /// Bytes beyond which nothing passes.
    pub hard_bytes: Option<u64>,
    /// Seconds after which the kernel tells.
    pub soft_seconds: Option<u64>,
    /// Seconds after which nothing passes.
    pub hard_seconds: Option<u64>,
}

/// An SA to be put in, in tunnel mode.
#[derive(Clone, Copy)]
pub struct XfrmSa<'k> {
    /// Its direction.
    pub way: SaWay,
    /// The number by which the receiver finds it.
    pub spi: u32,
    /// Addresses of its packets.
    pub ends: XfrmEnds,
    /// Number that its policies name.
    pub reqid: u32,
    /// The kernel's name of the cipher: see [`cipher_name`].
    pub cipher: &'static str,
    /// Key with the salt behind it.
    pub key: &'k [u8],
    /// Numbers of the replay window, of an SA that opens.
    pub window: u32,
    /// 64-bit numbers.
    pub esn: bool,
    /// Its limits.
    pub limits: XfrmLimits,
    /// The card; `None`: Linux does ESP.
    pub offload: Option<OffloadTo>,
}

/// Without the key.
impl fmt::Debug for XfrmSa<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let XfrmSa { way, spi, ends, reqid, offload, .. } = self;
        write!(f, "XfrmSa({way:?} {spi:#x} {ends:?} reqid {reqid:#x} {offload:?})")
    }
}

/// Packets that a policy is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct XfrmSelector {
    /// Prefix of the senders.
    pub source: (IpAddr, u8),
    /// Prefix of the receivers.
    pub destination: (IpAddr, u8),
    /// Protocol above IP; `None`: any.
    pub protocol: Option<u8>,
    /// The sender's port; `None`: any.
    pub source_port: Option<u16>,
    /// The receiver's port; `None`: any.
    pub destination_port: Option<u16>,
}

impl fmt::Display for XfrmSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((source, from), (destination, to)) = (self.source, self.destination);
        write!(f, "{source}/{from} to {destination}/{to}")?;
        if let Some(protocol) = self.protocol {
            write!(f, " protocol {protocol}")?;
        }
        if let Some(port) = self.source_port {
            write!(f, " from port {port}")?;
        }
        match self.destination_port {
            Some(port) => write!(f, " to port {port}"),
            None => Ok(()),
        }
    }
}

/// A policy: what it matches is sealed, or must have been opened, by SAs of its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct XfrmPolicy {
    /// Its direction.
    pub way: PolicyWay,
    /// Its packets.
    pub selector: XfrmSelector,
    /// The lower wins.
    pub priority: u32,
    /// Addresses of the ESP packets.
    pub ends: XfrmEnds,
    /// Number of its SAs.
    pub reqid: u32,
    /// Index of the netdev whose card is to have it, too; `None`: Linux alone has it.
    pub packet_offload: Option<u32>,
}

/// A state as the kernel has it, without its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundSa {
    /// The receiver's address.
    pub destination: IpAddr,
    /// The sender's address.
    pub source: IpAddr,
    /// Its SPI; 0: the kernel waits for an SA.
    pub spi: u32,
    /// Protocol: 50 for ESP.
    pub protocol: u8,
    /// Its number.
    pub reqid: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Of one that opens: the highest number that came.
    pub edge: u64,
    /// Of one that seals: the last number.
    pub last: u64,
    /// The card that has it.
    pub offload: Option<OffloadTo>,
}

/// A policy as the kernel has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundPolicy {
    /// Direction, as the kernel numbers it.
    pub direction: u8,
    /// Its index, by which it is taken out.
    pub index: u32,
    /// The number that all of its templates have; `None`: they differ, or there are none.
    pub reqid: Option<u32>,
}

/// News of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XfrmNews {
    /// An SA reached a limit.
    Expired {
        /// The SA, with its counts.
        sa: FoundSa,
        /// The kernel has taken it out; otherwise it goes on.
        hard: bool,
    },
    /// A packet wants an SA of this number, and there is none.
    Wanted {
        /// The number of the policy.
        reqid: u32,
    },
}

/// The kernel's name of a cipher suite; `None`: it is not asked for here.
pub fn cipher_name(suite: &str) -> Option<&'static str> {
    match suite {
        "aes-128-gcm" | "aes-256-gcm" => Some("rfc4106(gcm(aes))"),
        "chacha20-poly1305" => Some("rfc7539esp(chacha20,poly1305)"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
