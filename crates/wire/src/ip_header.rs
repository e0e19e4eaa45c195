//! IP headers of packets that we begin: without options or extension headers, written whole.

use crate::checksum;
use crate::flow::{Address, Family};
use crate::packet::{IPV4_BYTES, IPV6_BYTES};

/// IPv4's "don't fragment", in the first byte of its flags (RFC 791 §3.1).
const DONT_FRAGMENT: u8 = 0x40;

/// The fields of a header that differ from packet to packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IpHeader {
    pub(crate) source: Address,
    /// Of the same family.
    pub(crate) destination: Address,
    pub(crate) protocol: u8,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// Sets IPv4's DF.
    pub(crate) dont_fragment: bool,
}

impl IpHeader {
    /// Bytes of a header of a family.
    pub(crate) const fn bytes(family: Family) -> usize {
        match family {
            Family::V4 => IPV4_BYTES,
            Family::V6 => IPV6_BYTES,
        }
    }

    /// Writes the header of a packet that fills `packet`, of at most 65,535 bytes. One that is too
    /// short for a header stays as it is.
    pub(crate) fn write(&self, packet: &mut [u8]) {
        let length = packet.len();
        let Some(header) = packet.get_mut(..Self::bytes(self.source.family)) else { return };
        header.fill(0);
        match self.source.family {
            Family::V4 => {
                (header[0], header[1]) = (0x45, self.traffic_class);
                header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
                header[6] = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
                (header[8], header[9]) = (self.hop_limit, self.protocol);
                header[12..16].copy_from_slice(&(self.source.value as u32).to_be_bytes());
                header[16..20].copy_from_slice(&(self.destination.value as u32).to_be_bytes());
                let sum = checksum::finish(checksum::sum(header));
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            Family::V6 => {
                let class = 6 << 12 | u16::from(self.traffic_class) << 4;
                header[..2].copy_from_slice(&class.to_be_bytes());
                header[4..6].copy_from_slice(&((length - IPV6_BYTES) as u16).to_be_bytes());
                (header[6], header[7]) = (self.protocol, self.hop_limit);
                header[8..24].copy_from_slice(&self.source.value.to_be_bytes());
                header[24..40].copy_from_slice(&self.destination.value.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice};
    use proptest::prelude::*;
    use std::vec;

    proptest! {
        #[test]
        fn etherparse_reads_what_is_written(
            ends in any::<(u128, u128)>(),
            fields in any::<(u8, u8, u8)>(),
            dont_fragment in any::<bool>(),
            payload in prop_oneof![0usize..100, 65_490usize..=65_495],
        ) {
            let (protocol, traffic_class, hop_limit) = fields;
            let address = |family, value| match family {
                Family::V4 => Address::v4(value as u32),
                Family::V6 => Address::v6(value),
            };
            for family in [Family::V4, Family::V6] {
                let (source, destination) = (address(family, ends.0), address(family, ends.1));
                let header = IpHeader {
                    source, destination, protocol, traffic_class, hop_limit, dont_fragment,
                };
                let mut packet = vec![0xee; IpHeader::bytes(family) + payload];
                header.write(&mut packet);
                let (start, rest) = packet.split_at(IpHeader::bytes(family));
                prop_assert!(rest.iter().all(|byte| *byte == 0xee));
                if family == Family::V4 {
                    let read = Ipv4HeaderSlice::from_slice(start).unwrap().to_header();
                    prop_assert_eq!(read.calc_header_checksum(), read.header_checksum);
                    prop_assert_eq!(read.source, (source.value as u32).to_be_bytes());
                    prop_assert_eq!(read.destination, (destination.value as u32).to_be_bytes());
                    prop_assert_eq!((read.protocol.0, read.time_to_live), (protocol, hop_limit));
                    prop_assert_eq!(start[1], traffic_class);
                    prop_assert_eq!(usize::from(read.total_len), packet.len());
                    prop_assert_eq!(read.dont_fragment, dont_fragment);
                    prop_assert!(!read.more_fragments && read.fragment_offset.value() == 0);
                } else {
                    let read = Ipv6HeaderSlice::from_slice(start).unwrap().to_header();
                    prop_assert_eq!(read.source, source.value.to_be_bytes());
                    prop_assert_eq!(read.destination, destination.value.to_be_bytes());
                    prop_assert_eq!((read.next_header.0, read.hop_limit), (protocol, hop_limit));
                    prop_assert_eq!(read.traffic_class, traffic_class);
                    prop_assert_eq!(read.flow_label.value(), 0);
                    prop_assert_eq!(usize::from(read.payload_length), payload);
                }
            }
        }
    }

    #[test]
    fn nothing_is_written_where_no_header_fits() {
        for (family, address) in [(Family::V4, Address::v4(1)), (Family::V6, Address::v6(1))] {
            let header = IpHeader {
                source: address,
                destination: address,
                protocol: 17,
                traffic_class: 0,
                hop_limit: 64,
                dont_fragment: false,
            };
            let mut packet = vec![0xee; IpHeader::bytes(family) - 1];
            header.write(&mut packet);
            assert!(packet.iter().all(|byte| *byte == 0xee));
        }
    }
}
