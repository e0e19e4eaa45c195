//! SAs that are put, replaced and deleted while the gateway runs: what changes, what does not, and
//! what is refused.

mod card;
mod gateway;
mod moves;
mod reserved;
mod twin;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use control::{
    ChangedSas, GoneReason, GoneSa, KeyManager, LINGER_NS, MAX_OUTBOUND_OF_PEER, MOST_LINGER_NS,
    OpeningWorker, PutSa, SaName, SaOwner,
};
use dataplane::counters::CounterRoom;
use dataplane::{Snapshot, VacatedSlots, WorkerShare};
use gateway::{
    Gateway, SECOND, api_peer, between_gateways, instead_of, name, of, peer, peers, sa, spi,
};
use ipsec::{Lifetime, Limits, SaId, SequenceNumbers, Suite};
use keystate::{KeyOrigin, KeyUsed};
use policy::Direction::{self, Inbound, Outbound};
use zeroize::Zeroizing;

#[test]
fn an_sa_that_is_put_changes_nothing_but_its_set() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]).unwrap();
    let (compiled, before) = (gateway.compiled.copied(), gateway.snapshot.clone());
    let at = gateway.all();
    gateway.put(vec![of("b", sa(Outbound, 500, 3)), of("b", sa(Inbound, 601, 4))]).unwrap();
    let after = &gateway.snapshot;
    assert!(Arc::ptr_eq(&compiled.spd, &gateway.compiled.spd));
    assert_eq!(before.generation(), after.generation());
    assert_eq!(before.route_generation(), after.route_generation());
    assert_eq!(CounterRoom::of(&before), CounterRoom::of(after));
    let gone = VacatedSlots::between(&before, after);
    assert_eq!((gone.ports.len(), gone.outbound.len(), gone.inbound.len()), (0, 0, 0));
    let now = gateway.all();
    assert!(at.iter().all(|(name, slot)| now.get(name) == Some(slot)));
    for sa in before.outbound() {
        assert!(Arc::ptr_eq(sa, after.sad().outbound_sa(sa.id)));
    }
    for sa in before.inbound() {
        assert!(Arc::ptr_eq(sa, after.sad().inbound_sa(sa.id)));
    }
    gateway.delete(&[name(Inbound, 601)]).unwrap();
    let gone = VacatedSlots::between(after_of(&before, &now, 601), &gateway.snapshot);
    assert!(gone.outbound.is_empty() && gone.inbound.is_empty());
    assert_eq!(gateway.all().len(), now.len() - 1);
}

/// The snapshot before, which lacks the SA too.
fn after_of<'s>(
    before: &'s Snapshot,
    now: &HashMap<(Direction, u32, String), SaId>,
    value: u32,
) -> &'s Snapshot {
    assert!(now.contains_key(&(Inbound, value, "b".into())));
    assert!(before.inbound_by_spi(spi(value)).is_none());
    before
}

#[test]
fn sas_have_what_they_were_put_with_and_else_what_the_peers_section_says() {
    let more =
        "keys = \"api\"\nesn = true\nreplay_window = 64\n[peer.a.lifetime]\nhard_packets = 9";
    let mut gateway = Gateway::new(&peer("a", "198.51.100.1", more));
    let limits = Limits { bytes: Some(u64::MAX), ..Limits::NONE };
    let lifetime = Some(Lifetime { soft: limits, hard: limits });
    let key = Zeroizing::new(vec![9; 36]);
    let numbers = Some(SequenceNumbers::Short);
    gateway
        .put(vec![
            sa(Outbound, 500, 1),
            sa(Inbound, 600, 2),
            PutSa { lifetime, suite: Some(Suite::Aes256Gcm), key, ..sa(Outbound, 501, 0) },
            PutSa { window: Some(4096), numbers, ..sa(Inbound, 601, 3) },
        ])
        .unwrap();
    let out: Vec<_> = gateway.snapshot.outbound().collect();
    let inbound: Vec<_> = gateway.snapshot.inbound().collect();
    assert_eq!((out[0].suite, out[1].suite), (Suite::Aes128Gcm, Suite::Aes256Gcm));
    assert_eq!(out[0].sequence.numbers(), SequenceNumbers::Extended);
    assert_eq!((inbound[0].window.size(), inbound[1].window.size()), (64, 4096));
    assert_eq!(inbound[1].window.numbers(), SequenceNumbers::Short);
    let hard = |place: usize| out[place].allowance.as_ref().unwrap().lifetime.hard;
    assert_eq!((hard(0).packets, hard(0).bytes), (Some(9), None));
    assert_eq!((hard(1).packets, hard(1).bytes), (None, Some(u64::MAX)));
    // Time counts from the put, not from the first packet.
    let used = out[0].allowance.as_ref().unwrap().account.used(gateway.now_ns + 7 * SECOND);
    assert_eq!(used.seconds, Some(7));
    assert_eq!(
        gateway.compiled.owner_of_outbound(out[0].id),
        SaOwner::Program { manager: KeyManager::Api, put_ns: SECOND }
    );
}

#[test]
fn a_replaced_outbound_sa_is_gone_at_once_and_the_other_stands_in_its_place() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Outbound, 500, 1), sa(Outbound, 501, 2), sa(Outbound, 502, 3)]).unwrap();
    assert_eq!(gateway.order("a"), [500, 501, 502]);
    let gone = gateway.put(vec![instead_of(501, sa(Outbound, 503, 4))]).unwrap();
    assert_eq!(gateway.order("a"), [500, 503, 502]);
    let (direction, peer, reason) = (Outbound, "a".into(), GoneReason::Replaced);
    assert_eq!(gone, [GoneSa { direction, spi: spi(501), peer, reason }]);
    // Nothing waits: there is nothing to retire.
    assert!(!gateway.compiled.has_replaced());
    gateway.delete(&[name(Outbound, 500)]).unwrap();
    assert_eq!(gateway.order("a"), [503, 502]);
}

#[test]
fn a_replaced_inbound_sa_opens_until_5_s_after_the_first_packet_of_its_replacement() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Inbound, 600, 1)]).unwrap();
    gateway.receives(600, 1);
    gateway.put(vec![instead_of(600, sa(Inbound, 601, 2))]).unwrap();
    assert_eq!(gateway.pass(20 * SECOND), []);
    gateway.receives(601, 1);
    assert_eq!(gateway.pass(SECOND), []);
    assert_eq!(gateway.pass(LINGER_NS - 1), []);
    assert!(gateway.opens(600));
    let (direction, peer, reason) = (Inbound, "a".into(), GoneReason::Replaced);
    assert_eq!(gateway.pass(1), [GoneSa { direction, spi: spi(600), peer, reason }]);
    assert!(!gateway.opens(600) && gateway.opens(601));
    assert_eq!(gateway.pass(MOST_LINGER_NS), []);
}

#[test]
fn one_sa_replaces_several_and_inbound_ones_open_until_its_packets_come() {
    let mut gateway = Gateway::new(&peers());
    let all = |direction, first: u32| {
        (0..4).map(move |n| sa(direction, first + n, first + n)).collect::<Vec<_>>()
    };
    gateway.put(all(Outbound, 500)).unwrap();
    gateway.put(all(Inbound, 600)).unwrap();
    let instead = |first: u32, fresh: PutSa| {
        let replaces = [3, 1, 2].map(|number| spi(first + number)).to_vec();
        PutSa { replaces, ..fresh }
    };
    let mut gone = gateway.put(vec![instead(500, sa(Outbound, 510, 1))]).unwrap();
    gone.sort_by_key(|gone| gone.spi.value());
    let gone: Vec<u32> = gone.into_iter().map(|gone| gone.spi.value()).collect();
    assert_eq!((gone, gateway.order("a")), (vec![501, 502, 503], vec![500, 510]));
    assert_eq!(gateway.put(vec![instead(600, sa(Inbound, 610, 2))]).unwrap(), []);
    assert_eq!(gateway.pass(20 * SECOND), []);
    assert!((600..604).all(|value| gateway.opens(value)));
    gateway.receives(610, 1);
    assert_eq!(gateway.pass(1), []);
    assert_eq!(gateway.pass(LINGER_NS).len(), 3);
    assert!(gateway.opens(600) && gateway.opens(610));
    // All or nothing: one of them is unknown.
    assert!(gateway.put(vec![instead(600, sa(Inbound, 611, 3))]).is_err());
    assert!(!gateway.opens(611));
}

#[test]
fn a_replacement_that_never_sees_a_packet_lets_the_old_sa_open_for_300_s() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Inbound, 600, 1)]).unwrap();
    gateway.put(vec![instead_of(600, sa(Inbound, 601, 2))]).unwrap();
    assert_eq!(gateway.pass(MOST_LINGER_NS - 1), []);
    let gone = gateway.pass(1);
    assert_eq!((gone.len(), gone[0].reason), (1, GoneReason::ReplacementSilent));
    assert!(!gateway.opens(600) && gateway.opens(601));
}

/// The replacement itself was replaced before the peer used it.
#[test]
fn packets_of_a_later_replacement_count_and_so_do_those_of_either_of_two() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Inbound, 600, 1)]).unwrap();
    gateway.put(vec![instead_of(600, sa(Inbound, 601, 2))]).unwrap();
    gateway.put(vec![instead_of(601, sa(Inbound, 602, 3))]).unwrap();
    gateway.put(vec![instead_of(600, sa(Inbound, 603, 4))]).unwrap();
    gateway.receives(602, 5);
    assert_eq!(gateway.pass(1), []);
    let mut gone: Vec<u32> = gateway.pass(LINGER_NS).iter().map(|sa| sa.spi.value()).collect();
    gone.sort_unstable();
    assert_eq!(gone, [600, 601]);
    gateway.put(vec![sa(Inbound, 700, 5)]).unwrap();
    for (value, key) in [(701, 6), (702, 7)] {
        gateway.put(vec![instead_of(700, sa(Inbound, value, key))]).unwrap();
    }
    gateway.delete(&[name(Inbound, 702)]).unwrap();
    gateway.receives(701, 1);
    gateway.pass(1);
    assert_eq!(gateway.pass(LINGER_NS).len(), 1);
    assert!(!gateway.opens(700) && gateway.opens(701));
}

#[test]
fn what_runs_already_is_put_again_without_any_change() {
    let mut gateway = Gateway::new(&peers());
    let pair = || vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)];
    gateway.put(pair()).unwrap();
    let plan = gateway.compiled.plan_put(pair()).unwrap();
    assert_eq!((plan.unchanged(), plan.fingerprints().len()), (2, 0));
    // Its predecessor may be gone by now.
    let again = instead_of(400, sa(Outbound, 500, 1));
    assert_eq!(gateway.compiled.plan_put(vec![again]).unwrap().unchanged(), 1);
    let limits = Limits { packets: Some(1), ..Limits::NONE };
    let limited = Some(Lifetime { soft: Limits::NONE, hard: limits });
    let others = [
        sa(Outbound, 500, 3),
        PutSa { numbers: Some(SequenceNumbers::Extended), ..sa(Outbound, 500, 1) },
        PutSa { lifetime: limited, ..sa(Outbound, 500, 1) },
        sa(Inbound, 600, 3),
        PutSa { window: Some(64), ..sa(Inbound, 600, 2) },
        of("b", sa(Inbound, 600, 2)),
    ];
    for other in others {
        let refused = gateway.compiled.plan_put(vec![other]).err().unwrap();
        assert_eq!(refused.why.word(), "spi_taken", "{refused}");
        assert!(refused.to_string().contains("of peer a (owner: api)"), "{refused}");
    }
}

#[test]
fn senseless_puts_are_refused_and_change_nothing() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]).unwrap();
    let limit = |soft, hard| {
        let limits = |packets| Limits { packets, ..Limits::NONE };
        Some(Lifetime { soft: limits(soft), hard: limits(hard) })
    };
    let short = || Zeroizing::new(vec![1; 19]);
    let suite = Some(Suite::Null);
    let rows: Vec<(Vec<PutSa>, usize, &str, &str)> = vec![
        (vec![of("aa", sa(Outbound, 501, 9))], 0, "unknown_peer", "did you mean \"a\"?"),
        (vec![of("f", sa(Outbound, 501, 9))], 0, "file_keys", "keys = \"api\""),
        (vec![PutSa { key: short(), ..sa(Inbound, 601, 9) }], 0, "bad_key", "20 bytes"),
        (vec![PutSa { suite, ..sa(Inbound, 601, 9) }], 0, "bad_suite", "no integrity"),
        (vec![PutSa { window: Some(33), ..sa(Inbound, 601, 9) }], 0, "bad_window", "33 packets"),
        (
            vec![PutSa { lifetime: limit(None, Some(0)), ..sa(Outbound, 501, 9) }],
            0,
            "bad_limit",
            "0",
        ),
        (
            vec![PutSa { lifetime: limit(Some(2), Some(1)), ..sa(Outbound, 501, 9) }],
            0,
            "bad_limit",
            "soft limit 2 is above hard limit 1",
        ),
        (vec![sa(Inbound, 0x2001, 9)], 0, "spi_taken", "of peer f (owner: file)"),
        (vec![sa(Inbound, 601, 8), sa(Inbound, 601, 9)], 1, "twice", "comes twice"),
        (vec![sa(Outbound, 501, 8), sa(Outbound, 501, 9)], 1, "twice", "comes twice"),
        (vec![instead_of(499, sa(Outbound, 501, 9))], 0, "unknown_sa", "no outbound SA 0x000001f3"),
        (vec![instead_of(500, sa(Inbound, 601, 9))], 0, "unknown_sa", "no inbound SA"),
        (vec![of("b", instead_of(500, sa(Outbound, 501, 9)))], 0, "unknown_sa", "peer b"),
        (
            vec![instead_of(500, sa(Outbound, 501, 8)), instead_of(500, sa(Outbound, 502, 9))],
            1,
            "unknown_sa",
            "nothing replaces it",
        ),
    ];
    let before = gateway.all();
    for (asked, place, word, text) in rows {
        let refused = gateway.compiled.plan_put(asked).err().unwrap();
        assert_eq!((refused.place, refused.why.word()), (place, word), "{refused}");
        assert!(refused.to_string().contains(text), "{text}: {refused}");
    }
    assert_eq!(gateway.all(), before);
    // The largest limits are limits, and soft may be hard.
    let most = limit(Some(u64::MAX), Some(u64::MAX));
    gateway.put(vec![PutSa { lifetime: most, ..sa(Outbound, 501, 9) }]).unwrap();
    let one = limit(Some(1), Some(1));
    gateway.put(vec![PutSa { lifetime: one, ..sa(Outbound, 502, 10) }]).unwrap();
}

#[test]
fn sas_of_key_files_are_neither_replaced_nor_deleted() {
    let mut gateway = Gateway::new(&peers());
    let refused = gateway.delete(&[name(Inbound, 0x2001)]).unwrap_err();
    assert!(refused.to_string().contains("key file of peer f"), "{refused}");
    let unknown = gateway.delete(&[name(Outbound, 0x2001)]).unwrap_err();
    assert_eq!(unknown.word(), "unknown_sa");
    gateway.put(vec![sa(Outbound, 500, 1), of("b", sa(Outbound, 500, 2))]).unwrap();
    let two = gateway.delete(&[name(Outbound, 500)]).unwrap_err();
    assert!(two.word() == "ambiguous" && two.to_string().contains("one of a, b"), "{two}");
    // All or none.
    let of_b = SaName { peer: Some("b".into()), ..name(Outbound, 500) };
    let before = gateway.all();
    gateway.delete(&[of_b.clone(), name(Inbound, 999)]).unwrap_err();
    gateway.delete(&[of_b.clone(), of_b.clone()]).unwrap_err();
    assert_eq!(gateway.all(), before);
    assert_eq!(gateway.delete(&[of_b]).unwrap()[0].reason, GoneReason::Deleted);
    assert_eq!((gateway.order("a"), gateway.order("b")), (vec![500], vec![]));
}

#[test]
fn two_peers_at_one_place_share_no_outbound_spi() {
    let peers = [api_peer("a", "198.51.100.1"), api_peer("b", "198.51.100.1")].concat();
    let mut gateway = Gateway::new(&peers);
    gateway.put(vec![sa(Outbound, 500, 1)]).unwrap();
    let refused = gateway.put(vec![of("b", sa(Outbound, 500, 2))]).unwrap_err();
    assert_eq!(refused.word(), "spi_taken");
    let both = vec![sa(Outbound, 501, 3), of("b", sa(Outbound, 501, 4))];
    assert_eq!(gateway.put(both).unwrap_err().word(), "twice");
}

#[test]
fn a_key_is_put_once_from_boot_to_boot_in_either_direction() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]).unwrap();
    gateway.delete(&[name(Outbound, 500), name(Inbound, 600)]).unwrap();
    for again in [sa(Outbound, 500, 1), sa(Inbound, 600, 1), sa(Inbound, 600, 2)] {
        let plan = gateway.compiled.plan_put(vec![again]).unwrap();
        let refused =
            gateway.keys.use_all_once(&plan.fingerprints(), KeyOrigin::NamedRun).unwrap_err();
        assert!(matches!(refused, KeyUsed::PutBefore { .. }));
    }
    let of_file = PutSa { key: Zeroizing::new(vec![0xf1; 20]), ..sa(Inbound, 600, 0) };
    let plan = gateway.compiled.plan_put(vec![of_file]).unwrap();
    let refused = gateway.keys.use_all_once(&plan.fingerprints(), KeyOrigin::NamedRun).unwrap_err();
    assert!(matches!(refused, KeyUsed::FileKey { .. }));
}

/// SPI of the SA that each of two workers seals with.
fn sealing(gateway: &Gateway, peer: &str) -> [u32; 2] {
    let (_, set) = gateway.snapshot.sets().find(|(_, set)| set.peer == peer).unwrap();
    [0, 1].map(|worker| {
        let sa = gateway.snapshot.sealing_sa(set, WorkerShare { worker, workers: 2 }).unwrap();
        gateway.snapshot.outbound_sa(sa).spi.value()
    })
}

#[test]
fn the_newest_lasting_sa_of_ike_seals_for_all_workers_and_sas_of_the_api_take_turns() {
    let ike = |more: &str| peer("ike", "198.51.100.9", &format!("keys = \"ike\"{more}"));
    let mut gateway = Gateway::new(&[peers(), ike("")].concat());
    let hard = Limits { packets: Some(10), ..Limits::NONE };
    let lifetime = Some(Lifetime { soft: Limits::NONE, hard });
    let of_ike = |value: u32, key: u32| {
        let sa = of("ike", sa(Outbound, value, key));
        PutSa { manager: KeyManager::Ike, lifetime, ..sa }
    };
    for (value, key) in [(800, 1), (801, 2), (802, 3)] {
        gateway.put(vec![of_ike(value, key)]).unwrap();
        assert_eq!(sealing(&gateway, "ike"), [value; 2]);
        gateway.put(vec![sa(Outbound, value, key + 10)]).unwrap();
    }
    assert_eq!(sealing(&gateway, "a"), [800, 801]);
    // A replacement of the oldest is the newest.
    gateway.put(vec![instead_of(800, of_ike(803, 4))]).unwrap();
    assert_eq!((gateway.order("ike"), sealing(&gateway, "ike")), (vec![801, 802, 803], [803; 2]));
    // A limit is reached.
    let use_up = |gateway: &Gateway, value: u32| {
        let mut limited = gateway.snapshot.outbound().filter(|sa| sa.spi == spi(value));
        let allowance = limited.find_map(|sa| sa.allowance.as_ref()).unwrap();
        allowance.take(10, 10, || std::iter::repeat_n(1, 10));
    };
    use_up(&gateway, 803);
    assert_eq!(sealing(&gateway, "ike"), [802; 2]);
    gateway.apply(&[ike("\ndscp = 8"), peers()].concat()).unwrap();
    assert_eq!(sealing(&gateway, "ike"), [802; 2], "another configuration changes no order");
    let gone = SaName { peer: Some("ike".into()), ..name(Outbound, 802) };
    gateway.delete(&[gone]).unwrap();
    assert_eq!(sealing(&gateway, "ike"), [801; 2]);
    // Without a lasting SA packets wait, and charon is asked.
    let seals = |gateway: &Gateway| {
        let (_, set) = gateway.snapshot.sets().find(|(_, set)| set.peer == "ike").unwrap();
        gateway.snapshot.seals(set)
    };
    assert!(seals(&gateway));
    use_up(&gateway, 801);
    assert!(!seals(&gateway));
}

#[test]
fn an_inbound_sa_gets_a_slot_of_the_worker_that_was_chosen() {
    let mut gateway = Gateway::new(&peers());
    for (value, key) in [(600, 1), (601, 2), (602, 3)] {
        let worker = Some(OpeningWorker { worker: 2, workers: 3 });
        gateway.put(vec![PutSa { worker, ..sa(Inbound, value, key) }]).unwrap();
    }
    let all = gateway.all();
    let slots = [600, 601, 602].map(|value| all[&(Inbound, value, "a".into())].0);
    assert_eq!(slots, [2, 5, 8]);
}

#[test]
fn a_change_of_configuration_keeps_them_as_long_as_their_peer_has_keys_over_the_api() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Outbound, 501, 1), sa(Outbound, 500, 2), sa(Inbound, 600, 3)]).unwrap();
    gateway.put(vec![of("b", sa(Outbound, 700, 4))]).unwrap();
    gateway.put(vec![instead_of(600, sa(Inbound, 601, 5))]).unwrap();
    let sealing = gateway.snapshot.outbound().find(|sa| sa.spi == spi(501)).unwrap();
    sealing.sequence.draw(7).whole().unwrap();
    let (before, running) = (gateway.all(), gateway.compiled.copied());
    // Other limits, another header, a peer more in front, and one with a file.
    let with_limits = "keys = \"api\"\ndscp = 8\n[peer.a.lifetime]\nhard_packets = 100";
    let [a, b] = [peer("a", "198.51.100.9", with_limits), api_peer("b", "198.51.100.2")];
    let f = peer("f", "198.51.100.3", "keys = \"file:f.keys\"\nmanual = \"laboratory\"");
    gateway.apply(&[api_peer("z", "198.51.100.8"), f.clone(), b.clone(), a].concat()).unwrap();
    assert_eq!(gateway.all(), before, "slots too");
    assert_eq!(gateway.order("a"), [501, 500]);
    for sa in gateway.snapshot.outbound().filter(|sa| sa.spi.value() < 0x1000) {
        let is_a = sa.spi.value() < 700;
        assert_eq!(sa.tunnel().remote.to_string().ends_with(".9"), is_a);
        assert_eq!(sa.allowance.is_some(), is_a);
    }
    let first = gateway.snapshot.outbound().find(|sa| sa.spi == spi(501)).unwrap();
    let known = running.sad.outbound().find(|sa| sa.spi == spi(501)).unwrap();
    assert!(Arc::ptr_eq(&first.sequence, &known.sequence));
    assert_eq!(first.allowance.as_ref().unwrap().account.used(0).packets, 7);
    // It was replaced before, and goes.
    gateway.receives(601, 1);
    gateway.pass(1);
    assert_eq!(gateway.pass(LINGER_NS).len(), 1);
    // Its keys come from a file now; it is gone, and its slot is another's next.
    let running = gateway.compiled.copied();
    let text = format!("out 0x1002 {}\nin 0x2002 {}\n", "e1".repeat(20), "e2".repeat(20));
    config::write_key_file(&gateway.root.path().join("b.keys"), &text).unwrap();
    let of_file = peer("b", "198.51.100.2", "keys = \"file:b.keys\"\nmanual = \"laboratory\"");
    gateway.apply(&[f, of_file, api_peer("a", "198.51.100.1")].concat()).unwrap();
    let gone = gateway.compiled.put_sas_gone_since(&running);
    assert_eq!((gone.len(), gone[0].spi, gone[0].reason), (1, spi(700), GoneReason::PeerGone));
    assert_eq!(gateway.order("b"), [0x1002]);
    assert_eq!(gateway.compiled.put_count(), 3);
}

#[test]
fn a_key_file_with_the_spi_of_an_sa_that_was_put_is_refused() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Inbound, 0x2002, 1)]).unwrap();
    let text = format!("in 0x2002 {}\n", "e2".repeat(20));
    config::write_key_file(&gateway.root.path().join("b.keys"), &text).unwrap();
    let of_file = peer("g", "198.51.100.2", "keys = \"file:b.keys\"\nmanual = \"laboratory\"");
    let before = gateway.all();
    let refused = gateway.apply(&[peers(), of_file].concat()).unwrap_err().to_string();
    assert!(refused.contains("two inbound SAs have SPI 0x00002002"), "{refused}");
    assert_eq!(gateway.all(), before);
    gateway.apply(&peers()).unwrap();
    assert_eq!(gateway.all(), before);
}

/// A configuration that was compiled on the side learns of puts that came meanwhile.
#[test]
fn a_change_of_policies_that_was_compiled_before_a_put_has_what_was_put() {
    let mut gateway = Gateway::new(&peers());
    gateway.put(vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]).unwrap();
    let compiled = gateway.compiled.copied();
    let mut changed = gateway.compiler.change_policies(&compiled, &["b".into()], vec![]).unwrap();
    gateway.put(vec![instead_of(500, sa(Outbound, 501, 3))]).unwrap();
    gateway.put(vec![sa(Inbound, 601, 4)]).unwrap();
    gateway.delete(&[name(Inbound, 600)]).unwrap();
    let running = gateway.all();
    changed.keep_put_sas(&gateway.compiled).unwrap();
    gateway.go_over(ChangedSas { compiled: changed, gone: Vec::new() });
    assert_eq!((gateway.all(), gateway.order("a")), (running, vec![501]));
}

#[test]
fn bounds_are_kept() {
    let mut gateway = Gateway::new(&peers());
    let many = |range: std::ops::Range<u32>| range.map(|n| sa(Outbound, 1000 + n, n)).collect();
    let most = MAX_OUTBOUND_OF_PEER as u32;
    gateway.put(many(0..most - 1)).unwrap();
    let refused = gateway.put(many(most - 1..most + 1)).unwrap_err();
    assert_eq!(refused.word(), "too_many");
    gateway.put(many(most - 1..most)).unwrap();
    gateway.put(vec![instead_of(1000, sa(Outbound, 500, most + 9))]).unwrap();
    assert_eq!(gateway.order("a").len(), MAX_OUTBOUND_OF_PEER);
}

/// 10,000 SAs live, and one comes or goes, without workers and API. The target is 1 ms; the time is
/// printed, and the test fails only at ten times as much.
#[test]
fn among_ten_thousand_sas_one_is_put_or_deleted_within_ten_milliseconds() {
    const PEERS: u32 = 50;
    let sections: String = (0..PEERS)
        .map(|n| peer(&format!("p{n}"), &format!("198.51.101.{n}"), "keys = \"api\""))
        .collect();
    let mut gateway = Gateway::new(&sections);
    for n in 0..PEERS {
        let name = format!("p{n}");
        let pair = |place: u32| {
            let (number, key) = (n * 100 + place, 2 * (n * 100 + place));
            [
                of(&name, sa(Outbound, 0x10_0000 + number, key)),
                of(&name, sa(Inbound, 0x20_0000 + number, key + 1)),
            ]
        };
        gateway.put((0..100).flat_map(pair).collect()).unwrap();
    }
    assert_eq!(gateway.compiled.put_count(), 10_000);
    let mut times = Vec::new();
    for n in 0..200 {
        let begun = Instant::now();
        gateway.put(vec![of("p7", sa(Inbound, 0x30_0000 + n, 1_000_000 + n))]).unwrap();
        let put = begun.elapsed();
        gateway.delete(&[name(Inbound, 0x30_0000 + n)]).unwrap();
        times.push((put, begun.elapsed() - put));
    }
    times.sort();
    let (put, _) = times[times.len() / 2];
    times.sort_by_key(|(_, deleted)| *deleted);
    let (_, deleted) = times[times.len() / 2];
    println!("among 10,000 SAs: put {put:?}, deleted {deleted:?} (median of 200)");
    let most = std::time::Duration::from_millis(10);
    assert!(put < most && deleted < most, "put {put:?}, deleted {deleted:?}");
}

/// RFC 6864 §4.3: in tunnel mode, and wherever routers may fragment outer packets, each SA of a set
/// has identifications of its own, through all changes of the set.
#[test]
fn outbound_sas_of_a_peer_share_out_the_identifications_where_packets_may_be_cut() {
    for (more, are_cut) in [("", true), ("df = \"clear\"", true), ("mode = \"transport\"", false)] {
        let peer = peer("a", "198.51.100.1", &format!("keys = \"api\"\n{more}"));
        let peer = match are_cut {
            true => peer,
            false => between_gateways(&peer),
        };
        let mut gateway = Gateway::new(&peer);
        let put = |n: u32| sa(Outbound, 0x4000 + n, n + 1);
        let check = |gateway: &Gateway| {
            let sas: Vec<_> = gateway.snapshot.outbound().cloned().collect();
            let each = 65_536 / sas.len().next_power_of_two() as u64;
            let all = sas.iter().flat_map(|sa| (1..=each).map(|n| sa.identifications().of(n)));
            let different: std::collections::BTreeSet<u16> = all.collect();
            let expected = if are_cut { each * sas.len() as u64 } else { each };
            assert_eq!(different.len() as u64, expected, "{more}, {} SAs", sas.len());
        };
        for n in 0..3 {
            gateway.put(vec![put(n)]).unwrap();
            check(&gateway);
        }
        let counter = |gateway: &Gateway| {
            let mut sas = gateway.snapshot.outbound();
            sas.find(|sa| sa.spi.value() == 0x4002).unwrap().sequence.clone()
        };
        let before = counter(&gateway);
        gateway.delete(&[name(Outbound, 0x4000), name(Outbound, 0x4001)]).unwrap();
        check(&gateway);
        assert!(Arc::ptr_eq(&before, &counter(&gateway)), "its numbers go on");
    }
}
