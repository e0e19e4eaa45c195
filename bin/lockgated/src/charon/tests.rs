//! charon's plugin, played by the test, against a daemon over a simulated machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use charon_link::{
    AddPolicy, AddSa, Algorithm, Answer, Charon, Hardness, LinkMode, NameSa, Policy, PolicyAction,
    PolicyDirection, Report, Request, SaDirection, SaHandle, SaLimits, SaName, Selector, Status,
    Told, decode_told, encode_request,
};
use control::KeyManager;
use policy::Direction;
use proptest::prelude::*;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::broadcast;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::book::{Book, KnownSa};
use super::by_name::{Ledger, NamedRequest, charon, issuer};
use super::socket::{CharonSocket, Connection};
use super::{CHARON_SOCKET, Heard, serve};
use crate::backend::Backend;
use crate::backend_impl::Daemon;
use crate::fair_turns::WorkCaller;
use crate::gateway::SeenElsewhere;
use crate::sa_changes::SaDeletion;
use crate::sa_limits::Expiry;
use crate::test_lab::{RunningLab, TestLab};
use crate::who::Uid;

/// Longer than anything here takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const LOCAL: &str = "192.0.2.1:500";
pub(super) const REMOTE: &str = "198.51.100.1:500";

/// Sections of a gateway with one policy of peer a, whose SAs charon puts.
macro_rules! gateway_of_peer_a {
    () => {
        r#"
[port.wan]
netdev = "eth0"
side = "unprotected"
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "ike"
suite = "aes-128-gcm"
[[policy]]
name = "all"
peer = "a"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0/16"]
"#
    };
}
pub(super) use gateway_of_peer_a;

/// That gateway; peer web, between the same ends, has a narrower policy.
const SECTIONS: &str = concat!(
    gateway_of_peer_a!(),
    r#"
[peer.web]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "ike"
suite = "aes-128-gcm"
[peer.by_hand]
local = "192.0.2.1"
remote = "198.51.100.2"
keys = "api"
suite = "aes-128-gcm"
[peer.mobile]
local = "192.0.2.1"
remote = "203.0.113.9"
keys = "ike"
suite = "aes-128-gcm"
moves_to = ["203.0.113.0/24", "10.7.0.0/16"]
local_moves_to = ["192.0.2.2"]
[[policy]]
name = "to-mobile"
peer = "mobile"
local = ["10.1.0.0/16"]
remote = ["10.7.0.0/16"]
[[policy]]
name = "web"
priority = 200
peer = "web"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0/24"]
protocol = "tcp"
remote_ports = ["443"]
"#
);

pub(super) struct Lab {
    folder: tempfile::TempDir,
    pub(super) daemon: Arc<Daemon>,
    pub(super) expiries: broadcast::Sender<Expiry>,
    pub(super) elsewhere: broadcast::Sender<SeenElsewhere>,
    server: tokio::task::JoinHandle<()>,
}

impl Lab {
    pub(super) fn new() -> Lab {
        let RunningLab { folder, daemon, .. } = RunningLab::new(SECTIONS);
        let (expiries, expired) = broadcast::channel(16);
        let (elsewhere, seen) = broadcast::channel(16);
        let heard = Heard { expiries: expired, elsewhere: seen };
        let socket = CharonSocket::bind(&folder.path().join(CHARON_SOCKET)).unwrap();
        let server = tokio::spawn(serve(socket, daemon.clone(), issuer(), heard));
        Lab { folder, daemon, expiries, elsewhere, server }
    }

    /// Connects a plugin that has not said hello.
    pub(super) fn connect(&self) -> Plugin {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let path = self.folder.path().join(CHARON_SOCKET);
        socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let ledger = Ledger::default();
        Plugin { connection: Connection::over(socket), number: 0, incarnation: 0, ledger }
    }

    /// Connects a plugin that has said hello.
    pub(super) async fn plugin(&self) -> Plugin {
        let mut plugin = self.connect();
        assert_eq!(plugin.hello().await.status, Status::Done);
        plugin
    }

    /// Connects the plugin of the same charon again, with its ledger.
    pub(super) async fn reconnect(&self, before: Plugin) -> Plugin {
        let ledger = before.ledger.clone();
        drop(before);
        Plugin { ledger, ..self.plugin().await }
    }

    /// Owner, direction, SPI and peer of each SA.
    pub(super) async fn shown(&self) -> Vec<(String, String, String, String)> {
        let all = self.daemon.security_associations().await;
        all.into_iter().map(|sa| (sa.owner, sa.direction, sa.spi, sa.peer)).collect()
    }

    pub(super) fn told(&self, kind: &str) -> Vec<String> {
        self.daemon.events.flush();
        let (kept, _) = self.daemon.events.subscribe();
        kept.into_iter().filter(|event| event.kind == kind).map(|event| event.message).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub(super) struct Plugin {
    pub(super) connection: Connection,
    number: u32,
    pub(super) incarnation: u64,
    pub(super) ledger: Ledger,
}

impl Plugin {
    pub(super) async fn hello(&mut self) -> Answer {
        let id = charon(1);
        let charon = Charon { id, charon: "5.9.8".into(), plugin: "test".into() };
        self.ask(&Request::Hello(charon)).await
    }

    pub(super) async fn ask(&mut self, request: impl Into<NamedRequest>) -> Answer {
        let request = request.into();
        self.number += 1;
        let by_handle = self.ledger.by_handle(&request);
        let bytes = encode_request(self.number, self.incarnation, &by_handle);
        let answer = self.ask_bytes(&bytes).await.expect("an answer");
        self.ledger.note(&request, &answer);
        answer
    }

    /// The report of a limit of an SA.
    pub(super) fn expiry(&self, name: SaName, hardness: Hardness) -> Report {
        Report::Expire { handle: self.ledger.handle(name), hardness }
    }

    /// Names SAs after the connection broke; returns the handles that the daemon lacks.
    pub(super) async fn resume(
        &mut self,
        names: impl IntoIterator<Item = SaName>,
    ) -> Vec<SaHandle> {
        let handles = names.into_iter().map(|name| self.ledger.handle(name)).collect();
        let answer = self.ask(Request::ResumeSas(handles)).await;
        assert_eq!(answer.status, Status::Done);
        answer.lacking
    }

    /// Sends a message; `None`: the connection was closed.
    pub(super) async fn ask_bytes(&mut self, bytes: &[u8]) -> Option<Answer> {
        self.connection.send(bytes).await.unwrap();
        let received = timeout(PATIENCE, self.connection.receive()).await.unwrap().ok()??;
        let (header, told) = decode_told(&received).unwrap();
        let Told::Answer(answer) = told else { panic!("{told:?}") };
        self.incarnation = header.incarnation;
        Some(answer)
    }

    pub(super) async fn report(&mut self) -> Report {
        let received = timeout(PATIENCE, self.connection.receive()).await.unwrap();
        let (header, told) = decode_told(&received.unwrap().unwrap()).unwrap();
        assert_eq!((header.number, header.incarnation), (0, self.incarnation));
        let Told::Report(report) = told else { panic!("{told:?}") };
        report
    }

    pub(super) async fn status(&mut self, request: impl Into<NamedRequest>) -> Status {
        self.ask(request).await.status
    }
}

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn selector(first: &str, last: &str) -> Selector {
    let addresses = (first.parse().unwrap(), last.parse().unwrap());
    Selector { protocol: 0, ports: Selector::ANY_PORT, addresses }
}

/// Local and remote selectors of peer a's policy.
pub(super) fn all() -> [Selector; 2] {
    [selector("10.1.0.0", "10.1.255.255"), selector("10.2.0.0", "10.2.255.255")]
}

/// Local and remote selectors of peer web's policy.
fn web() -> [Selector; 2] {
    let [local, _] = all();
    let remote = selector("10.2.0.0", "10.2.0.255");
    [Selector { protocol: 6, ..local }, Selector { protocol: 6, ports: (443, 443), ..remote }]
}

pub(super) fn sa_name(direction: SaDirection, spi: u32) -> SaName {
    let (local, remote) = (address(LOCAL), address(REMOTE));
    match direction {
        SaDirection::Outbound => SaName { source: local, destination: remote, spi },
        SaDirection::Inbound => SaName { source: remote, destination: local, spi },
    }
}

/// An SA that fits peer a.
pub(super) fn sa(direction: SaDirection, spi: u32, key: u8) -> AddSa {
    let mut selectors = all().map(|selector| vec![selector]);
    if direction == SaDirection::Inbound {
        selectors.reverse();
    }
    AddSa {
        direction,
        name: sa_name(direction, spi),
        reqid: 1,
        mode: LinkMode::Tunnel,
        encryption: Algorithm { transform: 20, key: Zeroizing::new(vec![key; 20]) },
        integrity: Algorithm { transform: 0, key: Zeroizing::default() },
        esn: true,
        window: 32,
        in_udp: false,
        soft: SaLimits { seconds: 3000, ..SaLimits::default() },
        hard: SaLimits { seconds: 3600, ..SaLimits::default() },
        selectors,
        initiator: true,
    }
}

pub(super) fn add(sa: AddSa) -> Request {
    Request::AddSa(Box::new(sa))
}

pub(super) fn trap(selectors: [Selector; 2], reqid: u32) -> AddPolicy {
    let policy = Policy {
        direction: PolicyDirection::Outbound,
        source: address(LOCAL),
        destination: address(REMOTE),
        selectors,
    };
    AddPolicy { policy, action: PolicyAction::Protect, reqid, spi: 0, priority: 1, repeat: false }
}

pub(super) use SaDirection::{Inbound, Outbound};

#[tokio::test]
async fn sas_of_charon_come_are_counted_and_go() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let ends = Request::GetSpi { source: address(REMOTE), destination: address(LOCAL) };
    let spi = plugin.ask(&ends).await.spi.unwrap();
    assert_eq!(plugin.status(&add(sa(Inbound, spi, 1))).await, Status::Done);
    assert_eq!(plugin.status(&add(sa(Outbound, 0x500, 2))).await, Status::Done);
    let text = format!("{spi:#010x}");
    let of = |direction: &str, spi: &str| ["ike", direction, spi, "a"].map(str::to_owned);
    let expected = [of("outbound", "0x00000500"), of("inbound", &text)];
    let shown = lab.shown().await;
    let shown: Vec<_> = shown.into_iter().map(|(a, b, c, d)| [a, b, c, d]).collect();
    assert_eq!(shown, expected);
    let used = plugin.ask(&NamedRequest::QuerySa(sa_name(Outbound, 0x500))).await.usage.unwrap();
    assert_eq!((used.packets, used.bytes, used.idle_seconds), (0, 0, None));
    // What the SA counts is what charon is told.
    let snapshot = lab.daemon.snapshot().await;
    let outbound = snapshot.outbound().next().unwrap();
    outbound.allowance.as_ref().unwrap().take(3, 300, || std::iter::repeat_n(100, 3));
    let used = plugin.ask(&NamedRequest::QuerySa(sa_name(Outbound, 0x500))).await.usage.unwrap();
    assert_eq!((used.packets, used.bytes), (3, 300));
    for (name, left) in [(sa_name(Outbound, 0x500), 1), (sa_name(Inbound, spi), 0)] {
        assert_eq!(plugin.status(&NamedRequest::DeleteSa(name)).await, Status::Done);
        assert_eq!(plugin.status(&NamedRequest::DeleteSa(name)).await, Status::Unknown);
        assert_eq!(plugin.status(&NamedRequest::QuerySa(name)).await, Status::Unknown);
        assert_eq!(lab.shown().await.len(), left);
    }
    assert_eq!(lab.told("charon_connected").len(), 1);
}

#[tokio::test]
async fn what_no_policy_of_the_file_wants_is_refused_and_says_why() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let base = || sa(Outbound, 0x500, 1);
    let elsewhere = SaName { destination: address("198.51.100.9:500"), ..base().name };
    let by_hand = SaName { destination: address("198.51.100.2:500"), ..base().name };
    let narrow = vec![selector("10.2.0.1", "10.2.255.255")];
    let cbc = Algorithm { transform: 12, key: Zeroizing::new(vec![1; 16]) };
    let sha1 = Algorithm { transform: 2, key: Zeroizing::new(vec![1; 20]) };
    let gcm256 = Algorithm { transform: 20, key: Zeroizing::new(vec![1; 36]) };
    let rows = [
        (AddSa { name: elsewhere, ..base() }, Status::Refused, "remote = \"198.51.100.9\""),
        (AddSa { name: by_hand, ..base() }, Status::Refused, "remote = \"198.51.100.2\""),
        (
            AddSa { selectors: [base().selectors[0].clone(), narrow], ..base() },
            Status::Refused,
            "leave out packets of policy",
        ),
        (AddSa { encryption: cbc, integrity: sha1, ..base() }, Status::NoSuite, "ENCR 12"),
        (AddSa { encryption: gcm256, ..base() }, Status::NoSuite, "suite = \"aes-128-gcm\""),
        (AddSa { mode: LinkMode::Transport, ..base() }, Status::Refused, "transport mode"),
        (AddSa { in_udp: true, ..base() }, Status::Refused, "found a NAT"),
        (AddSa { window: 0, ..base() }, Status::Refused, "replay_window = 0"),
        (AddSa { window: 4097, ..base() }, Status::Refused, "has 1 to 4096"),
        (AddSa { name: SaName { spi: 255, ..base().name }, ..base() }, Status::Refused, "0 to 255"),
    ];
    for (asked, status, text) in rows {
        let answer = plugin.ask(&add(asked)).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(answer.text.contains(text), "{}", answer.text);
        assert!(lab.shown().await.is_empty());
    }
    let elsewhere =
        Request::GetSpi { source: address("198.51.100.2:500"), destination: address(LOCAL) };
    assert_eq!(plugin.status(&elsewhere).await, Status::Refused);
    for action in [PolicyAction::Pass, PolicyAction::Drop] {
        let shunt = AddPolicy { action, ..trap(all(), 7) };
        let answer = plugin.ask(&Request::AddPolicy(shunt)).await;
        assert_eq!(answer.status, Status::Refused);
        assert!(answer.text.contains("charon does not change"), "{}", answer.text);
    }
    assert!(!lab.told("charon_refused").is_empty());
}

#[tokio::test]
async fn charon_releases_an_spi_that_no_sa_got() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let ends = Request::GetSpi { source: address(REMOTE), destination: address(LOCAL) };
    let spi = plugin.ask(&ends).await.spi.unwrap();
    let inbound = SaName { spi, ..sa_name(Inbound, 0x600) };
    assert_eq!(plugin.status(&NamedRequest::DeleteSa(inbound)).await, Status::Done);
    assert_eq!(plugin.status(&NamedRequest::DeleteSa(inbound)).await, Status::Unknown);
}

/// Policies of peer a as charon has them for a CHILD_SA: outbound, then inbound.
fn child_policies(spi: u32) -> [AddPolicy; 2] {
    let out = AddPolicy { spi, ..trap(all(), 1) };
    let [local, remote] = all();
    let inbound = Policy {
        direction: PolicyDirection::Inbound,
        source: address(REMOTE),
        destination: address(LOCAL),
        selectors: [remote, local],
    };
    [out.clone(), AddPolicy { policy: inbound, ..out }]
}

#[tokio::test]
async fn the_use_of_an_inbound_policy_ignores_packets_that_were_sent() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    plugin.ask(&add(sa(Inbound, 0x600, 1))).await;
    plugin.ask(&add(sa(Outbound, 0x500, 2))).await;
    let policies = child_policies(0x500);
    for policy in policies.clone() {
        assert_eq!(plugin.status(&Request::AddPolicy(policy)).await, Status::Done);
    }
    // The peer is silent while packets go out.
    let snapshot = lab.daemon.snapshot().await;
    let outbound = snapshot.outbound().next().unwrap();
    outbound.allowance.as_ref().unwrap().take(3, 300, || std::iter::repeat_n(100, 3));
    let mut packets = Vec::new();
    for AddPolicy { policy: Policy { direction, selectors, .. }, .. } in policies {
        let used = plugin.ask(&Request::QueryPolicy { direction, selectors }).await.usage.unwrap();
        packets.push((used.packets, used.idle_seconds.is_some()));
    }
    assert_eq!(packets, [(3, true), (0, false)]);
}

#[test]
fn a_question_about_a_policy_visits_each_sa_of_its_direction_once() {
    let (mut book, mut handles) = (Book::default(), issuer());
    for spi in 0x500..0x500 + 200 {
        for way in [Direction::Inbound, Direction::Outbound] {
            let of = match way {
                Direction::Inbound => Inbound,
                Direction::Outbound => Outbound,
            };
            let (is_due, has_ended, is_orphan, seen) = (false, false, false, None);
            let (peer, name) = ("a".into(), sa_name(of, spi));
            let (handle, owner) = (handles.issue().unwrap(), charon(1));
            let (reqid, selectors) = (1, Arc::default());
            book.add(
                way,
                KnownSa {
                    handle,
                    owner,
                    peer,
                    name,
                    reqid,
                    selectors,
                    is_due,
                    has_ended,
                    is_orphan,
                    seen,
                },
            );
        }
        child_policies(spi).into_iter().for_each(|policy| book.add_policy(policy));
    }
    for AddPolicy { policy: Policy { direction, selectors, .. }, .. } in child_policies(0x500) {
        let outbound = direction == PolicyDirection::Outbound;
        let ways: Vec<bool> = book
            .sas_behind(direction, &selectors)
            .map(|(way, _)| way == Direction::Outbound)
            .collect();
        assert_eq!(ways, vec![outbound; 200]);
    }
}

#[tokio::test]
async fn an_sa_without_esn_asks_for_its_successor_at_three_quarters_of_its_numbers() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    plugin.ask(&add(AddSa { esn: false, ..sa(Outbound, 0x500, 1) })).await;
    plugin.ask(&add(sa(Outbound, 0x501, 2))).await;
    let snapshot = lab.daemon.snapshot().await;
    let soft = |spi: u32| {
        let sa = snapshot.outbound().find(|sa| sa.spi.value() == spi).unwrap();
        sa.allowance.as_ref().unwrap().lifetime.soft.packets
    };
    assert_eq!((soft(0x500), soft(0x501)), (Some(3 << 30), None));
}

#[tokio::test]
async fn a_replay_window_is_as_wide_as_charon_asks_and_no_narrower_than_the_sections() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    for (spi, asked, expected) in [(0x600, 32, 1024), (0x601, 1025, 1056), (0x602, 4096, 4096)] {
        let wide = AddSa { window: asked, ..sa(Inbound, spi, spi as u8) };
        assert_eq!(plugin.status(&add(wide)).await, Status::Done);
        let snapshot = lab.daemon.snapshot().await;
        let opened = snapshot.inbound_by_spi(ipsec::Spi::new(spi).unwrap()).unwrap();
        assert_eq!(opened.window.size(), expected);
    }
}

#[tokio::test]
async fn of_peers_between_two_ends_the_one_whose_policies_fit_gets_the_sa() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let of_web = |direction, spi, key| {
        let mut selectors = web().map(|selector| vec![selector]);
        if direction == Inbound {
            selectors.reverse();
        }
        AddSa { selectors, ..sa(direction, spi, key) }
    };
    // The SPI is reserved before the selectors are known.
    let ends = Request::GetSpi { source: address(REMOTE), destination: address(LOCAL) };
    let spi = plugin.ask(&ends).await.spi.unwrap();
    assert_eq!(plugin.status(&add(of_web(Inbound, spi, 1))).await, Status::Done);
    assert_eq!(plugin.status(&add(of_web(Outbound, 0x500, 2))).await, Status::Done);
    // These have all packets of both peers' policies, and are exactly those of one.
    assert_eq!(plugin.status(&add(sa(Outbound, 0x501, 3))).await, Status::Done);
    let peers: Vec<_> = lab.shown().await.into_iter().map(|sa| (sa.2, sa.3)).collect();
    let expected = [("0x00000500", "web"), ("0x00000501", "a"), (&format!("{spi:#010x}"), "web")];
    let expected = expected.map(|(spi, peer)| (spi.to_owned(), peer.to_owned()));
    assert_eq!(peers, expected);
    // Wider than both: nobody knows which.
    let any = || vec![selector("0.0.0.0", "255.255.255.255")];
    let wide = AddSa { selectors: [any(), any()], ..sa(Outbound, 0x502, 4) };
    let answer = plugin.ask(&add(wide)).await;
    assert!(answer.text.contains("peers a and web fit"), "{}", answer.text);
}

#[tokio::test]
async fn packets_that_wait_are_asked_for_by_the_policy_of_charons_that_has_them() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let other = [selector("10.1.0.0", "10.1.255.255"), selector("10.9.0.0", "10.9.255.255")];
    for (selectors, reqid) in [(other, 3), (all(), 4)] {
        assert_eq!(plugin.status(&Request::AddPolicy(trap(selectors, reqid))).await, Status::Done);
    }
    let packet = wire::build::PacketBuilder::v4("10.1.0.5", "10.2.0.9").udp(1000, 53).ip();
    let flow = wire::packet::parse(&packet).unwrap().flow;
    let snapshot = lab.daemon.snapshot().await;
    let (_, set) = snapshot.sets().find(|(_, set)| set.peer == "a").unwrap();
    let asked = dataplane::AcquireRequest { set: set.id, policy: "all".into(), flow };
    lab.daemon.ask_for_sa(&asked, "a");
    let Report::Acquire { reqid, selectors } = plugin.report().await else { panic!() };
    assert_eq!(reqid, 4);
    assert_eq!(selectors[0].to_string(), "10.1.0.5, protocol 17, port 1000");
    assert_eq!(selectors[1].to_string(), "10.2.0.9, protocol 17, port 53");
    // Policies go when charon says so.
    assert_eq!(plugin.status(&Request::DeletePolicy(trap(all(), 4))).await, Status::Done);
    assert_eq!(plugin.status(&Request::DeletePolicy(trap(all(), 4))).await, Status::Unknown);
}

#[tokio::test]
async fn charon_is_told_that_somebody_deleted_an_sa_of_its_own() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    assert_eq!(plugin.status(&add(sa(Outbound, 0x500, 1))).await, Status::Done);
    let spi = ipsec::Spi::new(0x500).unwrap();
    let name = control::SaName { direction: Direction::Outbound, spi, peer: None };
    let names = vec![name];
    let deletion = SaDeletion { incarnation: String::new(), names, manager: KeyManager::Api };
    lab.daemon.delete_sas(deletion, Uid(0)).await.unwrap();
    assert!(lab.shown().await.is_empty());
    let report = plugin.expiry(sa_name(Outbound, 0x500), Hardness::Hard);
    assert_eq!(plugin.report().await, report);
    // charon deletes both SAs of the child then: it is not told of its own deletions.
    assert_eq!(plugin.status(&add(sa(Outbound, 0x501, 2))).await, Status::Done);
    let name = sa(Outbound, 0x501, 2).name;
    assert_eq!(plugin.status(&NamedRequest::DeleteSa(name)).await, Status::Done);
    assert!(timeout(Duration::from_millis(200), plugin.report()).await.is_err());
}

#[tokio::test]
async fn names_of_a_child_are_shown_with_both_of_its_sas() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let [inbound, outbound] = [sa(Inbound, 0x600, 1), sa(Outbound, 0x500, 2)];
    let names = |handle| {
        let (ike, child) = ("gw-b".to_owned(), "net".to_owned());
        Request::NameSa(NameSa { handle, reqid: 1, ike, child })
    };
    let (inbound_name, unknown) = (inbound.name, plugin.ledger.handle(inbound.name));
    assert_eq!(plugin.status(&names(unknown)).await, Status::Unknown);
    assert_eq!(inbound.reqid, outbound.reqid);
    for sa in [inbound, outbound] {
        assert_eq!(plugin.status(&add(sa)).await, Status::Done);
    }
    let handle = plugin.ledger.handle(inbound_name);
    assert_eq!(plugin.status(&names(handle)).await, Status::Done);
    let shown = lab.daemon.security_associations().await;
    let named = shown.iter().map(|sa| sa.ike.clone().unwrap());
    let named: Vec<_> = named.map(|ike| (ike.connection, ike.child, ike.reqid)).collect();
    assert_eq!(named[0], ("gw-b".into(), "net".into(), named[1].2));
    assert_eq!(named[0], named[1]);
    let state = lab.daemon.counted_state(WorkCaller::Reader(None)).await;
    let mut peers = crate::api::peers(Arc::new(state));
    let peer = peers.find(|peer| peer.name == "a").unwrap();
    assert_eq!(peer.ike.as_ref().unwrap().child, "net");
}

/// Few addresses, so that selectors often just cover a policy or just do not.
fn near(base: u8) -> impl Strategy<Value = Selector> {
    let edge = prop_oneof![5 => Just(0u16), 1 => Just(1), 1 => Just(0xfffe), 5 => Just(0xffff)];
    let ports =
        prop_oneof![3 => Just(Selector::ANY_PORT), 1 => Just((443, 443)), 1 => Just((0, 443))];
    let protocol = prop_oneof![3 => Just(0u8), 1 => Just(6)];
    (edge.clone(), edge, ports, protocol).prop_map(move |(a, b, ports, protocol)| {
        let at = |end: u16| {
            std::net::Ipv4Addr::from_bits(0x0a00_0000 | u32::from(base) << 16 | u32::from(end))
        };
        Selector { protocol, ports, addresses: (at(a.min(b)).into(), at(a.max(b)).into()) }
    })
}

/// Whatever charon asks for, no SA gets traffic of a policy that its selectors do not have: the
/// obvious twin looks at the corners of each policy.
#[test]
fn no_sa_is_for_a_peer_with_packets_outside_its_selectors() {
    let mut runner = proptest::test_runner::TestRunner::default();
    let several = |base| prop::collection::vec(near(base), 1..4);
    let snapshot = TestLab::new(SECTIONS);
    let gateway = &snapshot.state.gateway;
    let peers =
        super::matching::IkePeers::of(&gateway.compiled.settings().peers, &gateway.snapshot);
    let found = std::cell::Cell::new([0u32; 2]);
    let result = runner.run(&(several(1), several(2)), |(local, remote)| {
        let ends = [address(LOCAL), address(REMOTE)];
        let Ok(peer) = peers.choose(ends, [&local, &remote]) else { return Ok(()) };
        let mut counts = found.get();
        counts[usize::from(&*peer.name == "web")] += 1;
        found.set(counts);
        let policy = match &*peer.name {
            "a" => all(),
            _ => web(),
        };
        for (end, given) in [(0, &local), (1, &remote)] {
            let Selector { protocol, ports, addresses } = policy[end].clone();
            for address in [addresses.0, addresses.1] {
                let corner = Selector { protocol, ports, addresses: (address, address) };
                prop_assert!(given.iter().any(|given| given.covers(&corner)), "{corner}");
            }
        }
        Ok(())
    });
    result.unwrap();
    assert!(found.get().iter().all(|count| *count > 0), "{found:?}");
    // In another order than the policy's, and in pieces.
    let exact = all().map(|selector| vec![selector.clone(), selector]);
    let ends = [address(LOCAL), address(REMOTE)];
    assert_eq!(&*peers.choose(ends, [&exact[0], &exact[1]]).unwrap().name, "a");
}
