//! Packet tables: every row is a description, a packet, its verdict and what leaves; what leaves
//! sealed is opened by the peer. One program, so that one test sees all rows.

mod acquire;
mod allocations;
mod attacks;
mod cache;
mod capture;
mod card;
mod checksum;
mod connections;
mod esp;
mod fragmented;
mod fragments;
mod groups;
mod headers;
mod holding;
mod hostile;
mod icmp;
mod limits;
mod link;
mod nat;
mod nested;
mod overlay;
mod path_mtu;
mod peers;
mod policies;
mod ports;
mod prefixes;
mod put;
mod reassembled;
mod sa_selectors;
mod size;
mod suites;
mod tagged;
mod tracking;
mod transmit;
mod transport;

use std::collections::BTreeSet;

use dataplane::DropReason;
use packets::Row;
use packets::lab::host;
use wire::Family;
use wire::build::PacketBuilder;

/// Both families, for rows that hold in each.
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A packet between the hosts of two networks of the laboratory; 1 is ours, 2 is berlin's.
fn between(family: Family, from: u32, to: u32) -> PacketBuilder {
    PacketBuilder::new(host(family, from), host(family, to))
}

/// Returns a small UDP datagram between two such hosts.
fn datagram(family: Family, from: u32, to: u32) -> PacketBuilder {
    between(family, from, to).udp(1000, 2000).payload_of(33)
}

fn all_rows() -> Vec<Row> {
    let tables = [
        attacks::rows(),
        card::rows(),
        checksum::rows(),
        connections::rows(),
        esp::rows(),
        fragments::rows(),
        groups::rows(),
        headers::rows(),
        icmp::rows(),
        limits::rows(),
        link::rows(),
        nat::rows(),
        overlay::rows(),
        policies::rows(),
        reassembled::rows(),
        size::rows(),
        transmit::rows(),
        transport::rows(),
    ];
    tables.into_iter().flatten().collect()
}

#[test]
fn every_drop_reason_has_a_row() {
    let mut seen = BTreeSet::from(transmit::SEEN_ELSEWHERE);
    for row in all_rows() {
        let (lab, _) = row.run();
        let counted = DropReason::ALL.iter().filter(|reason| lab.counters().dropped(**reason) > 0);
        seen.extend(counted.copied());
    }
    let missing: Vec<_> = DropReason::ALL.iter().filter(|reason| !seen.contains(reason)).collect();
    assert!(missing.is_empty(), "no row drops by {missing:?}");
}
