//! Random packets at the edges of a world's rules, in clear from each side and sealed by each peer.

use std::collections::HashMap;

use dataplane::{NetdevId, PortId, Side};
use ipsec::{Encapsulation, Mode, SequenceNumbers};
use model::esp::{self, Text};
use model::headers;
use model::icmp::internet_checksum;
use model::world::{Keys, Peer, World, set_id};
use policy::{Action, AddressRange, Policy, UpperSelector};
use proptest::sample::Index;
use wire::build::PacketBuilder;
use wire::{Address, Family};

use crate::seeds::{
    CarriageSeed, ChecksumSeed, Defect, End, Entry, Extra, InnerSeed, LinkSeed, MESSAGES,
    NumberSeed, PORTS, PartSeed, Place, SPECIAL, SealDefect, Sealing, Seed, Size,
};
use crate::worlds::{HOST, INTERESTING, address, own_mac};

/// A frame as a netdev receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    pub(crate) netdev: NetdevId,
    pub(crate) bytes: Vec<u8>,
}

/// Builds packets one after the other: the numbers of the peers' SAs go on.
pub(crate) struct Builder<'w> {
    world: &'w World,
    /// By SPI: the number that was last used.
    last: HashMap<u32, u64>,
    /// Fragments that were built.
    fragments: Vec<Seed>,
    /// The other fragment of an outer packet that was cut in two.
    rest: Option<Vec<u8>>,
}

/// Order in which the fragments of an outer packet arrive.
enum Order {
    Forward,
    Reverse,
}

impl<'w> Builder<'w> {
    pub(crate) fn new(world: &'w World) -> Self {
        Builder { world, last: HashMap::new(), fragments: vec![], rest: None }
    }

    pub(crate) fn build(&mut self, seed: &Seed) -> Arrival {
        let seed = &self.of_earlier_datagram(seed);
        if !matches!(seed.inner.part, PartSeed::Whole) {
            self.fragments.push(seed.clone());
        }
        match seed.entry {
            Entry::Clear(port) => {
                let inwards = self.world.port(port).side == Side::Unprotected;
                let policies: Vec<&Policy> = self.world.policies.iter().collect();
                let (bytes, _) = packet(self.world, &seed.inner, &policies, inwards, None);
                frame(self.world, port, seed.link, bytes)
            }
            Entry::Between(peer) => {
                let place = peer.index(self.world.peers.len());
                let (policies, tunnel) = (self.policies_of(place, seed), self.tunnel(place));
                let (bytes, _) = packet(self.world, &seed.inner, &policies, false, Some(tunnel));
                frame(self.world, HOST, seed.link, bytes)
            }
            Entry::Sealed(port, peer, sa) => {
                let place = peer.index(self.world.peers.len());
                let keys = sa.get(&self.world.peers[place].inbound);
                let bytes = self.sealed(place, keys, seed);
                frame(self.world, port, seed.link, bytes)
            }
        }
    }

    /// The seed of another part of a datagram that a part was built of, if it is to be one.
    fn of_earlier_datagram(&self, seed: &Seed) -> Seed {
        let Some((index, part)) = seed.again.filter(|_| !self.fragments.is_empty()) else {
            return seed.clone();
        };
        // One of the last: it is not forgotten yet.
        let last = self.fragments.len().saturating_sub(2);
        let earlier = index.get(&self.fragments[last..]);
        let InnerSeed { size, hop_limit, dont_fragment, .. } = seed.inner;
        // A small first one does not lie over those that came before it.
        let size = if matches!(part, PartSeed::First) { Size::Payload(4) } else { size };
        let inner = InnerSeed { part, size, hop_limit, dont_fragment, ..earlier.inner.clone() };
        Seed { entry: earlier.entry, inner, ..seed.clone() }
    }

    fn sealed(&mut self, place: usize, keys: &Keys, seed: &Seed) -> Vec<u8> {
        let policies = self.policies_of(place, seed);
        let peer = &self.world.peers[place];
        let ends = self.ends(peer, &seed.sealing);
        // In transport mode the packet is one between the two ends.
        let own = (peer.carriage.mode == Mode::Transport).then_some(ends);
        let (inner, family) = packet(self.world, &seed.inner, &policies, true, own);
        let own_header = own.and_then(|_| headers::ip(&inner).ok());
        let (carried, next_header) = match &own_header {
            Some(packet) => (&packet.bytes[packet.upper..], packet.flow.protocol),
            None if family == Family::V4 => (&inner[..], 4),
            None => (&inner[..], 41),
        };
        let number = self.number(keys, seed.sealing.number);
        let defect = match seed.sealing.defect {
            // Nobody does that (RFC 4303 §2.7): only UDP says where it ends.
            SealDefect::Confidential(_) if own_header.is_some() && next_header != 17 => {
                SealDefect::Nothing
            }
            defect => defect,
        };
        let esp = sealed(keys, number, carried, next_header, defect);
        let (bytes, protocol) = carried_as(&peer.carriage, seed.sealing.carriage, ends, esp);
        if let Some(packet) = &own_header {
            let header = &packet.bytes[..packet.upper];
            return behind(header, packet.names_upper, protocol, &bytes);
        }
        let outer = PacketBuilder::new(ends.0, ends.1)
            .protocol(protocol)
            .traffic_class(seed.sealing.outer_class)
            .identification(identification(&seed.inner) & 1)
            .payload(&bytes);
        // Not covered: a fragment in a packet that no frame holds. The worker of the outer datagram
        // opens that, and remembers the fragment; the oracle does not know which worker it is.
        let is_large_fragment = !matches!(seed.inner.part, PartSeed::Whole) && inner.len() > 1500;
        match seed.sealing.outer_part {
            _ if is_large_fragment => outer.ip(),
            PartSeed::Whole => outer.ip(),
            PartSeed::First => {
                let order = match seed.sealing.outer_class {
                    1 => Order::Reverse,
                    _ => Order::Forward,
                };
                self.cut(&outer, &bytes, order)
            }
            PartSeed::Tiny => outer.payload(&bytes[..bytes.len() & !7]).fragment(0, true).ip(),
            PartSeed::Later(offset, more) => {
                self.rest.take().unwrap_or_else(|| outer.fragment(offset, more).ip())
            }
        }
    }

    /// Cuts an outer packet in two, and keeps one fragment for later.
    fn cut(&mut self, outer: &PacketBuilder, bytes: &[u8], order: Order) -> Vec<u8> {
        let (first, rest) = bytes.split_at((bytes.len() / 2).next_multiple_of(8).min(bytes.len()));
        let offset = (first.len() / 8) as u16;
        let first = outer.clone().payload(&first[..first.len() & !7]).fragment(0, true).ip();
        let rest = outer.clone().payload(rest).fragment(offset, false).ip();
        let (now, later) = match order {
            Order::Forward => (first, rest),
            Order::Reverse => (rest, first),
        };
        self.rest = Some(later);
        now
    }

    /// The policies that a packet to or from a peer may be aimed at.
    fn policies_of(&self, place: usize, seed: &Seed) -> Vec<&'w Policy> {
        let set = Action::Protect(set_id(place));
        let own = |policy: &&Policy| seed.inner.any_policy || policy.action == set;
        let policies: Vec<&Policy> = self.world.policies.iter().filter(own).collect();
        match policies.is_empty() {
            true => self.world.policies.iter().collect(),
            false => policies,
        }
    }

    /// From our end of a peer's tunnel to the other.
    fn tunnel(&self, place: usize) -> (Address, Address) {
        let tunnel = self.world.peers[place].tunnel();
        (tunnel.local.into(), tunnel.remote.into())
    }

    /// The outer addresses of what a peer seals.
    fn ends(&self, peer: &Peer, seed: &Sealing) -> (Address, Address) {
        let tunnel = peer.tunnel();
        let local = match seed.defect {
            SealDefect::OtherLocal if tunnel.local.is_ipv4() => address("10.1.0.1"),
            SealDefect::OtherLocal => address("2001:db8:1::1"),
            _ => tunnel.local.into(),
        };
        let remote = match seed.stranger {
            true => Address { value: Address::from(tunnel.remote).value + 1, ..local },
            false => tunnel.remote.into(),
        };
        (remote, local)
    }

    fn number(&mut self, keys: &Keys, seed: NumberSeed) -> u64 {
        let last = self.last.entry(keys.spi).or_default();
        let number = match seed {
            NumberSeed::Next => *last + 1,
            NumberSeed::Jump(by) => *last + by,
            NumberSeed::Earlier(index) => {
                // Close behind as a rule, so that both edges of the window are met.
                let back = [0, 1, 30, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097];
                last.saturating_sub(*index.get(&back)).max(1)
            }
            NumberSeed::Zero => 0,
            NumberSeed::Edge => (*last).max((1 << 32) - 3),
        };
        let number = match keys.numbers {
            SequenceNumbers::Short => number.min(u32::MAX.into()),
            SequenceNumbers::Extended => number,
        };
        *last = number.max(*last);
        number
    }
}

/// ESP around what is carried, damaged.
fn sealed(
    keys: &Keys,
    number: u64,
    carried: &[u8],
    next_header: u8,
    defect: SealDefect,
) -> Vec<u8> {
    let carried = match defect {
        SealDefect::Confidential(bytes) => [carried, &vec![0; bytes]].concat(),
        _ => carried.to_vec(),
    };
    let mut text = Text::around(&carried, next_header, keys.suite);
    match defect {
        SealDefect::Padding => {
            let block = esp::layout(keys.suite).block as u8;
            text.payload.extend(1..=block);
            *text.payload.iter_mut().rev().nth(1).expect("a block") ^= 8;
            text.pad_length = block;
        }
        SealDefect::PadTooLong => text.pad_length = 255,
        SealDefect::NextHeader(number) => text.next_header = number,
        _ => {}
    }
    let mut bytes = esp::seal(keys, number, &text);
    match defect {
        SealDefect::Flip(at) => {
            let at = at.index(bytes.len() - 8) + 8;
            bytes[at] ^= 0x10;
        }
        SealDefect::Spi(spi) => bytes[..4].copy_from_slice(&spi.to_be_bytes()),
        SealDefect::Cut(count) => bytes.truncate(bytes.len().saturating_sub(count)),
        _ => {}
    }
    bytes
}

/// Returns the bytes behind the IP header of a sealed packet, and its protocol.
fn carried_as(
    carriage: &Encapsulation,
    seed: CarriageSeed,
    (source, destination): (Address, Address),
    esp: Vec<u8>,
) -> (Vec<u8>, u8) {
    let in_udp = match seed {
        CarriageSeed::Swapped => carriage.udp.is_none(),
        CarriageSeed::Datagram(_) => true,
        _ => carriage.udp.is_some(),
    };
    if !in_udp {
        return (esp, 50);
    }
    let mut ports = (carriage.udp.map_or(4500, |ports| ports.remote), 4500);
    match seed {
        CarriageSeed::From(port) => ports.0 = port,
        CarriageSeed::To(port) => ports.1 = port,
        _ => {}
    }
    let payload = match seed {
        CarriageSeed::Datagram(bytes) => bytes,
        _ => &esp[..],
    };
    let datagram = PacketBuilder::new(source, destination).udp(ports.0, ports.1).payload(payload);
    let header = if source.family == Family::V4 { 20 } else { 40 };
    let mut datagram = datagram.ip().split_off(header);
    if let CarriageSeed::Length(by) = seed {
        let length = (datagram.len() as u16).saturating_add_signed(by);
        datagram[4..6].copy_from_slice(&length.to_be_bytes());
    }
    (datagram, 17)
}

/// A packet's own IP header with something else behind it.
fn behind(header: &[u8], names_upper: usize, protocol: u8, upper: &[u8]) -> Vec<u8> {
    let mut bytes = [header, upper].concat();
    bytes[names_upper] = protocol;
    let total = bytes.len() as u16;
    if bytes[0] >> 4 == 4 {
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        write_checksum(&mut bytes, header.len());
    } else {
        bytes[4..6].copy_from_slice(&(total - 40).to_be_bytes());
    }
    bytes
}

/// Makes an IPv4 header's checksum right.
fn write_checksum(bytes: &mut [u8], header: usize) {
    bytes[10..12].fill(0);
    let checksum = internet_checksum(&bytes[..header]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// An IP packet that one of the policies speaks of, or nearly; from and to these addresses if they
/// are given.
fn packet(
    world: &World,
    seed: &InnerSeed,
    policies: &[&Policy],
    inwards: bool,
    ends: Option<(Address, Address)>,
) -> (Vec<u8>, Family) {
    let policy = seed.policy.get(policies);
    let selector = &policy.selector;
    let families = [Family::V4, Family::V6]
        .map(|family| (family, selector.local.iter().any(|range| range.family == family)));
    let family = match families {
        [(v4, true), (_, false)] => v4,
        [(_, false), (v6, true)] => v6,
        _ => seed.family.get(&families).0,
    };
    let family = ends.map_or(family, |(source, _)| source.family);
    let ours = pick(world, seed.ends[0], &selector.local, family);
    let theirs = pick(world, seed.ends[1], &selector.remote, family);
    let third = pick(world, seed.ends[2], &selector.remote, family);
    let mirrored = inwards != seed.flipped;
    let picked = if mirrored { (theirs, ours) } else { (ours, theirs) };
    let (source, destination) = ends.unwrap_or(picked);
    let icmp = if family == Family::V4 { 1 } else { 58 };
    let protocol = match selector.protocol {
        Some(number) if !seed.stray_protocol => number,
        _ if seed.protocol == 1 => icmp,
        _ => seed.protocol,
    };
    let [local, remote] = numbers(seed, &selector.upper);
    let (from, to) = if mirrored { (remote, local) } else { (local, remote) };
    let base = PacketBuilder::new(source, destination)
        .hop_limit(seed.hop_limit)
        .traffic_class(seed.traffic_class)
        .identification(identification(seed));
    let base = if seed.dont_fragment { base.dont_fragment() } else { base };
    let base = with_extra(base, seed.extra, family);
    let builder = match protocol {
        6 if seed.traffic_class == 0 => base.tcp_with(from, to, 2, Some(1460)),
        6 if seed.traffic_class & 4 != 0 => base.tcp_with(from, to, 0x12, Some(1460)),
        6 => base.tcp(from, to),
        17 => base.udp(from, to),
        _ if protocol == icmp => {
            let [kind, code] = message(seed, &selector.upper);
            let other = if seed.any_policy { source } else { third };
            let quote = quote(destination, other, seed, (to, from));
            let base = base.icmp(kind, code, [0; 4]);
            return (finish(base.payload(&quote), seed, Some(quote)), family);
        }
        _ => {
            let head = [from.to_be_bytes(), to.to_be_bytes()].concat();
            let head = [head, vec![0; 8]].concat();
            return (finish(base.protocol(protocol), seed, Some(head)), family);
        }
    };
    let builder = match seed.checksum {
        ChecksumSeed::Right => builder,
        ChecksumSeed::Unfinished => builder.unfinished_upper_checksum(),
        ChecksumSeed::Wrong => builder.bad_upper_checksum(),
        ChecksumSeed::Zero => builder.no_upper_checksum(),
    };
    (finish(builder, seed, None), family)
}

/// Any, and every second time one of few: fragments are to meet again.
fn identification(seed: &InnerSeed) -> u32 {
    match seed.numbers[0].index(0x20000) as u32 {
        few @ 0x10000.. => few & 1,
        any => any,
    }
}

/// Sizes a packet, makes it a fragment, damages it. `head`: what the payload begins with.
fn finish(builder: PacketBuilder, seed: &InnerSeed, head: Option<Vec<u8>>) -> Vec<u8> {
    let builder = match seed.part {
        PartSeed::Whole => builder,
        PartSeed::First => builder.fragment(0, true),
        PartSeed::Tiny => {
            return builder.protocol(6).payload(&[0, 80, 0, 80, 0, 0, 0, 0]).fragment(0, true).ip();
        }
        // In IPv6 it says that more headers are in the first one.
        PartSeed::Later(offset, more) if matches!(seed.extra, Extra::Extension(60, _)) => {
            builder.protocol(60).fragment(offset, more)
        }
        PartSeed::Later(offset, more) => builder.fragment(offset, more),
    };
    let mut payload = head.unwrap_or_default();
    let bare = builder.clone().payload(&payload).ip();
    match seed.size {
        Size::Payload(bytes) => payload.extend((0..bytes).map(|n| n as u8)),
        Size::Total(bytes) => {
            payload.extend((bare.len()..bytes).map(|n| n as u8));
        }
    }
    if matches!(seed.part, PartSeed::First | PartSeed::Later(_, true)) {
        // All but the last carry a multiple of 8; the upper-layer headers count too.
        let header = match bare[0] >> 4 {
            4 => usize::from(bare[0] & 15) * 4,
            _ => 40,
        };
        while !(builder.clone().payload(&payload).ip().len() - header).is_multiple_of(8) {
            payload.push(0);
        }
    }
    damage(builder.payload(&payload).ip(), seed.defect)
}

fn damage(mut bytes: Vec<u8>, defect: Defect) -> Vec<u8> {
    let is_v4 = bytes[0] >> 4 == 4;
    match defect {
        Defect::Nothing => return bytes,
        Defect::Checksum if is_v4 => {
            bytes[10] ^= 0x40;
            return bytes;
        }
        Defect::Checksum => return bytes,
        Defect::Cut(count) => {
            bytes.truncate(bytes.len().saturating_sub(count));
            return bytes;
        }
        Defect::Total(by) => {
            let at = if is_v4 { 2 } else { 4 };
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let new = old.saturating_add_signed(by);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        }
        Defect::FirstByte(value) => bytes[0] = value,
    }
    if is_v4 {
        // The damage is what is to be found, not the checksum.
        let header = bytes.len().min(usize::from(bytes[0] & 15).max(5) * 4);
        write_checksum(&mut bytes, header);
    }
    bytes
}

fn with_extra(builder: PacketBuilder, extra: Extra, family: Family) -> PacketBuilder {
    match (extra, family) {
        (Extra::Options(options), Family::V4) => builder.options(options),
        (Extra::Extension(number, rest), Family::V6) => builder.extension(number, rest),
        (Extra::TwoExtensions, Family::V6) => builder.extension(60, &[]).extension(0, &[]),
        _ => builder,
    }
}

/// An address at an edge of one of the ranges, or from elsewhere.
fn pick(world: &World, end: End, ranges: &[AddressRange], family: Family) -> Address {
    let of_family: Vec<_> = ranges.iter().filter(|range| range.family == family).collect();
    let known = |texts: &[&str]| -> Address {
        let list: Vec<Address> = texts.iter().map(|text| address(text)).collect();
        let list: Vec<Address> = list.into_iter().filter(|a| a.family == family).collect();
        *end.range.get(&list)
    };
    let own = || {
        let routes = &world.routes;
        let list: Vec<Address> = routes
            .iter()
            .map(|route| route.prefix.address)
            .filter(|a| a.family == family)
            .collect();
        *end.range.get(&list)
    };
    if matches!(end.place, Place::Special) {
        return known(&SPECIAL);
    }
    if matches!(end.place, Place::Own) {
        return own();
    }
    if of_family.is_empty() || matches!(end.place, Place::Known) {
        // Within the range if any is.
        let fits = |text: &&&str| {
            let a = address(text);
            of_family.iter().any(|r| a.family == family && r.lo <= a.value && a.value <= r.hi)
        };
        let within: Vec<&str> = INTERESTING.iter().filter(fits).copied().collect();
        return if within.is_empty() { known(&INTERESTING) } else { known(&within) };
    }
    let range = end.range.get(&of_family);
    let value = match end.place {
        // Whole families begin and end with addresses that nobody has.
        Place::Lo | Place::Below if range.lo == 0 => return known(&INTERESTING),
        Place::Hi | Place::Above if range.hi == family.highest_address() => {
            return known(&INTERESTING);
        }
        Place::Lo => range.lo,
        Place::Hi => range.hi,
        Place::Below => range.lo - 1,
        _ => range.hi + 1,
    };
    Address { family, value }
}

/// Local and remote port.
fn numbers(seed: &InnerSeed, upper: &UpperSelector) -> [u16; 2] {
    let [local, remote] = upper.ports().unwrap_or_default();
    let number = |ranges: &[policy::PortRange], index: Index| match ranges {
        [] => *index.get(&PORTS),
        _ => {
            let mut edges = vec![];
            for range in ranges {
                let (below, above) = (range.lo.saturating_sub(1), range.hi.saturating_add(1));
                edges.extend([range.lo, range.hi, range.lo, range.hi, below, above]);
            }
            *index.get(&edges)
        }
    };
    [number(local, seed.numbers[0]), number(remote, seed.numbers[1])]
}

fn message(seed: &InnerSeed, upper: &UpperSelector) -> [u8; 2] {
    match upper {
        UpperSelector::Icmp(list) if !list.is_empty() && !seed.stray_protocol => {
            seed.numbers[0].get(list).lo.to_be_bytes()
        }
        _ => {
            let (kind, code) = *seed.numbers[0].get(&MESSAGES);
            [kind, code]
        }
    }
}

/// Returns the bytes that an ICMP error quotes: a packet of the one that the error goes to, cut
/// short.
fn quote(from: Address, to: Address, seed: &InnerSeed, ports: (u16, u16)) -> Vec<u8> {
    let from = match seed.flipped {
        true => Address { value: from.value ^ 1, ..from },
        false => from,
    };
    let to = Address { family: from.family, value: to.value };
    let quoted = PacketBuilder::new(from, to).udp(ports.0, ports.1).payload_of(30);
    let quoted = match seed.stray_protocol {
        true => quoted.fragment(2, false),
        false => quoted,
    };
    let mut bytes = quoted.ip();
    bytes.truncate(seed.quote_bytes.into());
    bytes
}

/// A packet in the right frame of a port.
pub(crate) fn plain_frame(world: &World, port: PortId, packet: Vec<u8>) -> Arrival {
    frame(world, port, LinkSeed::Right, packet)
}

/// A packet in what carries it on its port.
fn frame(world: &World, port: PortId, seed: LinkSeed, packet: Vec<u8>) -> Arrival {
    let info = world.port(port);
    let netdev = info.netdev;
    if port == HOST {
        return Arrival { netdev, bytes: packet };
    }
    let ethertype: u16 = match packet.first().map(|byte| byte >> 4) {
        Some(6) => 0x86dd,
        _ => 0x0800,
    };
    let mut destination = own_mac(port);
    let mut tags: Vec<u16> = info.vlan.into_iter().collect();
    let mut ethertype = ethertype;
    match seed {
        LinkSeed::Destination(address) => destination = address,
        LinkSeed::Vlan(vlan) => tags = vlan.into_iter().collect(),
        LinkSeed::PriorityTag if tags.is_empty() => tags = vec![0xe000],
        LinkSeed::Stacked => tags.push(7),
        LinkSeed::Ethertype(other) => ethertype = other,
        LinkSeed::Right | LinkSeed::Padded | LinkSeed::PriorityTag | LinkSeed::Short => {}
    }
    let mut bytes = [destination, [2, 0, 0, 0, 1, 1]].concat();
    for tag in tags {
        bytes.extend(0x8100u16.to_be_bytes());
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(packet);
    match seed {
        LinkSeed::Padded => bytes.resize(bytes.len().max(60), 0),
        LinkSeed::Short => bytes.truncate(13),
        _ => {}
    }
    Arrival { netdev, bytes }
}
