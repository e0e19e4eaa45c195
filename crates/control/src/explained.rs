//! Explains in an operator's words how the walk would handle a flow: `lockgate explain` answers the
//! same over a file and from the running daemon.

mod inside;
mod layers;
mod lookups;
mod nearest;
mod parts;
mod words;

use dataplane::cache::{Key, Recall};
use dataplane::connections::ZoneOwner;
use dataplane::explain::{Arrival, Explanation, Inside, InsideError, SeenConnection};
use dataplane::{
    DropReason, HoldKind, HostService, NextHopId, PortId, PortInfo, Prefix, RouteTarget, SaSet,
    SetIndex, Side, Snapshot, Verdict,
};
pub use inside::InsideText;
use ipsec::{Mode, OutboundSa, SequenceNumbers};
pub use parts::{DeadPort, RulePlace, TunnelEnds};
use policy::{AddressRange, Consultation, Decider, Exit, PortClass, SaSetId};
use serde::Serialize;
use wire::flow::protocol;
use wire::{Address, Flow, Upper};
pub use words::flow_text;
use words::{book_name, covers, policy_text, side_text};

use config::{Validated, service_text};

/// Ports that are not up which a note names at most.
const MAX_DEAD_PORTS: usize = 4;

/// Origin of a snapshot's SPIs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spis {
    /// The SPIs are those of the key files.
    Configured,
    /// The keys could not be read: the SPIs are stand-ins.
    Unknown,
}

/// Extent to which a snapshot holds this machine's addresses and routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// The snapshot holds them.
    Known,
    /// The file leaves both to Linux: it does not say where a packet goes.
    Unknown,
}

impl Routing {
    /// Returns whether a configuration by itself states addresses or routes.
    pub fn of(config: &Validated) -> Routing {
        let names_addresses = config.ports.iter().any(|port| !port.addresses.is_empty());
        match names_addresses || !config.routes.is_empty() {
            true => Routing::Known,
            false => Routing::Unknown,
        }
    }
}

/// The data that an explanation is drawn from.
#[derive(Clone, Copy)]
pub struct Picture<'a> {
    /// The snapshot that the walk looks things up in.
    pub snapshot: &'a Snapshot,
    /// Time, by the walk's clock; it says which connections are still known.
    pub now_ns: u64,
    /// Destinations of the routes that it was made from; bits behind the length may be set.
    pub prefixes: &'a [Prefix],
    /// Origin of its SPIs: only those of the key files are shown.
    pub spis: Spis,
    /// Extent to which it knows this machine's addresses and routes.
    pub routing: Routing,
    /// Ports that are not up, if the daemon explains.
    pub dead_ports: &'a [DeadPort],
    /// Answers of each worker's flow cache to [`questions`], in their order; `None`: the worker has
    /// no cache. Empty without a daemon.
    pub recalled: &'a [Option<Vec<Recall>>],
    /// The kernel tier's answer to a packet in a virtual network, as a predicate; `None`: it was
    /// not asked.
    pub kernel_tier: Option<&'a str>,
}

/// A packet to explain, by the names of a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question<'a> {
    /// The port it comes in by; `host`: from this machine itself.
    pub port: &'a str,
    /// The peer that sealed it, if it was opened; `None`: it comes in clear.
    pub from_peer: Option<&'a str>,
    /// The packet's flow.
    pub flow: Flow,
    /// The virtual network that it is in; `None`: it is in none.
    pub inside: Option<Inside>,
}

/// A mistake in a question. The messages say what to ask instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuestionError {
    /// A name that the configuration does not have.
    #[error("there is no {what} \"{name}\"; there are {}", .known.join(", "))]
    Unknown {
        /// Kind of the thing that was named.
        what: &'static str,
        /// The name.
        name: String,
        /// Names that there are.
        known: Vec<String>,
    },
    /// A peer's packet by a port that no peer is reached by.
    #[error(
        "packets from a peer arrive by an unprotected port, and \"{port}\" is not one; there {} {}",
        if .unprotected.len() == 1 { "is" } else { "are" }, .unprotected.join(", ")
    )]
    PeerByPort {
        /// The port.
        port: String,
        /// Names of the ports that can be meant.
        unprotected: Vec<String>,
    },
    /// An ICMP error that came sealed: its flow alone decides nothing.
    #[error(
        "an ICMP error from a peer is decided by the packet that it quotes: ask about that packet"
    )]
    IcmpErrorFromPeer,
    /// A virtual network, or its hosts, that are not known.
    #[error("{}", inside::error_text(.0))]
    Inside(InsideError),
    /// ESP to this machine: what decides is inside.
    #[error("ESP to this gateway is decrypted: ask with --from-peer PEER about the packet inside")]
    EspToUs,
    /// A fragment of ESP to this machine.
    #[error(
        "a peer's fragments of ESP are put together; a stranger's are dropped (esp_fragment): ask \
         with --from-peer PEER about the packet inside"
    )]
    EspFragmentToUs,
}

/// The verdict on a packet, with its reasons.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Explained {
    /// The flow.
    pub flow: String,
    /// `forward`, `protect`, `host`, `hold`, `consumed` or `drop`; `unknown`: the file does not say
    /// where the packet goes.
    pub verdict: &'static str,
    /// The drop reason.
    pub reason: Option<&'static str>,
    /// Meaning of the drop reason.
    pub help: Option<&'static str>,
    /// The verdict as a sentence.
    pub text: String,
    /// The policies, as far as they were asked.
    pub policies: Vec<PolicyLookup>,
    /// The connections that it is of or would begin: one sentence each.
    pub connections: Vec<String>,
    /// The rule that let a cleartext packet from outside through to this machine, if no policy did.
    pub let_through: Option<String>,
    /// The route to its destination.
    pub route: Option<String>,
    /// The port it leaves by.
    pub egress: Option<String>,
    /// The peer that it is sealed for.
    pub peer: Option<String>,
    /// Outer addresses.
    pub tunnel: Option<TunnelEnds>,
    /// SPI of the SA that seals the packet, if it may be shown.
    pub spi: Option<String>,
    /// The peer that it is sealed for again, around the first layer.
    pub outer: Option<String>,
    /// The child of charon's that its SA is of, behind the name of the connection: a daemon knows
    /// it, a file does not.
    pub child: Option<String>,
    /// Largest inner packet on its way, bytes.
    pub mtu: Option<u32>,
    /// Of a packet in a virtual network, who sends it, and to whom.
    pub inside: Option<InsideText>,
    /// Generation of all policies together.
    pub generation: u32,
    /// The places where the rules of groups that decide it are decided, if there are network cards:
    /// a daemon knows them, a file does not.
    pub placement: Vec<RulePlace>,
    /// Advice, and limits of the verdict: one sentence each.
    pub notes: Vec<String>,
    /// The explanation as text: headings and contents; an empty heading continues the one before.
    #[serde(skip)]
    pub lines: Vec<(&'static str, String)>,
}

/// A lookup in the policies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PolicyLookup {
    /// `inbound` or `outbound`.
    pub direction: &'static str,
    /// Generation of the policies of this direction and family for the port it came by.
    pub generation: u32,
    /// Name of the policy that decides.
    pub decided_by: Option<String>,
    /// Set if that policy asks for ports or types, which a later fragment lacks.
    pub fragment_lacks_ports: bool,
    /// Policies that match too and lost, in order of precedence.
    pub beat: Vec<String>,
    /// The tier that would answer: `cache` or `classifier`.
    pub tier: &'static str,
    /// The reason for that tier.
    pub tier_reason: String,
}

/// Returns the lookups in the policies that the walk makes for a packet and remembers, as keys of a
/// daemon's flow caches. No cache remembers packets that this machine itself sends.
///
/// # Errors
/// [`QuestionError`].
pub fn questions(
    (snapshot, now_ns): (&Snapshot, u64),
    question: Question<'_>,
) -> Result<Vec<Key>, QuestionError> {
    let arrival = arrival(snapshot, question)?;
    if arrival == Arrival::Clear(snapshot.host().unwrap_or(PortId(u16::MAX))) {
        return Ok(Vec::new());
    }
    let told = judged((snapshot, now_ns), arrival, question)?;
    let asked = told.consultations.iter();
    Ok(asked.map(|asked| Key { scope: asked.scope, flow: asked.flow }).collect())
}

/// Asks the walk.
fn judged(
    at: (&Snapshot, u64),
    arrival: Arrival,
    question: Question<'_>,
) -> Result<Explanation, QuestionError> {
    Ok(match question.inside {
        None => dataplane::explain::explain(at, arrival, question.flow),
        Some(inside) => dataplane::explain::explain_inside(at, arrival, inside, question.flow)
            .map_err(QuestionError::Inside)?,
    })
}

fn arrival(snapshot: &Snapshot, question: Question<'_>) -> Result<Arrival, QuestionError> {
    let port = port_named(snapshot, question.port)?;
    let arrival = match question.from_peer {
        None => Arrival::Clear(port),
        Some(peer) => Arrival::Opened(port, set_of_peer(snapshot, peer)?),
    };
    check_question(snapshot, arrival, &question.flow)?;
    Ok(arrival)
}

/// Explains the verdict on a packet. Sends, seals and counts nothing.
///
/// # Errors
/// [`QuestionError`].
pub fn explain(picture: Picture<'_>, question: Question<'_>) -> Result<Explained, QuestionError> {
    let Picture { snapshot, now_ns, .. } = picture;
    let (arrival, flow) = (arrival(snapshot, question)?, question.flow);
    let mut told = judged((snapshot, now_ns), arrival, question)?;
    let depends_on_routing = matches!(
        told.verdict,
        Verdict::Drop(
            DropReason::NoRoute
                | DropReason::NoMatch
                | DropReason::Unprotected
                | DropReason::PolicyDiscard
        )
    );
    let is_unknown =
        picture.routing == Routing::Unknown && depends_on_routing && told.carried.is_none();
    if is_unknown {
        told.consultations = consult(snapshot, arrival, &flow);
    }
    Ok(Story { picture, snapshot, arrival, flow, told, is_unknown }.explained())
}

/// The policies' answer for a packet of which it is not known where it goes: outbound, if it comes
/// from inside and leaves by an unprotected port, inbound if it comes from outside.
fn consult(snapshot: &Snapshot, arrival: Arrival, flow: &Flow) -> Vec<Consultation> {
    let (port, opened_by) = match arrival {
        Arrival::Clear(port) => (port, None),
        Arrival::Opened(port, set) => (port, Some(set)),
    };
    let (asked, exit) = match snapshot.port(port).side {
        // By an unprotected port that no policy names.
        Side::Protected => (policy::Question::Through, Exit::Outside(PortClass(0))),
        Side::Unprotected => (policy::Question::Enter, Exit::Other),
    };
    let scope = snapshot.scope(port, asked, flow.family, opened_by);
    let mut consultations = Vec::new();
    snapshot.tables().judge(scope, exit, flow, &mut |asked| consultations.push(asked));
    consultations
}

/// The port of that name.
///
/// # Errors
/// [`QuestionError::Unknown`] with the names there are.
pub fn port_named(snapshot: &Snapshot, name: &str) -> Result<PortId, QuestionError> {
    snapshot.port_named(name).ok_or_else(|| QuestionError::Unknown {
        what: "port",
        name: name.to_owned(),
        known: snapshot.ports().map(|(_, port)| port.name.clone()).collect(),
    })
}

/// The SA set with this number.
pub fn set_of(snapshot: &Snapshot, id: SaSetId) -> Option<&SaSet> {
    snapshot.sad().places().get(id).map(|place| snapshot.set(place))
}

fn set_of_peer(snapshot: &Snapshot, peer: &str) -> Result<SetIndex, QuestionError> {
    let place = snapshot.sets().find(|(_, set)| set.peer == peer);
    place.map(|(place, _)| place).ok_or_else(|| QuestionError::Unknown {
        what: "peer",
        name: peer.to_owned(),
        known: snapshot.sets().map(|(_, set)| set.peer.clone()).collect(),
    })
}

/// Refuses what a flow cannot answer, because its packets say more than the flow does.
fn check_question(snapshot: &Snapshot, arrival: Arrival, flow: &Flow) -> Result<(), QuestionError> {
    let is_unprotected = |port: &PortInfo| port.side == Side::Unprotected;
    match arrival {
        Arrival::Opened(port, _) if !is_unprotected(snapshot.port(port)) => {
            let ports = snapshot.ports().map(|(_, port)| port);
            let unprotected = ports.filter(|port| is_unprotected(port));
            let unprotected = unprotected.map(|port| port.name.clone()).collect();
            Err(QuestionError::PeerByPort { port: snapshot.port(port).name.clone(), unprotected })
        }
        Arrival::Opened(..) if wire::icmp::is_error(flow) => Err(QuestionError::IcmpErrorFromPeer),
        Arrival::Clear(port)
            if is_unprotected(snapshot.port(port))
                && flow.protocol == protocol::ESP
                && snapshot.routes().lookup(flow.destination_address())
                    == Some(RouteTarget::Local) =>
        {
            Err(match flow.upper {
                Upper::Fragment => QuestionError::EspFragmentToUs,
                _ => QuestionError::EspToUs,
            })
        }
        _ => Ok(()),
    }
}

/// An explanation with what its numbers mean.
struct Story<'a> {
    picture: Picture<'a>,
    snapshot: &'a Snapshot,
    arrival: Arrival,
    flow: Flow,
    told: Explanation,
    /// Set if the packet's next hop is not known.
    is_unknown: bool,
}

impl Story<'_> {
    fn port_name(&self, port: PortId) -> &str {
        &self.snapshot.port(port).name
    }

    fn peer_name(&self, set: SetIndex) -> &str {
        &self.snapshot.set(set).peer
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("packet", self.packet())];
        lines.push(("verdict", self.verdict()));
        if let (Verdict::Drop(reason), false) = (self.told.verdict, self.is_unknown) {
            lines.push(("", format!("{}: {}", reason.name(), reason.help())));
        }
        for (place, consultation) in self.told.consultations.iter().enumerate() {
            lines.push((book_name(consultation.domain.book()), self.decided(consultation)));
            for beaten in &consultation.beaten {
                let policy = policy_text(self.snapshot, self.snapshot.spd().policy(*beaten));
                lines.push(("", format!("beat {policy}")));
            }
            let (tier, reason) = self.tier(place);
            lines.push(("", format!("looked up in the {tier}: {reason}")));
        }
        for seen in &self.told.connections {
            lines.push(("connection", self.connection(seen)));
        }
        if let Some(carried) = &self.told.carried {
            lines.extend(inside::lines(carried, &self.flow, self.picture.kernel_tier));
        }
        match self.let_through() {
            Some(how) => lines.push(("policies", how)),
            None if self.told.consultations.is_empty() && self.told.connections.is_empty() => {
                lines.push(("policies", "none applies".into()));
            }
            None => {}
        }
        if !self.is_unknown {
            lines.push(("route", self.route()));
            lines.extend(self.leaving());
        }
        lines.extend(self.notes().into_iter().map(|note| ("note", note)));
        lines
    }

    /// A connection at a port of the packet's way.
    fn connection(&self, seen: &SeenConnection) -> String {
        let port = match seen.zone.owner() {
            ZoneOwner::Port(port) => format!("port {}", self.port_name(port)),
            ZoneOwner::Network(vni) => format!("vni {vni}"),
        };
        let rule = &self.snapshot.spd().policy(seen.rule).name;
        match &seen.is {
            Some(found) => format!(
                "{port} knows it ({}), by rule {rule}: its groups are not asked",
                found.status.state.name()
            ),
            None => format!("would be new at {port}, by rule {rule}"),
        }
    }

    fn ingress(&self) -> PortId {
        match self.arrival {
            Arrival::Clear(port) | Arrival::Opened(port, _) => port,
        }
    }

    /// Advice, and limits of the verdict.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_unknown {
            notes.push(
                "the daemon takes addresses and routes from Linux: ask it, without --config, or \
                 write `addresses` at the ports and [[route]] into the file"
                    .to_owned(),
            );
            if let Some(service) = self.admitting_service() {
                notes.push(format!(
                    "if it is for this machine, `allow_host` of port {} lets it in: {}",
                    self.port_name(self.ingress()),
                    service_text(service)
                ));
            }
        }
        notes.extend(self.missing_service());
        if self.told.carried.is_some() && self.picture.recalled.is_empty() {
            notes.push("a file holds no endpoints: the daemon has them, ask it".to_owned());
        }
        let unmatched = self.told.consultations.iter();
        let mut unmatched = unmatched.filter(|asked| asked.decider == Decider::None);
        let of_spd = |asked: &Consultation| Some((asked.domain.book().direction()?, asked.flow));
        if let Some((direction, flow)) = unmatched.find_map(of_spd) {
            let way = (direction, self.ingress().0);
            notes.extend(nearest::nearest(self.snapshot.spd(), way, &flow));
        }
        notes.extend(self.dead_ports());
        notes
    }

    /// The entry of `allow_host` that lets the packet in, if it comes in cleartext from outside.
    fn admitting_service(&self) -> Option<&HostService> {
        let Arrival::Clear(port) = self.arrival else { return None };
        let port = self.snapshot.port(port);
        let is_outside = port.side == Side::Unprotected;
        port.allow_host.iter().find(|service| is_outside && covers(service, &self.flow))
    }

    /// The entry of `allow_host` that would let the packet in.
    fn missing_service(&self) -> Option<String> {
        let Arrival::Clear(port) = self.arrival else { return None };
        if self.told.carried.is_some() {
            return None;
        }
        let port = self.snapshot.port(port);
        let target = self.snapshot.routes().lookup(self.flow.destination_address());
        let is_for_us = target == Some(RouteTarget::Local) && port.side == Side::Unprotected;
        if !is_for_us || self.told.verdict != Verdict::Drop(DropReason::NoMatch) {
            return None;
        }
        let ports = match self.flow.upper {
            Upper::Ports { destination, .. } => {
                Some(policy::PortRange { lo: destination, hi: destination })
            }
            _ => None,
        };
        let service = service_text(&HostService { protocol: self.flow.protocol, ports });
        Some(format!("to let it in, add \"{service}\" to `allow_host` of port {}", port.name))
    }

    /// Ports on the packet's way that are not up; if no route was found, all that are not, because
    /// Linux takes their routes away.
    fn dead_ports(&self) -> impl Iterator<Item = String> + '_ {
        let (ingress, egress) = (self.ingress(), self.told.egress);
        let no_route = self.told.verdict == Verdict::Drop(DropReason::NoRoute);
        let concerns = move |dead: &&DeadPort| {
            let is_named = |port| self.port_name(port) == dead.name;
            no_route || is_named(ingress) || egress.is_some_and(is_named)
        };
        let dead = self.picture.dead_ports.iter().filter(concerns).take(MAX_DEAD_PORTS);
        dead.map(move |DeadPort { name, state, reason }| {
            let consequence = match () {
                () if self.port_name(ingress) == name => "no packet comes in by it",
                () if egress.is_some_and(|port| self.port_name(port) == name) => {
                    "no packet leaves by it"
                }
                () => "Linux has no routes by it",
            };
            let colon = if reason.is_empty() { "" } else { ": " };
            format!("port {name} is {state}{colon}{reason}; {consequence}")
        })
    }

    /// The kind of a TCP segment, if a rule that was asked tells them apart.
    fn segments(&self) -> &'static str {
        let spd = self.snapshot.spd();
        let tells = self.told.consultations.iter().any(|asked| spd.tells_segments(asked.domain));
        match (tells && self.flow.protocol == protocol::TCP, self.flow.opens) {
            (false, _) => "",
            (true, true) => " (new: SYN without ACK)",
            (true, false) => " (established: not SYN alone)",
        }
    }

    fn packet(&self) -> String {
        let flow = flow_text(&self.flow);
        let inside = self.told.carried.as_ref().map_or(String::new(), |carried| {
            format!(" in VNI {}, sent by host {}", carried.vni, carried.host)
        });
        let (port, how) = match self.arrival {
            Arrival::Clear(port) if self.snapshot.host() == Some(port) => {
                return format!("{flow}{}, from this machine itself", self.segments());
            }
            Arrival::Clear(port) => (port, "in cleartext".to_owned()),
            Arrival::Opened(port, set) => {
                (port, format!("sealed by peer {} and opened", self.peer_name(set)))
            }
        };
        let side = side_text(self.snapshot.port(port).side);
        let flow = format!("{flow}{}{inside}", self.segments());
        format!("{flow}, received by {side} port {} {how}", self.port_name(port))
    }

    fn verdict(&self) -> String {
        if self.is_unknown {
            let text = "UNKNOWN: the file names neither addresses nor routes, so it does not say \
                        where the packet goes";
            return text.into();
        }
        match self.told.verdict {
            Verdict::Forward(port) => {
                let side = side_text(self.snapshot.port(port).side);
                format!("FORWARD: leaves in cleartext by {side} port {}", self.port_name(port))
            }
            Verdict::Protect(set) => {
                let egress = self.told.egress.map_or("no port", |port| self.port_name(port));
                format!("PROTECT: sealed for peer {}, leaves by port {egress}", self.peer_name(set))
            }
            Verdict::Host => "HOST: handed to Linux on this machine".into(),
            Verdict::Drop(_) => "DROP".into(),
            Verdict::Hold(HoldKind::Sa) => {
                "HOLD: waits up to 30 s for an SA; a key manager is asked for it".into()
            }
            Verdict::Hold(_) => "HOLD: waits for the MAC address of its next hop".into(),
            Verdict::Consumed => "CONSUMED: replaced by its fragments".into(),
        }
    }

    fn decided(&self, consultation: &Consultation) -> String {
        let text = |policy| policy_text(self.snapshot, self.snapshot.spd().policy(policy));
        match consultation.decider {
            Decider::Policy(policy) => format!("decided by {}", text(policy)),
            Decider::FragmentPorts(policy) => {
                format!(
                    "stopped by {}, which matches fields that only the first fragment has: a later \
                     one waits for it, and is then treated as the whole packet",
                    text(policy)
                )
            }
            Decider::None => "no policy matches".into(),
        }
    }

    /// Names what let a cleartext packet from outside through to this machine, if no policy did.
    fn let_through(&self) -> Option<String> {
        let Arrival::Clear(port) = self.arrival else { return None };
        let (port, told) = (self.snapshot.port(port), &self.told);
        if port.side == Side::Protected || told.verdict != Verdict::Host {
            return None;
        }
        if told.consultations.iter().any(|asked| asked.decider != Decider::None) {
            return None;
        }
        let no_policy = match told.consultations.is_empty() {
            true => "none applies",
            false => "none matches",
        };
        let Some(service) = port.allow_host.iter().find(|service| covers(service, &self.flow))
        else {
            return Some("none applies: neighbour discovery always passes".into());
        };
        let as_ike = match self.flow.upper {
            Upper::Ports { destination: 4500, .. } if self.flow.protocol == protocol::UDP => {
                ", taken for IKE (zero marker)"
            }
            _ => "",
        };
        Some(format!(
            "{no_policy}: let through by `allow_host` of port {}: {}{as_ike}",
            port.name,
            service_text(service),
        ))
    }

    fn route(&self) -> String {
        let Some(target) = self.told.route else {
            return match self.told.verdict {
                Verdict::Drop(DropReason::NoRoute) => "none".into(),
                _ => "not looked up".into(),
            };
        };
        let onward = self.told.carried.as_ref().and_then(|carried| carried.onward);
        let flow = onward.unwrap_or(self.flow);
        let prefix = self.prefix(flow.destination_address(), target);
        format!("{prefix}{}", self.target_text(target))
    }

    fn target_text(&self, target: RouteTarget) -> String {
        match target {
            RouteTarget::Local => "our own address".into(),
            RouteTarget::Broadcast => "a broadcast address".into(),
            RouteTarget::Blackhole => "blackhole".into(),
            RouteTarget::Elsewhere => "a netdev that is no port".into(),
            RouteTarget::Via(hop) => self.hop_text(hop),
        }
    }

    fn hop_text(&self, hop: NextHopId) -> String {
        let hop = self.snapshot.next_hop(hop);
        let port = self.port_name(hop.port);
        match hop.gateway {
            Some(gateway) => format!("via {gateway} by port {port}"),
            None => format!("on the link of port {port}"),
        }
    }

    /// The prefix that gave a forwarding or blackhole route, with an arrow.
    fn prefix(&self, destination: Address, target: RouteTarget) -> String {
        if matches!(target, RouteTarget::Local | RouteTarget::Broadcast) {
            return String::new();
        }
        let prefixes = self.picture.prefixes.iter();
        let longest = prefixes
            .map(|prefix| (AddressRange::network(prefix.address, prefix.length), prefix.length))
            .filter(|(range, _)| range.contains(destination))
            .max_by_key(|(_, length)| *length);
        longest.map_or(String::new(), |(range, _)| format!("{range} "))
    }

    /// Describes how the packet leaves: port, MTU, and for a sealed packet tunnel and SA.
    fn leaving(&self) -> Vec<(&'static str, String)> {
        let Some(port) = self.told.egress else { return Vec::new() };
        let mut lines = vec![("egress", format!("port {}", self.port_name(port)))];
        if let Verdict::Protect(set) = self.told.verdict {
            let set = self.snapshot.set(set);
            let sa = self.told.sealed_by.map(|sa| self.snapshot.outbound_sa(sa));
            let tunnel = sa.map_or(set.tunnel, |sa| *sa.tunnel());
            let to = set.outer.and_then(|outer| set_of(self.snapshot, outer)).unwrap_or(set);
            let end = if set.outer.is_some() { to.tunnel.remote } else { tunnel.remote };
            let target = self.snapshot.routes().lookup(end.into());
            let way = target.map_or("no route".into(), |target| self.target_text(target));
            let carried = sa.map(|sa| sa.encapsulation);
            let (mode, udp) = carried.map_or((Mode::Tunnel, None), |way| (way.mode, way.udp));
            let udp = udp.map_or(String::new(), |ports| {
                format!(", in UDP {} -> {}", ports.local, ports.remote)
            });
            let ends = format!("{} -> {}{udp}, {way}", tunnel.local, tunnel.remote);
            lines.push((mode.name(), ends));
            if let Some(sa) = sa {
                let spi = self.spi(sa).unwrap_or_else(|| "unknown".into());
                let esn = match sa.sequence.numbers() {
                    SequenceNumbers::Short => "",
                    SequenceNumbers::Extended => ", ESN",
                };
                let card = if sa.card.is_some() { ", in the card of that port" } else { "" };
                lines.push(("SA", format!("SPI {spi}, {}{esn}{card}", sa.suite)));
            }
            lines.extend(self.sealed_again());
        }
        if let Some(mtu) = self.told.mtu {
            lines.push(("MTU", format!("{mtu} bytes, the largest packet that passes whole")));
        }
        lines
    }

    /// The SPI that a key file gives an SA.
    fn spi(&self, sa: &OutboundSa) -> Option<String> {
        (self.picture.spis == Spis::Configured).then(|| sa.spi.to_string())
    }

    fn explained(&self) -> Explained {
        let told = &self.told;
        let (verdict, reason) = match told.verdict {
            Verdict::Forward(_) => ("forward", None),
            Verdict::Protect(_) => ("protect", None),
            Verdict::Host => ("host", None),
            Verdict::Hold(_) => ("hold", None),
            Verdict::Consumed => ("consumed", None),
            Verdict::Drop(reason) => ("drop", Some(reason)),
        };
        let (verdict, reason) = if self.is_unknown { ("unknown", None) } else { (verdict, reason) };
        let set = match told.verdict {
            Verdict::Protect(set) => Some(self.snapshot.set(set)),
            _ => None,
        };
        let sa = told.sealed_by.map(|sa| self.snapshot.outbound_sa(sa));
        let tunnel = sa.map(|sa| *sa.tunnel()).or_else(|| set.map(|set| set.tunnel));
        let kernel_tier = self.picture.kernel_tier;
        let inside = told.carried.as_ref().map(|carried| InsideText::of(carried, kernel_tier));
        Explained {
            flow: flow_text(&self.flow),
            verdict,
            reason: reason.map(DropReason::name),
            help: reason.map(DropReason::help),
            text: self.verdict(),
            policies: (0..).zip(&told.consultations).map(|of| self.consulted(of)).collect(),
            connections: told.connections.iter().map(|seen| self.connection(seen)).collect(),
            let_through: self.let_through(),
            route: told.route.map(|_| self.route()),
            egress: told.egress.map(|port| self.port_name(port).to_owned()),
            peer: set.map(|set| set.peer.clone()),
            tunnel: tunnel.map(|ends| TunnelEnds { local: ends.local, remote: ends.remote }),
            spi: sa.and_then(|sa| self.spi(sa)),
            outer: told.sealed_again_by.map(|(set, _)| self.peer_name(set).to_owned()),
            child: None,
            mtu: told.mtu,
            inside,
            generation: self.snapshot.generation().0,
            placement: Vec::new(),
            notes: self.notes(),
            lines: self.lines(),
        }
    }
}
