//! Hosts with the offloads that a new veth has: they leave TCP and UDP checksums to their device,
//! which does nothing about them. Without care ping works and nothing else does.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use net::Lab;
use netlab::Namespace;
use netlab::sites::{HOST_INTERFACE, LAN, Plan};
use serde_json::Value;

const PORT: u16 = 4711;
/// Time in which something happens, on a machine that others use too.
const SOON: Duration = Duration::from_secs(60);
/// Time that is given to a connection which is not to come about.
const NEVER: Duration = Duration::from_secs(3);
/// Bytes that are sent and come back: many segments, the last one odd.
const VOLUME: usize = 100_001;

/// A laboratory whose hosts have their default offloads; its daemons do not run yet.
fn lab(test: &str) -> Option<Lab> {
    let lab = net::lab(test, Plan::default())?;
    for site in lab.gateways.sites.all() {
        site.host.offload_on(HOST_INTERFACE).unwrap();
    }
    Some(lab)
}

/// Sends bytes over TCP to a host that sends them back; whether they came back as they were.
fn tcp_crosses(from: &Namespace, to: &Namespace, address: IpAddr, limit: Duration) -> bool {
    let address = SocketAddr::new(address, PORT);
    let listener = to.enter(|| TcpListener::bind(address).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let end = Instant::now() + limit;
            let mut stream = loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    Err(_) if Instant::now() > end => return,
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            };
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(limit)).unwrap();
            let mut bytes = vec![0; VOLUME];
            if stream.read_exact(&mut bytes).is_ok() {
                let _ = stream.write_all(&bytes);
            }
        });
        let crossed = from.enter(|| {
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            let sent: Vec<u8> = (0..VOLUME).map(|n| n as u8).collect();
            stream.write_all(&sent)?;
            let mut came = vec![0; VOLUME];
            stream.read_exact(&mut came)?;
            Ok::<bool, std::io::Error>(came == sent)
        });
        echo.join().unwrap();
        crossed.unwrap().unwrap_or(false)
    })
}

/// Sends datagrams; how many of how many arrived.
fn udp_arrives(from: &Namespace, to: &Namespace, address: IpAddr) -> (usize, usize) {
    const DATAGRAMS: usize = 20;
    let address = SocketAddr::new(address, PORT);
    let receiver = to.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    from.enter(|| {
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let sender = UdpSocket::bind(SocketAddr::new(any, 0)).unwrap();
        for length in 0..DATAGRAMS {
            sender.send_to(&vec![0x5a; 61 * length], address).unwrap();
        }
    })
    .unwrap();
    let mut buffer = [0; 2048];
    let arrived = (0..DATAGRAMS).take_while(|_| receiver.recv(&mut buffer).is_ok()).count();
    (arrived, DATAGRAMS)
}

/// The addresses of a site's host.
fn addresses(lab: &Lab, site: u8) -> [IpAddr; 2] {
    let site = lab.gateways.site(site);
    [site.host_v4(), site.host_v6()].map(|text| text.parse().unwrap())
}

/// Returns a gateway's report on the checksums of packets that came by its protected port.
fn checksums(lab: &Lab, gateway: u8) -> Value {
    let ports = lab.gateways.daemon(gateway).unwrap().ports().unwrap();
    let lan = ports.iter().find(|port| port["name"] == LAN).expect("the port");
    lan["l4_checksum"].clone()
}

fn events_of(lab: &Lab, gateway: u8) -> String {
    lab.gateways.daemon(gateway).unwrap().log()
}

#[test]
fn tcp_and_udp_cross_both_ways_from_hosts_with_default_offloads() {
    const TEST: &str = "default_offloads";
    let Some(lab) = lab(TEST).and_then(|lab| lab.start(TEST)) else { return };
    lab.flows_again();
    for (from, to) in [(1, 2), (2, 1)] {
        let hosts = (&lab.gateways.site(from).host, &lab.gateways.site(to).host);
        for address in addresses(&lab, to) {
            let crossed = tcp_crosses(hosts.0, hosts.1, address, SOON);
            assert!(crossed, "TCP to {address}: {}\n{}", checksums(&lab, from), lab.logs());
            let (arrived, sent) = udp_arrives(hosts.0, hosts.1, address);
            assert_eq!(arrived, sent, "UDP to {address}: {}", checksums(&lab, from));
        }
    }
    for gateway in [1, 2] {
        let said = checksums(&lab, gateway);
        assert_eq!(said["mode"], "complete", "{said}");
        assert!(said["completed"].as_u64() > Some(40), "{said}");
        assert!(said["checked"].as_u64() > Some(0), "{said}");
        assert_eq!(said["bad"], 0, "{said}");
        assert!(!events_of(&lab, gateway).contains("bad_l4_checksum"));
    }
    lab.balances();
}

#[test]
fn a_port_that_passes_unfinished_checksums_says_why_nothing_connects() {
    const TEST: &str = "l4_checksum_pass";
    let Some(mut lab) = lab(TEST) else { return };
    lab.gateways.file_mut(1).lan = "l4_checksum = \"pass\"\n".to_owned();
    let Some(mut lab) = lab.start(TEST) else { return };
    lab.flows_again();
    let [address, _] = addresses(&lab, 2);
    let (from, to) = (&lab.gateways.site(1).host, &lab.gateways.site(2).host);
    assert!(!tcp_crosses(from, to, address, NEVER), "then this test tests nothing");
    assert_eq!(udp_arrives(from, to, address).0, 0, "then this test tests nothing");
    let said = checksums(&lab, 1);
    assert_eq!((&said["mode"], &said["completed"]), (&"pass".into(), &0.into()), "{said}");
    assert!(said["bad"].as_u64() > Some(0), "{said}");
    let daemon = lab.gateways.daemon_mut(1).unwrap();
    daemon.wait_for("bad_l4_checksum", SOON).unwrap();
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("bad_l4_checksum")).unwrap();
    assert!(line.contains("ethtool -K DEV tx off") && line.contains("port lan"), "{line}");
    let shown = daemon.run(&["show", "port"]).unwrap().stdout;
    assert!(shown.contains("had a wrong TCP or UDP checksum"), "{shown}");
    // The other way out of it: the port completes.
    lab.gateways.file_mut(1).lan = String::new();
    let file = lab.gateways.file(1).write().unwrap();
    lab.gateways.daemon(1).unwrap().apply(&file).unwrap();
    let (from, to) = (&lab.gateways.site(1).host, &lab.gateways.site(2).host);
    assert!(tcp_crosses(from, to, address, SOON), "{}", checksums(&lab, 1));
    lab.balances();
}
