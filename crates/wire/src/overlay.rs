//! Headers of overlays: VXLAN (RFC 7348 §5) and Geneve (RFC 8926 §3), behind UDP.
//!
//! ```text
//! VXLAN    flags 8 | reserved 24 | VNI 24 | reserved 8
//! Geneve   version 2, option words 6 | O, C, reserved 6 | protocol 16 | VNI 24 | reserved 8
//!          options: class 16 | critical 1, type 7 | reserved 3, data words 5 | data
//! ```

use crate::vni::Vni;

/// UDP port of VXLAN (IANA).
pub const VXLAN_PORT: u16 = 4789;
/// UDP port of Geneve (IANA).
pub const GENEVE_PORT: u16 = 6081;
/// Bytes of a header without options, of either form.
pub const HEADER_BYTES: usize = 8;

/// VXLAN's flag that says that there is a VNI.
const VXLAN_HAS_VNI: u8 = 0x08;
/// Geneve's flag of packets for the tunnel's ends alone.
const GENEVE_CONTROL: u8 = 0x80;
/// Geneve's protocol for Ethernet frames (Trans Ether Bridging).
const ETHERNET: [u8; 2] = [0x65, 0x58];
/// Set in the type of an option that must be understood. The header's own flag C says only that
/// there may be one (RFC 8926 §3.4); it is not read.
const CRITICAL: u8 = 0x80;
/// Class and types of the options that Arion's hosts send: known, and passed on as they are.
const KNOWN_CLASS: u16 = 0x0111;
const KNOWN_TYPES: [u8; 2] = [0x48, 0x49];

/// The form of an overlay's packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// RFC 7348.
    Vxlan,
    /// RFC 8926.
    Geneve,
}

impl Kind {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Vxlan => "vxlan",
            Kind::Geneve => "geneve",
        }
    }

    /// Returns the UDP port that its packets are sent to (IANA).
    pub const fn udp_port(self) -> u16 {
        match self {
            Kind::Vxlan => VXLAN_PORT,
            Kind::Geneve => GENEVE_PORT,
        }
    }

    /// Returns a header without options.
    pub const fn header(self, vni: Vni) -> [u8; HEADER_BYTES] {
        let [a, b, c] = vni.to_bytes();
        match self {
            Kind::Vxlan => [VXLAN_HAS_VNI, 0, 0, 0, a, b, c, 0],
            Kind::Geneve => [0, 0, ETHERNET[0], ETHERNET[1], a, b, c, 0],
        }
    }

    /// Returns the bits that say what a header without options says: two headers that agree in
    /// them are both refused, or of one network. The others are reserved, or not read.
    pub const fn read_bits(self) -> [u8; HEADER_BYTES] {
        match self {
            Kind::Vxlan => [VXLAN_HAS_VNI, 0, 0, 0, 0xff, 0xff, 0xff, 0],
            Kind::Geneve => [0xff, GENEVE_CONTROL, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        }
    }
}

/// A checked overlay header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverlayHeader {
    /// The virtual network.
    pub vni: Vni,
    /// Bytes of the header, with its options.
    pub length: usize,
}

/// Reason why a header is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverlayError {
    /// It is cut off.
    Truncated,
    /// VXLAN without the flag that says that there is a VNI.
    NoVni,
    /// A version of Geneve other than 0.
    Version,
    /// Geneve that carries something other than Ethernet frames.
    Protocol,
    /// Geneve for the ends of the tunnel alone (the O bit).
    Control,
    /// Options whose lengths do not add up to the header's.
    Options,
    /// An option that must be understood, and is not.
    CriticalOption,
}

/// Reads the header in front of `bytes`, which lie behind a UDP header. Reserved bits are ignored.
///
/// # Errors
/// [`OverlayError`]: drop the packet.
#[inline]
pub fn parse(kind: Kind, bytes: &[u8]) -> Result<OverlayHeader, OverlayError> {
    let fixed = bytes.first_chunk::<HEADER_BYTES>().ok_or(OverlayError::Truncated)?;
    let vni = Vni::from_bytes([fixed[4], fixed[5], fixed[6]]);
    match kind {
        Kind::Vxlan if fixed[0] & VXLAN_HAS_VNI == 0 => Err(OverlayError::NoVni),
        Kind::Vxlan => Ok(OverlayHeader { vni, length: HEADER_BYTES }),
        Kind::Geneve => geneve(fixed, bytes, vni),
    }
}

fn geneve(
    fixed: &[u8; HEADER_BYTES],
    bytes: &[u8],
    vni: Vni,
) -> Result<OverlayHeader, OverlayError> {
    if fixed[0] >> 6 != 0 {
        return Err(OverlayError::Version);
    }
    let length = HEADER_BYTES + usize::from(fixed[0] & 0x3f) * 4;
    let mut options = bytes.get(HEADER_BYTES..length).ok_or(OverlayError::Truncated)?;
    if fixed[1] & GENEVE_CONTROL != 0 {
        return Err(OverlayError::Control);
    }
    if fixed[2..4] != ETHERNET {
        return Err(OverlayError::Protocol);
    }
    while !options.is_empty() {
        let head = options.first_chunk::<4>().ok_or(OverlayError::Options)?;
        let data = usize::from(head[3] & 0x1f) * 4;
        let class = u16::from_be_bytes([head[0], head[1]]);
        let is_known = class == KNOWN_CLASS && KNOWN_TYPES.contains(&(head[2] & !CRITICAL));
        if head[2] & CRITICAL != 0 && !is_known {
            return Err(OverlayError::CriticalOption);
        }
        options = options.get(4 + data..).ok_or(OverlayError::Options)?;
    }
    Ok(OverlayHeader { vni, length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    fn option(class: u16, kind: u8, words: u8) -> Vec<u8> {
        let mut option = class.to_be_bytes().to_vec();
        option.extend([kind, words]);
        option.resize(4 + usize::from(words & 0x1f) * 4, 0xaa);
        option
    }

    fn geneve_with(options: &[u8]) -> Vec<u8> {
        let mut header = Kind::Geneve.header(vni(7)).to_vec();
        header[0] = (options.len() / 4) as u8;
        header.extend(options);
        header
    }

    #[test]
    fn headers_are_those_of_the_standards() {
        assert_eq!(Kind::Vxlan.header(vni(0x12_3456)), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(Kind::Geneve.header(vni(7)), [0, 0, 0x65, 0x58, 0, 0, 7, 0]);
        for kind in [Kind::Vxlan, Kind::Geneve] {
            let header = kind.header(vni(0xff_ffff));
            let parsed = OverlayHeader { vni: Vni::MAX, length: 8 };
            assert_eq!(parse(kind, &header), Ok(parsed));
            for length in 0..8 {
                assert_eq!(parse(kind, &header[..length]), Err(OverlayError::Truncated));
            }
        }
    }

    #[test]
    fn reserved_bits_mean_nothing() {
        let vxlan = [0xff, 0xff, 0xff, 0xff, 0, 0, 7, 0xff];
        assert_eq!(parse(Kind::Vxlan, &vxlan).unwrap().vni, vni(7));
        let geneve = [0, 0x7f, 0x65, 0x58, 0, 0, 7, 0xff];
        assert_eq!(parse(Kind::Geneve, &geneve).unwrap().vni, vni(7));
    }

    proptest! {
        #[test]
        fn headers_that_agree_in_the_bits_that_are_read_say_the_same(
            is_geneve: bool, number in 0u32..=0xff_ffff, other: [u8; 8], flip in 0usize..64,
        ) {
            let kind = if is_geneve { Kind::Geneve } else { Kind::Vxlan };
            let (header, read) = (kind.header(vni(number)), kind.read_bits());
            prop_assert_eq!(header.map(|_| 0), std::array::from_fn(|at| header[at] & !read[at]));
            let alike: [u8; 8] = std::array::from_fn(|at| header[at] | other[at] & !read[at]);
            prop_assert_eq!(parse(kind, &alike), parse(kind, &header));
            let mut changed = header;
            changed[flip / 8] ^= 1 << (flip % 8);
            let is_read = read[flip / 8] >> (flip % 8) & 1 == 1;
            prop_assert_eq!(parse(kind, &changed) != parse(kind, &header), is_read);
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let of = |header: [u8; 8], kind| parse(kind, &header).unwrap_err();
        assert_eq!(of([0xf7, 0, 0, 0, 0, 0, 7, 0], Kind::Vxlan), OverlayError::NoVni);
        assert_eq!(of([0x40, 0, 0x65, 0x58, 0, 0, 7, 0], Kind::Geneve), OverlayError::Version);
        assert_eq!(of([0, 0x80, 0x65, 0x58, 0, 0, 7, 0], Kind::Geneve), OverlayError::Control);
        assert_eq!(of([0, 0, 0x08, 0x00, 0, 0, 7, 0], Kind::Geneve), OverlayError::Protocol);
        assert_eq!(of([1, 0, 0x65, 0x58, 0, 0, 7, 0], Kind::Geneve), OverlayError::Truncated);
    }

    #[test]
    fn options_are_walked() {
        // AX-25
        let known = [option(0x0111, 0x48, 1), option(0x0111, 0xc9, 2)].concat();
        let fine = [option(0x0102, 0x01, 0), known.clone(), option(0xffff, 0x7f, 31)].concat();
        for options in [known, fine] {
            let header = geneve_with(&options);
            assert_eq!(parse(Kind::Geneve, &header).unwrap().length, 8 + options.len());
        }
        let refused = |options: &[u8]| parse(Kind::Geneve, &geneve_with(options)).unwrap_err();
        assert_eq!(refused(&option(0x0112, 0xc8, 0)), OverlayError::CriticalOption);
        assert_eq!(refused(&option(0x0111, 0xca, 1)), OverlayError::CriticalOption);
        let too_long = [option(1, 1, 0), Vec::from([0, 1, 1, 1])].concat();
        assert_eq!(refused(&too_long), OverlayError::Options);
        // All 252 bytes.
        let all = [option(1, 1, 31), option(1, 1, 30)].concat();
        assert_eq!(all.len(), 252);
        assert_eq!(parse(Kind::Geneve, &geneve_with(&all)).unwrap().length, 260);
    }

    #[test]
    fn a_packet_with_options_is_read_whole_or_not_at_all() {
        // RFC 8926 §3.4, §3.5: 4 words of options; O clear, C set; then the tenant's frame.
        let mut packet = Vec::from([0x04, 0x40, 0x65, 0x58, 0x12, 0x34, 0x56, 0xff]);
        packet.extend([0x01, 0x11, 0xc8, 0x01, 0xde, 0xad, 0xbe, 0xef]);
        packet.extend([0xff, 0xff, 0x01, 0xe0, 0x01, 0x11, 0x49, 0x00]);
        packet.extend([0x2a; 14]);
        let whole = OverlayHeader { vni: vni(0x12_3456), length: 24 };
        for length in 0..=packet.len() {
            let expected = if length < 24 { Err(OverlayError::Truncated) } else { Ok(whole) };
            assert_eq!(parse(Kind::Geneve, &packet[..length]), expected, "{length} bytes");
        }
        // C is a hint for forwarding; the options themselves decide.
        packet[1] = 0;
        assert_eq!(parse(Kind::Geneve, &packet), Ok(whole));
        packet[10] = 0xca;
        assert_eq!(parse(Kind::Geneve, &packet), Err(OverlayError::CriticalOption));
        packet[10] = 0x4a;
        packet[1] = 0x40;
        assert_eq!(parse(Kind::Geneve, &packet), Ok(whole));
        // Every number of words but the right one cuts an option in two, or takes the frame for one
        // that does not fit.
        for words in [1, 5] {
            packet[0] = words;
            assert_eq!(parse(Kind::Geneve, &packet), Err(OverlayError::Options), "{words} words");
        }
    }

    /// Options as lists of class, type and data words.
    fn options() -> impl Strategy<Value = Vec<(u16, u8, u8)>> {
        let class = prop_oneof![Just(KNOWN_CLASS), Just(0), any::<u16>()];
        let kind = prop_oneof![0x47u8..=0x4a, 0xc7u8..=0xca, any::<u8>()];
        let words = prop_oneof![Just(0), Just(31), 0u8..32];
        prop::collection::vec((class, kind, words), 0..9)
    }

    proptest! {
        #[test]
        fn every_list_of_options_is_judged_by_its_options(
            mut list in options(),
            number in 0u32..=0xff_ffff,
            frame in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let total = |list: &[(u16, u8, u8)]| -> usize {
                list.iter().map(|(_, _, words)| 1 + usize::from(*words)).sum()
            };
            while total(&list) > 63 {
                list.pop();
            }
            let mut bytes = Kind::Geneve.header(vni(number)).to_vec();
            bytes[0] = total(&list) as u8;
            for (class, kind, words) in &list {
                bytes.extend(option(*class, *kind, *words));
            }
            let length = bytes.len();
            bytes.extend(frame);
            let is_refused = list.iter().any(|(class, kind, _)| {
                *kind >= 0x80 && !(*class == 0x0111 && [0xc8, 0xc9].contains(kind))
            });
            prop_assert_eq!(parse(Kind::Geneve, &bytes), match is_refused {
                true => Err(OverlayError::CriticalOption),
                false => Ok(OverlayHeader { vni: vni(number), length }),
            });
        }

        #[test]
        fn a_header_is_read_as_it_was_written(number in 0u32..=0xff_ffff) {
            for kind in [Kind::Vxlan, Kind::Geneve] {
                let parsed = OverlayHeader { vni: vni(number), length: HEADER_BYTES };
                prop_assert_eq!(parse(kind, &kind.header(vni(number))), Ok(parsed));
            }
        }

        #[test]
        fn no_bytes_panic_and_a_header_lies_within_them(
            kind in prop_oneof![Just(Kind::Vxlan), Just(Kind::Geneve)],
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            is_plausible in any::<bool>(),
        ) {
            if is_plausible && bytes.len() >= 8 {
                bytes[0] = bytes[0] & 0x3f | 8;
                bytes[1] = 0;
                bytes[2..4].copy_from_slice(&ETHERNET);
            }
            if let Ok(header) = parse(kind, &bytes) {
                prop_assert!((HEADER_BYTES..=260).contains(&header.length));
                prop_assert!(header.length <= bytes.len());
                prop_assert_eq!(&header.vni.to_bytes()[..], &bytes[4..7]);
            }
        }
    }
}
