//! Outer headers of overlay packets: IP, UDP, overlay header in front of a tenant's frame. They are
//! changed in place where a packet goes on to another host of the same family, else written anew.

use crate::checksum;
use crate::flow::{Address, Family, protocol};
use crate::glance;
use crate::ip_header::IpHeader;
use crate::link::LinkAddress;
use crate::overlay::{self, Kind};
use crate::packet::{self, Packet};
use crate::upper_checksum::UpperChecksum;
use crate::vni::Vni;

/// Bytes of a UDP header.
pub const UDP_BYTES: usize = 8;
/// TTL and hop limit of packets that we begin.
pub const HOP_LIMIT: u8 = 64;

/// Offset of UDP's checksum in its header.
const CHECKSUM: usize = 6;
/// The bit of IPv4's flags, in the byte that they are in.
const DONT_FRAGMENT: u8 = 0x40;

/// Addresses an overlay packet anew, of the family that it has: source, destination, one hop less.
/// The IPv4 header's checksum and UDP's follow; a UDP checksum of 0, which says that there is none,
/// stays 0. `bytes` begins with the IP header, is as long as it says, and was parsed; its TTL or
/// hop limit is above 0. UDP begins at `udp`.
#[inline]
pub fn forward(bytes: &mut [u8], udp: usize, (source, destination): (Address, Address)) {
    packet::decrement_hop_limit(bytes, source.family);
    let change = match source.family {
        Family::V4 => {
            let change = exchange(bytes, 12, &(source.value as u32).to_be_bytes())
                + exchange(bytes, 16, &(destination.value as u32).to_be_bytes());
            correct(bytes, 10, change);
            change
        }
        Family::V6 => {
            exchange(bytes, 8, &source.value.to_be_bytes())
                + exchange(bytes, 24, &destination.value.to_be_bytes())
        }
    };
    correct_udp(bytes, udp, change);
}

/// Sets the destination of a tenant's frame, which begins at `frame` in the packet `bytes`. UDP's
/// checksum follows; see [`forward`].
#[inline]
pub fn set_tenant_destination(bytes: &mut [u8], udp: usize, frame: usize, mac: LinkAddress) {
    let mut change = exchange(bytes, frame, &mac.bytes());
    // Words that begin at an odd byte count with their bytes swapped (RFC 1071 §2 B). The headers
    // of VXLAN and Geneve are of even length; this is for whatever else lies in between.
    if !frame.abs_diff(udp).is_multiple_of(2) {
        change = checksum::fold(change).swap_bytes().into();
    }
    correct_udp(bytes, udp, change);
}

/// Does what [`set_tenant_destination`] and [`forward`] do together, to a packet whose IP header
/// has `OUTER` bytes, those of IPv4 without options or of IPv6, whose UDP header is behind it, and
/// whose frame begins at `frame`, at an even offset. The compiler sees that all of it lies in the
/// `N` bytes.
///
/// # Panics
/// If it does not, which the compiler sees where `frame` is a constant.
#[inline(always)]
pub fn carry<const OUTER: usize, const N: usize>(
    packet: &mut [u8; N],
    frame: usize,
    (source, destination): (u128, u128),
    mac: LinkAddress,
) {
    const { assert!(OUTER == packet::IPV4_BYTES || OUTER == packet::IPV6_BYTES) };
    let field = |packet: &[u8; N], at| u16::from_ne_bytes([packet[at], packet[at + 1]]);
    let change = if OUTER == packet::IPV4_BYTES {
        let new = (source as u64) << 32 | u64::from(destination as u32);
        let change = replace(packet, 12, new.to_be());
        // The TTL is the high byte of its word: one less is the complement of 0x0100 more.
        packet[8] = packet[8].wrapping_sub(1);
        let lowered = change + u64::from((!0x0100_u16).to_be());
        let sum = corrected(field(packet, 10), lowered);
        packet[10..12].copy_from_slice(&sum.to_ne_bytes());
        change
    } else {
        packet[7] = packet[7].wrapping_sub(1);
        let halves = |value: u128| [(value >> 64) as u64, value as u64];
        let ([a, b], [c, d]) = (halves(source), halves(destination));
        [(8, a), (16, b), (24, c), (32, d)]
            .map(|(at, half)| replace(packet, at, half.to_be()))
            .iter()
            .sum()
    };
    // The two bytes behind the address stay as they are.
    let behind = glance::double(packet, frame) & 0xffff_u64.to_be();
    let [a, b, c, d, e, f] = mac.bytes();
    let new = u64::from_be_bytes([a, b, c, d, e, f, 0, 0]).to_be() | behind;
    // 0 says that there is none (RFC 768).
    let of_udp = field(packet, OUTER + CHECKSUM);
    if of_udp == 0 {
        packet[frame..frame + 8].copy_from_slice(&new.to_ne_bytes());
        return;
    }
    let sum = match corrected(of_udp, change + replace(packet, frame, new)) {
        0 => 0xffff,
        sum => sum,
    };
    packet[OUTER + CHECKSUM..OUTER + UDP_BYTES].copy_from_slice(&u16::to_ne_bytes(sum));
}

/// Writes 8 bytes, as they lie in memory; returns the change of the sum of the words there, in that
/// order of bytes (RFC 1071 §2 B), to be added.
#[inline(always)]
fn replace<const N: usize>(bytes: &mut [u8; N], at: usize, new: u64) -> u64 {
    let old = !glance::double(bytes, at);
    bytes[at..at + 8].copy_from_slice(&new.to_ne_bytes());
    let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
    halves(old) + halves(new)
}

/// Returns a checksum after a change of the sum that it is of (RFC 1624 eqn. 3).
#[inline(always)]
fn corrected(field: u16, change: u64) -> u16 {
    checksum::finish(u64::from(!field) + change)
}

/// Writes bytes at an offset; returns the change of the sum of the words there, to be added.
#[inline(always)]
fn exchange<const N: usize>(bytes: &mut [u8], at: usize, new: &[u8; N]) -> u64 {
    let Some(place) = bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut::<N>()) else {
        return 0;
    };
    let old = complement(place);
    *place = *new;
    checksum::sum(&old) + checksum::sum(new)
}

/// The bytes whose sum takes others away from a ones'-complement sum.
#[inline(always)]
fn complement<const N: usize>(bytes: &[u8; N]) -> [u8; N] {
    core::array::from_fn(|at| !bytes[at])
}

/// Changes a checksum by a change of the sum that it is of (RFC 1624 eqn. 3).
#[inline(always)]
fn correct(bytes: &mut [u8], at: usize, change: u64) {
    if let Some(field) = bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut::<2>()) {
        let before = u16::from_be_bytes(*field);
        *field = checksum::finish(u64::from(!before) + change).to_be_bytes();
    }
}

/// Changes the checksum of the UDP header at an offset, if it has one; 0 would say that there is
/// none (RFC 768).
#[inline(always)]
fn correct_udp(bytes: &mut [u8], udp: usize, change: u64) {
    let Some(header) = bytes.get_mut(udp..).and_then(|b| b.first_chunk_mut::<UDP_BYTES>()) else {
        return;
    };
    if header[CHECKSUM..] != [0, 0] {
        correct(header, CHECKSUM, change);
        if header[CHECKSUM..] == [0, 0] {
            header[CHECKSUM..].fill(0xff);
        }
    }
}

/// Makes the headers of an overlay packet say that it is as long as `bytes`, in which it was cut
/// short, and that it is whole: over IPv4 it may not be fragmented on its way. UDP, which begins at
/// `udp`, has a checksum if it had one. Returns the packet; `None`: it is none, or too long.
#[must_use]
pub fn set_length(bytes: &mut [u8], udp: usize) -> Option<Packet> {
    let length = u16::try_from(bytes.len()).ok()?;
    let udp_length = length.checked_sub(udp as u16)?;
    match bytes.first()? >> 4 {
        4 => {
            let header = bytes.get_mut(..udp)?;
            header.get_mut(2..4)?.copy_from_slice(&length.to_be_bytes());
            *header.get_mut(6)? |= DONT_FRAGMENT;
            header.get_mut(10..12)?.fill(0);
            let sum = checksum::finish(checksum::sum(header));
            header.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            let payload = length.checked_sub(packet::IPV6_BYTES as u16)?;
            bytes.get_mut(4..6)?.copy_from_slice(&payload.to_be_bytes());
        }
    }
    bytes.get_mut(udp + 4..udp + 6)?.copy_from_slice(&udp_length.to_be_bytes());
    let packet = packet::parse(bytes).ok()?;
    let sum = UpperChecksum::find(bytes, &packet)?;
    if !sum.is_absent() {
        sum.complete(bytes);
    }
    Some(packet)
}

/// Outer headers that are written anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// Address that the packet is sent from.
    pub source: Address,
    /// Address of the host, of the same family.
    pub destination: Address,
    /// UDP source port: tells flows apart on the way (RFC 7348 §5).
    pub source_port: u16,
    /// UDP destination port.
    pub udp_port: u16,
    /// Form of the overlay header.
    pub kind: Kind,
    /// The virtual network.
    pub vni: Vni,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl Outer {
    /// Bytes of the headers.
    pub const fn bytes(&self) -> usize {
        IpHeader::bytes(self.source.family) + UDP_BYTES + overlay::HEADER_BYTES
    }

    /// Writes the headers in front of a tenant's frame of `length` bytes that begins at `frame` in
    /// `memory`; returns where they begin. `None`: there is no room for them, the packet would be
    /// too long, or the addresses are of two families.
    ///
    /// The packet may not be fragmented on its way. UDP has no checksum over IPv4 (RFC 7348 §5);
    /// over IPv6 it has one, for which all of the frame is read.
    #[must_use]
    pub fn write(&self, memory: &mut [u8], frame: usize, length: usize) -> Option<usize> {
        if self.source.family != self.destination.family {
            return None;
        }
        let start = frame.checked_sub(self.bytes())?;
        let packet = memory.get_mut(start..frame.checked_add(length)?)?;
        let header_bytes = IpHeader::bytes(self.source.family);
        u16::try_from(packet.len()).ok()?;
        let header = IpHeader {
            source: self.source,
            destination: self.destination,
            protocol: protocol::UDP,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            dont_fragment: true,
        };
        header.write(packet);
        let udp = packet.get_mut(header_bytes..)?;
        let udp_bytes = udp.len();
        udp[..2].copy_from_slice(&self.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.udp_port.to_be_bytes());
        udp[4..6].copy_from_slice(&(udp_bytes as u16).to_be_bytes());
        udp[6..8].fill(0);
        udp[8..16].copy_from_slice(&self.kind.header(self.vni));
        if self.source.family == Family::V6 {
            let (source, destination) = (self.source, self.destination);
            let pseudo = checksum::pseudo_header(source, destination, protocol::UDP, udp_bytes);
            let sum = match checksum::finish(pseudo + checksum::sum(udp)) {
                0 => 0xffff,
                sum => sum,
            };
            udp[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UpperChecksum;
    use crate::build::PacketBuilder;
    use crate::packet::parse;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn address(family: Family, value: u128) -> Address {
        // Unicast of either family.
        match family {
            Family::V4 => Address::v4(10 << 24 | value as u32 & 0xff_ffff),
            Family::V6 => Address::v6(0x2001 << 112 | value >> 16),
        }
    }

    fn outer(family: Family, ends: (u128, u128), (class, hops): (u8, u8)) -> Outer {
        Outer {
            source: address(family, ends.0),
            destination: address(family, ends.1),
            source_port: 0xc001,
            udp_port: overlay::VXLAN_PORT,
            kind: Kind::Vxlan,
            vni: Vni::new(0x12_3456).unwrap(),
            traffic_class: class,
            hop_limit: hops,
        }
    }

    fn build(outer: &Outer, frame: &[u8]) -> Vec<u8> {
        let mut memory = vec![0xee; outer.bytes()];
        memory.extend(frame);
        assert_eq!(outer.write(&mut memory, outer.bytes(), frame.len()), Some(0));
        memory
    }

    fn family() -> impl Strategy<Value = Family> {
        prop_oneof![Just(Family::V4), Just(Family::V6)]
    }

    fn offset() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..100, usize::MAX - 20..=usize::MAX]
    }

    prop_compose! {
        /// A UDP packet with IPv4 options or an IPv6 extension header, with a checksum or without.
        fn received()(
            family in family(),
            ends in any::<(u128, u128)>(),
            words in 0usize..=10,
            hops in 2u8..,
            has_checksum in any::<bool>(),
            payload in prop::collection::vec(
                prop_oneof![Just(0), Just(0xff), any::<u8>()], 6..120,
            ),
        ) -> Vec<u8> {
            let ends = (address(family, ends.0), address(family, ends.1));
            let mut packet = PacketBuilder::new(ends.0, ends.1).udp(7, 4789).payload(&payload);
            packet = packet.hop_limit(hops);
            packet = match family {
                Family::V4 => packet.options(&vec![1; words * 4]),
                Family::V6 if words > 5 => packet.extension(protocol::DESTINATION, &[1, 4]),
                Family::V6 => packet,
            };
            if !has_checksum {
                packet = packet.no_upper_checksum();
            }
            packet.ip()
        }
    }

    /// Sets addresses and lowers the hop limit; sums the IPv4 header anew.
    fn readdress_plainly(bytes: &mut [u8], (source, destination): (Address, Address)) {
        match source.family {
            Family::V4 => {
                let length = usize::from(bytes[0] & 0x0f) * 4;
                let header = &mut bytes[..length];
                header[8] -= 1;
                header[10..12].fill(0);
                header[12..16].copy_from_slice(&(source.value as u32).to_be_bytes());
                header[16..20].copy_from_slice(&(destination.value as u32).to_be_bytes());
                let sum = checksum::finish(checksum::sum(header));
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            Family::V6 => {
                bytes[7] -= 1;
                bytes[8..24].copy_from_slice(&source.value.to_be_bytes());
                bytes[24..40].copy_from_slice(&destination.value.to_be_bytes());
            }
        }
    }

    #[test]
    fn headers_are_written_byte_by_byte() {
        let mut of = outer(Family::V4, (0x01_0203, 0x04_0506), (0xb8, 64));
        (of.source_port, of.traffic_class) = (0x1234, 0xb8);
        let packet = build(&of, &[0xaa; 14]);
        let ip = [0x45, 0xb8, 0, 50, 0, 0, 0x40, 0, 64, 17, 0x1e, 0xf6, 10, 1, 2, 3, 10, 4, 5, 6];
        let udp = [0x12, 0x34, 0x12, 0xb5, 0, 30, 0, 0, 8, 0, 0, 0, 0x12, 0x34, 0x56, 0];
        assert_eq!(packet[..20], ip);
        assert_eq!(packet[20..36], udp);
        assert_eq!(packet[36..], [0xaa; 14]);
    }

    #[test]
    fn geneve_over_ipv6_is_written_byte_by_byte() {
        let of = Outer {
            source: Address::v6(0x2001_0db8 << 96 | 1),
            destination: Address::v6(0x2001_0db8 << 96 | 2),
            source_port: 0x1234,
            udp_port: overlay::GENEVE_PORT,
            kind: Kind::Geneve,
            vni: Vni::new(0x12_3456).unwrap(),
            traffic_class: 0xb8,
            hop_limit: 64,
        };
        let packet = build(&of, &[0xaa; 15]);
        // RFC 8200 §3
        assert_eq!(packet[..8], [0x6b, 0x80, 0, 0, 0, 31, 17, 64]);
        assert_eq!(packet[8..24], [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(packet[24..40], [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(packet[40..46], [0x12, 0x34, 0x17, 0xc1, 0, 31]);
        // Summed by hand: pseudo-header 0x5ba5, UDP 0x2a14, Geneve 0xcd8c, frame 0x54ab; in all
        // 0x1a7f0, folded 0xa7f1.
        assert_eq!(packet[46..48], [0x58, 0x0e]);
        assert_eq!(packet[48..56], [0, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0]);
        assert_eq!(packet[56..], [0xaa; 15]);
    }

    #[test]
    fn a_checksum_that_becomes_zero_is_sent_as_all_ones() {
        // RFC 768. One word of the payload takes every value, so that the sum does as well.
        let mut all_ones = 0;
        for last in 0..=u16::MAX {
            let of = outer(Family::V6, (1 << 20, 2 << 20), (0, 64));
            let mut frame = [0; 14];
            frame[4..6].copy_from_slice(&last.to_be_bytes());
            let anew = build(&of, &frame);
            let mut changed = build(&of, &[0; 14]);
            let mac = *frame.first_chunk().unwrap();
            set_tenant_destination(&mut changed, 40, 56, LinkAddress::new(mac));
            assert_eq!(changed, anew);
            assert_ne!(anew[46..48], [0, 0]);
            all_ones += u32::from(anew[46..48] == [0xff, 0xff]);
        }
        assert_eq!(all_ones, 1);
    }

    #[test]
    fn nothing_is_written_where_there_is_no_room() {
        for family in [Family::V4, Family::V6] {
            let of = outer(family, (1, 2), (0, 64));
            let mut memory = vec![0; 100];
            assert_eq!(of.write(&mut memory, of.bytes() - 1, 10), None);
            assert_eq!(of.write(&mut memory, of.bytes(), 101 - of.bytes()), None);
            assert_eq!(of.write(&mut memory, usize::MAX, 1), None);
            let other = match family {
                Family::V4 => address(Family::V6, 1),
                Family::V6 => address(Family::V4, 1),
            };
            let mixed = Outer { destination: other, ..of };
            assert_eq!(mixed.write(&mut memory, 80, 10), None);
            assert_eq!(memory, [0; 100]);
            let mut large = vec![0; 70_000];
            assert_eq!(of.write(&mut large, 100, 65_536 - of.bytes()), None);
            assert!(of.write(&mut large, 100, 65_535 - of.bytes()).is_some());
        }
    }

    proptest! {
        #[test]
        fn what_is_written_parses(
            family in family(),
            ends in any::<(u128, u128)>(),
            class in any::<u8>(),
            hops in 1u8..,
            frame in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let of = outer(family, ends, (class, hops));
            let bytes = build(&of, &frame);
            let packet = parse(&bytes).unwrap();
            prop_assert_eq!(packet.flow.source_address(), of.source);
            prop_assert_eq!(packet.flow.destination_address(), of.destination);
            prop_assert_eq!((packet.traffic_class, packet.hop_limit), (class, hops));
            prop_assert_eq!(packet.length as usize, bytes.len());
            let sum = UpperChecksum::find(&bytes, &packet).unwrap();
            prop_assert!(sum.is_left_out(family) || sum.is_good(&bytes));
            prop_assert!(packet.dont_fragment);
        }

        #[test]
        fn what_is_changed_in_place_is_as_if_written_anew(
            family in family(),
            before in any::<(u128, u128)>(),
            after in any::<(u128, u128)>(),
            mac in any::<[u8; 6]>(),
            has_checksum in any::<bool>(),
            hops in 2u8..,
            frame in prop::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 14..200),
        ) {
            let mut bytes = build(&outer(family, before, (3, hops)), &frame);
            let udp = parse(&bytes).unwrap().upper_offset.into();
            let complete = |bytes: &mut Vec<u8>| {
                let packet = parse(bytes).unwrap();
                UpperChecksum::find(bytes, &packet).unwrap().complete(bytes);
            };
            bytes[udp + 6..udp + 8].fill(0);
            if has_checksum {
                complete(&mut bytes);
            }
            let to = outer(family, after, (3, hops - 1));
            set_tenant_destination(&mut bytes, udp, udp + 16, LinkAddress::new(mac));
            forward(&mut bytes, udp, (to.source, to.destination));
            let mut frame = frame;
            frame[..6].copy_from_slice(&mac);
            let mut expected = build(&to, &frame);
            expected[udp + 6..udp + 8].fill(0);
            if has_checksum {
                complete(&mut expected);
            }
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn checksums_follow_behind_options_and_at_odd_offsets(
            before in received(),
            after in any::<(u128, u128)>(),
            mac in any::<[u8; 6]>(),
            at in 0usize..100,
        ) {
            let parsed = parse(&before).unwrap();
            let (family, udp) = (parsed.flow.family, usize::from(parsed.upper_offset));
            let has_checksum = before[udp + 6..udp + 8] != [0, 0];
            let (source, destination) = (address(family, after.0), address(family, after.1));
            let frame = (udp + UDP_BYTES + at).min(before.len() - 6);
            let mut bytes = before.clone();
            set_tenant_destination(&mut bytes, udp, frame, LinkAddress::new(mac));
            forward(&mut bytes, udp, (source, destination));

            let mut expected = before;
            expected[frame..frame + 6].copy_from_slice(&mac);
            readdress_plainly(&mut expected, (source, destination));
            if has_checksum {
                let packet = parse(&expected).unwrap();
                UpperChecksum::find(&expected, &packet).unwrap().complete(&mut expected);
            }
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn what_is_carried_is_readdressed_and_has_its_tenants_destination(
            family in family(),
            before in any::<(u128, u128)>(),
            after in any::<(u128, u128)>(),
            mac in any::<[u8; 6]>(),
            sum in prop_oneof![Just(None), Just(Some(0xffff)), any::<u16>().prop_map(Some)],
            hops in 2u8..,
            frame in prop::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 80..90),
        ) {
            let mut expected = build(&outer(family, before, (3, hops)), &frame);
            let udp: usize = if family == Family::V4 { 20 } else { 40 };
            if let Some(sum) = sum {
                expected[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
            }
            let mut carried: [u8; 80] = *expected.first_chunk().unwrap();
            let (source, destination) = (address(family, after.0), address(family, after.1));
            let mac = LinkAddress::new(mac);
            set_tenant_destination(&mut expected, udp, udp + 16, mac);
            forward(&mut expected, udp, (source, destination));
            let values = (source.value, destination.value);
            match family {
                Family::V4 => carry::<20, 80>(&mut carried, 36, values, mac),
                Family::V6 => carry::<40, 80>(&mut carried, 56, values, mac),
            }
            prop_assert_eq!(&carried[..], &expected[..80]);
        }

        #[test]
        fn a_packet_cut_short_is_as_if_built_so(
            family in family(),
            ends in any::<(u128, u128)>(),
            frame in prop::collection::vec(any::<u8>(), 40..120),
            left in 14usize..40,
        ) {
            let of = outer(family, ends, (3, 9));
            let mut bytes = build(&of, &frame);
            bytes.truncate(of.bytes() + left);
            let udp = if family == Family::V4 { 20 } else { 40 };
            let packet = set_length(&mut bytes, udp);
            prop_assert_eq!(packet, parse(&bytes).ok());
            prop_assert_eq!(bytes, build(&of, &frame[..left]));
        }

        #[test]
        fn a_wrong_checksum_stays_wrong(
            mut bytes in received(),
            after in any::<(u128, u128)>(),
            error in 1u16..0xffff,
        ) {
            // Whoever receives it must still see that it was damaged on its way to us.
            let parsed = parse(&bytes).unwrap();
            let (family, udp) = (parsed.flow.family, usize::from(parsed.upper_offset));
            let field = u16::from_be_bytes([bytes[udp + 6], bytes[udp + 7]]);
            let wrong = checksum::update(field, 0, error);
            // Zero is no checksum. Half of the packets have none: as rejected cases they would end
            // a long run.
            if field == 0 || wrong == 0 {
                return Ok(());
            }
            bytes[udp + 6..udp + 8].copy_from_slice(&wrong.to_be_bytes());
            forward(&mut bytes, udp, (address(family, after.0), address(family, after.1)));
            let packet = parse(&bytes).unwrap();
            let sum = UpperChecksum::find(&bytes, &packet).unwrap();
            prop_assert!(!sum.is_absent() && !sum.is_good(&bytes));
        }

        #[test]
        fn no_bytes_and_offsets_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
            family in family(),
            udp in offset(),
            frame in offset(),
        ) {
            let (one, other) = (address(family, 1), address(family, 2));
            let length = bytes.len();
            forward(&mut bytes, udp, (one, other));
            set_tenant_destination(&mut bytes, udp, frame, LinkAddress::new([1; 6]));
            _ = set_length(&mut bytes, udp);
            _ = outer(family, (1, 2), (0, 64)).write(&mut bytes, udp, frame);
            prop_assert_eq!(bytes.len(), length);
        }
    }
}
