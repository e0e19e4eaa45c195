//! Describes the carriage of an SA's packets: mode, ends, UDP in front of ESP, and the inner header
//! fields that show outside (the parameters of RFC 4301 §4.4.2.1 that concern headers).

use std::net::IpAddr;

use crate::error::SaError;
use crate::ids::Tunnel;

/// The kind of data that ESP is put around (RFC 4303 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// A whole packet, behind an outer IP header.
    Tunnel,
    /// The upper layer of a packet between the two ends themselves, behind its own IP header.
    Transport,
}

impl Mode {
    /// Returns the mode's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Tunnel => "tunnel",
            Mode::Transport => "transport",
        }
    }
}

/// Ports of the UDP header in front of ESP (RFC 3948 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpPorts {
    /// Address of this gateway: source of the packets that it seals.
    pub local: u16,
    /// The peer's, or its NAT's.
    pub remote: u16,
}

/// The port of ESP in UDP, and of IKE beside it (RFC 3948 §2.1).
pub const NAT_TRAVERSAL_PORT: u16 = 4500;

/// DSCP of the outer header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dscp {
    /// The inner packet's.
    Copy,
    /// Always this, 0 to 63: the inner one stays hidden.
    Fixed(u8),
}

/// The don't-fragment flag of an outer IPv4 header (RFC 4301 §8.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DontFragment {
    /// Set.
    Set,
    /// The inner packet's flag; an IPv6 packet is never fragmented by routers.
    Copy,
    /// Clear.
    Clear,
}

/// The identifications of an SA's outer IPv4 packets where DF is clear, and of its outer fragments.
/// SAs between the same two ends have different ones, so that no two of their packets are taken for
/// one datagram (RFC 6864 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identifications {
    /// Distance of the identifications of two numbers that follow each other: a power of two, or 0
    /// where there is only one identification.
    stride: u16,
    /// Less than the stride, if that is not 0.
    place: u16,
}

impl Identifications {
    /// The identifications of an SA that is the only one between its ends: all.
    pub const ALL: Identifications = Identifications { stride: 1, place: 0 };

    /// The identifications of the SA at a place among `count` ones between the same ends. They are
    /// no other's, unless there are more than 65,536.
    pub fn of_one_among(place: usize, count: usize) -> Identifications {
        let stride = count.next_power_of_two().min(1 << 16);
        Identifications { stride: stride as u16, place: (place % stride) as u16 }
    }

    /// Returns the identification of the packet with a sequence number: the lower bits of the
    /// number above those of the place.
    #[inline(always)]
    pub const fn of(self, sequence: u64) -> u16 {
        // A product and a sum: in a loop over numbers that follow each other, one addition.
        (sequence as u16).wrapping_mul(self.stride).wrapping_add(self.place)
    }
}

/// The carriage of an SA's packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Encapsulation {
    /// Tunnel or transport mode.
    pub mode: Mode,
    /// The two ends. In transport mode the packets' own addresses.
    pub tunnel: Tunnel,
    /// ESP in UDP; `None`: ESP alone.
    pub udp: Option<UdpPorts>,
    /// DSCP of outer headers; in transport mode there is only the packet's own.
    pub dscp: Dscp,
    /// The don't-fragment flag of outer IPv4 headers; in transport mode the packet's own.
    pub dont_fragment: DontFragment,
}

impl Encapsulation {
    /// Checks that both ends are of one family.
    ///
    /// # Errors
    /// [`SaError::MixedFamilies`].
    pub(crate) fn check(&self) -> Result<(), SaError> {
        match (self.tunnel.local, self.tunnel.remote) {
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Ok(()),
            (local, remote) => Err(SaError::MixedFamilies { local, remote }),
        }
    }
}

/// Tunnel mode without UDP, DSCP copied, don't fragment.
impl From<Tunnel> for Encapsulation {
    fn from(tunnel: Tunnel) -> Encapsulation {
        Encapsulation {
            mode: Mode::Tunnel,
            tunnel,
            udp: None,
            dscp: Dscp::Copy,
            dont_fragment: DontFragment::Set,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn sas_between_the_same_ends_share_no_identification_and_each_comes_as_late_as_it_can() {
        for count in [1, 2, 3, 4, 5, 16, 17] {
            let each = 65_536 / (count as u64).next_power_of_two();
            let mut owners = BTreeMap::new();
            for place in 0..count {
                let identifications = Identifications::of_one_among(place, count);
                // From any number on.
                for sequence in 70_000..70_000 + each {
                    let identification = identifications.of(sequence);
                    // The place in the lowest bits, the number's own bits above them.
                    let expected = sequence % each * (65_536 / each) + place as u64;
                    assert_eq!(u64::from(identification), expected);
                    let before = owners.insert(identification, place);
                    assert_eq!(before, None, "place {place} of {count}");
                }
            }
            assert_eq!(owners.len() as u64, each * count as u64);
        }
        assert_eq!(Identifications::of_one_among(0, 1), Identifications::ALL);
        assert_eq!(Identifications::ALL.of(0x1_2345), 0x2345);
        // More than there are: no panic.
        for count in [65_536, 65_537, 1 << 20] {
            let last = Identifications::of_one_among(count - 1, count);
            assert_eq!(last.of(7), ((count - 1) % 65_536) as u16);
        }
    }
}
