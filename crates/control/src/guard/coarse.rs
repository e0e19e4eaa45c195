//! The guard's outbound rules for many policies: by remote address alone, never looser than the
//! policies one by one.
//!
//! | | by policy | by address |
//! |---|---|---|
//! | PROTECT, DISCARD | drop what the selector matches | drop all to any of its remote addresses |
//! | BYPASS before all PROTECT and DISCARD of its remote addresses | pass | pass, the first ones |
//! | other BYPASS | pass | drop, where its addresses are some of theirs |
//!
//! A BYPASS of the second row decides all that it matches, unless another BYPASS does: its rule in
//! front of the set lets nothing through that the policies would not.

use std::fmt::Write;

use policy::AddressRange;
use wire::Family;

use super::cover::Cover;
use super::rules::rules;
use super::union::Union;
use config::validated::{Action, Policy};

/// BYPASS rules at most.
const MAX_BYPASS_RULES: usize = 500;
/// Ranges in one line of the text.
const RANGES_IN_LINE: usize = 16;

/// The outbound rules by remote address.
pub(super) struct ByAddress {
    /// The sets, at the head of the table.
    pub(super) sets: String,
    /// The rules of chain `outbound`.
    pub(super) rules: String,
    /// BYPASS policies without a rule of their own.
    pub(super) bypasses_left_out: usize,
    /// Policies that these rules cover.
    pub(super) cover: Cover,
}

/// Writes the rules of `policies`: outbound, the one that wins first.
pub(super) fn by_address(policies: &[&Policy]) -> ByAddress {
    let SortedPolicies { kept, rules, closed, bypasses_left_out } = SortedPolicies::of(policies);
    let ranges = FAMILIES.into_iter().zip(&closed);
    let ranges: Vec<_> = ranges.map(|(family, closed)| (family, closed.ranges(family))).collect();
    let listed = kept.into_iter().cloned().collect();
    let cover = Cover { listed, closed, behind: Vec::new() };
    let mut made = ByAddress { sets: String::new(), rules, bypasses_left_out, cover };
    ranges.iter().for_each(|(family, ranges)| made.close(*family, ranges));
    made
}

/// Families, in the order of [`SortedPolicies::closed`].
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The outbound policies, sorted into rules that pass and addresses that are closed.
#[derive(Default)]
struct SortedPolicies<'a> {
    /// BYPASS policies that have rules.
    kept: Vec<&'a Policy>,
    /// Rules of those BYPASS policies.
    rules: String,
    /// Remote addresses of all PROTECT and DISCARD policies.
    closed: [Union; 2],
    bypasses_left_out: usize,
}

impl<'a> SortedPolicies<'a> {
    fn of(policies: &[&'a Policy]) -> SortedPolicies<'a> {
        let mut decided = SortedPolicies::default();
        let mut bypass_rules = 0;
        for policy in policies {
            let mut families = FAMILIES.into_iter().zip(&mut decided.closed);
            if policy.action != Action::Bypass {
                families.for_each(|(family, closed)| {
                    remote_of(policy, family).for_each(|range| closed.add(range));
                });
                continue;
            }
            // What is closed so far was closed by policies that win over this one.
            let is_first = families.all(|(family, closed)| {
                remote_of(policy, family).all(|range| !closed.meets(range))
            });
            let mut text = String::new();
            let count = rules(&mut text, policy);
            if is_first && bypass_rules + count <= MAX_BYPASS_RULES {
                bypass_rules += count;
                decided.kept.push(policy);
                decided.rules.push_str(&text);
            } else {
                decided.bypasses_left_out += 1;
            }
        }
        decided
    }
}

/// Remote addresses of a policy in a family that it holds in.
fn remote_of(policy: &Policy, family: Family) -> impl Iterator<Item = &AddressRange> {
    let holds = policy.selector.local.iter().any(|range| range.family == family);
    policy.selector.remote.iter().filter(move |range| holds && range.family == family)
}

impl ByAddress {
    /// Adds the set of a family and the rule that drops by it.
    fn close(&mut self, family: Family, ranges: &[AddressRange]) {
        let (version, keyword, kind) = match family {
            Family::V4 => ("ipv4", "ip", "ipv4_addr"),
            Family::V6 => ("ipv6", "ip6", "ipv6_addr"),
        };
        if ranges == [AddressRange::any(family)] {
            let _ = writeln!(self.rules, "    meta nfproto {version} counter drop");
            return;
        }
        if ranges.is_empty() {
            return;
        }
        // Constant: the kernel refuses to take an element out while a rule names the set.
        let sets = &mut self.sets;
        let _ = writeln!(sets, "  set closed_{version} {{\n    type {kind};");
        sets.push_str("    flags constant, interval;\n    elements = {\n");
        for line in ranges.chunks(RANGES_IN_LINE) {
            sets.push_str("     ");
            line.iter().for_each(|range| {
                let _ = write!(sets, " {range},");
            });
            sets.push('\n');
        }
        sets.push_str("    }\n  }\n");
        let _ = writeln!(self.rules, "    {keyword} daddr @closed_{version} counter drop");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::{Book, Decider, PolicyId, Spd, common};
    use wire::{Flow, Upper};

    fn range(lo: u128, hi: u128) -> AddressRange {
        AddressRange { family: Family::V4, lo, hi }
    }

    #[test]
    fn a_union_holds_what_was_added_and_nothing_else() {
        // Every union of a few ranges of 0..=7, one bit an address.
        let all: Vec<(u128, u128)> =
            (0..8).flat_map(|lo| (lo..8).map(move |hi| (lo, hi))).collect();
        for first in &all {
            for second in &all {
                for third in &all {
                    let mut union = Union::default();
                    let mut bits = 0u32;
                    for (lo, hi) in [first, second, third] {
                        union.add(&range(*lo, *hi));
                        (*lo..=*hi).for_each(|address| bits |= 1 << address);
                    }
                    let ranges = union.ranges(Family::V4);
                    let held = ranges.iter().flat_map(|range| range.lo..=range.hi);
                    assert_eq!(held.fold(0, |held, address| held | 1 << address), bits);
                    for (lo, hi) in &all {
                        let has = |address: u128| bits >> address & 1 == 1;
                        assert_eq!(union.meets(&range(*lo, *hi)), (*lo..=*hi).any(has));
                        assert_eq!(union.holds(&range(*lo, *hi)), (*lo..=*hi).all(has));
                    }
                }
            }
        }
    }

    /// A policy over a handful of addresses, ports and protocols.
    fn policy(number: u32, random: &mut impl FnMut(u32) -> u32) -> String {
        let mut range = |network: &str| {
            let lo = random(8);
            format!("{network}.{lo}-{network}.{}", lo + random(8 - lo))
        };
        let (local, remote) = (range("10.0.0"), range("20.0.0"));
        let action = ["peer = \"a\"", "action = \"bypass\"", "action = \"discard\""];
        let action = action[random(3) as usize];
        let upper = match random(3) {
            0 => "protocol = \"tcp\"\nremote_ports = [\"1-2\"]",
            1 => "protocol = \"udp\"",
            _ => "",
        };
        format!(
            "[[policy]]\nname = \"p{number}\"\n{action}\nlocal = [\"{local}\"]\n\
             remote = [\"{remote}\"]\n{upper}\npriority = {}\n",
            random(4)
        )
    }

    #[test]
    fn by_address_lets_nothing_through_that_the_policies_do_not() {
        const HEAD: &str = "[node]\nname = \"a\"\n[port.wan]\nnetdev = \"w\"\n\
             side = \"unprotected\"\n[peer.a]\nlocal = \"192.0.2.1\"\n\
             remote = \"192.0.2.2\"\nkeys = \"file:a\"\nmanual = \"laboratory\"\n\
             suite = \"aes-128-gcm\"\n";
        let mut state = 0x9e37_79b9u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below.max(1)
        };
        let (mut passed, mut stricter) = (0, 0);
        for round in 0..300 {
            let count = 1 + random(6);
            let text: String = (0..count).map(|number| policy(number, &mut random)).collect();
            let config = config::parse(&format!("{HEAD}{text}"), "test")
                .unwrap_or_else(|errors| panic!("{errors}"))
                .validated;
            let spd = |policies: &[&Policy]| {
                let compiled = policies
                    .iter()
                    .rev()
                    .zip(0..)
                    .map(|(policy, id)| policy.by_itself(PolicyId(id)));
                Spd::new(compiled.collect()).expect("few rules")
            };
            let ordered = crate::guard::text::in_order(&config.policies);
            let decided = SortedPolicies::of(&ordered);
            let (all, kept) = (spd(&ordered), spd(&decided.kept));
            for _ in 0..200 {
                let flow = Flow {
                    family: Family::V4,
                    source: 0x0a00_0000 + u128::from(random(8)),
                    destination: 0x1400_0000 + u128::from(random(8)),
                    protocol: [6, 17, 1][random(3) as usize],
                    upper: Upper::Ports { source: 1, destination: 1 + random(3) as u16 },
                    opens: false,
                };
                let says = |spd: &Spd| {
                    let mut out = [Decider::None];
                    spd.classify(common(Book::SpdOut, flow.family), &[flow], &mut out);
                    match out[0] {
                        Decider::Policy(index) => Some(spd.policy(index).action),
                        _ => None,
                    }
                };
                let to = range(flow.destination, flow.destination);
                let passes = says(&kept).is_some() || !decided.closed[0].meets(&to);
                let may = says(&all).is_none_or(|action| action == policy::Action::Bypass);
                assert!(may || !passes, "round {round}: {flow:?} passes:\n{text}");
                passed += u32::from(passes);
                stricter += u32::from(may && !passes);
            }
        }
        assert!(passed > 1000 && stricter > 1000, "{passed} passed, {stricter} stricter");
    }

    #[test]
    fn the_highest_address_is_no_edge_case() {
        let mut union = Union::default();
        for (lo, hi) in [(u128::MAX, u128::MAX), (0, u128::MAX), (5, 5)] {
            union.add(&AddressRange { family: Family::V6, lo, hi });
        }
        assert_eq!(union.ranges(Family::V6), [AddressRange::any(Family::V6)]);
    }
}
