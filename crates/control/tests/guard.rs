//! The guard: its text, and what it stops in network namespaces with forwarding on.

#[path = "../../linux/tests/namespace/mod.rs"]
mod namespace;

use std::process::Command;
use std::time::{Duration, Instant};

use config::{Validated, parse};
use control::guard::{Detail, Earlier, Guard, GuardError, GuardWatch, Integrity};
use dataplane::carve_out::Reserved;
use linux::nft::NftError;
use linux::{Link, LinkKind, View};
use namespace::{inside, ip, run};

const TEXT: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "veth0"
side = "protected"
addresses = ["10.1.0.1/24"]
[port.wan]
netdev = "veth2"
side = "unprotected"
addresses = ["192.0.2.1/24", "2001:db8::1/64"]
allow_host = ["udp/500", "icmp"]
[port.tagged]
netdev = "veth4"
vlan = 12
side = "unprotected"
[peer.a]
local = "192.0.2.1"
remote = "192.0.2.2"
keys = "file:a"
manual = "laboratory"
suite = "aes-128-gcm"
[[policy]]
name = "far"
peer = "a"
local = ["any"]
remote = ["10.2.0.0-10.2.1.255", "10.2.1.0/24", "2001:db8:2::/48"]
[[policy]]
name = "open-host"
action = "bypass"
local = ["any"]
remote = ["10.2.0.5"]
priority = 200
[[policy]]
name = "closed-again"
action = "discard"
local = ["any"]
remote = ["10.2.0.5"]
protocol = "tcp"
remote_ports = ["81-90", "85-99"]
priority = 200
[[policy]]
name = "ports-of-any-protocol"
peer = "a"
local = ["any"]
remote = ["10.3.0.0/16"]
remote_ports = ["7777"]
local_ports = ["1-40000"]
[[policy]]
name = "echo"
peer = "a"
local = ["any"]
remote = ["10.4.0.0/16"]
protocol = "icmp"
icmp = ["8", "3/2-3/4"]
[[policy]]
name = "many"
peer = "a"
local = ["any"]
remote = ["10.7.0.0/16", "10.9.0.0/16", "10.11.0.0/16"]
protocol = "tcp"
remote_ports = ["1", "3", "5"]
[[policy]]
name = "inward"
peer = "a"
local = ["any"]
remote = ["10.5.0.0/16"]
direction = "inbound"
"#;

fn config() -> Validated {
    parse(TEXT, "test").unwrap_or_else(|errors| panic!("{errors}")).validated
}

/// Nothing of `allow_host` is reserved.
fn none() -> Reserved {
    of(&config())
}

fn of(config: &Validated) -> Reserved {
    Reserved::nothing(config.ports.iter().map(|port| (&*port.name, &port.allow_host[..])))
}

fn link(index: u32, name: &str, kind: LinkKind, lower: Option<u32>) -> (u32, Link) {
    let link = Link {
        index,
        name: name.into(),
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        admin_up: true,
        carrier: true,
        kind,
        ethernet: true,
        master: None,
        lower,
        queues: (1, 1),
    };
    (index, link)
}

/// The lines of a chain.
fn chain<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!("  chain {name} {{");
    let lines = text.lines().skip_while(|line| *line != start).skip(1);
    lines.take_while(|line| *line != "  }").map(str::trim).collect()
}

#[test]
fn the_text_closes_netdevs_and_lists_policies_in_their_order() {
    let mut view = View::default();
    let vlan = LinkKind::Vlan { parent: 4, id: 12 };
    view.links.extend([
        link(2, "veth2", LinkKind::Veth, None),
        link(4, "veth4", LinkKind::Veth, None),
        link(5, "any-name", vlan, Some(4)),
        link(6, "macvlan0", LinkKind::Other("macvlan".into()), Some(2)),
        link(7, "vxlan0", LinkKind::Other("vxlan".into()), Some(2)),
        link(8, "mgmt", LinkKind::Veth, None),
        // On top of what is on top.
        link(9, "macvlan1", LinkKind::Other("macvlan".into()), Some(5)),
        link(10, "inner", LinkKind::Vlan { parent: 9, id: 7 }, Some(9)),
    ]);
    let guard = Guard::new(&config(), &view, &none()).expect("a guard");
    let text = guard.text();
    let forward = chain(&text, "forward");
    let own = ["veth0", "veth2", "veth4", "veth4.*", "lockgate0"];
    for name in own.into_iter().chain(["any-name", "macvlan0", "macvlan1", "inner"]) {
        for direction in ["iifname", "oifname"] {
            let rule = format!("{direction} \"{name}\" counter drop");
            assert!(forward.contains(&rule.as_str()), "{rule} is missing: {forward:#?}");
        }
    }
    // What an encapsulation sends is this machine's own and judged as such.
    assert!(!guard.text().contains("vxlan0") && !guard.text().contains("mgmt"));
    let output = chain(&text, "output");
    // Unprotected: veth2 and VLAN 12, and whatever sends by the same links.
    let unprotected = ["any-name", "macvlan0", "macvlan1", "veth2"];
    assert_eq!(output[2..], unprotected.map(|name| format!("oifname \"{name}\" goto outbound")));
    let input = chain(&text, "input");
    for name in unprotected {
        let last = input.iter().rfind(|rule| rule.contains(&format!("\"{name}\"")));
        assert_eq!(*last.expect("rules"), format!("iifname \"{name}\" counter drop"));
    }
    assert!(input.contains(&"iifname \"veth2\" meta l4proto 17 th dport 500 accept"), "{input:#?}");
    let outbound = chain(&text, "outbound");
    assert_eq!(
        outbound[4..],
        [
            // Of equal priority: the later in the file first.
            "ip daddr 10.2.0.5 meta l4proto 6 th dport 81-99 counter drop \
             comment \"closed-again\"",
            "ip daddr 10.2.0.5 accept comment \"open-host\"",
            "ip daddr { 10.7.0.0/16, 10.9.0.0/16, 10.11.0.0/16 } meta l4proto 6 \
             th dport { 1, 3, 5 } counter drop comment \"many\"",
            "ip daddr 10.4.0.0/16 meta l4proto 1 @th,0,16 2048-2303 counter drop \
             comment \"echo\"",
            "ip daddr 10.4.0.0/16 meta l4proto 1 @th,0,16 770-772 counter drop \
             comment \"echo\"",
            "ip daddr 10.3.0.0/16 meta l4proto { 6, 17, 33, 132, 136 } th sport 1-40000 \
             th dport 7777 counter drop comment \"ports-of-any-protocol\"",
            "ip daddr 10.2.0.0/23 counter drop comment \"far\"",
            "ip6 daddr 2001:db8:2::/48 counter drop comment \"far\"",
        ]
    );
    // At boot there are no netdevs yet: a VLAN goes by its usual name.
    let early = Guard::early(&config()).expect("a guard");
    assert!(chain(&early.text(), "output").contains(&"oifname \"veth4.12\" goto outbound"));
    assert_eq!(chain(&early.text(), "input"), [""; 0]);
}

#[test]
fn a_netdev_that_nftables_cannot_name_is_refused() {
    let text = TEXT.replace("veth0", "a\\\"b");
    let config = parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}")).validated;
    let error = Guard::early(&config).expect_err("no guard");
    assert_eq!(error.name, "a\"b");
}

/// Returns whether one ping gets an answer.
fn ping(namespace: Option<&str>, to: &str) -> bool {
    let mut command = Command::new("ip");
    if let Some(name) = namespace {
        command.args(["netns", "exec", name]);
    } else {
        command = Command::new("ping");
    }
    if namespace.is_some() {
        command.arg("ping");
    }
    let output = command.args(["-c", "1", "-W", "1", "-n", to]).output().expect("ping starts");
    output.status.success()
}

/// A host behind veth0, and behind veth2 a router to 10.2/16, 10.3/16 and 10.4/16; forwarding on
/// everywhere. Both are in the far namespace: the host in its own table.
fn connect(far: &str) {
    ip("link add veth0 type veth peer name lan");
    ip("link add veth2 type veth peer name wan");
    ip(&format!("link set lan netns {far}"));
    ip(&format!("link set wan netns {far}"));
    ip("address add 10.1.0.1/24 dev veth0");
    ip("address add 192.0.2.1/24 dev veth2");
    ip("address add 2001:db8::1/64 dev veth2 nodad");
    ip("link set veth0 up");
    ip("link set veth2 up");
    ip(&format!("-n {far} address add 10.1.0.2/24 dev lan"));
    ip(&format!("-n {far} address add 192.0.2.2/24 dev wan"));
    ip(&format!("-n {far} address add 2001:db8::2/64 dev wan nodad"));
    for address in ["10.2.0.5/32", "10.2.0.6/32", "10.4.0.5/32", "10.5.0.5/32"] {
        ip(&format!("-n {far} address add {address} dev lo"));
    }
    ip(&format!("-n {far} address add 2001:db8:2::5/128 dev lo nodad"));
    ip(&format!("-n {far} link set lan up"));
    ip(&format!("-n {far} link set wan up"));
    ip(&format!("-n {far} route add 10.1.0.0/24 via 192.0.2.1 metric 50"));
    ip("route add 10.0.0.0/8 via 192.0.2.2");
    ip("-6 route add 2001:db8:2::/48 via 2001:db8::2");
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    let count = "table inet count { counter wan {}; chain arriving { \
                 type filter hook prerouting priority 0; \
                 iifname wan meta nfproto ipv4 counter name wan; }; }";
    run("ip", &["netns", "exec", far, "nft", count]);
}

/// IPv4 packets that left by veth2, as the far end counts them.
fn packets(far: &str) -> u64 {
    let counter = ["netns", "exec", far, "nft", "list", "counter", "inet", "count", "wan"];
    let listed = run("ip", &counter);
    let mut words = listed.split_whitespace().skip_while(|word| *word != "packets").skip(1);
    words.next().expect("a number").parse().expect("a number")
}

#[test]
fn the_guard_stops_what_the_kernel_would_send_in_clear() {
    inside("the_guard_stops_what_the_kernel_would_send_in_clear", |far| {
        connect(far);
        // Without the guard it leaks, or the test shows nothing.
        let leaks = ["10.2.0.5", "10.2.0.6", "10.4.0.5", "10.5.0.5", "2001:db8:2::5", "192.0.2.2"];
        for to in leaks {
            assert!(ping(None, to), "the control run: {to} must answer");
        }
        let mut guard = Guard::new(&config(), &View::default(), &none()).expect("a guard");
        guard.check().expect("nft accepts it");
        guard.install().expect("installed");
        // What no policy covers, what one bypasses, and what one covers inbound only.
        for to in ["192.0.2.2", "10.2.0.5", "10.5.0.5"] {
            assert!(ping(None, to), "{to} is nobody's concern");
        }
        for to in ["10.2.0.6", "10.4.0.5", "2001:db8:2::5"] {
            assert!(!ping(None, to), "{to} is protected");
        }
        // ESP and IKE pass; the far end has nobody who answers.
        for protocol in ["esp", "ike", "tcp"] {
            let before = packets(far);
            send(protocol);
            let sent = packets(far) - before;
            assert_eq!(sent > 0, protocol != "tcp", "{protocol} to a protected host");
        }
        Guard::remove().expect("removed");
        assert!(ping(None, "10.2.0.6"), "without the guard it leaks again");
        Guard::remove().expect("nothing to remove is no error");
    });
}

/// Sends a packet of a protocol to a protected host.
fn send(protocol: &str) {
    let program = match protocol {
        "esp" => {
            "import socket; s=socket.socket(socket.AF_INET, socket.SOCK_RAW, 50); \
             s.sendto(b'x'*32, ('10.2.0.6', 0))"
        }
        "ike" => {
            "import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
             s.sendto(b'x'*32, ('10.2.0.6', 500))"
        }
        _ => {
            "import socket; s=socket.socket(); s.settimeout(0.2)\n\
             try: s.connect(('10.2.0.6', 9))\nexcept OSError: pass"
        }
    };
    // nft drops with an error for the sender, so the program may fail.
    let _ = Command::new("python3").args(["-c", program]).output().expect("python3 starts");
}

#[test]
fn the_guard_stops_forwarding() {
    inside("the_guard_stops_forwarding", |far| {
        connect(far);
        // From the host on lan: its own table leads everything to us.
        ip(&format!("-n {far} rule add from 10.1.0.2 lookup 5 priority 5"));
        ip(&format!("-n {far} route add default via 10.1.0.1 table 5"));
        ip(&format!("-n {far} rule del priority 0"));
        ip(&format!("-n {far} rule add lookup local priority 9"));
        for (path, value) in
            [("all/rp_filter", "0"), ("lan/rp_filter", "0"), ("wan/rp_filter", "0")]
        {
            let write = format!("echo {value} > /proc/sys/net/ipv4/conf/{path}");
            run("ip", &["netns", "exec", far, "sh", "-c", &write]);
        }
        let send = || {
            let before = packets(far);
            let ping = ["ping", "-c", "2", "-i", "0.2", "-W", "1", "-n", "-I", "10.1.0.2"];
            let exec = [&["netns", "exec", far][..], &ping[..], &["192.0.2.2"][..]].concat();
            let _ = Command::new("ip").args(&exec).output().expect("ping starts");
            packets(far) - before
        };
        assert!(send() > 0, "the control run: the kernel must forward");
        let mut guard = Guard::early(&config()).expect("a guard");
        guard.install().expect("installed");
        assert_eq!(send(), 0, "forwarded in spite of the guard");
        Guard::closed().install().expect("installed in its place");
        assert_eq!(guard.integrity().expect("asked"), Integrity::Broken);
        assert_eq!(send(), 0, "forwarded in spite of the guard");
        Guard::remove().expect("removed");
        assert!(send() > 0, "without the guard the kernel forwards again");
    });
}

#[test]
fn a_guard_that_is_removed_by_hand_is_noticed_at_once() {
    inside("a_guard_that_is_removed_by_hand_is_noticed_at_once", |_| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut guard = Guard::early(&config()).expect("a guard");
            let mut watch = GuardWatch::start();
            assert_eq!(guard.integrity().expect("asked"), Integrity::Broken, "not there yet");
            guard.install().expect("installed");
            assert_eq!(guard.integrity().expect("asked"), Integrity::Intact);
            // Somebody else's table is no concern, nor is our own doing.
            run("nft", &["add", "table", "inet", "other"]);
            guard.install().expect("installed again");
            let quiet = Duration::from_millis(300);
            let heard = tokio::time::timeout(quiet, watch.broken(&guard)).await;
            assert!(heard.is_err(), "{heard:?}");
            let wrecks: [&[&str]; 4] = [
                &["delete", "table", "inet", "lockgate"],
                &["flush", "chain", "inet", "lockgate", "forward"],
                &["insert", "rule", "inet", "lockgate", "outbound", "accept"],
                &["flush", "ruleset"],
            ];
            for wreck in wrecks {
                run("nft", wreck);
                let heard =
                    tokio::time::timeout(Duration::from_secs(60), watch.broken(&guard)).await;
                assert!(matches!(heard, Ok(Ok(()))), "{wreck:?}: {heard:?}");
                guard.install().expect("installed again");
                assert_eq!(guard.integrity().expect("asked"), Integrity::Intact);
            }
        });
    });
}

/// So many policies to networks of their own, in 20.0.0.0/8 and beyond.
fn many(count: u32) -> String {
    let policy = |n: u32| {
        let network = std::net::Ipv4Addr::from((20 << 24) + (n << 9));
        format!(
            "[[policy]]\nname = \"p{n}\"\npeer = \"a\"\nlocal = [\"10.1.0.0/16\"]\n\
             remote = [\"{network}/24\"]\nprotocol = \"tcp\"\nremote_ports = [\"80\", \"443\"]\n"
        )
    };
    format!("{TEXT}{}", (0..count).map(policy).collect::<String>())
}

#[test]
fn many_policies_are_put_in_place() {
    inside("many_policies_are_put_in_place", |_| {
        let last = std::env::var("LOCKGATE_TEST_POLICIES").ok();
        let last = last.map_or(5000, |text| text.parse().expect("a number"));
        for count in [1, 490, 500, 5000, last] {
            let parsed = parse(&many(count), "test").unwrap_or_else(|errors| panic!("{errors}"));
            let config = parsed.validated;
            let began = Instant::now();
            let mut guard = Guard::early(&config).expect("a guard");
            let written = began.elapsed();
            guard.install().expect("installed");
            let installed = began.elapsed();
            assert_eq!(guard.integrity().expect("asked"), Integrity::Intact);
            let seen = began.elapsed() - installed;
            assert_eq!(guard.detail() == Detail::ByPolicy, count < 500, "{:?}", guard.detail());
            println!("{count} policies: {written:?}, in place {installed:?}, looked at {seen:?}");
            // Something quadratic is noticed, a busy machine is not.
            let limit = Duration::from_secs(60);
            assert!(installed < limit && seen < limit);
        }
    });
}

#[test]
fn a_guard_by_address_stops_as_much_and_keeps_what_it_can() {
    inside("a_guard_by_address_stops_as_much_and_keeps_what_it_can", |far| {
        connect(far);
        let config = parse(&many(1000), "test").unwrap_or_else(|errors| panic!("{errors}"));
        let mut guard = Guard::new(&config.validated, &View::default(), &of(&config.validated))
            .expect("a guard");
        guard.install().expect("installed");
        // "closed-again" stands before "open-host" and closes its address.
        let detail = Detail::ByAddress { policies: 1006, bypasses_left_out: 1 };
        assert_eq!(guard.detail(), detail);
        for to in ["192.0.2.2", "10.5.0.5"] {
            assert!(ping(None, to), "{to} is nobody's concern");
        }
        for to in ["10.2.0.5", "10.2.0.6", "10.4.0.5", "2001:db8:2::5"] {
            assert!(!ping(None, to), "{to} is protected");
        }
        for protocol in ["esp", "ike", "tcp"] {
            let before = packets(far);
            send(protocol);
            let sent = packets(far) - before;
            assert_eq!(sent > 0, protocol != "tcp", "{protocol} to a protected host");
        }
        // Without what closes it again, the exception stands before the rest.
        let text = many(1000)
            .replace("name = \"closed-again\"", "name = \"closed-again\"\ndirection = \"inbound\"");
        let config = parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
        let mut guard = Guard::new(&config.validated, &View::default(), &of(&config.validated))
            .expect("a guard");
        guard.install().expect("installed");
        assert_eq!(guard.detail(), Detail::ByAddress { policies: 1005, bypasses_left_out: 0 });
        assert!(ping(None, "10.2.0.5"), "a policy bypasses it");
        assert!(!ping(None, "10.2.0.6"), "it is protected");
        // Nobody takes a network out of the set, and a table made anew is another one.
        let taken = Command::new("nft")
            .args(["delete", "element", "inet", "lockgate", "closed_ipv4", "{ 20.0.0.0/24 }"])
            .output()
            .expect("nft starts");
        assert!(!taken.status.success(), "an element was taken out");
        let listed = run("nft", &["list", "table", "inet", "lockgate"]);
        let weaker = listed.replacen("20.0.0.0/24,", "", 1);
        assert_ne!(weaker, listed);
        let again = format!("delete table inet lockgate\n{weaker}");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), again).expect("written");
        run("nft", &["-f", file.path().to_str().expect("a plain path")]);
        assert_eq!(guard.integrity().expect("asked"), Integrity::Broken);
    });
}

#[test]
fn other_netdevs_make_another_guard_without_a_look_at_the_policies() {
    let guard = Guard::new(&config(), &View::default(), &none()).expect("a guard");
    assert!(
        guard.with_netdevs(&config(), &View::default(), &none(), &[]).expect("writable").is_none()
    );
    let mut view = View::default();
    view.links.extend([
        link(2, "veth2", LinkKind::Veth, None),
        link(6, "macvlan0", LinkKind::Other("macvlan".into()), Some(2)),
    ]);
    let other =
        guard.with_netdevs(&config(), &view, &none(), &[]).expect("writable").expect("another");
    assert_eq!(other.text(), Guard::new(&config(), &view, &none()).expect("a guard").text());
}

#[test]
fn the_guard_that_stood_before_is_put_back_as_it_was() {
    inside("the_guard_that_stood_before_is_put_back_as_it_was", |_| {
        let none = Earlier::look().expect("nft");
        let list = || run("nft", &["-s", "list", "ruleset"]);
        for policies in [0, 5000] {
            let config = parse(&many(policies), "test").unwrap_or_else(|errors| panic!("{errors}"));
            let view = View::default();
            Guard::new(&config.validated, &view, &of(&config.validated))
                .expect("a guard")
                .install()
                .expect("installed");
            let listing = list();
            let earlier = Earlier::look().expect("nft");
            Guard::closed().install().expect("installed");
            assert_ne!(list(), listing);
            earlier.restore().expect("put back");
            assert_eq!(list(), listing);
        }
        none.restore().expect("removed");
        assert!(!Guard::stands().expect("nft"));
    });
}

#[test]
fn without_nft_the_error_says_what_to_install() {
    const NAME: &str = "without_nft_the_error_says_what_to_install";
    const INSIDE: &str = "LOCKGATE_TEST_WITHOUT_NFT";
    if std::env::var_os(INSIDE).is_none() {
        let output = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", NAME, "--nocapture"])
            .env(INSIDE, "1")
            .env("PATH", "/nonexistent")
            .output()
            .expect("this program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    }
    let error = Guard::closed().check().expect_err("no nft");
    assert!(matches!(error, GuardError::Nft(NftError::NoProgram)), "{error}");
    assert!(error.to_string().contains("apt-get install nftables"));
}
