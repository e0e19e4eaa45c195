//! Shares out the identifications of outer IPv4 packets among SAs.

use std::collections::HashMap;

use ipsec::{Encapsulation, Identifications, Tunnel};

/// Returns the identifications of outbound SAs that are carried so, in their order: those between
/// the same ends, in ESP alone or in UDP, share none.
pub(crate) fn identifications(
    carried: impl Iterator<Item = Encapsulation> + Clone,
) -> Vec<Identifications> {
    let ends = carried.map(|Encapsulation { tunnel, udp, .. }| (tunnel, udp.is_some()));
    let mut counts: HashMap<(Tunnel, bool), usize> = HashMap::new();
    ends.clone().for_each(|ends| *counts.entry(ends).or_default() += 1);
    let mut places: HashMap<(Tunnel, bool), usize> = HashMap::new();
    let one = |ends| {
        let place = places.entry(ends).or_default();
        *place += 1;
        Identifications::of_one_among(*place - 1, counts[&ends])
    };
    ends.map(one).collect()
}
