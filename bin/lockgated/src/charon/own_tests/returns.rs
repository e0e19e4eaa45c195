//! Policies that another configuration admits again, and notes that are kept of charon's own peers.

use super::moves::{HOME, THERE, between, bounds, child, ends, policy_between, update};
use super::*;

const PROTECTS: &str = "ike:5/1: protect ike:5 with 1 SAs";

/// Another section of the file, which changes nothing that the tests look at.
const MORE: &str = "[[policy]]\nname = \"more\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                    remote = [\"9.9.9.9\"]\n";

/// A request that changes nothing.
fn question() -> NamedRequest {
    NamedRequest::QuerySa(sa(Outbound, 0x9999, 5, to(1)).name)
}

/// A shunt of charon's that passes packets.
fn shunt() -> AddPolicy {
    let selectors = [range("10.1.0.0", "10.1.0.9"), range("10.200.0.0", "10.200.0.9")];
    AddPolicy { action: PolicyAction::Pass, ..outbound(selectors, 7, 0) }
}

// The numbers of an earlier charon mean nothing to the next one.
#[tokio::test]
async fn no_policy_of_an_earlier_charon_is_brought_back_for_the_next_one() {
    let mut lab = Lab::new(BOUNDS);
    lab.done(add(sa(Outbound, 0x500, 5, to(1)))).await;
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0x500))).await;
    lab.done(Request::AddPolicy(shunt())).await;
    // Without its shunts, and then with them: the next one has asked for none.
    let (_, listed) = BOUNDS.split_once("[[ike.shunt]]").unwrap();
    let without = BOUNDS.replace(&format!("[[ike.shunt]]{listed}"), "");
    lab.apply(&format!("{FILE}{without}")).await;
    lab.ask(question()).await;
    assert_eq!(lab.verdict("10.1.0.5", "10.200.0.1"), "none");
    lab.apply(&format!("{FILE}{MORE}{BOUNDS}")).await;
    lab.desk.begin(charon(2));
    lab.ask(question()).await;
    assert_eq!(lab.verdict("10.1.0.5", "10.200.0.1"), "none");
    // Its number 5 is another CHILD_SA, and the one of before has another number.
    lab.done(add(sa(Outbound, 0x501, 5, to(2)))).await;
    lab.done(Request::AddPolicy(outbound(to(2), 5, 0x501))).await;
    lab.done(Request::AddPolicy(outbound(to(1), 7, 0))).await;
    lab.done(Request::Resumed).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    let other = lab.verdict("10.1.0.1", "10.9.2.1");
    assert!(other.ends_with("with 1 SAs") && !other.contains("ike:5 "), "{other}");
    assert_eq!(lab.shown().0.len(), 2);
    let sets = lab.snapshot();
    let (_, set) = sets.sets().find(|(_, set)| set.peer == "ike:5").unwrap();
    let spis: Vec<u32> =
        sets.outbound().filter(|sa| sa.set == set.id).map(|sa| sa.spi.value()).collect();
    assert_eq!(spis, [0x500], "each packet by an SA that was negotiated for it");
    assert_eq!(lab.verdict("10.1.0.5", "10.200.0.1"), "none");
}

#[tokio::test]
async fn a_policy_that_is_admitted_again_comes_once_charon_has_named_all() {
    let mut lab = Lab::new(BOUNDS);
    lab.done(Request::AddPolicy(outbound(to(3), 8, 0))).await;
    lab.desk.begin(charon(2));
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
    lab.apply(FILE).await;
    lab.ask(question()).await;
    lab.apply(&format!("{FILE}{BOUNDS}")).await;
    lab.ask(question()).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "none");
    lab.done(Request::Resumed).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 0 SAs");
    assert_eq!(lab.verdict("10.1.0.1", "10.9.3.1"), "none");
}

#[tokio::test]
async fn policies_that_the_machine_refuses_are_tried_again_and_somebody_is_told() {
    // charon's policy wants packets that came to the host's own SSH: the machine withholds these.
    let unprotected = "side = \"unprotected\"";
    let file = FILE.replacen(unprotected, &format!("{unprotected}\nallow_host = [\"tcp/22\"]"), 1);
    let bounds = BOUNDS.replace("local = [\"10.1.0.0/16\"]", "local = [\"any\"]");
    assert!(file != FILE && bounds != BOUNDS);
    let mut lab = Lab::over(&format!("{file}{bounds}"));
    let [_, remote] = to(1);
    let policy = outbound([range("0.0.0.0", "255.255.255.255"), remote], 5, 0);
    lab.done(Request::AddPolicy(policy)).await;
    lab.apply(&file).await;
    lab.ask(question()).await;
    lab.apply(&format!("{file}{bounds}")).await;
    lab.running.machine.refuse_next();
    lab.ask(question()).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "none");
    lab.running.events.flush();
    let (kept, _) = lab.running.events.subscribe();
    let told = kept.iter().filter(|event| event.kind == "charon_refused");
    let told: Vec<&str> = told.map(|event| event.message.as_str()).collect();
    assert!(told.len() == 1 && told[0].contains("tries again in a second"), "{told:?}");
    let at = lab.desk.next_try().expect("it is tried again");
    // Not at once: what the machine refuses now it refuses the next moment too.
    lab.ask(question()).await;
    assert!(lab.verdict("10.1.0.1", "10.9.1.1") == "none" || at <= tokio::time::Instant::now());
    tokio::time::sleep_until(at).await;
    lab.desk.catch_up().await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 0 SAs");
    assert_eq!(lab.desk.next_try(), None);
}

// Each SA that goes with a configuration is one hard expiry for charon.
#[tokio::test]
async fn charon_hears_once_of_each_sa_that_another_configuration_ends() {
    for reports_first in [false, true] {
        let mut lab = Lab::new(&bounds());
        let mut deletions = lab.daemon().deletions();
        child(&mut lab).await;
        lab.apply(FILE).await;
        let gone = [deletions.try_recv().unwrap(), deletions.try_recv().unwrap()];
        assert!(gone.iter().all(|(.., peer)| peer == "ike:5"), "{gone:?}");
        assert!(deletions.try_recv().is_err());
        let mut reports = Vec::new();
        if !reports_first {
            lab.ask(question()).await;
        }
        for (direction, spi, peer) in gone {
            let (peer, hardness) = (peer.into(), Hardness::Hard);
            reports.extend(lab.desk.expired(&Expiry { direction, spi, peer, hardness }));
        }
        lab.ask(question()).await;
        reports.extend(lab.desk.take_due());
        assert_eq!(reports.len(), 2, "{reports:?}");
    }
}

#[tokio::test]
async fn numbers_that_no_policy_names_do_not_pile_up() {
    const MOST: usize = 10;
    let mut lab = Lab::new(&bounds());
    let ([inbound, out], policy) = child(&mut lab).await;
    let numbers = |lab: &Lab| lab.desk.own.peer("ike:5").unwrap().numbers.len();
    // The ends that it has, and one number after another.
    for reqid in 100..200 {
        let asked = MoveSa { reqid: Some(reqid), ..update(&out, HOME) };
        lab.done(NamedRequest::MoveSa(asked)).await;
    }
    assert!(numbers(&lab) <= MOST, "{}", numbers(&lab));
    assert!(lab.desk.own.numbered(150).is_none());
    // To and fro.
    let mut at = out.clone();
    for reqid in 200..240 {
        let there = if reqid % 2 == 0 { THERE } else { HOME };
        let asked = MoveSa { reqid: Some(reqid), ..update(&at, there) };
        lab.done(NamedRequest::MoveSa(asked)).await;
        at = between(&at, there);
    }
    assert!(numbers(&lab) <= MOST, "{}", numbers(&lab));
    // The inbound SA, to one place after another, once charon is connected again.
    lab.resume().await;
    let mut at = inbound;
    for remote in 20..60 {
        let ends = [HOME[0].to_owned(), format!("198.51.100.{remote}:4500")];
        let there = [&*ends[0], &*ends[1]];
        lab.done(NamedRequest::MoveSa(update(&at, there))).await;
        at = between(&at, there);
    }
    assert!(numbers(&lab) <= MOST, "{}", numbers(&lab));
    // What a policy names means the peer still.
    assert_eq!(lab.desk.own.numbered(policy.reqid).map(|name| &**name), Some("ike:5"));
}

#[tokio::test]
async fn policies_of_one_name_are_each_stood_in_for() {
    let mut lab = Lab::new(&bounds());
    let (_, old) = child(&mut lab).await;
    let new = AddPolicy { spi: 0x501, ..old.clone() };
    lab.done(Request::AddPolicy(new.clone())).await;
    let drops = [&old, &new].map(|of| AddPolicy { action: PolicyAction::Drop, ..of.clone() });
    for policy in &drops {
        lab.done(Request::AddPolicy(policy.clone())).await;
    }
    for policy in [old, new] {
        lab.done(Request::DeletePolicy(policy)).await;
    }
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    let [first, second] = drops;
    lab.ask(Request::DeletePolicy(first)).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    lab.ask(Request::DeletePolicy(second)).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "none");
}

#[tokio::test]
async fn a_peer_goes_back_by_the_number_that_it_had() {
    let mut lab = Lab::new(&bounds());
    let ([_, out], policy) = child(&mut lab).await;
    // It has the number 6 at the other place, and 5 here.
    let there = MoveSa { reqid: Some(6), ..update(&out, THERE) };
    lab.done(NamedRequest::MoveSa(there)).await;
    let of_there = AddPolicy { reqid: 6, ..policy_between(&policy, THERE) };
    lab.done(Request::AddPolicy(of_there)).await;
    let home = MoveSa { reqid: Some(5), ..update(&between(&out, THERE), HOME) };
    lab.done(NamedRequest::MoveSa(home)).await;
    // As long as a policy has the number 6, it is this peer's.
    let other = policy_between(&outbound(to(2), 6, 0), THERE);
    lab.done(Request::AddPolicy(other)).await;
    assert_eq!(lab.shown().0, ["ike:5"]);
    let before = ends(&lab);
    let same_key = AddSa { encryption: out.encryption.clone(), ..sa(Outbound, 0x501, 6, to(1)) };
    let answer = lab.ask(add(between(&same_key, THERE))).await;
    assert_eq!(answer.status, Status::KeyUsed, "{}", answer.text);
    assert_eq!(ends(&lab), before);
}

#[tokio::test]
async fn a_reconnected_charon_claims_its_running_sas_whatever_the_limits_are_by_now() {
    let mut lab = Lab::new(BOUNDS);
    let pair = [sa(Inbound, 0x600, 5, to(1)), sa(Outbound, 0x500, 5, to(1))];
    for sa in &pair {
        lab.done(add(sa.clone())).await;
    }
    let policy = outbound(to(1), 5, 0x500);
    lab.done(Request::AddPolicy(policy.clone())).await;
    let other = BOUNDS.replace("hard_seconds = 100", "hard_seconds = 90");
    lab.apply(&format!("{FILE}{other}")).await;
    lab.resume().await;
    let policy = AddPolicy { repeat: true, ..policy };
    lab.done(Request::AddPolicy(policy.clone())).await;
    lab.done(Request::Resumed).await;
    assert_eq!(lab.daemon().security_associations().await.len(), 2);
    // A policy claims no SA that charon has not named.
    lab.desk.begin(charon(1));
    lab.done(Request::AddPolicy(policy)).await;
    lab.done(Request::Resumed).await;
    assert_eq!(lab.daemon().security_associations().await.len(), 0);
}

// charon ends in the middle of changes of keys: several SAs of one CHILD_SA are left.
#[tokio::test]
async fn new_sa_replaces_all_left_sas_of_its_direction_and_packets() {
    let mut lab = Lab::new(BOUNDS);
    for (reqid, number) in [(5, 0), (5, 1), (5, 2), (6, 8)] {
        for (direction, first) in [(Inbound, 0x600), (Outbound, 0x500)] {
            let selectors = to(if reqid == 5 { 1 } else { 2 });
            lab.done(add(sa(direction, first + number, reqid, selectors))).await;
        }
    }
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
    lab.desk.begin(charon(2));
    let trap = outbound(to(1), 9, 0);
    lab.done(Request::AddPolicy(trap.clone())).await;
    assert_eq!(lab.desk.take_due().len(), 1, "charon is asked for a successor");
    lab.done(Request::Resumed).await;
    let sealing = |lab: &Lab| {
        let snapshot = lab.snapshot();
        let mut spis: Vec<u32> = snapshot.outbound().map(|sa| sa.spi.value()).collect();
        spis.sort_unstable();
        spis
    };
    lab.done(add(sa(Inbound, 0x605, 9, to(1)))).await;
    assert_eq!(sealing(&lab), [0x500, 0x501, 0x502, 0x508]);
    lab.desk.ask_for_successors(&trap);
    assert_eq!(lab.desk.take_due().len(), 1, "nothing new seals");
    lab.done(add(sa(Outbound, 0x505, 9, to(1)))).await;
    assert_eq!(sealing(&lab), [0x505, 0x508]);
    lab.desk.ask_for_successors(&trap);
    assert!(lab.desk.take_due().is_empty(), "a new SA seals");
    // Packets on their way still arrive.
    let snapshot = lab.snapshot();
    let opens = |spi: u32| snapshot.inbound_by_spi(ipsec::Spi::new(spi).unwrap()).is_some();
    assert!([0x600, 0x601, 0x602, 0x605, 0x608].into_iter().all(opens));
    let left: Vec<u32> = lab.desk.book.orphans().iter().map(|(_, sa)| sa.name.spi).collect();
    assert!(left.len() == 2 && left.contains(&0x508) && left.contains(&0x608), "{left:x?}");
}
