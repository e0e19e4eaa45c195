//! The traffic of the laboratory: each packet with what must become of it.
//!
//! The builder builds the expected packets once more, with the hop limit (and MSS) that they must
//! have, instead of the code that lowers them.

use dataplane::DropReason;
use wire::build::{PacketBuilder, tcp_flags};
use wire::flow::protocol;
use wire::{Address, Family};

use super::laboratory::Site;

/// Stands at the beginning of every payload that is large enough, and may be on no wire.
pub(crate) const MARKER: &[u8] = b"lockgate demo clear text ";
/// MTU of all links.
const LINK_MTU: usize = 1500;
/// Hop limit of what hosts send.
const HOP_LIMIT: u8 = 64;

/// The fate that a packet must meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Arrives at the host of a site as these bytes.
    Arrives(Site, Vec<u8>),
    /// Arrives in fragments, together these bytes.
    InPieces(Site, Vec<u8>),
    /// Leaves the hub in clear as these bytes: a BYPASS policy.
    Bypassed(Vec<u8>),
    /// The packet is dropped, and an ICMP error tells its sender the largest size that would pass.
    TooBig { by: Site, mtu: u32 },
    /// The packet is dropped, and an ICMP error tells its sender that the hop limit was used up.
    TimeExceeded { by: Site },
    /// The packet is dropped in silence.
    Dropped { by: Site, reason: DropReason },
}

/// A packet that a host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parcel {
    /// Name of the packet, for reports.
    pub(crate) what: &'static str,
    pub(crate) from: Site,
    pub(crate) packet: Vec<u8>,
    pub(crate) fate: Fate,
}

/// Largest inner packet of a tunnel, counted from RFC 4303 §2: outer header, SPI and sequence
/// number, IV and ICV around a text that is a multiple of 4 and ends with two bytes of trailer.
const fn tunnel_mtu(outer_header: usize) -> usize {
    (LINK_MTU - outer_header - 8 - 8 - 16) / 4 * 4 - 2
}

/// Largest packet that goes from the hub to a spoke, or back.
fn spoke_mtu(spoke: Site) -> usize {
    match spoke {
        Site::C => tunnel_mtu(40),
        Site::A | Site::B => tunnel_mtu(20),
    }
}

/// A way between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Way {
    from: Site,
    to: Site,
    family: Family,
}

impl Way {
    fn ends(self) -> (Address, Address) {
        let host = |site: Site| match self.family {
            Family::V4 => site.host_v4(),
            Family::V6 => site.host_v6(),
        };
        (host(self.from), host(self.to))
    }

    /// Gateways on the way: through the hub it is one more.
    fn hops(self) -> u8 {
        if self.from == Site::A || self.to == Site::A { 2 } else { 3 }
    }

    fn mtu(self) -> usize {
        let tunnel = |site| if site == Site::A { LINK_MTU } else { spoke_mtu(site) };
        tunnel(self.from).min(tunnel(self.to))
    }

    /// Bytes of the IP header.
    fn header(self) -> usize {
        match self.family {
            Family::V4 => 20,
            Family::V6 => 40,
        }
    }

    fn packet(self) -> PacketBuilder {
        let (source, destination) = self.ends();
        PacketBuilder::new(source, destination).hop_limit(HOP_LIMIT)
    }
}

/// Numbers that look random and are the same in every run with one seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        // Steps of a linear congruence (Knuth's MMIX), the high half of each.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// A round's packets in the order in which they are sent.
pub(crate) struct Traffic {
    numbers: Numbers,
    parcels: Vec<Parcel>,
    /// Numbers the payloads, so that no two packets are equal.
    serial: u32,
}

impl Traffic {
    /// Builds the packets of a round: all sites speak with each other in both families.
    pub(crate) fn build(round: u64) -> Vec<Parcel> {
        let numbers = Numbers(round.wrapping_add(0x9e37_79b9));
        let mut traffic = Traffic { numbers, parcels: Vec::new(), serial: 0 };
        for from in Site::ALL {
            for to in Site::ALL.into_iter().filter(|to| *to != from) {
                for family in [Family::V4, Family::V6] {
                    let way = Way { from, to, family };
                    traffic.flows(way);
                    traffic.odd_packets(way);
                    traffic.fragments(way);
                    traffic.large(way);
                }
            }
        }
        traffic.policies();
        traffic.forgeries();
        traffic.parcels
    }

    fn payload(&mut self, length: usize) -> Vec<u8> {
        self.serial += 1;
        let mut payload = MARKER.to_vec();
        payload.extend(format!("{:08} ", self.serial).bytes());
        let filler = payload.clone();
        payload.extend(filler.iter().cycle().take(length));
        payload.truncate(length);
        payload
    }

    fn push(&mut self, what: &'static str, from: Site, packet: Vec<u8>, fate: Fate) {
        self.parcels.push(Parcel { what, from, packet, fate });
    }

    /// A packet that arrives as it was sent but for its hop limit.
    fn arrives(&mut self, what: &'static str, way: Way, packet: PacketBuilder) {
        let expected = packet.clone().hop_limit(HOP_LIMIT - way.hops()).ip();
        self.push(what, way.from, packet.ip(), Fate::Arrives(way.to, expected));
    }

    /// TCP, UDP and ICMP of 64 to 1400 bytes.
    fn flows(&mut self, way: Way) {
        for flow in 0..2u16 {
            let port = 20_000 + self.numbers.below(20_000) as u16;
            let handshake = [("SYN", tcp_flags::SYN), ("SYN ACK", tcp_flags::SYN | tcp_flags::ACK)];
            let (what, flags) = handshake[usize::from(flow)];
            let largest = (way.mtu() - way.header() - 20) as u16;
            let offered = (LINK_MTU - way.header() - 20) as u16;
            for mss in [offered, 536] {
                let syn = |mss| way.packet().tcp_with(port, 443, flags, Some(mss));
                let expected = syn(mss.min(largest)).hop_limit(HOP_LIMIT - way.hops()).ip();
                let what = if mss == offered { "TCP SYN with an MSS to clamp" } else { what };
                self.push(what, way.from, syn(mss).ip(), Fate::Arrives(way.to, expected));
            }
            for _ in 0..4 {
                let size = 64 + self.numbers.below(1400 - 64 + 1);
                let payload = self.payload(size - way.header() - 20);
                self.arrives("TCP", way, way.packet().tcp(port, 443).payload(&payload));
            }
        }
        for _ in 0..2 {
            let port = 20_000 + self.numbers.below(20_000) as u16;
            for _ in 0..5 {
                let size = 64 + self.numbers.below(1400 - 64 + 1);
                let payload = self.payload(size - way.header() - 8);
                self.arrives("UDP", way, way.packet().udp(port, 5000).payload(&payload));
            }
        }
        let (request, reply) = match way.family {
            Family::V4 => (8, 0),
            Family::V6 => (128, 129),
        };
        for kind in [request, reply] {
            let payload = self.payload(56);
            let echo = way.packet().icmp(kind, 0, [0, 7, 0, kind]).payload(&payload);
            self.arrives("ICMP echo", way, echo);
        }
    }

    /// Adds unusual packets that are forwarded all the same.
    fn odd_packets(&mut self, way: Way) {
        let payload = self.payload(100);
        let serial = self.serial.to_be_bytes();
        let udp = |port| way.packet().udp(port, 5000);
        self.arrives("UDP without payload", way, udp(20_001).identification(self.serial));
        let raw = way.packet().protocol(253).identification(self.serial);
        self.arrives("a protocol without ports", way, raw.clone().payload(&serial));
        self.arrives("an IP packet without payload", way, raw);
        let wrong = udp(20_002).payload(&payload).bad_upper_checksum();
        self.arrives("UDP with a wrong checksum", way, wrong);
        let wrong = way.packet().tcp(20_003, 443).payload(&payload).bad_upper_checksum();
        self.arrives("TCP with a wrong checksum", way, wrong);
        let marked = udp(20_004).payload(&payload).traffic_class(0xb8 | 1);
        self.arrives("UDP with DSCP and ECN", way, marked);
        match way.family {
            Family::V4 => {
                for (what, options) in [
                    ("IPv4 with router alert", &[0x94, 4, 0, 0][..]),
                    ("IPv4 with record route", &[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0][..]),
                    ("IPv4 with 40 bytes of options", &[1; 40][..]),
                ] {
                    self.arrives(what, way, udp(20_005).payload(&payload).options(options));
                }
            }
            Family::V6 => {
                let padded = |number| udp(20_006).payload(&payload).extension(number, &[1, 4]);
                let hop_by_hop = padded(protocol::HOP_BY_HOP);
                let both = hop_by_hop.clone().extension(protocol::DESTINATION, &[1, 4]);
                self.arrives("IPv6 with hop-by-hop options", way, hop_by_hop);
                self.arrives("IPv6 with destination options", way, padded(protocol::DESTINATION));
                self.arrives("IPv6 with two extension headers", way, both);
            }
        }
    }

    /// A datagram that comes as three fragments, and goes on as three.
    fn fragments(&mut self, way: Way) {
        let id = 7_000 + self.serial;
        for (offset, more) in [(0, true), (76, true), (151, false)] {
            let payload = self.payload(600);
            let part = way.packet().udp(20_007, 5000).identification(id).payload(&payload);
            self.arrives("a fragment", way, part.fragment(offset, more));
        }
    }

    /// Packets at the edge of what passes, and beyond.
    fn large(&mut self, way: Way) {
        let udp = |payload: &[u8]| way.packet().udp(20_008, 5000).payload(payload);
        let mut payload = self.payload(way.mtu() - way.header() - 8);
        let whole = udp(&payload).dont_fragment().identification(self.serial);
        self.arrives("the largest packet that passes whole", way, whole);

        payload.push(0);
        let too_big = udp(&payload).dont_fragment().identification(self.serial).ip();
        // The hub is in the way of what is too big only for its other tunnel.
        let by = match (way.from, way.to) {
            (Site::B, Site::C) => Site::A,
            (from, _) => from,
        };
        let fate = Fate::TooBig { by, mtu: self.mtu_told(way, by) };
        self.push("a packet too big to pass whole", way.from, too_big, fate);

        if way.family == Family::V4 {
            let payload = self.payload(LINK_MTU - way.header() - 8);
            let packet = udp(&payload).identification(self.serial);
            let expected = packet.clone().hop_limit(HOP_LIMIT - way.hops()).ip();
            let fate = Fate::InPieces(way.to, expected);
            self.push("a packet to be fragmented", way.from, packet.ip(), fate);
        }
        let payload = self.payload(64);
        let tired = udp(&payload).hop_limit(1).ip();
        let fate = Fate::TimeExceeded { by: way.from };
        self.push("a packet with hop limit 1", way.from, tired, fate);
    }

    /// The MTU that a gateway knows of its next tunnel.
    fn mtu_told(&self, way: Way, by: Site) -> u32 {
        let tunnel = if by == Site::A { way.to } else { by };
        spoke_mtu(tunnel) as u32
    }

    /// Adds packets that the hub's policies discard, bypass, or do not match.
    fn policies(&mut self) {
        let way = Way { from: Site::A, to: Site::B, family: Family::V4 };
        let drop = |reason| Fate::Dropped { by: Site::A, reason };
        let telnet = way.packet().tcp_with(20_009, 23, tcp_flags::SYN, Some(1460)).ip();
        self.push("telnet", Site::A, telnet, drop(DropReason::PolicyDiscard));
        let payload = self.payload(80);
        let part = way.packet().tcp(20_009, 23).payload(&payload).fragment(40, false).ip();
        // It might be telnet: its ports are in a first fragment, which never comes.
        self.push("a later fragment of TCP", Site::A, part, drop(DropReason::FragmentTimeout));
        let outside = |address: &str| {
            let ip: std::net::IpAddr = address.parse().expect("an address");
            PacketBuilder::new(Site::A.host_v4(), ip.into()).hop_limit(HOP_LIMIT)
        };
        let web = outside("198.51.100.80").tcp(20_010, 443).ip();
        self.push("web traffic to the world", Site::A, web, drop(DropReason::NoMatch));
        for id in 0..4u16 {
            let question = outside("9.9.9.9").udp(20_011 + id, 53).payload(b"a question in clear");
            let expected = question.clone().hop_limit(HOP_LIMIT - 1).ip();
            self.push("DNS", Site::A, question.ip(), Fate::Bypassed(expected));
        }
    }

    /// B says that it is C.
    fn forgeries(&mut self) {
        for (source, destination) in
            [(Site::C.host_v4(), Site::A.host_v4()), (Site::C.host_v6(), Site::A.host_v6())]
        {
            for port in 0..10 {
                let payload = self.payload(120);
                let forged = PacketBuilder::new(source, destination).hop_limit(HOP_LIMIT);
                let forged = forged.udp(30_000 + port, 5000).payload(&payload).ip();
                let reason = DropReason::SelectorMismatch;
                self.push("forged", Site::B, forged, Fate::Dropped { by: Site::A, reason });
            }
        }
    }
}
