//! The part of virtual networks that a tier below the workers may answer by itself (I4): where the
//! walk, whatever packet comes, asks nothing but who the endpoints are and where their hosts live;
//! and of networks with groups the flows on which the verdict is known.
//!
//! Only what holds for every packet of a flow goes there. Where connections are tracked that is
//! what an established connection permits: its packets change nothing but when it was last seen,
//! and [`Snapshot::connection_seen_below`] makes up for that.

use std::fmt;

use policy::{
    Action, Deciders, DomainId, FlowAction, Generation, GroupMode, KnownConnections, Question,
    Tracks,
};
use wire::flow::protocol;
use wire::{Address, Claim, ClaimKind, Family, Flow, LinkAddress, Upper};

use crate::connections::{Found, Key, NotLasting};
use crate::decide::{self, Routed, route_carried};
use crate::ids::{NextHopId, PortId};
use crate::overlays::{Overlay, SourceCheck, VirtualNetwork};
use crate::port::{Adjacency, Medium, Side};
use crate::routes::LastRoute;
use crate::snapshot::Snapshot;
use crate::tracking::Appearance;

/// The way of overlay packets to a host, which are all sent there in clear.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostWay {
    /// The port that they leave by.
    pub port: PortId,
    /// Link address of the next hop.
    pub mac: LinkAddress,
}

/// The part of a network that a lower tier may answer: of its IPv4 packets that come by the port of
/// its overlay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkBelow {
    /// All between its endpoints are forwarded: no group judges them.
    Open,
    /// Groups judge them by their flow, or by its connection: see [`Snapshot::flow_below`].
    Asks(JudgedBy),
    /// None: the port is one whose packets are judged before.
    Closed,
}

/// The rules that judge the flows of a network: while they are equal, so are the verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JudgedBy {
    domain: DomainId,
    generation: Generation,
    wraps: u32,
    /// Connections are tracked.
    tracks: bool,
}

/// The verdict of a network's groups on all packets of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowVerdictBelow {
    /// They are forwarded.
    Permit,
    /// They are dropped.
    Drop,
}

/// The grounds of a verdict on a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Grounds {
    /// The rules alone: it holds while they stand.
    Rules,
    /// The flow's connection: it holds while the rules stand and the connection
    /// [lasts](Snapshot::connection_lasts_below).
    Connection,
}

/// All that a lower tier may say of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowBelow {
    /// The verdict.
    pub verdict: FlowVerdictBelow,
    /// Its grounds.
    pub grounds: Grounds,
    /// The rules that each packet counts for.
    pub deciders: Deciders,
    /// The claim that the tier may make about packets of the flow that it leaves to the workers.
    pub claim: Option<ClaimBelow>,
}

/// A claim that the walk takes for its own verdict, while the domain has the generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimBelow {
    /// Number of the domain.
    pub domain: u32,
    /// Its generation.
    pub generation: u32,
    /// The verdict and its rule.
    pub claim: Claim,
}

/// The reason why a lower tier has no verdict on a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NotBelow {
    /// The network has no groups, or none of its packets is answered below.
    NotAsked,
    /// Packets of IPv6, fragments and packets that begin TCP connections are the workers'.
    Workers,
    /// A group that is tried out decides: workers count what it would deny.
    TriedOut,
    /// Connections are tracked, and none can be of such a flow alone: ICMP echoes are told apart by
    /// their identifiers.
    NoConnections,
    /// Connections are tracked, and the flow's connection is not to be had.
    Connection(NotLasting),
    /// The connection began by rules that have changed since: its next packet is judged anew.
    JudgedBefore,
}

/// The claim of a verdict that one rule gives: a claim names no more.
fn claim(by: JudgedBy, verdict: FlowVerdictBelow, deciders: Deciders) -> Option<ClaimBelow> {
    let mut slots = deciders.slots();
    let (rule, None) = (slots.next()?.0, slots.next()) else { return None };
    let kind = match verdict {
        FlowVerdictBelow::Permit => ClaimKind::Permit,
        FlowVerdictBelow::Drop => ClaimKind::Drop,
    };
    let (domain, generation) = (by.domain.0.into(), by.generation.0);
    Some(ClaimBelow { domain, generation, claim: Claim { kind, rule } })
}

impl fmt::Display for NotBelow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotBelow::NotAsked => "no group judges it",
            NotBelow::Workers => {
                "packets of IPv6, fragments, and the first packets of TCP connections are theirs"
            }
            NotBelow::TriedOut => "a group in audit mode would deny it, and workers count that",
            NotBelow::NoConnections => {
                "its network tracks connections, and ICMP echoes are told apart by identifiers"
            }
            NotBelow::JudgedBefore => {
                "its connection began by earlier rules, and its next packet is judged anew"
            }
            NotBelow::Connection(why) => {
                return write!(f, "its network tracks connections, and of the flow's: {why}");
            }
        })
    }
}

impl Snapshot {
    /// Returns the part of a network that a lower tier may answer. Of a network whose hosts are
    /// told direct paths it is none: workers tell them, of what they see.
    pub fn network_below(&self, network: &VirtualNetwork) -> NetworkBelow {
        match self.tells_direct_paths(network) {
            true => NetworkBelow::Closed,
            false => self.judged_below(network),
        }
    }

    /// Returns whether the hosts of a network are told direct paths: it is one that needs no
    /// judgement of ours.
    pub fn tells_direct_paths(&self, network: &VirtualNetwork) -> bool {
        let overlays = self.overlays();
        let told = overlays.and_then(|it| it.overlay(network.overlay).direct_port);
        told.is_some()
            && network.source_check == SourceCheck::Endpoint
            && self.judged_below(network) == NetworkBelow::Open
    }

    /// The part of a network whose packets are judged by their flow, or not at all.
    fn judged_below(&self, network: &VirtualNetwork) -> NetworkBelow {
        let Some(overlays) = self.overlays() else { return NetworkBelow::Closed };
        let port = self.path_port(overlays.overlay(network.overlay).port);
        if port.side != Side::Protected || port.medium != Medium::Ethernet {
            return NetworkBelow::Closed;
        }
        let (scope, exit) = decide::question_inside(self, network, Family::V4);
        let (tables, spd) = (self.tables(), self.spd());
        if !tables.asks(scope, exit) {
            return NetworkBelow::Open;
        }
        let domain = tables.scopes().domain(scope);
        let (generation, wraps) = (spd.generation(domain), spd.wraps());
        let tracks = tables.tracks(scope, exit) != Tracks::default();
        NetworkBelow::Asks(JudgedBy { domain, generation, wraps, tracks })
    }

    /// Returns the verdict of a network's groups on a flow, if it holds for every packet of the
    /// flow that neither begins nor ends a connection, while the network [asks by the same
    /// rules](JudgedBy) and its [grounds](Grounds) last. `now_s` is the time by the walk's clock.
    ///
    /// # Errors
    /// [`NotBelow`]: workers decide about each packet, for this reason.
    pub fn flow_below(
        &self,
        network: &VirtualNetwork,
        flow: &Flow,
        now_s: u32,
    ) -> Result<FlowBelow, NotBelow> {
        let NetworkBelow::Asks(by) = self.network_below(network) else {
            return Err(NotBelow::NotAsked);
        };
        if flow.family != Family::V4 || flow.upper == Upper::Fragment || flow.opens {
            return Err(NotBelow::Workers);
        }
        if by.tracks {
            return self.connection_below(network, flow, now_s);
        }
        let said = decide::judge_inside(self, network, flow, KnownConnections::default());
        let is_tried_out = said.deciders.slots().any(|slot| {
            let action = self.spd().policy(slot).action;
            matches!(action, Action::Deny(GroupMode::Audit) | Action::NoRule(GroupMode::Audit))
        });
        let verdict = match said.action {
            _ if is_tried_out => return Err(NotBelow::TriedOut),
            FlowAction::Permit => FlowVerdictBelow::Permit,
            FlowAction::Refuse(_) => FlowVerdictBelow::Drop,
            FlowAction::Protect(_) => return Err(NotBelow::Workers),
        };
        let (grounds, deciders) = (Grounds::Rules, said.deciders);
        Ok(FlowBelow { verdict, grounds, deciders, claim: claim(by, verdict, deciders) })
    }

    /// As [`flow_below`](Self::flow_below), in a network that tracks connections. A flow that none
    /// permits may become one's answer at any moment, so of those nothing is said.
    fn connection_below(
        &self,
        network: &VirtualNetwork,
        flow: &Flow,
        now_s: u32,
    ) -> Result<FlowBelow, NotBelow> {
        let rule = Some(self.lasting_connection(network, flow, now_s)?.judgement.rule);
        let known = KnownConnections { ingress: rule, egress: rule };
        let said = decide::judge_inside(self, network, flow, known);
        if said.action != FlowAction::Permit {
            return Err(NotBelow::Workers);
        }
        let (verdict, grounds) = (FlowVerdictBelow::Permit, Grounds::Connection);
        // Each packet moves its connection on: the walk takes no claim.
        Ok(FlowBelow { verdict, grounds, deciders: said.deciders, claim: None })
    }

    /// Returns whether a verdict that has a flow's connection for its [grounds](Grounds) still
    /// holds, and will for some seconds.
    pub fn connection_lasts_below(
        &self,
        network: &VirtualNetwork,
        flow: &Flow,
        now_s: u32,
    ) -> bool {
        self.lasting_connection(network, flow, now_s).is_ok()
    }

    /// The connection of a flow, if a lower tier may pass its packets.
    fn lasting_connection(
        &self,
        network: &VirtualNetwork,
        flow: &Flow,
        now_s: u32,
    ) -> Result<Found, NotBelow> {
        let gate = self.gate_of_network(network);
        let none = NotBelow::Connection(NotLasting::None);
        let key = Key::of(flow, gate.zone).ok_or(NotBelow::NoConnections)?;
        let connections = self.connections().ok_or(none)?;
        let found = connections.lasting(&key, now_s).map_err(NotBelow::Connection)?;
        let domain = DomainId::new(gate.class, found.judgement.domain.book(), key.family());
        let by = (found.judgement.domain, found.judgement.generation);
        let is_of_now = by == (domain, self.spd().generation(domain));
        if is_of_now { Ok(found) } else { Err(NotBelow::JudgedBefore) }
    }

    /// Moves a flow's connection on by the last packet of the flow that a lower tier passed, in
    /// second `seen_s` by the walk's clock.
    pub fn connection_seen_below(&self, network: &VirtualNetwork, flow: &Flow, seen_s: u32) {
        /// Flags of the TCP segments that a lower tier passes.
        const ACK: u8 = 0x10;
        let key = Key::of(flow, self.gate_of_network(network).zone);
        let appearance = Appearance::of_flow(flow, ACK, None);
        if let (Some(connections), Some(key), Some(seen)) = (self.connections(), key, appearance) {
            connections.seen_below(&key, seen.shown(), seen_s);
        }
    }

    /// Returns whether the walk may have to complete checksums of packets that come by a port.
    pub fn completes_checksums_of(&self, port: PortId) -> bool {
        self.path_port(port).completes_checksums
    }

    /// Returns the way of an overlay's IPv4 packets to a host, if none of them is judged, and none
    /// sealed. `host_mac` is the link address that the packet's endpoint names, if it does. `None`:
    /// the walk decides about each.
    pub fn way_below(
        &self,
        overlay: &Overlay,
        host: Address,
        host_mac: Option<LinkAddress>,
    ) -> Option<HostWay> {
        let entrances = overlay.entrances.iter().filter(|entrance| entrance.family == Family::V4);
        let mut ways = entrances.map(|entrance| self.way_from(overlay, *entrance, host, host_mac));
        let first = ways.next()??;
        ways.all(|way| way == Some(first)).then_some(first)
    }

    fn way_from(
        &self,
        overlay: &Overlay,
        entrance: Address,
        host: Address,
        host_mac: Option<LinkAddress>,
    ) -> Option<HostWay> {
        let hop = self.hop_below(overlay.port, entrance, host)?;
        let Adjacency { port, mac } = match host_mac {
            Some(mac) if self.is_on_link(hop) => {
                Adjacency { port: self.egress(hop), mac: Some(mac) }
            }
            _ => self.adjacency(hop, host),
        };
        let is_ethernet = self.path_port(port).medium == Medium::Ethernet;
        mac.filter(|_| is_ethernet).map(|mac| HostWay { port, mac })
    }

    /// The next hop of IPv4 packets from an entrance, on the port of its overlay, to a host, if
    /// none of them is judged, and none sealed.
    pub(crate) fn hop_below(
        &self,
        ingress: PortId,
        entrance: Address,
        host: Address,
    ) -> Option<NextHopId> {
        if host.family != Family::V4 {
            return None;
        }
        let flow = Flow {
            family: Family::V4,
            source: entrance.value,
            destination: host.value,
            protocol: protocol::UDP,
            upper: Upper::None,
            opens: false,
        };
        let Ok(Routed::Inside(hop)) = route_carried(self, &mut LastRoute::nothing(), &flow) else {
            return None;
        };
        let scope = self.scope(ingress, Question::Leave, Family::V4, None);
        (!self.tables().asks(scope, self.exit(hop))).then_some(hop)
    }
}
