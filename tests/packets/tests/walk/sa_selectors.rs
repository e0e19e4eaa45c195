//! An opened packet is inside of its SA's selectors, however wide the policy is (RFC 4301 §5.2).

use std::sync::Arc;

use dataplane::DropReason;
use dataplane::Verdict::{Drop, Forward};
use packets::lab::{BERLIN, Hub, LAN, Laboratory, WAN};
use policy::{AddressRange, EndSelector, EndUpper, SaSelectors};
use wire::Family::{self, V4};
use wire::build::PacketBuilder;

use crate::{FAMILIES, between};

/// The laboratory whose SA of berlin has UDP from port 8 to all local hosts.
fn laboratory(family: Family) -> Laboratory {
    let mut hub = Hub::default();
    let addresses = AddressRange::any(family);
    let local = vec![EndSelector { addresses, protocol: None, upper: EndUpper::Any }];
    let upper = EndUpper::Range { lo: 8, hi: 8 };
    let remote = vec![EndSelector { addresses, protocol: Some(17), upper }];
    let selectors = Arc::new(SaSelectors { local, remote });
    let old = hub.parts.inbound[0].clone();
    hub.parts.inbound[0] = Arc::new(old.at(old.id, old.set).selecting(Some(selectors)));
    hub.laboratory()
}

#[test]
fn packets_outside_of_the_selectors_are_dropped_and_others_pass() {
    for family in FAMILIES {
        let mut lab = laboratory(family);
        let from = |port| between(family, 2, 1).udp(port, 7).payload_of(20).ip();
        // The policy has all ports. Each order leaves a cached verdict behind.
        for (port, expected) in [
            (8, Forward(LAN)),
            (9, Drop(DropReason::SelectorMismatch)),
            (8, Forward(LAN)),
            (7, Drop(DropReason::SelectorMismatch)),
        ] {
            let sealed = lab.peer(BERLIN).seal(&from(port));
            assert_eq!(lab.send(WAN, &sealed).verdicts, [expected], "port {port}");
        }
        let mut wide = Laboratory::default();
        let sealed = wide.peer(BERLIN).seal(&from(9));
        assert_eq!(wide.send(WAN, &sealed).verdicts, [Forward(LAN)]);
    }
}

#[test]
fn an_icmp_error_is_checked_by_the_reversed_packet_that_it_quotes() {
    let mut lab = laboratory(V4);
    for (port, expected) in [(8, Forward(LAN)), (9, Drop(DropReason::SelectorMismatch))] {
        let about = PacketBuilder::v4("10.1.0.5", "10.2.0.5").udp(7, port).payload_of(20).ip();
        let error = PacketBuilder::v4("10.2.0.1", "10.1.0.5").icmp(3, 1, [0; 4]).payload(&about);
        let sealed = lab.peer(BERLIN).seal(&error.ip());
        assert_eq!(lab.send(WAN, &sealed).verdicts, [expected], "port {port}");
    }
}
