//! IPv4 fragmentation (RFC 791 §3.2), before sealing (RFC 4303 §3.3.4).

use wire::{Packet, checksum};

/// Bytes of the largest fragment header.
pub(crate) const MAX_HEADER_BYTES: usize = 60;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// A fragment to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Offset of its data in the original packet.
    pub(crate) from: usize,
    /// Its data, bytes.
    pub(crate) length: usize,
    /// True if another fragment follows.
    pub(crate) more: bool,
}

/// Cuts a packet into fragments of at most `mtu` bytes; none if `mtu` has no room for data. The
/// packet is IPv4 and may itself be a fragment.
pub(crate) fn pieces(packet: &Packet, mtu: usize) -> impl Iterator<Item = Piece> + use<> {
    cut((usize::from(packet.upper_offset), 0), packet.length as usize, mtu)
}

/// Cuts a packet of `total` bytes into fragments of at most `mtu` bytes, each with the packet's
/// `header` bytes and with so many `added` ones; none if `mtu` has no room for data.
pub(crate) fn cut(
    (header, added): (usize, usize),
    total: usize,
    mtu: usize,
) -> impl Iterator<Item = Piece> + use<> {
    let room = mtu.saturating_sub(header + added) & !7;
    let step = if room == 0 { total } else { room };
    let starts = (header..total).step_by(step.max(1)).take_while(move |_| room != 0);
    starts.map(move |from| {
        let length = room.min(total - from);
        Piece { from, length, more: from + length < total }
    })
}

/// Writes one fragment of `original` to the start of `into` and returns its length; `None` if it
/// does not fit. Fragments but the first carry only the options that must be copied.
pub(crate) fn write(
    into: &mut [u8],
    original: &[u8],
    packet: &Packet,
    piece: Piece,
) -> Option<usize> {
    let header_bytes = usize::from(packet.upper_offset);
    let original_header = original.get(..header_bytes)?;
    let mut header = [0u8; MAX_HEADER_BYTES];
    header[..20].copy_from_slice(&original_header[..20]);
    let field = u16::from_be_bytes([header[6], header[7]]);
    let before = usize::from(field & OFFSET);
    let is_first = piece.from == header_bytes;
    let length = if is_first {
        header[..header_bytes].copy_from_slice(original_header);
        header_bytes
    } else {
        20 + copied_options(&original_header[20..], &mut header[20..])
    };
    let more = piece.more || field & MORE_FRAGMENTS != 0;
    let offset = before + (piece.from - header_bytes) / 8;
    let flags = field & !(MORE_FRAGMENTS | OFFSET) | if more { MORE_FRAGMENTS } else { 0 };
    header[6..8].copy_from_slice(&(flags | offset as u16).to_be_bytes());
    header[0] = 0x40 | (length / 4) as u8;
    let total = length + piece.length;
    header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&header[..length]));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let out = into.get_mut(..total)?;
    out[..length].copy_from_slice(&header[..length]);
    out[length..].copy_from_slice(original.get(piece.from..piece.from + piece.length)?);
    Some(total)
}

/// Copies the options with the "copied" flag (RFC 791 §3.1), padded to whole words; returns their
/// bytes. The parser has checked the lengths.
fn copied_options(mut options: &[u8], into: &mut [u8]) -> usize {
    let mut written = 0;
    while let [kind, rest @ ..] = options {
        let length = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(*rest.first().unwrap_or(&1)).max(1),
        };
        let (option, behind) = options.split_at(length.min(options.len()));
        if kind & 0x80 != 0 {
            into[written..written + option.len()].copy_from_slice(option);
            written += option.len();
        }
        options = behind;
    }
    written.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::build::PacketBuilder;

    fn cut(original: &[u8], mtu: usize) -> Vec<Vec<u8>> {
        let packet = wire::packet::parse(original).unwrap();
        pieces(&packet, mtu)
            .map(|piece| {
                let mut out = vec![0xee; 2048];
                let length = write(&mut out, original, &packet, piece).unwrap();
                out.truncate(length);
                out
            })
            .collect()
    }

    /// RFC 791 reassembly, as plainly as can be: data by offset.
    fn reassemble(fragments: &[Vec<u8>]) -> (Vec<u8>, bool) {
        let mut data = Vec::new();
        let mut more = true;
        for bytes in fragments {
            let packet = wire::packet::parse(bytes).unwrap();
            let field = u16::from_be_bytes([bytes[6], bytes[7]]);
            assert_eq!(usize::from(field & OFFSET) * 8, data.len(), "in order, nothing missing");
            data.extend(&bytes[packet.upper_offset.into()..packet.length as usize]);
            more = field & MORE_FRAGMENTS != 0;
        }
        (data, more)
    }

    proptest! {
        #[test]
        fn fragments_fit_and_reassemble_to_the_packet(
            payload in prop_oneof![0usize..40, 500usize..1600],
            options in prop_oneof![
                Just(vec![]),
                Just(vec![1]),
                Just(vec![0x94, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0]),
            ],
            mtu in prop_oneof![68usize..80, 300usize..1500],
            traffic_class: u8,
        ) {
            let original = PacketBuilder::v4("10.1.0.1", "10.2.0.1").options(&options)
                .traffic_class(traffic_class).identification(77).udp(5, 6).payload_of(payload).ip();
            let header = usize::from(original[0] & 15) * 4;
            let fragments = cut(&original, mtu);
            prop_assert!(fragments.iter().all(|f| f.len() <= mtu && f[4..6] == original[4..6]));
            prop_assert_eq!(reassemble(&fragments), (original[header..].to_vec(), false));
            for later in &fragments[1..] {
                prop_assert_eq!(later[1], traffic_class);
                prop_assert_eq!(later[0] & 15, if options.len() == 11 { 6 } else { 5 });
            }
        }
    }

    #[test]
    fn a_fragment_is_cut_into_fragments_of_the_same_datagram() {
        let middle =
            PacketBuilder::v4("10.1.0.1", "10.2.0.1").fragment(100, true).payload_of(800).ip();
        let fragments = cut(&middle, 420);
        let fields: Vec<u16> = fragments.iter().map(|f| u16::from_be_bytes([f[6], f[7]])).collect();
        assert_eq!(fields, [0x2000 | 100, 0x2000 | 150]);
    }

    #[test]
    fn an_mtu_without_room_for_data_gives_no_pieces() {
        let packet = PacketBuilder::v4("10.1.0.1", "10.2.0.1").udp(1, 2).payload_of(100).ip();
        assert!(cut(&packet, 27).is_empty());
    }
}
