//! Peers and policies that charon makes by itself, against a daemon over a simulated machine.

mod hostile;
mod moves;
mod rekey;
mod returns;
mod room;
mod traps;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::v1;
use charon_link::{
    AddPolicy, AddSa, Algorithm, Answer, Hardness, LinkMode, Policy, PolicyAction, PolicyDirection,
    Report, Request, SaDirection, SaHandle, SaLimits, SaName, Selector, Status,
};
use config::ShuntAction;
use control::{IkeAction, IkeChange, IkePolicy};
use dataplane::Snapshot;
use policy::{Action, Book, Decider, DomainId, PortClass};
use wire::{Family, Flow, Upper};
use zeroize::Zeroizing;

use super::by_name::{Ledger, MoveSa, NamedRequest, charon, issuer};
use super::desk::Desk;
use super::own::selector_of;
use super::tests::gateway_of_peer_a;
use crate::backend::{Backend, Change, Includes, Intent, Save, ToConfirm};
use crate::backend_impl::Daemon;
use crate::sa_limits::Expiry;
use crate::test_lab::{RunningLab, configuration};
use crate::who::{ConnectionNumber, Uid};

const LOCAL: &str = "192.0.2.1";
const REMOTE: &str = "198.51.100.9";

/// A gateway whose file protects, passes and drops some packets; charon may protect others.
const FILE: &str = concat!(
    gateway_of_peer_a!(),
    r#"
[[policy]]
name = "drop"
priority = 0
action = "discard"
local = ["10.1.0.0/16"]
remote = ["10.9.9.0/24"]
"#
);

/// Bounds of charon's own peers and policies.
const BOUNDS: &str = r#"
[ike]
ends = ["192.0.2.1"]
peers = ["198.51.100.0/24"]
local = ["10.1.0.0/16"]
remote = ["10.9.0.0/16"]
suites = ["aes-128-gcm"]
max_children = 3
[ike.lifetime]
hard_seconds = 100
[[ike.shunt]]
action = "bypass"
local = ["10.1.0.0/16"]
remote = ["10.200.0.0/16"]
"#;

struct Lab {
    running: RunningLab,
    desk: Desk,
    ledger: Ledger,
}

impl Lab {
    fn new(bounds: &str) -> Lab {
        Lab::over(&format!("{FILE}{bounds}"))
    }

    fn over(sections: &str) -> Lab {
        let running = RunningLab::new(sections);
        let mut desk = Desk::new(running.daemon.clone(), issuer());
        desk.begin(charon(1));
        Lab { running, desk, ledger: Ledger::default() }
    }

    fn daemon(&self) -> &Arc<Daemon> {
        &self.running.daemon
    }

    async fn ask(&mut self, request: impl Into<NamedRequest>) -> Answer {
        let request = request.into();
        let answer = self.desk.answer(self.ledger.by_handle(&request)).await;
        self.ledger.note(&request, &answer);
        answer
    }

    /// Connects the charon of the SAs again; it names all handles of its ledger.
    async fn resume(&mut self) {
        self.desk.begin(charon(1));
        let answer = self.ask(Request::ResumeSas(self.ledger.handles())).await;
        assert_eq!((answer.status, answer.lacking), (Status::Done, vec![]));
    }

    /// Asks for something that is done.
    async fn done(&mut self, request: impl Into<NamedRequest>) {
        let answer = self.ask(request).await;
        assert_eq!(answer.status, Status::Done, "{}", answer.text);
    }

    /// Asks for something that is refused with these words.
    async fn refused(&mut self, request: impl Into<NamedRequest>, words: &str) {
        let before = self.shown();
        let answer = self.ask(request).await;
        assert!(matches!(answer.status, Status::Refused | Status::NoSuite), "{answer:?}");
        assert!(answer.text.contains(words), "{words} is not in {}", answer.text);
        assert_eq!(self.shown(), before);
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.daemon().picture().snapshot.clone()
    }

    /// Names of charon's peers and policies that run, sorted.
    fn shown(&self) -> (Vec<String>, Vec<String>) {
        let picture = self.daemon().picture();
        let mut peers: Vec<String> =
            picture.compiled.ike_peers().map(|peer| peer.name.clone()).collect();
        let policies = picture.snapshot.spd().holding_policies();
        let own = policies.filter(|(_, policy)| policy.id.is_behind());
        let mut policies: Vec<String> = own.map(|(_, policy)| policy.name.clone()).collect();
        peers.sort();
        policies.sort();
        (peers, policies)
    }

    /// The verdict on a packet from one address to another, `policy (action)`.
    fn verdict(&self, source: &str, destination: &str) -> String {
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        verdict(&self.snapshot(), source, destination)
    }

    async fn apply(&mut self, sections: &str) {
        self.apply_for(sections, None).await;
    }

    /// Applies a configuration, for a time only or for good.
    async fn apply_for(&mut self, sections: &str, within: Option<Duration>) {
        let text = configuration(&self.running.folder, "gw", sections);
        let change = Change {
            text,
            file: "test".into(),
            base_directory: self.running.folder.path().into(),
            includes: Includes::BesideFile,
            intent: Intent::Apply,
            confirm: within.map(|within| ToConfirm { within, asked_over: ConnectionNumber(1) }),
            save: Save::No,
            only_after: None,
        };
        self.daemon().apply(change, Uid(0)).await.unwrap();
    }
}

/// The verdict of a snapshot's SPD on an outbound UDP packet: the policy, and what it does.
fn verdict(snapshot: &Snapshot, source: Ipv4Addr, destination: Ipv4Addr) -> String {
    let [source, destination] = [source, destination].map(|address| u128::from(address.to_bits()));
    let upper = Upper::Ports { source: 1000, destination: 53 };
    let flow = Flow { family: Family::V4, source, destination, protocol: 17, upper, opens: false };
    let domain = DomainId::new(PortClass(0), Book::SpdOut, Family::V4);
    let mut says = [Decider::None];
    snapshot.spd().classify(domain, &[flow], &mut says);
    let Decider::Policy(index) = says[0] else { return "none".into() };
    let policy = snapshot.spd().policy(index);
    let action = match policy.action {
        Action::Protect(set) => {
            let (_, set) = snapshot.sets().find(|(_, of)| of.id == set).expect("its set");
            format!("protect {} with {} SAs", set.peer, set.outbound.len())
        }
        Action::Bypass => "bypass".into(),
        _ => "discard".into(),
    };
    format!("{}: {action}", policy.name)
}

fn end(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 500)
}

fn range(first: &str, last: &str) -> Selector {
    let [first, last] = [first, last].map(|text| text.parse::<IpAddr>().unwrap());
    Selector { protocol: 0, ports: Selector::ANY_PORT, addresses: (first, last) }
}

/// Local and remote selectors of 10.1.0.0/16 and 10.9.N.0/24.
fn to(net: u8) -> [Selector; 2] {
    [range("10.1.0.0", "10.1.255.255"), range(&format!("10.9.{net}.0"), &format!("10.9.{net}.255"))]
}

/// An outbound policy of charon's; a trap if its SPI is 0.
fn outbound(selectors: [Selector; 2], reqid: u32, spi: u32) -> AddPolicy {
    let policy = Policy {
        direction: PolicyDirection::Outbound,
        source: end(LOCAL),
        destination: end(REMOTE),
        selectors,
    };
    let (action, priority, repeat) = (PolicyAction::Protect, 1 << 24, false);
    AddPolicy { policy, action, reqid, spi, priority, repeat }
}

/// The same towards another gateway.
fn with(policy: AddPolicy, remote: &str) -> AddPolicy {
    let named = Policy { destination: end(remote), ..policy.policy };
    AddPolicy { policy: named, ..policy }
}

fn sa(direction: SaDirection, spi: u32, reqid: u32, selectors: [Selector; 2]) -> AddSa {
    let (mut ends, mut selectors) = ([end(LOCAL), end(REMOTE)], selectors.map(|one| vec![one]));
    if direction == SaDirection::Inbound {
        ends.reverse();
        selectors.reverse();
    }
    let mut key = vec![7; 20];
    key[..4].copy_from_slice(&spi.to_be_bytes());
    AddSa {
        direction,
        name: SaName { source: ends[0], destination: ends[1], spi },
        reqid,
        mode: LinkMode::Tunnel,
        encryption: Algorithm { transform: 20, key: Zeroizing::new(key) },
        integrity: Algorithm { transform: 0, key: Zeroizing::default() },
        esn: true,
        window: 32,
        in_udp: false,
        soft: SaLimits::default(),
        hard: SaLimits { seconds: 3600, ..SaLimits::default() },
        selectors,
        initiator: true,
    }
}

fn add(sa: AddSa) -> Request {
    Request::AddSa(Box::new(sa))
}

use SaDirection::{Inbound, Outbound};

#[tokio::test]
async fn a_tunnel_out_of_charon_alone_comes_carries_its_selectors_and_goes() {
    let mut lab = Lab::new(BOUNDS);
    let (inside, there) = ("10.1.0.5", "10.9.1.5");
    assert_eq!(lab.verdict(inside, there), "none");
    // A trap: packets wait, and nothing leaves in clear.
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
    assert_eq!(lab.verdict(inside, there), "ike:5/1: protect ike:5 with 0 SAs");
    let snapshot = lab.snapshot();
    let (_, set) = snapshot.sets().find(|(_, set)| set.peer == "ike:5").unwrap();
    assert!(set.acquires, "a packet asks for an SA");
    let asked = api::v1::Acquire {
        peer: "ike:5".into(),
        source: inside.into(),
        destination: there.into(),
        protocol: 1,
        ..api::v1::Acquire::default()
    };
    let report = lab.desk.acquire(&asked);
    assert!(matches!(report, Some(Report::Acquire { reqid: 5, .. })), "{report:?}");
    // The CHILD_SA, and its policies beside the trap.
    let ends = Request::GetSpi { source: end(REMOTE), destination: end(LOCAL) };
    let spi = lab.ask(ends).await.spi.unwrap();
    lab.done(add(sa(Inbound, spi, 5, to(1)))).await;
    lab.done(add(sa(Outbound, 0x500, 5, to(1)))).await;
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0x500))).await;
    assert_eq!(lab.verdict(inside, there), "ike:5/1: protect ike:5 with 1 SAs");
    let shown = lab.daemon().security_associations().await;
    let hard = shown[0].lifetime.as_ref().and_then(|of| of.hard.as_ref()?.seconds);
    assert_eq!(hard, Some(100), "the lower of both limits");
    // What its selectors do not have is as before.
    assert_eq!(lab.verdict(inside, "10.9.2.5"), "none");
    assert_eq!(lab.verdict("10.1.0.5", "10.2.0.5"), "all: protect a with 0 SAs");
    // Without the CHILD_SA the trap protects on.
    lab.done(Request::DeletePolicy(outbound(to(1), 5, 0x500))).await;
    let names = [(Outbound, 0x500), (Inbound, spi)];
    for (direction, spi) in names {
        lab.done(NamedRequest::DeleteSa(sa(direction, spi, 5, to(1)).name)).await;
    }
    assert_eq!(lab.verdict(inside, there), "ike:5/1: protect ike:5 with 0 SAs");
    lab.done(Request::DeletePolicy(outbound(to(1), 5, 0))).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
    assert_eq!(lab.verdict(inside, there), "none");
}

#[tokio::test]
async fn what_is_beyond_the_bounds_is_refused_and_says_why() {
    let mut lab = Lab::new(BOUNDS);
    let policy = || outbound(to(1), 5, 0);
    let wide = [range("10.1.0.0", "10.1.255.255"), range("10.8.0.0", "10.9.255.255")];
    let others = [range("10.0.0.0", "10.1.255.255"), range("10.9.0.0", "10.9.0.9")];
    let v6 = [range("::", "::9"), range("::", "::9")];
    for selectors in [wide.clone(), others, v6] {
        let asked = Request::AddPolicy(outbound(selectors, 5, 0));
        lab.refused(asked, "packets that `local`, `remote`").await;
    }
    let opaque = to(1).map(|one| Selector { protocol: 6, ports: Selector::OPAQUE, ..one });
    lab.refused(Request::AddPolicy(outbound(opaque, 5, 0)), "no ICMP types").await;
    lab.refused(Request::AddPolicy(with(policy(), "203.0.113.1")), "`peers` of [ike]").await;
    let from_elsewhere = Policy { source: end("192.0.2.2"), ..policy().policy };
    let from_elsewhere = AddPolicy { policy: from_elsewhere, ..policy() };
    lab.refused(Request::AddPolicy(from_elsewhere), "`ends` of [ike]").await;
    let base = || sa(Outbound, 0x500, 5, to(1));
    let long = Algorithm { transform: 20, key: Zeroizing::new(vec![1; 36]) };
    lab.refused(add(AddSa { encryption: long, ..base() }), "`suites` of [ike]").await;
    lab.refused(add(AddSa { mode: LinkMode::Transport, ..base() }), "tunnels alone").await;
    lab.refused(add(AddSa { in_udp: true, ..base() }), "leaves by port 4500").await;
    lab.refused(add(sa(Outbound, 0x500, 5, wide)), "packets that `local`, `remote`").await;
    let ends = Request::GetSpi { source: end("203.0.113.1"), destination: end(LOCAL) };
    lab.refused(ends, "`peers` of [ike]").await;
    // A pair of ends that the file has is the file's.
    let of_file = with(policy(), "198.51.100.1");
    lab.done(Request::AddPolicy(of_file)).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
}

#[tokio::test]
async fn children_and_shunts_count_towards_the_most_and_policies_do_not() {
    let mut lab = Lab::new(BOUNDS);
    // One CHILD_SA with four policies, whose SAs follow each other.
    for net in 1..=4 {
        lab.done(Request::AddPolicy(outbound(to(net), 5, 0))).await;
    }
    for spi in 0x500..0x504 {
        lab.done(add(sa(Outbound, spi, 5, to(1)))).await;
    }
    lab.done(Request::AddPolicy(outbound(to(5), 6, 0))).await;
    let shunted = |last: &str| [range("10.1.0.0", "10.1.0.9"), range("10.200.0.0", last)];
    let shunt = |last: &str| {
        let policy = outbound(shunted(last), 7, 0);
        Request::AddPolicy(AddPolicy { action: PolicyAction::Pass, ..policy })
    };
    lab.done(shunt("10.200.0.9")).await;
    let words = "3 CHILD_SAs and shunts of its own, as many as `max_children`";
    lab.refused(shunt("10.200.0.8"), words).await;
    lab.refused(Request::AddPolicy(outbound(to(6), 8, 0)), words).await;
    lab.refused(add(sa(Outbound, 0x600, 8, to(6))), words).await;
    // Those that are there may have more policies and SAs.
    lab.done(Request::AddPolicy(outbound(to(7), 5, 0))).await;
    lab.done(add(sa(Outbound, 0x601, 6, to(5)))).await;
    assert_eq!(lab.shown().0, ["ike:5", "ike:6"]);
    // Each that goes leaves room for one, of whichever kind.
    let Request::AddPolicy(gone) = shunt("10.200.0.9") else { unreachable!() };
    lab.done(Request::DeletePolicy(gone)).await;
    lab.done(Request::AddPolicy(outbound(to(6), 8, 0))).await;
    lab.refused(shunt("10.200.0.9"), words).await;
    lab.done(Request::DeletePolicy(outbound(to(6), 8, 0))).await;
    lab.done(shunt("10.200.0.9")).await;
    lab.refused(Request::AddPolicy(outbound(to(6), 8, 0)), words).await;
}

#[tokio::test]
async fn an_end_with_many_children_leaves_the_last_eighth_to_other_ends() {
    let mut lab = Lab::new(&BOUNDS.replace("max_children = 3", "max_children = 16"));
    let child = |number: u8| outbound(to(number), number.into(), 0);
    for number in 1..=14 {
        lab.done(Request::AddPolicy(child(number))).await;
    }
    let words = "198.51.100.9 has its share of the 16 CHILD_SAs";
    lab.refused(Request::AddPolicy(child(15)), words).await;
    lab.refused(add(sa(Outbound, 0x500, 15, to(15))), words).await;
    lab.done(Request::AddPolicy(with(child(16), "198.51.100.10"))).await;
    // Each child that goes leaves its place.
    for number in [1, 2] {
        lab.done(Request::DeletePolicy(child(number))).await;
    }
    lab.done(Request::AddPolicy(child(15))).await;
}

#[tokio::test]
async fn policies_before_their_sas_count_for_the_port_of_their_nat() {
    let mut lab = Lab::new(&BOUNDS.replace("max_children = 3", "max_children = 16"));
    let child = |number: u8, port: u16| {
        let ends = ["192.0.2.1:4500", &format!("198.51.100.9:{port}")];
        moves::policy_between(&outbound(to(number), number.into(), 0), ends)
    };
    for number in 1..=14 {
        lab.done(Request::AddPolicy(child(number, 7))).await;
    }
    let words = "198.51.100.9 has its share of the 16 CHILD_SAs";
    lab.refused(Request::AddPolicy(child(15, 7)), words).await;
    // Another gateway behind the same NAT.
    lab.done(Request::AddPolicy(child(15, 8))).await;
}

#[tokio::test]
async fn an_sa_whose_suite_is_listed_no_more_ends_and_charon_is_told() {
    let mut lab = Lab::new(BOUNDS);
    let policy = outbound(to(1), 5, 0x500);
    lab.done(Request::AddPolicy(policy.clone())).await;
    let pair = [sa(Inbound, 0x600, 5, to(1)), sa(Outbound, 0x500, 5, to(1))];
    for sa in &pair {
        lab.done(add(sa.clone())).await;
    }
    lab.apply(&format!("{FILE}{}", BOUNDS.replace("aes-128-gcm", "aes-256-gcm"))).await;
    assert_eq!(lab.daemon().security_associations().await.len(), 0, "at once");
    // The policy protects on, and packets wait.
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 0 SAs");
    let asked = NamedRequest::QuerySa(pair[0].name);
    assert_eq!(lab.ask(asked).await.status, Status::Unknown);
    let mut told: Vec<SaHandle> = lab
        .desk
        .take_due()
        .iter()
        .filter_map(|report| match report {
            Report::Expire { handle, hardness: Hardness::Hard } => Some(*handle),
            _ => None,
        })
        .collect();
    told.sort_unstable();
    assert_eq!(told, pair.map(|sa| lab.ledger.handle(sa.name)));
    lab.refused(add(sa(Outbound, 0x501, 5, to(1))), "`suites` of [ike]").await;
    let long = Algorithm { transform: 20, key: Zeroizing::new(vec![1; 36]) };
    lab.done(add(AddSa { encryption: long, ..sa(Outbound, 0x501, 5, to(1)) })).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 1 SAs");
    // The next configuration finds nothing gone.
    lab.apply(&format!(
        "{FILE}{}",
        BOUNDS.replace("aes-128-gcm\"", "aes-256-gcm\", \"aes-128-gcm\"")
    ))
    .await;
    lab.done(NamedRequest::QuerySa(sa(Outbound, 0x501, 5, to(1)).name)).await;
    assert_eq!(lab.desk.take_due(), []);
}

#[tokio::test]
async fn sas_of_a_peer_of_the_file_that_goes_are_ended_for_charon_too() {
    let mut lab = Lab::new(BOUNDS);
    let wide = [range("10.1.0.0", "10.1.255.255"), range("10.2.0.0", "10.2.255.255")];
    let mut of_file = sa(Outbound, 0x700, 9, wide);
    of_file.name.destination = end("198.51.100.1");
    lab.done(add(of_file.clone())).await;
    let by_hand = FILE.replace("keys = \"ike\"", "keys = \"api\"");
    lab.apply(&format!("{by_hand}{BOUNDS}")).await;
    assert_eq!(lab.daemon().security_associations().await.len(), 0);
    assert_eq!(lab.ask(NamedRequest::QuerySa(of_file.name)).await.status, Status::Unknown);
    let due = lab.desk.take_due();
    let handle = lab.ledger.handle(of_file.name);
    assert_eq!(due, [Report::Expire { handle, hardness: Hardness::Hard }]);
}

#[tokio::test]
async fn no_tunnel_ends_where_nobody_can_be() {
    let mut lab = Lab::new(&BOUNDS.replace("[\"198.51.100.0/24\"]", "[\"any\"]"));
    for remote in ["0.0.0.0", "224.0.0.9", "127.0.0.1", "255.255.255.255", LOCAL] {
        let policy = with(outbound(to(1), 5, 0), remote);
        lab.refused(Request::AddPolicy(policy), "no tunnel can end at").await;
    }
    let mut behind_nat = AddSa { in_udp: true, ..sa(Outbound, 0x500, 5, to(1)) };
    behind_nat.name.source.set_port(4500);
    behind_nat.name.destination.set_port(0);
    lab.refused(add(behind_nat), "port 0").await;
}

#[tokio::test]
async fn without_the_section_charon_makes_nothing() {
    let mut lab = Lab::new("");
    lab.refused(Request::AddPolicy(outbound(to(1), 5, 0)), "no peer with keys").await;
    lab.refused(add(sa(Outbound, 0x500, 5, to(1))), "no peer with keys").await;
    let shunt = AddPolicy { action: PolicyAction::Pass, ..outbound(to(1), 5, 0) };
    lab.refused(Request::AddPolicy(shunt), "charon does not change").await;
}

#[tokio::test]
async fn shunts_within_those_that_are_listed_run_behind_the_file() {
    let mut lab = Lab::new(BOUNDS);
    let lan = |last: &str| [range("10.1.0.0", "10.1.255.255"), range("10.200.0.0", last)];
    let shunt = |selectors, action| {
        let policy = AddPolicy { action, priority: 0, ..outbound(selectors, 7, 0) };
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let named = Policy { source: any, destination: any, ..policy.policy };
        Request::AddPolicy(AddPolicy { policy: named, ..policy })
    };
    let wide = lan("10.201.0.0");
    lab.refused(shunt(wide, PolicyAction::Pass), "no [[ike.shunt]] with action = \"bypass\"").await;
    let narrow = || lan("10.200.3.255");
    lab.refused(shunt(narrow(), PolicyAction::Drop), "action = \"discard\"").await;
    lab.done(shunt(narrow(), PolicyAction::Pass)).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.200.3.1"), "ike:bypass/1: bypass");
    assert_eq!(lab.verdict("10.1.0.1", "10.200.4.1"), "none");
    // The file's DISCARD of priority 0 is before all that charon has.
    lab.done(Request::AddPolicy(outbound(to(9), 5, 0))).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.9.1"), "drop: discard");
    let Request::AddPolicy(policy) = shunt(narrow(), PolicyAction::Pass) else { unreachable!() };
    lab.done(Request::DeletePolicy(policy)).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.200.3.1"), "none");
}

#[tokio::test]
async fn another_configuration_keeps_what_it_admits_and_takes_the_rest_away() {
    let mut lab = Lab::new(BOUNDS);
    for (net, reqid, spi) in [(1, 5, 0x500), (2, 6, 0x501)] {
        lab.done(Request::AddPolicy(outbound(to(net), reqid, spi))).await;
        lab.done(add(sa(Outbound, spi, reqid, to(net)))).await;
    }
    let before = lab.verdict("10.1.0.1", "10.9.1.1");
    assert_eq!(before, "ike:5/1: protect ike:5 with 1 SAs");
    // Something else of the file changes.
    let more = "[[policy]]\nname = \"more\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                remote = [\"9.9.9.9\"]\n";
    lab.apply(&format!("{FILE}{more}{BOUNDS}")).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), before);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.2.1"), "ike:6/1: protect ike:6 with 1 SAs");
    // Narrower bounds: at once, before charon asks for anything.
    let narrow = BOUNDS.replace("10.9.0.0/16", "10.9.1.0/24");
    lab.apply(&format!("{FILE}{narrow}")).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), before);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.2.1"), "none");
    // Wider again: charon has the policy still.
    lab.apply(&format!("{FILE}{BOUNDS}")).await;
    lab.done(Request::AddPolicy(outbound(to(3), 7, 0))).await;
    assert!(lab.verdict("10.1.0.1", "10.9.2.1").contains("protect ike:6"));
    // A peer of the file with these ends: they are its own.
    let peer = "[peer.c]\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.9\"\nkeys = \"ike\"\n\
                suite = \"aes-128-gcm\"\n";
    lab.apply(&format!("{FILE}{peer}{BOUNDS}")).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
    assert_eq!(lab.daemon().security_associations().await.len(), 0);
    // charon is told, so that it makes others.
    lab.done(Request::AddPolicy(with(outbound(to(3), 7, 0), "198.51.100.8"))).await;
    let due = lab.desk.take_due();
    let ended = due.iter().filter(|report| matches!(report, Report::Expire { .. })).count();
    assert_eq!(ended, 2, "{due:?}");
    // No section any more.
    lab.apply(FILE).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
}

#[tokio::test]
async fn the_effective_configuration_and_the_policies_of_the_file_are_without_charons() {
    let mut lab = Lab::new(BOUNDS);
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
    let picture = lab.daemon().picture();
    assert!(!picture.compiled.validated().effective().contains("ike:5"));
    assert!(picture.compiled.policy_named("ike:5/1").is_none());
    let remove = crate::backend::PolicyChange {
        remove: vec!["ike:5/1".into()],
        add: String::new(),
        file: "test".into(),
        intent: Intent::Apply,
        consent: crate::backend::Consent::Given,
        save: Save::No,
    };
    let refused = lab.daemon().change_policies(remove, Uid(0)).await.unwrap_err().to_string();
    assert!(refused.contains("there is no policy \"ike:5/1\""), "{refused}");
    // Those of the file change beside them.
    let add = crate::backend::PolicyChange {
        remove: Vec::new(),
        add: "[[policy]]\nname = \"later\"\npriority = 0\naction = \"discard\"\n\
              local = [\"10.1.0.0/16\"]\nremote = [\"10.9.1.0/24\"]\n"
            .into(),
        file: "test".into(),
        intent: Intent::Apply,
        consent: crate::backend::Consent::Given,
        save: Save::No,
    };
    lab.daemon().change_policies(add, Uid(0)).await.unwrap();
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "later: discard");
}

#[tokio::test]
async fn what_an_earlier_charon_left_stays_with_its_sas_and_the_next_one_takes_it_over() {
    let mut lab = Lab::new(BOUNDS);
    for (net, reqid, spi) in [(1, 1, 0x500), (2, 2, 0x501)] {
        lab.done(Request::AddPolicy(outbound(to(net), reqid, spi))).await;
        lab.done(add(sa(Outbound, spi, reqid, to(net)))).await;
    }
    lab.desk.begin(charon(2));
    lab.done(Request::Resumed).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:1/1: protect ike:1 with 1 SAs");
    // Its number 1 is another CHILD_SA.
    lab.done(Request::AddPolicy(outbound(to(2), 1, 0))).await;
    let due = lab.desk.take_due();
    assert!(matches!(due[..], [Report::Acquire { reqid: 1, .. }]), "{due:?}");
    lab.done(add(sa(Outbound, 0x502, 1, to(2)))).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.2.1"), "ike:2/1: protect ike:2 with 1 SAs");
    let spis: Vec<String> =
        lab.daemon().security_associations().await.into_iter().map(|sa| sa.spi).collect();
    assert_eq!(spis, ["0x00000500", "0x00000502"]);
    // This charon cannot delete an SA of the earlier one. A peer goes with its last SA.
    let left = NamedRequest::DeleteSa(sa(Outbound, 0x500, 1, to(1)).name);
    assert_eq!(lab.ask(&left).await.status, Status::Unknown);
    let (direction, spi) = (policy::Direction::Outbound, ipsec::Spi::new(0x500).unwrap());
    let hardness = Hardness::Hard;
    lab.desk.expired(&Expiry { direction, spi, peer: "ike:1".into(), hardness });
    lab.ask(&left).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "none");
    // The charon that is connected drops everything.
    lab.done(Request::FlushPolicies).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.2.1"), "none");
    lab.done(Request::FlushSas).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
}

#[tokio::test]
async fn what_charon_no_longer_names_goes_when_it_has_named_all() {
    let mut lab = Lab::new(BOUNDS);
    for net in 1..=2 {
        lab.done(Request::AddPolicy(outbound(to(net), net.into(), 0))).await;
    }
    lab.desk.begin(charon(1));
    let again = AddPolicy { repeat: true, ..outbound(to(2), 2, 0) };
    lab.done(Request::AddPolicy(again)).await;
    assert_eq!(lab.shown().0, ["ike:1", "ike:2"]);
    lab.done(Request::Resumed).await;
    assert_eq!(lab.shown().0, ["ike:2"]);
}

#[tokio::test]
async fn a_packet_that_asks_first_does_not_hide_another_configuration() {
    let mut lab = Lab::new(BOUNDS);
    let policy = outbound(to(2), 6, 0x501);
    lab.done(Request::AddPolicy(policy.clone())).await;
    lab.done(add(sa(Outbound, 0x501, 6, to(2)))).await;
    lab.apply(FILE).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
    let asked = v1::Acquire { peer: "a".into(), ..v1::Acquire::default() };
    assert!(lab.desk.acquire(&asked).is_none());
    // charon hears that its SA has ended, and can take back what it had.
    lab.done(Request::DeletePolicy(policy)).await;
    let due = lab.desk.take_due();
    let handle = lab.ledger.handle(sa(Outbound, 0x501, 6, to(2)).name);
    assert_eq!(due, [Report::Expire { handle, hardness: Hardness::Hard }]);
}

#[tokio::test]
async fn a_change_is_checked_against_the_configuration_that_runs_when_it_is_made() {
    let lab = Lab::new(BOUNDS);
    let shunt = |net: &str| IkePolicy {
        name: "ike:bypass/1".into(),
        action: IkeAction::Shunt(ShuntAction::Bypass),
        priority: 1,
        selector: selector_of(&[range("10.1.0.0", "10.1.0.9"), range(net, net)]).unwrap(),
    };
    let change = |policies| IkeChange { policies, ..IkeChange::default() };
    let beyond = lab.daemon().change_ike(change(vec![shunt("10.201.0.1")])).await.unwrap_err();
    assert!(beyond.to_string().contains("does not admit"), "{beyond}");
    lab.daemon().change_ike(change(vec![shunt("10.200.0.1")])).await.unwrap();
    // A name that runs is given to no other one.
    assert!(lab.daemon().change_ike(change(vec![shunt("10.200.0.2")])).await.is_err());
    // Ends of a peer of the file, and ends that no bound has.
    let of_file = lab.daemon().picture().config().peers[0].clone();
    for remote in ["198.51.100.1", "203.0.113.1"] {
        let mut peer = config::validated::Peer { name: "ike:1".into(), ..of_file.clone() };
        peer.encapsulation.tunnel.remote = remote.parse().unwrap();
        let change = IkeChange { peers: vec![peer], ..IkeChange::default() };
        assert!(lab.daemon().change_ike(change).await.is_err(), "{remote}");
    }
    assert_eq!(lab.shown(), (vec![], vec!["ike:bypass/1".to_owned()]));
}

#[tokio::test]
async fn what_charon_takes_away_while_a_change_waits_does_not_come_back() {
    let mut lab = Lab::new(BOUNDS);
    for (net, reqid, spi) in [(1, 5, 0x500), (2, 6, 0x501)] {
        lab.done(Request::AddPolicy(outbound(to(net), reqid, spi))).await;
        lab.done(add(sa(Outbound, spi, reqid, to(net)))).await;
    }
    let more = "[[policy]]\nname = \"more\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                remote = [\"9.9.9.9\"]\n";
    lab.apply_for(&format!("{FILE}{more}{BOUNDS}"), Some(Duration::from_secs(2))).await;
    lab.done(Request::DeletePolicy(outbound(to(1), 5, 0x500))).await;
    lab.done(NamedRequest::DeleteSa(sa(Outbound, 0x500, 5, to(1)).name)).await;
    assert_eq!(lab.shown().0, ["ike:6"]);
    let end = Instant::now() + Duration::from_secs(60);
    while lab.daemon().picture().config().policies.iter().any(|policy| policy.name == "more") {
        assert!(Instant::now() < end, "it is not rolled back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lab.shown(), (vec!["ike:6".to_owned()], vec!["ike:6/1".to_owned()]));
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "none");
    assert_eq!(lab.verdict("10.1.0.1", "10.9.2.1"), "ike:6/1: protect ike:6 with 1 SAs");
}

#[tokio::test]
async fn a_policy_that_stands_in_takes_nothing_along_when_it_goes() {
    let mut lab = Lab::new(BOUNDS);
    let policy = outbound(to(1), 5, 0x500);
    lab.done(Request::AddPolicy(policy.clone())).await;
    lab.done(add(sa(Outbound, 0x500, 5, to(1)))).await;
    let stands_in = AddPolicy { action: PolicyAction::Drop, ..policy.clone() };
    lab.done(Request::AddPolicy(stands_in.clone())).await;
    assert_eq!(lab.ask(Request::DeletePolicy(stands_in)).await.status, Status::Unknown);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 1 SAs");
    // Nor does the one that protects leave a shunt of its name behind.
    let passes = AddPolicy { action: PolicyAction::Pass, ..policy };
    let shunted = [range("10.1.0.0", "10.1.0.9"), range("10.200.0.0", "10.200.0.9")];
    let of = |policy: &AddPolicy| {
        let named = Policy { selectors: shunted.clone(), ..policy.policy.clone() };
        Request::DeletePolicy(AddPolicy { policy: named, ..policy.clone() })
    };
    let Request::DeletePolicy(shunt) = of(&passes) else { unreachable!() };
    lab.done(Request::AddPolicy(shunt.clone())).await;
    assert!(lab.verdict("10.1.0.1", "10.200.0.1").ends_with(": bypass"));
    lab.done(Request::DeletePolicy(shunt)).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.200.0.1"), "none");
}
