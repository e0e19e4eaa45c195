//! What an adversary, or an operator in a hurry, does to a live gateway.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use net::running;
use netlab::Namespace;
use netlab::sites::Plan;

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Index of a netdev.
fn index(namespace: &Namespace, name: &str) -> u64 {
    namespace.ip_json(&["link", "show", "dev", name]).unwrap()[0]["ifindex"].as_u64().unwrap()
}

/// Claims a netdev as another daemon would, until dropped.
fn claim(namespace: &Namespace, name: &str) -> UnixListener {
    let claim = format!("lockgate/port/{}", index(namespace, name));
    let bind = || UnixListener::bind_addr(&SocketAddr::from_abstract_name(claim).unwrap());
    namespace.enter(bind).unwrap().unwrap()
}

#[test]
fn a_change_that_fails_half_way_leaves_every_port_as_it_was() {
    let Some(mut lab) = running("half_way", Plan::default()) else { return };
    let gateway = &lab.gateways.site(1).gateway;
    gateway
        .ip("link add early type veth peer name early-end
             link set early up
             link add other type veth peer name other-end
             link set other up")
        .unwrap();
    let _claim = claim(gateway, "other");
    // `lan` goes, `early` comes, and `other` cannot be had.
    let file = lab.gateways.file(1);
    let text = file.text().replace("netdev = \"lan\"", "netdev = \"early\"")
        + "\n[port.other]\nnetdev = \"other\"\nside = \"protected\"\n";
    let changed = file.beside("changed.toml");
    std::fs::write(&changed, text).unwrap();
    let quarry = lab.hunt(|gateways| {
        let refused = gateways.daemon(1).unwrap().apply(&changed);
        assert!(refused.is_err(), "{refused:?}");
        pause(1000);
    });
    for stream in &quarry.streams {
        let lost = stream.lost();
        assert!(lost < stream.sent.len() / 2, "{lost} of {}", stream.sent.len());
    }
    lab.flows_again();
    let links = lab.gateways.site(1).gateway.ip_json(&["link", "show", "dev", "early"]).unwrap();
    assert!(links[0].get("xdp").is_none(), "{links}");
    lab.balances();
}
