//! Describes SAs in the API's messages.

use std::sync::Arc;

use api::v1;
use control::{RefusedKey, SaOwner};
use dataplane::DropReason;
use ipsec::{
    Allowance, CardSeat, CardWork, Encapsulation, InboundSa, Limit, Limits, OutboundSa, SaId,
    SequenceNumbers, Spi, Used,
};
use policy::{Direction, SaSetId};

use super::{in_front, short};
use crate::backend::EntryIter;
use crate::cards::NetdevCard;
use crate::picture::Picture;
use crate::totals::Totals;
use crate::{sa_limits, sequence_usage};

/// Returns the SAs of a picture, the refused ones behind the others. Each is presented when the
/// iterator reaches it.
pub(crate) fn sa_entries(
    picture: Arc<Picture>,
    totals: Arc<Totals>,
) -> EntryIter<v1::SecurityAssociation> {
    let [outbound_slots, inbound_slots] = picture.snapshot.sad().room();
    let shown = Arc::new((picture, totals));
    let outbounds = shown.clone();
    let outbound = (0..outbound_slots as u32).filter_map(move |slot| {
        let (picture, totals) = &*outbounds;
        let sa = picture.snapshot.sad().find_outbound(SaId(slot))?;
        Some(outbound(picture, totals, sa, peer_of(picture, sa.set)))
    });
    let inbounds = shown.clone();
    let inbound = (0..inbound_slots as u32).filter_map(move |slot| {
        let (picture, totals) = &*inbounds;
        let sa = picture.snapshot.sad().find_inbound(SaId(slot))?;
        Some(inbound(picture, totals, sa, peer_of(picture, sa.set)))
    });
    let refused = (0..shown.0.compiled.refused.len()).filter_map(move |place| {
        let (picture, totals) = &*shown;
        refused_key(picture, totals, &picture.compiled.refused[place])
    });
    Box::new(outbound.chain(inbound).chain(refused))
}

/// Name of the peer of a set.
fn peer_of(picture: &Picture, set: SaSetId) -> &str {
    let sad = picture.snapshot.sad();
    let set = sad.places().get(set).and_then(|place| sad.set(place));
    set.map_or("", |set| set.peer.as_str())
}

fn outbound(
    picture: &Picture,
    totals: &Totals,
    sa: &OutboundSa,
    peer: &str,
) -> v1::SecurityAssociation {
    let (state, state_reason) = match () {
        () if is_spent(sa.allowance.as_ref()) => ended(),
        // Its numbers are the card's.
        () if sa.packet_card().is_some() => ("ok", String::new()),
        () if sa.sequence.is_exhausted() => {
            ("exhausted", DropReason::SequenceExhausted.help().to_owned())
        }
        () if sa.sequence.last() >= sa.sequence.reserved() => {
            ("not_reserved", DropReason::SequenceNotReserved.help().to_owned())
        }
        () => ("ok", String::new()),
    };
    let numbers = sa.sequence.numbers();
    let last = match (sa.packet_card(), &sa.allowance) {
        // Numbers begin at 1, and each seals one packet.
        (Some(_), Some(allowance)) => allowance.account.used(0).packets,
        _ => sa.sequence.last(),
    };
    let owner = picture.compiled.owner_of_outbound(sa.id);
    let key = (Direction::Outbound, sa.spi, peer);
    v1::SecurityAssociation {
        backend: backend(picture, sa.card, &sa.cipher.backend_name()),
        card: card(picture, sa.card).map_or_else(String::new, |card| card.name.to_string()),
        card_mode: card_mode(sa.card).into(),
        // In crypto mode the counts are the gateway's own.
        card_read_age_ms: card(picture, sa.packet_card()).and_then(NetdevCard::read_age_ms),
        sequence: last,
        sequence_used: sequence_usage::part(last, numbers),
        reserved_to: (owner == SaOwner::File).then(|| sa.sequence.reserved()),
        extended_sequence_numbers: numbers == SequenceNumbers::Extended,
        state: state.into(),
        state_reason,
        fingerprint: short(&picture.compiled.outbound_fingerprint(sa.id)),
        lifetime: sa.allowance.as_ref().map(lifetime),
        owner: owner.name().into(),
        age_ms: age_ms(owner),
        last_packet_age_ms: last_packet_age_ms(picture, key),
        ike: ike(picture, key, sa.allowance.as_ref()),
        ..association(key, sa.suite, &sa.encapsulation, totals)
    }
}

fn inbound(
    picture: &Picture,
    totals: &Totals,
    sa: &InboundSa,
    peer: &str,
) -> v1::SecurityAssociation {
    let (edge, numbers) = (sa.window.right_edge(), sa.window.numbers());
    let (state, state_reason) = match is_spent(sa.allowance.as_ref()) {
        true => ended(),
        false => ("ok", String::new()),
    };
    let owner = picture.compiled.owner_of_inbound(sa.id);
    let key = (Direction::Inbound, sa.spi, peer);
    v1::SecurityAssociation {
        backend: backend(picture, sa.card, &sa.cipher.backend_name()),
        card: card(picture, sa.card).map_or_else(String::new, |card| card.name.to_string()),
        card_mode: card_mode(sa.card).into(),
        // In crypto mode the counts are the gateway's own.
        card_read_age_ms: card(picture, sa.packet_card()).and_then(NetdevCard::read_age_ms),
        sequence: edge,
        sequence_used: sequence_usage::part(edge, numbers),
        window_packets: Some(sa.window.size()),
        extended_sequence_numbers: numbers == SequenceNumbers::Extended,
        state: state.into(),
        state_reason,
        fingerprint: short(&picture.compiled.inbound_fingerprint(sa.id)),
        lifetime: sa.allowance.as_ref().map(lifetime),
        owner: owner.name().into(),
        age_ms: age_ms(owner),
        last_packet_age_ms: last_packet_age_ms(picture, key),
        ike: ike(picture, key, sa.allowance.as_ref()),
        ..association(key, sa.suite, &sa.encapsulation, totals)
    }
}

fn refused_key(
    picture: &Picture,
    totals: &Totals,
    refused: &RefusedKey,
) -> Option<v1::SecurityAssociation> {
    let mut peers = picture.config().peers.iter();
    let peer = peers.find(|peer| peer.name == refused.peer)?;
    let key = (refused.direction, refused.spi, peer.name.as_str());
    Some(v1::SecurityAssociation {
        extended_sequence_numbers: peer.numbers == SequenceNumbers::Extended,
        state: "refused".into(),
        state_reason: refused.to_string(),
        fingerprint: short(&refused.fingerprint),
        owner: SaOwner::File.name().into(),
        ..association(key, peer.suite, &peer.encapsulation, totals)
    })
}

/// The card that an SA is in.
fn card(picture: &Picture, seat: Option<CardSeat>) -> Option<&NetdevCard> {
    picture.netdev_cards.get(&seat?.netdev)
}

/// The mode in which a card carries an SA; empty: none does.
fn card_mode(seat: Option<CardSeat>) -> &'static str {
    match seat.map(|seat| seat.work) {
        Some(CardWork::Packets) => "packet",
        Some(CardWork::Cipher) => "crypto",
        None => "",
    }
}

/// The engine that runs the cipher.
fn backend(picture: &Picture, seat: Option<CardSeat>, software: &str) -> String {
    match card(picture, seat) {
        Some(card) => {
            let part = if card_mode(seat) == "crypto" { ", cipher alone" } else { "" };
            format!("card {}{part}", card.name)
        }
        None if seat.is_some() => "card".into(),
        None => software.into(),
    }
}

/// Time since an SA was put; `None`: a file has it.
fn age_ms(owner: SaOwner) -> Option<u64> {
    match owner {
        SaOwner::File => None,
        SaOwner::Program { put_ns, .. } => {
            Some(sa_limits::boot_clock_ns().saturating_sub(put_ns) / 1_000_000)
        }
    }
}

/// Time since the last packet of an SA.
fn last_packet_age_ms(
    picture: &Picture,
    (direction, spi, peer): (Direction, Spi, &str),
) -> Option<u64> {
    let last = picture.sa_activity.last_packet(&(direction, spi, peer.to_owned()))?;
    u64::try_from(last.elapsed().as_millis()).ok()
}

/// The child of charon's that an SA is of.
fn ike(
    picture: &Picture,
    (direction, spi, peer): (Direction, Spi, &str),
    allowance: Option<&Allowance>,
) -> Option<v1::IkeChild> {
    let key = (direction, spi, peer.to_owned());
    picture.ike_names.shown(&key, allowance, sa_limits::boot_clock_ns())
}

/// True at a hard limit.
pub(super) fn is_spent(allowance: Option<&Allowance>) -> bool {
    allowance.is_some_and(Allowance::is_spent)
}

/// State of an SA at a hard limit, and the reason.
fn ended() -> (&'static str, String) {
    ("ended", DropReason::SaHardLimit.help().to_owned())
}

/// The use and the limits of an SA.
fn lifetime(allowance: &Allowance) -> v1::SaLifetime {
    let Used { packets, bytes, seconds, idle_seconds } =
        allowance.account.used(sa_limits::boot_clock_ns());
    let limits = |limits: &Limits| v1::SaLimits {
        packets: limits.packets,
        bytes: limits.bytes,
        seconds: limits.seconds.map(u64::from),
        idle_seconds: limits.idle_seconds.map(u64::from),
    };
    let ended = allowance.account.ended().map_or("", Limit::name);
    v1::SaLifetime {
        packets,
        bytes,
        seconds,
        idle_seconds,
        soft: Some(limits(&allowance.lifetime.soft)),
        hard: Some(limits(&allowance.lifetime.hard)),
        ended: ended.into(),
    }
}

/// Returns the message of an SA with the fields that all SAs have in common.
fn association(
    (direction, spi, peer): (Direction, Spi, &str),
    suite: ipsec::Suite,
    encapsulation: &Encapsulation,
    totals: &Totals,
) -> v1::SecurityAssociation {
    let volume = totals.sas.get(&(direction, spi, peer.to_owned())).copied().unwrap_or_default();
    let Encapsulation { mode, tunnel, udp, .. } = encapsulation;
    v1::SecurityAssociation {
        direction: match direction {
            Direction::Outbound => "outbound".into(),
            Direction::Inbound => "inbound".into(),
        },
        spi: spi.to_string(),
        peer: peer.into(),
        suite: suite.to_string(),
        local: tunnel.local.to_string(),
        remote: tunnel.remote.to_string(),
        packets: volume.packets,
        bytes: volume.bytes,
        mode: mode.name().into(),
        encapsulation: in_front(encapsulation).into(),
        local_port: udp.map(|ports| ports.local.into()),
        remote_port: udp.map(|ports| ports.remote.into()),
        ..v1::SecurityAssociation::default()
    }
}
