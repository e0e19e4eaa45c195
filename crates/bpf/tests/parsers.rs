//! The steering program's parser against `wire::packet`, over random header chains: on a protected
//! port the program passes a packet to our address exactly if the parser accepts it.

mod common;

use std::cell::Cell;

use bpf::Action;
use common::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wire::build::chosen_packet;
use wire::link::ethertype;
use wire::packet::{IPV4_BYTES, IPV6_BYTES};
use wire::{Address, Family, Fragment, Packet, Upper};

/// A neighbour inside and our address, of each family.
const ENDS: [[&str; 2]; 2] = [["10.1.0.5", "10.1.0.1"], ["2001:db8:1::5", "2001:db8:1::1"]];

/// Least packets passed behind extensions, behind eight headers, as first and as later fragments:
/// a third of the mean, so that chance never decides.
const LEAST_PASSED: [u64; 4] = [1000, 25, 100, 100];

/// Returns whether a packet from the neighbour is Linux's: nothing but an overlay's packets and
/// IPv4 options takes it to a worker.
fn is_for_linux(packet: &Packet) -> bool {
    let has_options =
        packet.flow.family == Family::V4 && usize::from(packet.upper_offset) != IPV4_BYTES;
    let is_of_overlay = packet.flow.protocol == UDP
        && matches!(packet.flow.upper, Upper::Ports { destination: OVERLAY, .. });
    !has_options && !is_of_overlay
}

/// Counts of the packets that were passed, so that the test is known to test.
#[derive(Default)]
struct PassedCounts {
    behind_extensions: Cell<u64>,
    behind_eight_headers: Cell<u64>,
    first_fragments: Cell<u64>,
    later_fragments: Cell<u64>,
}

impl PassedCounts {
    fn note(&self, packet: &Packet) {
        let add = |cell: &Cell<u64>, is_so: bool| cell.set(cell.get() + u64::from(is_so));
        let behind = usize::from(packet.upper_offset).saturating_sub(IPV6_BYTES);
        add(&self.behind_extensions, behind > 0);
        add(&self.behind_eight_headers, behind >= 64);
        add(&self.first_fragments, packet.fragment == Fragment::First);
        add(&self.later_fragments, packet.fragment == Fragment::Later);
    }
}

#[test]
fn the_steering_program_accepts_the_header_chains_that_the_parser_accepts() {
    let Some((steering, _socket)) = steering("program against parser") else { return };
    let passed = PassedCounts::default();
    let config = Config { cases: 40_000, failure_persistence: None, ..Config::default() };
    let choices = proptest::collection::vec(any::<u8>(), 0..48);
    let result = TestRunner::new(config).run(&(any::<bool>(), choices), |(is_v6, choices)| {
        let [from, to] = ENDS[usize::from(is_v6)].map(|text| Address::from(address(text)));
        let packet = chosen_packet(from, to, &choices);
        let ethertype = if is_v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let frame = [&LAN_MAC[..], &OTHER_MAC, &ethertype.to_be_bytes(), &packet].concat();
        let run = steering.run(&frame).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let parsed = wire::packet::parse(&packet);
        // One changed byte may be the version's or an address's.
        let is_between = |parsed: &Packet| {
            [parsed.flow.source_address(), parsed.flow.destination_address()] == [from, to]
        };
        match (run.action, parsed) {
            (Action::Pass, Ok(parsed)) => {
                prop_assert!(is_for_linux(&parsed), "{packet:02x?}");
                passed.note(&parsed);
            }
            (Action::Redirect, Ok(parsed)) => {
                let is_refused = is_between(&parsed) && is_for_linux(&parsed);
                prop_assert!(!is_refused, "the parser accepts it: {packet:02x?}");
            }
            (Action::Redirect, Err(_)) => {}
            (action, parsed) => {
                prop_assert!(false, "{action:?}, {parsed:?}: {packet:02x?}");
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let PassedCounts { behind_extensions, behind_eight_headers, first_fragments, later_fragments } =
        &passed;
    let counts = [behind_extensions, behind_eight_headers, first_fragments, later_fragments];
    let counts = counts.map(Cell::get);
    println!("passed behind extensions, behind eight headers, fragments first, later: {counts:?}");
    for (count, least) in counts.into_iter().zip(LEAST_PASSED) {
        assert!(count > least, "{counts:?}");
    }
}
