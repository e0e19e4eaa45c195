//! SAs that a network card carries, in the card's words.
//!
//! A card is asked between the plan of a put and the put itself: an SA is in a card, or in
//! software, when its life begins, and stays there until it ends (DESIGN: one tier from birth to
//! death).

use std::net::IpAddr;

use config::SaOffload;
use config::validated::{Peer, PeerPlace};
use ipsec::{
    Allowance, CardSeat, DontFragment, Dscp, Encapsulation, HOP_LIMIT, Lifetime, Limit, Mode,
    SequenceNumbers, Spi, Suite,
};
use offload::{
    CardSa, Carrier, Carries, Ends, FlowConfidentiality, OuterDontFragment, OuterDscp, OuterEcn,
    OuterFields, SaDirection, SaKey, SaLimits, SaMode, Service, UdpEnds,
};
use policy::{Direction, SaSetId};

use super::{FreshSa, Numbers, PutPlan};
use crate::compiled::Compiled;

/// An SA of a plan that a card is to be asked for. No `Debug`: it holds key bytes.
pub struct CardWish {
    /// Its number among the SAs of the plan that do not run yet.
    pub number: usize,
    /// Its place in the request.
    pub place: usize,
    /// Name of its peer.
    pub peer: String,
    /// The peer's set.
    pub set: SaSetId,
    /// The carrier that it is to have: a card, or a card if one takes it.
    pub offload: SaOffload,
    /// Seconds after which it ends.
    pub hard_seconds: Option<u32>,
    /// Its limits without a lease of numbers: for Linux, which keeps them where it carries the
    /// packets and draws the numbers itself.
    pub limits: SaLimits,
    /// True if the peer may move, which a card could not follow.
    pub may_move: bool,
    /// The SA as the card is asked for it, with the limits that its peer's section or the request
    /// gives it.
    pub sa: CardSa,
    /// The SA as a card is asked for it that cannot carry `sa`: with the cipher alone.
    pub else_sa: Option<CardSa>,
}

impl PutPlan {
    /// The SAs that do not run yet and that a card is to carry, or may.
    pub fn card_wishes(&self, running: &Compiled) -> Vec<CardWish> {
        let wished = self.fresh.iter().enumerate();
        let wished = wished.filter(|(_, fresh)| fresh.offload != SaOffload::None);
        wished
            .filter_map(|(number, fresh)| {
                let peer = running.peer_with(fresh.set)?;
                let lifetime = fresh.lifetime.unwrap_or(peer.lifetime);
                // The card writes the headers, between the SA's present ends.
                let way = fresh.carriage(peer.encapsulation);
                let way = &running.present_way(fresh.manager, fresh.set, way);
                let packet = card_sa(fresh, way, &lifetime);
                let (sa, else_sa) = match fresh.offload {
                    SaOffload::None | SaOffload::Packet => (packet, None),
                    SaOffload::Crypto => (cipher_of(packet), None),
                    SaOffload::Auto => (packet.clone(), Some(cipher_of(packet))),
                };
                Some(CardWish {
                    number,
                    place: fresh.place,
                    peer: peer.name.clone(),
                    set: fresh.set,
                    offload: fresh.offload,
                    hard_seconds: lifetime.hard.seconds,
                    limits: limits(&lifetime),
                    may_move: peer.place == PeerPlace::BehindNat || !peer.moves.is_none(),
                    sa,
                    else_sa,
                })
            })
            .collect()
    }

    /// Notes that a card has taken an SA.
    ///
    /// # Panics
    /// If the plan has no SA of this number.
    pub fn seat(&mut self, number: usize, seat: CardSeat) {
        self.fresh[number].seat = Some(seat);
    }
}

/// The SAs of a peer as a card would be asked for them: packet mode, one that seals and one that
/// opens, with a key of zeros. To ask what would fit, never to be placed.
pub fn planned_sas(peer: &Peer) -> [CardSa; 2] {
    let numbers = match peer.numbers {
        SequenceNumbers::Short => offload::Numbers::Short,
        SequenceNumbers::Extended => offload::Numbers::Extended,
    };
    let key = vec![0; peer.suite.material_bytes()];
    [(SaDirection::Out, 0), (SaDirection::In, peer.replay_window)].map(|(direction, window)| {
        shaped(
            (direction, Spi::LOWEST),
            (peer.suite, &key),
            (numbers, window),
            &peer.encapsulation,
            &peer.lifetime,
        )
    })
}

/// An SA whose packets Linux carries, of the same service. Linux writes the headers outside, with
/// the DSCP of inner packets: a fixed one, which hides that, is asked for all the same. In crypto
/// mode it keeps the limits, too, and draws the numbers: these limits are without a lease.
pub fn carried_by_linux(sa: CardSa, limits: SaLimits) -> CardSa {
    let mode = match sa.mode {
        SaMode::Tunnel(OuterFields::Exactly { dscp: OuterDscp::Fixed(_), .. })
        | SaMode::Transport => sa.mode,
        SaMode::Tunnel(_) => SaMode::Tunnel(OuterFields::LeftToCard),
    };
    let limits = match sa.service {
        Service::Packet => sa.limits,
        Service::Crypto => limits,
    };
    CardSa { carrier: Carrier::Kernel, mode, limits, ..sa }
}

/// An SA as a card is asked for it: packet mode, exactly as software would carry it.
fn card_sa(fresh: &FreshSa, way: &Encapsulation, lifetime: &Lifetime) -> CardSa {
    let (direction, numbers, window) = match &fresh.numbers {
        Numbers::Seals(counter) => (SaDirection::Out, counter.numbers(), 0),
        Numbers::Opens(window) => (SaDirection::In, window.numbers(), window.size()),
    };
    let numbers = match numbers {
        SequenceNumbers::Short => offload::Numbers::Short,
        SequenceNumbers::Extended => offload::Numbers::Extended,
    };
    let key = (fresh.material.suite(), fresh.material.expose());
    shaped((direction, fresh.spi), key, (numbers, window), way, lifetime)
}

fn shaped(
    (direction, spi): (SaDirection, Spi),
    (suite, key): (Suite, &[u8]),
    (numbers, window): (offload::Numbers, u32),
    way: &Encapsulation,
    lifetime: &Lifetime,
) -> CardSa {
    let (local, remote) = (way.tunnel.local, way.tunnel.remote);
    let ends = |source: IpAddr, destination: IpAddr| Ends { source, destination };
    let ports = way.udp.map(|ports| (ports.local, ports.remote));
    let udp = |source, destination| UdpEnds { source, destination };
    let (ends, udp) = match direction {
        SaDirection::Out => (ends(local, remote), ports.map(|(local, remote)| udp(local, remote))),
        SaDirection::In => (ends(remote, local), ports.map(|(local, remote)| udp(remote, local))),
    };
    CardSa {
        direction,
        spi: spi.value(),
        ends,
        mode: mode(way),
        udp,
        service: Service::Packet,
        carrier: Carrier::Worker,
        suite: suite.name().into(),
        key: SaKey::new(key),
        icv_bytes: suite.icv_bytes() as u8,
        numbers,
        window,
        first_number: 1,
        flow_confidentiality: FlowConfidentiality::Off,
        limits: leased(limits(lifetime), direction, numbers),
        carries: Carries::default(),
    }
}

/// An SA as a card is asked for its cipher alone. Limits are whose the numbers are.
pub fn cipher_of(packet: CardSa) -> CardSa {
    CardSa { service: Service::Crypto, limits: SaLimits::default(), ..packet }
}

fn mode(way: &Encapsulation) -> SaMode {
    match way.mode {
        Mode::Transport => SaMode::Transport,
        Mode::Tunnel => SaMode::Tunnel(OuterFields::Exactly {
            hop_limit: HOP_LIMIT,
            dscp: match way.dscp {
                Dscp::Copy => OuterDscp::Copy,
                Dscp::Fixed(value) => OuterDscp::Fixed(value),
            },
            ecn: OuterEcn::Rfc6040,
            dont_fragment: match way.dont_fragment {
                DontFragment::Set => OuterDontFragment::Set,
                DontFragment::Copy => OuterDontFragment::Copy,
                DontFragment::Clear => OuterDontFragment::Clear,
            },
        }),
    }
}

/// The limits by use.
pub fn limits(lifetime: &Lifetime) -> SaLimits {
    SaLimits {
        soft_packets: lifetime.soft.packets,
        hard_packets: lifetime.hard.packets,
        soft_bytes: lifetime.soft.bytes,
        hard_bytes: lifetime.hard.bytes,
    }
}

/// These limits with a lease: an SA that seals has all numbers, as far as no limit is lower. Those
/// that the card has sealed when it is lost are not known, so nobody would go on with the rest.
fn leased(limits: SaLimits, direction: SaDirection, numbers: offload::Numbers) -> SaLimits {
    let lease = match direction {
        // The number behind the lease is one that 64 bits hold.
        SaDirection::Out => Some(numbers.highest().min(u64::MAX - 1)),
        SaDirection::In => None,
    };
    let hard_packets = [limits.hard_packets, lease].into_iter().flatten().min();
    SaLimits { hard_packets, ..limits }
}

/// The use of an SA as its card counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardUse {
    /// Packets.
    pub packets: u64,
    /// Bytes that the cipher processed.
    pub bytes: u64,
    /// The highest number that was received, or that was sealed, if the card says it.
    pub edge: u64,
    /// True if the card said that a hard limit ended it.
    pub is_ended: bool,
}

/// Packets and bytes of an SA that its card counted since it was looked at before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountedByCard {
    /// Direction of the SA.
    pub direction: Direction,
    /// SPI of the SA.
    pub spi: Spi,
    /// Name of its peer.
    pub peer: String,
    /// Packets.
    pub packets: u64,
    /// Bytes that the cipher processed.
    pub bytes: u64,
}

/// Notes the use in an SA's account; returns packets and bytes since it was noted before.
fn note(allowance: &Option<Allowance>, use_: &CardUse) -> (u64, u64) {
    let Some(Allowance { lifetime, account }) = allowance else { return (0, 0) };
    let before = account.used(0);
    account.raise(use_.packets, use_.bytes);
    if use_.is_ended {
        let hard = &lifetime.hard;
        let is_at_packets = hard.packets.is_some_and(|most| use_.packets >= most);
        let by_packets = is_at_packets || hard.bytes.is_none();
        account.end(if by_packets { Limit::Packets } else { Limit::Bytes });
    }
    (use_.packets.saturating_sub(before.packets), use_.bytes.saturating_sub(before.bytes))
}

impl Compiled {
    /// Notes the use of the SAs whose packets are cards'; returns what was counted since it was
    /// noted before.
    pub fn note_card_use(
        &self,
        use_of: impl Fn(CardSeat) -> Option<CardUse>,
    ) -> Vec<CountedByCard> {
        let mut counted = Vec::new();
        let mut add = |direction, spi, set, (packets, bytes): (u64, u64)| {
            if packets > 0 {
                let peer = self.peer_of(set);
                counted.push(CountedByCard { direction, spi, peer, packets, bytes });
            }
        };
        for kept in self.put.outbound.values() {
            if let Some(use_) = kept.sa.packet_card().and_then(&use_of) {
                // Each number seals one packet. Linux counts a frame of several segments once, and
                // its numbers one by one, if a card has their cipher.
                let use_ = CardUse { packets: use_.packets.max(use_.edge), ..use_ };
                let since = note(&kept.sa.allowance, &use_);
                add(Direction::Outbound, kept.sa.spi, kept.sa.set, since);
            }
        }
        for kept in self.put.inbound.values() {
            let Some(use_) = kept.sa.packet_card().and_then(&use_of) else { continue };
            let since = note(&kept.sa.allowance, &use_);
            add(Direction::Inbound, kept.sa.spi, kept.sa.set, since);
            if use_.edge > kept.sa.window.right_edge() {
                // Nobody else moves the window of an SA that a card opens by.
                let _ = kept.sa.window.commit(use_.edge);
            }
        }
        counted
    }

    /// The SAs that are in cards, of both directions, each with its name there.
    pub fn seats(&self) -> Vec<(super::SaName, CardSeat)> {
        let name = |direction, spi, set| {
            let peer = Some(self.peer_of(set));
            super::SaName { direction, spi, peer }
        };
        let outbound = self.put.outbound.values();
        let outbound = outbound.filter_map(|kept| {
            Some((name(Direction::Outbound, kept.sa.spi, kept.sa.set), kept.sa.card?))
        });
        let inbound = self.put.inbound.values();
        let inbound = inbound.filter_map(|kept| {
            Some((name(Direction::Inbound, kept.sa.spi, kept.sa.set), kept.sa.card?))
        });
        outbound.chain(inbound).collect()
    }

    /// The configuration without the SAs in cards whose seats are lost; `None`: none are.
    pub fn without_seats(&self, is_lost: impl Fn(CardSeat) -> bool) -> Option<super::ChangedSas> {
        let outbound = self.put.outbound.iter();
        let outbound: Vec<_> = outbound
            .filter(|(_, kept)| kept.sa.card.is_some_and(&is_lost))
            .map(|(id, _)| *id)
            .collect();
        let inbound = self.put.inbound.iter();
        let inbound: Vec<_> = inbound
            .filter(|(_, kept)| kept.sa.card.is_some_and(&is_lost))
            .map(|(id, _)| *id)
            .collect();
        if outbound.is_empty() && inbound.is_empty() {
            return None;
        }
        let mut compiled = self.copied();
        let reason = super::GoneReason::CardLost;
        let mut gone = Vec::with_capacity(outbound.len() + inbound.len());
        for id in outbound {
            gone.extend(compiled.take_outbound(id, reason));
        }
        for id in inbound {
            gone.extend(compiled.take_inbound(id, reason));
        }
        Some(super::ChangedSas { compiled, gone })
    }
}
