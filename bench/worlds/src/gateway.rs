//! A gateway with few or with many SA sets, SAs and grouped ports.

use std::sync::Arc;

use dataplane::{L4Checksum, Medium, PortInfo, SaSet, Side, Snapshot};
use ipsec::encapsulation::UdpPorts;
use ipsec::{
    Encapsulation, InboundSa, OutboundSa, ReplayWindow, SaId, SequenceCounter, SequenceNumbers,
    Tunnel,
};
use policy::{
    Action, GroupMode, GroupSide, Policy, PolicyId, SaSetId, Selector, Spd, UpperSelector,
};
use scene::{Case, Keys, LAN, own_mac, spi};
use wire::{Address, Family};

use crate::KEEPALIVE_S;

/// Number of objects beside the objects of the packets.
#[derive(Clone, Copy)]
pub(crate) struct WorldSize {
    pub(crate) name: &'static str,
    /// SA sets with keepalives, each with an SA of either direction.
    pub(crate) sets: u32,
    /// Ports, each with a separate group.
    pub(crate) ports: u16,
}

pub(crate) const ONE: WorldSize = WorldSize { name: "one of each", sets: 1, ports: 1 };
pub(crate) const MANY: WorldSize = WorldSize { name: "many", sets: 100_000, ports: 4_000 };

/// Ports of the scene.
const SCENE_PORTS: u16 = 3;

/// Makes the gateway of a case, with more objects than the packets meet.
pub(crate) fn snapshot(case: &Case, keys: &Keys, size: WorldSize) -> Snapshot {
    let mut policies = case.peers_policies(0, 100);
    policies.extend((0..size.ports).map(group_rule));
    let spd = Spd::new(policies).expect("policies that fit together");
    let parts = case.parts(std::slice::from_ref(keys), spd.into());
    let mut parts = parts.expect("a small gateway");
    parts.ports.extend((0..size.ports).map(port));
    let (local, remote) = case.tunnel(0);
    let tunnel = Tunnel { local: local.into(), remote: remote.into() };
    let udp = Some(UdpPorts { local: 4500, remote: 4500 });
    let carried = Encapsulation { udp, ..tunnel.into() };
    for number in 1..=size.sets {
        let (id, spi, set) = (SaId(number), spi(number as usize), SaSetId(number));
        parts.sets.push(sa_set(number, tunnel));
        let cipher = case.cipher(&keys.outbound).expect("a cipher");
        let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
        let sa = OutboundSa::with_cipher(id, spi, set, cipher, carried, counter);
        parts.outbound.push(Arc::new(sa.expect("ends of one family")));
        let cipher = case.cipher(&keys.inbound).expect("a cipher");
        let window = ReplayWindow::new(64, SequenceNumbers::Short).expect("a good size");
        let sa = InboundSa::with_cipher(id, spi, set, cipher, carried, window.into());
        parts.inbound.push(Arc::new(sa.expect("ends of one family")));
    }
    Snapshot::new(parts).expect("parts that fit together")
}

fn sa_set(number: u32, tunnel: Tunnel) -> SaSet {
    SaSet {
        id: SaSetId(number),
        peer: format!("peer-{number}"),
        tunnel,
        outbound: vec![SaId(number)],
        acquires: false,
        mss_clamp: false,
        may_move: false,
        moves_by_ike: false,
        keepalive_s: Some(KEEPALIVE_S),
        path_mtu: None,
        outer: None,
    }
}

/// A port with a VLAN id on the netdev of lan.
fn port(number: u16) -> PortInfo {
    PortInfo {
        name: format!("vlan-{number}"),
        netdev: LAN,
        vlan: Some(number + 1),
        side: Side::Protected,
        medium: Medium::Ethernet,
        mac: own_mac(LAN),
        mtu: 1500,
        addresses: Vec::new(),
        allow_host: Vec::new(),
        l4_checksum: L4Checksum::Pass,
    }
}

/// The rule of the group of a port.
fn group_rule(number: u16) -> Policy {
    let family = Family::V4;
    let host = Address { family, value: 0x0a09_0000 + u128::from(number) };
    let everything = policy::AddressRange { family, lo: 0, hi: family.highest_address() };
    Policy {
        id: PolicyId(1 + u32::from(number)),
        name: format!("group-{number}"),
        action: Action::Permit(GroupMode::Enforce),
        priority: 1,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some([SCENE_PORTS + number].into()),
        selector: Selector {
            local: vec![policy::AddressRange::network(host, 32)],
            remote: vec![everything],
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}
