//! The leak hunt: whatever happens to a gateway, nothing that a policy wanted protected leaves in
//! clear, though forwarding is on and the kernel's routes would work.

use std::time::{Duration, Instant, SystemTime};

use net::{AGAIN, STEP, events, lab, running, wait_for, wait_for_pings};
use netlab::capture::{Scope, Tally};
use netlab::ping::Ping;
use netlab::sites::{Plan, Shape};
use netlab::stream::Stream;

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// The last moment whose packets reach no daemon started now. A later packet may still be on the
/// way when the daemon takes its port.
fn before_a_start() -> Instant {
    Instant::now() - Duration::from_millis(100)
}

#[test]
fn without_a_daemon_everything_crosses_in_clear() {
    let Some(mut lab) = lab("without_a_daemon", Plan::default()) else { return };
    let capture = lab.gateways.capture(Scope::Heads).unwrap();
    lab.flows_again();
    let tally = Tally::of(&capture.stop().unwrap()).unwrap();
    // It asks again where an answer was late.
    assert!(tally.clear >= 20 && tally.esp == 0, "{tally:?}");
}

#[test]
fn both_families_cross_protected_and_the_ledgers_balance() {
    let Some(mut lab) = running("both_families_cross", Plan::default()) else { return };
    let quarry = lab.hunt(|gateways| {
        let to = gateways.site(2).host_v6();
        let answers = Ping::new(&to, 20).run_until_answered(&gateways.site(1).host).unwrap();
        assert!(answers.all_answered(), "{}", answers.text);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}\n{}", stream.sent.len(), lab.logs());
    }
    lab.balances();
}

#[test]
fn nothing_leaks_through_sigkill_and_restart() {
    let Some(mut lab) = running("sigkill", Plan::default()) else { return };
    for number in [1, 2] {
        let mut started = Instant::now();
        let mut dead = started..=started;
        let quarry = lab.hunt(|gateways| {
            gateways.kill(number);
            let from = Instant::now();
            pause(600);
            dead = from..=before_a_start();
            started = gateways.start(number).unwrap();
            wait_for_pings(gateways).unwrap();
            pause(500);
        });
        for stream in &quarry.streams {
            assert_eq!(stream.arrived_of_span(*dead.start(), *dead.end()), 0, "sent while dead");
            let first = stream.first_after(started);
            println!("restart of gateway {number}: first packet after {first:?} (target 1 s)");
            assert!(first.is_some(), "nothing arrived after the restart\n{}", lab.logs());
        }
    }
    lab.flows_again();
    lab.balances();
}

#[test]
fn nothing_leaks_after_sigterm_and_restart_opens_nothing() {
    let Some(mut lab) = running("sigterm", Plan::default()) else { return };
    let mut dead = Instant::now()..=Instant::now();
    let quarry = lab.hunt(|gateways| {
        let finished = gateways.take(1).unwrap().terminate().unwrap();
        assert!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
        let from = Instant::now();
        pause(600);
        dead = from..=before_a_start();
        gateways.start(1).unwrap();
        pause(800);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.arrived_of_span(*dead.start(), *dead.end()), 0, "sent while ended");
    }
    lab.flows_again();
    lab.balances();
}

#[test]
fn nothing_leaks_or_is_lost_through_a_reload() {
    let Some(mut lab) = running("reload", Plan::default()) else { return };
    let quarry = lab.hunt(|gateways| {
        let mut changed = gateways.file(1).clone();
        changed.extra += "
[[policy]]
name = \"lookup\"
action = \"bypass\"
local = [\"any\"]
remote = [\"9.9.9.9/32\"]
protocol = \"udp\"
remote_ports = [\"53\"]
";
        let other = changed.write_as(&changed.beside("changed.toml")).unwrap();
        for _ in 0..5 {
            for file in [other.clone(), gateways.file(1).path()] {
                gateways.daemon(1).unwrap().apply(&file).unwrap();
                pause(50);
            }
        }
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}\n{}", stream.sent.len(), lab.logs());
    }
    lab.balances();
}

#[test]
fn a_policy_that_goes_stops_its_traffic_and_opens_nothing() {
    let Some(mut lab) = running("policy_goes", Plan::default()) else { return };
    lab.hunt(|gateways| {
        let mut changed = gateways.file(1).clone();
        changed.peers.clear();
        let other = changed.write_as(&changed.beside("changed.toml")).unwrap();
        gateways.daemon(1).unwrap().apply(&other).unwrap();
        let to = gateways.site(2).host_v4();
        let answers = Ping::new(&to, 10).run(&gateways.site(1).host).unwrap();
        assert_eq!(answers.received, 0, "{}", answers.text);
        gateways.daemon(1).unwrap().apply(&gateways.file(1).path()).unwrap();
    });
    lab.flows_again();
}

#[test]
fn nothing_leaks_while_a_port_goes_down_and_up() {
    let Some(mut lab) = running("port_down", Plan::default()) else { return };
    for name in ["wan", "lan"] {
        lab.hunt(|gateways| {
            let site = gateways.site(1);
            site.gateway.ip(&format!("link set {name} down")).unwrap();
            pause(500);
            site.gateway
                .ip("link set lan up\naddr replace 2001:db8:1::1/64 dev lan nodad")
                .unwrap();
            gateways.sites.raise_wan(site).unwrap();
            pause(1000);
        });
        lab.flows_again();
    }
    lab.balances();
}

#[test]
fn nothing_leaks_while_the_other_end_loses_its_carrier() {
    let Some(mut lab) = running("carrier", Plan::default()) else { return };
    lab.hunt(|gateways| {
        for _ in 0..3 {
            gateways.sites.wire.ip("link set port1 down").unwrap();
            pause(300);
            gateways.sites.wire.ip("link set port1 up").unwrap();
            pause(300);
        }
    });
    lab.flows_again();
    lab.balances();
}

#[test]
fn nothing_leaks_while_a_port_is_deleted_and_made_again() {
    let Some(mut lab) = running("port_deleted", Plan::default()) else { return };
    lab.hunt(|gateways| {
        let site = gateways.site(1);
        site.gateway.ip("link del wan").unwrap();
        pause(500);
        gateways.sites.connect_wan(site).unwrap();
        pause(1500);
    });
    lab.flows_again();
    lab.balances();
}

#[test]
fn nothing_leaks_while_the_number_of_queues_changes() {
    let Some(mut lab) = running("queues", Plan { queues: 4, ..Plan::default() }) else { return };
    lab.hunt(|gateways| {
        let gateway = &gateways.site(1).gateway;
        for queues in ["2", "4", "1", "3"] {
            // The other end's transmit queues must not be more than what an XDP port receives on.
            for (namespace, name) in [(&gateways.sites.wire, "port1"), (gateway, "wan")] {
                let words = ["ethtool", "-L", name, "rx", queues, "tx", queues];
                let changed = namespace.run(&words, Duration::from_secs(5)).unwrap();
                if name == "port1" {
                    changed.success().unwrap();
                }
            }
            pause(600);
        }
    });
    lab.flows_again();
    lab.balances();
}

#[test]
fn nothing_leaks_while_routes_change() {
    let Some(mut lab) = running("routes", Plan::default()) else { return };
    lab.hunt(|gateways| {
        let gateway = &gateways.site(1).gateway;
        for route in [
            "route replace 10.2.0.0/16 via 192.0.2.9",
            "route replace blackhole 10.2.0.0/16",
            "route replace 192.0.2.2/32 via 192.0.2.9",
            "route del 192.0.2.2/32 via 192.0.2.9",
            "route replace 10.2.0.0/24 dev wan",
            "route del 10.2.0.0/24 dev wan",
            "route replace 10.2.0.0/16 via 192.0.2.2",
        ] {
            gateway.ip(route).unwrap();
            pause(150);
        }
    });
    lab.flows_again();
    lab.balances();
}

#[test]
fn a_guard_removed_by_hand_is_told_and_restored_and_nothing_leaks() {
    let Some(mut lab) = running("guard", Plan::default()) else { return };
    lab.hunt(|gateways| {
        let words = ["nft", "delete", "table", "inet", "lockgate"];
        let gateway = &gateways.site(1).gateway;
        gateway.run(&words, AGAIN).unwrap().success().unwrap();
        gateways.daemon_mut(1).unwrap().wait_for("guard_removed", AGAIN).unwrap();
        gateways.daemon_mut(1).unwrap().wait_for("guard_restored", AGAIN).unwrap();
        let listed =
            gateways.site(1).gateway.run(&["nft", "list", "table", "inet", "lockgate"], AGAIN);
        assert!(listed.unwrap().status.success());
    });
    lab.balances();
}

#[test]
fn a_removed_xdp_program_is_restored_when_the_kernel_reports_the_removal() {
    let Some(mut lab) = running("xdp_removed", Plan::default()) else { return };
    let rounds = if std::env::var_os("LOCKGATE_LONG").is_some() { 200 } else { 20 };
    let mut times = Vec::new();
    lab.hunt(|gateways| {
        for round in 0..rounds {
            let netdev = ["lan", "wan"][round % 2];
            let before = SystemTime::now();
            gateways.site(1).gateway.ip(&format!("link set {netdev} xdp off")).unwrap();
            let mut restored = Vec::new();
            wait_for("program_restored", || {
                restored = events(gateways, 1, "program_restored");
                restored.len() > round
            });
            assert_eq!(restored[round]["subject"], netdev);
            let at = restored[round]["time"].as_str().unwrap();
            let at = humantime::parse_rfc3339(at).unwrap();
            times.push(at.duration_since(before).unwrap_or_default());
        }
    });
    times.sort();
    let [median, longest] = [times[times.len() / 2], times[times.len() - 1]];
    println!("XDP restored {rounds} times: median {median:?}, longest {longest:?}, `ip` included");
    let removed = events(&lab.gateways, 1, "program_removed");
    assert_eq!(removed.len(), rounds);
    // The look once a second may come first, rarely.
    let reported = removed.iter().filter(|event| event["details"]["sign"] == "notification");
    let reported = reported.count();
    assert!(reported > rounds / 2, "{reported} of {rounds} by a notification: {removed:?}");
    lab.balances();
}

#[test]
fn the_guard_alone_keeps_a_gateway_closed() {
    let Some(mut lab) = running("guard_alone", Plan::default()) else { return };
    lab.hunt(|gateways| {
        // The programs gone, the daemon too: Linux would forward.
        gateways.kill(1);
        let gateway = &gateways.site(1).gateway;
        gateway.ip("link set lan xdp off\nlink set wan xdp off").unwrap();
        gateway.ip("link set lan xdpgeneric off\nlink set wan xdpgeneric off").unwrap();
        let to = gateways.site(2).host_v4();
        let answers = Ping::new(&to, 20).run(&gateways.site(1).host).unwrap();
        assert_eq!(answers.received, 0, "{}", answers.text);
        // The box's own packets as well.
        let from = gateways.site(1).lan_v4();
        let ping = Ping { from: Some(&from), ..Ping::new(&to, 20) };
        assert_eq!(ping.run(&gateways.site(1).gateway).unwrap().received, 0);
        gateways.start(1).unwrap();
    });
    lab.flows_again();
}

#[test]
fn the_gateways_own_packets_are_protected_too() {
    let Some(mut lab) = running("own_packets", Plan::default()) else { return };
    lab.hunt(|gateways| {
        let (site, far) = (gateways.site(1), gateways.site(2));
        for (from, to) in [(site.lan_v4(), far.host_v4()), (site.lan_v6(), far.host_v6())] {
            let ping = Ping { from: Some(&from), ..Ping::new(&to, 20) };
            let answers = ping.run_until_answered(&site.gateway).unwrap();
            assert!(answers.all_answered(), "{}", answers.text);
        }
    });
    lab.balances();
}

#[test]
fn hairpin_between_two_spokes_is_protected_on_both_legs() {
    let plan = Plan { sites: 3, shape: Shape::Hub, ..Plan::default() };
    let Some(mut lab) = running("hairpin", plan) else { return };
    let quarry = lab.hunt(|gateways| {
        let to = gateways.site(3).host_v4();
        // Neighbours come to be known.
        Ping::new(&to, 20).run(&gateways.site(2).host).unwrap();
        let to = gateways.site(3).host_v6();
        Ping::new(&to, 20).run(&gateways.site(2).host).unwrap();
        let stream = gateways.stream(2, 3, STEP).unwrap();
        let answers = Ping::new(&to, 30).run_until_answered(&gateways.site(2).host).unwrap();
        assert!(answers.all_answered(), "{}", answers.text);
        let delivery = Stream::finish(stream);
        assert!(delivery.sent.len() > 200);
        assert_eq!(delivery.lost(), 0, "of {}", delivery.sent.len());
    });
    // Two tunnels, two directions each: a packet between spokes is sealed twice on its way.
    assert_eq!(quarry.wire.spis().len(), 4);
    lab.balances();
}

#[test]
fn detach_opens_and_only_detach() {
    let Some(mut lab) = running("detach", Plan::default()) else { return };
    let to = lab.gateways.site(2).host_v4();
    for number in [1, 2] {
        // A daemon that runs is not detached from.
        let refused = detach(&lab.gateways, number);
        assert!(!refused.status.success(), "{}", refused.stdout);
        lab.gateways.take(number).unwrap().terminate().unwrap();
    }
    let closed = Ping::new(&to, 10).run(&lab.gateways.site(1).host).unwrap();
    assert_eq!(closed.received, 0, "{}", closed.text);
    for number in [1, 2] {
        let opened = detach(&lab.gateways, number);
        assert!(opened.status.success(), "{}{}", opened.stdout, opened.stderr);
    }
    let capture = lab.gateways.capture(Scope::Heads).unwrap();
    let open = Ping::new(&to, 10).run_one_by_one(&lab.gateways.site(1).host).unwrap();
    assert!(open.all_answered(), "{}", open.text);
    let tally = Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((tally.clear, tally.esp), (20, 0));
}

fn detach(gateways: &netlab::Gateways, number: u8) -> netlab::process::Finished {
    let lockgate = gateways.programs.lockgate.display().to_string();
    let socket = gateways.file(number).socket().display().to_string();
    let words = [lockgate.as_str(), "--socket", &socket, "detach"];
    gateways.site(number).gateway.run(&words, net::AGAIN).unwrap()
}
