//! The security policy database (RFC 4301 §4.4.1): all domains' policies, compiled for searching,
//! and how one database is made from another.
//!
//! A policy is compiled into rules: one for every combination of the entries of its selector's
//! lists, in each domain that it holds in. A flow is searched in the rules of its domain, the
//! highest precedence first, until one decides.
//!
//! **Change.** What was compiled as a whole (the base) is never touched. A change makes a database
//! that shares the base, with a list in front of what came and went since; a base with the list
//! folded in is made beside it ([`Spd::rebuilt`]) and takes its place ([`Spd::on`]). Through all of
//! that a policy keeps its slot, and a domain's generation rises with each change of its policies
//! and with nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wire::{Family, Flow};

use crate::domain::{Classes, DOMAINS_A_CLASS};
use crate::table::{Gathered, Table};
use crate::{Direction, DomainId, Generation, IngressClass, Policy, PolicyId, PolicyIndex};

/// What the database says of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Match {
    /// This policy decides.
    Policy(PolicyIndex),
    /// A non-first fragment whose missing ports, ICMP type or (IPv6) protocol this policy would
    /// have to see before anything below it may decide. It never falls past (FC-44).
    FragmentPorts(PolicyIndex),
    /// No policy speaks of the flow: it is dropped.
    None,
}

/// Why a set of policies cannot become a database.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpdError {
    /// The lists of the policies multiply to more rules than [`Spd::MAX_RULES`].
    #[error("policy {policy:?} brings the set to {rules} rules; at most {limit} are held")]
    TooManyRules {
        /// Name of the policy that passed the limit.
        policy: String,
        /// Rules up to and with that policy.
        rules: usize,
        /// The limit.
        limit: usize,
    },
}

/// Why a change cannot be made upon a base: the database must be made anew, with
/// [`Spd::renewed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeedsRenewal {
    /// No slot is left.
    Slots,
    /// A policy names a port that none named before.
    Ingress,
    /// The list in front of the base would become too long.
    Changes,
    /// More rules than [`Spd::MAX_RULES`].
    Rules,
    /// What the base was made of is not what changed since.
    Base,
}

/// How a database searches its rules. Both ways say the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Search {
    /// The fast search.
    #[default]
    Compiled,
    /// One rule after the other: for benches, and for tests that compare.
    Linear,
}

/// The policies of a snapshot, compiled for searching. Immutable, and cheap to copy.
#[derive(Clone, Debug)]
pub struct Spd {
    search: Search,
    base: Arc<Base>,
    /// Policies that came since the base was made; the first has the slot behind the base's last.
    added: Vec<Arc<Policy>>,
    /// What happened since the base was made, in order.
    log: Vec<Change>,
    /// One entry a domain.
    tables: Box<[Table]>,
    /// One entry a domain.
    generations: Box<[Generation]>,
    /// How often a generation began anew.
    wraps: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Added(PolicyIndex),
    Removed(PolicyIndex),
}

/// What was compiled as a whole.
#[derive(Debug, Default)]
struct Base {
    /// By slot. Slots of policies that went are kept, for who still counts by them.
    slots: Box<[Slot]>,
    /// Slots that there may be.
    capacity: usize,
    classes: Classes,
}

#[derive(Clone, Debug)]
struct Slot {
    policy: Arc<Policy>,
    holds: bool,
}

impl Default for Spd {
    fn default() -> Spd {
        Spd::new(Vec::new()).expect("no policies are not too many")
    }
}

impl Spd {
    /// Rules (cross products of the selectors' lists) at most, over all domains.
    pub const MAX_RULES: usize = 4_000_000;
    /// Changes at most upon one base.
    pub const MAX_CHANGES: usize = 512;

    /// Compiles policies, in any order. Their ids should differ; of two with one id and priority
    /// the first given wins. Slots are given in order of precedence, and there are no more of them:
    /// no policy can be added. Every domain has generation 1.
    ///
    /// # Errors
    /// [`SpdError`], before any rule is made.
    pub fn new(policies: Vec<Policy>) -> Result<Spd, SpdError> {
        let slots = policies.len();
        Spd::with_room(policies, slots)
    }

    /// The same with room for so many policies in its life.
    ///
    /// # Errors
    /// As [`Spd::new`].
    pub fn with_room(mut policies: Vec<Policy>, capacity: usize) -> Result<Spd, SpdError> {
        policies.sort_by_key(|policy| std::cmp::Reverse(policy.precedence()));
        let slot = |policy| Slot { policy: Arc::new(policy), holds: true };
        let slots: Box<[Slot]> = policies.into_iter().map(slot).collect();
        Spd::of_slots(slots, capacity)
    }

    fn of_slots(slots: Box<[Slot]>, capacity: usize) -> Result<Spd, SpdError> {
        let holding = slots.iter().filter(|slot| slot.holds).map(|slot| &*slot.policy);
        let classes = Classes::of(holding);
        let mut order: Vec<(PolicyIndex, &Policy)> = (0..)
            .map(PolicyIndex)
            .zip(&slots)
            .filter(|(_, slot)| slot.holds)
            .map(|(index, slot)| (index, &*slot.policy))
            .collect();
        order.sort_by_key(|(_, policy)| std::cmp::Reverse(policy.precedence()));
        let tables = compile(&order, &classes)?;
        let generations = vec![Generation(1); tables.len()].into();
        let capacity = capacity.max(slots.len());
        let base = Arc::new(Base { slots, capacity, classes });
        let search = Search::default();
        Ok(Spd { search, base, added: Vec::new(), log: Vec::new(), tables, generations, wraps: 0 })
    }

    /// The policies that hold, the highest precedence first. Cost: they are sorted.
    pub fn policies(&self) -> Vec<(PolicyIndex, &Policy)> {
        let mut policies: Vec<_> = self.holding().collect();
        policies.sort_by_key(|(_, policy)| std::cmp::Reverse(policy.precedence()));
        policies
    }

    /// How many policies hold.
    pub fn len(&self) -> usize {
        self.holding().count()
    }

    /// Whether no policy holds.
    pub fn is_empty(&self) -> bool {
        self.holding().next().is_none()
    }

    /// The policies that hold, by slot.
    pub fn holding(&self) -> impl Iterator<Item = (PolicyIndex, &Policy)> {
        let gone: HashSet<PolicyIndex> = self.removed().collect();
        let holds = move |index: &PolicyIndex| {
            let of_base = self.base.slots.get(index.0 as usize);
            of_base.is_none_or(|slot| slot.holds) && !gone.contains(index)
        };
        let slots = (0..self.slots() as u32).map(PolicyIndex);
        slots.filter(holds).map(|index| (index, self.policy(index)))
    }

    /// Whether these are the policies that hold, in any order.
    pub fn holds_only(&self, policies: &[Policy]) -> bool {
        let held: HashMap<PolicyId, &Policy> =
            self.holding().map(|(_, policy)| (policy.id, policy)).collect();
        let is_held = |policy: &Policy| held.get(&policy.id).is_some_and(|held| *held == policy);
        held.len() == policies.len() && policies.iter().all(is_held)
    }

    /// Policies of all slots ever given, those too that hold no more: for who counts by slot.
    pub fn counted(&self) -> impl Iterator<Item = (PolicyIndex, &Policy)> {
        (0..self.slots() as u32).map(PolicyIndex).map(|index| (index, self.policy(index)))
    }

    /// Slots that there may be, given or not.
    pub fn capacity(&self) -> usize {
        self.base.capacity
    }

    /// Slots given so far.
    pub fn slots(&self) -> usize {
        self.base.slots.len() + self.added.len()
    }

    /// The policy of a slot.
    ///
    /// # Panics
    /// If `index` is from another database.
    pub fn policy(&self, index: PolicyIndex) -> &Policy {
        let place = index.0 as usize;
        match self.base.slots.get(place) {
            Some(slot) => &slot.policy,
            None => &self.added[place - self.base.slots.len()],
        }
    }

    /// The slot of the policy with this name, if it holds. Cost: all are looked through.
    pub fn named(&self, name: &str) -> Option<PolicyIndex> {
        self.holding().find(|(_, policy)| policy.name == name).map(|(index, _)| index)
    }

    /// The class of a port, by its place.
    pub fn class(&self, port: u16) -> IngressClass {
        self.base.classes.of_port(port)
    }

    /// All domains.
    pub fn domains(&self) -> impl Iterator<Item = DomainId> + use<> {
        (0..self.tables.len() as u16).map(DomainId)
    }

    /// Since when a domain's policies stand.
    ///
    /// # Panics
    /// If `domain` is from another database.
    #[inline]
    pub fn generation(&self, domain: DomainId) -> Generation {
        self.generations[usize::from(domain.0)]
    }

    /// How often a generation began anew: what was remembered before must be forgotten.
    pub fn wraps(&self) -> u32 {
        self.wraps
    }

    /// Rules that a flow of this domain is compared with at most.
    ///
    /// # Panics
    /// If `domain` is from another database.
    pub fn rules(&self, domain: DomainId) -> usize {
        self.tables[usize::from(domain.0)].len()
    }

    /// Judges each flow: `out[i]` is what the domain's policies say of `flows[i]`.
    ///
    /// # Panics
    /// If the slices differ in length, or `domain` is from another database.
    pub fn classify(&self, domain: DomainId, flows: &[Flow], out: &mut [Match]) {
        assert_eq!(flows.len(), out.len(), "one match for each flow");
        match self.search {
            Search::Compiled => self.tables[usize::from(domain.0)].classify(flows, out),
            Search::Linear => {
                let says = |flow| self.search_linear(domain, flow);
                flows.iter().zip(out).for_each(|(flow, out)| *out = says(flow));
            }
        }
    }

    /// The same database searched another way; what is [`changed`](Self::changed) of it, too.
    pub fn searched(self, search: Search) -> Spd {
        Spd { search, ..self }
    }

    /// The linear search: what [`classify`](Self::classify) must say. One comparison a rule, up to
    /// the first that decides.
    pub fn search_linear(&self, domain: DomainId, flow: &Flow) -> Match {
        self.tables[usize::from(domain.0)].search(flow).next().unwrap_or(Match::None)
    }

    /// All policies that speak of the flow, the deciding one first, each once; for `explain`.
    ///
    /// No element is [`Match::None`]: a flow that nothing speaks of yields an empty list.
    pub fn matching(&self, domain: DomainId, flow: &Flow) -> Vec<Match> {
        let mut matches: Vec<Match> = self.tables[usize::from(domain.0)].search(flow).collect();
        // The rules of a policy lie side by side, and say the same of a flow that they match.
        matches.dedup();
        matches
    }
}

/// How one database is made from another.
impl Spd {
    /// Changes since the base was made.
    pub fn changes(&self) -> usize {
        self.log.len()
    }

    /// A database without these policies and with those, upon the same base. The generation of
    /// each domain that any of them has rules in rises by 1. Cost: by the changes since the base
    /// was made, not by its size.
    ///
    /// # Errors
    /// [`NeedsRenewal`]: it cannot be made upon this base.
    pub fn changed(
        &self,
        removed: &[PolicyIndex],
        added: Vec<Policy>,
    ) -> Result<Spd, NeedsRenewal> {
        if self.slots() + added.len() > self.base.capacity {
            return Err(NeedsRenewal::Slots);
        }
        if !added.iter().all(|policy| self.base.classes.cover(policy)) {
            return Err(NeedsRenewal::Ingress);
        }
        if self.log.len() + removed.len() + added.len() > Spd::MAX_CHANGES {
            return Err(NeedsRenewal::Changes);
        }
        let mut next = self.clone();
        let mut touched = vec![false; self.tables.len()];
        let mut touch = |policy: &Policy| {
            let domains = self.base.classes.domains_of(policy);
            domains.for_each(|domain| touched[usize::from(domain.0)] = true);
        };
        for index in removed {
            touch(self.policy(*index));
            next.log.push(Change::Removed(*index));
        }
        for policy in added {
            touch(&policy);
            next.log.push(Change::Added(PolicyIndex(next.slots() as u32)));
            next.added.push(Arc::new(policy));
        }
        next.overlay(&touched)?;
        let domains = (0..).map(DomainId).zip(touched).filter(|(_, touched)| *touched);
        domains.for_each(|(domain, _)| next.raise(domain));
        Ok(next)
    }

    /// The same policies in their slots at their generations, upon a base of their own. For a
    /// thread beside what runs: it takes as long as there are policies.
    ///
    /// # Errors
    /// [`SpdError`].
    pub fn rebuilt(&self) -> Result<Spd, SpdError> {
        let gone: Vec<PolicyIndex> = self.removed().collect();
        let of_base = self.base.slots.iter().cloned();
        let of_added = self.added.iter().map(|policy| Slot { policy: policy.clone(), holds: true });
        let mut slots: Box<[Slot]> = of_base.chain(of_added).collect();
        gone.iter().for_each(|index| slots[index.0 as usize].holds = false);
        let mut rebuilt = Spd::of_slots(slots, self.base.capacity)?;
        if rebuilt.base.classes == self.base.classes {
            rebuilt.continue_from(self);
        } else {
            rebuilt.begin_after(self);
        }
        Ok(rebuilt)
    }

    /// This database upon a base that [`rebuilt`](Self::rebuilt) made of `earlier`, which this
    /// one was [`changed`](Self::changed) from.
    ///
    /// # Errors
    /// [`NeedsRenewal`]; the old base still stands.
    pub fn on(&self, rebuilt: &Spd, earlier: &Spd) -> Result<Spd, NeedsRenewal> {
        if !self.continues(earlier) {
            return Err(NeedsRenewal::Base);
        }
        if rebuilt.base.classes != self.base.classes {
            return Err(NeedsRenewal::Ingress);
        }
        let mut next = rebuilt.clone();
        next.log = self.log[earlier.log.len()..].to_vec();
        next.added = self.added[earlier.added.len()..].to_vec();
        next.overlay(&vec![true; next.tables.len()])?;
        next.continue_from(self);
        Ok(next)
    }

    /// Whether this database came of an earlier one by changes alone.
    fn continues(&self, earlier: &Spd) -> bool {
        let same_policies = |(one, other): (&Arc<Policy>, &Arc<Policy>)| Arc::ptr_eq(one, other);
        Arc::ptr_eq(&self.base, &earlier.base)
            && self.log.starts_with(&earlier.log)
            && self.added.len() >= earlier.added.len()
            && self.added.iter().zip(&earlier.added).all(same_policies)
    }

    /// A database of other policies, of which those that are the same keep their slots, with room
    /// for so many slots. Where there is no room all slots are given anew. Generations rise by 1
    /// in each domain whose policies changed; in all where slots are given anew.
    ///
    /// Policies are the same if they are equal; equal policies have equal ids.
    ///
    /// # Errors
    /// [`SpdError`], before any rule is made.
    pub fn renewed(&self, policies: Vec<Policy>, room: usize) -> Result<(Spd, Slots), SpdError> {
        let slot_of: HashMap<PolicyId, PolicyIndex> =
            self.holding().map(|(index, policy)| (policy.id, index)).collect();
        let is_known = |policy: &Policy| {
            let index = slot_of.get(&policy.id).copied();
            index.filter(|index| self.policy(*index) == policy)
        };
        let fresh = policies.iter().filter(|policy| is_known(policy).is_none()).count();
        let fits = self.slots() + fresh <= self.base.capacity;
        if !fits {
            let mut next = Spd::with_room(policies, room)?;
            next.begin_after(self);
            return Ok((next, Slots::GivenAnew));
        }
        let kept = self.counted().map(|(_, policy)| Arc::new(policy.clone()));
        let mut slots: Vec<Slot> = kept.map(|policy| Slot { policy, holds: false }).collect();
        let mut touched = Vec::new();
        for policy in policies {
            match is_known(&policy) {
                Some(index) => slots[index.0 as usize].holds = true,
                None => {
                    let policy = Arc::new(policy);
                    touched.push(policy.clone());
                    slots.push(Slot { policy, holds: true });
                }
            }
        }
        let held = self.holding().filter(|(index, _)| !slots[index.0 as usize].holds);
        touched.extend(held.map(|(index, _)| Arc::new(self.policy(index).clone())));
        let mut next = Spd::of_slots(slots.into(), self.base.capacity)?;
        if next.base.classes != self.base.classes {
            next.begin_after(self);
            return Ok((next, Slots::Kept));
        }
        next.continue_from(self);
        let domains = touched.iter().flat_map(|policy| self.base.classes.domains_of(policy));
        let mut domains: Vec<DomainId> = domains.collect();
        domains.sort_unstable();
        domains.dedup();
        domains.iter().for_each(|domain| next.raise(*domain));
        Ok((next, Slots::Kept))
    }

    fn raise(&mut self, domain: DomainId) {
        let generation = &mut self.generations[usize::from(domain.0)];
        let (next, began_anew) = generation.next();
        *generation = next;
        self.wraps += u32::from(began_anew);
    }

    /// The generations of a database that says the same.
    fn continue_from(&mut self, same: &Spd) {
        self.generations = same.generations.clone();
        self.wraps = same.wraps;
    }

    /// Generations beyond every one of another database's: nothing said under it holds.
    fn begin_after(&mut self, earlier: &Spd) {
        let highest = earlier.generations.iter().max().copied().unwrap_or_default();
        let (next, began_anew) = highest.next();
        self.generations.fill(next);
        self.wraps = earlier.wraps + u32::from(began_anew);
    }

    /// Slots of policies that went since the base was made.
    fn removed(&self) -> impl Iterator<Item = PolicyIndex> {
        self.log.iter().filter_map(|change| match change {
            Change::Removed(index) => Some(*index),
            Change::Added(_) => None,
        })
    }

    /// Makes the lists in front of the base anew for the domains that are touched.
    fn overlay(&mut self, touched: &[bool]) -> Result<(), NeedsRenewal> {
        let removed: Vec<PolicyIndex> = self.removed().collect();
        let first = self.base.slots.len() as u32;
        let mut standing: Vec<(PolicyIndex, &Arc<Policy>)> = (first..)
            .map(PolicyIndex)
            .zip(&self.added)
            .filter(|(index, _)| !removed.contains(index))
            .collect();
        standing.sort_by_key(|(_, policy)| std::cmp::Reverse(policy.precedence()));
        let gone: Vec<&Policy> = removed.iter().map(|index| self.policy(*index)).collect();
        let mut tables = self.tables.clone();
        for (place, table) in tables.iter_mut().enumerate().filter(|(place, _)| touched[*place]) {
            let domain = DomainId(place as u16);
            let mut gathered = Gathered::default();
            for (index, policy) in &standing {
                if self.base.classes.domains_of(policy).any(|of| of == domain) {
                    gathered.add(policy, *index, domain);
                }
            }
            let gone = gone.iter().map(|policy| policy.precedence());
            let gone = gone.filter(|precedence| table.base_has(*precedence)).collect();
            *table = table.with_changes(gathered.finish(), gone);
        }
        if tables.iter().map(Table::len).sum::<usize>() > Spd::MAX_RULES {
            return Err(NeedsRenewal::Rules);
        }
        self.tables = tables;
        Ok(())
    }
}

/// Whether policies that stayed have their slots from before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slots {
    /// Yes.
    Kept,
    /// No: what was counted by slot is to be put away first.
    GivenAnew,
}

/// One table a domain. Policies come in order of precedence.
fn compile(order: &[(PolicyIndex, &Policy)], classes: &Classes) -> Result<Box<[Table]>, SpdError> {
    let mut counts = vec![0usize; classes.count() * DOMAINS_A_CLASS];
    let mut rules = 0usize;
    for (_, policy) in order {
        for domain in classes.domains_of(policy) {
            let more = policy.selector.rules(domain.family());
            counts[usize::from(domain.0)] += more.min(Spd::MAX_RULES);
            rules = rules.saturating_add(more);
        }
        if rules > Spd::MAX_RULES {
            let (policy, limit) = (policy.name.clone(), Spd::MAX_RULES);
            return Err(SpdError::TooManyRules { policy, rules, limit });
        }
    }
    let mut gathered: Vec<Gathered> = counts.into_iter().map(Gathered::with_capacity).collect();
    for (index, policy) in order {
        for domain in classes.domains_of(policy) {
            gathered[usize::from(domain.0)].add(policy, *index, domain);
        }
    }
    Ok(gathered.into_iter().map(|rules| Table::of(rules.finish())).collect())
}

/// The domain of packets that came by a port that no policy names.
pub const fn common(direction: Direction, family: Family) -> DomainId {
    DomainId::new(IngressClass(0), direction, family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, AddressRange, PolicyId, PortRange, SaSetId, Selector, UpperSelector};
    use wire::Address;
    use wire::Upper;
    use wire::flow::protocol::*;

    /// A policy for everything between our 10.1.0.0/16 and 10.2.0.0/16.
    fn policy(id: u32, priority: u32) -> Policy {
        Policy {
            id: PolicyId(id),
            name: format!("p{id}"),
            action: Action::Protect(SaSetId(id)),
            priority,
            only: None,
            ingress: None,
            selector: Selector {
                local: vec!["10.1.0.0/16".parse().unwrap()],
                remote: vec!["10.2.0.0/16".parse().unwrap()],
                protocol: None,
                upper: UpperSelector::Any,
            },
        }
    }

    fn ports(local: &[&str], remote: &[&str]) -> UpperSelector {
        let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        UpperSelector::Ports { local: list(local), remote: list(remote) }
    }

    fn icmp(messages: &[&str]) -> UpperSelector {
        UpperSelector::Icmp(messages.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn with(policy: Policy, protocol: Option<u8>, upper: UpperSelector) -> Policy {
        let selector = Selector { protocol, upper, ..policy.selector };
        Policy { selector, ..policy }
    }

    fn between(policy: Policy, local: &[&str], remote: &[&str]) -> Policy {
        let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let selector = Selector { local: list(local), remote: list(remote), ..policy.selector };
        Policy { selector, ..policy }
    }

    fn flow(source: &str, destination: &str, protocol: u8, upper: Upper) -> Flow {
        let address = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
        let (source, destination) = (address(source), address(destination));
        assert_eq!(source.family, destination.family);
        Flow {
            family: source.family,
            source: source.value,
            destination: destination.value,
            protocol,
            upper,
        }
    }

    /// From our 10.1.0.1 to the peer's 10.2.0.1.
    fn out(protocol: u8, upper: Upper) -> Flow {
        flow("10.1.0.1", "10.2.0.1", protocol, upper)
    }

    fn numbers(source: u16, destination: u16) -> Upper {
        Upper::Ports { source, destination }
    }

    /// What the database says, by policy id: `Ok` decided, `Err` lacks ports, `None` nothing.
    fn says(spd: &Spd, direction: Direction, flow: &Flow) -> Option<Result<u32, u32>> {
        let mut says = [Match::None];
        spd.classify(common(direction, flow.family), std::slice::from_ref(flow), &mut says);
        let id = |index| spd.policy(index).id.0;
        match says[0] {
            Match::Policy(index) => Some(Ok(id(index))),
            Match::FragmentPorts(index) => Some(Err(id(index))),
            Match::None => None,
        }
    }

    /// What one policy, alone, says of an outbound flow.
    fn alone(policy: &Policy, flow: &Flow) -> Option<Result<(), ()>> {
        let spd = Spd::new(vec![policy.clone()]).unwrap();
        says(&spd, Direction::Outbound, flow).map(|says| says.map(|_| ()).map_err(|_| ()))
    }

    const MATCHES: Option<Result<(), ()>> = Some(Ok(()));
    const LACKS: Option<Result<(), ()>> = Some(Err(()));

    #[test]
    fn higher_priority_wins_and_among_equals_the_newest() {
        // FC-41
        let given = [policy(4, 10), policy(1, 20), policy(9, 10), policy(3, 20), policy(7, 0)];
        for rotation in 0..given.len() {
            let mut policies = given.to_vec();
            policies.rotate_left(rotation);
            let spd = Spd::new(policies).unwrap();
            let order: Vec<u32> = spd.policies().iter().map(|(_, policy)| policy.id.0).collect();
            assert_eq!(order, [3, 1, 9, 4, 7]);
            assert_eq!(says(&spd, Direction::Outbound, &out(TCP, numbers(1, 2))), Some(Ok(3)));
        }
    }

    #[test]
    fn what_matches_no_policy_is_none() {
        // FC-42
        let spd = Spd::new(vec![policy(1, 1)]).unwrap();
        for (source, destination) in [
            ("10.0.255.255", "10.2.0.1"),
            ("10.2.0.0", "10.2.0.1"),
            ("10.1.0.1", "10.1.255.255"),
            ("10.1.0.1", "10.3.0.0"),
            ("::a01:1", "::a02:1"), // the same numbers in the other family
        ] {
            let flow = flow(source, destination, TCP, numbers(1, 2));
            assert_eq!(says(&spd, Direction::Outbound, &flow), None, "{flow}");
        }
        let empty = Spd::default();
        assert_eq!(says(&empty, Direction::Inbound, &out(TCP, numbers(1, 2))), None);
    }

    #[test]
    fn both_ends_of_an_address_range_are_in_it() {
        let spd = Spd::new(vec![policy(1, 1)]).unwrap();
        for (source, destination) in [("10.1.0.0", "10.2.0.0"), ("10.1.255.255", "10.2.255.255")] {
            let flow = flow(source, destination, UDP, Upper::Fragment);
            assert_eq!(says(&spd, Direction::Outbound, &flow), Some(Ok(1)));
        }
    }

    #[test]
    fn a_policy_holds_mirrored_inbound() {
        let policy = with(policy(1, 1), Some(TCP), ports(&["1000-1999"], &["443"]));
        let spd = Spd::new(vec![policy]).unwrap();
        let there = out(TCP, numbers(1500, 443));
        assert_eq!(says(&spd, Direction::Outbound, &there), Some(Ok(1)));
        assert_eq!(says(&spd, Direction::Inbound, &there.reversed()), Some(Ok(1)));
        assert_eq!(says(&spd, Direction::Inbound, &there), None);
        assert_eq!(says(&spd, Direction::Outbound, &there.reversed()), None);
        // Addresses mirrored, ports not.
        let crossed = flow("10.2.0.1", "10.1.0.1", TCP, numbers(1500, 443));
        assert_eq!(says(&spd, Direction::Inbound, &crossed), None);
    }

    #[test]
    fn a_policy_for_one_direction_has_no_rules_in_the_other() {
        for only in [Direction::Inbound, Direction::Outbound] {
            let spd = Spd::new(vec![Policy { only: Some(only), ..policy(1, 1) }]).unwrap();
            let there = out(TCP, numbers(1, 2));
            let (outbound, inbound) = match only {
                Direction::Outbound => (Some(Ok(1)), None),
                Direction::Inbound => (None, Some(Ok(1))),
            };
            assert_eq!(says(&spd, Direction::Outbound, &there), outbound);
            assert_eq!(says(&spd, Direction::Inbound, &there.reversed()), inbound);
            let rules =
                [Direction::Inbound, Direction::Outbound].map(|d| spd.rules(common(d, Family::V4)));
            assert_eq!(rules.iter().sum::<usize>(), 1);
        }
    }

    #[test]
    fn only_addresses_of_one_family_are_combined() {
        let mixed = between(policy(1, 1), &["10.0.0.0/8", "fd00::/8"], &["0.0.0.0/0", "::/0"]);
        let spd = Spd::new(vec![mixed]).unwrap();
        assert_eq!(spd.rules(common(Direction::Outbound, Family::V4)), 1);
        assert_eq!(spd.rules(common(Direction::Outbound, Family::V6)), 1);
        let v4 = flow("10.1.0.1", "192.0.2.1", TCP, numbers(1, 2));
        let v6 = flow("fd00::1", "2001:db8::1", TCP, numbers(1, 2));
        assert_eq!(says(&spd, Direction::Outbound, &v4), Some(Ok(1)));
        assert_eq!(says(&spd, Direction::Outbound, &v6), Some(Ok(1)));
        let apart = between(policy(1, 1), &["10.0.0.0/8"], &["::/0"]);
        assert_eq!(
            Spd::new(vec![apart]).unwrap().rules(common(Direction::Outbound, Family::V4)),
            0
        );
    }

    #[test]
    fn every_combination_of_a_selectors_lists_matches() {
        let lists = between(policy(1, 1), &["10.1.0.1", "10.1.0.3"], &["10.2.0.1", "10.2.0.3"]);
        let lists = with(lists, Some(UDP), ports(&["5", "7"], &["50", "70"]));
        let spd = Spd::new(vec![lists]).unwrap();
        assert_eq!(spd.rules(common(Direction::Outbound, Family::V4)), 16);
        let mut matched = 0;
        for number in 0..4u32.pow(4) {
            let digit = |place: u32| number / 4u32.pow(place) % 4;
            let upper = numbers(4 + digit(2) as u16, 40 + 10 * digit(3) as u16);
            let source = format!("10.1.0.{}", digit(0));
            let flow = flow(&source, &format!("10.2.0.{}", digit(1)), UDP, upper);
            let expected = (0..4).all(|place| digit(place) % 2 == 1);
            let found = says(&spd, Direction::Outbound, &flow);
            assert_eq!(found == Some(Ok(1)), expected, "{flow}");
            matched += u32::from(found.is_some());
        }
        assert_eq!(matched, 16);
    }

    #[test]
    fn ports_match_only_packets_that_have_ports() {
        // FC-04: "any protocol, port 80" matches no ICMP, no ESP, no packet without ports.
        let port_80 = with(policy(1, 1), None, ports(&[], &["80"]));
        let echo = Upper::Icmp { kind: 8, code: 0 };
        for (protocol, upper, expected) in [
            (TCP, numbers(0, 80), MATCHES),
            (UDP, numbers(65535, 80), MATCHES),
            (SCTP, numbers(1, 80), MATCHES),
            (TCP, numbers(80, 79), None),
            (TCP, numbers(80, 81), None),
            (ICMP, echo, None),
            (ESP, Upper::None, None),
            (IPV4, Upper::None, None),
            (ESP, Upper::Fragment, None),
            (ICMP, Upper::Fragment, None),
            (TCP, Upper::Fragment, LACKS),
            (UDP_LITE, Upper::Fragment, LACKS),
        ] {
            let flow = out(protocol, upper);
            assert_eq!(alone(&port_80, &flow), expected, "{flow}");
        }
    }

    #[test]
    fn all_ports_are_still_ports_and_no_ports_are_any() {
        // FC-04
        let full = with(policy(1, 1), None, ports(&["0-65535"], &["0-65535"]));
        let none = with(policy(1, 1), None, ports(&[], &[]));
        for (protocol, upper, of_full) in [
            (UDP, numbers(0, 0), MATCHES),
            (UDP, numbers(65535, 65535), MATCHES),
            (UDP, Upper::Fragment, LACKS),
            (ESP, Upper::None, None),
            (ICMP, Upper::Icmp { kind: 0, code: 0 }, None),
        ] {
            assert_eq!(alone(&full, &out(protocol, upper)), of_full);
            assert_eq!(alone(&none, &out(protocol, upper)), MATCHES);
        }
    }

    #[test]
    fn ports_zero_a_fragment_and_icmp_are_told_apart() {
        // FC-03
        let dns = with(policy(3, 30), Some(UDP), ports(&["0"], &["0"]));
        let echo = with(policy(2, 20), Some(ICMP), icmp(&["0/0"]));
        let spd = Spd::new(vec![dns, echo, policy(1, 10)]).unwrap();
        for (protocol, upper, expected) in [
            (UDP, numbers(0, 0), Ok(3)),
            (UDP, Upper::Fragment, Err(3)),
            (UDP, numbers(0, 1), Ok(1)),
            (UDP, Upper::None, Ok(1)),
            (ICMP, Upper::Icmp { kind: 0, code: 0 }, Ok(2)),
            (ICMP, Upper::Icmp { kind: 3, code: 0 }, Ok(1)),
            (ICMP, Upper::Fragment, Err(2)),
            (ESP, Upper::Fragment, Ok(1)),
        ] {
            let flow = out(protocol, upper);
            assert_eq!(says(&spd, Direction::Outbound, &flow), Some(expected), "{flow}");
        }
    }

    #[test]
    fn icmp_types_match_only_their_familys_icmp() {
        // FC-04
        let v4 = with(policy(1, 1), None, icmp(&["8", "3/4"]));
        let v6 = between(v4.clone(), &["fd00::/8"], &["::/0"]);
        let out6 = |protocol, upper| flow("fd00::1", "2001:db8::1", protocol, upper);
        let message = |kind, code| Upper::Icmp { kind, code };
        for (policy, flow, expected) in [
            (&v4, out(ICMP, message(8, 0)), MATCHES),
            (&v4, out(ICMP, message(8, 255)), MATCHES),
            (&v4, out(ICMP, message(3, 4)), MATCHES),
            (&v4, out(ICMP, message(3, 3)), None),
            (&v4, out(ICMP, message(3, 5)), None),
            (&v4, out(ICMP, message(7, 255)), None),
            (&v4, out(ICMP, message(9, 0)), None),
            (&v4, out(ICMPV6, message(8, 0)), None),
            (&v4, out(TCP, numbers(0x0800, 0x0800)), None),
            (&v4, out(ICMP, Upper::Fragment), LACKS),
            (&v4, out(ICMPV6, Upper::Fragment), None),
            (&v4, out(UDP, Upper::Fragment), None),
            (&v6, out6(ICMPV6, message(8, 0)), MATCHES),
            (&v6, out6(ICMP, message(8, 0)), None),
            (&v6, out6(ICMPV6, Upper::Fragment), LACKS),
            (&v6, out6(ICMP, Upper::Fragment), LACKS),
        ] {
            assert_eq!(alone(policy, &flow), expected, "{flow}");
        }
        let any_message = with(policy(1, 1), None, icmp(&[]));
        assert_eq!(alone(&any_message, &out(ICMP, message(255, 255))), MATCHES);
        assert_eq!(alone(&any_message, &out(TCP, numbers(1, 1))), None);
    }

    // FC-44: the first IPv6 fragment alone says the protocol.
    #[test]
    fn a_later_ipv6_fragment_cannot_choose_its_protocol() {
        let list = |policy: Policy| between(policy, &["fd00::/8"], &["::/0"]);
        let tcp_only = list(with(policy(1, 2), Some(TCP), UpperSelector::Any));
        let anything = list(with(policy(2, 1), None, UpperSelector::Any));
        for claimed in [TCP, UDP, ESP, 253] {
            let later = flow("fd00::1", "2001:db8::1", claimed, Upper::Fragment);
            assert_eq!(alone(&tcp_only, &later), LACKS);
            assert_eq!(alone(&anything, &later), MATCHES);
        }
    }

    #[test]
    fn a_protocol_matches_only_itself() {
        let udp = with(policy(1, 1), Some(UDP), UpperSelector::Any);
        assert_eq!(alone(&udp, &out(UDP, numbers(1, 1))), MATCHES);
        assert_eq!(alone(&udp, &out(UDP, Upper::Fragment)), MATCHES);
        assert_eq!(alone(&udp, &out(TCP, numbers(1, 1))), None);
        let zero = with(policy(1, 1), Some(0), UpperSelector::Any);
        assert_eq!(alone(&zero, &out(0, Upper::None)), MATCHES);
        assert_eq!(alone(&zero, &out(TCP, numbers(1, 1))), None);
    }

    #[test]
    fn a_fragment_never_falls_past_a_policy_with_ports() {
        // FC-44
        let web = with(policy(5, 50), Some(TCP), ports(&[], &["443"]));
        let web = Policy { action: Action::Discard, ..web };
        let below = policy(1, 10);
        let fragment = |protocol| out(protocol, Upper::Fragment);
        let spd = Spd::new(vec![web.clone(), below.clone()]).unwrap();
        assert_eq!(says(&spd, Direction::Outbound, &fragment(TCP)), Some(Err(5)));
        assert_eq!(says(&spd, Direction::Inbound, &fragment(TCP).reversed()), Some(Err(5)));
        // Neither its protocol nor its addresses: it does not concern the fragment.
        assert_eq!(says(&spd, Direction::Outbound, &fragment(UDP)), Some(Ok(1)));
        let elsewhere = between(web.clone(), &["10.1.9.0/24"], &["0.0.0.0/0"]);
        let spd = Spd::new(vec![elsewhere, below]).unwrap();
        assert_eq!(says(&spd, Direction::Outbound, &fragment(TCP)), Some(Ok(1)));
        // A higher policy without ports has decided already.
        let spd = Spd::new(vec![policy(9, 90), web]).unwrap();
        assert_eq!(says(&spd, Direction::Outbound, &fragment(TCP)), Some(Ok(9)));
    }

    #[test]
    fn matching_lists_each_policy_once_in_order_of_precedence() {
        let wide = between(policy(1, 10), &["10.0.0.0/8", "10.1.0.0/16"], &["0.0.0.0/0"]);
        let web = with(policy(2, 20), Some(TCP), ports(&[], &["80-90", "85"]));
        let other = between(policy(3, 30), &["10.9.0.0/16"], &["0.0.0.0/0"]);
        let spd = Spd::new(vec![wide, web, other]).unwrap();
        let matching = |flow: &Flow| spd.matching(common(Direction::Outbound, flow.family), flow);
        let (web, wide) = (PolicyIndex(1), PolicyIndex(2));
        let both = [Match::Policy(web), Match::Policy(wide)];
        assert_eq!(matching(&out(TCP, numbers(1, 85))), both);
        assert_eq!(matching(&out(TCP, numbers(1, 91))), [Match::Policy(wide)]);
        let lacking = [Match::FragmentPorts(web), Match::Policy(wide)];
        assert_eq!(matching(&out(TCP, Upper::Fragment)), lacking);
        assert_eq!(matching(&flow("192.0.2.1", "10.2.0.1", TCP, numbers(1, 2))), []);
    }

    #[test]
    fn a_batch_is_judged_flow_by_flow_in_its_domain() {
        let v6 = between(policy(2, 1), &["::/0"], &["::/0"]);
        let spd = Spd::new(vec![policy(1, 1), v6]).unwrap();
        let flows = [
            out(TCP, numbers(1, 2)),
            out(TCP, numbers(1, 2)).reversed(),
            out(UDP, Upper::Fragment),
        ];
        let (v6, v4) = (Match::Policy(PolicyIndex(0)), Match::Policy(PolicyIndex(1)));
        let mut says = [Match::None; 3];
        spd.classify(common(Direction::Outbound, Family::V4), &flows, &mut says);
        assert_eq!(says, [v4, Match::None, v4]);
        let of_v6 = [flow("::1", "::2", TCP, numbers(1, 2))];
        spd.classify(common(Direction::Outbound, Family::V6), &of_v6, &mut says[..1]);
        assert_eq!(says[0], v6);
    }

    #[test]
    fn searched_linearly_a_database_says_what_it_says_compiled() {
        let list = [(1, 10), (2, 20), (3, 20)].map(|(id, priority)| policy(id, priority));
        let compiled = Spd::new(list.to_vec()).unwrap();
        let linear = compiled.clone().searched(Search::Linear);
        let flows = [out(TCP, numbers(1, 2)), flow("192.0.2.1", "10.2.0.1", TCP, numbers(1, 2))];
        for spd in [&compiled, &linear] {
            let mut says = [Match::None; 2];
            spd.classify(common(Direction::Outbound, Family::V4), &flows, &mut says);
            assert_eq!(says, [Match::Policy(PolicyIndex(0)), Match::None]);
        }
    }

    #[test]
    fn too_many_rules_are_refused_before_they_are_made() {
        let list = |count: usize| vec![AddressRange::any(Family::V4); count];
        let wide = |id, local, remote| {
            let selector =
                Selector { local: list(local), remote: list(remote), ..policy(id, 0).selector };
            Policy { only: Some(Direction::Outbound), selector, ..policy(id, 1000 - id) }
        };
        // 10^18 rules, and more than a usize counts: neither is allocated or overflows.
        let ports = UpperSelector::Ports {
            local: vec![PortRange::ANY; 100_000],
            remote: vec![PortRange::ANY; 100_000],
        };
        for (local, expected) in [(10_000, 10usize.pow(18)), (200_000, usize::MAX)] {
            let huge = with(wide(1, local, 10_000), None, ports.clone());
            let error = Spd::new(vec![huge]).unwrap_err();
            let SpdError::TooManyRules { policy, rules, limit } = error;
            assert_eq!((policy.as_str(), rules, limit), ("p1", expected, Spd::MAX_RULES));
        }
        // The policy named is the one that passes the limit, both directions counted.
        let both = Policy { only: None, ..wide(2, 1000, 1000) };
        let error = Spd::new(vec![wide(3, 1, 1), both, wide(1, 2000, 1000)]).unwrap_err();
        let rules = 4_000_001;
        let limit = Spd::MAX_RULES;
        assert_eq!(error, SpdError::TooManyRules { policy: "p3".into(), rules, limit });
        assert!(error.to_string().contains("policy \"p3\" brings the set to 4000001 rules"));
    }
}
