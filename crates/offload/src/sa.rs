//! SAs and their policies as a card is given them, from the view of the wire: nothing here is of
//! the workers or of the database of policies. A card, emulated or not, is written from these types
//! alone.
//!
//! Whoever gives an SA to a card keeps to this:
//!
//! * An SA lives in one tier from birth to death. A key that has sealed elsewhere is not placed.
//! * The hard limit of packets of an SA that seals is the lease of its numbers: the card uses
//!   [`first_number`](CardSa::first_number) and those behind it, as many as the limit says, each
//!   once, and whoever leases them counts all as used when the card is lost (RFC 4303 §3.3.3).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::handle::Handle;
use crate::pattern::Pattern;

mod fits;
mod limits;

pub use fits::{Unfit, policy_fits, sa_fits};
pub use limits::SaLimits;

/// An SA of one direction. It has no text of its own: whoever writes one writes a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CardSa {
    /// Sealing or opening.
    pub direction: SaDirection,
    /// The number by which the receiver finds it, 256 or higher.
    pub spi: u32,
    /// Addresses of its packets on the wire, of one family.
    pub ends: Ends,
    /// The data that ESP is put around.
    pub mode: SaMode,
    /// Ports of the UDP header in front of ESP (RFC 3948); `None`: ESP alone.
    pub udp: Option<UdpEnds>,
    /// The part of the work that the card does.
    pub service: Service,
    /// The carrier of its packets between the host and the card.
    pub carrier: Carrier,
    /// Name of the cipher suite: `aes-256-gcm`.
    pub suite: Box<str>,
    /// Key of the suite, with the salt behind it.
    pub key: SaKey,
    /// Bytes of the integrity check value.
    pub icv_bytes: u8,
    /// Width of the sequence numbers.
    pub numbers: Numbers,
    /// Numbers of the replay window, of an SA that opens.
    pub window: u32,
    /// Sealing: the number of the first packet. Opening: no lower number is accepted.
    pub first_number: u64,
    /// Padding that hides the length of packets (RFC 4303 §2.7).
    pub flow_confidentiality: FlowConfidentiality,
    /// Limits of its use.
    pub limits: SaLimits,
    /// Packets that it has to carry beside whole ones with bare headers.
    pub carries: Carries,
}

/// The direction of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SaDirection {
    /// It seals what leaves.
    Out,
    /// It opens what comes.
    In,
}

/// Addresses of the packets on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
}

/// Ports of the packets on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpEnds {
    /// Port of the sender.
    pub source: u16,
    /// Port of the receiver.
    pub destination: u16,
}

/// The data that ESP is put around (RFC 4303 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SaMode {
    /// The upper layer of a packet between the ends, behind its own IP header.
    Transport,
    /// A whole packet, behind an outer IP header.
    Tunnel(OuterFields),
}

/// Fields of outer IP headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OuterFields {
    /// Just so: the card must be able to.
    Exactly {
        /// TTL or hop limit.
        hop_limit: u8,
        /// DSCP.
        dscp: OuterDscp,
        /// ECN.
        ecn: OuterEcn,
        /// The don't-fragment flag, of IPv4.
        dont_fragment: OuterDontFragment,
    },
    /// As the card does it: the operator has said that they may differ.
    LeftToCard,
}

/// DSCP of outer headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OuterDscp {
    /// The inner packet's.
    Copy,
    /// Always this, 0 to 63.
    Fixed(u8),
}

/// ECN of outer headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OuterEcn {
    /// RFC 6040, both ways: copied when sealed, combined when opened.
    Rfc6040,
    /// Not ECN-capable, and not looked at.
    Cleared,
}

/// The don't-fragment flag of outer IPv4 headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OuterDontFragment {
    /// Set.
    Set,
    /// The inner packet's; set for IPv6 inside.
    Copy,
    /// Clear.
    Clear,
}

/// The part of the work that a card does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Service {
    /// Headers, cipher, numbers and windows (packet mode).
    Packet,
    /// The cipher alone; the host writes headers and keeps the window (crypto mode).
    Crypto,
}

impl Service {
    /// `packet` or `crypto`.
    pub const fn name(self) -> &'static str {
        match self {
            Service::Packet => "packet",
            Service::Crypto => "crypto",
        }
    }
}

/// The carrier of packets between the host and the card.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Carrier {
    /// A worker, by frames without a packet buffer of the kernel: what tells that a packet was
    /// opened, or is to be sealed, must stand beside the frame.
    Worker,
    /// The kernel, which checks packet by packet what the card did and will do.
    Kernel,
}

/// Width of the sequence numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Numbers {
    /// 32 bits.
    Short,
    /// 64 bits, of which 32 are sent (ESN, RFC 4303 §2.2.1).
    Extended,
}

impl Numbers {
    /// The highest number.
    pub const fn highest(self) -> u64 {
        match self {
            Numbers::Short => u32::MAX as u64,
            Numbers::Extended => u64::MAX,
        }
    }
}

/// Padding that hides the length of packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FlowConfidentiality {
    /// None.
    #[default]
    Off,
    /// Packets are padded to so many bytes.
    To(u16),
}

/// Packets that an SA has to carry beside whole ones with bare headers. What it does not have to
/// carry, the host keeps back; the card drops it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carries {
    /// Fragments.
    pub fragments: Need,
    /// Packets with IPv4 options or IPv6 extension headers.
    pub options: Need,
}

/// A need.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Need {
    /// It is not needed.
    #[default]
    Dispensable,
    /// It is needed.
    Needed,
}

/// Bytes of a key, which are wiped when the last copy goes.
#[derive(Clone)]
pub struct SaKey(Arc<Zeroizing<Box<[u8]>>>);

impl SaKey {
    /// A key with these bytes.
    pub fn new(bytes: &[u8]) -> SaKey {
        SaKey(Arc::new(Zeroizing::new(bytes.into())))
    }

    /// The bytes, for the card that the key is written into.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Number of bytes.
    pub fn length(&self) -> usize {
        self.0.len()
    }
}

/// In a time that does not depend on where keys of one length differ.
impl PartialEq for SaKey {
    fn eq(&self, other: &SaKey) -> bool {
        let pairs = self.0.iter().zip(other.0.iter());
        let difference =
            pairs.fold(0, |difference, (a, b)| std::hint::black_box(difference | a ^ b));
        self.length() == other.length() && difference == 0
    }
}

impl Eq for SaKey {}

/// Without the bytes.
impl fmt::Debug for SaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaKey({} bytes)", self.length())
    }
}

/// A policy beside the SAs: what becomes of packets.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardPolicy {
    /// Packets that leave, or packets that came.
    pub direction: SaDirection,
    /// Ports of the card, ascending.
    pub ports: Arc<[u16]>,
    /// The higher wins.
    pub rank: u64,
    /// The packets in clear: those that match one of these.
    pub patterns: Box<[Pattern]>,
    /// The action on them.
    pub action: PolicyAction,
}

/// The action of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PolicyAction {
    /// They are sealed, or must have been, by the SA of this handle.
    Protect(Handle),
    /// They pass in clear.
    Bypass,
    /// They are dropped.
    Discard,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown_and_is_compared_by_its_bytes() {
        let key = SaKey::new(&[0x5a; 20]);
        assert_eq!(format!("{key:?}"), "SaKey(20 bytes)");
        assert_eq!(key, SaKey::new(&[0x5a; 20]));
        assert_eq!(key.expose(), [0x5a; 20]);
        for place in 0..20 {
            let mut other = [0x5a; 20];
            other[place] ^= 0x80;
            assert_ne!(key, SaKey::new(&other));
        }
        assert_ne!(key, SaKey::new(&[0x5a; 19]));
        assert_ne!(SaKey::new(&[]), key);
    }

    #[test]
    fn an_sa_that_is_written_out_shows_no_byte_of_its_key() {
        let sa = fits::tests::sa(|sa| sa.key = SaKey::new(&[0xa7; 36]));
        let shown = format!("{sa:?} {:?}", crate::Item::Sa(Arc::new(sa.clone())));
        for text in ["167", "a7", "A7"] {
            assert!(!shown.contains(text), "{shown}");
        }
    }
}
