//! States the form of a sealed packet by the RFCs' text, field after field: the oracle of the
//! framing. Also holds the settings in which SAs are tried.

use std::net::IpAddr;
use std::sync::Arc;

use policy::SaSetId;
use proptest::prelude::*;
use wire::{Family, Packet};

use crate::encapsulation::{DontFragment, Dscp, Encapsulation, Mode, UdpPorts};
use crate::suite::Encryption;
use crate::testing::{SPI, material};
use crate::{
    InboundSa, OutboundSa, ReplayWindow, SaId, SequenceCounter, SequenceNumbers, Spi, Suite, Tunnel,
};

pub(super) const SHORT: SequenceNumbers = SequenceNumbers::Short;
pub(super) const EXTENDED: SequenceNumbers = SequenceNumbers::Extended;
pub(super) const V4_ENDS: (&str, &str) = ("192.0.2.1", "198.51.100.7");
pub(super) const V6_ENDS: (&str, &str) = ("2001:db8::1", "2001:db8:ffff::7");
pub(super) const PORTS: UdpPorts = UdpPorts { local: 4500, remote: 61234 };

/// One way of configuring an SA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) suite: Suite,
    pub(super) numbers: SequenceNumbers,
    pub(super) mode: Mode,
    /// Family of the outer header; in transport mode of the packet itself.
    pub(super) outer: Family,
    pub(super) udp: Option<UdpPorts>,
    pub(super) dscp: Dscp,
    pub(super) dont_fragment: DontFragment,
}

impl Setting {
    /// ESP alone, options as they are by default.
    pub(super) const fn plain(suite: Suite, mode: Mode, outer: Family) -> Setting {
        let (dscp, dont_fragment) = (Dscp::Copy, DontFragment::Set);
        Setting { suite, numbers: SHORT, mode, outer, udp: None, dscp, dont_fragment }
    }

    /// Every suite, both widths of numbers, both modes and families, with and without UDP.
    pub(super) fn all() -> impl Iterator<Item = Setting> {
        let suites = Suite::ALL.iter().flat_map(|suite| [(*suite, SHORT), (*suite, EXTENDED)]);
        suites.flat_map(|(suite, numbers)| {
            let families = [Family::V4, Family::V6];
            let modes = [Mode::Tunnel, Mode::Transport];
            let shapes = families.into_iter().flat_map(move |outer| {
                modes.map(|mode| Setting { numbers, ..Setting::plain(suite, mode, outer) })
            });
            shapes.flat_map(|s| [s, Setting { udp: Some(PORTS), ..s }])
        })
    }

    pub(super) fn ends(&self) -> (&'static str, &'static str) {
        match self.outer {
            Family::V4 => V4_ENDS,
            Family::V6 => V6_ENDS,
        }
    }

    pub(super) fn tunnel(&self) -> Tunnel {
        let (local, remote) = self.ends();
        Tunnel { local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    /// The two ends of one SA: what the first seals the second opens.
    pub(super) fn pair(&self) -> (OutboundSa, InboundSa) {
        let Setting { suite, numbers, mode, udp, dscp, dont_fragment, .. } = *self;
        let tunnel = self.tunnel();
        let there = Encapsulation { mode, tunnel, udp, dscp, dont_fragment };
        let back = Encapsulation {
            tunnel: Tunnel { local: tunnel.remote, remote: tunnel.local },
            udp: udp.map(|ports| UdpPorts { local: ports.remote, remote: ports.local }),
            ..there
        };
        let (id, spi, set) = (SaId(3), Spi::new(SPI).unwrap(), SaSetId(4));
        let (key, counter) = (material(suite, 1), Arc::new(SequenceCounter::new(numbers)));
        let window = Arc::new(ReplayWindow::new(64, numbers).unwrap());
        (
            OutboundSa::new(id, spi, set, &key, there, counter).unwrap(),
            InboundSa::new(id, spi, set, &key, back, window).unwrap(),
        )
    }

    /// Bytes in front of ESP that are not the packet's own.
    pub(super) fn headers(&self) -> usize {
        let ip = match (self.mode, self.outer) {
            (Mode::Transport, _) => 0,
            (Mode::Tunnel, Family::V4) => 20,
            (Mode::Tunnel, Family::V6) => 40,
        };
        ip + if self.udp.is_some() { 8 } else { 0 }
    }
}

pub(super) fn families() -> impl Strategy<Value = Family> {
    prop::sample::select(vec![Family::V4, Family::V6])
}

pub(super) fn settings() -> impl Strategy<Value = Setting> {
    let shape = (
        prop::sample::select(Suite::ALL),
        prop::sample::select(vec![SHORT, EXTENDED]),
        prop::sample::select(vec![Mode::Tunnel, Mode::Transport]),
        families(),
    );
    let udp = prop::option::of(any::<(u16, u16)>());
    let dscp = prop_oneof![Just(Dscp::Copy), prop_oneof![0u8..64, Just(63)].prop_map(Dscp::Fixed)];
    let dont_fragment =
        prop::sample::select(vec![DontFragment::Set, DontFragment::Copy, DontFragment::Clear]);
    (shape, udp, dscp, dont_fragment).prop_map(|(shape, udp, dscp, dont_fragment)| {
        let (suite, numbers, mode, outer) = shape;
        let udp = udp.map(|(local, remote)| UdpPorts { local, remote });
        Setting { suite, numbers, mode, outer, udp, dscp, dont_fragment }
    })
}

/// RFC 4303 §2.4: 1, 2, 3 … until pad length and next header end on a multiple.
pub(super) fn trailer(payload: usize, suite: Suite, next_header: u8) -> Vec<u8> {
    let multiple = if suite.encryption() == Encryption::Cbc { 16 } else { 4 };
    let mut trailer = vec![];
    while !(payload + trailer.len() + 2).is_multiple_of(multiple) {
        trailer.push(trailer.len() as u8 + 1);
    }
    trailer.extend([trailer.len() as u8, next_header]);
    trailer
}

/// RFC 1071 by its text: the sum of all words with end-around carry is all ones.
pub(super) fn checksum_is_right(bytes: &[u8]) -> bool {
    let mut sum = 0u64;
    for word in bytes.chunks(2) {
        sum += u64::from(word[0]) * 256 + word.get(1).map_or(0, |low| u64::from(*low));
    }
    while sum > 0xffff {
        sum = sum % 0x10000 + sum / 0x10000;
    }
    sum == 0xffff
}

/// RFC 8200 §8.1: pseudo-header, then the datagram, in which the checksum must be there.
pub(super) fn v6_udp_checksum_is_right(ip: &[u8], udp: &[u8]) -> bool {
    let length = (udp.len() as u32).to_be_bytes();
    let covered = [&ip[8..40], &length, &[0, 0, 0, 17], udp].concat();
    udp[6..8] != [0, 0] && checksum_is_right(&covered)
}

fn short(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) * 256 + usize::from(bytes[at + 1])
}

/// Checks every byte in front of ESP, and returns how many they are. `inner` is the packet that
/// was sealed, `own` its header as it was.
pub(super) fn check_headers(
    packet: &[u8],
    setting: &Setting,
    inner: &Packet,
    own: &[u8],
    sequence: u64,
) -> usize {
    let carries = if setting.udp.is_some() { 17 } else { 50 };
    let ip = match setting.mode {
        Mode::Tunnel => check_outer(packet, setting, inner, carries, sequence),
        Mode::Transport => check_own(packet, setting, inner, own, carries),
    };
    let Some(ports) = setting.udp else { return ip };
    let udp = &packet[ip..];
    assert_eq!(short(udp, 0), usize::from(ports.local));
    assert_eq!(short(udp, 2), usize::from(ports.remote));
    assert_eq!(short(udp, 4), udp.len());
    match setting.outer {
        Family::V4 => assert_eq!(udp[6..8], [0, 0]),
        Family::V6 => assert!(v6_udp_checksum_is_right(packet, udp)),
    }
    ip + 8
}

/// RFC 4301 §5.1.2: the outer header of a tunnel.
fn check_outer(
    packet: &[u8],
    setting: &Setting,
    inner: &Packet,
    carries: u8,
    sequence: u64,
) -> usize {
    let class = match setting.dscp {
        Dscp::Copy => inner.traffic_class,
        Dscp::Fixed(dscp) => dscp * 4 + inner.traffic_class % 4,
    };
    match (setting.tunnel().local, setting.tunnel().remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let dont = match setting.dont_fragment {
                DontFragment::Set => true,
                DontFragment::Copy => inner.dont_fragment,
                DontFragment::Clear => false,
            };
            assert_eq!(packet[..2], [0x45, class]);
            assert_eq!(short(packet, 2), packet.len());
            // What may be fragmented has a number of its own.
            let (number, flags) = if dont { (0, 0x4000) } else { (sequence % 0x10000, 0) };
            assert_eq!((short(packet, 4) as u64, short(packet, 6)), (number, flags));
            assert_eq!(packet[8..10], [64, carries]);
            assert_eq!(packet[12..16], local.octets());
            assert_eq!(packet[16..20], remote.octets());
            assert!(checksum_is_right(&packet[..20]));
            20
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            assert_eq!(packet[..4], [0x60 | class >> 4, class << 4, 0, 0]);
            assert_eq!(short(packet, 4), packet.len() - 40);
            assert_eq!(packet[6..8], [carries, 64]);
            assert_eq!(packet[8..24], local.octets());
            assert_eq!(packet[24..40], remote.octets());
            40
        }
        _ => panic!("mixed families"),
    }
}

/// RFC 4303 §3.1.1: the packet's own header says only what follows and how long it is now.
fn check_own(packet: &[u8], setting: &Setting, inner: &Packet, own: &[u8], carries: u8) -> usize {
    let header = usize::from(inner.upper_offset);
    let mut expected = own[..header].to_vec();
    match setting.outer {
        Family::V4 => {
            assert_eq!(short(packet, 2), packet.len());
            assert!(checksum_is_right(&packet[..header]));
            expected[2..4].copy_from_slice(&packet[2..4]);
            expected[9] = carries;
            expected[10..12].copy_from_slice(&packet[10..12]);
        }
        Family::V6 => {
            assert_eq!(short(packet, 4), packet.len() - 40);
            expected[4..6].copy_from_slice(&packet[4..6]);
            // The last header of the chain names what follows: found from the front, RFC 8200 §4.
            let (mut names, mut at) = (6, 40);
            while at < header {
                let units = if expected[names] == 44 { 0 } else { usize::from(expected[at + 1]) };
                (names, at) = (at, at + 8 + 8 * units);
            }
            assert_eq!(at, header);
            expected[names] = carries;
        }
    }
    assert_eq!(packet[..header], expected);
    header
}
