//! SAs of charon's that move, and what charon is told of peers that were seen elsewhere.

use std::net::SocketAddr;

use charon_link::{AddPolicy, AddSa, PolicyAction, Report, Request, SaName, Status};
use control::PeerAddress;
use ipsec::Spi;

use super::by_name::{MoveSa, NamedRequest, charon, issuer};
use super::desk::Desk;
use super::tests::{Inbound, Lab, Outbound, Plugin, REMOTE, add, address, all, sa, selector, trap};
use crate::backend::Backend;
use crate::gateway::SeenElsewhere;

const HOME: [&str; 2] = ["192.0.2.1:4500", "203.0.113.9:4500"];

/// Source and destination of what an SA between two ends carries.
fn ends_of(direction: charon_link::SaDirection, ends: [&str; 2]) -> [SocketAddr; 2] {
    let [local, remote] = ends.map(address);
    match direction {
        Outbound => [local, remote],
        Inbound => [remote, local],
    }
}

/// An SA for peer mobile.
fn mobile(direction: charon_link::SaDirection, spi: u32, key: u8, ends: [&str; 2]) -> AddSa {
    let mut selectors =
        [vec![selector("10.1.0.0", "10.1.255.255")], vec![selector("10.7.0.0", "10.7.255.255")]];
    if direction == Inbound {
        selectors.reverse();
    }
    let [source, destination] = ends_of(direction, ends);
    let name = SaName { source, destination, spi };
    AddSa { name, selectors, ..sa(direction, spi, key) }
}

fn update(of: &AddSa, ends: [&str; 2]) -> MoveSa {
    let [source, destination] = ends_of(of.direction, ends);
    MoveSa { name: of.name, source, destination, in_udp: of.in_udp, reqid: None, selectors: None }
}

/// The SA by the name that it has between other ends.
fn named(of: &AddSa, ends: [&str; 2]) -> SaName {
    let [source, destination] = ends_of(of.direction, ends);
    SaName { source, destination, ..of.name }
}

/// SPI and ends of each SA, as they are shown.
async fn shown(lab: &Lab) -> Vec<(String, String)> {
    let all = lab.daemon.security_associations().await;
    let port = |port: Option<u32>| port.map_or(String::new(), |port| format!(":{port}"));
    all.into_iter()
        .map(|sa| {
            let (local, remote) = (port(sa.local_port), port(sa.remote_port));
            (sa.spi, format!("{}{local} {}{remote}", sa.local, sa.remote))
        })
        .collect()
}

async fn put_pair(plugin: &mut Plugin) -> [AddSa; 2] {
    let pair = [mobile(Inbound, 0x600, 1, HOME), mobile(Outbound, 0x500, 2, HOME)];
    for sa in &pair {
        assert_eq!(plugin.status(&add(sa.clone())).await, Status::Done);
    }
    pair
}

#[tokio::test]
async fn sas_move_where_the_section_says_with_their_numbers_windows_and_use() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let pair = put_pair(&mut plugin).await;
    let before = lab.daemon.snapshot().await;
    let (out, inbound) = (before.outbound().next().unwrap(), before.inbound().next().unwrap());
    out.sequence.draw(5).whole().unwrap();
    inbound.window.commit(77).unwrap();
    out.allowance.as_ref().unwrap().take(3, 300, || std::iter::repeat_n(100, 3));
    // Charon's own way: a policy that drops stands in meanwhile.
    let policy = AddPolicy { spi: 0x500, ..trap(all(), 4) };
    assert_eq!(plugin.status(&Request::AddPolicy(policy.clone())).await, Status::Done);
    let shunt = AddPolicy { action: PolicyAction::Drop, ..policy.clone() };
    assert_eq!(plugin.status(&Request::AddPolicy(shunt.clone())).await, Status::Done);
    assert_eq!(plugin.status(&Request::DeletePolicy(shunt)).await, Status::Unknown);
    let there = ["192.0.2.2:4500", "203.0.113.77:4500"];
    for sa in &pair {
        let asked = NamedRequest::MoveSa(update(sa, there));
        assert_eq!(plugin.status(&asked).await, Status::Done);
    }
    let ends = |text: &str| ["0x00000500", "0x00000600"].map(|spi| (spi.into(), text.into()));
    assert_eq!(shown(&lab).await, ends("192.0.2.2 203.0.113.77"));
    let after = lab.daemon.snapshot().await;
    let (out, inbound) = (after.outbound().next().unwrap(), after.inbound().next().unwrap());
    assert_eq!(out.sequence.draw(1).whole(), Ok(6));
    assert!(inbound.window.check(77).is_err() && inbound.window.check(78).is_ok());
    assert_eq!(
        after.set(after.sets().find(|(_, set)| set.peer == "mobile").unwrap().0).tunnel,
        out.encapsulation.tunnel
    );
    // A move of the SA that seals is one of the peer.
    assert_eq!(lab.daemon.picture().moves.get("mobile"), Some(&1));
    // Charon's name for it is the new one, in requests and in reports.
    let used = plugin.ask(&NamedRequest::QuerySa(named(&pair[1], there))).await.usage.unwrap();
    assert_eq!((used.packets, used.bytes), (3, 300));
    assert_eq!(plugin.status(&NamedRequest::QuerySa(pair[1].name)).await, Status::Unknown);
    // Into UDP: the peer is behind a NAT now.
    for sa in &pair {
        let nat = ["192.0.2.2:4500", "203.0.113.78:61000"];
        let asked = MoveSa { name: named(sa, there), in_udp: true, ..update(sa, nat) };
        assert_eq!(plugin.status(&NamedRequest::MoveSa(asked)).await, Status::Done);
    }
    assert_eq!(shown(&lab).await, ends("192.0.2.2:4500 203.0.113.78:61000"));
    // New ones come between the present ends, or between others.
    let further = ["192.0.2.1:4500", "203.0.113.79:4500"];
    let next = [mobile(Inbound, 0x601, 3, further), mobile(Outbound, 0x501, 4, further)];
    assert_eq!(plugin.status(&add(next[0].clone())).await, Status::Done);
    assert_eq!(shown(&lab).await[0].1, "192.0.2.2:4500 203.0.113.78:61000", "what seals stays");
    assert_eq!(plugin.status(&add(next[1].clone())).await, Status::Done);
    let (old, new) = ("192.0.2.2:4500 203.0.113.78:61000", "192.0.2.1 203.0.113.79");
    let expected = [("500", old), ("501", new), ("600", old), ("601", new)];
    let expected = expected.map(|(spi, ends)| (format!("0x00000{spi}"), ends.to_owned()));
    assert_eq!(shown(&lab).await, expected);
    for (sa, ends) in [(&pair[1], ["192.0.2.2:4500", "203.0.113.78:61000"]), (&next[1], further)] {
        let gone = NamedRequest::DeleteSa(named(sa, ends));
        assert_eq!(plugin.status(&gone).await, Status::Done);
        assert_eq!(plugin.status(&gone).await, Status::Unknown);
    }
    assert_eq!(lab.shown().await.len(), 2);
    // The policy that stood in took it not along.
    assert_eq!(plugin.status(&Request::DeletePolicy(policy)).await, Status::Done);
    assert!(lab.told("charon_refused").is_empty(), "{:?}", lab.told("charon_refused"));
}

#[tokio::test]
async fn a_move_that_the_section_does_not_allow_is_refused_and_changes_nothing() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let [_, out] = put_pair(&mut plugin).await;
    let fixed = sa(Outbound, 0x700, 9);
    assert_eq!(plugin.status(&add(fixed.clone())).await, Status::Done);
    let before = shown(&lab).await;
    let rows = [
        (update(&out, ["192.0.2.1:500", "198.51.100.9:500"]), "`moves_to` has 203.0.113.0/24"),
        (update(&out, ["192.0.2.3:500", HOME[1]]), "`local_moves_to` has 192.0.2.2"),
        (update(&out, [HOME[0], "10.7.0.5:500"]), "the networks behind the peer"),
        (MoveSa { in_udp: true, ..update(&out, [HOME[0], "203.0.113.255:0"]) }, "UDP port 0"),
        (update(&fixed, ["192.0.2.1:500", "198.51.100.2:500"]), "there is no `moves_to`"),
        (update(&fixed, ["192.0.2.9:500", REMOTE]), "there is no `local_moves_to`"),
        (MoveSa { in_udp: true, ..update(&fixed, ["192.0.2.1:4500", REMOTE]) }, "`moves_to`"),
        (
            MoveSa {
                selectors: Some([vec![selector("10.1.0.0", "10.1.0.9")], out.selectors[1].clone()]),
                ..update(&out, HOME)
            },
            "leave out packets of policy \"to-mobile\"",
        ),
    ];
    for (asked, text) in rows {
        let answer = plugin.ask(&NamedRequest::MoveSa(asked.clone())).await;
        assert_eq!(answer.status, Status::Refused, "{asked:?}");
        assert!(answer.text.contains(text), "{}", answer.text);
    }
    assert_eq!(shown(&lab).await, before);
    assert!(lab.daemon.picture().moves.is_empty());
    // Where it is: nothing to do, whatever IKE's own port is.
    let stay = update(&fixed, ["192.0.2.1:4500", "198.51.100.1:4500"]);
    assert_eq!(plugin.status(&NamedRequest::MoveSa(stay)).await, Status::Done);
    // Nor are SAs put there.
    let elsewhere = mobile(Outbound, 0x501, 4, [HOME[0], "203.0.114.1:500"]);
    assert_eq!(plugin.status(&add(elsewhere)).await, Status::Refused);
    let behind = mobile(Outbound, 0x501, 5, [HOME[0], "10.7.0.5:500"]);
    assert_eq!(plugin.status(&add(behind)).await, Status::Refused);
    assert_eq!(shown(&lab).await, before);
}

#[tokio::test]
async fn charon_is_told_once_of_a_peer_that_was_seen_elsewhere() {
    let lab = Lab::new();
    let mut desk = Desk::new(lab.daemon.clone(), issuer());
    desk.begin(charon(1));
    let inbound = AddSa { in_udp: true, ..mobile(Inbound, 0x600, 1, HOME) };
    let handle = desk.answer(add(inbound.clone())).await.handle.unwrap();
    let seen = |spi: u32, at: &str| {
        let at: SocketAddr = address(at);
        let at = PeerAddress { address: at.ip(), port: at.port() };
        SeenElsewhere { peer: "mobile".into(), spi: Spi::new(spi).unwrap(), at }
    };
    assert_eq!(desk.elsewhere(&seen(0x600, HOME[1])), None, "charon has it there");
    assert_eq!(desk.elsewhere(&seen(0x601, "203.0.113.9:7")), None, "none of charon's");
    let report = |at: &str| Some(Report::Mapping { handle, peer: address(at) });
    for at in ["203.0.113.9:7", "203.0.113.10:7"] {
        assert_eq!(desk.elsewhere(&seen(0x600, at)), report(at));
        assert_eq!(desk.elsewhere(&seen(0x600, at)), None, "once");
    }
    // A charon that has not named the SA knows nothing of it.
    desk.begin(charon(2));
    assert_eq!(desk.elsewhere(&seen(0x600, "203.0.113.9:7")), None);
    // Over the socket.
    let mut plugin = lab.plugin().await;
    let second = AddSa { in_udp: true, ..mobile(Inbound, 0x602, 3, HOME) };
    let handle = plugin.ask(&add(second)).await.handle.unwrap();
    lab.elsewhere.send(seen(0x602, "203.0.113.9:8")).unwrap();
    let peer = address("203.0.113.9:8");
    assert_eq!(plugin.report().await, Report::Mapping { handle, peer });
}

/// The connection broke while charon moved the SAs: the plugin moves them once it is back.
#[tokio::test]
async fn an_sa_that_moved_while_charon_was_not_connected_is_no_other_one() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let pair = put_pair(&mut plugin).await;
    let mut plugin = lab.reconnect(plugin).await;
    let there = [HOME[0], "203.0.113.77:4500"];
    assert_eq!(plugin.resume(pair.iter().map(|sa| sa.name)).await, []);
    for sa in &pair {
        let moved = NamedRequest::MoveSa(update(sa, there));
        assert_eq!(plugin.status(&moved).await, Status::Done);
    }
    assert_eq!(plugin.status(&Request::Resumed).await, Status::Done);
    let shown = shown(&lab).await;
    assert_eq!(shown.len(), 2);
    assert!(shown.iter().all(|sa| sa.1 == "192.0.2.1 203.0.113.77"), "{shown:?}");
}
