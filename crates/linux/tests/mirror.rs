//! The mirror against a real kernel, in network namespaces.

mod namespace;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use dataplane::Prefix;
use linux::{
    Changes, Ethtool, HOST_ROUTE_TABLE, HostRoute, KernelRoute, LinkKind, Mirror, NeighbourState,
    Note, Offload, Refused, ResyncReason, RouteKind, RouteStatus, Usability, View, nft, read_link,
};
use namespace::{inside, ip, run};
use policy::AddressRange;
use wire::Address;

/// Longest time that a test waits for a change.
const PATIENCE: Duration = Duration::from_secs(60);

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn prefix(text: &str) -> Prefix {
    let range: AddressRange = text.parse().unwrap();
    Prefix { address: range.first(), length: range.prefix_length().unwrap() }
}

fn on_runtime(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(body);
}

/// Applies changes until the view is as it should be, and returns the notes on the way.
async fn until(mirror: &mut Mirror, what: &str, is: impl Fn(&View) -> bool) -> Vec<Note> {
    let mut notes = Vec::new();
    let changing = async {
        while !is(mirror.view()) {
            notes.extend(mirror.changed().await.notes);
        }
    };
    let waited = tokio::time::timeout(PATIENCE, changing).await;
    assert!(waited.is_ok(), "{what}: not within {PATIENCE:?}: {:#?}", mirror.view());
    notes
}

fn route<'a>(view: &'a View, to: &str) -> Option<&'a KernelRoute> {
    view.routes.values().flatten().find(|route| route.prefix == prefix(to))
}

fn index(view: &View, name: &str) -> u32 {
    view.link_named(name).unwrap_or_else(|| panic!("no netdev {name}")).index
}

/// `ip` with these words, which this kernel may not know: whether it does; loudly, if not.
fn try_ip(what: &str, words: &str) -> bool {
    let output = std::process::Command::new("ip")
        .args(words.split_whitespace())
        .output()
        .expect("ip starts");
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        println!("SKIPPED: {what}: this kernel says: {}", stderr.trim());
    }
    output.status.success()
}

/// veth0 here (10.1.0.1), veth1 there (10.1.0.2), both up, IPv6 too.
fn connect(far: &str) {
    ip("link add veth0 mtu 1400 type veth peer name veth1");
    ip(&format!("link set veth1 netns {far}"));
    ip("address add 10.1.0.1/24 dev veth0");
    ip("address add 2001:db8:1::1/64 dev veth0 nodad");
    ip("link set veth0 up");
    ip(&format!("-n {far} address add 10.1.0.2/24 dev veth1"));
    ip(&format!("-n {far} address add 2001:db8:1::2/64 dev veth1 nodad"));
    ip(&format!("-n {far} link set veth1 up"));
}

#[test]
fn links_addresses_and_routes_are_followed() {
    inside("links_addresses_and_routes_are_followed", |far| {
        connect(far);
        on_runtime(follow_lists(far));
    });
}

async fn follow_lists(far: &str) {
    let mut mirror = Mirror::start().await.expect("a mirror");
    let mirror = &mut mirror;
    until(mirror, "the cable is plugged", |view| {
        view.link_named("veth0").is_some_and(|link| link.is_up())
    })
    .await;
    let view = mirror.view();
    let veth = index(view, "veth0");
    assert_eq!(view.links[&veth].kind, LinkKind::Veth);
    assert_eq!(read_link(veth).unwrap().as_ref(), view.links.get(&veth));
    assert_eq!(read_link(9999).unwrap(), None);
    assert_eq!(view.links[&veth].mtu, 1400);
    assert!(view.addresses.contains(&(veth, address("10.1.0.1"), 24)));
    assert!(view.addresses.contains(&(veth, address("2001:db8:1::1"), 64)));
    assert!(view.addresses.contains(&(1, address("127.0.0.1"), 8)));
    assert_eq!(route(view, "10.1.0.0/24").unwrap().hops[0].link, veth);
    assert_eq!(route(view, "10.1.0.1").unwrap().kind, RouteKind::Local);
    assert_eq!(route(view, "10.1.0.255").unwrap().kind, RouteKind::Broadcast);
    assert_eq!(view.refused, BTreeSet::new());

    ip("route add 10.2.0.0/16 via 10.1.0.2 metric 7 src 10.1.0.1");
    ip("-6 route add 2001:db8:2::/48 via 2001:db8:1::2");
    ip("route add blackhole 10.3.0.0/16");
    ip("route add unreachable 10.4.0.0/16");
    ip("route add 10.5.0.0/16 via inet6 2001:db8:1::2 dev veth0");
    ip("route add 10.6.0.0/16 nexthop via 10.1.0.2 nexthop via 10.1.0.3");
    ip("route add 10.9.0.0/16 via 10.1.0.2 table 77");
    until(mirror, "routes", |view| route(view, "10.6.0.0/16").is_some()).await;
    let view = mirror.view();
    let far_net = route(view, "10.2.0.0/16").unwrap();
    assert_eq!((far_net.metric, far_net.source), (7, Some(address("10.1.0.1"))));
    assert_eq!(far_net.hops[0].gateway, Some(address("10.1.0.2")));
    let far_net = route(view, "2001:db8:2::/48").unwrap();
    assert_eq!(far_net.hops[0].gateway, Some(address("2001:db8:1::2")));
    assert_eq!(route(view, "10.3.0.0/16").unwrap().kind, RouteKind::Blackhole);
    assert_eq!(route(view, "10.4.0.0/16").unwrap().kind, RouteKind::Unreachable);
    let gateway = route(view, "10.5.0.0/16").unwrap().hops[0].gateway;
    assert_eq!(gateway, Some(address("2001:db8:1::2")));
    assert_eq!(route(view, "10.6.0.0/16").unwrap().hops.len(), 2);
    assert_eq!(route(view, "10.9.0.0/16"), None, "another table is nobody's concern");

    ip("route del 10.2.0.0/16 metric 7");
    ip("address add 10.7.0.1/24 dev veth0");
    until(mirror, "a route gone", |view| route(view, "10.2.0.0/16").is_none()).await;
    until(mirror, "an address", |view| route(view, "10.7.0.0/24").is_some()).await;

    // The kernel says nothing of the IPv4 routes that go with the link.
    ip("link set veth0 down");
    until(mirror, "routes of a link that is down", |view| {
        !view.links[&veth].admin_up && route(view, "10.1.0.0/24").is_none()
    })
    .await;
    ip("link set veth0 up");
    until(mirror, "routes of a link that is up", |view| route(view, "10.1.0.0/24").is_some()).await;
    ip(&format!("-n {far} link set veth1 down"));
    until(mirror, "no carrier", |view| {
        let hop = route(view, "10.1.0.0/24").map(|route| route.hops[0].usability);
        !view.links[&veth].carrier && hop == Some(Usability::Dead)
    })
    .await;

    if try_ip("a VLAN netdev", "link add link veth0 name tagged type vlan id 12") {
        until(mirror, "a VLAN", |view| view.vlan_on(veth, 12).is_some()).await;
        assert_eq!(mirror.view().vlan_on(veth, 12).unwrap().lower, Some(veth));
    }
    ip("link del veth0");
    until(mirror, "a netdev gone", |view| !view.links.contains_key(&veth)).await;
    assert!(mirror.view().vlan_on(veth, 12).is_none());
    assert!(mirror.view().addresses.iter().all(|(link, _, _)| *link != veth));
}

#[test]
fn nexthop_objects_are_resolved() {
    inside("nexthop_objects_are_resolved", |far| {
        connect(far);
        on_runtime(follow_nexthops());
    });
}

async fn follow_nexthops() {
    let mut mirror = Mirror::start().await.expect("a mirror");
    let mirror = &mut mirror;
    // 1: routes carry what their objects mean. 0: only the objects' numbers.
    for compatible in ["1", "0"] {
        std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", compatible).unwrap();
        ip("nexthop add id 1 via 10.1.0.2 dev veth0");
        ip("nexthop add id 2 via 10.1.0.3 dev veth0");
        ip("nexthop add id 3 group 1/2");
        ip("nexthop add id 4 blackhole");
        ip("route add 10.2.0.0/16 nhid 1");
        ip("route add 10.3.0.0/16 nhid 3");
        ip("route add 10.4.0.0/16 nhid 4");
        until(mirror, "routes by objects", |view| route(view, "10.4.0.0/16").is_some()).await;
        let gateways = |view: &View, to: &str| -> Vec<Option<Address>> {
            route(view, to).unwrap().hops.iter().map(|hop| hop.gateway).collect()
        };
        let (two, three) = (Some(address("10.1.0.2")), Some(address("10.1.0.3")));
        let view = mirror.view();
        assert_eq!(gateways(view, "10.2.0.0/16"), [two], "compatible: {compatible}");
        assert_eq!(gateways(view, "10.3.0.0/16"), [two, three], "compatible: {compatible}");
        assert_eq!(route(view, "10.4.0.0/16").unwrap().kind, RouteKind::Blackhole);
        // The route stays and leads another way.
        ip("nexthop replace id 1 via 10.1.0.9 dev veth0");
        let nine = Some(address("10.1.0.9"));
        until(mirror, "an object replaced", |view| gateways(view, "10.2.0.0/16") == [nine]).await;
        assert_eq!(gateways(mirror.view(), "10.3.0.0/16"), [nine, three]);
        // The kernel says nothing of the routes that go with the object.
        for id in 1..=4 {
            let _ = std::process::Command::new("ip")
                .args(["nexthop", "del", "id", &id.to_string()])
                .output();
        }
        until(mirror, "objects gone", |view| {
            ["10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16"].iter().all(|to| route(view, to).is_none())
        })
        .await;
    }
}

#[test]
fn rules_vrfs_and_tunnels_are_refused_by_name() {
    inside("rules_vrfs_and_tunnels_are_refused_by_name", |far| {
        connect(far);
        on_runtime(refuse());
    });
}

async fn refuse() {
    let mut mirror = Mirror::start().await.expect("a mirror");
    let mirror = &mut mirror;
    ip("route add 10.8.0.0/16 via 10.1.0.2 table 77");
    ip("rule add from 10.1.0.0/24 lookup 77 priority 500");
    let notes = until(mirror, "a rule", |view| !view.refused.is_empty()).await;
    let rule = Refused::PolicyRule { family: wire::Family::V4, priority: 500, table: Some(77) };
    assert_eq!(mirror.view().refused, BTreeSet::from([rule.clone()]));
    assert!(notes.contains(&Note::Refused(rule.clone())), "{notes:?}");
    assert_eq!(mirror.view().shadows, BTreeSet::from([(address("10.8.0.0"), 16)]));
    ip("rule del priority 500");
    let notes = until(mirror, "no rule", |view| view.refused.is_empty()).await;
    assert!(notes.contains(&Note::NoLongerRefused(rule)), "{notes:?}");
    assert_eq!(mirror.view().shadows, BTreeSet::new());

    ip("rule add to 10.9.0.0/16 prohibit priority 501");
    until(mirror, "a rule that drops", |view| !view.shadows.is_empty()).await;
    assert_eq!(mirror.view().shadows, BTreeSet::from([(address("10.9.0.0"), 16)]));
    ip("rule del priority 501");
    until(mirror, "no rule", |view| view.refused.is_empty()).await;

    ip("route add 10.6.0.0/16 via 10.1.0.2 tos 0x10");
    until(mirror, "a route for a type of service", |view| route(view, "10.6.0.0/16").is_some())
        .await;
    assert_eq!(route(mirror.view(), "10.6.0.0/16").unwrap().standing, RouteStatus::Refused);

    let encapsulated = "route add 10.7.0.0/16 encap ip id 7 dst 10.1.0.2 dev veth0";
    if try_ip("a lightweight tunnel", encapsulated) {
        until(mirror, "a tunnel", |view| route(view, "10.7.0.0/16").is_some()).await;
        assert_eq!(route(mirror.view(), "10.7.0.0/16").unwrap().standing, RouteStatus::Refused);
    }
    if try_ip("a VRF", "link add red type vrf table 10") {
        let red = Refused::Vrf { name: "red".into() };
        until(mirror, "a VRF", |view| view.refused.contains(&red)).await;
    }
}

#[test]
fn a_route_that_one_message_tells_of_needs_no_reading() {
    inside("a_route_that_one_message_tells_of_needs_no_reading", |far| {
        connect(far);
        on_runtime(single_routes());
    });
}

/// Waits until the routes that were followed are those of a mirror that has just read everything.
async fn is_as_read(mirror: &mut Mirror, after: &str) {
    let read = Mirror::start().await.expect("another mirror");
    until(mirror, after, |view| view.routes == read.view().routes).await;
}

async fn single_routes() {
    let mut mirror = Mirror::start().await.expect("a mirror");
    let mirror = &mut mirror;
    ip("link add veth2 type veth peer name veth3");
    ip("address add 10.2.0.1/24 dev veth2");
    ip("link set veth3 up");
    ip("link set veth2 up");
    until(mirror, "both links", |view| {
        let is_up = |name| view.link_named(name).is_some_and(|link| link.is_up());
        is_up("veth0") && is_up("veth2") && route(view, "10.2.0.0/24").is_some()
    })
    .await;
    is_as_read(mirror, "the start").await;
    // IPv6 routes that come with links are told in their own time.
    while tokio::time::timeout(Duration::from_secs(2), mirror.changed()).await.is_ok() {}
    let before = mirror.route_readings();
    let told_alone = [
        "route add 20.0.0.0/8 via 10.1.0.2",
        "route add 20.1.0.0/16 dev veth0",
        "route add 20.2.0.0/16 via 10.1.0.2 metric 20",
        "route add 20.2.0.0/16 via 10.2.0.2 metric 10",
        "route replace 20.2.0.0/16 via 10.2.0.9 metric 10",
        "route replace 20.0.0.0/8 dev veth2",
        "route add blackhole 20.3.0.0/16",
        "route add 20.4.0.0/16 nexthop via 10.1.0.2 nexthop via 10.2.0.2",
        "route del 20.2.0.0/16 metric 20",
        "route del blackhole 20.3.0.0/16",
        "route del 20.0.0.0/8",
        "-6 route add 2001:db8:9::/48 via 2001:db8:1::2",
        "-6 route add 2001:db8:a::/48 dev veth0 metric 5",
        "-6 route del 2001:db8:9::/48",
    ];
    for words in told_alone {
        ip(words);
        is_as_read(mirror, words).await;
        assert_eq!(mirror.route_readings(), before, "{words}");
    }
    // What one message does not say is read.
    for words in [
        "route append 20.1.0.0/16 via 10.1.0.2",
        "route prepend 20.1.0.0/16 via 10.2.0.2",
        "route del 20.1.0.0/16 via 10.2.0.2",
        "route del 20.1.0.0/16",
        "route del 20.1.0.0/16",
        "-6 route append 2001:db8:a::/48 dev veth2 metric 5",
        "-6 route del 2001:db8:a::/48 dev veth0 metric 5",
        "route del 20.4.0.0/16",
        "rule add to 30.0.0.0/8 table 100 priority 700",
        "route add 30.1.0.0/16 dev veth0 table 100",
        "route add 30.2.0.0/16 dev veth0",
        "rule del to 30.0.0.0/8 table 100 priority 700",
        "link set veth2 down",
    ] {
        ip(words);
        is_as_read(mirror, words).await;
    }
    assert!(mirror.route_readings() > before);
    assert_eq!(route(mirror.view(), "20.1.0.0/16"), None);
}

#[test]
fn an_overrun_is_followed_by_a_whole_view() {
    inside("an_overrun_is_followed_by_a_whole_view", |far| {
        connect(far);
        on_runtime(overrun());
    });
}

async fn overrun() {
    const ROUTES: usize = 30_000;
    let mut mirror = Mirror::start().await.expect("a mirror");
    let lines: String = (0..ROUTES)
        .map(|n| format!("route add 20.{}.{}.{}/32 via 10.1.0.2\n", n >> 16, n >> 8 & 255, n & 255))
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    run("ip", &["-batch", file.path().to_str().unwrap()]);
    let all = |view: &View| {
        let ours =
            view.routes.values().flatten().filter(|route| route.prefix.address.value >> 24 == 20);
        ours.count() == ROUTES
    };
    let notes = until(&mut mirror, "all routes", all).await;
    assert!(notes.contains(&Note::Resynced(ResyncReason::Overrun)), "{notes:?}");

    // To read so many takes longer than this caller ever waits: it is told all the same.
    ip("address add 10.1.0.77/24 dev veth0");
    let own = address("10.1.0.77");
    let is_known = |view: &View| view.addresses.iter().any(|(_, address, _)| *address == own);
    let told = async {
        while !is_known(mirror.view()) {
            let _ = tokio::time::timeout(Duration::from_millis(1), mirror.changed()).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, told).await;
    assert!(waited.is_ok(), "an address is not known within {PATIENCE:?}");
}

#[test]
fn neighbours_are_resolved_kept_fresh_and_asked_again() {
    inside("neighbours_are_resolved_kept_fresh_and_asked_again", |far| {
        connect(far);
        on_runtime(neighbours());
    });
}

/// Asks for a neighbour until it answers. The other end's IPv6 may begin seconds after its cable:
/// by then the kernel may have given up asking.
async fn is_found(mirror: &mut Mirror, there: (u32, Address)) {
    let is_known =
        |view: &View| view.neighbours.get(&there).is_some_and(|entry| entry.usable_mac().is_some());
    let asking = async {
        while !is_known(mirror.view()) {
            mirror.resolve(there.0, there.1).expect("a question");
            let _ = tokio::time::timeout(Duration::from_secs(1), mirror.changed()).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, asking).await;
    assert!(waited.is_ok(), "no neighbour {} within {PATIENCE:?}: {:#?}", there.1, mirror.view());
}

async fn neighbours() {
    // Long, so that entries that nobody keeps stay stale.
    let mut mirror = Mirror::start().await.expect("a mirror");
    let mirror = &mut mirror;
    until(mirror, "a cable", |view| view.link_named("veth0").unwrap().is_up()).await;
    let veth = index(mirror.view(), "veth0");
    for there in ["10.1.0.2", "2001:db8:1::2"] {
        is_found(mirror, (veth, address(there))).await;
    }
    let nobody = (veth, address("10.1.0.99"));
    mirror.resolve(nobody.0, nobody.1).expect("a question");
    until(mirror, "a neighbour that is not there", |view| {
        view.neighbours.get(&nobody).is_some_and(|entry| entry.state == NeighbourState::Failed)
    })
    .await;
    assert_eq!(mirror.view().neighbours[&nobody].usable_mac(), None);

    let router = (veth, address("10.1.0.2"));
    mirror.keep_fresh(&[router].into_iter().collect()).expect("kept");
    until(mirror, "a kept neighbour", |view| view.neighbours[&router].managed).await;
    // What is asked by hand stays kept.
    mirror.resolve(router.0, router.1).expect("a question");
    let listed = run("ip", &["-d", "neigh", "show", "10.1.0.2"]);
    assert!(listed.contains("managed"), "{listed}");
    mirror.keep_fresh(&Default::default()).expect("no longer kept");
    until(mirror, "a neighbour that is no longer kept", |view| !view.neighbours[&router].managed)
        .await;

    // A stale one is usable, and good again when asked.
    let mac = mirror.view().neighbours[&router].mac.unwrap();
    let text = mac.map(|byte| format!("{byte:02x}")).join(":");
    run("ip", &["neigh", "replace", "10.1.0.2", "lladdr", &text, "nud", "stale", "dev", "veth0"]);
    // The state alone concerns nobody, so the view tells of it with the next change.
    ip("neigh add 10.1.0.50 lladdr 02:00:00:00:00:50 dev veth0 nud permanent");
    let fixed = (veth, address("10.1.0.50"));
    until(mirror, "a permanent one", |view| view.neighbours.contains_key(&fixed)).await;
    assert_eq!(mirror.view().neighbours[&router].state, NeighbourState::Stale);
    assert_eq!(mirror.view().neighbours[&router].usable_mac(), Some(mac));
    assert!(mirror.probe_stale(&BTreeSet::from([veth])) >= 1);
    assert_eq!(mirror.probe_stale(&BTreeSet::new()), 0);
    let listed = run("ip", &["neigh", "show", "10.1.0.2"]);
    assert!(!listed.contains("STALE"), "{listed}");
    // What is permanent stays so, whoever asks.
    mirror.resolve(fixed.0, fixed.1).expect("nothing to ask");
    mirror.keep_fresh(&[fixed].into_iter().collect()).expect("nothing to keep");
    let listed = run("ip", &["neigh", "show", "10.1.0.50"]);
    assert!(listed.contains("PERMANENT"), "{listed}");

    ip("link set veth0 down");
    until(mirror, "neighbours of a link that is down", |view| {
        !view.neighbours.contains_key(&router)
    })
    .await;
    let gone = mirror.resolve(veth + 1000, router.1).expect_err("no such netdev");
    assert_eq!(gone.errno(), Some(libc::ENODEV));
}

#[test]
fn unanswered_requests_leave_the_table_of_neighbours_room() {
    inside("unanswered_requests_leave_the_table_of_neighbours_room", |far| {
        connect(far);
        on_runtime(ask_for_many_neighbours());
    });
}

/// Asks for more neighbours than the kernel's table holds. Nobody answers but the far end.
async fn ask_for_many_neighbours() {
    let mut mirror = Mirror::start().await.expect("a mirror");
    let mirror = &mut mirror;
    until(mirror, "a cable", |view| view.link_named("veth0").unwrap().is_up()).await;
    let veth = index(mirror.view(), "veth0");
    let router = (veth, address("2001:db8:1::2"));
    is_found(mirror, router).await;
    // The far end answers, and the mirror has not read the kernel's message.
    let unread = address("10.1.0.2");
    mirror.resolve(veth, unread).expect("a request");
    let is_answered =
        || run("ip", &["neigh", "show", "to", "10.1.0.2", "dev", "veth0"]).contains("lladdr");
    while !is_answered() {
        std::thread::sleep(Duration::from_millis(10));
    }
    // A table has 1024 places by default (`gc_thresh3`).
    for number in 0..1500 {
        let nobody = address(&format!("2001:db8:1::1:{number:x}"));
        let asked = mirror.resolve(veth, nobody);
        assert!(asked.is_ok(), "request {number}: {asked:?}");
    }
    assert!(is_answered(), "an answer outlives later requests");
    let _ = tokio::time::timeout(Duration::from_millis(100), mirror.changed()).await;
    let usable_mac = mirror.view().neighbours.get(&router).and_then(|entry| entry.usable_mac());
    assert!(usable_mac.is_some(), "an answered request keeps the entry");
    let listed = run("ip", &["-6", "neigh", "show", "dev", "veth0"]);
    let unanswered = listed.lines().filter(|line| !line.contains("lladdr")).count();
    assert!((1..=128).contains(&unanswered), "{unanswered} entries without an answer");
}

#[test]
fn host_routes_are_made_and_removed() {
    inside("host_routes_are_made_and_removed", |far| {
        connect(far);
        on_runtime(host_routes());
    });
}

/// The host port's route to a prefix.
fn host_route<'v>(view: &'v View, to: &str) -> Option<&'v KernelRoute> {
    let to = prefix(to);
    view.host_routes
        .values()
        .flatten()
        .find(|route| route.table == HOST_ROUTE_TABLE && route.prefix == to)
}

async fn host_routes() {
    // As good as a route can be; only forwarded packets go by it.
    ip("route add 10.2.0.0/16 via 10.1.0.2");
    ip("tuntap add mode tun lockgate0");
    let mut mirror = Mirror::start().await.expect("a mirror");
    let mirror = &mut mirror;
    mirror.prepare_host_port("lockgate0", 1400).expect("a host port");
    until(mirror, "a host port", |view| view.link_named("lockgate0").unwrap().admin_up).await;
    let host = mirror.view().link_named("lockgate0").unwrap();
    assert_eq!((host.mtu, &host.kind), (1400, &LinkKind::Tun));
    assert!(mirror.view().addresses.iter().all(|(link, _, _)| *link != host.index));
    let filter = std::fs::read_to_string("/proc/sys/net/ipv4/conf/lockgate0/rp_filter").unwrap();
    assert_eq!(filter, "0\n");

    let wanted = |to: &str, source: &str| HostRoute { prefix: prefix(to), source: address(source) };
    let first = [
        wanted("10.2.0.0/16", "10.1.0.1"),
        wanted("10.3.0.0/16", "10.1.0.1"),
        wanted("2001:db8:2::/48", "2001:db8:1::1"),
    ];
    mirror.set_host_routes("lockgate0", &first).expect("routes");
    until(mirror, "host routes", |view| host_route(view, "2001:db8:2::/48").is_some()).await;
    let made = host_route(mirror.view(), "10.2.0.0/16").unwrap();
    assert_eq!((made.table, made.protocol), (HOST_ROUTE_TABLE, 76));
    assert!(mirror.view().refused.is_empty(), "{:?}", mirror.view().refused);
    assert_eq!(made.source, Some(address("10.1.0.1")));
    // Idempotent: nothing to be told of.
    mirror.set_host_routes("lockgate0", &first).expect("the same routes");
    let quiet = tokio::time::timeout(Duration::from_millis(200), mirror.changed()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let listed = run("ip", &["route", "get", "10.2.0.9"]);
    assert!(listed.contains("dev lockgate0 table 76 src 10.1.0.1"), "{listed}");
    // What this machine says as a gateway leaves as ever, whatever the far net.
    let far = ["10.2.0.9", "2001:db8:2::9"];
    for to in far {
        for (words, is_spared) in [
            ("ipproto esp", true),
            ("ipproto udp sport 500 dport 500", true),
            ("ipproto udp sport 4500 dport 61000", true),
            ("ipproto udp sport 61000 dport 4500", true),
            ("ipproto udp sport 61000 dport 61000", false),
            ("ipproto tcp sport 500 dport 500", false),
        ] {
            let words: Vec<&str> =
                ["route", "get", to].into_iter().chain(words.split(' ')).collect();
            let output = std::process::Command::new("ip").args(&words).output().unwrap();
            let listed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(!listed.contains("dev lockgate0"), is_spared, "{words:?}: {listed}");
        }
    }

    ip("address add 10.1.0.7/24 dev veth0");
    ip("address add 2001:db8:1::7/64 dev veth0 nodad");
    let second = [wanted("10.2.0.0/16", "10.1.0.7"), wanted("2001:db8:2::/48", "2001:db8:1::7")];
    until(mirror, "an address", |view| route(view, "10.1.0.7").is_some()).await;
    mirror.set_host_routes("lockgate0", &second).expect("other routes");
    until(mirror, "other host routes", |view| {
        let source = |to| host_route(view, to).and_then(|route| route.source);
        host_route(view, "10.3.0.0/16").is_none()
            && source("10.2.0.0/16") == Some(address("10.1.0.7"))
            && source("2001:db8:2::/48") == Some(address("2001:db8:1::7"))
    })
    .await;
    mirror.set_host_routes("lockgate0", &[]).expect("no routes");
    until(mirror, "no host routes", |view| {
        view.host_routes.values().flatten().all(|route| route.protocol != 76)
    })
    .await;
    mirror.remove_host_rules().expect("no rules");
    mirror.remove_host_rules().expect("still none");
    for family in ["-4", "-6"] {
        let rules = run("ip", &[family, "rule"]);
        assert!(!["lookup 76", "goto", "nop"].iter().any(|word| rules.contains(word)), "{rules}");
    }
}

#[test]
fn queues_are_counted_and_frames_left_alone() {
    inside("queues_are_counted_and_frames_left_alone", |far| {
        ip("link add veth0 numtxqueues 4 numrxqueues 4 type veth peer name veth1");
        run("ethtool", &["-L", "veth0", "rx", "3", "tx", "2"]);
        let _ = far;
        on_runtime(async {
            let mirror = Mirror::start().await.expect("a mirror");
            let mut ethtool = Ethtool::open().expect("ethtool");
            let link = mirror.view().link_named("veth0").unwrap();
            let channels = ethtool.channels(link).expect("channels");
            assert_eq!((channels.rx, channels.tx), (3, 2));
            // The driver of a TAP netdev does not say.
            ip("tuntap add mode tap tap0");
            let mirror = Mirror::start().await.expect("a mirror");
            let tap = mirror.view().link_named("tap0").unwrap();
            let channels = ethtool.channels(tap).expect("channels");
            assert_eq!((channels.rx, channels.tx), tap.queues);
            assert_eq!(ethtool.leave_frames_alone(link).expect("features"), []);
            // veth has a switch for VLAN tags.
            let shown = run("ethtool", &["-k", "veth0"]);
            assert!(shown.contains("rx-vlan-offload: off"), "{shown}");
            assert_eq!(Offload::VlanStripping.name(), "rx-vlan-hw-parse");
        });
    });
}

/// The daemon's tasks may move between threads.
#[test]
fn the_mirrors_futures_are_send() {
    fn is_send<T: Send>(_: &T) {}
    let starting = Mirror::start();
    is_send(&starting);
    let changing = |mirror: &mut Mirror| is_send(&mirror.changed());
    let watching = |changes: &mut nft::Changes| is_send(&changes.next());
    let _ = (changing, watching);
    assert!(Changes::default().lists.is_empty());
}
