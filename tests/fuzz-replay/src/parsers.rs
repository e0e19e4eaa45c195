//! The parsers of packets.

use wire::glance::{self, Glance, UpperKind, V4_SEEN, V6_SEEN};
use wire::icmp::{self, Error};
use wire::link::{ETHERNET_BYTES, Entrance, Link, LinkAddress, TAGGED_BYTES, Tag};
use wire::packet::{
    self, IPV4_BYTES, ParseError, decrement_hop_limit, parse_group, parse_quoted, set_ecn,
};
use wire::{Address, Family, Flow, Fragment, Packet, Upper, checksum};

/// Takes the input as a frame, as an IP packet, and as an IPv4 packet whose header checksum is
/// mended: the fuzzer would seldom guess one.
pub fn parse(data: &[u8]) {
    ip(data);
    frame(data);
    if let Some(mended) = with_checksum(data) {
        ip(&mended);
    }
}

/// Takes the input as a frame. The short look at it says what the whole one says.
fn frame(data: &[u8]) {
    let link = Link::parse(data);
    if let (Some(link), Some(view)) = (link, data.first_chunk::<TAGGED_BYTES>()) {
        let entrance = |station, vlan| Entrance::new(LinkAddress::new(station), vlan);
        let (found, vlan) = match (link.tag, link.length) {
            (Tag::Vlan(id), _) => {
                let entrance = entrance(link.destination, Some(id));
                (entrance.ethertype::<TAGGED_BYTES, TAGGED_BYTES>(view), Some(id))
            }
            (Tag::Untagged, ETHERNET_BYTES) => {
                let entrance = entrance(link.destination, None);
                (entrance.ethertype::<ETHERNET_BYTES, TAGGED_BYTES>(view), None)
            }
            // A priority tag, or several: the general walk's.
            (Tag::Untagged | Tag::Stacked, _) => (Some(link.ethertype.to_be()), None),
        };
        assert_eq!(found, Some(link.ethertype.to_be()));
        let other = entrance(link.destination.map(|byte| byte ^ 1), vlan);
        assert_eq!(other.ethertype::<ETHERNET_BYTES, TAGGED_BYTES>(view), None);
        assert_eq!(other.ethertype::<TAGGED_BYTES, TAGGED_BYTES>(view), None);
    }
    if let Some(link) = link {
        assert!(link.length <= data.len(), "a link header of {} bytes", link.length);
        ip(&data[link.length..]);
    }
}

/// The packet with its IPv4 header checksum made right; `None` if it has no IPv4 header.
fn with_checksum(data: &[u8]) -> Option<Vec<u8>> {
    let first = *data.first()?;
    let length = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || length < IPV4_BYTES || length > data.len() {
        return None;
    }
    let mut mended = data.to_vec();
    mended[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&mended[..length]));
    mended[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(mended)
}

fn ip(bytes: &[u8]) {
    let parsed = packet::parse(bytes);
    if let Some(glance) = glance_at(bytes) {
        says_the_same(&glance, parsed);
    }
    // Whatever they say of it: no bytes panic.
    parse_group(bytes);
    parse_quoted(bytes);
    if let Ok(packet) = parsed {
        lengths_lie_inside(bytes, &packet);
        let whole = &bytes[..packet.length as usize];
        assert_eq!(packet::parse(whole), parsed, "link padding changes nothing");
        quotes_say_the_same(whole, &packet);
        changes_on_the_way_are_understood(whole, &packet);
        errors_about_it_quote_it(whole, &packet);
        icmp::quoted_flow(whole, &packet);
    }
}

/// A glance at a packet, behind which stands something else.
fn glance_at(bytes: &[u8]) -> Option<Glance> {
    let behind: Vec<u8> = bytes.iter().copied().chain([0xff; V6_SEEN]).collect();
    let glance = match bytes.first()? >> 4 {
        4 => glance::v4(behind.first_chunk::<V4_SEEN>()?)?,
        6 => glance::v6(behind.first_chunk::<V6_SEEN>()?)?,
        _ => return None,
    };
    (glance.length as usize <= bytes.len()).then_some(glance)
}

/// Asserts that the parser, which looks at addresses, too, says what the glance says.
fn says_the_same(glance: &Glance, parsed: Result<Packet, ParseError>) {
    let packet = match parsed {
        Err(ParseError::BadAddress) => return,
        parsed => parsed.expect("what is common is a packet"),
    };
    let kind = match packet.flow.family {
        Family::V4 => glance::kind_v4(glance.protocol),
        Family::V6 => glance::kind_v6(glance.protocol),
    };
    let upper = match packet.flow.upper {
        Upper::Ports { source, destination } => {
            (UpperKind::Ports, u32::from(source) << 16 | u32::from(destination))
        }
        Upper::Icmp { kind, code } => (UpperKind::Icmp, u32::from(kind) << 8 | u32::from(code)),
        Upper::None => (UpperKind::None, 0),
        Upper::Fragment => panic!("a fragment is not common"),
    };
    assert_eq!((kind, glance.upper), upper);
    assert_eq!((glance.length, glance.protocol), (packet.length, packet.flow.protocol));
    assert_eq!(glance.opens, packet.flow.opens);
    assert!(packet.fragment == Fragment::Whole && packet.hop_limit > 1, "{packet:?}");
}

fn lengths_lie_inside(bytes: &[u8], packet: &Packet) {
    assert!(packet.length as usize <= bytes.len(), "{packet:?} in {} bytes", bytes.len());
    assert!(u32::from(packet.upper_offset) <= packet.length, "{packet:?}");
    assert!(packet.hop_limit > 0, "{packet:?}");
    let version = match packet.flow.family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    assert_eq!(bytes[0] >> 4, version);
}

/// A quote that is cut anywhere behind the first 8 bytes of the upper layer has the same flow.
fn quotes_say_the_same(whole: &[u8], packet: &Packet) {
    let quoted = Flow { opens: false, ..packet.flow };
    assert_eq!(parse_quoted(whole), Some(quoted));
    assert_eq!(parse_group(whole), Some(packet.flow));
    let least = usize::from(packet.upper_offset) + 8;
    if let Some(quote) = whole.get(..least) {
        assert_eq!(parse_quoted(quote), Some(quoted), "cut to {least} bytes");
    }
}

/// Asserts that the walk's changes to a packet leave one that parses, and the rest as it was.
fn changes_on_the_way_are_understood(whole: &[u8], packet: &Packet) {
    let family = packet.flow.family;
    let mut changed = whole.to_vec();
    let mut expected = *packet;
    // A checksum of 0xffff is accepted and never computed (RFC 1624 §3); all others stay exact.
    let exact = with_checksum(whole).is_some_and(|anew| anew == whole);
    let is_exact = |changed: &[u8]| !exact || with_checksum(changed).as_deref() == Some(changed);
    if packet.hop_limit > 1 {
        decrement_hop_limit(&mut changed, family);
        expected.hop_limit -= 1;
        assert_eq!(packet::parse(&changed), Ok(expected), "with a lower hop limit");
        assert!(is_exact(&changed), "the checksum of a lower hop limit");
    }
    for ecn in 0..4 {
        set_ecn(&mut changed, family, ecn);
        expected.traffic_class = expected.traffic_class & !3 | ecn;
        assert_eq!(packet::parse(&changed), Ok(expected), "with ECN {ecn}");
        assert!(is_exact(&changed), "the checksum of ECN {ecn}");
    }
}

/// An ICMP error about a packet is a packet, goes to its source, and quotes its flow.
fn errors_about_it_quote_it(whole: &[u8], packet: &Packet) {
    let may_answer = icmp::may_answer(packet);
    assert!(!may_answer || packet.fragment != Fragment::Later, "{packet:?}");
    let (source, most) = match packet.flow.family {
        Family::V4 => (Address::v4(0x0a01_00fe), icmp::MAX_V4_BYTES),
        Family::V6 => (Address::v6(0x2001_0db8 << 96 | 0xfe), icmp::MAX_V6_BYTES),
    };
    for error in [Error::TimeExceeded, Error::TooBig { mtu: 1400 }] {
        let mut out = [0xaa; icmp::MAX_V6_BYTES];
        let length = icmp::write_error(&mut out, error, source, whole, packet);
        let length = length.expect("the largest error has room");
        assert!(length <= most, "{length} bytes");
        let answer = packet::parse(&out[..length]).expect("an error that we make");
        assert_eq!(answer.length as usize, length);
        assert_eq!(answer.flow.destination, packet.flow.source);
        assert!(icmp::is_error(&answer.flow) && !icmp::may_answer(&answer));
        let quoted = length - usize::from(answer.upper_offset) - icmp::HEADER_BYTES;
        if quoted >= whole.len().min(usize::from(packet.upper_offset) + 8) {
            let quoted = Flow { opens: false, ..packet.flow };
            assert_eq!(icmp::quoted_flow(&out, &answer), Some(quoted));
        }
    }
}
