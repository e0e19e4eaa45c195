//! SAs in both forms: as the card is given them, and as the gateway has them.

use std::sync::Arc;

use emulated_card::{EmulatedCard, Opened, Sent};
use ipsec::{
    DontFragment, Dscp, Encapsulation, InboundSa, KeyMaterial, Mode, OutboundSa, ReplayWindow,
    SaId, SequenceCounter, SequenceNumbers, Spi, Suite, Tunnel, UdpPorts,
};
use offload::{
    Capabilities, Card as _, CardEvent, CardSa, Carrier, Carries, Ends, FlowConfidentiality,
    Handle, Incarnation, Item, Numbers, OuterDontFragment, OuterDscp, OuterEcn, OuterFields,
    SaDirection, SaKey, SaLimits, SaMode, Service, Tag, UdpEnds,
};
use policy::SaSetId;
use wire::Family;
use wire::build::PacketBuilder;

pub(crate) const SPI: u32 = 0x0102_0304;
pub(crate) const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
/// The suites that the card lists.
pub(crate) const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
/// Numbers of the replay window.
pub(crate) const WINDOW: u32 = 64;

/// One way of configuring an SA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) suite: Suite,
    pub(crate) numbers: Numbers,
    pub(crate) mode: Mode,
    /// Family of the packets on the wire.
    pub(crate) outer: Family,
    /// Family of the packets in clear, in tunnel mode.
    pub(crate) inner: Family,
    pub(crate) udp: Option<(u16, u16)>,
    pub(crate) dscp: Dscp,
    pub(crate) dont_fragment: DontFragment,
}

pub(crate) const PLAIN: Setting = Setting {
    suite: Suite::Aes256Gcm,
    numbers: Numbers::Short,
    mode: Mode::Tunnel,
    outer: Family::V4,
    inner: Family::V4,
    udp: None,
    dscp: Dscp::Copy,
    dont_fragment: DontFragment::Set,
};

impl Setting {
    /// Returns whether a card takes its ciphers alone: no checksum of UDP covers them.
    pub(crate) fn is_for_ciphers(&self) -> bool {
        self.udp.is_none() || self.outer == Family::V4
    }

    /// All suites, widths, modes and families, with and without UDP.
    pub(crate) fn all() -> Vec<Setting> {
        let mut all = Vec::new();
        for suite in SUITES {
            for numbers in [Numbers::Short, Numbers::Extended] {
                for (mode, outer, inner) in [
                    (Mode::Tunnel, Family::V4, Family::V4),
                    (Mode::Tunnel, Family::V4, Family::V6),
                    (Mode::Tunnel, Family::V6, Family::V4),
                    (Mode::Tunnel, Family::V6, Family::V6),
                    (Mode::Transport, Family::V4, Family::V4),
                    (Mode::Transport, Family::V6, Family::V6),
                ] {
                    for udp in [None, Some((4500, 61_234))] {
                        all.push(Setting { suite, numbers, mode, outer, inner, udp, ..PLAIN });
                    }
                }
            }
        }
        all
    }

    /// Addresses of the sender and the receiver on the wire.
    pub(crate) fn ends(&self) -> (&'static str, &'static str) {
        match self.outer {
            Family::V4 => ("192.0.2.1", "198.51.100.7"),
            Family::V6 => ("2001:db8::1", "2001:db8:ffff::7"),
        }
    }

    /// Addresses of the packets in clear.
    pub(crate) fn inside(&self) -> (&'static str, &'static str) {
        match (self.mode, self.inner) {
            (Mode::Transport, _) => self.ends(),
            (Mode::Tunnel, Family::V4) => ("10.1.0.5", "10.2.0.9"),
            (Mode::Tunnel, Family::V6) => ("2001:db8:1::5", "2001:db8:2::9"),
        }
    }

    /// A packet that the SA carries.
    pub(crate) fn packet(&self, payload: usize) -> PacketBuilder {
        let (source, destination) = self.inside();
        PacketBuilder::between(source, destination).udp(7, 8).payload_of(payload).hop_limit(9)
    }

    pub(crate) fn material(&self) -> Vec<u8> {
        (1..=self.suite.material_bytes() as u8).collect()
    }

    fn encapsulation(&self, direction: SaDirection) -> Encapsulation {
        let (source, destination) = self.ends();
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let udp = self.udp;
        let (tunnel, udp) = match direction {
            SaDirection::Out => (
                Tunnel { local: source, remote: destination },
                udp.map(|(local, remote)| UdpPorts { local, remote }),
            ),
            SaDirection::In => (
                Tunnel { local: destination, remote: source },
                udp.map(|(remote, local)| UdpPorts { local, remote }),
            ),
        };
        let Setting { mode, dscp, dont_fragment, .. } = *self;
        Encapsulation { mode, tunnel, udp, dscp, dont_fragment }
    }

    fn sequence_numbers(&self) -> SequenceNumbers {
        match self.numbers {
            Numbers::Short => SequenceNumbers::Short,
            Numbers::Extended => SequenceNumbers::Extended,
        }
    }

    /// The gateway's SA that seals.
    pub(crate) fn outbound(&self) -> OutboundSa {
        let material = KeyMaterial::new(self.suite, &self.material()).unwrap();
        let counter = Arc::new(SequenceCounter::new(self.sequence_numbers()));
        let carried = self.encapsulation(SaDirection::Out);
        let spi = Spi::new(SPI).unwrap();
        OutboundSa::new(SaId(0), spi, SaSetId(0), &material, carried, counter).unwrap()
    }

    /// The gateway's SA that opens.
    pub(crate) fn inbound(&self) -> InboundSa {
        let material = KeyMaterial::new(self.suite, &self.material()).unwrap();
        let window = Arc::new(ReplayWindow::new(WINDOW, self.sequence_numbers()).unwrap());
        let carried = self.encapsulation(SaDirection::In);
        let spi = Spi::new(SPI).unwrap();
        InboundSa::new(SaId(0), spi, SaSetId(0), &material, carried, window).unwrap()
    }

    /// The card's SA.
    pub(crate) fn sa(&self, direction: SaDirection, first_number: u64) -> CardSa {
        let (source, destination) = self.ends();
        let fields = OuterFields::Exactly {
            hop_limit: 64,
            dscp: match self.dscp {
                Dscp::Copy => OuterDscp::Copy,
                Dscp::Fixed(dscp) => OuterDscp::Fixed(dscp),
            },
            ecn: OuterEcn::Rfc6040,
            dont_fragment: match self.dont_fragment {
                DontFragment::Set => OuterDontFragment::Set,
                DontFragment::Copy => OuterDontFragment::Copy,
                DontFragment::Clear => OuterDontFragment::Clear,
            },
        };
        CardSa {
            direction,
            spi: SPI,
            ends: Ends {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            },
            mode: match self.mode {
                Mode::Tunnel => SaMode::Tunnel(fields),
                Mode::Transport => SaMode::Transport,
            },
            udp: self.udp.map(|(source, destination)| UdpEnds { source, destination }),
            service: Service::Packet,
            carrier: Carrier::Worker,
            suite: self.suite.name().into(),
            key: SaKey::new(&self.material()),
            icv_bytes: 16,
            numbers: self.numbers,
            window: WINDOW,
            first_number,
            flow_confidentiality: FlowConfidentiality::Off,
            limits: match direction {
                SaDirection::Out => SaLimits { hard_packets: Some(1000), ..SaLimits::default() },
                SaDirection::In => SaLimits::default(),
            },
            carries: Carries::default(),
        }
    }
}

pub(crate) fn tag(number: u32) -> Tag {
    Tag { handle: Handle::new(number).unwrap(), incarnation: Incarnation(0) }
}

/// A card with a sealing SA of tag 1 and an opening one of tag 2, which differ from those of the
/// setting by a change.
pub(crate) fn card_with(
    setting: &Setting,
    first_number: u64,
    change: impl Fn(&mut CardSa),
) -> EmulatedCard {
    let capabilities: Capabilities = "emulated:sas=4".parse().unwrap();
    let mut card = EmulatedCard::new(capabilities, 7);
    for (number, direction) in [(1, SaDirection::Out), (2, SaDirection::In)] {
        let mut sa = setting.sa(direction, first_number);
        change(&mut sa);
        card.place(&Item::Sa(sa.into()), tag(number));
    }
    card.advance(100);
    assert_eq!(told(&mut card), [CardEvent::Live(tag(1)), CardEvent::Live(tag(2))]);
    card
}

pub(crate) fn card(setting: &Setting) -> EmulatedCard {
    card_with(setting, 1, |_| ())
}

pub(crate) fn told(card: &mut EmulatedCard) -> Vec<CardEvent> {
    let mut events = Vec::new();
    card.poll(&mut events);
    events
}

pub(crate) fn framed(packet: &PacketBuilder) -> Vec<u8> {
    packet.frame(MACS.0, MACS.1, None)
}

/// A frame around these bytes of an IP packet.
pub(crate) fn around(packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&MACS.0[..], &MACS.1, &ethertype, packet].concat()
}

/// Has the card seal a packet that must leave.
pub(crate) fn sealed(card: &mut EmulatedCard, frame: &[u8]) -> Vec<u8> {
    match card.send(tag(1), frame) {
        Sent::Frame(frame) => frame,
        Sent::Dropped(loss) => panic!("dropped: {loss:?}"),
    }
}

/// Has the card open a frame, which must be for its SA.
pub(crate) fn opened(card: &mut EmulatedCard, frame: &[u8]) -> Vec<u8> {
    match card.open(frame) {
        Opened::Clear { frame, mark } => {
            assert_eq!(mark, tag(2).to_bits());
            frame
        }
        other => panic!("{other:?}"),
    }
}
