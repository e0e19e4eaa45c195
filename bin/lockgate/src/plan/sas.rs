//! SAs of peers that the cards of a configuration would have, or Linux for them, and why not the
//! others.

use std::net::IpAddr;

use config::validated::{Peer, PeerPlace};
use config::{CardKind, CardSettings, SaOffload, Validated};
use console::output::{Columns, Numbers, wrapped};
use control::{carried_by_linux, carried_flows, cipher_of, limits_by_use, planned_sas};
use dataplane::{PortId, Side};
use offload::{Ability, Capabilities, CardSa, RuleAbilities, SaAbilities, Service, Unfit};
use policy::{Policy, SaSetId, Spd};
use serde_json::{Value, json};

/// MTU where there are no ports.
const USUAL_MTU: u32 = 1500;
/// Bytes that a cipher processes for one packet at most, beside those of the packet.
const MOST_AROUND: u32 = 64;
/// SAs that an emulated card is taken to have room for: the file does not say how many.
const ROOM: u32 = 1024;

/// The SAs of a peer on a card.
pub(super) struct PlannedSas<'a> {
    peer: &'a str,
    card: &'a str,
    offload: SaOffload,
    carrier: Carrier,
    /// The card's part of the work.
    service: Option<Service>,
    /// The reason why they are not there, or not in packet mode, in a word and in words.
    reason: Option<(&'static str, String)>,
}

/// The carrier of a peer's packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Card,
    Linux,
    Software,
    /// An SA that is put is refused.
    Nobody,
}

impl Carrier {
    const fn name(self) -> &'static str {
        match self {
            Carrier::Card => "card",
            Carrier::Linux => "linux",
            Carrier::Software => "software",
            Carrier::Nobody => "refused",
        }
    }
}

type Reason = (&'static str, String);

/// The SAs of each peer on each card of a configuration whose policies these are. A peer's packets
/// go to the card of the port that its route leads to, which a file does not say.
pub(super) fn sas<'a>(validated: &'a Validated, policies: &[Policy]) -> Vec<PlannedSas<'a>> {
    // A configuration that was read has policies that go together.
    let Ok(spd) = Spd::new(policies.to_vec()) else { return Vec::new() };
    let ends: Vec<IpAddr> = validated
        .peers
        .iter()
        .flat_map(|peer| {
            let tunnel = peer.tunnel();
            [tunnel.local, tunnel.remote]
        })
        .collect();
    let mtus = validated.ports.iter().map(|port| port.mtu);
    let largest = mtus.max().unwrap_or(USUAL_MTU) + MOST_AROUND;
    let mut planned = Vec::new();
    for (set, peer) in (0..).map(SaSetId).zip(&validated.peers) {
        for card in &validated.cards {
            // Peers are behind unprotected ports.
            let is_outside =
                |port: &PortId| validated.ports[usize::from(port.0)].side == Side::Unprotected;
            if !card.ports.iter().any(is_outside) {
                continue;
            }
            let found = found(peer, card, largest, || {
                carried_flows(&spd, set, &ends)
                    .map(drop)
                    .map_err(|why| (why.name(), why.to_string()))
            });
            let carrier = match (&found, card.kind) {
                (Ok(_), CardKind::Emulated) => Carrier::Card,
                (Ok(_), CardKind::Xfrm(_)) => Carrier::Linux,
                (Err(_), _) if peer.offload.needs_card() => Carrier::Nobody,
                (Err(_), _) => Carrier::Software,
            };
            let (service, reason) = match found {
                Ok((service, lacks)) => (Some(service), lacks),
                Err(reason) => (None, Some(reason)),
            };
            let (peer, card, offload) = (peer.name.as_str(), card.name.as_str(), peer.offload);
            planned.push(PlannedSas { peer, card, offload, carrier, service, reason });
        }
    }
    planned
}

/// The card's part of the work for a peer's SAs, and if that is not the better part the reason;
/// `carried` says whether Linux could carry the packets.
fn found(
    peer: &Peer,
    card: &CardSettings,
    largest: u32,
    carried: impl Fn() -> Result<(), Reason>,
) -> Result<(Service, Option<Reason>), Reason> {
    let services: &[Service] = match peer.offload {
        SaOffload::None => return Err(("none", "its section asks for no card".into())),
        SaOffload::Packet => &[Service::Packet],
        SaOffload::Crypto => &[Service::Crypto],
        SaOffload::Auto => &[Service::Packet, Service::Crypto],
    };
    if peer.place == PeerPlace::BehindNat || !peer.moves.is_none() {
        return Err(("peer_moves", "it may move, which a card could not follow".into()));
    }
    if matches!(card.kind, CardKind::Xfrm(_)) {
        carried()?;
    }
    let abilities = capabilities(card.kind);
    let Some(abilities) = abilities.sas.get() else {
        return Err(("no_sas", offload::Unfit::NoSas.help().into()));
    };
    let mut lacks: Option<Reason> = None;
    for service in services {
        match fits(peer, (card.kind, abilities), *service, largest) {
            Ok(service) => {
                let not_packet = |(name, why)| (name, format!("not in packet mode: {why}"));
                return Ok((service, lacks.map(not_packet)));
            }
            Err(reason) => lacks = Some(reason),
        }
    }
    Err(lacks.unwrap_or(("none", String::new())))
}

fn capabilities(kind: CardKind) -> Capabilities {
    match kind {
        CardKind::Emulated => {
            Capabilities::emulated(RuleAbilities::default()).with_emulated_sas(ROOM)
        }
        CardKind::Xfrm(config::EspBy::Linux) => Capabilities::stand_in(),
        CardKind::Xfrm(config::EspBy::Card) => {
            Capabilities::xfrm(Ability::Has(()), Ability::Has(()))
        }
    }
}

/// Returns this service if the card can do it for both SAs of a peer.
fn fits(
    peer: &Peer,
    (kind, abilities): (CardKind, &SaAbilities),
    service: Service,
    largest: u32,
) -> Result<Service, Reason> {
    for sa in planned_sas(peer) {
        let sa = match service {
            Service::Packet => sa,
            Service::Crypto => cipher_of(sa),
        };
        let sa = match kind {
            CardKind::Emulated => sa,
            CardKind::Xfrm(_) => carried_by_linux(sa, limits_by_use(&peer.lifetime)),
        };
        let sa = CardSa { limits: sa.limits.for_card(abilities, largest), ..sa };
        let fits = offload::sa_fits(&sa, abilities, service);
        fits.map_err(|unfit| (unfit.name(), advice(unfit, abilities)))?;
    }
    Ok(service)
}

/// The meaning of a reason, with the list that it speaks of.
fn advice(unfit: Unfit, abilities: &SaAbilities) -> String {
    let windows: Vec<String> = abilities.windows.iter().map(ToString::to_string).collect();
    match unfit {
        Unfit::Window => format!(
            "the card has not a replay window of this size: write replay_window = {}",
            windows.join(" or ")
        ),
        unfit => unfit.help().into(),
    }
}

impl PlannedSas<'_> {
    pub(super) fn json(&self) -> Value {
        json!({
            "peer": self.peer,
            "card": self.card,
            "offload": self.offload.name(),
            "carried_by": self.carrier.name(),
            "mode": self.service.map(Service::name),
            "reason": self.reason.as_ref().map(|(name, _)| name),
            "why": self.reason.as_ref().map(|(_, why)| why),
        })
    }
}

/// The SAs as text; nothing, if the configuration has no card.
pub(super) fn text(sas: &[PlannedSas<'_>], columns: Columns) -> String {
    if sas.is_empty() {
        return String::new();
    }
    let rows = sas.iter().map(|sas| {
        let (name, why) = match &sas.reason {
            Some((name, why)) => (*name, why.as_str()),
            None => ("", ""),
        };
        let mode = sas.service.map_or("", Service::name);
        let cells = [sas.peer, sas.card, sas.offload.name(), sas.carrier.name(), mode, name, why];
        cells.map(str::to_owned).to_vec()
    });
    let header = ["peer", "card", "offload", "carried by", "mode", "reason", "meaning"];
    let title = "SAs of peers, if their routes lead to a port of the card";
    wrapped(title, &header, rows, Numbers::NONE, columns)
}
