//! MSS clamping: a TCP SYN that crosses a tunnel announces no segment larger than the tunnel
//! carries (RFC 9293 §3.7.1), so that path MTU discovery is not needed for TCP.

use wire::flow::protocol;
use wire::{Family, Fragment, Packet, checksum};

use crate::ids::SetIndex;
use crate::snapshot::Snapshot;

/// Offsets of TCP's fields in its header.
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const OPTIONS: usize = 20;
const SYN: u8 = 0x02;

/// Bytes of a TCP header without options, which an MSS does not count.
const TCP_BYTES: u32 = 20;

/// MTUs inside of tunnels, by family, that clamp the MSS of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentMtu {
    /// `u32::MAX`: segments are left alone.
    v4: u32,
    v6: u32,
}

impl SegmentMtu {
    /// No tunnel wants the MSS clamped.
    pub(crate) const NONE: SegmentMtu = SegmentMtu { v4: u32::MAX, v6: u32::MAX };

    /// Returns the MTUs inside of a set's tunnel, if the set wants the MSS clamped.
    #[inline]
    pub(crate) fn of_set(snapshot: &Snapshot, set: SetIndex, now_ns: u64) -> SegmentMtu {
        if !snapshot.set(set).mss_clamp {
            return SegmentMtu::NONE;
        }
        let sizes = snapshot.set_sizes(set, now_ns);
        if sizes.whole == 0 {
            // No SA seals, or no route leads to the peer: the size is unknown.
            return SegmentMtu::NONE;
        }
        SegmentMtu { v4: sizes.inner(Family::V4), v6: sizes.inner(Family::V6) }
    }

    /// Returns the narrower of both, by family.
    pub(crate) fn narrower(self, other: SegmentMtu) -> SegmentMtu {
        SegmentMtu { v4: self.v4.min(other.v4), v6: self.v6.min(other.v6) }
    }

    /// Returns the MTU for packets of a family; `None`: segments are left alone.
    pub(crate) fn of(self, family: Family) -> Option<u32> {
        let mtu = match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        };
        (mtu != u32::MAX).then_some(mtu)
    }
}

/// Lowers the MSS option of a TCP SYN so that its segments fit packets of `mtu` bytes. Changes
/// nothing else, and never a packet without the option. A wrong TCP checksum stays wrong.
/// `bytes` is the IP packet that was parsed to `packet`.
#[inline]
pub(crate) fn clamp(bytes: &mut [u8], packet: &Packet, mtu: u32) {
    let start = usize::from(packet.upper_offset);
    let is_tcp = packet.flow.protocol == protocol::TCP && packet.fragment != Fragment::Later;
    if is_tcp && bytes.get(start + FLAGS).is_some_and(|flags| flags & SYN != 0) {
        let ip_bytes = match packet.flow.family {
            Family::V4 => wire::packet::IPV4_BYTES as u32,
            Family::V6 => wire::packet::IPV6_BYTES as u32,
        };
        let largest = mtu.saturating_sub(ip_bytes + TCP_BYTES).min(u32::from(u16::MAX)) as u16;
        clamp_segment(&mut bytes[start..], largest);
    }
}

#[cold]
fn clamp_segment(segment: &mut [u8], largest: u16) {
    let Some(at) = find_mss(segment) else { return };
    let old = u16::from_be_bytes([segment[at], segment[at + 1]]);
    if old <= largest {
        return;
    }
    segment[at..at + 2].copy_from_slice(&largest.to_be_bytes());
    let before = u16::from_be_bytes([segment[CHECKSUM], segment[CHECKSUM + 1]]);
    // An option may begin at an odd byte: the sum then sees the value's bytes swapped.
    let (old, new) = match at % 2 {
        0 => (old, largest),
        _ => (old.swap_bytes(), largest.swap_bytes()),
    };
    let after = checksum::update(before, old, new);
    segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&after.to_be_bytes());
}

/// Offset of the MSS option's value in a TCP segment; `None`: no such option, or options that lie.
fn find_mss(segment: &[u8]) -> Option<usize> {
    let header_bytes = usize::from(segment.get(DATA_OFFSET)? >> 4) * 4;
    let header = segment.get(..header_bytes)?;
    let mut at = OPTIONS;
    loop {
        match (*header.get(at)?, header.get(at + 1).copied()) {
            (0, _) => return None,
            (1, _) => at += 1,
            (2, Some(4)) if at + 4 <= header_bytes => return Some(at + 2),
            (_, Some(length)) if length >= 2 => at += usize::from(length),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::build::{PacketBuilder, tcp_flags};

    fn syn(mss: u16) -> PacketBuilder {
        PacketBuilder::v4("10.1.0.1", "10.2.0.1").tcp_with(1, 2, tcp_flags::SYN, Some(mss))
    }

    fn clamped(mut bytes: Vec<u8>, mtu: u32) -> Vec<u8> {
        let packet = wire::packet::parse(&bytes).unwrap();
        clamp(&mut bytes, &packet, mtu);
        bytes
    }

    #[test]
    fn a_larger_mss_is_lowered_and_the_checksum_follows() {
        assert_eq!(clamped(syn(1460).ip(), 1400), syn(1360).ip());
        let v6 = |mss| {
            PacketBuilder::v6("2001:db8::1", "2001:db8::2").tcp_with(
                1,
                2,
                tcp_flags::SYN,
                Some(mss),
            )
        };
        assert_eq!(clamped(v6(1440).ip(), 1400), v6(1340).ip());
    }

    #[test]
    fn what_fits_and_what_is_no_syn_stays_as_it_is() {
        assert_eq!(clamped(syn(1360).ip(), 1400), syn(1360).ip());
        let ack =
            PacketBuilder::v4("10.1.0.1", "10.2.0.1").tcp_with(1, 2, tcp_flags::ACK, Some(9000));
        assert_eq!(clamped(ack.ip(), 1400), ack.ip());
    }

    #[test]
    fn an_option_at_an_odd_byte_keeps_the_checksum_good() {
        // Data offset 7: NOP, MSS, NOP, NOP, NOP.
        let with = |mss: u16| {
            let [high, low] = mss.to_be_bytes();
            let builder =
                PacketBuilder::v4("10.1.0.1", "10.2.0.1").tcp_with(1, 2, tcp_flags::SYN, None);
            let mut bytes = builder.payload(&[1, 2, 4, high, low, 1, 1, 1]).ip();
            bytes[20 + DATA_OFFSET] = 7 << 4;
            let segment = &mut bytes[20..];
            segment[16..18].fill(0);
            let addresses = (wire::Address::v4(0x0a01_0001), wire::Address::v4(0x0a02_0001));
            let pseudo = checksum::pseudo_header(addresses.0, addresses.1, 6, segment.len());
            let sum = checksum::finish(checksum::sum(segment) + pseudo);
            segment[16..18].copy_from_slice(&sum.to_be_bytes());
            bytes
        };
        assert_eq!(clamped(with(1460), 1400), with(1360));
    }

    #[test]
    fn options_that_lie_are_left_alone() {
        for lie in
            [vec![2, 4], vec![2, 3, 9, 9], vec![8, 0, 0, 0], vec![8, 200, 0, 0], vec![2, 9, 0, 0]]
        {
            let builder =
                PacketBuilder::v4("10.1.0.1", "10.2.0.1").tcp_with(1, 2, tcp_flags::SYN, None);
            let mut bytes = builder.payload(&lie).ip();
            bytes[20 + DATA_OFFSET] = 6 << 4;
            assert_eq!(clamped(bytes.clone(), 600), bytes);
        }
    }
}
