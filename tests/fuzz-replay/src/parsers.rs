//! The parsers of packets.

use wire::icmp::{self, Error};
use wire::link::{ETHERNET_BYTES, Link, LinkAddress};
use wire::packet::{
    IPV4_BYTES, decrement_hop_limit, parse as parse_fast, parse_group, parse_plain, parse_quoted,
    set_ecn,
};
use wire::{Address, Family, Fragment, Packet, checksum};

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
    let station = data.first_chunk().map_or([2; 6], |destination: &[u8; 6]| *destination);
    let untagged = link.filter(|link| link.length == ETHERNET_BYTES);
    let expected = untagged.map(|link| link.ethertype);
    assert_eq!(Link::ethertype_to(data, LinkAddress::new(station)), expected);
    let other = LinkAddress::new(station.map(|byte| byte ^ 1));
    assert_eq!(Link::ethertype_to(data, other), None);
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
    let parsed = parse_fast(bytes);
    assert_eq!(parsed, parse_plain(bytes), "fast, then plain");
    // Whatever they say of it: no bytes panic.
    parse_group(bytes);
    parse_quoted(bytes);
    if let Ok(packet) = parsed {
        lengths_lie_inside(bytes, &packet);
        let whole = &bytes[..packet.length as usize];
        assert_eq!(parse_fast(whole), parsed, "link padding changes nothing");
        quotes_say_the_same(whole, &packet);
        changes_on_the_way_are_understood(whole, &packet);
        errors_about_it_quote_it(whole, &packet);
        icmp::quoted_flow(whole, &packet);
    }
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
    assert_eq!(parse_quoted(whole), Some(packet.flow));
    assert_eq!(parse_group(whole), Some(packet.flow));
    let least = usize::from(packet.upper_offset) + 8;
    if let Some(quote) = whole.get(..least) {
        assert_eq!(parse_quoted(quote), Some(packet.flow), "cut to {least} bytes");
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
        assert_eq!(parse_fast(&changed), Ok(expected), "with a lower hop limit");
        assert!(is_exact(&changed), "the checksum of a lower hop limit");
    }
    for ecn in 0..4 {
        set_ecn(&mut changed, family, ecn);
        expected.traffic_class = expected.traffic_class & !3 | ecn;
        assert_eq!(parse_fast(&changed), Ok(expected), "with ECN {ecn}");
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
        let answer = parse_fast(&out[..length]).expect("an error that we make");
        assert_eq!(answer.length as usize, length);
        assert_eq!(answer.flow.destination, packet.flow.source);
        assert!(icmp::is_error(&answer.flow) && !icmp::may_answer(&answer));
        let quoted = length - usize::from(answer.upper_offset) - icmp::HEADER_BYTES;
        if quoted >= whole.len().min(usize::from(packet.upper_offset) + 8) {
            assert_eq!(icmp::quoted_flow(&out, &answer), Some(packet.flow));
        }
    }
}
