//! The virtual network behind lan: tenants are endpoints of one VXLAN network, a few on each host.

use std::sync::Arc;

use dataplane::{Overlay, OverlayId, Overlays, PortId, SourceCheck, VirtualNetwork};
use endpoints::{Book, Change, Endpoint, EndpointKey, Outcome, Table};
use wire::overlay::Kind;
use wire::{Address, Family, LinkAddress, Vni};

/// Endpoints of the network.
pub(crate) const ENDPOINTS: usize = 1024;
/// Endpoints of a host.
const A_HOST: usize = 4;
/// Destination port of the overlay.
pub(crate) const PORT: u16 = wire::overlay::VXLAN_PORT;

/// Its number.
pub(crate) const fn vni() -> Vni {
    Vni::new(7).expect("24 bits")
}

/// Address of an endpoint in the network.
pub(crate) fn tenant(family: Family, endpoint: usize) -> Address {
    let number = (endpoint % ENDPOINTS) as u128 + 1;
    let network = match family {
        Family::V4 => 0xac10_0000,
        Family::V6 => 0xfd00_0007 << 96,
    };
    Address { family, value: network + number }
}

/// Link address of an endpoint.
pub(crate) fn tenants_mac(endpoint: usize) -> [u8; 6] {
    let [.., high, low] = (endpoint % ENDPOINTS).to_be_bytes();
    [2, 0, 0, 0, 0x80 | high, low]
}

/// The host that an endpoint is on, in the network that begins with `lan`.
pub(crate) fn host(lan: Address, endpoint: usize) -> Address {
    Address { value: lan.value + 1 + (endpoint % ENDPOINTS / A_HOST) as u128, ..lan }
}

/// The overlay on a port, with this entrance, of hosts in the network that begins with `lan`.
pub(crate) fn overlays(port: PortId, entrance: Address, lan: Address) -> Arc<Overlays> {
    // The same secret each time: the walk's instructions are counted.
    let table = Table::new(ENDPOINTS, &[7; 32]).expect("a small table");
    let mut book = Book::new(table, 0);
    let puts: Vec<Change> = (0..ENDPOINTS).map(|endpoint| put(lan, endpoint)).collect();
    let outcomes = book.apply(&puts);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "they fit the table");
    let overlay = Overlay {
        name: "fabric".into(),
        kind: Kind::Vxlan,
        udp_port: PORT,
        port,
        entrances: vec![entrance],
        direct_port: None,
    };
    let network = VirtualNetwork {
        vni: vni(),
        overlay: OverlayId(0),
        attachment: None,
        source_check: SourceCheck::default(),
    };
    Arc::new(Overlays::new(vec![overlay], [network], book.table().clone()))
}

fn put(lan: Address, endpoint: usize) -> Change {
    let key = EndpointKey { vni: vni(), address: tenant(lan.family, endpoint) };
    let mac = LinkAddress::new(tenants_mac(endpoint));
    let endpoint = Endpoint { key, host: host(lan, endpoint), host_mac: None, mac };
    Change::Put { revision: 1, endpoint }
}
