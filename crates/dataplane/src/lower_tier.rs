//! The part of virtual networks that a tier below the workers may answer by itself (I4): where the
//! walk, whatever packet comes, asks nothing but who the endpoints are and where their hosts live.

use policy::Question;
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

impl Snapshot {
    /// Returns whether all IPv4 packets between endpoints of a network are forwarded if they come
    /// by the port of its overlay: no group judges them.
    pub fn is_open_below(&self, network: &VirtualNetwork) -> bool {
        let Some(overlays) = self.overlays() else { return false };
        let port = self.path_port(overlays.overlay(network.overlay).port);
        port.side == Side::Protected
            && port.medium == Medium::Ethernet
            && !decide::asks_inside(self, network, Family::V4)
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
