//! The walk under a capture ≡ the walk without, and the capture says what became of each packet.

use dataplane::tap::{Fate, Filter, Heading, Layer, Layers, Outcome, Test};
use dataplane::{CapturedPacket, DropReason, TapId, TapSettings, Verdict};
use packets::In;
use packets::lab::{BERLIN, Hub, LAN, Laboratory, WAN};
use wire::Family;

use crate::{all_rows, datagram};

fn everything() -> TapSettings {
    TapSettings {
        id: TapId(1),
        port: None,
        layers: Layers::Both,
        outcome: Outcome::Any,
        filter: None,
        snaplen: 9216,
        packets: u64::MAX,
    }
}

fn tapped(settings: &TapSettings) -> Laboratory {
    Hub::default().laboratory().tapped(settings)
}

fn count(captured: &[CapturedPacket], holds: impl Fn(&CapturedPacket) -> bool) -> u64 {
    captured.iter().filter(|packet| holds(packet)).count() as u64
}

#[test]
fn a_capture_changes_nothing_and_says_what_became_of_every_packet() {
    // HA-22
    let (mut exact, mut reasons) = (0, std::collections::BTreeSet::new());
    for row in all_rows() {
        let what = &row.description;
        let (plain, without) = row.run();
        // Verdicts and packets out are those of the row, as without.
        let (mut lab, with) = row.run_in(|hub| hub.laboratory().tapped(&everything()));
        assert_eq!(with.sent.len(), without.sent.len(), "{what}");
        assert_eq!(lab.counters(), plain.counters(), "{what}");
        let captured = lab.captured();
        let counters = lab.counters();
        let total = counters.total();
        let received =
            |one: &CapturedPacket| (one.layer, one.heading) == (Layer::Outer, Heading::In);
        assert_eq!(count(&captured, received), total.received, "{what}: received");
        let is_drop = |one: &CapturedPacket| matches!(one.verdict, Some(Verdict::Drop(_)));
        let sent = count(&captured, |one| {
            (one.layer, one.heading) == (Layer::Outer, Heading::Out) && !is_drop(one)
        });
        assert_eq!(sent, total.sent, "{what}: sent");
        if total.made > 0 {
            continue; // What is made is in the counters and was not received.
        }
        exact += 1;
        for reason in DropReason::ALL {
            let dropped =
                |one: &CapturedPacket| received(one) && one.verdict == Some(Verdict::Drop(*reason));
            let seen = count(&captured, dropped);
            // What waited was captured when it came.
            let in_vain = row.in_vain.iter().filter(|dropped| *dropped == reason).count() as u64;
            assert_eq!(seen + in_vain, counters.dropped(*reason), "{what}: {reason}");
            reasons.extend((seen > 0).then_some(*reason));
        }
        let decided = |volumes: &[dataplane::counters::Volume]| {
            volumes.iter().map(|volume| volume.packets).sum::<u64>()
        };
        // Of groups and policy that decide one packet together the last one is named.
        let has_groups = lab.snapshot.spd().holding_rules().next().is_some();
        let told = |count: u64, volumes| match (has_groups, decided(volumes)) {
            (true, deciders) => (count..=3 * count).contains(&deciders),
            (false, deciders) => deciders == count,
        };
        let inbound = count(&captured, |one| received(one) && !one.inbound_policy.is_empty());
        assert!(told(inbound, &counters.policy_inbound), "{what}: inbound policies");
        let outbound = count(&captured, |one| received(one) && !one.outbound_policy.is_empty());
        assert!(told(outbound, &counters.policy_outbound), "{what}: outbound policies");
        let inner =
            |heading| count(&captured, |one| (one.layer, one.heading) == (Layer::Inner, heading));
        // A card counts what it opened.
        if !matches!(row.packet, In::Opened(..)) {
            assert_eq!(inner(Heading::In), decided(&counters.opened), "{what}: opened");
        }
        assert!(inner(Heading::Out) >= decided(&counters.sealed), "{what}: sealed");
    }
    assert!(exact > 100, "{exact} rows compared to the last count");
    assert!(reasons.len() > 25, "{reasons:?}");
}

#[test]
fn a_port_is_seen_as_its_wire_is_and_inside_tunnels_only_if_that_is_wanted() {
    let packet = datagram(Family::V4, 1, 2).ip();
    let wan = TapSettings { port: Some("wan".into()), ..everything() };
    let mut lab = tapped(&wan);
    let sent = lab.send(LAN, &packet).sent;
    let captured = lab.captured();
    let [inner, outer] = &captured[..] else { panic!("{captured:?}") };
    assert_eq!(
        (inner.layer, inner.heading, inner.port.as_str()),
        (Layer::Inner, Heading::Out, "wan")
    );
    assert_eq!(inner.bytes, packet, "before anything was changed");
    assert_eq!((outer.layer, outer.heading), (Layer::Outer, Heading::Out));
    assert_eq!(outer.bytes[14..], sent[0].packet[..], "as it was sent");
    for one in &captured {
        assert_eq!(one.verdict, Some(Verdict::Protect(BERLIN)));
        assert_eq!(one.to, "berlin");
        assert!(!one.outbound_policy.is_empty() && one.inbound_policy.is_empty(), "{one:?}");
    }
    let mut lab = tapped(&TapSettings { layers: Layers::Outer, snaplen: 20, ..wan });
    let sealed = lab.peer(BERLIN).seal(&datagram(Family::V4, 2, 1).ip());
    lab.send(WAN, &sealed);
    let captured = lab.captured();
    let [one] = &captured[..] else { panic!("{captured:?}") };
    assert_eq!((one.layer, one.heading), (Layer::Outer, Heading::In));
    assert_eq!(one.bytes.len(), 20);
    assert_eq!(one.original as usize, sealed.len() + 14);
    assert_eq!(one.bytes[14..], sealed[..6], "as it was received, not as it was opened");
    assert_eq!(
        (one.opened_from.as_str(), one.verdict.map(Fate::of)),
        ("berlin", Some(Fate::Forward))
    );
    assert!(!one.inbound_policy.is_empty(), "{one:?}");
}

#[test]
fn drops_and_filters_choose_and_what_is_not_chosen_is_not_left_out() {
    let drops = TapSettings { outcome: Outcome::Dropped, ..everything() };
    let unmatched = wire::build::PacketBuilder::v4("10.1.0.5", "9.9.9.9").udp(1, 2).ip();
    let mut lab = tapped(&drops);
    lab.send(LAN, &datagram(Family::V4, 1, 2).ip());
    let verdict = lab.send(LAN, &unmatched).verdicts[0];
    let captured = lab.captured();
    let [one] = &captured[..] else { panic!("{captured:?}") };
    assert_eq!(one.verdict, Some(verdict));
    assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
    let Verdict::Drop(reason) = verdict else { return };
    for (filter, expected) in [(Test::Reason(reason), 1), (Test::Reason(DropReason::Vlan), 0)] {
        let filter = Some(Filter::Test(filter));
        let mut lab = tapped(&TapSettings { filter, ..drops.clone() });
        lab.send(LAN, &unmatched);
        assert_eq!(lab.captured().len(), expected);
        assert_eq!(lab.left_out(), 0);
    }
}

#[test]
fn a_capture_takes_as_many_packets_as_it_wants_and_counts_what_the_rate_leaves_out() {
    let packet = datagram(Family::V4, 1, 2).ip();
    let lan = TapSettings { port: Some("lan".into()), packets: 3, ..everything() };
    let mut lab = tapped(&lan);
    lab.send_all(LAN, &[&packet; 100]);
    assert_eq!((lab.captured().len(), lab.left_out()), (3, 0));
    let mut lab =
        Hub::default().laboratory().tapped_at_rate(&TapSettings { packets: 1000, ..lan }, 7);
    lab.send_all(LAN, &[&packet; 100]);
    assert_eq!((lab.captured().len(), lab.left_out()), (7, 93));
}
