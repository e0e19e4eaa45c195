//! A packet put together of its fragments (RFC 791 §3.2, RFC 8200 §4.5).

use wire::packet::{IPV4_BYTES, IPV6_BYTES, fragment_next_header};
use wire::{Family, Fragment, FragmentHeader, Packet, checksum};

/// Bytes of the largest packet that is put together: IPv6's header and 65,535 bytes behind it.
pub(crate) const MAX_PACKET_BYTES: usize = IPV6_BYTES + 65_535;

/// Congestion experienced, as the lowest two bits of a traffic class say it (RFC 3168 §5).
const CONGESTION: u8 = 3;

/// A fragment: its bytes from the IP header on, and their parsed form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'b> {
    pub(crate) bytes: &'b [u8],
    pub(crate) packet: Packet,
}

impl Source<'_> {
    /// Bytes in front of the data, without the Fragment header.
    fn head(&self) -> Option<usize> {
        let data = usize::from(self.packet.fragment_header()?.data_offset);
        match self.packet.flow.family {
            Family::V4 => Some(data),
            Family::V6 => data.checked_sub(8),
        }
    }
}

/// Returns the bytes of the packet that fragments are of. They are all of one datagram, each part
/// once. `None`: it would be larger than a packet can be.
pub(crate) fn length<'b>(sources: impl Iterator<Item = Source<'b>>) -> Option<usize> {
    let (mut head, mut end) = (None, 0);
    for source in sources {
        let FragmentHeader { offset, length, .. } = source.packet.fragment_header()?;
        end = end.max(usize::from(offset) + usize::from(length));
        if source.packet.fragment == Fragment::First {
            head = Some((source.head()?, source.packet.flow.family));
        }
    }
    let (head, family) = head?;
    let most = match family {
        Family::V4 => 65_535,
        Family::V6 => MAX_PACKET_BYTES,
    };
    Some(head + end).filter(|length| *length <= most)
}

/// Writes that packet to the start of `into` and returns its bytes. Its header is the first
/// fragment's; it has experienced congestion if one of the fragments has.
///
/// `None`: it does not fit, or as [`length`], or one fragment has experienced congestion and
/// another says that its sender knows nothing of that (RFC 3168 §5.3).
pub(crate) fn assemble<'b>(
    sources: impl Iterator<Item = Source<'b>> + Clone,
    into: &mut [u8],
) -> Option<usize> {
    let length = length(sources.clone())?;
    let into = into.get_mut(..length)?;
    let first = sources.clone().find(|source| source.packet.fragment == Fragment::First)?;
    let head = first.head()?;
    let (mut is_congested, mut knows_none) = (false, false);
    for source in sources {
        let FragmentHeader { offset, data_offset, .. } = source.packet.fragment_header()?;
        let data = source.bytes.get(data_offset.into()..source.packet.length as usize)?;
        let start = head + usize::from(offset);
        into.get_mut(start..start + data.len())?.copy_from_slice(data);
        is_congested |= source.packet.traffic_class & CONGESTION == CONGESTION;
        knows_none |= source.packet.traffic_class & CONGESTION == 0;
    }
    if is_congested && knows_none {
        return None;
    }
    into[..head].copy_from_slice(first.bytes.get(..head)?);
    let family = first.packet.flow.family;
    match family {
        Family::V4 => end_ipv4(into, head)?,
        Family::V6 => end_ipv6(into, head, &first)?,
    }
    if is_congested {
        wire::packet::set_ecn(into, family, CONGESTION);
    }
    Some(length)
}

/// Makes the header of a first fragment that of the whole packet.
fn end_ipv4(packet: &mut [u8], head: usize) -> Option<()> {
    let length = packet.len() as u16;
    let header = packet.get_mut(..head).filter(|header| header.len() >= IPV4_BYTES)?;
    header[2..4].copy_from_slice(&length.to_be_bytes());
    // No more fragments, offset 0; DF stays.
    header[6] &= 0x40;
    header[7] = 0;
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// Makes the headers in front of the Fragment header, at `head` in `first`, those of the whole
/// packet.
fn end_ipv6(packet: &mut [u8], head: usize, first: &Source<'_>) -> Option<()> {
    let length = (packet.len() - IPV6_BYTES) as u16;
    packet.get_mut(4..6)?.copy_from_slice(&length.to_be_bytes());
    let named_by = fragment_next_header(first.bytes, &first.packet)?;
    *packet.get_mut(..head)?.get_mut(named_by)? = *first.bytes.get(head)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::build::PacketBuilder;
    use wire::flow::protocol::ESP;

    use super::*;

    /// A datagram, and its fragments: cut at these places, in units of 8 bytes.
    fn cut(packet: &PacketBuilder, payload: &[u8], places: &[usize]) -> Vec<Vec<u8>> {
        let mut bounds = vec![0];
        bounds.extend(places.iter().map(|place| place * 8).filter(|at| *at < payload.len()));
        bounds.push(payload.len());
        bounds.sort_unstable();
        bounds.dedup();
        let fragment = |pair: &[usize]| {
            let more = pair[1] < payload.len();
            let part = packet.clone().payload(&payload[pair[0]..pair[1]]);
            part.fragment((pair[0] / 8) as u16, more).ip()
        };
        bounds.windows(2).map(fragment).collect()
    }

    fn sources(fragments: &[Vec<u8>]) -> Vec<Source<'_>> {
        let all = fragments.iter().map(|bytes| &bytes[..]);
        all.map(|bytes| Source { bytes, packet: wire::packet::parse(bytes).unwrap() }).collect()
    }

    fn whole(fragments: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut into = vec![0xee; MAX_PACKET_BYTES];
        let length = assemble(sources(fragments).into_iter(), &mut into)?;
        into.truncate(length);
        Some(into)
    }

    /// Reassembly as plainly as can be: a list of bytes, put together by offset.
    fn by_offset(fragments: &[Vec<u8>]) -> Vec<u8> {
        let mut data: Vec<Option<u8>> = vec![];
        for bytes in fragments {
            let packet = wire::packet::parse(bytes).unwrap();
            let header = packet.fragment_header().unwrap();
            let part = &bytes[packet.upper_offset.into()..];
            for (place, byte) in (usize::from(header.offset)..).zip(part) {
                data.resize(data.len().max(place + 1), None);
                assert_eq!(data[place].replace(*byte), None, "each part once");
            }
        }
        data.into_iter().map(|byte| byte.expect("nothing is missing")).collect()
    }

    fn a_packet() -> impl Strategy<Value = PacketBuilder> {
        let options = prop_oneof![Just(vec![]), Just(vec![1, 1, 1, 0])];
        let extension = prop_oneof![Just(None), Just(Some([1, 4, 0, 0, 0, 0]))];
        (any::<bool>(), options, extension, 1..=255u8, any::<u8>()).prop_map(
            |(is_v6, options, extension, hop_limit, traffic_class)| {
                let packet = match (is_v6, extension) {
                    (false, _) => PacketBuilder::v4("192.0.2.7", "192.0.2.1").options(&options),
                    (true, None) => PacketBuilder::v6("2001:db8::7", "2001:db8::1"),
                    (true, Some(rest)) => {
                        PacketBuilder::v6("2001:db8::7", "2001:db8::1").extension(0, &rest)
                    }
                };
                let packet = packet.protocol(ESP).identification(9).hop_limit(hop_limit);
                packet.traffic_class(traffic_class)
            },
        )
    }

    proptest! {
        #[test]
        fn fragments_in_any_order_are_the_packet_again(
            packet in a_packet(),
            payload in prop_oneof![
                8 => prop::collection::vec(any::<u8>(), 9..4000),
                1 => (60_000..65_400usize).prop_map(|length| vec![0x5a; length]),
            ],
            places in prop::collection::vec(1..500usize, 1..12),
            order in Just((0..13usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let fragments = cut(&packet, &payload, &places);
            prop_assume!(fragments.len() > 1);
            let order = order.into_iter().filter(|at| *at < fragments.len());
            let shuffled: Vec<Vec<u8>> = order.map(|at| fragments[at].clone()).collect();
            prop_assert_eq!(by_offset(&shuffled), &payload[..]);
            let expected = packet.payload(&payload).ip();
            prop_assert_eq!(length(sources(&shuffled).into_iter()), Some(expected.len()));
            prop_assert_eq!(whole(&shuffled), Some(expected));
        }
    }

    fn plain(family: Family) -> PacketBuilder {
        let packet = match family {
            Family::V4 => PacketBuilder::v4("192.0.2.7", "192.0.2.1"),
            Family::V6 => PacketBuilder::v6("2001:db8::7", "2001:db8::1"),
        };
        packet.protocol(ESP)
    }

    #[test]
    fn congestion_of_one_fragment_is_the_packets() {
        for family in [Family::V4, Family::V6] {
            let marked = |ecn: u8| plain(family).traffic_class(0xb8 | ecn);
            let first = marked(2).payload(&[1; 16]).fragment(0, true).ip();
            for (ecn, expected) in [(2, 2), (3, 3), (1, 2)] {
                let last = marked(ecn).payload(&[2; 5]).fragment(2, false).ip();
                let whole = whole(&[last, first.clone()]).unwrap();
                let packet = wire::packet::parse(&whole).unwrap();
                assert_eq!(packet.traffic_class, 0xb8 | expected, "{family:?} {ecn}");
            }
            // One has experienced congestion, and the other's sender knows nothing of that.
            for (of_first, of_last) in [(3, 0), (0, 3)] {
                let first = marked(of_first).payload(&[1; 16]).fragment(0, true).ip();
                let last = marked(of_last).payload(&[2; 5]).fragment(2, false).ip();
                assert_eq!(whole(&[first, last]), None, "{family:?} {of_first} {of_last}");
            }
        }
    }

    #[test]
    fn a_packet_longer_than_its_length_field_can_say_is_none() {
        // Without the options each would fit.
        let options = [1, 1, 1, 0];
        let first = plain(Family::V4).options(&options).payload(&[1; 16]).fragment(0, true).ip();
        for (data, expected) in [(7, Some(65_535)), (8, None)] {
            let last = plain(Family::V4).payload_of(data).fragment(8188, false).ip();
            assert_eq!(length(sources(&[first.clone(), last]).into_iter()), expected);
        }
    }

    #[test]
    fn without_its_first_or_without_room_there_is_no_packet() {
        let first = plain(Family::V4).payload(&[1; 16]).fragment(0, true).ip();
        let last = plain(Family::V4).payload(&[2; 5]).fragment(2, false).ip();
        assert_eq!(whole(std::slice::from_ref(&last)), None);
        let fragments = [first, last];
        let all = sources(&fragments);
        for room in 0..41 {
            assert_eq!(assemble(all.iter().copied(), &mut vec![0; room]), None);
        }
        assert_eq!(assemble(all.iter().copied(), &mut [0; 41]), Some(41));
    }
}
