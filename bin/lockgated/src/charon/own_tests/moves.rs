//! Moves of SAs that `[ike]` admits.

use std::time::{Duration, Instant};

use charon_link::{AddPolicy, AddSa, PolicyAction, Report, Request, SaName, Status};
use control::PeerAddress;
use ipsec::Spi;

use super::super::book::OCCUPIED;
use super::*;
use crate::gateway::SeenElsewhere;

pub(super) const HOME: [&str; 2] = ["192.0.2.1:4500", "198.51.100.9:4500"];
pub(super) const THERE: [&str; 2] = ["192.0.2.2:4500", "198.51.100.77:61000"];

/// The bounds, with a second address of this gateway.
pub(super) fn bounds() -> String {
    BOUNDS.replace("ends = [\"192.0.2.1\"]", "ends = [\"192.0.2.1\", \"192.0.2.2\"]")
}

fn sides(direction: SaDirection, [local, remote]: [&str; 2]) -> [SocketAddr; 2] {
    let [local, remote] = [local, remote].map(|text| text.parse().unwrap());
    match direction {
        Outbound => [local, remote],
        Inbound => [remote, local],
    }
}

/// The SA between other ends.
pub(super) fn between(of: &AddSa, ends: [&str; 2]) -> AddSa {
    let [source, destination] = sides(of.direction, ends);
    AddSa { name: SaName { source, destination, ..of.name }, ..of.clone() }
}

pub(super) fn update(of: &AddSa, ends: [&str; 2]) -> MoveSa {
    let SaName { source, destination, .. } = between(of, ends).name;
    let (reqid, selectors) = (None, None);
    MoveSa { name: of.name, source, destination, in_udp: of.in_udp, reqid, selectors }
}

/// A policy with other ends.
pub(super) fn policy_between(policy: &AddPolicy, ends: [&str; 2]) -> AddPolicy {
    let [source, destination] = sides(Outbound, ends);
    let named = Policy { source, destination, ..policy.policy.clone() };
    AddPolicy { policy: named, ..policy.clone() }
}

/// The ends of all SAs that run, each once.
pub(super) fn ends(lab: &Lab) -> Vec<String> {
    let snapshot = lab.snapshot();
    let of = |way: &ipsec::Encapsulation| control::PeerEnds::of(way).to_string();
    let mut all: Vec<String> = snapshot.outbound().map(|sa| of(&sa.encapsulation)).collect();
    all.extend(snapshot.inbound().map(|sa| of(&sa.encapsulation)));
    all.sort();
    all.dedup();
    all
}

/// The ends of the SAs that seal, by SPI.
pub(super) fn sealing_ends(lab: &Lab) -> Vec<(u32, String)> {
    let snapshot = lab.snapshot();
    let of = |sa: &ipsec::OutboundSa| control::PeerEnds::of(&sa.encapsulation).to_string();
    let mut all: Vec<_> = snapshot.outbound().map(|sa| (sa.spi.value(), of(sa))).collect();
    all.sort();
    all
}

/// A CHILD_SA of number 5, and its outbound policy.
pub(super) async fn child(lab: &mut Lab) -> ([AddSa; 2], AddPolicy) {
    let pair = [sa(Inbound, 0x600, 5, to(1)), sa(Outbound, 0x500, 5, to(1))];
    let pair = pair.map(|sa| between(&sa, HOME));
    for sa in &pair {
        lab.done(add(sa.clone())).await;
    }
    let policy = policy_between(&outbound(to(1), 5, 0x500), HOME);
    lab.done(Request::AddPolicy(policy.clone())).await;
    (pair, policy)
}

// Two gateways choose SPIs without each other, and one of them goes to where the other is.
#[tokio::test]
async fn no_sa_takes_the_name_of_one_of_another_peer() {
    let mut lab = Lab::new(&bounds());
    let (pair, _) = child(&mut lab).await;
    let place = [HOME[0], "198.51.100.77:4500"];
    let numbered = |key: u32, reqid, net| {
        let mut sa = between(&sa(Outbound, key, reqid, to(net)), place);
        sa.name.spi = 0x500;
        sa
    };
    let other = numbered(0x501, 6, 2);
    lab.done(add(other.clone())).await;
    let before = ends(&lab);
    lab.refused(NamedRequest::MoveSa(update(&pair[1], place)), OCCUPIED).await;
    lab.refused(add(numbered(0x502, 7, 3)), OCCUPIED).await;
    assert_eq!(ends(&lab), before);
    // Each is deleted by its own name.
    lab.done(NamedRequest::DeleteSa(other.name)).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 1 SAs");
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, place))).await;
    }
    // Nobody asks for neighbours at the ends that no peer has any more.
    let live = lab.daemon().picture().live.clone();
    let is_known = |end: &str| live.has_remote(end.parse::<IpAddr>().unwrap().into());
    assert_eq!(["198.51.100.9", "198.51.100.77"].map(is_known), [false, true]);
}

#[tokio::test]
async fn sas_move_within_the_bounds_with_their_numbers_windows_and_use() {
    let mut lab = Lab::new(&bounds());
    let trap = outbound(to(1), 5, 0);
    lab.done(Request::AddPolicy(trap.clone())).await;
    let (pair, policy) = child(&mut lab).await;
    let before = lab.snapshot();
    let (out, inbound) = (before.outbound().next().unwrap(), before.inbound().next().unwrap());
    out.sequence.draw(5).whole().unwrap();
    inbound.window.commit(77).unwrap();
    out.allowance.as_ref().unwrap().take(3, 300, || std::iter::repeat_n(100, 3));
    let protects = "ike:5/1: protect ike:5 with 1 SAs";
    // As charon does it: another policy drops meanwhile, and the one that protects goes first.
    let drops = AddPolicy { action: PolicyAction::Drop, ..policy.clone() };
    lab.done(Request::DeletePolicy(trap)).await;
    lab.done(Request::AddPolicy(drops.clone())).await;
    lab.done(Request::DeletePolicy(policy.clone())).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), protects);
    for sa in &pair {
        let there = MoveSa { in_udp: true, ..update(sa, THERE) };
        lab.done(NamedRequest::MoveSa(there)).await;
        assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), protects);
    }
    assert_eq!(ends(&lab), ["192.0.2.2:4500 - 198.51.100.77:61000"]);
    let policy = policy_between(&policy, THERE);
    lab.done(Request::AddPolicy(policy.clone())).await;
    assert_eq!(lab.ask(Request::DeletePolicy(drops)).await.status, Status::Unknown);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), protects);
    let after = lab.snapshot();
    let (out, inbound) = (after.outbound().next().unwrap(), after.inbound().next().unwrap());
    assert_eq!(out.sequence.draw(1).whole(), Ok(6));
    assert!(inbound.window.check(77).is_err() && inbound.window.check(78).is_ok());
    let (_, set) = after.sets().find(|(_, set)| set.peer == "ike:5").unwrap();
    assert_eq!(set.tunnel, out.encapsulation.tunnel);
    assert!(set.moves_by_ike, "what comes to the old ends is opened");
    let picture = lab.daemon().picture();
    assert_eq!(picture.moves.get("ike:5"), Some(&1));
    assert_eq!(picture.compiled.ike_peer("ike:5").unwrap().tunnel(), set.tunnel);
    let named = between(&pair[1], THERE).name;
    let used = lab.ask(NamedRequest::QuerySa(named)).await.usage.unwrap();
    assert_eq!((used.packets, used.bytes), (3, 300));
    assert_eq!(lab.ask(NamedRequest::QuerySa(pair[1].name)).await.status, Status::Unknown);
    // All of it goes with the CHILD_SA.
    lab.done(Request::DeletePolicy(policy)).await;
    for sa in &pair {
        lab.done(NamedRequest::DeleteSa(between(sa, THERE).name)).await;
    }
    assert_eq!(lab.shown(), (vec![], vec![]));
    assert!(lab.daemon().picture().moves.is_empty());
}

#[tokio::test]
async fn a_trap_with_the_ends_of_before_protects_on_and_asks_for_its_number() {
    let mut lab = Lab::new(&bounds());
    let trap = outbound(to(1), 5, 0);
    lab.done(Request::AddPolicy(trap.clone())).await;
    let (pair, policy) = child(&mut lab).await;
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, THERE))).await;
    }
    lab.done(Request::DeletePolicy(policy)).await;
    for sa in &pair {
        lab.done(NamedRequest::DeleteSa(between(sa, THERE).name)).await;
    }
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 0 SAs");
    let asked = v1::Acquire {
        peer: "ike:5".into(),
        source: "10.1.0.1".into(),
        destination: "10.9.1.1".into(),
        protocol: 1,
        ..v1::Acquire::default()
    };
    let report = lab.desk.acquire(&asked);
    assert!(matches!(report, Some(Report::Acquire { reqid: 5, .. })), "{report:?}");
    // The next CHILD_SA is between the ends of the trap again.
    let again = sa(Outbound, 0x501, 5, to(1));
    lab.done(add(again.clone())).await;
    assert_eq!(lab.shown().0, ["ike:5"]);
    assert_eq!(ends(&lab), ["192.0.2.1 - 198.51.100.9"]);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 1 SAs");
    lab.done(NamedRequest::DeleteSa(again.name)).await;
    lab.done(Request::DeletePolicy(trap)).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
}

#[tokio::test]
async fn a_move_beyond_the_bounds_is_refused_and_changes_nothing() {
    let mut lab = Lab::new(&bounds());
    let ([_, out], _) = child(&mut lab).await;
    lab.done(Request::AddPolicy(outbound(to(2), 6, 0))).await;
    let before = ends(&lab);
    let far = ["192.0.2.1:4500", "203.0.113.1:4500"];
    let ours = ["192.0.2.3:4500", HOME[1]];
    let of_file = ["192.0.2.1:4500", "198.51.100.1:4500"];
    let in_udp = |ends| MoveSa { in_udp: true, ..update(&out, ends) };
    let wide = [range("10.1.0.0", "10.1.255.255"), range("10.8.0.0", "10.9.255.255")];
    let rows = [
        (update(&out, far), "`peers` of [ike] does not list 203.0.113.1"),
        (update(&out, ours), "`ends` of [ike] does not list 192.0.2.3"),
        (update(&out, ["192.0.2.1:4500", "192.0.2.1:4500"]), "`peers` of [ike]"),
        (update(&out, of_file), "ends that a [peer.NAME] has"),
        (MoveSa { reqid: Some(6), ..update(&out, HOME) }, "reqid 6 is that of another CHILD_SA"),
        (in_udp([HOME[0], "198.51.100.77:0"]), "port 0"),
        (in_udp(["192.0.2.1:7", "198.51.100.77:9"]), "leaves by port 4500, not by 7"),
        (
            MoveSa { selectors: Some(wide.map(|one| vec![one])), ..update(&out, THERE) },
            "packets that `local`, `remote`",
        ),
    ];
    for (asked, words) in rows {
        lab.refused(NamedRequest::MoveSa(asked), words).await;
        assert_eq!(ends(&lab), before);
    }
    assert!(lab.daemon().picture().moves.is_empty());
    // Where it is: nothing to do.
    lab.done(NamedRequest::MoveSa(update(&out, HOME))).await;
    assert_eq!(lab.daemon().picture().moves.get("ike:5"), None);
}

// A fragment of ESP in UDP shows no marker: only a worker can tell it from one of IKE.
#[tokio::test]
async fn fragments_of_udp_are_the_workers_before_an_sa_opens_esp_in_udp() {
    const SERVICES: &str = "allow_host = [\"udp/500\", \"udp/4500\", \"tcp/22\"]\n";
    let netdev = "[port.wan]\nnetdev = \"eth0\"\n";
    let file = FILE.replace(netdev, &format!("{netdev}{SERVICES}"));
    let passed = |lab: &Lab| lab.running.machine.passes_fragments("eth0");
    for comes_in_udp in [true, false] {
        let mut lab = Lab::new(&bounds());
        // An apply puts the programs up.
        lab.apply(&format!("{file}{}", bounds())).await;
        assert!(passed(&lab), "nothing comes in UDP");
        let plain = [sa(Inbound, 0x600, 5, to(1)), sa(Outbound, 0x500, 5, to(1))];
        let in_udp = plain.clone().map(|sa| AddSa { in_udp: true, ..between(&sa, HOME) });
        for sa in if comes_in_udp { &in_udp } else { &plain } {
            lab.done(add(sa.clone())).await;
            assert_eq!(passed(&lab), !comes_in_udp);
        }
        // A NAT is found on the way.
        for sa in plain.iter().filter(|_| !comes_in_udp) {
            let moved = MoveSa { in_udp: true, ..update(sa, THERE) };
            lab.done(NamedRequest::MoveSa(moved)).await;
        }
        assert!(!passed(&lab));
        assert!(lab.snapshot().sad().opens_in_udp());
        lab.done(Request::FlushSas).await;
        assert!(passed(&lab), "nothing comes in UDP any more");
    }
}

#[tokio::test]
async fn no_peer_moves_to_an_address_of_this_gateway() {
    let wider = "peers = [\"198.51.100.0/24\", \"10.9.0.0/16\", \"192.0.2.0/24\"]";
    let mut lab = Lab::new(&bounds().replace("peers = [\"198.51.100.0/24\"]", wider));
    let ([_, out], _) = child(&mut lab).await;
    let before = ends(&lab);
    let ours = update(&out, ["192.0.2.2:4500", "192.0.2.1:4500"]);
    let words = "peer ike:5 cannot be at 192.0.2.1, which is this gateway's";
    lab.refused(NamedRequest::MoveSa(ours), words).await;
    assert_eq!(ends(&lab), before);
    // Elsewhere it may be, in its own network too, and home again.
    let away = ["192.0.2.1:4500", "10.9.1.7:4500"];
    for (from, to, there) in
        [(HOME, away, "192.0.2.1 - 10.9.1.7"), (away, HOME, "192.0.2.1 - 198.51.100.9")]
    {
        lab.done(NamedRequest::MoveSa(update(&between(&out, from), to))).await;
        assert_eq!(sealing_ends(&lab), [(0x500, there.to_owned())]);
    }
}

// Issue 42, item 2: an old and a new SA of one reqid, during a move of the IKE_SA.
#[tokio::test]
async fn move_of_a_new_sa_leaves_the_old_sa_of_its_reqid_where_it_is() {
    let mut lab = Lab::new(&bounds());
    let (pair, _) = child(&mut lab).await;
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, THERE))).await;
    }
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
    let (home, there) = ("192.0.2.1 - 198.51.100.9", "192.0.2.2 - 198.51.100.77");
    let sealing = |of: &[(u32, &str)]| -> Vec<(u32, String)> {
        of.iter().map(|(spi, ends)| (*spi, (*ends).to_owned())).collect()
    };
    let next = [sa(Inbound, 0x601, 5, to(1)), sa(Outbound, 0x501, 5, to(1))];
    lab.done(add(next[0].clone())).await;
    assert_eq!(sealing_ends(&lab), sealing(&[(0x500, there)]));
    assert_eq!(ends(&lab), [home, there], "the new inbound SA has its own ends");
    let same_key = AddSa { encryption: pair[1].encryption.clone(), ..next[1].clone() };
    assert_ne!(lab.ask(add(same_key)).await.status, Status::Done);
    lab.done(add(next[1].clone())).await;
    assert_eq!(sealing_ends(&lab), sealing(&[(0x500, there), (0x501, home)]));
    let seals_by = |lab: &Lab| {
        let snapshot = lab.snapshot();
        let (_, set) = snapshot.sets().find(|(_, set)| set.peer == "ike:5").unwrap();
        let newest = snapshot.sealing_sa(set, dataplane::WorkerShare::ALL).unwrap();
        assert_eq!(set.tunnel, *snapshot.outbound_sa(newest).tunnel());
        snapshot.outbound_sa(newest).spi.value()
    };
    assert_eq!(seals_by(&lab), 0x501);
    let moves = |lab: &Lab| lab.daemon().picture().moves.get("ike:5").copied();
    assert_eq!(moves(&lab), Some(2), "packets go where the newest SA is");
    // A move of the old SA takes no packet elsewhere.
    let aside = ["192.0.2.2:4500", "198.51.100.78:61000"];
    lab.done(NamedRequest::MoveSa(update(&between(&pair[1], THERE), aside))).await;
    assert_eq!(moves(&lab), Some(2));
    lab.done(NamedRequest::MoveSa(update(&between(&pair[1], aside), THERE))).await;
    // The NAT of the new SA maps it elsewhere.
    let mapped = [HOME[0], "198.51.100.9:7"];
    for sa in &next {
        let moved = MoveSa { in_udp: true, ..update(sa, mapped) };
        lab.done(NamedRequest::MoveSa(moved)).await;
    }
    let in_udp = "192.0.2.1:4500 - 198.51.100.9:7";
    assert_eq!(sealing_ends(&lab), sealing(&[(0x500, there), (0x501, in_udp)]));
    assert_eq!(ends(&lab), [in_udp, there]);
    // The old SA goes on where it is, and seals once the new one is gone.
    lab.done(NamedRequest::DeleteSa(between(&next[1], mapped).name)).await;
    assert_eq!((seals_by(&lab), sealing_ends(&lab)), (0x500, sealing(&[(0x500, there)])));
    assert_eq!(moves(&lab), Some(4), "to the NAT's port, and to the old SA");
    lab.running.events.flush();
    let (kept, _) = lab.running.events.subscribe();
    assert!(kept.iter().any(|event| event.kind == "peer_moved"));
    assert_eq!(lab.shown().0, ["ike:5"]);
}

#[tokio::test]
async fn move_of_an_old_sa_changes_no_reqid_of_its_peer() {
    let mut lab = Lab::new(&bounds());
    let (pair, _) = child(&mut lab).await;
    let next = between(&sa(Outbound, 0x501, 5, to(1)), HOME);
    lab.done(add(next.clone())).await;
    lab.done(NamedRequest::MoveSa(MoveSa { reqid: Some(6), ..update(&next, HOME) })).await;
    assert_eq!(lab.desk.own.peer("ike:5").unwrap().reqid, 6);
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, THERE))).await;
        assert_eq!(lab.desk.own.peer("ike:5").unwrap().reqid, 6);
    }
    let name = lab.desk.own.numbered(5).cloned();
    assert_eq!(name.as_deref(), Some("ike:5"), "the old SA has its reqid");
}

#[tokio::test]
async fn sas_that_moved_while_charon_was_not_connected_are_no_other_ones() {
    let mut lab = Lab::new(&bounds());
    let (pair, policy) = child(&mut lab).await;
    lab.resume().await;
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, THERE))).await;
    }
    let policy = AddPolicy { repeat: true, ..policy_between(&policy, THERE) };
    lab.done(Request::AddPolicy(policy)).await;
    lab.done(Request::Resumed).await;
    assert_eq!(lab.shown(), (vec!["ike:5".to_owned()], vec!["ike:5/1".to_owned()]));
    assert_eq!(ends(&lab), ["192.0.2.2 - 198.51.100.77"]);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 1 SAs");
    // Another charon knows none of them, whatever it says.
    lab.desk.begin(charon(2));
    let handles = lab.ledger.handles();
    let answer = lab.ask(Request::ResumeSas(handles.clone())).await;
    assert_eq!(answer.lacking, handles);
    let home = NamedRequest::MoveSa(update(&between(&pair[1], THERE), HOME));
    assert_eq!(lab.ask(home).await.status, Status::Unknown);
    assert_eq!(ends(&lab), ["192.0.2.2 - 198.51.100.77"]);
}

#[tokio::test]
async fn another_configuration_goes_by_the_ends_that_a_peer_has_now() {
    let mut lab = Lab::new(&bounds());
    let (pair, _) = child(&mut lab).await;
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, THERE))).await;
    }
    let more = "[[policy]]\nname = \"more\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                remote = [\"9.9.9.9\"]\n";
    lab.apply(&format!("{FILE}{more}{}", bounds())).await;
    assert_eq!(ends(&lab), ["192.0.2.2 - 198.51.100.77"]);
    assert_eq!(lab.daemon().picture().moves.get("ike:5"), Some(&1));
    let narrow = bounds().replace("198.51.100.0/24", "198.51.100.0-198.51.100.9");
    lab.apply(&format!("{FILE}{narrow}")).await;
    assert_eq!(lab.daemon().security_associations().await.len(), 0);
    assert_eq!(lab.shown(), (vec![], vec![]));
    // charon is told, and its policy is at the first ends: it runs again.
    assert_eq!(lab.ask(NamedRequest::QuerySa(pair[0].name)).await.status, Status::Unknown);
    let due = lab.desk.take_due();
    let ended = due.iter().filter(|report| matches!(report, Report::Expire { .. })).count();
    assert_eq!(ended, 2, "{due:?}");
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 0 SAs");
}

#[tokio::test]
async fn sas_that_move_while_a_change_waits_stay_there_when_it_is_rolled_back() {
    let mut lab = Lab::new(&bounds());
    let (pair, _) = child(&mut lab).await;
    let more = "[[policy]]\nname = \"more\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                remote = [\"9.9.9.9\"]\n";
    lab.apply_for(&format!("{FILE}{more}{}", bounds()), Some(Duration::from_secs(5))).await;
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, THERE))).await;
    }
    let still = lab.daemon().picture().pending.is_some();
    assert!(still, "the machine is too slow for this test: the change waits no more");
    let end = Instant::now() + Duration::from_secs(60);
    while lab.daemon().picture().config().policies.iter().any(|policy| policy.name == "more") {
        assert!(Instant::now() < end, "it is not rolled back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ends(&lab), ["192.0.2.2 - 198.51.100.77"]);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 1 SAs");
    assert_eq!(lab.daemon().security_associations().await.len(), 2);
}

#[tokio::test]
async fn charon_is_told_of_a_nat_that_maps_a_peer_of_its_own_elsewhere() {
    let mut lab = Lab::new(&bounds());
    let in_udp = |sa: &AddSa| AddSa { in_udp: true, ..between(sa, HOME) };
    let inbound = in_udp(&sa(Inbound, 0x600, 5, to(1)));
    lab.done(add(inbound.clone())).await;
    let picture = lab.daemon().picture();
    let (_, set) = picture.snapshot.sets().find(|(_, set)| set.peer == "ike:5").unwrap();
    assert!(set.may_move);
    let at = |address: &str| PeerAddress { address: address.parse().unwrap(), port: 7 };
    let spi = Spi::new(0x600).unwrap();
    assert_eq!(picture.compiled.may_have_moved(set.id, spi, at("198.51.100.10")), Ok(()));
    let beyond = picture.compiled.may_have_moved(set.id, spi, at("203.0.113.1")).unwrap_err();
    assert!(beyond.to_string().contains("[ike] does not admit"), "{beyond}");
    assert!(
        picture.compiled.may_have_moved(set.id, spi, at("198.51.100.1")).is_err(),
        "the file's"
    );
    let seen = SeenElsewhere {
        peer: "ike:5".into(),
        spi: Spi::new(0x600).unwrap(),
        at: at("198.51.100.10"),
    };
    let peer = "198.51.100.10:7".parse().unwrap();
    let told = lab.desk.elsewhere(&seen);
    let handle = lab.ledger.handle(inbound.name);
    assert_eq!(told, Some(Report::Mapping { handle, peer }));
}

#[tokio::test]
async fn a_peer_of_the_file_that_may_move_takes_over_the_ends_of_charons_own() {
    let mut lab = Lab::new(&bounds());
    let (pair, _) = child(&mut lab).await;
    let wide = |key: &str| {
        format!(
            "[peer.c]\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.5\"\nkeys = \"ike\"\n\
             suite = \"aes-128-gcm\"\n{key}\n[[policy]]\nname = \"c\"\npeer = \"c\"\n\
             local = [\"10.1.0.0/16\"]\nremote = [\"10.3.0.0/16\"]\n"
        )
    };
    let roaming = "encapsulation = \"udp\"\nbehind_nat = true";
    for (key, own) in [("moves_to = [\"203.0.113.0/24\"]", 1), ("moves_to = [\"any\"]", 0)] {
        lab.apply(&format!("{FILE}{}{}", wide(key), bounds())).await;
        assert_eq!(lab.shown().0.len(), own, "{key}");
    }
    assert_eq!(lab.ask(NamedRequest::DeleteSa(pair[0].name)).await.status, Status::Unknown);
    lab.apply(&format!("{FILE}{}", bounds())).await;
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
    lab.done(add(sa(Outbound, 0x501, 5, to(1)))).await;
    assert_eq!(lab.shown().0, ["ike:5"]);
    lab.apply(&format!("{FILE}{}{}", wide(roaming), bounds())).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
    assert_eq!(lab.daemon().security_associations().await.len(), 0);
    // From this address charon puts SAs for that peer alone, from the other its own.
    let refused = add(sa(Outbound, 0x502, 5, to(1)));
    lab.refused(refused, "leave out packets of policy \"c\"").await;
    let mut elsewhere = sa(Outbound, 0x503, 5, to(1));
    elsewhere.name.source = end("192.0.2.2");
    lab.done(add(elsewhere)).await;
    assert_eq!(ends(&lab), ["192.0.2.2 - 198.51.100.9"]);
    // Nothing moves to where the roaming peer may be.
    let source = end("192.0.2.2");
    let name = SaName { source, destination: end(REMOTE), spi: 0x503 };
    let (destination, in_udp, reqid, selectors) = (end("198.51.100.77"), false, None, None);
    let to_it = MoveSa { name, source: end(LOCAL), destination, in_udp, reqid, selectors };
    lab.refused(NamedRequest::MoveSa(to_it.clone()), "ends that a [peer.NAME] has").await;
    lab.done(NamedRequest::MoveSa(MoveSa { source, ..to_it })).await;
    assert_eq!(ends(&lab), ["192.0.2.2 - 198.51.100.77"]);
}
