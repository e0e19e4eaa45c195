//! An emulated card between the gateway and its wire.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use dataplane::SetIndex;
use emulated_card::{EmulatedCard, Loss, Opened, Sent};
use ipsec::{DontFragment, Dscp, KeyMaterial, Mode, SequenceNumbers, Suite};
use offload::{
    Capabilities, Card as _, CardEvent, CardSa, Carrier, Carries, Ends, FlowConfidentiality, Item,
    Numbers, OuterDontFragment, OuterDscp, OuterEcn, OuterFields, SaDirection, SaKey, SaLimits,
    SaMode, Service, Tag, UdpEnds,
};
use packets::lab::{CARD, Hub, REPLAY_WINDOW, Wire, deciphered_mark, opened_mark, tags};
use packets::peer::Agreement;
use wire::{CardHeader, Deciphered, Mark};

/// An emulated card on the wire of a laboratory; a clone is the same card.
#[derive(Clone)]
pub(crate) struct CardOnWire {
    card: Rc<RefCell<EmulatedCard>>,
    /// Reasons for which the card dropped frames from the wire.
    losses: Rc<RefCell<Vec<Loss>>>,
}

impl CardOnWire {
    /// A card with the SAs of these sets of a gateway, which gets them too.
    pub(crate) fn with(hub: &mut Hub, sets: &[SetIndex]) -> CardOnWire {
        CardOnWire::serving(Service::Packet, hub, sets)
    }

    /// A card with the SAs of these sets in a mode. In crypto mode the gateway's stay as they are
    /// otherwise.
    pub(crate) fn serving(service: Service, hub: &mut Hub, sets: &[SetIndex]) -> CardOnWire {
        let capabilities: Capabilities = "emulated:sas=8".parse().unwrap();
        let mut card = EmulatedCard::new(capabilities, 7);
        for set in sets {
            match service {
                Service::Packet => hub.seat(*set),
                Service::Crypto => hub.seat_ciphers(*set),
            }
            let agreement = &hub.agreements[set.0 as usize];
            let [seals, opens] = tags(*set).map(|tag| Tag::from_bits(tag).unwrap());
            let [out, back] = [SaDirection::Out, SaDirection::In]
                .map(|way| Item::Sa(CardSa { service, ..sa(agreement, way) }.into()));
            card.place(&out, seals);
            card.place(&back, opens);
        }
        card.advance(1000);
        let mut events = Vec::new();
        card.poll(&mut events);
        assert_eq!(events.len(), 2 * sets.len());
        assert!(events.iter().all(|event| matches!(event, CardEvent::Live(_))), "{events:?}");
        CardOnWire { card: Rc::new(RefCell::new(card)), losses: Rc::default() }
    }

    /// The card.
    pub(crate) fn card(&self) -> Ref<'_, EmulatedCard> {
        self.card.borrow()
    }

    /// Reasons for which the card dropped frames from the wire.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.losses.borrow().clone()
    }

    /// Packets that the card has sealed or opened by the SA of a tag.
    pub(crate) fn packets(&self, tag: u64) -> u64 {
        let tag = Tag::from_bits(tag).unwrap();
        self.card().reading(tag.handle).map_or(0, |reading| reading.packets)
    }
}

impl Wire for CardOnWire {
    fn came(&mut self, frame: &[u8]) -> Option<(Vec<u8>, Option<Mark>)> {
        match self.card.borrow_mut().open(frame) {
            Opened::AsItCame => Some((frame.to_vec(), None)),
            Opened::Clear { frame, mark } => Some((frame, Some(opened_mark(CARD, mark)))),
            Opened::Deciphered { frame, mark } => {
                Some((frame, Some(deciphered_mark(CARD, mark, Deciphered::Authentic))))
            }
            Opened::Forged { mark } => {
                let mark = deciphered_mark(CARD, mark, Deciphered::Forged);
                Some((frame.to_vec(), Some(mark)))
            }
            Opened::Dropped(loss) => {
                self.losses.borrow_mut().push(loss);
                None
            }
        }
    }

    fn leaves(&mut self, header: CardHeader, frame: &[u8]) -> Option<Vec<u8>> {
        let mut card = self.card.borrow_mut();
        let sent = match header {
            CardHeader::Sa(tag) => card.send_by_mark(tag, frame),
            CardHeader::Cipher(tag) => card.encrypt_by_mark(tag, frame),
            other => panic!("{other:?} is no header for a card"),
        };
        match sent {
            Sent::Frame(frame) => Some(frame),
            Sent::Dropped(loss) => panic!("the walk gave the card what it drops: {loss:?}"),
        }
    }
}

/// Returns whether the card has the suite of an agreement.
pub(crate) fn is_carried(agreement: &Agreement) -> bool {
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    suites.contains(&agreement.suite)
}

/// An SA of an agreement as the card is given it.
fn sa(agreement: &Agreement, direction: SaDirection) -> CardSa {
    let Agreement { hub, address, spi_from_hub, spi_to_hub, suite, .. } = *agreement;
    let carried = agreement.encapsulation();
    let key = |material: KeyMaterial| SaKey::new(material.expose());
    let (ends, spi, key, udp) = match direction {
        SaDirection::Out => (
            Ends { source: hub, destination: address },
            spi_from_hub,
            key(agreement.material_from_hub()),
            carried.udp.map(|ports| (ports.local, ports.remote)),
        ),
        SaDirection::In => (
            Ends { source: address, destination: hub },
            spi_to_hub,
            key(agreement.material_to_hub()),
            carried.udp.map(|ports| (ports.remote, ports.local)),
        ),
    };
    let fields = OuterFields::Exactly {
        hop_limit: 64,
        dscp: match carried.dscp {
            Dscp::Copy => OuterDscp::Copy,
            Dscp::Fixed(dscp) => OuterDscp::Fixed(dscp),
        },
        ecn: OuterEcn::Rfc6040,
        dont_fragment: match carried.dont_fragment {
            DontFragment::Set => OuterDontFragment::Set,
            DontFragment::Copy => OuterDontFragment::Copy,
            DontFragment::Clear => OuterDontFragment::Clear,
        },
    };
    CardSa {
        direction,
        spi,
        ends,
        mode: match carried.mode {
            Mode::Tunnel => SaMode::Tunnel(fields),
            Mode::Transport => SaMode::Transport,
        },
        udp: udp.map(|(source, destination)| UdpEnds { source, destination }),
        service: Service::Packet,
        carrier: Carrier::Worker,
        suite: suite.name().into(),
        key,
        icv_bytes: 16,
        numbers: match agreement.numbers {
            SequenceNumbers::Short => Numbers::Short,
            SequenceNumbers::Extended => Numbers::Extended,
        },
        window: REPLAY_WINDOW,
        first_number: 1,
        flow_confidentiality: FlowConfidentiality::Off,
        limits: match direction {
            SaDirection::Out => SaLimits { hard_packets: Some(1 << 20), ..SaLimits::default() },
            SaDirection::In => SaLimits::default(),
        },
        carries: Carries::default(),
    }
}
