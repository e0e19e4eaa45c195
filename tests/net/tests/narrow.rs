//! `allow_host` decides only what no PROTECT or DISCARD policy wants (RFC 4301 §5.2), live.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use net::{AGAIN, Lab, running};
use netlab::ping::Ping;
use netlab::sites::Plan;

/// A service of this machine that `allow_host` lists, as SSH would be.
const SERVICE: u16 = 2222;
/// Time for an answer that comes.
const ANSWER: Duration = Duration::from_millis(2000);
/// Time after which none comes.
const SILENCE: Duration = Duration::from_millis(400);
/// Time after which a test gives up.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns whether the far gateway, in cleartext, gets an answer of the service at an address of
/// ours.
fn serves(lab: &Lab, listener: &TcpListener, within: Duration) -> bool {
    let to: SocketAddr = listener.local_addr().unwrap();
    let serve = || -> std::io::Result<bool> {
        let far = &lab.gateways.site(2).gateway;
        let connect = || TcpStream::connect_timeout(&to, within);
        let mut asking = far.enter(connect).unwrap()?;
        asking.set_read_timeout(Some(within))?;
        let (mut answering, _) = listener.accept()?;
        asking.write_all(b"ask")?;
        let mut heard = [0; 3];
        answering.read_exact(&mut heard)?;
        answering.write_all(b"yes")?;
        asking.read_exact(&mut heard)?;
        Ok(heard == *b"yes")
    };
    serve().unwrap_or(false)
}

/// Returns whether a datagram from the far gateway reaches a socket at an address of ours.
fn reaches(lab: &Lab, address: &str, port: u16) -> bool {
    let to = format!("{address}:{port}");
    let site = lab.gateways.site(1);
    let socket = site.gateway.enter(|| UdpSocket::bind(&to)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let any = if address.contains('[') { "[::]:0" } else { "0.0.0.0:0" };
    let far = &lab.gateways.site(2).gateway;
    let sender = far.enter(|| UdpSocket::bind(any)).unwrap().unwrap();
    // The first ones may wait for ARP or neighbour discovery.
    (0..8).any(|_| {
        // Zeros: on port 4500 the marker of IKE.
        let _ = sender.send_to(&[0; 28], &to);
        socket.recv(&mut [0; 32]).is_ok()
    })
}

/// A laboratory whose far gateway only lends its address: nothing of Lockgate runs there. Gateway 1
/// lists [`SERVICE`].
fn with_service(test: &str) -> Option<Lab> {
    let mut lab = running(test, Plan::default())?;
    lab.gateways.take(2).unwrap().terminate().unwrap();
    let far = &lab.gateways.site(2).gateway;
    far.ip("link set wan xdp off").unwrap();
    far.run(&["nft", "delete", "table", "inet", "lockgate"], AGAIN).unwrap().success().unwrap();
    // What a veth sender leaves unfinished Linux does not take by the host port.
    far.run(&["ethtool", "-K", "wan", "tx", "off"], AGAIN).unwrap().success().unwrap();
    apply(&lab, "");
    Some(lab)
}

/// Applies gateway 1's file with [`SERVICE`] listed and these policies besides; returns what is
/// said.
fn apply(lab: &Lab, policies: &str) -> String {
    let file = lab.gateways.file(1);
    let listed = format!("\"icmp\", \"tcp/{SERVICE}\"]");
    let text = file.text().replace("\"icmp\"]", &listed) + policies;
    let changed = file.beside("changed.toml");
    std::fs::write(&changed, text).unwrap();
    let finished = lab.gateways.daemon(1).unwrap();
    let finished = finished.run(&["apply", "-f", &changed.display().to_string()]).unwrap();
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    finished.stdout + &finished.stderr
}

fn policy(lab: &Lab, words: &[&str]) -> String {
    let words = [&["policy"], words].concat();
    let finished = lab.gateways.daemon(1).unwrap().run(&words).unwrap();
    assert!(finished.status.success(), "{words:?}: {}{}", finished.stdout, finished.stderr);
    finished.stdout + &finished.stderr
}

fn listener(lab: &Lab) -> TcpListener {
    listener_at(lab, &lab.gateways.site(1).wan_v4())
}

fn listener_at(lab: &Lab, address: &str) -> TcpListener {
    let address = format!("{address}:{SERVICE}");
    // What is never connected is never accepted: an answer that does not come is a refusal above.
    lab.gateways.site(1).gateway.enter(|| TcpListener::bind(&address)).unwrap().unwrap()
}

/// Returns whether the service is served, and by the host port.
fn serves_by_host_port(lab: &Lab, listener: &TcpListener) -> bool {
    let before = by_host_port(lab);
    assert!(serves(lab, listener, ANSWER), "{}", lab.logs());
    by_host_port(lab) > before
}

/// Waits until something is so.
fn until(lab: &Lab, what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}\n{}", lab.logs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn dropped(lab: &Lab, reason: &str) -> u64 {
    lab.gateways.daemon(1).unwrap().counters().unwrap().dropped(reason)
}

/// Packets that Linux received by the host port.
fn by_host_port(lab: &Lab) -> u64 {
    let words = ["-s", "link", "show", "dev", "lockgate0"];
    let answer = lab.gateways.site(1).gateway.ip_json(&words).unwrap();
    answer[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

// NARROW
#[test]
fn a_listed_service_is_served_unless_a_policy_wants_its_packets() {
    let Some(mut lab) = with_service("narrow") else { return };
    let listener = listener(&lab);
    let before = by_host_port(&lab);
    assert!(serves(&lab, &listener, ANSWER), "no policy covers it");
    assert_eq!(by_host_port(&lab), before, "the program passes it");
    // A policy that has our address, for others: by the host port, and answers leave.
    let said = apply(
        &lab,
        "\n[[policy]]\nname = \"others\"\naction = \"discard\"\nlocal = [\"any\"]\n\
         remote = [\"203.0.113.0/24\"]\npriority = 50\n",
    );
    let meeting = format!("allow_host tcp/{SERVICE} of port wan and policy others");
    assert!(said.contains(&meeting), "{said}");
    assert!(serves(&lab, &listener, ANSWER), "it is for others\n{}", lab.logs());
    assert!(by_host_port(&lab) > before, "by the host port");
    // One that wants it, from the moment on that the change is answered.
    let ends = ["--local", "192.0.2.1", "--remote", "192.0.2.0/24", "--priority", "60"];
    policy(&lab, &[&["add", "--name", "stop", "--action", "discard"], &ends[..]].concat());
    let counted = dropped(&lab, "policy_discard");
    assert!(!serves(&lab, &listener, SILENCE), "a DISCARD policy wants it");
    assert!(dropped(&lab, "policy_discard") > counted);
    policy(&lab, &["del", "stop"]);
    assert!(serves(&lab, &listener, ANSWER), "the policy is gone");
    // Everything goes by the program again.
    apply(&lab, "");
    let before = by_host_port(&lab);
    assert!(serves(&lab, &listener, ANSWER));
    assert_eq!(by_host_port(&lab), before);
    lab.balances();
    // Reserved, and the daemon dead: closed, but for IKE.
    policy(
        &lab,
        &[
            "add",
            "--name",
            "others",
            "--action",
            "discard",
            "--local",
            "any",
            "--remote",
            "203.0.113.0/24",
        ],
    );
    lab.gateways.kill(1);
    assert!(!serves(&lab, &listener, SILENCE), "nobody evaluates it");
    let wan = lab.gateways.site(1).wan_v4();
    assert!(reaches(&lab, &wan, 500));
    // Without its program either.
    lab.gateways.site(1).gateway.ip("link set wan xdp off").unwrap();
    assert!(!serves(&lab, &listener, SILENCE), "the guard stands");
    assert!(reaches(&lab, &wan, 500));
}

// NARROW
// XO-33
#[test]
fn under_a_policy_for_everything_only_arp_discovery_and_ike_pass() {
    let Some(lab) = with_service("catch_all") else { return };
    let listener = listener(&lab);
    assert!(serves(&lab, &listener, ANSWER));
    let (site, far) = (lab.gateways.site(1), lab.gateways.site(2));
    let answers = |address: &str| Ping::new(address, 3).run(&far.gateway).unwrap().received > 0;
    assert!(answers(&site.wan_v4()), "icmp is listed");
    let peer = &lab.gateways.file(1).peers[0].name;
    let said = apply(
        &lab,
        &format!(
            "\n[[policy]]\nname = \"all\"\npeer = \"{peer}\"\nlocal = [\"any\"]\n\
             remote = [\"any\"]\npriority = 50\n"
        ),
    );
    for service in [format!("tcp/{SERVICE}"), "icmp".into()] {
        let meeting = format!("allow_host {service} of port wan and policy all");
        assert!(said.contains(&meeting), "{said}");
    }
    assert!(!said.contains("allow_host udp"), "IKE is spared: {said}");
    // ARP and neighbour discovery have to ask anew.
    far.gateway.ip("neigh flush dev wan").unwrap();
    site.gateway.ip("neigh flush dev wan").unwrap();
    let wan_v6 = "[2001:db8:ffff::1]";
    for address in [&site.wan_v4(), wan_v6] {
        assert!(reaches(&lab, address, 500), "IKE to {address}\n{}", lab.logs());
        assert!(reaches(&lab, address, 4500), "IKE behind NAT to {address}");
        assert!(!reaches(&lab, address, 7777), "not listed");
    }
    let counted = dropped(&lab, "unprotected");
    assert!(!serves(&lab, &listener, SILENCE));
    assert!(!answers(&site.wan_v4()));
    assert!(dropped(&lab, "unprotected") > counted);
    lab.balances();
}

// NARROW
#[test]
fn a_service_is_narrowed_when_an_address_comes_under_a_policy_and_passes_when_it_goes() {
    let Some(lab) = with_service("narrow_address") else { return };
    const LATE: &str = "192.0.2.77";
    let first = listener(&lab);
    let ends = ["--local", LATE, "--remote", "192.0.2.0/24"];
    let said =
        policy(&lab, &[&["add", "--name", "late", "--action", "discard"], &ends[..]].concat());
    assert!(!said.contains("allow_host"), "no address of ours is the policy's: {said}");
    assert!(!serves_by_host_port(&lab, &first), "the program passes it");

    // The address comes while the daemon runs: closed from its first moment on.
    let gateway = &lab.gateways.site(1).gateway;
    gateway.ip(&format!("addr add {LATE}/24 dev wan")).unwrap();
    let late = listener_at(&lab, LATE);
    assert!(!serves(&lab, &late, SILENCE), "a DISCARD policy wants it");
    // The program knows services, not policies: the other address goes by the worker too.
    until(&lab, "the program still passes it", || serves_by_host_port(&lab, &first));
    let counted = dropped(&lab, "policy_discard");
    assert!(!serves(&lab, &late, SILENCE), "a DISCARD policy wants it");
    until(&lab, "not counted", || dropped(&lab, "policy_discard") > counted);
    // Changes say now where the two meet.
    let said = policy(
        &lab,
        &["add", "--name", "more", "--action", "discard", "--local", LATE, "--remote", "any"],
    );
    let meeting = format!("allow_host tcp/{SERVICE} of port wan and policy more (and 1 more)");
    assert!(said.contains(&meeting), "{said}");

    // The address goes: nothing of ours is the policies' any more.
    gateway.ip(&format!("addr del {LATE}/24 dev wan")).unwrap();
    until(&lab, "the worker still has it", || !serves_by_host_port(&lab, &first));
    // And comes again.
    gateway.ip(&format!("addr add {LATE}/24 dev wan")).unwrap();
    until(&lab, "the program still passes it", || serves_by_host_port(&lab, &first));
    assert!(!serves(&lab, &late, SILENCE), "a DISCARD policy wants it");
    lab.balances();
}
