//! Records what a guard covers, so that a change of few policies need not write it anew: tells
//! whether the guard is still as strict as the policies, and if not, whether a rule at its end
//! makes it so.

use policy::{AddressRange, Direction, Selector};
use wire::Family;

use super::union::Union;
use config::validated::{Action, Policy};

/// The rules of a guard as policies: outbound, the one that wins first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Cover {
    /// Policies with rules of their own: by policy, all of them; by address, the BYPASS policies.
    pub(super) listed: Vec<Policy>,
    /// Remote addresses of all PROTECT and DISCARD policies, if by address; their rules follow
    /// those of `listed`.
    pub(super) closed: [Union; 2],
    /// PROTECT and DISCARD policies whose rules were put behind all others.
    pub(super) behind: Vec<Policy>,
}

/// Families, in the order of [`Cover::closed`].
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The part that a guard lacks to be as strict as other policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lack {
    /// Nothing is covered.
    Nothing,
    /// A rule for this policy, behind all others.
    Rule,
    /// The whole guard: it is to be written anew.
    Everything,
}

impl Cover {
    /// Returns what the guard lacks for an added policy, which wins over all of its priority.
    /// `runs` says whether a policy still runs; rules of removed policies may remain for a while.
    pub(super) fn lacks_for(&self, policy: &Policy, runs: impl Fn(&Policy) -> bool) -> Lack {
        if policy.only == Some(Direction::Inbound) || policy.action == Action::Bypass {
            return Lack::Nothing; // what passes may be dropped for a while
        }
        // A BYPASS that does not win over it would let through what it closes.
        let mut bypasses = self.listed.iter().filter(|listed| listed.action == Action::Bypass);
        let loses = |bypass: &Policy| bypass.priority <= policy.priority || !runs(bypass);
        if bypasses.any(|bypass| bypass.selector.overlaps(&policy.selector) && loses(bypass)) {
            return Lack::Everything;
        }
        let closers = self.listed.iter().chain(&self.behind);
        let mut closers = closers.filter(|closer| closer.action != Action::Bypass);
        let is_closed = |(family, closed): (Family, &Union)| {
            !holds_in(&policy.selector, family)
                || of_family(&policy.selector.remote, family).all(|range| closed.holds(range))
        };
        let by_address = || FAMILIES.into_iter().zip(&self.closed).all(is_closed);
        match by_address() || closers.any(|closer| closer.selector.covers(&policy.selector)) {
            true => Lack::Nothing,
            false => Lack::Rule,
        }
    }

    /// Returns whether the guard is still as strict as the policies once this policy is removed.
    pub(super) fn is_kept_without(&self, policy: &Policy) -> bool {
        if policy.only == Some(Direction::Inbound) || policy.action != Action::Bypass {
            return true; // what is dropped may be dropped for a while
        }
        let has_rules = self.listed.iter().any(|listed| listed.name == policy.name);
        let closers = self.listed.iter().chain(&self.behind);
        let mut closers = closers.filter(|closer| closer.action != Action::Bypass);
        let is_open = |(family, closed): (Family, &Union)| {
            of_family(&policy.selector.remote, family).all(|range| !closed.meets(range))
        };
        // What nothing else closes passes without it too.
        !has_rules
            || (FAMILIES.into_iter().zip(&self.closed).all(is_open)
                && !closers.any(|closer| closer.selector.overlaps(&policy.selector)))
    }
}

fn of_family(ranges: &[AddressRange], family: Family) -> impl Iterator<Item = &AddressRange> {
    ranges.iter().filter(move |range| range.family == family)
}

fn holds_in(selector: &Selector, family: Family) -> bool {
    of_family(&selector.local, family).next().is_some()
        && of_family(&selector.remote, family).next().is_some()
}

#[cfg(test)]
mod tests {
    use policy::UpperSelector;

    use super::*;
    use crate::guard::text::{Outbound, in_order};
    use config::validated::PeerId;

    fn policy(name: &str, action: Action, remote: (u128, u128), priority: u32) -> Policy {
        let range = |(lo, hi)| AddressRange { family: Family::V4, lo, hi };
        Policy {
            name: name.into(),
            action,
            priority,
            only: None,
            ingress: None,
            selector: Selector {
                local: vec![range((0, u128::from(u32::MAX)))],
                remote: vec![range(remote)],
                protocol: None,
                upper: UpperSelector::Any,
            },
        }
    }

    const PROTECT: Action = Action::Protect(PeerId(0));

    /// Returns whether the rules of a cover let packets out to an address.
    fn passes(cover: &Cover, address: u128) -> bool {
        let to = AddressRange { family: Family::V4, lo: address, hi: address };
        let speaks = |policy: &&Policy| policy.selector.remote[0].meets_address(address);
        if let Some(first) = cover.listed.iter().find(speaks) {
            return first.action == Action::Bypass;
        }
        !cover.closed[0].meets(&to) && !cover.behind.iter().any(|policy| speaks(&policy))
    }

    trait Meets {
        fn meets_address(&self, address: u128) -> bool;
    }

    impl Meets for AddressRange {
        fn meets_address(&self, address: u128) -> bool {
            self.lo <= address && address <= self.hi
        }
    }

    /// Returns whether the policies, the newest last, let the machine's own packets out to an
    /// address.
    fn may_pass(policies: &[Policy], address: u128) -> bool {
        let ordered = in_order(policies);
        let decides =
            ordered.iter().find(|policy| policy.selector.remote[0].meets_address(address));
        decides.is_none_or(|policy| policy.action == Action::Bypass)
    }

    #[test]
    fn a_guard_that_is_extended_or_kept_never_lets_out_what_the_policies_do_not() {
        let mut state = 0x9e37_79b9u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below.max(1)
        };
        let mut seen = [0; 3];
        for round in 0..4000 {
            let mut policies: Vec<Policy> = Vec::new();
            let next = |random: &mut dyn FnMut(u32) -> u32, number: u32| {
                let lo = random(8);
                let remote = (lo.into(), (lo + random(8 - lo)).into());
                let action = [PROTECT, Action::Discard, Action::Bypass][random(3) as usize];
                policy(&format!("p{number}"), action, remote, random(3))
            };
            for number in 0..random(5) {
                policies.push(next(&mut random, number));
            }
            // One by one, or by address as if there were many.
            let by_address = random(2) == 1;
            let write = |policies: &[Policy]| match by_address {
                true => crate::guard::coarse::by_address(&in_order(policies)).cover,
                false => Outbound::of(policies).cover,
            };
            let mut cover = write(&policies);
            for number in 5..12 {
                let before = cover.clone();
                if random(2) == 0 && !policies.is_empty() {
                    let place = random(policies.len() as u32) as usize;
                    let gone = policies.remove(place);
                    if !cover.is_kept_without(&gone) {
                        cover = write(&policies);
                    }
                } else {
                    let policy = next(&mut random, number);
                    policies.push(policy.clone());
                    let lack = cover.lacks_for(&policy, |known| policies.contains(known));
                    seen[lack as usize] += 1;
                    match lack {
                        Lack::Nothing => {}
                        Lack::Rule => cover.behind.push(policy),
                        Lack::Everything => cover = write(&policies),
                    }
                }
                for address in 0..8 {
                    let passes = passes(&cover, address);
                    assert!(
                        !passes || may_pass(&policies, address),
                        "round {round}: to {address}: {before:?}\n{policies:?}"
                    );
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
    }
}
