//! The tenants of a network and their hosts, with the tier as the daemon shows it.

use std::time::Instant;

use net::{AGAIN, Lab};
use netlab::Namespace;
use netlab::laboratory::connect;
use netlab::ping::{Answers, Ping};
use netlab::sites::{HOST_INTERFACE, LAN};
use netlab::vxlan::{UdpChecksums, Vxlan, take_from_xdp};
use serde_json::Value;

pub(crate) fn address(number: u8) -> String {
    format!("172.16.0.{number}")
}

fn mac(number: u8) -> String {
    format!("02:07:00:00:00:{number:02x}")
}

/// Gives a host a device of the network, whose packets all go to the entrance.
fn join(host: &Namespace, number: u8) {
    let device = Vxlan {
        device: "vx",
        vni: 7,
        entrance: "10.1.0.1",
        mac: &mac(number),
        addresses: &[format!("{}/24", address(number))],
        checksums: UdpChecksums::Omitted,
    };
    device.add(host).unwrap();
}

/// Puts a second host behind the first, and makes both take what XDP sends them.
pub(crate) fn furnish(lab: &Lab) -> Namespace {
    let site = lab.gateways.site(1);
    let far = lab.gateways.sites.laboratory.namespace("far").unwrap();
    site.host.set("net/ipv4/ip_forward", "1").unwrap();
    site.host.set("net/ipv4/conf/all/send_redirects", "0").unwrap();
    connect((&site.host, "near"), (&far, "lan0"), 1).unwrap();
    site.host.ip("addr add 10.1.5.1/24 dev near\nlink set near up").unwrap();
    far.ip("addr add 10.1.5.2/24 dev lan0\nlink set lan0 up\nroute add default via 10.1.5.1")
        .unwrap();
    for (namespace, interface) in [(&site.host, "near"), (&far, "lan0")] {
        namespace.offload_off(interface).unwrap();
    }
    site.gateway.ip(&format!("route add 10.1.5.0/24 via {} dev {LAN}", site.host_v4())).unwrap();
    join(&site.host, 1);
    join(&far, 2);
    take_from_xdp(&site.host, HOST_INTERFACE).unwrap();
    far
}

pub(crate) fn succeed(lab: &Lab, words: &[&str]) -> String {
    let finished = lab.gateways.daemon(1).unwrap().run(words).unwrap();
    assert!(finished.status.success(), "{words:?}: {}{}", finished.stdout, finished.stderr);
    finished.stdout
}

pub(crate) fn put(lab: &Lab, number: u8, host: &str) {
    let (address, mac) = (address(number), mac(number));
    succeed(lab, &["endpoint", "put", "7", &address, "--host", host, "--mac", &mac]);
}

/// The counters of the XDP program of the protected port.
pub(crate) fn kernel(lab: &Lab, counter: &str) -> u64 {
    let ports = lab.gateways.daemon(1).unwrap().ports().unwrap();
    let port = ports.iter().find(|port| port["name"] == "lan").unwrap();
    port["kernel"][counter].as_u64().unwrap()
}

pub(crate) fn tier(lab: &Lab) -> Value {
    let counters = lab.gateways.daemon(1).unwrap().ask(&["show", "counters"]).unwrap();
    counters["kernel_tier"].clone()
}

pub(crate) fn pings(lab: &Lab, count: u32) -> Answers {
    Ping::new(&address(2), count).run(&lab.gateways.site(1).host).unwrap()
}

/// Answers to exactly so many pings, all of which should be answered, however late.
pub(crate) fn late_pings(lab: &Lab, count: u32) -> Answers {
    Ping::new(&address(2), count).run_at_once(&lab.gateways.site(1).host).unwrap()
}

/// Waits until a tenant's pings are all answered.
pub(crate) fn reaches(lab: &Lab) {
    let end = Instant::now() + AGAIN;
    loop {
        let answers = pings(lab, 5);
        if answers.all_answered() {
            return;
        }
        assert!(Instant::now() < end, "{}\n{}", answers.text, lab.logs());
    }
}

/// Waits, with traffic, until the kernel has so many endpoints.
pub(crate) fn residents(lab: &Lab, count: u64) {
    let end = Instant::now() + AGAIN;
    while tier(lab)["endpoints"] != count {
        assert!(Instant::now() < end, "{:#}\n{}", tier(lab), lab.logs());
        pings(lab, 5);
    }
}
