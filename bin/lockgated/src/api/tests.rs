//! The server before a backend that is none: what it answers, to whom, and what it refuses.

mod bounds;
pub(super) mod fake;
mod rights;
mod watch;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::v1::gateway_server::Gateway;
use api::{ConnectError, GatewayClient, v1};
use dataplane::Snapshot;
use dataplane::connections::{Inserted, Judgement, Key, Zone};
use policy::connection::{Segment, Shown};
use policy::{Book, DomainId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tonic::Code;
use wire::{Family, Flow, Upper};

use super::call_limits::{CALL_LIMITS, CallRight};
use super::service::Service;
use super::{BoundSocket, ListenError, bind, serve};
use crate::backend::Backend;
use fake::{CONFIG, Fake, entries, event};

/// Longest time for one step.
const EVENTUALLY: Duration = Duration::from_secs(10);

/// A directory that is removed at the end.
struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Directory {
        Directory(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("run/api.sock")
    }
}

/// A server and what stops it.
struct Server {
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Server {
    fn start(bound: BoundSocket, fake: &Arc<Fake>) -> Server {
        let (stop, stopped) = oneshot::channel();
        let stopped = async { drop(stopped.await) };
        let task = tokio::spawn(serve(bound, fake.clone(), stopped));
        Server { stop: Some(stop), task }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        let ended = tokio::time::timeout(Duration::from_secs(5), self.task).await;
        ended.expect("the server ends").unwrap().unwrap();
    }
}

async fn lab(slow: Duration) -> (Directory, Arc<Fake>, Server, GatewayClient) {
    let directory = Directory::new();
    let fake = Fake::new(slow);
    let server = Server::start(bind(&directory.socket()).await.unwrap(), &fake);
    let client = api::connect(&directory.socket()).await.unwrap();
    (directory, fake, server, client)
}

fn named(name: &str) -> v1::ShowRequest {
    v1::ShowRequest { name: Some(name.into()) }
}

fn apply_of(text: &str) -> v1::ApplyRequest {
    let (file, base_directory) = ("new.toml".into(), "/etc/lockgate".into());
    v1::ApplyRequest { text: text.into(), file, base_directory, ..v1::ApplyRequest::default() }
}

fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {test}: needs root");
    }
    root
}

#[tokio::test]
async fn policies_show_what_they_match_and_decided_and_what_passes_without_them() {
    let (_directory, _, server, mut client) = lab(Duration::ZERO).await;
    let all = v1::ShowRequest::default();
    let shown = client.show_policies(all.clone()).await.unwrap();
    let shown = api::whole(shown).await.unwrap().into_inner();
    let names: Vec<&str> = shown.policies.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["berlin-net", "rest"]);
    let first = &shown.policies[0];
    assert_eq!((first.action.as_str(), first.peer.as_deref()), ("PROTECT", Some("berlin")));
    assert_eq!(first.remote_ports, ["443", "8000-8999"]);
    assert_eq!(first.outbound, Some(v1::Volume { packets: 3, bytes: 300 }));
    assert_eq!(shown.policies[1].local, ["any"]);
    let host: Vec<&str> = shown.host.iter().map(|entry| entry.service.as_str()).collect();
    assert_eq!(host, ["arp", "nd", "udp/500"]);
    assert_eq!(shown.cache_entries, ["ipv4", "ipv6"].map(entries));
    let one = api::whole(client.show_policies(named("rest")).await.unwrap()).await.unwrap();
    assert_eq!(one.into_inner().policies.len(), 1);
    let none = client.show_policies(named("rset")).await.unwrap_err();
    assert_eq!(none.code(), Code::NotFound);
    let peers = api::whole(client.show_peers(all).await.unwrap()).await.unwrap().into_inner();
    let berlin = &peers.peers[0];
    assert_eq!((berlin.policies, berlin.inner_mtu > 1400), (1, true), "{berlin:?}");
    // Those of SAs that are gone count too.
    assert_eq!(berlin.sealed, Some(v1::Volume { packets: 5, bytes: 500 }));
    assert_eq!(berlin.sent_since, 17);
    let age = berlin.last_received_age_ms.unwrap();
    assert!(berlin.silent && (60_000..120_000).contains(&age), "{berlin:?}");
    let times = [&berlin.last_received, &berlin.silent_since]
        .map(|time| humantime::parse_rfc3339(time.as_ref().unwrap()).unwrap());
    let between = times[1].duration_since(times[0]).unwrap().as_secs();
    assert!((39..=41).contains(&between), "{berlin:?}");
    server.stop().await;
}

/// Makes a connection in the table of the snapshot: a SYN of port `source`.
fn connect(snapshot: &Snapshot, source: u16) {
    let table = snapshot.connections().unwrap();
    let spd = snapshot.spd();
    let (rule, _) = spd.holding_rules().find(|(_, rule)| rule.name == "out/all").unwrap();
    let domain = DomainId::new(spd.class(0), Book::GroupIn, Family::V4);
    let judgement = Judgement { rule, domain, generation: spd.generation(domain) };
    let upper = Upper::Ports { source, destination: 80 };
    let (source, destination) = (0x0a01_0007, 0x0a02_0009);
    let flow = Flow { family: Family::V4, source, destination, protocol: 6, upper, opens: false };
    let key = Key::of(&flow, Zone { attachment: 0, vni: 0 }).unwrap();
    let syn = Shown::Tcp(Segment::Syn);
    assert!(matches!(table.insert(&key, syn, judgement, crate::clock::now_s()), Inserted::New(_)));
}

/// All that is shown by a filter.
async fn shown(
    client: &mut GatewayClient,
    filter: &str,
) -> (Vec<v1::Connection>, Option<v1::ConnectionTable>) {
    let request = v1::ConnectionsRequest { filter: filter.into() };
    let mut pages = client.show_connections(request).await.unwrap().into_inner();
    let (mut connections, mut table) = (Vec::new(), None);
    while let Some(page) = pages.message().await.unwrap() {
        connections.extend(page.connections);
        table = page.table;
    }
    (connections, table)
}

#[tokio::test]
async fn connections_are_shown_with_their_port_and_rule_and_the_totals_behind_them() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let snapshot = fake.snapshot().await;
    for source in 1000..1900 {
        connect(&snapshot, source);
    }
    let (all, table) = shown(&mut client, "").await;
    assert_eq!(all.len(), 900);
    let table = table.unwrap();
    assert_eq!((table.max, table.live, table.half_open, table.made), (4096, 900, 900, 900));
    assert_eq!(table.refused.len(), 4, "{table:?}");
    let (one, table) = shown(&mut client, "tcp host 10.1.0.7 port 1003 on lan").await;
    assert!(table.is_some());
    let end = |address: &str, port| Some(v1::ConnectionEnd { address: address.into(), port });
    let expected = v1::Connection {
        protocol: "tcp".into(),
        originator: end("10.1.0.7", 1003),
        responder: end("10.2.0.9", 80),
        state: "syn_sent".into(),
        half_open: true,
        idle_s: one[0].idle_s,
        port: Some("lan".into()),
        rule: Some("out/all".into()),
    };
    assert_eq!(one, [expected]);
    assert!(shown(&mut client, "state established").await.0.is_empty());
    let wrong = v1::ConnectionsRequest { filter: "sate established".into() };
    for error in [
        client.show_connections(wrong.clone()).await.err().unwrap(),
        client.clear_connections(wrong).await.unwrap_err(),
    ] {
        // Nobody but root may clear; the filter is looked at behind that.
        let said = error.message().contains("did you mean \"state\"?");
        assert!(said || error.code() == Code::PermissionDenied, "{error:?}");
    }
    if is_root("connections_are_shown") {
        let request = v1::ConnectionsRequest { filter: "tcp".into() };
        let cleared = client.clear_connections(request).await.unwrap().into_inner();
        assert_eq!(cleared.removed, 3);
        assert_eq!(fake.asked(), ["clear tcp by 0"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn search_for_connections_ends_when_the_client_has_gone() {
    let fake = Fake::new(Duration::ZERO);
    let filter = super::connections::filter("state established").unwrap();
    drop(super::connections::stream(fake.clone(), filter));
    // The first step of the search sees that nobody listens.
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&fake), 1);
}

#[tokio::test]
async fn sas_are_put_and_deleted_for_root_and_refusals_are_answers() {
    if !is_root("sas_are_put_and_deleted") {
        return;
    }
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let sa = |direction: &str| v1::NewSecurityAssociation {
        direction: direction.into(),
        spi: "0x00000501".into(),
        peer: "berlin".into(),
        key: vec![1; 20],
        ..v1::NewSecurityAssociation::default()
    };
    let put = |incarnation: &str| v1::PutSecurityAssociationsRequest {
        incarnation: incarnation.into(),
        sas: vec![sa("inbound"), sa("outbound")],
    };
    let done = client.put_security_associations(put("this")).await.unwrap().into_inner();
    assert_eq!((done.ok, done.put, done.refused.as_str()), (true, 2, ""));
    let done = client.put_security_associations(put("that")).await.unwrap().into_inner();
    assert_eq!((done.ok, done.put, done.refused.as_str()), (false, 0, "other_incarnation"));
    assert!(done.message.contains("agree on new keys"), "{}", done.message);
    let bad = v1::PutSecurityAssociationsRequest { sas: vec![sa("in")], ..put("this") };
    let refused = client.put_security_associations(bad).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let delete = |peer: &str| v1::DeleteSecurityAssociationsRequest {
        incarnation: String::new(),
        sas: vec![v1::SaName {
            direction: "inbound".into(),
            spi: "1281".into(),
            peer: peer.into(),
        }],
    };
    let done = client.delete_security_associations(delete("")).await.unwrap().into_inner();
    assert_eq!((done.ok, done.deleted), (true, 1));
    let done = client.delete_security_associations(delete("b")).await.unwrap().into_inner();
    assert_eq!((done.refused.as_str(), done.place), ("unknown_sa", Some(0)));
    assert!(done.message.contains("no inbound SA 0x00000501 of peer b runs"), "{}", done.message);
    let reserve = |peer: &str| v1::ReserveSpiRequest { peer: peer.into() };
    let spi = client.reserve_spi(reserve("berlin")).await.unwrap().into_inner();
    assert_eq!((spi.spi.as_str(), spi.worker, spi.seconds), ("0x00000501", 1, 300));
    let refused = client.reserve_spi(reserve("x")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(fake.asked()[0], "0 puts 2 SAs for this");
    server.stop().await;
}

#[tokio::test]
async fn reasons_that_never_occurred_are_shown_only_by_name() {
    let (_directory, _, server, mut client) = lab(Duration::ZERO).await;
    let all = client.show_counters(v1::ShowRequest::default()).await.unwrap().into_inner();
    assert_eq!(all.drops.len(), 1);
    let one = client.show_counters(named("no_route")).await.unwrap().into_inner();
    assert_eq!(one.drops[0].count, 0);
    server.stop().await;
}

#[tokio::test]
async fn an_explanation_is_that_of_the_file() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let request = v1::ExplainRequest {
        port: "lan".into(),
        source: "10.1.0.5".into(),
        destination: "10.2.0.9".into(),
        protocol: 6,
        ports: Some(v1::PortPair { source: 5, destination: 443 }),
        ..v1::ExplainRequest::default()
    };
    let told = client.explain(request.clone()).await.unwrap().into_inner();
    assert_eq!((told.verdict.as_str(), told.peer.as_deref()), ("protect", Some("berlin")));
    assert_eq!((told.generation, told.spi), (7, None));
    assert!(told.lines.iter().any(|line| line.text.contains("berlin-net")), "{:?}", told.lines);
    let tier = (told.policies[0].tier.as_str(), told.policies[0].tier_reason.as_str());
    assert_eq!(tier, ("cache", "worker 0 knows this flow; others search once"));
    for bad in [
        v1::ExplainRequest { source: "10.1.0".into(), ..request.clone() },
        v1::ExplainRequest { source: "::1".into(), ..request.clone() },
        v1::ExplainRequest { protocol: 256, ..request.clone() },
        v1::ExplainRequest {
            ports: Some(v1::PortPair { source: 65536, destination: 1 }),
            ..request.clone()
        },
        v1::ExplainRequest { later_fragment: true, ..request.clone() },
        v1::ExplainRequest { port: "lna".into(), ..request.clone() },
        v1::ExplainRequest { vni: Some(1 << 24), ..request.clone() },
        v1::ExplainRequest { vni: Some(7), host: Some("lna".into()), ..request.clone() },
        v1::ExplainRequest { host: Some("10.1.0.5".into()), ..request.clone() },
        // Its configuration has no virtual network.
        v1::ExplainRequest { vni: Some(7), host: Some("10.1.0.5".into()), ..request },
    ] {
        let error = client.explain(bad).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
    assert_eq!(fake.asked(), [""; 0]);
    server.stop().await;
}

#[tokio::test]
async fn a_change_is_passed_on_with_who_asked_and_its_mistakes_come_back() {
    if !is_root("a_change_is_passed_on_with_who_asked_and_its_mistakes_come_back") {
        return;
    }
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let applied = client.apply(apply_of(CONFIG)).await.unwrap().into_inner();
    assert_eq!((applied.ok, applied.revision, applied.generation), (true, 5, 8));
    assert_eq!(applied.notes.len(), 1);
    let uid = nix::unistd::geteuid();
    let expected = [format!("apply begun by {uid}"), "applied new.toml in /etc/lockgate".into()];
    assert_eq!(fake.asked(), expected);
    let bad = client.apply(apply_of("[node]\nnmae = 1\n")).await.unwrap().into_inner();
    assert!(!bad.ok && bad.refused.is_empty() && bad.revision == 4, "{bad:?}");
    assert!(bad.rendered.contains("new.toml:2:1") && bad.rendered.contains("nothing was applied"));
    let dry = v1::ApplyRequest { dry_run: true, ..apply_of(CONFIG) };
    assert!(client.apply(dry).await.unwrap().into_inner().dry_run);
    let relative = v1::ApplyRequest { base_directory: "etc".into(), ..apply_of(CONFIG) };
    assert_eq!(client.apply(relative).await.unwrap_err().code(), Code::InvalidArgument);
    let asked = |revision| v1::RollbackRequest { revision };
    let back = client.rollback(asked(Some(9))).await.unwrap().into_inner();
    assert!(!back.ok && back.refused.contains("no revision 9; the newest is 4"), "{back:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_change_is_confirmed_over_another_connection_than_its_own() {
    if !is_root("a_change_is_confirmed_over_another_connection_than_its_own") {
        return;
    }
    let (directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let mut other = api::connect(&directory.socket()).await.unwrap();
    let ask = |revision| v1::ConfirmRequest { revision };
    let early = other.confirm(ask(None)).await.unwrap_err();
    assert_eq!(early.message(), "nothing waits to be confirmed: revision 4 runs");
    let waiting = v1::ApplyRequest { confirm_within_s: 60, ..apply_of(CONFIG) };
    client.apply(waiting.clone()).await.unwrap();
    let asked = *fake.to_confirm.lock().unwrap();
    assert_eq!(asked.map(|asked| asked.within), Some(Duration::from_secs(60)));
    let same = client.confirm(ask(None)).await.unwrap_err();
    assert_eq!(same.code(), Code::FailedPrecondition);
    assert!(same.message().contains("over a new connection"), "{same}");
    assert_eq!(other.confirm(ask(Some(5))).await.unwrap().into_inner().revision, 5);
    let uid = nix::unistd::geteuid();
    assert!(fake.asked().contains(&format!("confirm of Some(5) by {uid}")), "{:?}", fake.asked());
    let saving = v1::ApplyRequest { save: true, ..waiting.clone() };
    let refused = client.apply(saving).await.unwrap_err();
    assert!(
        refused.message().contains("a revision that waits to be confirmed is not saved"),
        "{refused}"
    );
    assert_eq!(other.save(v1::SaveRequest {}).await.unwrap().into_inner().file, "/etc/x");
    for seconds in [86_401, u32::MAX] {
        let long = v1::ApplyRequest { confirm_within_s: seconds, ..waiting.clone() };
        let refused = client.apply(long).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("1 to 86400 seconds"), "{refused}");
    }
    server.stop().await;
}

#[tokio::test]
async fn policies_are_changed_by_admins_and_mistakes_are_told_with_their_lines() {
    if !is_root("policies_are_changed_by_admins_and_mistakes_are_told_with_their_lines") {
        return;
    }
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let add = "[[policy]]\nname = \"n\"\naction = \"discard\"\nlocal = [\"any\"]\n\
               remote = [\"any\"]\n";
    let asked = v1::ChangePoliciesRequest {
        add: add.into(),
        remove: vec!["rest".into()],
        file: "n.toml".into(),
        ..v1::ChangePoliciesRequest::default()
    };
    let applied = client.change_policies(asked.clone()).await.unwrap().into_inner();
    assert_eq!((applied.ok, applied.revision, applied.generation), (true, 5, 8));
    let uid = nix::unistd::geteuid();
    assert_eq!(fake.asked(), [format!("{uid} Apply -[\"rest\"] +[\"n\"]")]);
    let bad = asked.add.replace("discard", "discrad");
    let bad = client.change_policies(v1::ChangePoliciesRequest { add: bad, ..asked.clone() });
    let bad = bad.await.unwrap().into_inner();
    assert!(!bad.ok && bad.rendered.contains("n.toml:3:10"), "{bad:?}");
    assert_eq!((bad.revision, bad.generation), (4, 7));
    let takes =
        v1::ChangePoliciesRequest { add: add.replace("\"n\"", "\"oops\""), ..asked.clone() };
    let refused = client.change_policies(takes.clone()).await.unwrap().into_inner();
    assert!(!refused.ok && refused.takeovers.len() == 1, "{refused:?}");
    let words = ["policy \"oops\" (bypass) takes packets from policy \"rest\"", "--yes"];
    assert!(words.iter().all(|word| refused.refused.contains(word)), "{}", refused.refused);
    let takes = v1::ChangePoliciesRequest { yes: true, ..takes };
    let taken = client.change_policies(takes).await.unwrap().into_inner();
    assert!(taken.ok && taken.takeovers == refused.takeovers, "{taken:?}");
    let dry = v1::ChangePoliciesRequest { dry_run: true, ..asked };
    assert!(client.change_policies(dry).await.unwrap().into_inner().dry_run);
    assert!(fake.asked()[2].contains("DryRun"), "{:?}", fake.asked());
    server.stop().await;
}

#[tokio::test]
async fn the_caches_entries_are_asked_for_in_bounds() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let asked = |limit, worker| v1::CacheEntriesRequest { limit, worker, stale: false };
    client.show_cache_entries(asked(0, None)).await.unwrap();
    client.show_cache_entries(asked(10_000, Some(0))).await.unwrap();
    let many = client.show_cache_entries(asked(30_000, None)).await.unwrap_err();
    assert_eq!(many.code(), Code::InvalidArgument);
    assert_eq!(many.message(), "at most 10000 cache entries are shown at a time, not 30000");
    let unknown = client.show_cache_entries(asked(1, Some(1))).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let expected = [
        "100 entries of None, stale ones too: false",
        "10000 entries of Some(0), stale ones too: false",
    ];
    assert_eq!(fake.asked()[..2], expected);
    let shown = client.show_cache(v1::ShowRequest::default()).await.unwrap().into_inner();
    assert_eq!((shown.state.as_str(), shown.entries.len()), ("on", 2));
    server.stop().await;
}

/// Waits until a note of the fake begins with `what`.
async fn noted(fake: &Fake, what: &str) {
    let is_noted = async {
        while !fake.asked().iter().any(|noted| noted.starts_with(what)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limited = tokio::time::timeout(EVENTUALLY, is_noted).await;
    assert!(limited.is_ok(), "not {what}: {:?}", fake.asked());
}

#[tokio::test]
async fn a_change_goes_on_when_who_asked_goes_away() {
    if !is_root("a_change_goes_on_when_who_asked_goes_away") {
        return;
    }
    let (_directory, fake, server, mut client) = lab(Duration::from_millis(700)).await;
    let change = tokio::spawn(async move { client.apply(apply_of(CONFIG)).await });
    noted(&fake, "apply begun").await;
    change.abort();
    assert!(change.await.is_err_and(|error| error.is_cancelled()), "the client gave up");
    noted(&fake, "applied").await;
    server.stop().await;
}

#[tokio::test]
async fn requests_for_sas_that_are_outstanding_come_first() {
    let (_directory, _fake, _server, mut client) = lab(Duration::ZERO).await;
    let stream = client.watch_acquires(v1::WatchAcquiresRequest {}).await.unwrap();
    let mut stream = stream.into_inner();
    for id in [1, 2] {
        assert_eq!(stream.message().await.unwrap().unwrap().id, id);
    }
    assert_eq!(stream.message().await.unwrap(), None);
}

#[tokio::test]
async fn events_that_are_kept_come_first_and_a_slow_reader_is_told_what_it_lost() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let request = v1::EventsRequest::default();
    let mut kept = client.events(request).await.unwrap().into_inner();
    let mut numbers = Vec::new();
    while let Some(event) = kept.message().await.unwrap() {
        numbers.push(event.number);
    }
    assert_eq!(numbers, [1, 2]);
    let request = v1::EventsRequest { follow: true, ..v1::EventsRequest::default() };
    let mut stream = client.events(request).await.unwrap().into_inner();
    for number in [1, 2] {
        assert_eq!(stream.message().await.unwrap().unwrap().number, number);
    }
    // More at once than may wait.
    let many = api::MAX_EVENTS_WAITING as u64 + 10;
    (3..3 + many).for_each(|number| drop(fake.events.send(event(number))));
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.kind, "events_lost");
    assert_eq!(first.details["count"], v1::Detail::number(10));
    assert_eq!(humantime::parse_rfc3339(&first.time).map(|_| ()), Ok(()), "{first:?}");
    assert_eq!(stream.message().await.unwrap().unwrap().number, 13);
    // The stream does not hold up the end of the server.
    server.stop().await;
}

#[tokio::test]
async fn the_daemon_filters_events_and_refuses_an_unknown_kind() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let asks = |kinds: &[&str]| v1::EventsRequest {
        follow: true,
        kinds: kinds.iter().map(ToString::to_string).collect(),
        ..v1::EventsRequest::default()
    };
    let refused = client.events(asks(&["port_upp"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("did you mean \"port_up\"?"), "{refused}");
    // The two that are kept are `port_up`, as are those of `event`.
    let mut stream = client.events(asks(&["port_down"])).await.unwrap().into_inner();
    for number in 3..6 {
        fake.events.send(event(number)).unwrap();
    }
    let down = v1::Event { kind: "port_down".into(), ..event(6) };
    fake.events.send(down).unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().number, 6);
    server.stop().await;
}

/// Waits until a closed listener is dead: the child of another test's thread inherits the
/// descriptor until the child executes its program.
async fn until_dead(socket: &Path) {
    let is_dead = async {
        while std::os::unix::net::UnixStream::connect(socket).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(EVENTUALLY, is_dead).await.expect("a dead socket");
}

#[tokio::test]
async fn a_second_daemon_and_a_file_in_the_way_are_told_and_a_dead_socket_is_replaced() {
    let (directory, _, server, _client) = lab(Duration::ZERO).await;
    let socket = directory.socket();
    let second = bind(&socket).await.err().unwrap();
    assert!(matches!(&second, ListenError::SecondDaemon { pid: Some(_), .. }), "{second}");
    assert!(second.to_string().contains("another lockgated listens there"), "{second}");
    server.stop().await;
    assert!(!socket.exists(), "a clean end removes the socket");
    let gone = api::connect(&socket).await.unwrap_err();
    assert!(matches!(&gone, ConnectError::NoDaemon { .. }), "{gone}");
    // What a daemon leaves behind that was killed.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    until_dead(&socket).await;
    let dead = api::connect(&socket).await.unwrap_err();
    assert!(dead.to_string().contains("is lockgated running?"), "{dead}");
    let bound = bind(&socket).await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o660, 0o750));
    let names = std::fs::read_dir(socket.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "nothing is left beside the socket");
    drop(bound.into_connections());
    std::fs::write(&socket, "").unwrap();
    let in_the_way = bind(&socket).await.err().unwrap();
    assert!(matches!(in_the_way, ListenError::InTheWay { .. }), "{in_the_way}");
    let no_socket = api::connect(&socket).await.unwrap_err();
    assert!(matches!(no_socket, ConnectError::NoSocket { .. }), "{no_socket}");
}
