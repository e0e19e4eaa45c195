use std::collections::BTreeMap;

use policy::AddressRange;
use proptest::prelude::*;

use super::*;

/// Prefixes around a few places, so that they nest, meet and lie apart.
fn prefix() -> impl Strategy<Value = Prefix> {
    let v4 = prop_oneof![
        Just(0u32),
        Just(u32::MAX),
        Just(0x0a01_0000),
        Just(0x0a01_ffff),
        Just(0x0a02_0000),
        any::<u32>(),
    ];
    let v6 = prop_oneof![
        Just(0u128),
        Just(u128::MAX),
        Just(0x2001_0db8 << 96),
        Just(0x2001_0db8 << 96 | 1),
        Just(0x2001_0db8 << 96 | 0xffff << 64),
        any::<u128>(),
    ];
    prop_oneof![
        (v4.prop_map(Address::v4), 0u8..=32),
        (v6.prop_map(Address::v6), prop_oneof![0u8..=128, 120u8..=128]),
    ]
    .prop_map(|(address, length)| Prefix {
        address: AddressRange::network(address, length).first(),
        length,
    })
}

fn target() -> impl Strategy<Value = RouteTarget> {
    prop_oneof![
        Just(RouteTarget::Local),
        Just(RouteTarget::Broadcast),
        Just(RouteTarget::Blackhole),
        Just(RouteTarget::Elsewhere),
        (0u32..9).prop_map(|hop| RouteTarget::Via(NextHopId(hop))),
    ]
}

/// `None`: the prefix goes.
fn changes(most: usize) -> impl Strategy<Value = Vec<(Prefix, Option<RouteTarget>)>> {
    prop::collection::vec((prefix(), prop::option::weighted(0.7, target())), 0..most)
}

type Linear = BTreeMap<Prefix, RouteTarget>;

/// The longest prefix that holds an address, by looking at all.
fn linear(routes: &Linear, address: Address) -> Option<RouteTarget> {
    let holds = |prefix: &&Prefix| {
        prefix.address.family == address.family
            && (prefix.address.value..=prefix.last()).contains(&address.value)
    };
    routes.keys().filter(holds).max_by_key(|prefix| prefix.length).map(|prefix| routes[prefix])
}

/// Addresses at the edges of prefixes, and some others.
fn addresses(routes: &[&Linear], others: &[(u32, u128)]) -> Vec<Address> {
    let edges = routes.iter().flat_map(|routes| routes.keys()).flat_map(|prefix| {
        let (family, first) = (prefix.address.family, prefix.address.value);
        [first, prefix.last(), first.wrapping_sub(1), prefix.last().wrapping_add(1)]
            .map(|value| (family, value))
    });
    let edges = edges.map(|(family, value)| match family {
        Family::V4 => Address::v4(value as u32),
        Family::V6 => Address::v6(value),
    });
    let others = others.iter().chain([&(0, 0), &(u32::MAX, u128::MAX)]);
    edges.chain(others.flat_map(|(v4, v6)| [Address::v4(*v4), Address::v6(*v6)])).collect()
}

fn check(table: &RouteTable, routes: &Linear, addresses: &[Address]) -> Result<(), TestCaseError> {
    let mut last_route = LastRoute::nothing();
    for address in addresses {
        let expected = linear(routes, *address);
        prop_assert_eq!(table.lookup(*address), expected, "{}", address);
        // From wherever the one before was, and from where it is itself.
        for _ in 0..2 {
            prop_assert_eq!(last_route.lookup(table, *address), expected, "{}", address);
        }
        let is_ours = matches!(expected, Some(RouteTarget::Local | RouteTarget::Broadcast));
        prop_assert_eq!(table.is_ours(*address), is_ours, "{}", address);
    }
    Ok(())
}

fn apply(
    table: &mut RouteTable,
    routes: &mut Linear,
    changes: &[(Prefix, Option<RouteTarget>)],
) -> Result<(), TestCaseError> {
    for (prefix, target) in changes {
        prop_assert_eq!(table.get(*prefix), routes.get(prefix).copied());
        match target {
            Some(target) => {
                prop_assert_eq!(table.insert(*prefix, *target), routes.insert(*prefix, *target));
            }
            None => prop_assert_eq!(table.remove(*prefix), routes.remove(prefix)),
        }
        prop_assert_eq!(table.get(*prefix), *target);
    }
    Ok(())
}

proptest! {
    /// However a table came about, and whatever became of copies of it.
    #[test]
    fn the_longest_prefix_wins(
        first in changes(60),
        second in changes(20),
        others: Vec<(u32, u128)>,
    ) {
        let (mut table, mut routes) = (RouteTable::default(), Linear::new());
        apply(&mut table, &mut routes, &first)?;
        let (copy, of_copy) = (table.clone(), routes.clone());
        apply(&mut table, &mut routes, &second)?;
        let addresses = addresses(&[&routes, &of_copy], &others);
        check(&table, &routes, &addresses)?;
        check(&copy, &of_copy, &addresses)?;
        // Whatever went, went wholly: what is left is what a table made of the rest is.
        let entry = |(&prefix, &target): (&Prefix, &RouteTarget)| RouteEntry { prefix, target };
        let entries: Vec<_> = routes.iter().map(entry).collect();
        check(&RouteTable::new(&entries), &routes, &addresses)?;
        for prefix in routes.keys() {
            table.remove(*prefix);
        }
        prop_assert!(table.is_empty());
    }
}
