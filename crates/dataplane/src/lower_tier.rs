//! The part of virtual networks that a tier below the workers may answer by itself (I4): where the
//! walk, whatever packet comes, asks nothing but who the endpoints are and where their hosts live;
//! and of networks with groups the flows on which the verdict is known.
//!
//! Only what depends on the flow alone goes there. Where connections are tracked every packet
//! changes what is known of its connection, so all of them are the workers'.

use policy::{Action, DomainId, FlowAction, Generation, GroupMode, Question, Tracks};
use wire::flow::protocol;
use wire::{Address, Family, Flow, LinkAddress, Upper};

use crate::decide::{self, Routed, route_carried};
use crate::ids::PortId;
use crate::overlays::{Overlay, VirtualNetwork};
use crate::port::{Adjacency, Medium, Side};
use crate::routes::LastRoute;
use crate::snapshot::Snapshot;

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
    /// Groups judge them by their flow: see [`Snapshot::flow_verdict_below`].
    Asks(JudgedBy),
    /// None: connections are tracked, or the port is one whose packets are judged before.
    Closed,
}

/// The rules that judge the flows of a network: while they are equal, so are the verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JudgedBy {
    domain: DomainId,
    generation: Generation,
    wraps: u32,
}

/// The verdict of a network's groups on all packets of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowVerdictBelow {
    /// They are forwarded.
    Permit,
    /// They are dropped.
    Drop,
}

impl Snapshot {
    /// Returns the part of a network that a lower tier may answer.
    pub fn network_below(&self, network: &VirtualNetwork) -> NetworkBelow {
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
        if tables.tracks(scope, exit) != Tracks::default() {
            return NetworkBelow::Closed;
        }
        let domain = tables.scopes().domain(scope);
        let (generation, wraps) = (spd.generation(domain), spd.wraps());
        NetworkBelow::Asks(JudgedBy { domain, generation, wraps })
    }

    /// Returns the verdict of a network's groups on a flow, if it holds for every packet of the
    /// flow while the network [asks by the same rules](JudgedBy). `None`: the workers decide about
    /// each, as they do of fragments; or they count it for an operator who tries a group out.
    pub fn flow_verdict_below(
        &self,
        network: &VirtualNetwork,
        flow: &Flow,
    ) -> Option<FlowVerdictBelow> {
        let NetworkBelow::Asks(_) = self.network_below(network) else { return None };
        if flow.family != Family::V4 || flow.upper == Upper::Fragment || flow.opens {
            return None;
        }
        let verdict = decide::judge_inside(self, network, flow);
        let is_audited = verdict.deciders.slots().any(|slot| {
            let action = self.spd().policy(slot).action;
            matches!(action, Action::Deny(GroupMode::Audit) | Action::NoRule(GroupMode::Audit))
        });
        match verdict.action {
            _ if is_audited => None,
            FlowAction::Permit => Some(FlowVerdictBelow::Permit),
            FlowAction::Refuse(_) => Some(FlowVerdictBelow::Drop),
            FlowAction::Protect(_) => None,
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
        let scope = self.scope(overlay.port, Question::Leave, Family::V4, None);
        if self.tables().asks(scope, self.exit(hop)) {
            return None;
        }
        let Adjacency { port, mac } = match host_mac {
            Some(mac) if self.is_on_link(hop) => {
                Adjacency { port: self.egress(hop), mac: Some(mac) }
            }
            _ => self.adjacency(hop, host),
        };
        let is_ethernet = self.path_port(port).medium == Medium::Ethernet;
        mac.filter(|_| is_ethernet).map(|mac| HostWay { port, mac })
    }
}
