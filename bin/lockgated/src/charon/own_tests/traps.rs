//! Traps that name ends which SAs have moved away from.

use super::moves::{THERE, between, bounds, child, ends, policy_between, sealing_ends, update};
use super::*;

const PROTECTS: &str = "ike:5/1: protect ike:5 with 1 SAs";

/// A CHILD_SA of number 5 that moves, before there is a trap.
async fn moved(lab: &mut Lab) -> ([AddSa; 2], AddPolicy) {
    let (pair, policy) = child(lab).await;
    for sa in &pair {
        lab.done(NamedRequest::MoveSa(update(sa, THERE))).await;
    }
    lab.done(Request::AddPolicy(policy_between(&policy, THERE))).await;
    lab.done(Request::DeletePolicy(policy.clone())).await;
    (pair.map(|sa| between(&sa, THERE)), policy_between(&policy, THERE))
}

#[tokio::test]
async fn a_trap_that_comes_after_a_move_hides_nothing() {
    let mut lab = Lab::new(&bounds());
    let (pair, policy) = moved(&mut lab).await;
    let trap = outbound(to(1), 5, 0);
    // It comes, goes with another swanctl.conf, and comes again.
    lab.done(Request::AddPolicy(trap.clone())).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    lab.done(Request::DeletePolicy(trap.clone())).await;
    lab.done(Request::AddPolicy(trap.clone())).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    assert_eq!(lab.shown(), (vec!["ike:5".to_owned()], vec!["ike:5/1".to_owned()]));
    // The SAs can go back.
    for sa in &pair {
        let name = sa.name;
        let home = MoveSa { name, ..update(sa, ["192.0.2.1:500", "198.51.100.9:500"]) };
        lab.done(NamedRequest::MoveSa(home)).await;
    }
    assert_eq!(ends(&lab), ["192.0.2.1 - 198.51.100.9"]);
    // The trap protects as long as it is there.
    lab.done(Request::DeletePolicy(policy)).await;
    lab.done(Request::FlushSas).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), "ike:5/1: protect ike:5 with 0 SAs");
    lab.done(Request::DeletePolicy(trap)).await;
    assert_eq!(lab.shown(), (vec![], vec![]));
}

#[tokio::test]
async fn policies_of_one_reqid_are_of_one_peer_whatever_ends_they_name() {
    let mut lab = Lab::new(&bounds());
    moved(&mut lab).await;
    let elsewhere = with(outbound(to(1), 5, 0), "198.51.100.20");
    lab.done(Request::AddPolicy(elsewhere.clone())).await;
    assert_eq!(lab.shown(), (vec!["ike:5".to_owned()], vec!["ike:5/1".to_owned()]));
    lab.done(Request::DeletePolicy(elsewhere)).await;
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    // A trap of two policies.
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
    lab.done(Request::AddPolicy(outbound(to(2), 5, 0))).await;
    assert_eq!(lab.shown().1, ["ike:5/1", "ike:5/2"]);
    lab.done(Request::AddPolicy(outbound(to(3), 6, 0))).await;
    assert_eq!(lab.shown().0, ["ike:5", "ike:6"]);
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
}

#[tokio::test]
async fn another_charon_takes_over_a_peer_by_the_selectors_of_a_trap() {
    let mut lab = Lab::new(&bounds());
    moved(&mut lab).await;
    lab.desk.begin(charon(2));
    lab.done(Request::AddPolicy(outbound(to(1), 9, 0))).await;
    let due = lab.desk.take_due();
    assert!(matches!(due[..], [Report::Acquire { reqid: 9, .. }]), "{due:?}");
    lab.done(Request::Resumed).await;
    // What comes by the SAs that are left is of the policy that decides.
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    assert_eq!(lab.shown(), (vec!["ike:5".to_owned()], vec!["ike:5/1".to_owned()]));
    assert_eq!(lab.daemon().security_associations().await.len(), 2);
    // The SAs that it makes replace them, where the trap is.
    for (direction, spi) in [(Inbound, 0x601), (Outbound, 0x501)] {
        lab.done(add(sa(direction, spi, 9, to(1)))).await;
    }
    assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
    let home = "192.0.2.1 - 198.51.100.9".to_owned();
    assert_eq!(sealing_ends(&lab), [(0x501, home)], "the one of before is replaced");
}

// Another charon has another swanctl.conf: selectors that an earlier one did not have.
#[tokio::test]
async fn packet_of_a_left_policy_asks_another_charon_by_its_own_policy() {
    let wide = || [range("10.1.0.0", "10.1.255.255"), range("10.9.0.0", "10.9.255.255")];
    let asked = || v1::Acquire {
        peer: "ike:5".into(),
        source: "10.1.0.1".into(),
        destination: "10.9.1.1".into(),
        protocol: 1,
        ..v1::Acquire::default()
    };
    let is_nine = |report: &[Report]| matches!(report, [Report::Acquire { reqid: 9, .. }]);
    for comes_late in [false, true] {
        let mut lab = Lab::new(&bounds());
        moved(&mut lab).await;
        lab.desk.begin(charon(2));
        if comes_late {
            assert_eq!(lab.desk.acquire(&asked()), None);
            // Of other packets.
            lab.done(Request::AddPolicy(outbound(to(2), 8, 0))).await;
            assert!(lab.desk.take_due().is_empty());
            lab.done(Request::AddPolicy(outbound(wide(), 9, 0))).await;
            let due = lab.desk.take_due();
            assert!(is_nine(&due), "{due:?}");
        } else {
            lab.done(Request::AddPolicy(outbound(wide(), 9, 0))).await;
            lab.desk.take_due();
            let report = lab.desk.acquire(&asked());
            assert!(is_nine(report.as_slice()), "{report:?}");
        }
        lab.done(Request::Resumed).await;
        lab.desk.take_due();
        // The left policy goes with the last SA, before charon asks for anything.
        for (direction, spi) in
            [(policy::Direction::Inbound, 0x600), (policy::Direction::Outbound, 0x500)]
        {
            assert!(lab.shown().0.contains(&"ike:5".to_owned()));
            let expiry = Expiry {
                direction,
                spi: ipsec::Spi::new(spi).unwrap(),
                peer: "ike:5".into(),
                hardness: Hardness::Hard,
            };
            lab.desk.expired(&expiry);
            lab.desk.delete_ended().await;
        }
        assert!(!lab.shown().0.contains(&"ike:5".to_owned()), "{:?}", lab.shown());
        let verdict = lab.verdict("10.1.0.1", "10.9.1.1");
        assert_eq!(verdict, "ike:9/1: protect ike:9 with 0 SAs");
    }
}

// swanctl.conf may give two children one `reqid`: packets for one gateway never go to another.
#[tokio::test]
async fn reqid_of_one_child_is_refused_to_another_gateway_with_other_packets() {
    const WORDS: &str = "reqid 5 is that of CHILD_SA ike:5";
    let other = "198.51.100.20";
    for has_trap in [false, true] {
        let mut lab = Lab::new(&bounds());
        if has_trap {
            lab.done(Request::AddPolicy(outbound(to(1), 5, 0))).await;
        }
        if has_trap {
            lab.refused(Request::AddPolicy(with(outbound(to(2), 5, 0), other)), WORDS).await;
        }
        let (pair, policy) = child(&mut lab).await;
        lab.refused(Request::AddPolicy(with(outbound(to(2), 5, 0), other)), WORDS).await;
        let theirs = ["192.0.2.1:4500", "198.51.100.20:4500"];
        for (direction, spi) in [(Inbound, 0x700), (Outbound, 0x701)] {
            lab.refused(add(between(&sa(direction, spi, 5, to(2)), theirs)), WORDS).await;
        }
        assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
        assert_eq!(lab.verdict("10.1.0.1", "10.9.2.1"), "none");
        assert_eq!(sealing_ends(&lab), [(0x500, "192.0.2.1 - 198.51.100.9".to_owned())]);
        // Before its first policy a child has the packets of its SAs.
        lab.done(Request::DeletePolicy(policy)).await;
        if has_trap {
            lab.done(Request::DeletePolicy(outbound(to(1), 5, 0))).await;
        }
        let late = between(&sa(Outbound, 0x702, 5, to(2)), theirs);
        lab.refused(add(late.clone()), WORDS).await;
        // The number is free once the child is gone.
        for sa in &pair {
            lab.done(NamedRequest::DeleteSa(sa.name)).await;
        }
        assert_eq!(lab.shown(), (vec![], vec![]));
        lab.done(add(late)).await;
    }
}

// Nobody repeats the ends that SAs moved away from.
#[tokio::test]
async fn a_trap_and_a_policy_of_sas_that_moved_are_one_peer_after_a_new_start() {
    let there = policy_between(&outbound(to(1), 5, 0x500), THERE);
    let trap = outbound(to(1), 5, 0);
    for both in [[&trap, &there], [&there, &trap]] {
        let mut lab = Lab::new(&bounds());
        for policy in both {
            lab.done(Request::AddPolicy(AddPolicy { repeat: true, ..policy.clone() })).await;
        }
        lab.done(Request::Resumed).await;
        // charon makes other SAs where it has its IKE_SA.
        let pair = [sa(Inbound, 0x601, 5, to(1)), sa(Outbound, 0x501, 5, to(1))];
        for sa in &pair {
            lab.done(add(between(sa, THERE))).await;
        }
        assert_eq!(lab.verdict("10.1.0.1", "10.9.1.1"), PROTECTS);
        assert_eq!(lab.shown(), (vec!["ike:5".to_owned()], vec!["ike:5/1".to_owned()]));
        assert_eq!(ends(&lab), ["192.0.2.2 - 198.51.100.77"]);
        for sa in &pair {
            let home = update(sa, ["192.0.2.1:500", "198.51.100.9:500"]);
            lab.done(NamedRequest::MoveSa(MoveSa { name: between(sa, THERE).name, ..home })).await;
        }
        assert_eq!(ends(&lab), ["192.0.2.1 - 198.51.100.9"]);
    }
    // So are two traps.
    let mut lab = Lab::new(&bounds());
    for policy in [&trap, &with(trap.clone(), "198.51.100.20")] {
        lab.done(Request::AddPolicy(AddPolicy { repeat: true, ..policy.clone() })).await;
    }
    assert_eq!(lab.shown().0, ["ike:5"]);
}
