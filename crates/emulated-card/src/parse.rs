//! The card's own look at a frame. It shares nothing with the walk's parser, and is simpler, as a
//! card's is: it knows no IPv6 extension headers, and takes the first for the upper-layer header.

/// The fields of a frame that the card sees. Numbers are bytes as they are on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Addresses of 4 or 16 bytes; the rest is 0.
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
    pub(crate) version: u8,
    pub(crate) protocol: u8,
    /// The first four bytes behind the IP header: ports, or the type and code of a message.
    pub(crate) upper: Option<[u8; 4]>,
    /// The byte of TCP's flags.
    pub(crate) tcp_flags: Option<u8>,
    /// True of every part of a datagram that is not all of it.
    pub(crate) is_fragment: bool,
    /// True if there are no IPv4 options, and what follows the IPv6 header is no extension.
    pub(crate) is_bare: bool,
}

/// Next headers of IPv6 that are extension headers, or may be.
const EXTENSIONS: [u8; 10] = [0, 43, 44, 51, 60, 135, 139, 140, 253, 254];

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;

/// Looks at an Ethernet frame. `None`: it has a VLAN tag, or is not IP, or is cut short.
pub(crate) fn parse(frame: &[u8]) -> Option<Seen> {
    let ip = frame.get(ETHERNET..)?;
    match (frame[12], frame[13], ip.first()? >> 4) {
        (0x08, 0x00, 4) => ipv4(ip),
        (0x86, 0xdd, 6) => ipv6(ip),
        _ => None,
    }
}

fn ipv4(ip: &[u8]) -> Option<Seen> {
    let header = usize::from(ip[0] & 0x0f) * 4;
    let total = usize::from(*ip.get(2)?) << 8 | usize::from(*ip.get(3)?);
    let fixed = ip.get(..20)?;
    let upper = ip.get(header.max(20)..total.min(ip.len()))?;
    let (flags, offset) = (fixed[6], [fixed[6] & 0x1f, fixed[7]]);
    let is_fragment = flags & 0x20 != 0 || offset != [0, 0];
    let address = |at: usize| {
        let mut address = [0; 16];
        address[..4].copy_from_slice(&fixed[at..at + 4]);
        address
    };
    Some(Seen {
        source: address(12),
        destination: address(16),
        version: 4,
        protocol: fixed[9],
        upper: first_four(upper),
        tcp_flags: upper.get(13).copied(),
        is_fragment,
        is_bare: header == 20,
    })
}

fn ipv6(ip: &[u8]) -> Option<Seen> {
    let fixed = ip.get(..40)?;
    let payload = usize::from(fixed[4]) << 8 | usize::from(fixed[5]);
    let upper = ip.get(40..ip.len().min(40 + payload))?;
    let address = |at: usize| {
        let mut address = [0; 16];
        address.copy_from_slice(&fixed[at..at + 16]);
        address
    };
    Some(Seen {
        source: address(8),
        destination: address(24),
        version: 6,
        protocol: fixed[6],
        upper: first_four(upper),
        tcp_flags: upper.get(13).copied(),
        is_fragment: fixed[6] == 44,
        is_bare: !EXTENSIONS.contains(&fixed[6]),
    })
}

fn first_four(upper: &[u8]) -> Option<[u8; 4]> {
    upper.get(..4)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::build::chosen_packet;
    use wire::packet::{IPV4_BYTES, IPV6_BYTES};
    use wire::{Address, Family, Fragment, Upper};

    use super::*;

    /// AH and the numbers for experiments: extensions to the card, an upper layer to the walk.
    const UNSURE: [u8; 3] = [51, 253, 254];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn of_a_bare_packet_the_card_sees_what_the_parser_sees(
            is_v6: bool,
            choices in prop::collection::vec(any::<u8>(), 0..48),
        ) {
            let (ends, kind) = match is_v6 {
                false => ([Address::v4(0x0a01_0203), Address::v4(0x0a09_0807)], [0x08, 0x00]),
                true => ([1, 2].map(|host| Address::v6(0x2001_0db8 << 96 | host)), [0x86, 0xdd]),
            };
            let packet = chosen_packet(ends[0], ends[1], &choices);
            let frame = [&[2; 12][..], &kind, &packet].concat();
            let Ok(parsed) = wire::packet::parse(&packet) else {
                // A card may tag malformed packets: the walk parses them again.
                parse(&frame);
                return Ok(());
            };
            let is_of_type = (parsed.flow.family == Family::V6) == is_v6;
            let Some(seen) = parse(&frame) else {
                prop_assert!(!is_of_type);
                return Ok(());
            };
            let (version, header) = if is_v6 { (6, IPV6_BYTES) } else { (4, IPV4_BYTES) };
            let is_plain = parsed.fragment == Fragment::Whole
                && usize::from(parsed.upper_offset) == header;
            let is_sure = seen.is_bare && !seen.is_fragment;
            let is_unsure = is_v6 && UNSURE.contains(&parsed.flow.protocol);
            prop_assert_eq!(is_sure, is_plain && !is_unsure, "{:02x?}", packet);
            if !is_plain {
                return Ok(());
            }
            prop_assert_eq!((seen.version, seen.protocol), (version, parsed.flow.protocol));
            match parsed.flow.upper {
                Upper::Ports { source, destination } => {
                    let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
                    prop_assert_eq!(seen.upper, Some([a, b, c, d]));
                }
                Upper::Icmp { kind, code } => {
                    prop_assert_eq!(seen.upper.map(|[a, b, ..]| [a, b]), Some([kind, code]));
                }
                Upper::None | Upper::Fragment => {}
            }
        }
    }
}
