//! The security policy database (RFC 4301 §4.4.1): all domains' policies, compiled for searching,
//! and how one database is made from another.
//!
//! A policy is compiled into rules: one for every combination of the entries of its selector's
//! lists, in each of its tables. A flow is searched in the table of its domain, the highest
//! precedence first, until a rule decides. Domains with the same policies share a table: a port
//! with groups searches the policies of all ports.
//!
//! **Change.** What was compiled as a whole (the base) is never touched. A change makes a database
//! that shares the base, with a list in front of what came and went since; a base with the list
//! folded in is made beside it ([`Spd::rebuilt`]) and takes its place ([`Spd::on`]). Through all of
//! that a policy keeps its slot. A domain's generation rises with each change of its policies, and
//! of those that its question asks besides ([`Question`]), and with nothing else.
//!
//! The rules of security groups are policies of two more books: all of this holds for them too.

mod change;

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use wire::{Family, Flow};

use crate::book::{Book, Question};
use crate::by_slot::BySlot;
use crate::classifier::{Cost, Shape, TooManyLists, Unfit};
use crate::domain::{Classes, DomainId, Generation, PortClass};
use crate::ids::PolicyIndex;
use crate::policy::{Action, Policy, PolicyId};
use crate::table::{Gathered, Refused, RuleMemory, Table};
use crate::table_places::{ChangedPlaces, IngressList, TablePlaces};
use crate::tree::AddressTree;
use crate::verdict::Decider;

pub use change::RuleChanges;

/// Reason why a set of policies cannot become a database.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpdError {
    /// The lists of the policies multiply to more rules than [`Spd::MAX_RULES`].
    #[error(
        "policy {policy:?} brings the set to {rules} rules, and the limit is {limit}: a policy is \
         one rule for each combination of the entries of its lists, in each direction, again for \
         ports to which `ports` gives policies of their own; shorten the lists, or write ranges \
         and networks"
    )]
    TooManyRules {
        /// Name of the policy that passed the limit.
        policy: String,
        /// Rules up to and with that policy.
        rules: usize,
        /// The limit.
        limit: usize,
    },
    /// Some flow would take too long to be searched for.
    #[error(
        "a search of the {} {} could take {steps} steps; at most {limit} are allowed{}",
        name_of(.family), book.rules_text(), the_costliest(.policies)
    )]
    TooCostly {
        /// Book of the policies.
        book: Book,
        /// Their family.
        family: Family,
        /// Steps that a search would take at most.
        steps: u32,
        /// Steps that it may take.
        limit: u32,
        /// Names of policies that cost most, the worst first, at most
        /// [`SpdError::MAX_NAMED`].
        policies: Vec<String>,
    },
    /// Rules name too many long lists of addresses.
    #[error("the {} {} of a port: {error}", name_of(.family), book.rules_text())]
    TooManyLists {
        /// Book of the rules.
        book: Book,
        /// Their family.
        family: Family,
        /// The bound that is passed.
        error: TooManyLists,
    },
}

impl SpdError {
    /// Policies that an error names at most.
    pub const MAX_NAMED: usize = 8;
}

fn name_of(family: &Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn the_costliest(policies: &[String]) -> String {
    let mut text = String::new();
    for (place, policy) in policies.iter().enumerate() {
        let before = if place == 0 { "; those that cost most: " } else { ", " };
        let _ = write!(text, "{before}{policy:?}");
    }
    text
}

/// Reason why a change cannot be made upon a base: the database must be made anew, with
/// [`Spd::renewed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeedsRenewal {
    /// No slot is left.
    Slots,
    /// A policy names a port that none named before.
    Ingress,
    /// The list in front of the base would become too long, or a search of that list, and of the
    /// rules that removed policies hid in the base, would cost more than a base may.
    Changes,
    /// More rules than [`Spd::MAX_RULES`].
    Rules,
    /// The rebuilt base was not made of a state that this database continues.
    Base,
}

/// The search method of a database. Both give the same answers.
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
    /// Slots of removed policies are kept, because counters may still refer to them.
    slots: BySlot<Slot>,
    /// Changes since the base was made, in order.
    log: Vec<Change>,
    /// The place of each domain's table.
    places: TablePlaces,
    tables: Box<[Table]>,
    /// The groups of egress ports, a family.
    groups_out: [GroupsOut; 2],
    /// Classes with a `reflect` rule among their groups: two entries a class, by family.
    tracked: Box<[bool]>,
    /// True if any class of a family has one.
    tracks_any: [bool; 2],
    /// One entry a domain.
    generations: Box<[Generation]>,
    /// Number of times that a generation began anew.
    wraps: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Added(PolicyIndex),
    Removed(PolicyIndex),
}

/// The part of a database that was compiled as a whole.
#[derive(Debug, Default)]
struct Base {
    /// Slots that there may be.
    capacity: usize,
    classes: Classes,
    /// Policies that hold, by address; made when a change is first compared with them.
    addresses: OnceLock<AddressTree>,
    /// Slots of the policies that hold, by name; made when one is first looked for.
    names: OnceLock<HashMap<Box<str>, PolicyIndex>>,
}

#[derive(Clone, Debug)]
struct Slot {
    policy: Arc<Policy>,
    /// True if the policy held when the base was made.
    holds: bool,
}

impl Default for Spd {
    fn default() -> Spd {
        Spd::new(Vec::new()).expect("no policies are not too many")
    }
}

impl Spd {
    /// Rules (cross products of the selectors' lists) at most, over all tables. Domains with the
    /// same policies share a table.
    pub const MAX_RULES: usize = 4_000_000;
    /// Changes at most upon one base.
    pub const MAX_CHANGES: usize = 2048;
    /// Rules in front of one domain's base at most.
    pub const MAX_RULES_IN_FRONT: usize = 4096;

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

    /// Makes the database as [`Spd::new`] does, with room for `capacity` slots in its life.
    ///
    /// # Errors
    /// As [`Spd::new`].
    pub fn with_room(mut policies: Vec<Policy>, capacity: usize) -> Result<Spd, SpdError> {
        policies.sort_by_key(|policy| std::cmp::Reverse(policy.precedence()));
        let slot = |policy| Slot { policy: Arc::new(policy), holds: true };
        let slots: Arc<[Slot]> = policies.into_iter().map(slot).collect();
        Spd::of_slots(slots, capacity)
    }

    fn of_slots(slots: Arc<[Slot]>, capacity: usize) -> Result<Spd, SpdError> {
        Spd::of_slots_with(slots, capacity, None)
    }

    /// Makes the database of slots. Takes tables without a change from an earlier database.
    fn of_slots_with(
        slots: Arc<[Slot]>,
        capacity: usize,
        earlier: Option<EarlierTables<'_>>,
    ) -> Result<Spd, SpdError> {
        let holding = || slots.iter().filter(|slot| slot.holds).map(|slot| &*slot.policy);
        let classes = match &earlier {
            Some(EarlierTables { spd, keeps_classes: true, .. }) => spd.base.classes.clone(),
            _ => Classes::of(holding().filter_map(|policy| policy.ingress.as_deref())),
        };
        let places = TablePlaces::of(&classes, holding().flat_map(IngressList::of));
        let mut order: Vec<(PolicyIndex, &Policy)> = (0..)
            .map(PolicyIndex)
            .zip(&*slots)
            .filter(|(_, slot)| slot.holds)
            .map(|(index, slot)| (index, &*slot.policy))
            .collect();
        order.sort_by_key(|(_, policy)| std::cmp::Reverse(policy.precedence()));
        let tables = compile(&order, (&classes, &places), earlier)?;
        let generations = vec![Generation(1); places.domains().count()].into();
        let capacity = capacity.max(slots.len());
        let (addresses, names) = (OnceLock::new(), OnceLock::new());
        let base = Arc::new(Base { capacity, classes, addresses, names });
        let slots = BySlot::new(slots, Vec::new());
        let search = Search::default();
        let (log, groups_out) = (Vec::new(), groups_out(&places, &tables));
        let (tracked, tracks_any, wraps) = (Box::default(), [false; 2], 0);
        let mut spd = Spd {
            search,
            base,
            slots,
            log,
            places,
            tables,
            groups_out,
            tracked,
            tracks_any,
            generations,
            wraps,
        };
        spd.find_tracked();
        Ok(spd)
    }

    /// Looks which classes have a `reflect` rule.
    fn find_tracked(&mut self) {
        let mut tracked = vec![false; 2 * self.base.classes.count()];
        let reflects = |policy: &&Policy| matches!(policy.action, Action::Reflect(_));
        for policy in self.holding().map(|(_, policy)| policy).filter(reflects) {
            for domain in self.base.classes.domains_of(policy) {
                tracked[2 * usize::from(domain.class().0) + domain.family() as usize] = true;
            }
        }
        let any = |family: usize| tracked.iter().skip(family).step_by(2).any(|tracks| *tracks);
        self.tracks_any = [any(0), any(1)];
        self.tracked = tracked.into();
    }

    /// Returns whether the groups of ports of a class, on either side, have a `reflect` rule for
    /// packets of a family: then the connections of these packets are tracked.
    #[inline]
    pub fn tracks(&self, class: PortClass, family: Family) -> bool {
        let at = 2 * usize::from(class.0) + family as usize;
        self.tracked.get(at).is_some_and(|tracks| *tracks)
    }

    /// Returns whether any port's connections of a family are tracked.
    #[inline(always)]
    pub fn tracks_any(&self, family: Family) -> bool {
        self.tracks_any[family as usize]
    }

    /// The policies of the SPD that hold, the highest precedence first. Cost: they are sorted.
    pub fn policies(&self) -> Vec<(PolicyIndex, &Policy)> {
        let mut policies: Vec<_> = self.holding_policies().collect();
        policies.sort_by_key(|(_, policy)| std::cmp::Reverse(policy.precedence()));
        policies
    }

    /// Returns the number of policies of the SPD that hold.
    pub fn len(&self) -> usize {
        self.holding_policies().count()
    }

    /// Returns whether no policy of the SPD holds.
    pub fn is_empty(&self) -> bool {
        self.holding_policies().next().is_none()
    }

    /// The policies of the SPD that hold, by slot.
    pub fn holding_policies(&self) -> impl Iterator<Item = (PolicyIndex, &Policy)> {
        self.holding().filter(|(_, policy)| policy.group.is_none())
    }

    /// The rules of groups that hold, by slot.
    pub fn holding_rules(&self) -> impl Iterator<Item = (PolicyIndex, &Policy)> {
        self.holding().filter(|(_, policy)| policy.group.is_some())
    }

    /// All policies and rules that hold, by slot.
    pub fn holding(&self) -> impl Iterator<Item = (PolicyIndex, &Policy)> {
        let gone: HashSet<PolicyIndex> = self.removed().collect();
        let holds = move |index: &PolicyIndex| {
            self.slots.at(index.0 as usize).holds && !gone.contains(index)
        };
        let slots = (0..self.slots() as u32).map(PolicyIndex);
        slots.filter(holds).map(|index| (index, self.policy(index)))
    }

    /// Returns whether these are the policies that hold, in any order.
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
        self.slots.len()
    }

    /// Slots of the base.
    pub fn base_slots(&self) -> usize {
        self.slots.base().len()
    }

    /// Returns whether both have the same base, so that a slot of the base means the same in both.
    pub fn has_base_of(&self, other: &Spd) -> bool {
        Arc::ptr_eq(&self.base, &other.base)
    }

    /// Policies that came since the base was made, by slot; some may have gone again.
    pub fn added(&self) -> impl Iterator<Item = (PolicyIndex, &Policy)> + Clone {
        let slots = (self.base_slots() as u32..).map(PolicyIndex);
        slots.zip(self.slots.added()).map(|(index, slot)| (index, &*slot.policy))
    }

    /// The policy of a slot.
    ///
    /// # Panics
    /// If `index` is from another database.
    pub fn policy(&self, index: PolicyIndex) -> &Policy {
        &self.slots.at(index.0 as usize).policy
    }

    /// The slot of the SPD's policy with this name, if it holds. Cost: the changes since the base
    /// was made are looked through; for many names see [`names`](Self::names).
    pub fn named(&self, name: &str) -> Option<PolicyIndex> {
        let is_named = |policy: &Policy| policy.group.is_none() && policy.name == name;
        let changed = self.log.iter().rev().find(|change| is_named(self.policy(change.slot())));
        match changed {
            Some(change) => change.added(),
            None => self.base_names().get(name).copied(),
        }
    }

    /// The slots of the SPD's policies that hold, by name, for looking up many of them.
    pub fn names(&self) -> Names<'_> {
        let name = |change: &Change| {
            let policy = self.policy(change.slot());
            policy.group.is_none().then_some((policy.name.as_str(), change.added()))
        };
        Names { changed: self.log.iter().filter_map(name).collect(), base: self.base_names() }
    }

    fn base_names(&self) -> &HashMap<Box<str>, PolicyIndex> {
        self.base.names.get_or_init(|| {
            let slots = (0..).map(PolicyIndex).zip(&**self.slots.base());
            let is_policy = |slot: &Slot| slot.holds && slot.policy.group.is_none();
            let holding = slots.filter(|(_, slot)| is_policy(slot));
            holding.map(|(index, slot)| (slot.policy.name.as_str().into(), index)).collect()
        })
    }

    /// Arranges the policies of the base by name, and by address, which
    /// [`takeovers`](crate::overlap::takeovers) does otherwise when a base is first changed. Cost:
    /// n log n, some 0.3 µs a policy.
    pub fn arrange(&self) {
        self.address_tree();
        self.base_names();
    }

    /// The SPD's policies of the base by address; places are slots.
    pub(crate) fn address_tree(&self) -> &AddressTree {
        self.base.addresses.get_or_init(|| {
            let is_policy = |slot: &Slot| slot.holds && slot.policy.group.is_none();
            let slots = (0..).zip(&**self.slots.base()).filter(|(_, slot)| is_policy(slot));
            AddressTree::new(slots.map(|(place, slot)| (place, (&*slot.policy).into())))
        })
    }

    /// Ports that policies name, by place, ascending.
    pub(crate) fn named_ports(&self) -> &[u16] {
        self.base.classes.named()
    }

    /// The class of a port, by its place.
    pub fn class(&self, port: u16) -> PortClass {
        self.base.classes.of_port(port)
    }

    /// All domains.
    pub fn domains(&self) -> impl Iterator<Item = DomainId> + use<> {
        self.places.domains()
    }

    /// The table of a domain.
    #[inline]
    fn table(&self, domain: DomainId) -> &Table {
        &self.tables[self.places.at(domain)]
    }

    /// Number of tables: domains with the same policies share a table.
    pub fn rule_lists(&self) -> usize {
        self.tables.len()
    }

    /// Memory of all rules.
    pub fn memory(&self) -> RuleMemory {
        let (mut counted, mut memory) = (HashSet::new(), RuleMemory::default());
        self.tables.iter().for_each(|table| table.add_memory(&mut counted, &mut memory));
        memory
    }

    /// Returns the generation of a domain's policies, and of those of all other domains that the
    /// domain's question asks ([`Question`]).
    ///
    /// # Panics
    /// If `domain` is from another database.
    #[inline]
    pub fn generation(&self, domain: DomainId) -> Generation {
        self.generations[usize::from(domain.0)]
    }

    /// Returns the generation of a domain that may be of another database; `None`: there is none.
    pub fn find_generation(&self, domain: DomainId) -> Option<Generation> {
        self.generations.get(usize::from(domain.0)).copied()
    }

    /// Returns the number of times that a generation began anew: all that was remembered before
    /// must then be forgotten.
    pub fn wraps(&self) -> u32 {
        self.wraps
    }

    /// Rules that a flow of this domain is compared with at most.
    ///
    /// # Panics
    /// If `domain` is from another database.
    pub fn rules(&self, domain: DomainId) -> usize {
        self.table(domain).len()
    }

    /// Returns the most that a search of one flow of this domain costs, changes since the base
    /// included, which may cost as much again as a base.
    ///
    /// # Panics
    /// If `domain` is from another database.
    pub fn cost(&self, domain: DomainId) -> Cost {
        self.table(domain).cost()
    }

    /// Returns the memory that searches of this domain read, bytes; packets that show no ports need
    /// the rules themselves too, which are not counted.
    ///
    /// # Panics
    /// If `domain` is from another database.
    pub fn bytes(&self, domain: DomainId) -> usize {
        self.table(domain).bytes()
    }

    /// Returns the sizes of the domain's base.
    ///
    /// # Panics
    /// If `domain` is from another database.
    pub fn shape(&self, domain: DomainId) -> Shape {
        self.table(domain).shape()
    }

    /// Returns the most that an answer to a domain's question costs ([`Question`]): 0 if no book
    /// that it asks has a rule.
    ///
    /// # Panics
    /// If `domain` is from another database.
    pub fn question_cost(&self, domain: DomainId) -> Cost {
        let of = |book| self.cost(DomainId::new(domain.class(), book, domain.family()));
        let cost = match Question::of(domain.book()) {
            Question::Enter => of(Book::GroupIn).and(of(Book::SpdIn)),
            Question::Leave => of(Book::SpdOut),
            Question::Through => of(Book::GroupIn).and(of(Book::SpdOut)),
        };
        cost.and(self.groups_out[domain.family() as usize].cost)
    }

    /// Returns whether the answer to a domain's question ([`Question`]) may be another for a TCP
    /// segment that opens a connection than for the others of its flow: a book that it asks has a
    /// rule with [`UpperSelector::Tcp`](crate::UpperSelector::Tcp). It changes only with the
    /// domain's generation.
    ///
    /// # Panics
    /// If `domain` is from another database.
    pub fn tells_segments(&self, domain: DomainId) -> bool {
        let of = |book| {
            let asked = DomainId::new(domain.class(), book, domain.family());
            self.table(asked).tells_segments()
        };
        let inside = match Question::of(domain.book()) {
            Question::Enter => of(Book::GroupIn) || of(Book::SpdIn),
            Question::Leave => of(Book::SpdOut),
            Question::Through => of(Book::GroupIn) || of(Book::SpdOut),
        };
        inside || self.groups_out[domain.family() as usize].tells_segments
    }

    /// Classifies each flow: `out[i]` is the decider of `flows[i]` in the domain.
    ///
    /// # Panics
    /// If the slices differ in length, or `domain` is from another database.
    pub fn classify(&self, domain: DomainId, flows: &[Flow], out: &mut [Decider]) {
        self.classify_into(domain, flows, out, |decider| decider);
    }

    /// Classifies each flow as [`classify`](Self::classify) does; `out[i]` is what `read` makes of
    /// the answer.
    #[inline]
    pub(crate) fn classify_into<T>(
        &self,
        domain: DomainId,
        flows: &[Flow],
        out: &mut [T],
        read: impl Fn(Decider) -> T,
    ) {
        assert_eq!(flows.len(), out.len(), "one answer for each flow");
        match self.search {
            Search::Compiled => self.table(domain).classify(flows, out, read),
            Search::Linear => {
                let says = |flow| read(self.search_linear(domain, flow));
                flows.iter().zip(out).for_each(|(flow, out)| *out = says(flow));
            }
        }
    }

    /// Sets the search method of this database and of all that are [`changed`](Self::changed) from
    /// it.
    pub fn searched(self, search: Search) -> Spd {
        Spd { search, ..self }
    }

    /// Sets the processor form of a database just made: for benches.
    pub fn in_form(self, form: cpu::lanes::Form) -> Spd {
        let tables = self.tables.into_iter().map(|table| table.in_form(form)).collect();
        Spd { tables, ..self }
    }

    /// The linear search: what [`classify`](Self::classify) must say. One comparison a rule, up to
    /// the first that decides.
    pub fn search_linear(&self, domain: DomainId, flow: &Flow) -> Decider {
        self.table(domain).search(flow).next().unwrap_or(Decider::None)
    }

    /// All policies that speak of the flow, the deciding one first, each once; for `explain`.
    ///
    /// No element is [`Decider::None`]: a flow that nothing speaks of yields an empty list.
    pub fn matching(&self, domain: DomainId, flow: &Flow) -> Vec<Decider> {
        let mut matches: Vec<Decider> = self.table(domain).search(flow).collect();
        // The rules of a policy lie side by side, and say the same of a flow that they match.
        matches.dedup();
        matches
    }
}

/// Slots of policies by name.
pub struct Names<'s> {
    /// Slots of policies that came or went since the base was made; `None`: the policy went.
    changed: HashMap<&'s str, Option<PolicyIndex>>,
    base: &'s HashMap<Box<str>, PolicyIndex>,
}

impl Names<'_> {
    /// The slot of the policy with this name, if it holds.
    pub fn get(&self, name: &str) -> Option<PolicyIndex> {
        match self.changed.get(name) {
            Some(slot) => *slot,
            None => self.base.get(name).copied(),
        }
    }
}

/// The state of the slots after a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slots {
    /// Policies that stayed have their slots from before.
    Kept,
    /// Policies that stayed may have other slots: put away what was counted by slot first.
    GivenAnew,
}

/// The tables of an earlier database, where policies keep their slots.
struct EarlierTables<'a> {
    spd: &'a Spd,
    /// Places of the policies that came and went since.
    changed: &'a ChangedPlaces,
    /// True if ports stay of the earlier classes, though policies may name fewer.
    keeps_classes: bool,
}

impl EarlierTables<'_> {
    /// Returns the table of a domain if the same policies were compiled for the port of its class.
    fn find(&self, domain: DomainId, port: Option<u16>) -> Option<Table> {
        let class = port.map_or(PortClass::default(), |port| self.spd.class(port));
        let before = DomainId::new(class, domain.book(), domain.family());
        let table = self.spd.table(before);
        let is_same = table.is_unchanged() && !self.changed.contain(domain, port);
        is_same.then(|| table.clone())
    }
}

/// Compiles the tables. Policies come in order of precedence.
fn compile(
    order: &[(PolicyIndex, &Policy)],
    (classes, places): (&Classes, &TablePlaces),
    earlier: Option<EarlierTables<'_>>,
) -> Result<Box<[Table]>, SpdError> {
    let find = |place| {
        let domain = places.domain(place);
        earlier.as_ref().and_then(|earlier| earlier.find(domain, classes.port(domain.class())))
    };
    let known: Vec<Option<Table>> = (0..places.count()).map(find).collect();
    let counts = count(order, (classes, places))?;
    let gathered = counts.into_iter().map(Gathered::with_capacity).zip(&known);
    let mut gathered: Vec<Option<Gathered>> =
        gathered.map(|(empty, known)| known.is_none().then_some(empty)).collect();
    for (index, policy) in order {
        for place in places.of_policy(classes, policy) {
            if let Some(gathered) = &mut gathered[place as usize] {
                gathered.add(policy, *index, places.domain(place as usize));
            }
        }
    }
    let finished = known.into_iter().zip(gathered).enumerate();
    let finished = finished.map(|(place, (known, gathered))| match (known, gathered) {
        (Some(table), _) => Ok(table),
        (None, gathered) => {
            let (domain, gathered) = (places.domain(place), gathered.unwrap_or_default());
            let rules = gathered.finish(domain.family());
            rules.map(Table::of).map_err(|refused| unfit(order, domain, refused))
        }
    });
    finished.collect()
}

/// Marks the domains whose question asks one of those that changed, themselves among them. A packet
/// of any class may leave by any port, so the groups of egress ports are part of every question of
/// their family.
fn mark_dependents(changed: &[DomainId], domains: usize) -> Vec<bool> {
    let mut marked = vec![false; domains];
    let mut mark = |domain: DomainId| marked[usize::from(domain.0)] = true;
    let mut families = [false; 2];
    for &domain in changed {
        let of = |book| DomainId::new(domain.class(), book, domain.family());
        mark(domain);
        match domain.book() {
            Book::SpdIn => {}
            Book::SpdOut => mark(of(Book::GroupIn)),
            Book::GroupIn => mark(of(Book::SpdIn)),
            Book::GroupOut => families[domain.family() as usize] = true,
        }
    }
    if families.contains(&true) {
        let all = (0..).map(DomainId).zip(&mut marked);
        all.for_each(|(domain, marked)| *marked |= families[domain.family() as usize]);
    }
    marked
}

/// The groups of all egress ports together.
#[derive(Clone, Copy, Default, Debug)]
struct GroupsOut {
    /// The most that a search of those of one port costs.
    cost: Cost,
    /// True if a rule tells TCP segments apart.
    tells_segments: bool,
}

/// The groups of egress ports, a family.
fn groups_out(places: &TablePlaces, tables: &[Table]) -> [GroupsOut; 2] {
    let mut all = [GroupsOut::default(); 2];
    let tables = tables.iter().enumerate().map(|(place, table)| (places.domain(place), table));
    for (domain, table) in tables.filter(|(domain, _)| domain.book() == Book::GroupOut) {
        let all = &mut all[domain.family() as usize];
        all.tells_segments |= table.tells_segments();
        if table.cost().steps() > all.cost.steps() {
            all.cost = table.cost();
        }
    }
    all
}

/// Rules of each table.
fn count(
    order: &[(PolicyIndex, &Policy)],
    (classes, places): (&Classes, &TablePlaces),
) -> Result<Vec<usize>, SpdError> {
    let mut counts = vec![0usize; places.count()];
    let mut rules = 0usize;
    for (_, policy) in order {
        for place in places.of_policy(classes, policy) {
            let more = policy.rules(places.domain(place as usize).family());
            counts[place as usize] += more.min(Spd::MAX_RULES);
            rules = rules.saturating_add(more);
        }
        if rules > Spd::MAX_RULES {
            let (policy, limit) = (policy.name.clone(), Spd::MAX_RULES);
            return Err(SpdError::TooManyRules { policy, rules, limit });
        }
    }
    Ok(counts)
}

fn unfit(order: &[(PolicyIndex, &Policy)], domain: DomainId, refused: Refused) -> SpdError {
    let Refused { error, slots } = refused;
    let (book, family) = (domain.book(), domain.family());
    let error = match error {
        Unfit::TooCostly(error) => error,
        Unfit::TooManyLists(error) => return SpdError::TooManyLists { book, family, error },
    };
    let name = |slot: &PolicyIndex| {
        let found = order.iter().find(|(index, _)| index == slot);
        found.map(|(_, policy)| policy.name.clone())
    };
    SpdError::TooCostly {
        book,
        family,
        steps: error.cost.steps(),
        limit: error.limit,
        policies: slots.iter().filter_map(name).take(SpdError::MAX_NAMED).collect(),
    }
}

/// The domain of packets that came by a port that no policy names.
pub const fn common(book: Book, family: Family) -> DomainId {
    DomainId::new(PortClass(0), book, family)
}

#[cfg(test)]
mod long_lists;
#[cfg(test)]
mod shared_tables;
#[cfg(test)]
mod tests;
