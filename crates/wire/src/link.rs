//! Ethernet II headers with at most one 802.1Q tag.

use core::num::NonZeroU64;

/// Bytes of an untagged Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of an 802.1Q tag.
pub const VLAN_TAG_BYTES: usize = 4;

/// EtherTypes that the walk tells apart.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad outer tag.
    pub const STACKED_VLAN: u16 = 0x88a8;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

/// A 48-bit link address as a number, host order, compared and stored whole; a bit above it is
/// always set, so that having none costs no room.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkAddress(NonZeroU64);

impl LinkAddress {
    /// Makes the address of its six bytes.
    pub const fn new(bytes: [u8; 6]) -> LinkAddress {
        let [a, b, c, d, e, f] = bytes;
        LinkAddress(LinkAddress::ABOVE.saturating_add(u64::from_be_bytes([0, 0, a, b, c, d, e, f])))
    }

    /// Returns its six bytes.
    #[inline]
    pub const fn bytes(self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f] = self.0.get().to_be_bytes();
        [a, b, c, d, e, f]
    }

    const ABOVE: NonZeroU64 = NonZeroU64::new(1 << 48).expect("not zero");

    /// The six bytes behind each other, as the highest of 8 bytes.
    #[inline]
    const fn high(self) -> u64 {
        self.0.get() << 16
    }
}

/// The VLAN tag of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// No tag, or a priority tag (VLAN id 0).
    Untagged,
    /// One tag with this VLAN id.
    Vlan(u16),
    /// More than one tag, or an 802.1ad tag: no port has it.
    Stacked,
}

/// A checked link header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Destination link address.
    pub destination: [u8; 6],
    /// Source link address.
    pub source: [u8; 6],
    /// VLAN tag.
    pub tag: Tag,
    /// EtherType behind the tag.
    pub ethertype: u16,
    /// Bytes of header: 14 or 18.
    pub length: usize,
}

impl Link {
    /// Reads a link header; `None` if it is truncated.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<Link> {
        let (header, rest) = frame.split_first_chunk::<ETHERNET_BYTES>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let mut link = Link {
            destination: [d0, d1, d2, d3, d4, d5],
            source: [s0, s1, s2, s3, s4, s5],
            tag: Tag::Untagged,
            ethertype: u16::from_be_bytes([t0, t1]),
            length: ETHERNET_BYTES,
        };
        if matches!(link.ethertype, ethertype::VLAN | ethertype::STACKED_VLAN) {
            link.read_tag(rest)?;
        }
        Some(link)
    }

    #[cold]
    fn read_tag(&mut self, rest: &[u8]) -> Option<()> {
        let [c0, c1, t0, t1] = *rest.first_chunk::<VLAN_TAG_BYTES>()?;
        let id = u16::from_be_bytes([c0, c1]) & 0x0fff;
        let inner = u16::from_be_bytes([t0, t1]);
        let stacked = self.ethertype == ethertype::STACKED_VLAN
            || matches!(inner, ethertype::VLAN | ethertype::STACKED_VLAN);
        self.tag = match id {
            _ if stacked => Tag::Stacked,
            0 => Tag::Untagged,
            id => Tag::Vlan(id),
        };
        self.ethertype = inner;
        self.length += VLAN_TAG_BYTES;
        Some(())
    }

    /// Returns whether the frame is for a group (broadcast or multicast), not one station.
    #[inline]
    pub fn is_group(&self) -> bool {
        self.destination[0] & 1 == 1
    }
}

/// Writes a link header that ends at `end` of `frame` and returns where it begins; `None` if there
/// is no room. Whole integers are stored, never a struct (FACTS "The walk" 4).
#[inline]
pub fn write(
    frame: &mut [u8],
    end: usize,
    destination: LinkAddress,
    source: LinkAddress,
    vlan: Option<u16>,
    ethertype: u16,
) -> Option<usize> {
    let tag_bytes = if vlan.is_some() { VLAN_TAG_BYTES } else { 0 };
    let start = end.checked_sub(ETHERNET_BYTES + tag_bytes)?;
    let header = frame.get_mut(start..end)?;
    let source = source.high();
    let first = destination.high() | source >> 48;
    header[0..8].copy_from_slice(&first.to_be_bytes());
    header[8..12].copy_from_slice(&((source >> 16) as u32).to_be_bytes());
    if let Some(id) = vlan {
        let tag = u32::from(ethertype::VLAN) << 16 | u32::from(id & 0x0fff);
        header[12..16].copy_from_slice(&tag.to_be_bytes());
    }
    header[12 + tag_bytes..14 + tag_bytes].copy_from_slice(&ethertype.to_be_bytes());
    Some(start)
}

/// A link header from one station to another, with or without a VLAN tag, but for its EtherType:
/// made once, then written in front of many packets as whole words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkTemplate {
    /// The header's first 8 bytes, in the order in which they are sent.
    first: [u8; 8],
    /// The rest of the source, then the tag, if there is one.
    behind: [u8; 8],
    is_tagged: bool,
}

/// Bytes of a link header with a VLAN tag.
pub const TAGGED_BYTES: usize = ETHERNET_BYTES + VLAN_TAG_BYTES;

impl LinkTemplate {
    /// Prepares it.
    pub const fn new(
        destination: LinkAddress,
        source: LinkAddress,
        vlan: Option<u16>,
    ) -> LinkTemplate {
        let source = source.high();
        let (tag, is_tagged) = match vlan {
            Some(id) => (0x8100 << 16 | (id & 0x0fff) as u64, true),
            None => (0, false),
        };
        LinkTemplate {
            first: (destination.high() | source >> 48).to_be_bytes(),
            behind: ((source >> 16) << 32 | tag).to_be_bytes(),
            is_tagged,
        }
    }

    /// Returns whether it has a VLAN tag: it is then of [`TAGGED_BYTES`], else of
    /// [`ETHERNET_BYTES`].
    #[inline(always)]
    pub const fn is_tagged(&self) -> bool {
        self.is_tagged
    }

    /// Writes a header of its length, which the caller knows.
    #[inline(always)]
    pub fn write<const BYTES: usize>(&self, header: &mut [u8; BYTES], ethertype: u16) {
        const { assert!(BYTES == ETHERNET_BYTES || BYTES == TAGGED_BYTES) };
        header[..8].copy_from_slice(&self.first);
        if BYTES == TAGGED_BYTES {
            header[8..16].copy_from_slice(&self.behind);
        } else {
            header[8..12].copy_from_slice(&self.behind[..4]);
        }
        header[BYTES - 2..].copy_from_slice(&ethertype.to_be_bytes());
    }
}

/// The beginning of frames to one station, by one form of link header, for an EtherType: as it lies
/// in memory, to be compared as whole words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entrance {
    station: u64,
    /// The tag, without its priority bits; 0 without a tag.
    tag: u32,
}

impl Entrance {
    /// Frames to a station with this VLAN tag, or with none.
    pub const fn new(station: LinkAddress, vlan: Option<u16>) -> Entrance {
        let tag = match vlan {
            Some(id) => (0x8100 << 16 | (id & 0x0fff) as u32).to_be(),
            None => 0,
        };
        Entrance { station: station.high().to_be(), tag }
    }

    /// Returns the EtherType, as it lies in memory, of a frame that begins so; any number that is
    /// no EtherType of IP for other frames.
    #[inline(always)]
    pub fn ethertype<const BYTES: usize, const N: usize>(&self, frame: &[u8; N]) -> Option<u16> {
        const { assert!(BYTES == ETHERNET_BYTES || BYTES == TAGGED_BYTES && N >= BYTES) };
        let first = crate::glance::double(frame, 0);
        let mut differs = (first ^ self.station) & (!0xffff_u64).to_be();
        if BYTES == TAGGED_BYTES {
            let tag = crate::glance::word(frame, ETHERNET_BYTES - 2);
            differs |= u64::from((tag ^ self.tag) & 0xffff_0fff_u32.to_be());
        }
        (differs == 0).then(|| u16::from_ne_bytes([frame[BYTES - 2], frame[BYTES - 1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(d: [u8; 6], s: [u8; 6], id in 1u16..4096, tagged: bool) {
            let mut frame = [0u8; 40];
            let vlan = tagged.then_some(id);
            let (to, from) = (LinkAddress::new(d), LinkAddress::new(s));
            assert_eq!((to.bytes(), from.bytes()), (d, s));
            let start = write(&mut frame, 30, to, from, vlan, ethertype::IPV6).unwrap();
            let link = Link::parse(&frame[start..]).unwrap();
            prop_assert_eq!((link.destination, link.source), (d, s));
            prop_assert_eq!(link.tag, vlan.map_or(Tag::Untagged, Tag::Vlan));
            prop_assert_eq!((link.ethertype, start + link.length), (ethertype::IPV6, 30));
            let (template, mut bare, mut with_tag) =
                (LinkTemplate::new(to, from, vlan), [0u8; ETHERNET_BYTES], [0u8; TAGGED_BYTES]);
            prop_assert_eq!(template.is_tagged(), tagged);
            match tagged {
                false => {
                    template.write(&mut bare, ethertype::IPV6);
                    prop_assert_eq!(&frame[start..30], &bare[..]);
                }
                true => {
                    template.write(&mut with_tag, ethertype::IPV6);
                    prop_assert_eq!(&frame[start..30], &with_tag[..]);
                }
            }
        }

        #[test]
        fn an_entrance_takes_what_the_parser_finds_for_its_station(
            d: [u8; 6], other in prop::option::of((0usize..6, 0u8..8)),
            id in 1u16..4096, tagged: bool, asked: bool, priority in 0u8..8,
        ) {
            let mut frame = [0u8; 40];
            let (to, from) = (LinkAddress::new(d), LinkAddress::new([2; 6]));
            let start = write(&mut frame, 30, to, from, tagged.then_some(id), ethertype::IPV4);
            let start = start.unwrap();
            if tagged {
                frame[start + 14] |= priority << 5;
            }
            let mut station = d;
            if let Some((at, bit)) = other {
                station[at] ^= 1 << bit;
            }
            let entrance = Entrance::new(LinkAddress::new(station), asked.then_some(id));
            let view: &[u8; 20] = frame[start..].first_chunk().unwrap();
            let found = match asked {
                false => entrance.ethertype::<ETHERNET_BYTES, 20>(view),
                true => entrance.ethertype::<TAGGED_BYTES, 20>(view),
            };
            let ipv4 = ethertype::IPV4.to_be();
            prop_assert_eq!(
                found == Some(ipv4),
                other.is_none() && tagged == asked,
            );
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Some(link) = Link::parse(&bytes) {
                prop_assert!(link.length <= bytes.len());
            }
        }
    }

    #[test]
    fn a_header_that_does_not_fit_is_not_written() {
        const NOBODY: LinkAddress = LinkAddress::new([0; 6]);
        assert_eq!(write(&mut [0; 40], 13, NOBODY, NOBODY, None, 0), None);
        assert_eq!(write(&mut [0; 40], 17, NOBODY, NOBODY, Some(1), 0), None);
        assert_eq!(write(&mut [0; 40], 41, NOBODY, NOBODY, None, 0), None);
    }

    #[test]
    fn two_tags_are_stacked_and_a_priority_tag_is_none() {
        let mut frame = [0u8; 22];
        frame[12..18].copy_from_slice(&[0x81, 0, 0, 5, 0x81, 0]);
        assert_eq!(Link::parse(&frame).unwrap().tag, Tag::Stacked);
        frame[12..18].copy_from_slice(&[0x88, 0xa8, 0, 5, 0x08, 0]);
        assert_eq!(Link::parse(&frame).unwrap().tag, Tag::Stacked);
        frame[12..18].copy_from_slice(&[0x81, 0, 0xe0, 0, 0x08, 0]);
        let link = Link::parse(&frame).unwrap();
        assert_eq!((link.tag, link.ethertype), (Tag::Untagged, ethertype::IPV4));
    }
}
