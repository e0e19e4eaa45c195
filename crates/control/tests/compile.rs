//! Tests the snapshot that a configuration compiles to.

use std::net::IpAddr;

use config::{ReplayKeys, parse};
use dataplane::{Generation, Medium, PortId, RouteTarget, Side, Snapshot};
use policy::{Action, SaSetId};
use wire::Address;

const TEXT: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
addresses = ["10.1.0.1/24", "10.1.0.2/24", "2001:db8:1::1/64"]
[port.dmz]
netdev = "eth1"
vlan = 12
side = "protected"
addresses = ["10.9.0.1/32", "10.8.0.0/31"]
mtu = 9000
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["192.0.2.1/24"]
allow_host = ["udp/500", "icmp"]
mac = "02:00:00:00:00:aa"
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "file:a"
manual = "laboratory"
suite = "aes-128-gcm"
mss_clamp = false
[peer.b]
local = "192.0.2.1"
remote = "198.51.100.2"
keys = "file:b"
manual = "laboratory"
suite = "aes-256-gcm"
[[policy]]
name = "to-b"
peer = "b"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0/16"]
priority = 10
[[policy]]
name = "web"
action = "bypass"
local = ["any"]
remote = ["any"]
protocol = "tcp"
remote_ports = ["443"]
[[policy]]
name = "to-a"
action = "protect"
peer = "a"
local = ["10.1.0.0/16"]
remote = ["10.3.0.0/16"]
direction = "outbound"
[[route]]
to = "default"
via = "192.0.2.254"
[[route]]
to = "198.51.100.128/25"
via = "192.0.2.254"
[[route]]
to = "10.66.0.0/16"
type = "blackhole"
[[route]]
to = "10.77.0.0/16"
port = "dmz"
[[neighbour]]
port = "wan"
address = "192.0.2.254"
mac = "02:00:00:00:02:fe"
"#;

fn snapshot() -> Snapshot {
    let parsed = parse(TEXT, "t.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let keys = ReplayKeys::none(&parsed.validated);
    control::compile(&parsed.validated, keys, Generation(7)).expect("compiles")
}

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().expect("an address").into()
}

#[test]
fn ports_keep_their_order_and_the_host_port_comes_last() {
    let snapshot = snapshot();
    assert_eq!(snapshot.generation(), Generation(7));
    let names: Vec<&str> = snapshot.ports().map(|(_, port)| port.name.as_str()).collect();
    assert_eq!(names, ["lan", "dmz", "wan", "host"]);
    assert_eq!(snapshot.host(), Some(PortId(3)));
    let ports: Vec<_> = snapshot.ports().map(|(_, port)| port).collect();
    let [lan, dmz, wan, host] = ports[..] else { panic!("four ports") };
    assert_eq!(lan.netdev, dmz.netdev);
    assert_eq!((lan.vlan, dmz.vlan), (None, Some(12)));
    assert_ne!(wan.netdev, lan.netdev);
    assert!(host.netdev != lan.netdev && host.netdev != wan.netdev);
    assert_eq!((host.medium, host.side, host.mtu), (Medium::Ip, Side::Protected, 65535));
    assert_eq!((wan.medium, wan.side, wan.mtu), (Medium::Ethernet, Side::Unprotected, 1500));
    assert_eq!((dmz.mtu, wan.mac), (9000, [2, 0, 0, 0, 0, 0xaa]));
    assert_ne!(lan.mac, dmz.mac);
    assert_eq!(wan.allow_host.len(), 2);
    assert_eq!(lan.addresses, ["10.1.0.1", "10.1.0.2", "2001:db8:1::1"].map(address));
}

#[test]
fn routes_are_ours_connected_broadcast_and_those_of_the_file() {
    let snapshot = snapshot();
    let lookup = |text| snapshot.routes().lookup(address(text));
    let via = |text| match lookup(text) {
        Some(RouteTarget::Via(hop)) => {
            let hop = snapshot.next_hop(hop);
            Some((snapshot.port(hop.port).name.as_str(), hop.gateway))
        }
        _ => None,
    };
    for ours in ["10.1.0.1", "10.1.0.2", "10.9.0.1", "10.8.0.0", "192.0.2.1", "2001:db8:1::1"] {
        assert_eq!(lookup(ours), Some(RouteTarget::Local), "{ours}");
    }
    for broadcast in ["10.1.0.255", "192.0.2.255", "255.255.255.255"] {
        assert_eq!(lookup(broadcast), Some(RouteTarget::Broadcast), "{broadcast}");
    }
    assert_eq!(via("10.1.0.7"), Some(("lan", None)));
    assert_eq!(via("2001:db8:1::ffff"), Some(("lan", None)));
    assert_eq!(via("10.8.0.1"), Some(("dmz", None)), "RFC 3021: a /31 has no broadcast");
    assert_eq!(via("10.77.1.1"), Some(("dmz", None)));
    let router = Some(address("192.0.2.254"));
    assert_eq!(via("8.8.8.8"), Some(("wan", router)));
    assert_eq!(via("198.51.100.200"), Some(("wan", router)));
    assert_eq!(lookup("10.66.0.1"), Some(RouteTarget::Blackhole));
    assert_eq!(lookup("2001:db8:2::1"), None);
}

#[test]
fn policies_and_sets_are_numbered_in_the_order_of_the_file() {
    let snapshot = snapshot();
    let mut policies: Vec<_> = snapshot.spd().holding().map(|(_, policy)| policy).collect();
    policies.sort_by_key(|policy| policy.id);
    let told: Vec<_> = policies.iter().map(|p| (p.id.0, p.name.as_str(), p.action)).collect();
    assert_eq!(
        told,
        [
            (0, "to-b", Action::Protect(SaSetId(1))),
            (1, "web", Action::Bypass),
            (2, "to-a", Action::Protect(SaSetId(0))),
        ]
    );
    assert_eq!(policies[0].priority, 10);
    assert_eq!(policies[1].priority, 100);
    assert_eq!(policies[2].only, Some(policy::Direction::Outbound));
    let sets: Vec<_> = snapshot.sets().map(|(_, s)| (s.peer.as_str(), s.mss_clamp)).collect();
    assert_eq!(sets, [("a", false), ("b", true)]);
    assert!(snapshot.sets().all(|(_, set)| set.outbound.is_empty()));
}

#[test]
fn keys_of_another_configuration_are_refused() {
    let parsed = parse(TEXT, "t.toml").unwrap();
    let refused = control::compile(&parsed.validated, ReplayKeys::default(), Generation(1));
    assert!(matches!(
        refused.err().expect("refused"),
        control::CompileError::OtherKeys { keys: 0, peers: 2 }
    ));
}
