//! Tests a live gateway against an adversary, and an operator in a hurry.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use net::{AGAIN, Lab, running};
use netlab::Namespace;
use netlab::ping::Ping;
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
    // The ports are closed during a change, so a slow machine loses more.
    for stream in &quarry.streams {
        println!("lost {} of {}", stream.lost(), stream.sent.len());
    }
    lab.flows_again();
    let links = lab.gateways.site(1).gateway.ip_json(&["link", "show", "dev", "early"]).unwrap();
    assert!(links[0].get("xdp").is_none(), "{links}");
    lab.balances();
}

/// Starts a daemon at gateway 1 with directories of its own and these changes to the first one's
/// file; it must not start. Returns what it says.
fn refused(lab: &Lab, change: impl FnOnce(String) -> String) -> String {
    let file = lab.gateways.file(1);
    let mut text = file.text();
    for directory in [file.run_dir(), file.state_dir()] {
        let name = directory.display().to_string();
        text = text.replace(&format!("\"{name}\""), &format!("\"{name}2\""));
    }
    let other = file.beside("other.toml");
    std::fs::write(&other, change(text)).unwrap();
    let mut command = lab.gateways.site(1).gateway.command(&lab.gateways.programs.lockgated);
    command.arg("--config").arg(&other);
    let finished = netlab::process::run(command, net::AGAIN).unwrap();
    assert!(!finished.status.success(), "{}", finished.stdout);
    finished.stderr
}

/// A configuration without its policies.
fn without_policies(text: String) -> String {
    text.split("[[policy]]").next().unwrap().to_owned()
}

fn guard(lab: &Lab) -> String {
    let gateway = &lab.gateways.site(1).gateway;
    let words = ["nft", "-s", "-a", "list", "table", "inet", "lockgate"];
    gateway.run(&words, AGAIN).unwrap().success().unwrap()
}

/// Without the handles: a table that is put back is a new one.
fn rules(guard: &str) -> Vec<&str> {
    guard.lines().map(|line| line.split(" # handle").next().unwrap_or(line)).collect()
}

#[test]
fn a_second_daemon_does_not_touch_the_guard_of_the_first() {
    let Some(mut lab) = running("second_guard", Plan::default()) else { return };
    let before = guard(&lab);
    let says = refused(&lab, without_policies);
    assert!(says.contains("another daemon's port"), "{says}");
    // With ports of its own it would still need the guard and the host port.
    let gateway = &lab.gateways.site(1).gateway;
    gateway.ip("link add spare type veth peer name spare-end").unwrap();
    let says = refused(&lab, |text| {
        let head = text.split("[port.lan]").next().unwrap();
        format!("{head}[port.spare]\nnetdev = \"spare\"\nside = \"protected\"\n")
    });
    assert!(says.contains("another lockgated runs in this network namespace"), "{says}");
    pause(100);
    // Handles too: it was not even put back.
    assert_eq!(guard(&lab), before);
    lab.flows_again();
    // The first is dead; what it closed stays closed, whatever the next one wanted.
    lab.gateways.kill(1);
    let holder = claim(&lab.gateways.site(1).gateway, "wan");
    refused(&lab, without_policies);
    assert_eq!(rules(&guard(&lab)), rules(&before));
    drop(holder);
}

#[test]
fn a_start_that_fails_at_its_last_port_puts_the_earlier_guard_back() {
    let Some(mut lab) = running("earlier_guard", Plan::default()) else { return };
    let before = guard(&lab);
    lab.gateways.kill(1);
    // More queues than are served: known when the port is taken over.
    let gateway = &lab.gateways.site(1).gateway;
    let words = "link add wide numrxqueues 65 numtxqueues 65 type veth \
                 peer name wide-end numrxqueues 65 numtxqueues 65";
    gateway.ip(words).unwrap();
    let says = refused(&lab, |text| {
        without_policies(text) + "\n[port.wide]\nnetdev = \"wide\"\nside = \"protected\"\n"
    });
    assert!(says.contains("65 receive queues"), "{says}");
    assert_eq!(rules(&guard(&lab)), rules(&before));
    lab.gateways.start(1).unwrap();
    lab.flows_again();
}

#[test]
fn what_is_stacked_on_an_unprotected_port_is_guarded_like_it() {
    let Some(mut lab) = running("stacked", Plan::default()) else { return };
    lab.hunt(|gateways| {
        let site = gateways.site(1);
        // Another way onto the wire, with a route that this machine's own packets would take.
        site.gateway
            .ip("link add link wan name aside type macvlan mode bridge
                 link set aside up
                 addr add 192.0.2.77/24 dev aside
                 rule add from 10.1.0.1 lookup 200 priority 5
                 route add 10.2.0.0/16 via 192.0.2.2 dev aside table 200 onlink")
            .unwrap();
        pause(300);
        let (from, to) = (site.lan_v4(), gateways.site(2).host_v4());
        let ping = Ping { from: Some(&from), ..Ping::new(&to, 10) };
        assert_eq!(ping.run(&site.gateway).unwrap().received, 0);
        site.gateway.ip("rule del priority 5").unwrap();
    });
}

/// Returns whether a datagram from the far gateway reaches a socket on this one.
fn reaches(lab: &Lab, port: u16) -> bool {
    let site = lab.gateways.site(1);
    let address = format!("{}:{port}", site.wan_v4());
    let socket = site.gateway.enter(|| std::net::UdpSocket::bind(&address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let far = &lab.gateways.site(2).gateway;
    let sender = far.enter(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    (0..5).any(|_| {
        sender.send_to(b"in clear", &address).unwrap();
        socket.recv(&mut [0; 16]).is_ok()
    })
}

#[test]
fn without_its_program_an_unprotected_port_takes_in_only_what_is_listed() {
    let Some(mut lab) = running("no_program", Plan::default()) else { return };
    // The far gateway only lends its address: its daemon would not let these out.
    lab.gateways.take(2).unwrap().terminate().unwrap();
    let far = &lab.gateways.site(2).gateway;
    far.ip("link set wan xdp off").unwrap();
    far.run(&["nft", "delete", "table", "inet", "lockgate"], AGAIN).unwrap().success().unwrap();
    assert!(reaches(&lab, 500) && !reaches(&lab, 7777));
    lab.gateways.kill(1);
    assert!(reaches(&lab, 500) && !reaches(&lab, 7777));
    let gateway = &lab.gateways.site(1).gateway;
    // To the program that stayed, every frame is another station's now.
    gateway.ip("link set wan address 02:00:00:00:01:77").unwrap();
    lab.gateways.site(2).gateway.ip("neigh flush dev wan").unwrap();
    assert!(reaches(&lab, 500) && !reaches(&lab, 7777));
    gateway.ip("link set wan xdp off").unwrap();
    assert!(reaches(&lab, 500) && !reaches(&lab, 7777));
    gateway.run(&["nft", "delete", "table", "inet", "lockgate"], AGAIN).unwrap().success().unwrap();
    assert!(reaches(&lab, 7777), "it was not the guard");
}

/// Lists the settings of Linux in a gateway's namespace, line by line.
fn set_up(namespace: &Namespace) -> Vec<String> {
    let commands = [
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "nft list tables",
        "ip -o link",
    ];
    let mut lines = Vec::new();
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        let text = namespace.run(&words, AGAIN).unwrap().success().unwrap();
        let mut of: Vec<String> =
            text.lines().map(|line| format!("{command}: {}", line.trim())).collect();
        of.sort();
        lines.extend(of);
    }
    lines
}

#[test]
fn after_a_dead_daemon_one_detach_leaves_nothing() {
    let Some(lab) = net::lab("detach_leaves_nothing", Plan::default()) else { return };
    // Addresses are ready: duplicate address detection changes routes.
    pause(2500);
    let before = set_up(&lab.gateways.site(1).gateway);
    let Some(mut lab) = lab.start("detach_leaves_nothing") else { return };
    lab.flows_again();
    let running = set_up(&lab.gateways.site(1).gateway);
    assert!(running.iter().filter(|line| line.contains("goto")).count() >= 10, "{running:#?}");
    lab.gateways.kill(1);
    let gateway = &lab.gateways.site(1).gateway;
    let command = lab.gateways.programs.lockgate.display().to_string();
    let said = gateway.run(&[&command, "--socket", "/nonexistent", "detach"], AGAIN).unwrap();
    let said = said.success().unwrap();
    assert!(said.contains("rules that led to lockgate0: removed"), "{said}");
    let after = set_up(gateway);
    let differing: Vec<&String> = before
        .iter()
        .filter(|line| !after.contains(line))
        .chain(after.iter().filter(|line| !before.contains(line)))
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
}
