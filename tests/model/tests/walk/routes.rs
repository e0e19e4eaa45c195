//! The routing table ≡ the longest prefix by a linear scan.

use dataplane::{NextHopId, Prefix, RouteEntry, RouteTable, RouteTarget};
use model::world::longest_prefix;
use proptest::prelude::*;
use proptest::sample::select;
use wire::{Address, Family};

const TABLES: u32 = 3000;

/// A prefix of either family: nested in a few places, so that prefixes of all lengths hold one
/// another, begin together, end together, and touch; /0 and host routes, the first and the last
/// address among them.
fn a_prefix() -> impl Strategy<Value = Prefix> {
    let anchor = select(&[0u128, u128::MAX, u128::MAX / 3, 0x0a01_0000 << 96, 1 << 127][..]);
    let family = select(&[Family::V4, Family::V6][..]);
    let flip = prop_oneof![2 => Just(None), 1 => (0..128u32).prop_map(Some)];
    let length = prop_oneof![
        1 => select(&[0u8, 1, 31, 32, 127, 128][..]),
        3 => 0..=128u8,
        2 => 20..=32u8,
    ];
    (family, anchor, flip, length).prop_map(|(family, anchor, flip, length)| {
        let width = u32::from(family.address_bits());
        let length = length.min(family.address_bits());
        let place = anchor ^ flip.map_or(0, |bit| 1 << bit);
        // The highest bits count, in both families.
        let value = place >> (128 - width);
        let host_bits = width - u32::from(length);
        let value = if host_bits == 128 { 0 } else { value >> host_bits << host_bits };
        Prefix { address: Address { family, value }, length }
    })
}

fn a_target() -> impl Strategy<Value = RouteTarget> {
    prop_oneof![
        4 => (0..4u32).prop_map(|hop| RouteTarget::Via(NextHopId(hop))),
        1 => Just(RouteTarget::Blackhole),
        1 => Just(RouteTarget::Elsewhere),
        1 => Just(RouteTarget::Local),
        1 => Just(RouteTarget::Broadcast),
    ]
}

#[test]
fn the_table_finds_the_longest_prefix_at_every_edge() {
    let entry = (a_prefix(), a_target());
    let strategy = prop::collection::vec(entry, 0..24);
    crate::check(TABLES, strategy, |entries| {
        let entries: Vec<RouteEntry> =
            entries.into_iter().map(|(prefix, target)| RouteEntry { prefix, target }).collect();
        let table = RouteTable::new(&entries);
        for family in [Family::V4, Family::V6] {
            let highest = family.highest_address();
            let mut edges = vec![0, 1, highest, highest - 1, highest / 2, highest / 2 + 1];
            for Prefix { address, length } in entries.iter().map(|entry| entry.prefix) {
                if address.family == family {
                    let host_bits = u32::from(family.address_bits() - length);
                    let size = 1u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
                    let last = address.value + size;
                    edges.extend([address.value, address.value.saturating_sub(1), last]);
                    edges.extend([last.saturating_add(1).min(highest), address.value + size / 2]);
                }
            }
            for value in edges {
                let destination = Address { family, value };
                let expected = longest_prefix(&entries, destination);
                prop_assert_eq!(table.lookup(destination), expected, "{}", destination);
            }
        }
        Ok(())
    });
}
