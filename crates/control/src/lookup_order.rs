//! The order in which policies are looked up where network cards carry the packets of some: those
//! in front, all others behind them, each part by precedence (XO-10).
//!
//! A card, or Linux for it, looks at its own policies before anybody else does, whatever their
//! priorities. So a policy is in front only if that changes no verdict (DESIGN I4): every policy
//! that wins over it and has packets in common with it is in front, too. One that a worker must
//! find first stays at its rank, and [`LookupPlace::Behind`] names the other one. Read from the
//! top, the first policy that matches a packet says what the database says of it.
//!
//! Cost: each carried policy with each that is not in front, up to [`MOST_STEPS`]; what is not
//! compared is not in front, which is always right.

use std::sync::Arc;

use policy::{Action, AddressRange, Direction, Policy, PolicyIndex, SaSetId, Spd};

/// Pairs of policies, and of their addresses, that are compared at most.
const MOST_STEPS: usize = 4_000_000;
/// Pairs of addresses up to which two lists are compared.
const MOST_PAIRS: usize = 4096;

/// A policy in the order of lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ordered {
    /// The slot of the policy.
    pub slot: PolicyIndex,
    /// Its place.
    pub place: LookupPlace,
}

/// The place of a policy in the order of lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupPlace {
    /// In front: a card, or Linux for it, carries the packets.
    InFront,
    /// At its rank: workers carry the packets.
    Ranked,
    /// At its rank, though a card carries the packets: the policy of this slot wins over it among
    /// packets of both, and is not in front.
    Behind(PolicyIndex),
    /// At its rank, though a card carries the packets: there is too much to compare.
    NotCompared,
}

/// The policies of a direction in the order of lookup. `is_carried` says of which sets a card, or
/// Linux for it, carries the packets of this direction.
pub fn lookup_order(
    spd: &Spd,
    direction: Direction,
    is_carried: impl Fn(SaSetId) -> bool,
) -> Vec<Ordered> {
    let mut policies = spd.policies();
    policies.retain(|(_, policy)| policy.only.is_none_or(|only| only == direction));
    let mut comparison = Comparison { ranked: Vec::new(), steps: 0 };
    let (mut front, mut behind) = (Vec::new(), Vec::new());
    for (slot, policy) in policies {
        let place = match policy.action {
            Action::Protect(set) if is_carried(set) => comparison.place_of(policy),
            _ => LookupPlace::Ranked,
        };
        let ordered = Ordered { slot, place };
        match place {
            LookupPlace::InFront => front.push(ordered),
            _ => {
                comparison.ranked.push((slot, policy));
                behind.push(ordered);
            }
        }
    }
    front.extend(behind);
    front
}

/// The policies so far that are not in front. All of them win over the next one.
struct Comparison<'p> {
    ranked: Vec<(PolicyIndex, &'p Policy)>,
    steps: usize,
}

impl Comparison<'_> {
    /// The place of a carried policy.
    fn place_of(&mut self, policy: &Policy) -> LookupPlace {
        for (slot, other) in &self.ranked {
            self.steps += steps(policy, other);
            if self.steps > MOST_STEPS {
                return LookupPlace::NotCompared;
            }
            match overlap(policy, other) {
                Some(false) => {}
                Some(true) => return LookupPlace::Behind(*slot),
                None => return LookupPlace::NotCompared,
            }
        }
        LookupPlace::InFront
    }
}

fn pairs(one: &[AddressRange], other: &[AddressRange]) -> usize {
    one.len().saturating_mul(other.len())
}

/// The effort of comparing two policies.
fn steps(one: &Policy, other: &Policy) -> usize {
    let (one, other) = (&one.selector, &other.selector);
    let lists = [pairs(&one.local, &other.local), pairs(&one.remote, &other.remote)];
    1 + lists.map(|pairs| pairs.min(MOST_PAIRS)).iter().sum::<usize>()
}

/// Returns whether a packet may match both policies; `None`: their lists are too long to compare.
fn overlap(one: &Policy, other: &Policy) -> Option<bool> {
    let (a, b) = (&one.selector, &other.selector);
    if !share_a_port(&one.ingress, &other.ingress) {
        return Some(false);
    }
    let is_long = [pairs(&a.local, &b.local), pairs(&a.remote, &b.remote)];
    let is_long = is_long.iter().any(|pairs| *pairs > MOST_PAIRS);
    (!is_long).then(|| a.overlaps(b))
}

/// Returns whether packets that come by some port concern both; no list: they come by any.
fn share_a_port(one: &Option<Arc<[u16]>>, other: &Option<Arc<[u16]>>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    one.iter().any(|port| other.contains(port))
}
