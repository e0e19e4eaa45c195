//! IP packets: the checks every packet passes and what the walk needs to know of it.
//!
//! [`parse`] follows the RFCs clause by clause and names what is wrong. The fast path looks at the
//! common packet by [`glance`](crate::glance) instead; a property test and a fuzz target hold that
//! both say the same.

use crate::checksum;
use crate::flow::{Family, Flow, Upper, protocol};

/// Bytes of an IPv4 header without options.
pub const IPV4_BYTES: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_BYTES: usize = 40;
/// Offset of the next-header byte in an IPv6 header.
const NEXT_HEADER_AT: usize = 6;
/// IPv6 extension headers that are walked at most; a longer chain is malformed.
pub const MAX_EXTENSION_HEADERS: usize = 8;

/// The part of a datagram that a packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fragment {
    /// All of it.
    Whole,
    /// Its first fragment: ports are here.
    First,
    /// A later fragment: ports are in another packet.
    Later,
}

/// A checked IP packet. Offsets count from the start of its IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The fields that a selector can match.
    pub flow: Flow,
    /// Bytes of the packet by its own header; what lies behind is link padding.
    pub length: u32,
    /// The offset at which the upper-layer header (or a later fragment's data) begins.
    pub upper_offset: u16,
    /// TTL or hop limit, not 0.
    pub hop_limit: u8,
    /// TOS or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// The part of a datagram that it carries.
    pub fragment: Fragment,
    /// The fragment's place in its datagram: see [`Packet::fragment_header`].
    pub fragment_fields: FragmentFields,
    /// True if routers may not fragment it: IPv4's DF; always so for IPv6.
    pub dont_fragment: bool,
}

// A row of the walk holds one, and is copied from stage to stage.
const _: () = assert!(size_of::<Packet>() == 64);

/// A fragment's place in its datagram, by the only Fragment header of the packet (RFC 8200 §4.5) or
/// by the IPv4 header (RFC 791 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FragmentHeader {
    /// Identification of the datagram; 16 bits in IPv4.
    pub identification: u32,
    /// Offset of the fragment's data in the datagram, bytes: a multiple of 8.
    pub offset: u16,
    /// Offset of the fragment's data in the packet, bytes. In IPv6 the data begins behind the
    /// Fragment header, also where other extension headers follow.
    pub data_offset: u16,
    /// Bytes of data. Of a received packet, `offset + length` is at most 65,535.
    pub length: u16,
    /// True if a later part of the datagram follows.
    pub more: bool,
}

/// The fields of a [`FragmentHeader`] in 6 bytes. Their meaning depends on [`Packet::fragment`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FragmentFields {
    /// The identification, its higher half first.
    identification: [u16; 2],
    /// Of a first fragment: the offset of its data in the packet. Of a later one: offset and
    /// more-bit, as a Fragment header holds both. 0: unknown, since neither can be 0.
    place: u16,
}

impl FragmentFields {
    /// The fields of a whole packet, and of a fragment whose header nobody has read.
    pub const UNKNOWN: FragmentFields = FragmentFields { identification: [0; 2], place: 0 };

    /// The fields of a fragment, or [`UNKNOWN`](Self::UNKNOWN) of a whole packet. `field` holds
    /// offset and more-bit as a Fragment header does.
    fn new(fragment: Fragment, identification: u32, field: u16, data_offset: usize) -> Self {
        let identification = [(identification >> 16) as u16, identification as u16];
        match fragment {
            Fragment::Whole => FragmentFields::UNKNOWN,
            Fragment::First => FragmentFields { identification, place: data_offset as u16 },
            Fragment::Later => FragmentFields { identification, place: field & 0xfff9 },
        }
    }
}

impl Packet {
    /// Returns the fragment's place in its datagram. `None`: the packet is whole, or nobody has
    /// read its header.
    pub fn fragment_header(&self) -> Option<FragmentHeader> {
        let FragmentFields { identification: [high, low], place } = self.fragment_fields;
        if place == 0 {
            return None;
        }
        let (offset, data_offset, more) = match self.fragment {
            Fragment::Whole => return None,
            Fragment::First => (0, place, true),
            Fragment::Later => (place & 0xfff8, self.upper_offset, place & 1 != 0),
        };
        let length = self.length.checked_sub(data_offset.into())?;
        Some(FragmentHeader {
            identification: u32::from(high) << 16 | u32::from(low),
            offset,
            data_offset,
            length: u16::try_from(length).ok()?,
            more,
        })
    }
}

/// Reason why bytes are not a packet that may be forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParseError {
    /// Not IP version 4 or 6.
    NotIp,
    /// Truncated, or lengths that contradict each other.
    Malformed,
    /// The IPv4 header checksum is wrong.
    Checksum,
    /// A source route (RFC 791 LSRR and SSRR; an IPv6 routing header with segments left).
    SourceRoute,
    /// A source or destination that no packet on a link may have (RFC 1812 §5.3.7, RFC 4291 §2.5).
    BadAddress,
    /// TTL or hop limit 0.
    HopLimit,
    /// A later IPv6 fragment whose upper-layer protocol is named only in the first.
    ProtocolElsewhere,
}

/// Checks a packet that was received; `bytes` begins with the IP header and may end with padding.
///
/// # Errors
/// [`ParseError`]: drop the packet.
pub fn parse(bytes: &[u8]) -> Result<Packet, ParseError> {
    match bytes.first().ok_or(ParseError::Malformed)? >> 4 {
        4 => ipv4(bytes, Extent::Received),
        6 => ipv6(bytes, Extent::Received),
        _ => Err(ParseError::NotIp),
    }
}

/// The flow of a packet that an ICMP error quotes. The quote may be cut short anywhere behind the
/// first 8 bytes of the upper layer and its header may have been changed on the way, so neither
/// lengths nor checksum nor hop limit are judged.
pub fn parse_quoted(bytes: &[u8]) -> Option<Flow> {
    quoted(bytes).map(|packet| packet.flow)
}

/// The packet that an ICMP error quotes, as far as the quote goes; judged as by [`parse_quoted`].
pub fn quoted(bytes: &[u8]) -> Option<Packet> {
    match bytes.first()? >> 4 {
        4 => ipv4(bytes, Extent::Quoted).ok(),
        6 => ipv6(bytes, Extent::Quoted).ok(),
        _ => None,
    }
}

/// The flow of a packet to a group or broadcast address, which [`parse`] refuses: only for asking
/// whether Linux may have it, never for forwarding.
pub fn parse_group(bytes: &[u8]) -> Option<Flow> {
    let length = match bytes.first()? >> 4 {
        4 => usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])),
        6 => usize::from(u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?])) + IPV6_BYTES,
        _ => return None,
    };
    let bytes = bytes.get(..length)?;
    let Packet { flow, upper_offset, fragment, .. } = quoted(bytes)?;
    let data = bytes.get(usize::from(upper_offset)..)?;
    Some(Flow { opens: opens(flow.protocol, data, fragment, Extent::Received), ..flow })
}

/// Returns the offset of the byte that names the upper-layer protocol of a checked packet: in the
/// IP header, or in the last of its extension headers. `None`: `bytes` is not that packet.
pub fn upper_next_header(bytes: &[u8], packet: &Packet) -> Option<usize> {
    match packet.flow.family {
        Family::V4 => Some(9),
        Family::V6 => chain_of(bytes, packet).map(|chain| chain.named_at),
    }
}

/// Returns the offset of the byte that names the Fragment header of a checked IPv6 packet. `None`:
/// the packet has no such header, or `bytes` is not that packet.
pub fn fragment_next_header(bytes: &[u8], packet: &Packet) -> Option<usize> {
    match packet.flow.family {
        Family::V4 => None,
        Family::V6 => chain_of(bytes, packet)?.fragment_named_at,
    }
}

/// The chain of a checked IPv6 packet, read again by the function that accepted it.
fn chain_of(bytes: &[u8], packet: &Packet) -> Option<Chain> {
    let bytes = bytes.get(..bytes.len().min(packet.length as usize))?;
    let chain = ipv6_extensions(bytes, *bytes.get(NEXT_HEADER_AT)?, Extent::Quoted).ok()?;
    (chain.upper_offset == usize::from(packet.upper_offset)).then_some(chain)
}

/// The part of a packet that is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The whole packet, fit for forwarding.
    Received,
    /// The beginning of a packet, quoted by an ICMP error.
    Quoted,
}

/// RFC 791 and RFC 1812 §5.2.2.
fn ipv4(bytes: &[u8], extent: Extent) -> Result<Packet, ParseError> {
    use ParseError::{BadAddress, Checksum, HopLimit, Malformed, SourceRoute};
    // 1. Lengths: the header in what was received, the packet in what was received.
    let fixed = bytes.first_chunk::<IPV4_BYTES>().ok_or(Malformed)?;
    let header_length = usize::from(fixed[0] & 0x0f) * 4;
    let header = bytes.get(..header_length).filter(|h| h.len() >= IPV4_BYTES).ok_or(Malformed)?;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let there = match extent {
        Extent::Received => bytes.get(..total).ok_or(Malformed)?,
        Extent::Quoted => bytes,
    };
    let data = there.get(header_length..).ok_or(Malformed)?;
    if total < header_length {
        return Err(Malformed);
    }
    let source = u32::from_be_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
    let destination = u32::from_be_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]);
    if extent == Extent::Received {
        // 2. Checksum, source routes, martians, TTL.
        if !checksum::header_is_good(header) {
            return Err(Checksum);
        }
        if ipv4_options(&header[IPV4_BYTES..])? == Routing::BySource {
            return Err(SourceRoute);
        }
        if !ipv4_is_unicast(source) || !ipv4_is_unicast(destination) {
            return Err(BadAddress);
        }
        if fixed[8] == 0 {
            return Err(HopLimit);
        }
    }
    // 3. Fragment: all but the last carry a multiple of 8 bytes, none reaches beyond 65,535.
    let flags = u16::from_be_bytes([fixed[6], fixed[7]]);
    let (offset, more) = (usize::from(flags & 0x1fff) * 8, flags & 0x2000 != 0);
    let data_length = total - header_length;
    if (more && data_length % 8 != 0) || offset + data_length > 65_535 - IPV4_BYTES {
        return Err(Malformed);
    }
    let fragment = fragment_of(offset, more);
    let identification = u16::from_be_bytes([fixed[4], fixed[5]]);
    let field = (offset as u16) | u16::from(more);
    let protocol = fixed[9];
    let upper = upper(protocol, data, fragment, extent, Family::V4)?;
    Ok(Packet {
        flow: Flow {
            family: Family::V4,
            source: source.into(),
            destination: destination.into(),
            protocol,
            upper,
            opens: opens(protocol, data, fragment, extent),
        },
        length: total as u32,
        upper_offset: header_length as u16,
        hop_limit: fixed[8],
        traffic_class: fixed[1],
        fragment,
        fragment_fields: FragmentFields::new(fragment, identification.into(), field, header_length),
        dont_fragment: flags & 0x4000 != 0,
    })
}

/// RFC 8200.
fn ipv6(bytes: &[u8], extent: Extent) -> Result<Packet, ParseError> {
    use ParseError::{BadAddress, HopLimit, Malformed};
    // 1. Lengths. A jumbogram (payload length 0) is malformed: no frame holds it.
    let fixed = bytes.first_chunk::<IPV6_BYTES>().ok_or(Malformed)?;
    let total = usize::from(u16::from_be_bytes([fixed[4], fixed[5]])) + IPV6_BYTES;
    let there = match extent {
        Extent::Received => bytes.get(..total).ok_or(Malformed)?,
        Extent::Quoted => bytes,
    };
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&fixed[at..at + 16]);
        u128::from_be_bytes(octets)
    };
    let (source, destination) = (address(8), address(24));
    // 2. Martians, hop limit.
    if extent == Extent::Received {
        if !ipv6_is_unicast(source) || !ipv6_is_unicast(destination) {
            return Err(BadAddress);
        }
        if fixed[7] == 0 {
            return Err(HopLimit);
        }
    }
    // 3. Extension headers, up to the upper layer.
    let chain = match fixed[NEXT_HEADER_AT] {
        next if is_extension(next) => ipv6_extensions(there, next, extent)?,
        next => Chain::new(next),
    };
    let data = there.get(chain.upper_offset..).ok_or(Malformed)?;
    let Chain { protocol, fragment, fragment_fields, .. } = chain;
    let upper = upper(protocol, data, fragment, extent, Family::V6)?;
    let opens = opens(protocol, data, fragment, extent);
    Ok(Packet {
        flow: Flow { family: Family::V6, source, destination, protocol, upper, opens },
        length: total as u32,
        upper_offset: chain.upper_offset as u16,
        hop_limit: fixed[7],
        traffic_class: fixed[0] << 4 | fixed[1] >> 4,
        fragment,
        fragment_fields,
        dont_fragment: true,
    })
}

/// A chain of extension headers, up to the upper layer.
struct Chain {
    protocol: u8,
    upper_offset: usize,
    /// Offset of the byte that names the upper layer.
    named_at: usize,
    fragment: Fragment,
    fragment_fields: FragmentFields,
    /// Offset of the byte that names the Fragment header; `None`: the chain has no such header.
    fragment_named_at: Option<usize>,
}

impl Chain {
    /// The chain of an IPv6 packet without extension headers.
    fn new(protocol: u8) -> Chain {
        Chain {
            protocol,
            upper_offset: IPV6_BYTES,
            named_at: NEXT_HEADER_AT,
            fragment: Fragment::Whole,
            fragment_fields: FragmentFields::UNKNOWN,
            fragment_named_at: None,
        }
    }

    /// Adds a Fragment header (RFC 8200 §4.5) in front of `data_length` bytes.
    ///
    /// # Errors
    /// [`ParseError::Malformed`].
    fn add_fragment_header(
        &mut self,
        header: &[u8; 8],
        data_length: usize,
        extent: Extent,
    ) -> Result<(), ParseError> {
        let field = u16::from_be_bytes([header[2], header[3]]);
        let (offset, more) = (usize::from(field & 0xfff8), field & 1 != 0);
        let cut = extent == Extent::Received && more && !data_length.is_multiple_of(8);
        // RFC 8200 §4.1: a chain has at most one. Of two, each parser could take another one.
        if cut || offset + data_length > 65_535 || self.fragment_named_at.is_some() {
            return Err(ParseError::Malformed);
        }
        let identification = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let data_offset = self.upper_offset + header.len();
        self.fragment_named_at = Some(self.named_at);
        self.fragment = fragment_of(offset, more);
        self.fragment_fields =
            FragmentFields::new(self.fragment, identification, field, data_offset);
        Ok(())
    }
}

/// RFC 8200 §4.1: hop-by-hop options come first, and at most one header is a Fragment header. The
/// rest is taken in any order, once or more.
#[cold]
fn ipv6_extensions(packet: &[u8], first: u8, extent: Extent) -> Result<Chain, ParseError> {
    use ParseError::{Malformed, ProtocolElsewhere, SourceRoute};
    let mut chain = Chain::new(first);
    for place in 0..MAX_EXTENSION_HEADERS {
        let at = chain.upper_offset;
        if !is_extension(chain.protocol) {
            return Ok(chain);
        }
        let header = packet.get(at..).and_then(<[u8]>::first_chunk::<8>).ok_or(Malformed)?;
        let length = match chain.protocol {
            // Its second byte is reserved.
            protocol::FRAGMENT => header.len(),
            _ => (usize::from(header[1]) + 1) * 8,
        };
        let misplaced = chain.protocol == protocol::HOP_BY_HOP && place != 0;
        if misplaced || at + length > packet.len() {
            return Err(Malformed);
        }
        if chain.protocol == protocol::FRAGMENT {
            chain.add_fragment_header(header, packet.len() - at - length, extent)?;
        }
        if chain.protocol == protocol::ROUTING && header[3] != 0 && extent == Extent::Received {
            return Err(SourceRoute);
        }
        chain.protocol = header[0];
        chain.named_at = at;
        chain.upper_offset = at + length;
        if chain.fragment == Fragment::Later {
            // RFC 4301 §7: the headers that would judge it may be in the first fragment only.
            return if is_extension(chain.protocol) { Err(ProtocolElsewhere) } else { Ok(chain) };
        }
    }
    if is_extension(chain.protocol) { Err(Malformed) } else { Ok(chain) }
}

/// Extension headers of RFC 8200, and mobility, HIP and shim6, which have the same form.
pub const fn is_extension(number: u8) -> bool {
    use protocol::{DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
    matches!(number, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION | 135 | 139 | 140)
}

fn fragment_of(offset: usize, more: bool) -> Fragment {
    match (offset, more) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    }
}

/// The effect of the options on the packet's route.
#[derive(PartialEq, Eq)]
enum Routing {
    Normal,
    BySource,
}

/// RFC 791 §3.1 options: lengths must fit.
fn ipv4_options(mut options: &[u8]) -> Result<Routing, ParseError> {
    let mut routing = Routing::Normal;
    while let [kind, rest @ ..] = options {
        match kind {
            0 => break,
            1 => options = rest,
            _ => {
                let length = usize::from(*rest.first().ok_or(ParseError::Malformed)?);
                if length < 2 {
                    return Err(ParseError::Malformed);
                }
                if matches!(kind, 131 | 137) {
                    routing = Routing::BySource;
                }
                options = options.get(length..).ok_or(ParseError::Malformed)?;
            }
        }
    }
    Ok(routing)
}

/// Ports or ICMP type. A whole packet must hold its protocol's whole fixed header, a first
/// fragment or a quote its first 8 bytes.
fn upper(
    number: u8,
    data: &[u8],
    fragment: Fragment,
    extent: Extent,
    family: Family,
) -> Result<Upper, ParseError> {
    if fragment == Fragment::Later {
        return Ok(Upper::Fragment);
    }
    let is_icmp = match family {
        Family::V4 => number == protocol::ICMP,
        Family::V6 => number == protocol::ICMPV6,
    };
    let whole = match number {
        protocol::TCP => 20,
        protocol::SCTP | protocol::DCCP => 12,
        protocol::UDP | protocol::UDP_LITE => 8,
        _ if is_icmp => 8,
        _ => return Ok(Upper::None),
    };
    let least = match (fragment, extent) {
        (Fragment::Whole, Extent::Received) => whole,
        _ => 8,
    };
    match data {
        _ if data.len() < least => Err(ParseError::Malformed),
        [kind, code, ..] if is_icmp => Ok(Upper::Icmp { kind: *kind, code: *code }),
        [a, b, c, d, ..] => Ok(Upper::Ports {
            source: u16::from_be_bytes([*a, *b]),
            destination: u16::from_be_bytes([*c, *d]),
        }),
        _ => Err(ParseError::Malformed),
    }
}

/// Returns whether the packet is a TCP segment with SYN and without ACK. A quote is none: it may be
/// cut short before the flags.
fn opens(number: u8, data: &[u8], fragment: Fragment, extent: Extent) -> bool {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    let has_flags = fragment != Fragment::Later && extent == Extent::Received;
    number == protocol::TCP
        && has_flags
        && data.get(13).is_some_and(|flags| flags & (SYN | ACK) == SYN)
}

/// Neither "this network" 0/8, loopback 127/8, multicast, class E nor broadcast
/// (RFC 1122 §3.2.1.3, RFC 6890).
#[inline]
pub const fn ipv4_is_unicast(address: u32) -> bool {
    address.wrapping_sub(0x0100_0000) < 0xe000_0000 - 0x0100_0000 && address >> 24 != 127
}

/// Neither unspecified, loopback, IPv4-mapped nor multicast (RFC 4291 §2.5, RFC 6890).
#[inline]
pub const fn ipv6_is_unicast(address: u128) -> bool {
    address > 1 && address >> 120 != 0xff && address >> 32 != 0xffff
}

/// Returns whether routers must leave the address on its link: 169.254/16 (RFC 3927 §2.7),
/// fe80::/10 (RFC 4291 §2.5.6).
#[inline]
pub const fn is_link_local(family: Family, address: u128) -> bool {
    match family {
        Family::V4 => address as u32 >> 16 == 0xa9fe,
        Family::V6 => address >> 118 == 0xfe80 >> 6,
    }
}

/// Lowers TTL or hop limit by 1, with the IPv4 checksum. `packet` begins with its IP header and was
/// parsed; its hop limit is above 0.
#[inline]
pub fn decrement_hop_limit(packet: &mut [u8], family: Family) {
    match family {
        Family::V4 => {
            let Some(header) = packet.first_chunk_mut::<IPV4_BYTES>() else {
                return;
            };
            header[8] = header[8].wrapping_sub(1);
            // One less in the high byte of a word: add 0x0100 to the sum's complement (RFC 1141),
            // which must not become 0xffff: no sum has that for its complement (RFC 1624 §3).
            let sum = u32::from(u16::from_be_bytes([header[10], header[11]])) + 0x0100;
            let checksum = (sum + u32::from(sum >= 0xffff)) as u16;
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        Family::V6 => {
            if let Some(hop_limit) = packet.get_mut(7) {
                *hop_limit = hop_limit.wrapping_sub(1);
            }
        }
    }
}

/// Raises TTL or hop limit by 1: takes [`decrement_hop_limit`] back, with the IPv4 checksum.
pub fn restore_hop_limit(packet: &mut [u8], family: Family) {
    match family {
        Family::V4 => {
            let Some(header) = packet.first_chunk_mut::<IPV4_BYTES>() else {
                return;
            };
            header[8] = header[8].wrapping_add(1);
            // As above: of the two forms of zero a checksum has 0.
            let sum = u32::from(u16::from_be_bytes([header[10], header[11]])) + 0xfeff;
            let checksum = (sum + u32::from(sum >= 0xffff)) as u16;
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        Family::V6 => {
            if let Some(hop_limit) = packet.get_mut(7) {
                *hop_limit = hop_limit.wrapping_add(1);
            }
        }
    }
}

/// Sets the ECN field (low 2 bits of TOS or traffic class), with the IPv4 checksum.
pub fn set_ecn(packet: &mut [u8], family: Family, ecn: u8) {
    match family {
        Family::V4 => {
            let Some(header) = packet.first_chunk_mut::<IPV4_BYTES>() else {
                return;
            };
            let old = u16::from_be_bytes([header[0], header[1]]);
            header[1] = header[1] & !3 | ecn & 3;
            let new = u16::from_be_bytes([header[0], header[1]]);
            let before = u16::from_be_bytes([header[10], header[11]]);
            header[10..12].copy_from_slice(&checksum::update(before, old, new).to_be_bytes());
        }
        Family::V6 => {
            if let Some(byte) = packet.get_mut(1) {
                *byte = *byte & !0x30 | (ecn & 3) << 4;
            }
        }
    }
}

#[cfg(test)]
mod tests;
