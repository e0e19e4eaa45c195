//! The card's look at a packet in clear.

use super::Loss;

/// A whole packet with a bare header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Clear<'p> {
    /// 4 or 6.
    pub(super) version: u8,
    /// The packet, without what a link has put behind it.
    pub(super) bytes: &'p [u8],
    /// The protocol of the upper layer.
    pub(super) protocol: u8,
    /// DSCP and ECN.
    pub(super) class: u8,
    /// The don't-fragment flag; set for IPv6.
    pub(super) dont_fragment: bool,
}

/// Bytes of a bare IPv4 header, and of an IPv6 header.
pub(super) const V4: usize = 20;
pub(super) const V6: usize = 40;
/// Next headers of IPv6 that are extension headers and not fragments: hop-by-hop, routing,
/// destination options, mobility, HIP, shim6, authentication, and two for experiments.
const EXTENSIONS: [u8; 9] = [0, 43, 60, 135, 139, 140, 51, 253, 254];
/// Next header of the fragment header.
pub(super) const FRAGMENT_HEADER: u8 = 44;

impl<'p> Clear<'p> {
    /// Reads a packet from its IP header on.
    pub(super) fn read(bytes: &'p [u8]) -> Result<Clear<'p>, Loss> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => Clear::v4(bytes),
            Some(6) => Clear::v6(bytes),
            _ => Err(Loss::Malformed),
        }
    }

    fn v4(bytes: &'p [u8]) -> Result<Clear<'p>, Loss> {
        let header: &[u8; V4] = bytes.first_chunk().ok_or(Loss::Malformed)?;
        let header_bytes = usize::from(header[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header_bytes < V4 || total < header_bytes {
            return Err(Loss::Malformed);
        }
        let bytes = bytes.get(..total).ok_or(Loss::Malformed)?;
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        // More fragments, or an offset.
        if fragment & 0x3fff != 0 {
            return Err(Loss::Fragment);
        }
        if header_bytes > V4 {
            return Err(Loss::Options);
        }
        let dont_fragment = fragment & 0x4000 != 0;
        Ok(Clear { version: 4, bytes, protocol: header[9], class: header[1], dont_fragment })
    }

    fn v6(bytes: &'p [u8]) -> Result<Clear<'p>, Loss> {
        let header: &[u8; V6] = bytes.first_chunk().ok_or(Loss::Malformed)?;
        let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let bytes = bytes.get(..V6 + payload).ok_or(Loss::Malformed)?;
        let (protocol, class) = (header[6], header[0] << 4 | header[1] >> 4);
        match protocol {
            FRAGMENT_HEADER => Err(Loss::Fragment),
            extension if EXTENSIONS.contains(&extension) => Err(Loss::Options),
            _ => Ok(Clear { version: 6, bytes, protocol, class, dont_fragment: true }),
        }
    }

    /// Bytes of its IP header.
    pub(super) fn header_bytes(&self) -> usize {
        if self.version == 4 { V4 } else { V6 }
    }

    /// Source and destination, as they stand in the header.
    pub(super) fn addresses(&self) -> (&'p [u8], &'p [u8]) {
        match self.version {
            4 => (&self.bytes[12..16], &self.bytes[16..20]),
            _ => (&self.bytes[8..24], &self.bytes[24..40]),
        }
    }
}
