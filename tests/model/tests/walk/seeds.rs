//! Random packets before the world is known that they are sent in.

use dataplane::PortId;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::worlds::{DMZ, HOST, LAN, WAN, WAN_TAGGED};

/// A packet before the world is known.
#[derive(Clone, Debug)]
pub(crate) struct Seed {
    pub(crate) entry: Entry,
    pub(crate) inner: InnerSeed,
    pub(crate) link: LinkSeed,
    pub(crate) sealing: Sealing,
    /// A part of the datagram that a fragment before it is of, if there was one.
    pub(crate) again: Option<(Index, PartSeed)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    Clear(PortId),
    /// From this machine, between the two ends of a peer's tunnel.
    Between(Index),
    /// Under an SA of a peer, by a port.
    Sealed(PortId, Index, Index),
}

#[derive(Clone, Debug)]
pub(crate) struct InnerSeed {
    pub(crate) policy: Index,
    /// Set if the policy aimed at may be another peer's than the one who seals.
    pub(crate) any_policy: bool,
    pub(crate) flipped: bool,
    pub(crate) ends: [End; 3],
    pub(crate) family: Index,
    pub(crate) protocol: u8,
    pub(crate) stray_protocol: bool,
    pub(crate) numbers: [Index; 2],
    pub(crate) part: PartSeed,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) size: Size,
    pub(crate) dont_fragment: bool,
    pub(crate) extra: Extra,
    pub(crate) defect: Defect,
    pub(crate) quote_bytes: u16,
    pub(crate) checksum: ChecksumSeed,
}

/// Contents of the checksum field of TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChecksumSeed {
    Right,
    Unfinished,
    Wrong,
    Zero,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) range: Index,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Lo,
    Hi,
    Below,
    Above,
    Known,
    Own,
    Special,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PartSeed {
    Whole,
    First,
    /// A first one of TCP that is too small.
    Tiny,
    /// Offset in units of 8 bytes, and whether more follow.
    Later(u16, bool),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Payload(usize),
    Total(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Extra {
    Nothing,
    Options(&'static [u8]),
    Extension(u8, &'static [u8]),
    TwoExtensions,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Defect {
    Nothing,
    Checksum,
    Cut(usize),
    Total(i16),
    FirstByte(u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkSeed {
    Right,
    Padded,
    Destination([u8; 6]),
    Vlan(Option<u16>),
    PriorityTag,
    Stacked,
    Ethertype(u16),
    Short,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealing {
    pub(crate) number: NumberSeed,
    pub(crate) defect: SealDefect,
    pub(crate) outer_class: u8,
    pub(crate) outer_part: PartSeed,
    pub(crate) stranger: bool,
    pub(crate) carriage: CarriageSeed,
}

/// Carriage of a sealed packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CarriageSeed {
    /// The carriage of its SA.
    Right,
    /// In UDP where it should not be, alone where it should be in UDP.
    Swapped,
    /// If in UDP, from this port.
    From(u16),
    /// If in UDP, to this port.
    To(u16),
    /// If in UDP, with a length that is so much too large.
    Length(i16),
    /// Not at all: a datagram with these bytes, where ESP in UDP is received.
    Datagram(&'static [u8]),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum NumberSeed {
    Next,
    Jump(u64),
    Earlier(Index),
    Zero,
    /// Just below 2³².
    Edge,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SealDefect {
    Nothing,
    Flip(Index),
    Padding,
    PadTooLong,
    NextHeader(u8),
    Spi(u32),
    Cut(usize),
    OtherLocal,
    /// Not a defect: traffic flow confidentiality padding.
    Confidential(usize),
}

pub(crate) const SPECIAL: [&str; 15] = [
    "0.0.0.0",
    "0.255.255.255",
    "127.0.0.1",
    "169.254.1.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.0",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:10.1.0.1",
    "fe80::1",
    "febf:ffff::1",
    "ff02::1",
    "fec0::1",
];

pub(crate) const PROTOCOLS: [u8; 12] = [6, 6, 17, 17, 17, 1, 1, 47, 50, 132, 33, 253];

/// Type and code of ICMP messages: echo, errors, discovery.
pub(crate) const MESSAGES: [(u8, u8); 11] =
    [(8, 0), (0, 0), (3, 4), (3, 1), (11, 0), (5, 0), (128, 0), (129, 0), (1, 0), (2, 0), (135, 0)];

/// IPv4 options: padding, record route, a copied one, source routes, lengths that lie, and one
/// behind the end of the list.
pub(crate) const OPTIONS: &[&[u8]] = &[
    &[1, 1, 1, 1],
    &[7, 7, 4, 0, 0, 0, 0],
    &[0x94, 4, 0, 0],
    &[131, 3, 4],
    &[137, 3, 4],
    &[1, 7, 9],
    &[7, 1, 0, 0],
    &[0, 131, 3, 4],
];

/// IPv6 extension headers and how they go on: a routing header of no use and one in use.
pub(crate) const EXTENSIONS: &[(u8, &[u8])] =
    &[(60, &[0]), (43, &[0, 0]), (43, &[0, 1]), (0, &[]), (135, &[])];

/// Keepalives and what is nearly one, IKE, SPIs that nobody has, and too little to tell.
pub(crate) const DATAGRAMS: &[&[u8]] = &[
    &[0xff],
    &[0xff],
    &[0xff, 0xff],
    &[0xfe],
    &[0; 20],
    &[0; 20],
    &[0; 4],
    &[0; 3],
    &[],
    &[1, 2, 3, 4],
    &[1, 2, 3, 4, 0, 0, 0, 1],
    &[0, 0, 0, 9, 0, 0, 0, 1],
];

pub(crate) const PORTS: [u16; 10] = [53, 80, 443, 444, 500, 4500, 22, 1023, 1024, 65_535];

/// A packet.
pub(crate) fn a_seed() -> impl Strategy<Value = Seed> {
    let entry = prop_oneof![
        8 => select(&[LAN, LAN, DMZ, HOST][..]).prop_map(Entry::Clear),
        4 => select(&[WAN, WAN, WAN_TAGGED][..]).prop_map(Entry::Clear),
        2 => any::<Index>().prop_map(Entry::Between),
        8 => (select(&[WAN, WAN, WAN_TAGGED][..]), any::<Index>(), any::<Index>())
            .prop_map(|(port, peer, sa)| Entry::Sealed(port, peer, sa)),
    ];
    let part = prop_oneof![
        14 => Just(PartSeed::First), 1 => Just(PartSeed::Tiny),
        8 => (select(&[1u16, 3, 5, 20, 100, 200][..]), prop::bool::weighted(0.7))
            .prop_map(|(offset, more)| PartSeed::Later(offset, more)),
    ];
    let again = prop::option::weighted(0.5, (any::<Index>(), part));
    (entry, an_inner(), a_link(), a_sealing(), again).prop_map(
        |(entry, inner, link, sealing, again)| Seed { entry, inner, link, sealing, again },
    )
}

fn an_inner() -> impl Strategy<Value = InnerSeed> {
    let place = prop_oneof![
        10 => Just(Place::Lo), 8 => Just(Place::Hi), 1 => Just(Place::Below),
        1 => Just(Place::Above), 8 => Just(Place::Known), 2 => Just(Place::Own),
        1 => Just(Place::Special),
    ];
    let end = (any::<Index>(), place).prop_map(|(range, place)| End { range, place });
    let ends = [end.clone(), end.clone(), end];
    let part = prop_oneof![
        10 => Just(PartSeed::Whole), 1 => Just(PartSeed::First),
        2 => (select(&[1u16, 100, 8188, 8189, 8191][..]), any::<bool>())
            .prop_map(|(offset, more)| PartSeed::Later(offset, more)),
    ];
    let edges = &[600usize, 700, 1280, 1299, 1400, 1500];
    let total = (select(&edges[..]), select(&[0usize, 54, 56, 58, 74, 76, 78][..]), 0..3usize)
        .prop_map(|(mtu, overhead, delta)| Size::Total(mtu - overhead + delta - 1));
    let size = prop_oneof![
        6 => select(&[0usize, 1, 4, 8, 20, 100][..]).prop_map(Size::Payload),
        4 => total,
        1 => Just(Size::Total(1900)),
    ];
    let extra = prop_oneof![
        12 => Just(Extra::Nothing),
        1 => select(OPTIONS)
            .prop_map(Extra::Options),
        1 => select(EXTENSIONS)
            .prop_map(|(number, rest)| Extra::Extension(number, rest)),
        1 => Just(Extra::TwoExtensions),
    ];
    let defect = prop_oneof![
        30 => Just(Defect::Nothing), 1 => Just(Defect::Checksum),
        1 => select(&[1usize, 2, 9, 30, 60][..]).prop_map(Defect::Cut),
        1 => select(&[1i16, -1, 8, -8, -30, 999][..]).prop_map(Defect::Total),
        1 => select(&[0x44u8, 0x4f, 0x55, 0x05, 0x46][..]).prop_map(Defect::FirstByte),
    ];
    let hop_limit = select(&[64u8, 64, 64, 64, 64, 64, 2, 2, 255, 255, 1, 1, 0][..]);
    let class = select(&[0u8, 0, 1, 2, 3, 0xb8, 0xff][..]);
    let protocol = (select(&PROTOCOLS[..]), prop::bool::weighted(0.1));
    let aim = (any::<Index>(), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let checksum = prop_oneof![
        10 => Just(ChecksumSeed::Right), 4 => Just(ChecksumSeed::Unfinished),
        1 => Just(ChecksumSeed::Wrong), 1 => Just(ChecksumSeed::Zero),
    ];
    let quote = select(&[20u16, 27, 28, 47, 48, 60, 500][..]);
    (
        (aim, ends, any::<Index>(), protocol, any::<[Index; 2]>()),
        (part, hop_limit, class, size, any::<bool>(), extra, defect, quote, checksum),
    )
        .prop_map(|(a, b)| {
            let ((policy, any_policy, flipped), ends, family, protocol, numbers) = a;
            let (
                part,
                hop_limit,
                traffic_class,
                size,
                dont_fragment,
                extra,
                defect,
                quote,
                checksum,
            ) = b;
            let (protocol, stray_protocol) = protocol;
            InnerSeed {
                policy,
                any_policy,
                flipped,
                ends,
                family,
                protocol,
                stray_protocol,
                numbers,
                part,
                hop_limit,
                traffic_class,
                size,
                dont_fragment,
                extra,
                defect,
                quote_bytes: quote,
                checksum,
            }
        })
}

fn a_link() -> impl Strategy<Value = LinkSeed> {
    let destination = select(
        &[[2, 0, 0, 0, 0, 0x77], [0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]][..],
    );
    prop_oneof![
        30 => Just(LinkSeed::Right), 10 => Just(LinkSeed::Padded),
        2 => destination.prop_map(LinkSeed::Destination),
        1 => select(&[Some(99), Some(12), Some(20), None][..]).prop_map(LinkSeed::Vlan),
        1 => Just(LinkSeed::PriorityTag), 1 => Just(LinkSeed::Stacked),
        1 => select(&[0x0806u16, 0x88cc, 0x8847][..]).prop_map(LinkSeed::Ethertype),
        1 => Just(LinkSeed::Short),
    ]
}

fn a_sealing() -> impl Strategy<Value = Sealing> {
    let number = prop_oneof![
        20 => Just(NumberSeed::Next), 4 => any::<Index>().prop_map(NumberSeed::Earlier),
        3 => select(&[1u64, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097, 1 << 20][..])
            .prop_map(NumberSeed::Jump),
        1 => Just(NumberSeed::Zero), 1 => Just(NumberSeed::Edge),
    ];
    let defect = prop_oneof![
        24 => Just(SealDefect::Nothing), 1 => any::<Index>().prop_map(SealDefect::Flip),
        1 => Just(SealDefect::Padding), 1 => Just(SealDefect::PadTooLong),
        2 => select(&[59u8, 4, 41, 6, 99][..]).prop_map(SealDefect::NextHeader),
        1 => select(&[0u32, 255, 0x1000, u32::MAX][..]).prop_map(SealDefect::Spi),
        1 => select(&[1usize, 4, 20, 30, 2000][..]).prop_map(SealDefect::Cut),
        1 => Just(SealDefect::OtherLocal),
        2 => select(&[1usize, 4, 100][..]).prop_map(SealDefect::Confidential),
    ];
    let part = prop_oneof![
        30 => Just(PartSeed::Whole), 2 => Just(PartSeed::First),
        2 => Just(PartSeed::Later(4, false)),
    ];
    let carriage = prop_oneof![
        20 => Just(CarriageSeed::Right),
        2 => Just(CarriageSeed::Swapped),
        3 => select(&[1u16, 4500, 61_234, 65_535][..]).prop_map(CarriageSeed::From),
        1 => select(&[0u16, 500, 4501][..]).prop_map(CarriageSeed::To),
        1 => select(&[-200i16, -8, -1, 1, 8][..]).prop_map(CarriageSeed::Length),
        3 => select(DATAGRAMS).prop_map(CarriageSeed::Datagram),
    ];
    let class = select(&[0u8, 0, 1, 2, 3, 0xb9][..]);
    (number, defect, class, part, prop::bool::weighted(0.1), carriage).prop_map(
        |(number, defect, outer_class, outer_part, stranger, carriage)| Sealing {
            number,
            defect,
            outer_class,
            outer_part,
            stranger,
            carriage,
        },
    )
}

impl Seed {
    /// Numbers without leaps of 2³²: all packets of a batch have theirs inferred from where the
    /// window stood before it.
    pub(crate) fn without_leaps(mut self) -> Seed {
        if matches!(self.sealing.number, NumberSeed::Edge) {
            self.sealing.number = NumberSeed::Next;
        }
        self
    }

    /// A packet like most: without options, fragments or defects, with hops left to go.
    pub(crate) fn common(mut self) -> Seed {
        let (part, extra, defect) = (PartSeed::Whole, Extra::Nothing, Defect::Nothing);
        self.inner = InnerSeed { part, extra, defect, hop_limit: 64, ..self.inner };
        self.again = None;
        self.link = LinkSeed::Right;
        let (defect, carriage) = (SealDefect::Nothing, CarriageSeed::Right);
        let outer_part = PartSeed::Whole;
        self.sealing = Sealing { defect, carriage, outer_part, stranger: false, ..self.sealing };
        self
    }

    /// No fragment inside ESP.
    pub(crate) fn without_sealed_fragments(mut self) -> Seed {
        if matches!(self.entry, Entry::Sealed(..)) {
            self.inner.part = PartSeed::Whole;
        }
        self
    }

    /// No ESP that the network cut.
    pub(crate) fn without_fragmented_esp(mut self) -> Seed {
        self.sealing.outer_part = PartSeed::Whole;
        self
    }

    /// Every number once, in order.
    pub(crate) fn steady(mut self) -> Seed {
        if !matches!(self.sealing.number, NumberSeed::Zero) {
            self.sealing.number = NumberSeed::Next;
        }
        self
    }
}
