//! Answers of the tier that are judged again: right ones are found right, wrong ones wrong, and of
//! what has changed since nothing is said.

mod common;

use std::sync::Arc;

use bpf::tier::{FlowClaim, FlowKey, FlowRecord, Key, Verdict};
use bpf::{Action, Answered, AnsweredSample, Steering};
use common::picture::Picture;
use common::*;
use dataplane::connections::{Connections, Limits};
use dataplane::{FlowVerdictBelow, NotBelow, Snapshot};
use endpoints::{Change, Endpoint, EndpointKey};
use placement::{Admission, Again, Residents, RulesSay, Tables, Wrong};
use policy::connection::Timeouts;
use wire::LinkAddress;

const SECOND_NS: u64 = 1_000_000_000;
/// The moment at which endpoints and verdicts were placed.
const PLACED_NS: u64 = 5 * SECOND_NS;

/// Three tenants of each of two networks.
fn tenants() -> Vec<Endpoint> {
    let of = |network: u32, number: u8| Endpoint {
        key: EndpointKey { vni: vni(network), address: tenant(number) },
        host: v4(HOSTS[0]),
        host_mac: None,
        mac: LinkAddress::new(mac_of(number)),
    };
    [PLAIN, GROUPED].into_iter().flat_map(|vni| (1..=3).map(move |n| of(vni, n))).collect()
}

/// UDP from tenant 1 to tenant 3.
fn flow(network: u32, port: u16) -> FlowKey {
    let [source, destination] = [1, 3].map(|number| (tenant(number).value as u32).into());
    let [high, low] = port.to_be_bytes();
    FlowKey { vni: network, source, destination, protocol: 17, upper: [0x13, 0x88, high, low] }
}

/// A tier with all tenants, and a verdict on each of these flows that the rules have one on.
fn placed<T: Tables>(tables: T, snapshot: &Snapshot, flows: &[FlowKey]) -> Residents<T> {
    let mut residents = Residents::new(tables);
    residents.narrow(snapshot, place_of, PLACED_NS).expect("no write is refused");
    residents.widen(snapshot, place_of, PLACED_NS).expect("no write is refused");
    for endpoint in tenants() {
        let admission = residents.admit(endpoint.key, snapshot, place_of, PLACED_NS);
        assert!(matches!(admission, Ok(Admission::Admitted)), "{endpoint:?}");
    }
    for key in flows {
        let admission = residents.admit_flow(*key, snapshot, moment(PLACED_NS));
        assert!(admission.is_ok(), "{key:?}");
    }
    residents
}

/// The sample of an answer by what is in the tables now.
fn sample(residents: &Residents<&Picture>, key: FlowKey, answer: Answered) -> AnsweredSample {
    let tables = residents.tables();
    let slot = tables.slots.borrow()[&Key { vni: key.vni, address: key.destination }];
    let record = tables.records.borrow()[&slot];
    AnsweredSample {
        answer,
        key,
        network: record.network,
        generation: tables.asking.borrow().get(&record.network).copied().unwrap_or(0),
        flow_slot: tables.flow_slots.borrow().get(&key).copied(),
        claim: None,
        endpoint_slot: slot,
        host: record.host,
        mac: record.mac,
        at_ns: PLACED_NS + SECOND_NS,
    }
}

/// The rules' word on an answer that is wrong.
fn wrong(again: Again) -> RulesSay {
    let Again::Wrong(Wrong { rules, .. }) = again else { panic!("{again:?}") };
    rules
}

#[test]
fn an_answer_is_right_or_wrong_by_the_rules_that_it_was_given_by() {
    let table = table_of(&tenants());
    let snapshot = ruled(&table, (false, Rules::Some), None);
    let (open, dns) = (flow(GROUPED, 54), flow(GROUPED, 53));
    let picture = Picture::default();
    let residents = placed(&picture, &snapshot, &[open, dns]);
    let judge = |of: &AnsweredSample| residents.judge_again(of, &snapshot, moment(9 * SECOND_NS));
    let of = |key, answer| sample(&residents, key, answer);

    for right in [
        of(open, Answered::Sent),
        of(dns, Answered::Dropped),
        of(flow(PLAIN, 53), Answered::Sent),
        of(open, Answered::LinkAddress),
        of(flow(PLAIN, 53), Answered::LinkAddress),
    ] {
        assert_eq!(judge(&right), Again::Right, "{right:?}");
    }
    let rules = wrong(judge(&of(dns, Answered::Sent)));
    let RulesSay::Verdict(said) = rules else { panic!("{rules:?}") };
    assert_eq!(said.verdict, FlowVerdictBelow::Drop);
    let Again::Wrong(wrongly) = judge(&of(open, Answered::Dropped)) else { panic!("it is right") };
    // The last of the rules permits everything.
    assert_eq!(wrongly.rule_names(&snapshot), ["rule 202"]);
    assert_eq!(wrongly.rules.to_string(), "forward");
    assert!(!wrongly.is_of_endpoint());
    let rules = wrong(judge(&of(flow(PLAIN, 53), Answered::Dropped)));
    assert_eq!(rules, RulesSay::Forward);
}

#[test]
fn of_what_has_changed_since_nothing_is_said() {
    let mut book = book_of(&tenants());
    let table = book.table().clone();
    let snapshot = ruled(&table, (false, Rules::Some), None);
    let key = flow(GROUPED, 54);
    let picture = Picture::default();
    let mut residents = placed(&picture, &snapshot, &[key]);
    let now = moment(9 * SECOND_NS);
    // A wrong answer, so that nothing is found right by chance.
    let is = sample(&residents, key, Answered::Dropped);
    assert!(matches!(residents.judge_again(&is, &snapshot, now), Again::Wrong(_)));
    let sent = AnsweredSample { answer: Answered::Sent, ..is };
    for outdated in [
        AnsweredSample { generation: is.generation + 1, ..is },
        AnsweredSample { generation: 0, ..is },
        AnsweredSample { network: is.network + 1, ..is },
        AnsweredSample { key: FlowKey { vni: 12, ..key }, ..is },
        AnsweredSample { endpoint_slot: is.endpoint_slot + 1, ..sent },
        AnsweredSample { at_ns: PLACED_NS - 1, ..sent },
    ] {
        let again = residents.judge_again(&outdated, &snapshot, now);
        assert_eq!(again, Again::Outdated, "{outdated:?}");
    }

    // The table has another host for the destination, which is still in the tier.
    let moved =
        tenants().into_iter().find(|of| of.key.address == tenant(3) && of.key.vni == vni(8));
    let moved = Endpoint { host: v4(HOSTS[1]), ..moved.expect("a tenant") };
    book.apply(&[Change::Put { revision: 2, endpoint: moved }]);
    let Again::Wrong(found) = residents.judge_again(&sent, &snapshot, now) else {
        panic!("it went to the wrong host");
    };
    assert!(found.is_of_endpoint());
    let words = found.rules.to_string();
    assert_eq!(words, "the destination is 02:07:00:00:00:03 on host 10.1.0.12");
    residents.withdraw(moved.key, now.kernel_ns).expect("no write is refused");
    assert_eq!(residents.judge_again(&sent, &snapshot, now), Again::Outdated);

    // Other rules.
    let other = ruled(&table, (false, Rules::Others), Some(&snapshot));
    residents.narrow(&other, place_of, now.kernel_ns).expect("no write is refused");
    for snapshot in [&snapshot, &other] {
        assert_eq!(residents.judge_again(&is, snapshot, now), Again::Outdated);
    }
}

#[test]
fn what_is_the_workers_is_wrong_and_a_connection_that_ended_is_not() {
    let table = table_of(&tenants());
    let now = moment(9 * SECOND_NS);
    let tried = ruled(&table, (false, Rules::Audited), None);
    let picture = Picture::default();
    let residents = placed(&picture, &tried, &[]);
    let sent = sample(&residents, flow(GROUPED, 53), Answered::Sent);
    let rules = wrong(residents.judge_again(&sent, &tried, now));
    assert_eq!(rules, RulesSay::Workers(NotBelow::TriedOut));

    let connections = Connections::new(Limits::of(64), Timeouts::default(), &[5; 32]);
    let tracked = remembering(&table, (false, Rules::Tracked), None, Some(Arc::new(connections)));
    let picture = Picture::default();
    let residents = placed(&picture, &tracked, &[]);
    let judge = |answer| {
        let of = sample(&residents, flow(GROUPED, 53), answer);
        residents.judge_again(&of, &tracked, now)
    };
    assert_eq!(judge(Answered::Sent), Again::Outdated);
    let rules = wrong(judge(Answered::Dropped));
    assert!(matches!(rules, RulesSay::Workers(NotBelow::Connection(_))), "{rules:?}");
}

/// Runs a packet of a flow through the program; returns the sample of its answer.
fn answered(steering: &Steering, tier: &bpf::tier::Tier, port: u16) -> (Action, AnsweredSample) {
    let frame = carried(GROUPED, (1, 3), |packet| packet.udp(5000, port).payload_of(24));
    let action = steering.run(&frame).expect("a run").action;
    let mut samples = Vec::new();
    tier.take_samples(&mut samples).expect("samples");
    let [sample] = samples[..] else { panic!("{samples:?}") };
    (action, AnsweredSample { at_ns: u64::MAX, ..sample })
}

#[test]
fn a_wrong_record_in_the_kernel_is_found() {
    let Some((steering, tier)) = program() else { return };
    tier.sample_one_of(1);
    tier.renew(FOREVER).unwrap();
    let table = table_of(&tenants());
    let snapshot = ruled(&table, (false, Rules::Some), None);
    let (open, dns) = (flow(GROUPED, 54), flow(GROUPED, 53));
    let residents = placed(tier.clone(), &snapshot, &[open, dns]);
    let judge = |of: &AnsweredSample| residents.judge_again(of, &snapshot, moment(9 * SECOND_NS));
    for (key, action, opposite) in
        [(open, Action::Transmit, Verdict::Drop), (dns, Action::Drop, Verdict::Permit)]
    {
        let port = u16::from_be_bytes([key.upper[2], key.upper[3]]);
        let (did, right) = answered(&steering, &tier, port);
        assert_eq!((did, judge(&right)), (action, Again::Right), "{right:?}");

        // Nothing but the verdict differs, and nobody has told it.
        let AnsweredSample { generation, network, claim, flow_slot, .. } = right;
        let record = FlowRecord { key, generation, network, verdict: opposite, claim };
        assert!(matches!(claim, Some(FlowClaim { .. })));
        tier.write_flow(flow_slot.expect("a verdict"), &record).unwrap();
        let (did, lie) = answered(&steering, &tier, port);
        assert_ne!(did, action);
        let rules = wrong(judge(&lie));
        let RulesSay::Verdict(said) = rules else { panic!("{rules:?}") };
        let is_permitted = said.verdict == FlowVerdictBelow::Permit;
        assert_eq!(is_permitted, action == Action::Transmit);
    }
    assert_eq!(tier.samples_lost().unwrap(), 0);
}
