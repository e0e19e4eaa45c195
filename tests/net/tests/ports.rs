//! Ports, workers and packets that are special.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use net::{Lab, running};
use netlab::laboratory::connect;
use netlab::ping::{Fragments, Ping};
use netlab::sites::Plan;
use netlab::stream::Stream;
use netlab::{Gateways, Namespace, iperf};

/// Largest packet that a tunnel over IPv4 carries on a link of 1500 bytes, bytes.
const TUNNEL_MTU: u32 = 1446;
/// Time between two packets of a stream that shares a ring with a flood.
const SLOW: Duration = Duration::from_millis(4);

/// Runs a test twice: gateways of one worker each, and of two with a queue for each. `prepare` has
/// the laboratory before the daemons start, and the number of workers.
fn by_one_worker_and_by_two<T>(
    test: &str,
    prepare: impl Fn(&mut Lab, u32) -> T,
    body: impl Fn(Lab, T),
) {
    for workers in [1, 2] {
        let plan = Plan { queues: workers, ..Plan::default() };
        let Some(mut lab) = net::lab(test, plan) else { return };
        for number in [1, 2] {
            lab.gateways.file_mut(number).workers = workers.to_string();
        }
        let prepared = prepare(&mut lab, workers);
        let Some(lab) = lab.start(test) else { return };
        for number in [1, 2] {
            let counters = lab.gateways.daemon(number).unwrap().counters().unwrap();
            assert_eq!(counters.workers, workers as usize, "gateway {number}");
        }
        body(lab, prepared);
    }
}

/// Nothing to prepare.
fn alike(_: &mut Lab, _: u32) {}

#[test]
fn two_workers_share_the_queues_and_no_number_comes_twice() {
    // AX-07
    let plan = Plan { queues: 2, ..Plan::default() };
    let Some(mut lab) = net::lab("two_workers", plan) else { return };
    for number in [1, 2] {
        lab.gateways.file_mut(number).workers = "2".to_owned();
    }
    let Some(mut lab) = lab.start("two_workers") else { return };
    let counters = lab.gateways.daemon(1).unwrap().counters().unwrap();
    assert_eq!(counters.workers, 2);
    lab.hunt(|gateways| {
        // Many flows, so that both queues have some: each ping family, and a UDP flow.
        let server = iperf::Server::start(&gateways.site(2).host).unwrap();
        let to = gateways.site(2).host_v4();
        let udp = iperf::udp(&gateways.site(1).host, &to, 2, (1200, 5000)).unwrap();
        // Four workers may share two busy cores: how much is lost is no matter here.
        assert!(udp.loss < 0.9, "{udp:?}");
        drop(server);
        for to in [gateways.site(2).host_v4(), gateways.site(2).host_v6()] {
            let answers = Ping::new(&to, 20).run_until_answered(&gateways.site(1).host).unwrap();
            assert!(answers.all_answered(), "{}", answers.text);
        }
    });
    lab.balances();
}

/// Sends 20,000 packets from site 2's host to an address behind gateway 1. Each burst waits until
/// gateway 1 has received the one before: the ring of a queue holds several bursts.
fn flood(gateways: &Gateways, target: SocketAddr) {
    const BURST: u64 = 256;
    let received = || -> u64 {
        let ports = gateways.daemon(1).unwrap().ports().unwrap();
        let wan = ports.iter().find(|port| port["name"] == "wan").unwrap();
        wan["ledger"]["received"].as_u64().unwrap()
    };
    let socket = net::host_socket(gateways, 2);
    for burst in 0..80 {
        let before = received();
        for _ in 0..BURST {
            socket.send_to(&[0; 200], target).unwrap();
        }
        let end = Instant::now() + net::AGAIN;
        while received() < before + BURST {
            assert!(Instant::now() < end, "burst {burst}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_port_whose_link_is_gone_starves_no_other() {
    // AX-07
    let with_second_port = |lab: &mut Lab, workers| {
        // A second protected port of gateway 1 with a host of its own, 10.1.128.10.
        let second: Namespace = lab.gateways.sites.laboratory.namespace("second").unwrap();
        let gateway = &lab.gateways.site(1).gateway;
        connect((gateway, "lan2"), (&second, "eth0"), workers).unwrap();
        gateway.ip("link set lan2 up\naddr add 10.1.128.1/24 dev lan2").unwrap();
        gateway.offload_off("lan2").unwrap();
        second
            .ip("link set eth0 up\naddr add 10.1.128.10/24 dev eth0\n\
                 route add default via 10.1.128.1")
            .unwrap();
        second.offload_off("eth0").unwrap();
        lab.gateways.file_mut(1).extra +=
            "\n[port.lan2]\nnetdev = \"lan2\"\nside = \"protected\"\n";
        second
    };
    by_one_worker_and_by_two("stuck_port", with_second_port, |mut lab, second| {
        let own: IpAddr = [10, 2, 0, 10].into();
        let far: IpAddr = [10, 1, 128, 10].into();
        // The first packets may wait for a neighbour for so long that others push them out.
        net::wait_for("pings to the second port", || {
            let ping = Ping::new("10.1.128.10", 10);
            ping.run_until_answered(&lab.gateways.site(2).host).unwrap().all_answered()
        });

        // From here on nothing leaves by lan2, and far more is sent there than it has frames.
        let quarry = lab.hunt_by_steps_of(SLOW, |gateways| {
            let stream = (&gateways.site(2).host, own);
            let stream = Stream::start(stream, (&second, far), 200, SLOW).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            second.ip("link set eth0 down").unwrap();
            flood(gateways, SocketAddr::new(far, 9));
            second.ip("link set eth0 up").unwrap();
            std::thread::sleep(Duration::from_millis(500));
            assert!(stream.finish().lost() > 0, "nothing was stuck");
        });
        for stream in &quarry.streams {
            let (lost, sent) = (stream.lost(), stream.sent.len());
            assert_eq!(
                lost,
                0,
                "{lost} of {sent} lost on the ports that were well\n{}",
                lab.logs()
            );
        }
        lab.balances();
    });
}

#[test]
fn a_packet_too_big_for_the_tunnel_is_answered_by_the_gateway() {
    // AX-07
    by_one_worker_and_by_two("too_big", alike, |lab, ()| {
        let (a, b) = (lab.gateways.site(1), lab.gateways.site(2));
        for (to, from, size) in [(b.host_v4(), a.lan_v4(), 1472), (b.host_v6(), a.lan_v6(), 1452)] {
            let ping = Ping { size, fragments: Fragments::Forbidden, ..Ping::new(&to, 2) };
            let answers = ping.run(&a.host).unwrap();
            assert_eq!((answers.received, answers.mtu), (0, Some(TUNNEL_MTU)), "{}", answers.text);
            assert!(answers.text.contains(&format!("From {from} ")), "{}", answers.text);
        }
        // What the host then sends fits.
        let to = b.host_v4();
        let ping =
            Ping { size: TUNNEL_MTU - 28, fragments: Fragments::Forbidden, ..Ping::new(&to, 5) };
        let answers = ping.run_until_answered(&a.host).unwrap();
        assert!(answers.all_answered(), "{}", answers.text);
        lab.balances();
    });
}

#[test]
fn fragments_cross_and_come_together_at_the_far_host() {
    // AX-07
    by_one_worker_and_by_two("fragments", alike, |lab, ()| {
        let (a, b) = (lab.gateways.site(1), lab.gateways.site(2));
        for to in [b.host_v4(), b.host_v6()] {
            let ping = Ping { size: 4000, ..Ping::new(&to, 10) };
            // The first ones may teach the host the path's MTU (IPv6).
            ping.run(&a.host).unwrap();
            let answers = ping.run_until_answered(&a.host).unwrap();
            assert!(answers.all_answered(), "{}\n{}", answers.text, lab.logs());
        }
        lab.balances();
    });
}

#[test]
fn packets_wait_for_a_neighbour_that_is_not_resolved_yet() {
    // AX-07
    by_one_worker_and_by_two("neighbours", alike, |mut lab, ()| {
        // However late the machine is, fewer packets wait for one neighbour than may.
        let slow = Duration::from_secs(1);
        lab.hunt_by_steps_of(slow, |gateways| {
            let (from, to) = (gateways.site(1), gateways.site(2).host_v4());
            for _ in 0..5 {
                for number in [1, 2] {
                    gateways.site(number).gateway.ip("neigh flush all").unwrap();
                }
                let interval = Duration::from_millis(50);
                let answers =
                    Ping { interval, ..Ping::new(&to, 5) }.run_until_answered(&from.host).unwrap();
                assert!(answers.all_answered(), "{}", answers.text);
            }
        });
        lab.balances();
    });
}

#[test]
fn tcp_runs_through_the_tunnel_in_both_directions() {
    // AX-07
    by_one_worker_and_by_two("tcp", alike, |lab, ()| {
        for (from, to) in [(1, 2), (2, 1)] {
            let server = iperf::Server::start(&lab.gateways.site(to).host).unwrap();
            let address = lab.gateways.site(to).host_v6();
            let gigabits = iperf::tcp(&lab.gateways.site(from).host, &address, 1).unwrap();
            assert!(gigabits > 0.0, "no TCP crosses\n{}", lab.logs());
            println!("TCP over IPv6 from site {from}: {gigabits:.2} Gbit/s");
            drop(server);
        }
        lab.balances();
    });
}

#[test]
fn a_tunnel_over_ipv6_carries_both_families() {
    // AX-07
    let over_ipv6 = |lab: &mut Lab, _| {
        let outer = [1, 2].map(|number| lab.gateways.site(number).wan_v6());
        for (number, [own, other]) in [(1, [0, 1]), (2, [1, 0])] {
            let peer = &mut lab.gateways.file_mut(number).peers[0];
            (peer.local, peer.remote) = (outer[own].clone(), outer[other].clone());
        }
    };
    by_one_worker_and_by_two("over_ipv6", over_ipv6, |mut lab, ()| {
        let quarry = lab.hunt(|gateways| {
            let to = gateways.site(2).host_v6();
            let answers = Ping::new(&to, 20).run_until_answered(&gateways.site(1).host).unwrap();
            assert!(answers.all_answered(), "{}", answers.text);
        });
        for stream in &quarry.streams {
            assert_eq!(stream.lost(), 0);
        }
        lab.balances();
    });
}

#[test]
fn an_idle_daemon_sleeps() {
    // AX-06
    let Some(lab) = running("idle", Plan::default()) else { return };
    std::thread::sleep(Duration::from_secs(1));
    let pid = lab.gateways.daemon(1).unwrap().pid();
    let before = cpu_ticks(pid);
    std::thread::sleep(Duration::from_secs(5));
    let used = cpu_ticks(pid) - before;
    // 100 ticks a second: 10 % of 5 s are 50. A loop that never sleeps has up to 500.
    assert!(used <= 50, "{used} ticks in 5 s");
}

#[test]
fn a_busy_daemon_forwards_and_never_sleeps() {
    // AX-06
    let Some(mut lab) = net::lab("busy", Plan::default()) else { return };
    lab.gateways.file_mut(1).node = "poll = \"busy\"\n".to_owned();
    let Some(mut lab) = lab.start("busy") else { return };
    let worker = |lab: &Lab, number| {
        let shown = lab.gateways.daemon(number).unwrap().ask(&["show", "counters"]).unwrap();
        let worker = &shown["workers"][0];
        ["sleeps", "turns", "cpu_ms"].map(|key| worker[key].as_u64().unwrap())
    };
    let [_, turns, cpu_ms] = worker(&lab, 1);
    // Nothing to do: it goes round all the same. An idle worker that sleeps goes round about ten
    // times a second. Others may have the core.
    net::wait_for("1000 turns and 100 ms of its core", || {
        let [sleeps, later_turns, later_ms] = worker(&lab, 1);
        assert_eq!(sleeps, 0, "in {later_turns} turns");
        later_turns - turns > 1000 && later_ms - cpu_ms >= 100
    });
    let quarry = lab.hunt(|gateways| {
        let to = gateways.site(2).host_v6();
        let answers = Ping::new(&to, 20).run_until_answered(&gateways.site(1).host).unwrap();
        assert!(answers.all_answered(), "{}", answers.text);
    });
    for stream in &quarry.streams {
        assert!(!stream.arrived.is_empty(), "nothing of {}", stream.sent.len());
    }
    assert_eq!(worker(&lab, 1)[0], 0);
    assert_ne!(worker(&lab, 2)[0], 0, "gateway 2 has `sleep`");
    lab.balances();
}

/// User and system time of a process, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
