//! Connections of charon's plugin: greeting, resuming, another charon, and missed reports.

use charon_link::{
    Answer, Charon, Hardness, NameSa, Report, Request, Status, UpdateSa, encode_request,
};
use control::KeyManager;
use policy::Direction;
use tokio::time::timeout;

use super::by_name::{NamedRequest, charon, issuer};
use super::desk::Desk;
use super::tests::{
    Inbound, LOCAL, Lab, Outbound, PATIENCE, REMOTE, add, address, all, sa, sa_name, trap,
};
use crate::backend::Backend;
use crate::sa_changes::SaDeletion;
use crate::sa_limits::Expiry;
use crate::who::Uid;

#[tokio::test]
async fn nothing_brings_back_an_sa_that_is_gone_or_has_ended() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    assert_eq!(plugin.status(&add(sa(Outbound, 0x500, 1))).await, Status::Done);
    assert_eq!(plugin.status(&add(sa(Outbound, 0x500, 2))).await, Status::Taken);
    assert_eq!(
        plugin.status(&NamedRequest::DeleteSa(sa_name(Outbound, 0x500))).await,
        Status::Done
    );
    assert_eq!(plugin.status(&add(sa(Outbound, 0x501, 1))).await, Status::KeyUsed);
    assert_eq!(plugin.status(&add(sa(Inbound, 0x501, 1))).await, Status::KeyUsed);
    // One that ends.
    assert_eq!(plugin.status(&add(sa(Outbound, 0x502, 3))).await, Status::Done);
    let spi = ipsec::Spi::new(0x502).unwrap();
    for hardness in [Hardness::Soft, Hardness::Hard] {
        let expiry = Expiry { direction: Direction::Outbound, spi, peer: "a".into(), hardness };
        lab.expiries.send(expiry).unwrap();
        let report = plugin.expiry(sa_name(Outbound, 0x502), hardness);
        assert_eq!(plugin.report().await, report);
    }
    let mut plugin = lab.reconnect(plugin).await;
    let names = [0x500, 0x502].map(|spi| sa_name(Outbound, spi));
    let lacking = plugin.resume(names).await;
    assert_eq!(lacking, names.map(|name| plugin.ledger.handle(name)));
    // Another run of the daemon takes nothing.
    plugin.incarnation ^= 1;
    assert_eq!(plugin.status(&add(sa(Outbound, 0x503, 4))).await, Status::OtherIncarnation);
    assert_eq!(lab.shown().await.len(), 1);
}

#[tokio::test]
async fn what_charon_deleted_while_it_was_not_connected_goes_when_it_has_named_the_others() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    let all = [sa(Inbound, 0x600, 1), sa(Outbound, 0x500, 2), sa(Outbound, 0x501, 3)];
    for sa in all.clone() {
        assert_eq!(plugin.status(&add(sa)).await, Status::Done);
    }
    let ends = Request::GetSpi { source: address(REMOTE), destination: address(LOCAL) };
    let spi = plugin.ask(&ends).await.spi.unwrap();
    let mut plugin = lab.reconnect(plugin).await;
    let kept = all.iter().map(|sa| sa.name).filter(|name| name.spi != 0x501);
    assert_eq!(plugin.resume(kept).await, []);
    assert_eq!(lab.shown().await.len(), 3);
    assert_eq!(plugin.status(&Request::Resumed).await, Status::Done);
    let left: Vec<_> = lab.shown().await.into_iter().map(|sa| sa.2).collect();
    assert_eq!(left, ["0x00000500", "0x00000600"]);
    // The reservation was not named either.
    let reserved = NamedRequest::DeleteSa(sa_name(Inbound, spi));
    assert_eq!(plugin.status(&reserved).await, Status::Unknown);
    assert_eq!(lab.told("charon_gone").len(), 1);
    assert_eq!(plugin.status(&Request::FlushSas).await, Status::Done);
    assert!(lab.shown().await.is_empty());
}

#[tokio::test]
async fn a_charon_that_begins_anew_is_asked_for_successors_and_they_replace_the_sas_before() {
    let lab = Lab::new();
    let mut desk = Desk::new(lab.daemon.clone(), issuer());
    desk.begin(charon(1));
    for sa in [sa(Inbound, 0x600, 1), sa(Outbound, 0x500, 2)] {
        assert_eq!(desk.answer(add(sa)).await.status, Status::Done);
    }
    assert_eq!(desk.answer(Request::AddPolicy(trap(all(), 4))).await.status, Status::Done);
    assert_eq!(desk.take_due(), [], "its own charon renews them");
    desk.begin(charon(2));
    assert_eq!(desk.answer(Request::Resumed).await.status, Status::Done);
    // They stay until there are others.
    assert_eq!(lab.shown().await.len(), 2);
    assert_eq!(desk.answer(Request::AddPolicy(trap(all(), 9))).await.status, Status::Done);
    let due = desk.take_due();
    let [Report::Acquire { reqid: 9, selectors }] = &due[..] else { panic!("{due:?}") };
    assert_eq!(selectors[1].to_string(), "10.2.0.0");
    // It may not have known its own trap yet: it is asked until there is one.
    assert_eq!(desk.take_due(), []);
    tokio::time::sleep_until(desk.next_try().expect("it is asked again")).await;
    desk.catch_up().await;
    assert_eq!(desk.take_due(), due);
    for sa in [sa(Inbound, 0x601, 3), sa(Outbound, 0x501, 4)] {
        assert_eq!(desk.answer(add(sa)).await.status, Status::Done);
    }
    let spis: Vec<_> = lab.shown().await.into_iter().map(|sa| sa.2).collect();
    // The old inbound one opens what is on its way.
    assert_eq!(spis, ["0x00000501", "0x00000600", "0x00000601"]);
    tokio::time::sleep_until(desk.next_try().expect("a last look")).await;
    desk.catch_up().await;
    assert_eq!((desk.take_due(), desk.next_try()), (vec![], None));
}

#[tokio::test]
async fn an_sa_that_somebody_else_deleted_keeps_no_successor_out() {
    let lab = Lab::new();
    let mut desk = Desk::new(lab.daemon.clone(), issuer());
    desk.begin(charon(1));
    assert_eq!(desk.answer(add(sa(Outbound, 0x500, 1))).await.status, Status::Done);
    let spi = ipsec::Spi::new(0x500).unwrap();
    let name = control::SaName { direction: Direction::Outbound, spi, peer: None };
    let deletion =
        SaDeletion { incarnation: String::new(), names: vec![name], manager: KeyManager::Api };
    lab.daemon.delete_sas(deletion, Uid(0)).await.unwrap();
    desk.begin(charon(2));
    assert_eq!(desk.answer(add(sa(Outbound, 0x501, 2))).await.status, Status::Done);
    assert_eq!(lab.shown().await.len(), 1);
}

#[tokio::test]
async fn what_charon_missed_is_told_when_it_can_act_on_it() {
    let lab = Lab::new();
    let mut desk = Desk::new(lab.daemon.clone(), issuer());
    desk.begin(charon(1));
    let handle = desk.answer(add(sa(Outbound, 0x500, 1))).await.handle.unwrap();
    let (spi, peer) = (ipsec::Spi::new(0x500).unwrap(), "a".into());
    let (direction, hardness) = (Direction::Outbound, Hardness::Soft);
    // Nobody is connected.
    assert!(desk.expired(&Expiry { direction, spi, peer, hardness }).is_some());
    desk.begin(charon(1));
    assert_eq!(desk.answer(Request::ResumeSas(vec![handle])).await.lacking, []);
    assert_eq!(desk.take_due(), [Report::Expire { handle, hardness }]);
    // A packet waits before charon has a policy for it.
    let asked = api::v1::Acquire {
        peer: "a".into(),
        source: "10.1.0.5".into(),
        destination: "10.2.0.9".into(),
        protocol: 1,
        ..api::v1::Acquire::default()
    };
    assert_eq!(desk.acquire(&asked), None);
    assert_eq!(desk.answer(Request::AddPolicy(trap(all(), 5))).await.status, Status::Done);
    let due = desk.take_due();
    assert!(matches!(due[..], [Report::Acquire { reqid: 5, .. }]), "{due:?}");
}

#[tokio::test]
async fn a_plugin_of_another_version_is_told_which_package_to_install() {
    let lab = Lab::new();
    let plugin = lab.connect();
    let mut hello = encode_request(3, 0, &Request::FlushSas).to_vec();
    hello[5] = 1;
    plugin.connection.send(&hello).await.unwrap();
    let answer = timeout(PATIENCE, plugin.connection.receive()).await.unwrap().unwrap().unwrap();
    assert_eq!((answer[5], answer[11]), (1, 3), "its version, its number");
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(text.contains("install lockgate-charon of release"), "{text}");
    assert!(lab.told("charon_refused").iter().any(|event| event.contains("this plugin version 1")));
}

#[tokio::test]
async fn handles_of_another_charon_name_nothing() {
    let lab = Lab::new();
    let mut desk = Desk::new(lab.daemon.clone(), issuer());
    desk.begin(charon(1));
    let handle = desk.answer(add(sa(Outbound, 0x500, 1))).await.handle.unwrap();
    let ends = Request::GetSpi { source: address(REMOTE), destination: address(LOCAL) };
    let reserved = desk.answer(ends.clone()).await.handle.unwrap();
    let hello = |number| {
        let (id, version) = (charon(number), "5.9.8".to_owned());
        Request::Hello(Charon { id, charon: version.clone(), plugin: version })
    };
    assert_eq!(desk.answer(hello(2)).await.status, Status::Done);
    let both = vec![handle, reserved];
    assert_eq!(desk.answer(Request::ResumeSas(both.clone())).await.lacking, both);
    let update = UpdateSa {
        handle,
        source: address(LOCAL),
        destination: address(REMOTE),
        in_udp: false,
        reqid: None,
        selectors: None,
    };
    let (reqid, ike, child) = (1, "gw-b".to_owned(), "net".to_owned());
    let names = NameSa { handle, reqid, ike, child };
    for asked in [
        Request::QuerySa(handle),
        Request::DeleteSa(handle),
        Request::DeleteSa(reserved),
        Request::UpdateSa(update),
        Request::NameSa(names),
    ] {
        assert_eq!(desk.answer(asked.clone()).await.status, Status::Unknown, "{asked:?}");
    }
    assert_eq!(desk.answer(Request::FlushSas).await.status, Status::Done);
    assert_eq!(desk.answer(Request::Resumed).await.status, Status::Done);
    assert_eq!(lab.shown().await.len(), 1, "the SA of the first charon stays to its limits");
    // No handle is issued twice, whatever became of its SA.
    let next = desk.answer(ends).await.handle.unwrap();
    assert!(next > handle && next > reserved);
    // The first charon again: the SA is its own, the reservation was released.
    assert_eq!(desk.answer(hello(1)).await.status, Status::Done);
    assert_eq!(desk.answer(Request::ResumeSas(both)).await.lacking, [reserved]);
}

#[tokio::test]
async fn one_charon_at_a_time_and_garbage_is_answered_or_ends_the_connection() {
    let lab = Lab::new();
    let mut plugin = lab.connect();
    assert_eq!(plugin.status(&Request::FlushSas).await, Status::Refused, "no hello");
    let mut second = lab.connect();
    assert_eq!(second.hello().await.status, Status::Taken);
    assert_eq!(plugin.hello().await.status, Status::Done);
    let good = encode_request(9, plugin.incarnation, &Request::FlushSas);
    let with = |place: usize, byte: u8| {
        let mut bytes = good.to_vec();
        bytes[place] = byte;
        bytes
    };
    let status = |answer: Option<Answer>| answer.map(|answer| answer.status);
    assert_eq!(plugin.hello().await.status, Status::Refused, "one hello is enough");
    assert_eq!(status(plugin.ask_bytes(&with(7, 77)).await), Some(Status::Malformed));
    assert_eq!(status(plugin.ask_bytes(&good[..24 - 1]).await), None, "no header");
    let mut plugin = lab.plugin().await;
    let long = [&good[..], &vec![0; 9000]].concat();
    assert_eq!(status(plugin.ask_bytes(&long).await), Some(Status::Malformed));
    assert_eq!(status(plugin.ask_bytes(&[0; 100]).await), None);
    assert!(!lab.told("charon_refused").is_empty());
}

#[tokio::test]
async fn charon_hears_of_expiries_among_missed_messages() {
    let lab = Lab::new();
    let mut plugin = lab.plugin().await;
    for (spi, key) in [(0x500, 1), (0x501, 2), (0x502, 3)] {
        assert_eq!(plugin.status(&add(sa(Outbound, spi, key))).await, Status::Done);
    }
    let snapshot = lab.daemon.snapshot().await;
    let ended = snapshot.outbound().find(|sa| sa.spi.value() == 0x501).unwrap();
    ended.allowance.as_ref().unwrap().account.end(ipsec::Limit::Seconds);
    // More messages than the channel holds: none of them is about the ended SA.
    let (direction, hardness) = (Direction::Outbound, Hardness::Soft);
    for spi in 0x900..0x900 + 40 {
        let spi = ipsec::Spi::new(spi).unwrap();
        lab.expiries.send(Expiry { direction, spi, peer: "a".into(), hardness }).unwrap();
    }
    let hardness = Hardness::Hard;
    let report = plugin.expiry(sa_name(Outbound, 0x501), hardness);
    assert_eq!(plugin.report().await, report);
    // One report only: the next one is about another SA.
    let spi = ipsec::Spi::new(0x502).unwrap();
    lab.expiries.send(Expiry { direction, spi, peer: "a".into(), hardness }).unwrap();
    let report = plugin.expiry(sa_name(Outbound, 0x502), hardness);
    assert_eq!(plugin.report().await, report);
}
