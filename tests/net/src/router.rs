//! A router between gateway B and the wire, which may be a NAT.
//!
//! ```text
//! host-a ── gw-a ──── wire ──── outside router inside ──── gw-b ── host-b
//!        192.0.2.1         192.0.2.x   172.16.2.1    172.16.2.2
//! ```

use std::time::{Duration, Instant};

use netlab::Namespace;
use netlab::laboratory::connect;
use netlab::ping::Ping;
use netlab::sites::{BRIDGE, WAN};

use crate::{AGAIN, Lab};

/// The router's interface on gateway B's side.
pub const INSIDE: &str = "inside";
/// Its interface on the wire.
pub const OUTSIDE: &str = "outside";
/// Gateway B, as the router sees it.
pub const HIDDEN: &str = "172.16.2.2";
/// The router, as gateway B sees it.
pub const ROUTER: &str = "172.16.2.1";

/// Puts a router between gateway B and the wire, with these addresses there. Gateway A has no route
/// to B behind it yet. No daemon may run.
///
/// # Panics
/// If the laboratory breaks.
pub fn put_between(lab: &Lab, outside: &[&str]) -> Namespace {
    let gateways = &lab.gateways;
    let (sites, b) = (&gateways.sites, gateways.site(2));
    let router = sites.laboratory.namespace("router").unwrap();
    router.set("net/ipv4/ip_forward", "1").unwrap();
    connect((&router, OUTSIDE), (&sites.wire, "routerport"), 1).unwrap();
    let (port, name) = (b.wire_port(), router.name());
    sites
        .wire
        .ip(&format!(
            "link set routerport master {BRIDGE} up
             link set {port} down
             link set {port} netns {name} name {INSIDE}"
        ))
        .unwrap();
    let addresses = outside.iter().map(|own| format!("addr add {own}/24 dev {OUTSIDE}\n"));
    let addresses: String = addresses.collect();
    router
        .ip(&format!(
            "{addresses}
             addr add {ROUTER}/24 dev {INSIDE}
             link set {INSIDE} up
             link set {OUTSIDE} up"
        ))
        .unwrap();
    for interface in [INSIDE, OUTSIDE] {
        router.offload_off(interface).unwrap();
    }
    sites.wire.offload_off("routerport").unwrap();
    b.gateway
        .ip(&format!(
            "addr del {}/24 dev {WAN}
             addr add {HIDDEN}/24 dev {WAN}
             route replace 192.0.2.0/24 via {ROUTER}
             route replace 10.1.0.0/16 via {ROUTER}",
            b.wan_v4()
        ))
        .unwrap();
    // Links and neighbours are there, before any daemon is.
    for (from, to) in outside.iter().map(|own| (1, *own)).chain([(2, ROUTER)]) {
        let from = &gateways.site(from).gateway;
        let answered = || Ping::new(to, 1).run_until_answered(from).unwrap().all_answered();
        let end = Instant::now() + AGAIN;
        while !answered() {
            assert!(Instant::now() < end, "the links of the router: never");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    router
}

/// One UDP port of gateway B, as a NAT shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Gateway B's own port.
    pub inside: u16,
    /// The NAT's address on the wire.
    pub address: &'static str,
    /// The port there.
    pub port: u16,
}

/// Makes the router a NAT with these mappings and no others, at once for all packets; other UDP it
/// drops. It remembers nothing: rules rewrite either way, so that a mapping ends when its rules do.
///
/// # Panics
/// If the laboratory breaks.
pub fn translate(lab: &Lab, router: &Namespace, mappings: &[Mapping]) {
    let (mut inwards, mut outwards) = (String::new(), String::new());
    for Mapping { inside, address, port } in mappings {
        inwards += &format!(
            "iifname {OUTSIDE} ip daddr {address} udp dport {port} ip daddr set {HIDDEN} \
             udp dport set {inside} udp checksum set 0 accept\n"
        );
        outwards += &format!(
            "oifname {OUTSIDE} ip saddr {HIDDEN} udp sport {inside} ip saddr set {address} \
             udp sport set {port} udp checksum set 0 accept\n"
        );
    }
    let table = |inwards: &str, outwards: &str| {
        format!(
            "table ip nat {{
                 chain inwards {{
                     type filter hook prerouting priority raw
                     {inwards}
                 }}
                 chain outwards {{
                     type filter hook postrouting priority srcnat
                     {outwards}
                 }}
             }}\n"
        )
    };
    // The chains stay. Beside new ones, those of a table that is deleted judge for some
    // microseconds more: a packet would be rewritten by the one and dropped by the other.
    let rules = format!(
        "{}flush table ip nat\n{}",
        table("", ""),
        table(
            &format!("{inwards}iifname {OUTSIDE} meta l4proto udp drop"),
            &format!("{outwards}oifname {OUTSIDE} meta l4proto udp drop"),
        )
    );
    let file = lab.gateways.directory().join("nat.nft");
    std::fs::write(&file, rules).unwrap();
    router.run(&["nft", "-f", file.to_str().unwrap()], AGAIN).unwrap().success().unwrap();
}
