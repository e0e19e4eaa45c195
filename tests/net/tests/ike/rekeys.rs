//! Many changes of keys at full speed, while both charons watch for a dead peer.

use std::time::Instant;

use net::lab;
use netlab::Charon;
use netlab::sites::Plan;

use super::{Place, Wish, rekey_child};

/// Number of changes.
const REKEYS: usize = 1000;

/// No packet is lost, no answer to charon takes over half a second, and charon repeats no request.
#[test]
#[ignore = "make test-long PART=sas"]
fn keys_change_a_thousand_times_at_full_speed_without_a_loss_or_a_late_answer() {
    let test = "keys_change_a_thousand_times";
    let Some(lab) = lab(test, Plan::default()) else { return };
    let child = |_, plan: &mut netlab::ChildPlan| {
        plan.connection = "mobike = no\ndpd_delay = 2s".into();
    };
    let wish = Wish { child: &child, roots: [None, None], ..Wish::default() };
    let Some(mut place) = Place::of(test, lab, &wish) else { return };
    place.lab.flows_again();
    let Place { lab, charons, .. } = &mut place;
    let (began, mut longest_s) = (Instant::now(), 0.0_f64);
    let quarry = lab.hunt(|gateways| {
        for _ in 0..REKEYS {
            let began = Instant::now();
            rekey_child(gateways, charons, 1);
            longest_s = longest_s.max(began.elapsed().as_secs_f64());
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let late: Vec<_> = [1, 2].iter().flat_map(|it| place.events(*it, "charon_slow")).collect();
    let count_in_logs = |words: &str| -> usize {
        place.charons.iter().flatten().map(|it| Charon::log(it).matches(words).count()).sum()
    };
    let [questions, retries] = ["sending DPD request", "retransmit "].map(count_in_logs);
    let lost: Vec<_> = quarry.streams.iter().map(|it| (it.lost(), it.sent.len())).collect();
    println!(
        "{REKEYS} changes in {seconds:.0} s, the longest {longest_s:.2} s; lost packets {lost:?}; \
         late answers {}; questions whether the peer lives {questions}; retransmissions {retries}",
        late.len()
    );
    assert!(quarry.wire.spis().len() >= 2 * REKEYS, "{}", quarry.wire.spis().len());
    assert!(lost.iter().all(|(lost, _)| *lost == 0), "{lost:?}");
    assert!(late.is_empty(), "{late:?}");
    assert_eq!(retries, 0);
    place.lab.balances();
}
