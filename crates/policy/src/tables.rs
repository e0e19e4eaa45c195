//! The tables: everything that is asked about a flow, and the one function that answers.
//!
//! Walk, `explain`, flow cache and planners of lower tiers all ask [`Tables::classify`], so that no
//! two of them can say different things of a flow. An ICMP error that an SA opened is asked about
//! with [`Tables::judge_quoting`]: there two flows are judged.

mod beside;
mod tracked;

use std::sync::Arc;

use wire::{Family, Flow};

use crate::book::{Book, GroupSide, Question};
use crate::by_slot::BySlot;
use crate::domain::{DomainId, Generation, PortClass};
use crate::exit::Exit;
use crate::ids::{PolicyIndex, SetIndex};
use crate::policy::{Action, GroupMode, Policy, SaSetId};
use crate::scope::{Scope, ScopeBits};
use crate::set_places::SetPlaces;
use crate::spd::Spd;
use crate::verdict::{Decider, Deciders, EgressClass, FlowAction, FlowVerdict, Refusal};

pub use beside::Beside;
pub use tracked::{KnownConnections, TrackedVerdict, Tracks};

/// Flows that are judged together.
const AT_ONCE: usize = 64;

/// Reason why policies and SA sets do not become tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TablesError {
    /// A policy that holds, or an SA, names a set that is not there.
    #[error("a policy or an SA names set {}, which does not exist", .0.0)]
    UnknownSet(SaSetId),
    /// The number of a set does not fit into a [`Scope`].
    #[error(
        "SA set number {} is above {}, the highest with as many ports as policies name: restart \
         the daemon, which numbers sets from 0", .set.0, .highest.0
    )]
    TooManySets {
        /// The set.
        set: SaSetId,
        /// The highest that fits.
        highest: SaSetId,
    },
}

/// All that is said of flows: the rules of every book, and what they do. Immutable, and cheap to
/// copy.
#[derive(Clone, Debug)]
pub struct Tables {
    spd: Arc<Spd>,
    sets: SetPlaces,
    uses: Uses,
    scopes: ScopeBits,
    /// The action of the policy of each slot.
    actions: BySlot<FlowAction>,
}

/// Policies that hold, by the set that they name. A changed copy shares what did not change.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Uses(imbl::HashMap<SaSetId, u32>);

impl Uses {
    /// Counts the policies of a database, and lists the sets that must be looked for: where it was
    /// made by changes of that of `earlier`, those that policies which came name; else all.
    fn of(spd: &Spd, earlier: Option<&Tables>) -> (Uses, Vec<SaSetId>) {
        let since = earlier.and_then(|earlier| Some((earlier, spd.since(&earlier.spd)?)));
        let (mut uses, [came, went]) = match since {
            Some((earlier, since)) => (earlier.uses.clone(), since),
            None => {
                let holding = spd.holding().map(|(_, policy)| policy).collect();
                (Uses::default(), [holding, Vec::new()])
            }
        };
        let named: Vec<SaSetId> = came.into_iter().filter_map(set_of).collect();
        named.iter().for_each(|set| *uses.0.entry(*set).or_default() += 1);
        for set in went.into_iter().filter_map(set_of) {
            let left = uses.0.get(&set).map_or(0, |count| count - 1);
            match left {
                0 => uses.0.remove(&set),
                left => uses.0.insert(set, left),
            };
        }
        (uses, named)
    }

    /// Checks that a set is there if a policy names it.
    ///
    /// # Errors
    /// [`TablesError::UnknownSet`].
    fn check(&self, set: SaSetId, sets: &SetPlaces) -> Result<(), TablesError> {
        match sets.get(set) {
            None if self.0.contains_key(&set) => Err(TablesError::UnknownSet(set)),
            _ => Ok(()),
        }
    }
}

/// The set that a policy names.
fn set_of(policy: &Policy) -> Option<SaSetId> {
    match policy.action {
        Action::Protect(set) => Some(set),
        _ => None,
    }
}

/// A lookup in a book, for `explain`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Consultation {
    /// The circumstances.
    pub scope: Scope,
    /// The flow that was looked up.
    pub flow: Flow,
    /// The book, with the class of the ingress port and the family.
    pub domain: DomainId,
    /// The generation of that domain.
    pub generation: Generation,
    /// The rule that decides.
    pub decider: Decider,
    /// Rules that match too and lost, in order of precedence.
    pub beaten: Vec<PolicyIndex>,
}

/// The domains that a question asks, in order; `None`: not asked, or a port without groups.
#[derive(Clone, Copy)]
struct Asked {
    groups_in: Option<DomainId>,
    spd: Option<DomainId>,
    groups_out: Option<DomainId>,
    /// Class of the way out.
    class: u16,
}

impl Tables {
    /// Puts a database together with SA sets. Takes from `earlier` what is the same; without that,
    /// or where the base is another or a set has another place, it takes as long as there are
    /// slots.
    ///
    /// # Errors
    /// [`TablesError`].
    pub fn new(
        spd: Arc<Spd>,
        sets: &SetPlaces,
        earlier: Option<&Tables>,
    ) -> Result<Tables, TablesError> {
        let scopes = ScopeBits::of(spd.domains().count());
        let highest = scopes.highest_set();
        let none = SetPlaces::default();
        // Those that were there fit if there are as many domains still.
        let known = earlier.filter(|earlier| earlier.scopes == scopes);
        let known = known.map_or(&none, |earlier| &earlier.sets);
        let mut came = sets.changes(known).filter_map(|(_, now)| now);
        if let Some(set) = came.find(|set| *set > highest) {
            return Err(TablesError::TooManySets { set, highest });
        }
        let (uses, named) = Uses::of(&spd, earlier);
        named.into_iter().try_for_each(|set| uses.check(set, sets))?;
        if let Some(earlier) = earlier {
            let mut gone = sets.changes(&earlier.sets).filter_map(|(before, _)| before);
            gone.try_for_each(|set| uses.check(set, sets))?;
        }
        // A set that has another place is another to those that were resolved before.
        let stays = |earlier: &&Tables| {
            let mut gone = sets.changes(&earlier.sets).filter_map(|(before, _)| before);
            earlier.spd.has_base_of(&spd) && gone.all(|set| sets.get(set).is_none())
        };
        let (sets, earlier) = (sets.clone(), earlier.filter(stays));
        // A policy that holds no more may name a set that went with it. It decides nothing: what it
        // did before may stand.
        let at = |slot: usize| {
            let action = resolve(&sets, spd.policy(PolicyIndex(slot as u32)).action);
            action.unwrap_or(FlowAction::Refuse(Refusal::Discard))
        };
        let base = match earlier {
            Some(earlier) => earlier.actions.base().clone(),
            None => (0..spd.base_slots()).map(at).collect(),
        };
        let added = (spd.base_slots()..spd.slots()).map(at).collect();
        Ok(Tables { spd, sets, uses, scopes, actions: BySlot::new(base, added) })
    }

    /// The policies.
    pub fn spd(&self) -> &Arc<Spd> {
        &self.spd
    }

    /// The SA sets and their places.
    pub fn sets(&self) -> &SetPlaces {
        &self.sets
    }

    /// The bits of scopes.
    pub fn scopes(&self) -> ScopeBits {
        self.scopes
    }

    /// Returns the scope of a question about packets of a family that came by a port of a class
    /// and, if they were decrypted, by an SA of a set.
    ///
    /// # Panics
    /// If the set is from other tables.
    #[inline]
    pub fn scope(
        &self,
        class: PortClass,
        question: Question,
        family: Family,
        opened_by: Option<SetIndex>,
    ) -> Scope {
        let opened_by = opened_by.map(|set| self.sets.id(set));
        self.scopes.scope(DomainId::new(class, question.book(), family), opened_by)
    }

    /// Returns whether the groups of ports of a class have a rule on this side: ports without
    /// groups have none, ports with groups one at least.
    #[inline]
    pub fn has_groups(&self, class: PortClass, side: GroupSide, family: Family) -> bool {
        self.spd.rules(DomainId::new(class, side.book(), family)) > 0
    }

    /// Returns whether the verdict in a scope may be another for a TCP segment that opens a
    /// connection ([`Spd::tells_segments`]).
    ///
    /// # Panics
    /// If the scope is from other tables.
    #[inline]
    pub fn tells_segments(&self, scope: Scope) -> bool {
        self.spd.tells_segments(self.scopes.domain(scope))
    }

    /// The class of a way out for packets of a family: verdicts that were given for one way out
    /// hold for all of its class, under one generation of the scope.
    #[inline]
    pub fn egress_class(&self, scope: Scope, exit: Exit) -> u16 {
        let domain = self.scopes.domain(scope);
        let family = domain.family();
        let matters = |class| {
            self.has_groups(class, GroupSide::Out, family) || self.spd.tracks(class, family)
        };
        let of_groups = |class: PortClass| if matters(class) { class.0 << 1 } else { 0 };
        match (Question::of(domain.book()), exit) {
            (Question::Enter, Exit::Outside(_)) | (_, Exit::Other) => 0,
            (_, Exit::Inside(class)) => of_groups(class),
            (Question::Leave | Question::Through, Exit::Outside(class)) => of_groups(class) | 1,
        }
    }

    /// Classifies each flow in a scope, for a way out: `out[i]` becomes the verdict on `flows[i]`.
    ///
    /// # Panics
    /// If the slices differ in length, or the scope is from other tables.
    pub fn classify(&self, scope: Scope, exit: Exit, flows: &[Flow], out: &mut [FlowVerdict]) {
        assert_eq!(flows.len(), out.len(), "one verdict for each flow");
        let asked = self.books(scope, exit);
        match (asked.groups_in, asked.spd, asked.groups_out) {
            (None, Some(domain), None) => self.ask_book(domain, scope, flows, out),
            (None, None, None) => out.fill(FlowVerdict::NOT_ASKED),
            books => self.compose(books.into(), scope, flows, out),
        }
        let class = EgressClass::Only(asked.class);
        for verdict in out {
            if verdict.passes() || verdict.egress != EgressClass::Any {
                verdict.egress = class;
            }
        }
    }

    /// Judges an ICMP error that an SA opened: the groups of its port are asked about itself, the
    /// SPD about `quoted`, the flow that answers to what it quotes (RFC 4301 §6.2). `scope` is of
    /// [`Question::Enter`].
    ///
    /// # Panics
    /// If the scope is from other tables.
    pub fn judge_quoting(&self, scope: Scope, flow: &Flow, quoted: &Flow) -> FlowVerdict {
        let mut verdict = FlowVerdict::NOT_ASKED;
        for (domain, flow) in self.books_of_quoting(scope, flow, quoted) {
            let mut next = [FlowVerdict::NOT_ASKED];
            self.ask_book(domain, scope, std::slice::from_ref(flow), &mut next);
            verdict.then(&next[0]);
        }
        verdict
    }

    /// Says of each book that [`judge_quoting`](Self::judge_quoting) asks why it says so.
    ///
    /// # Panics
    /// If the scope is from other tables.
    pub fn explain_quoting(
        &self,
        scope: Scope,
        (flow, quoted): (&Flow, &Flow),
        known: KnownConnections,
        told: &mut impl FnMut(Consultation),
    ) {
        let is_asked = |(domain, _): &(DomainId, &Flow)| {
            domain.book() != Book::GroupIn || known.ingress.is_none()
        };
        let books = self.books_of_quoting(scope, flow, quoted).filter(is_asked);
        self.explain_each(scope, books, told);
    }

    fn books_of_quoting<'f>(
        &self,
        scope: Scope,
        flow: &'f Flow,
        quoted: &'f Flow,
    ) -> impl Iterator<Item = (DomainId, &'f Flow)> + use<'f> {
        let Asked { groups_in, spd, .. } = self.books(scope, Exit::Other);
        let books = [(groups_in, flow), (spd, quoted)];
        books.into_iter().filter_map(|(domain, flow)| Some((domain?, flow)))
    }

    /// Says of each book why it says what it says of a flow, until one refuses.
    fn explain_each<'f>(
        &self,
        scope: Scope,
        books: impl Iterator<Item = (DomainId, &'f Flow)>,
        told: &mut impl FnMut(Consultation),
    ) {
        for (domain, flow) in books {
            let matching = self.spd.matching(domain, flow);
            told(Consultation {
                scope,
                flow: *flow,
                domain,
                generation: self.spd.generation(domain),
                decider: matching.first().copied().unwrap_or_default(),
                beaten: matching.iter().skip(1).filter_map(|beaten| beaten.slot()).collect(),
            });
            let mut verdict = [FlowVerdict::NOT_ASKED];
            self.ask_book(domain, scope, std::slice::from_ref(flow), &mut verdict);
            if !verdict[0].passes() {
                break;
            }
        }
    }

    /// Returns whether a book is asked in a scope, for a way out, or connections are: else every
    /// packet passes.
    #[inline]
    pub fn asks(&self, scope: Scope, exit: Exit) -> bool {
        let Asked { groups_in, spd, groups_out, .. } = self.books(scope, exit);
        let tracks = self.tracks(scope, exit) != Tracks::default();
        groups_in.is_some() || spd.is_some() || groups_out.is_some() || tracks
    }

    /// The question of a scope.
    pub fn question(&self, scope: Scope) -> Question {
        Question::of(self.scopes.domain(scope).book())
    }

    /// The domains that are asked in a scope, for a way out.
    fn books(&self, scope: Scope, exit: Exit) -> Asked {
        let domain = self.scopes.domain(scope);
        let of = |book| DomainId::new(domain.class(), book, domain.family());
        let question = Question::of(domain.book());
        let has_rules = |domain: &DomainId| self.spd.rules(*domain) > 0;
        let groups_in = match question {
            Question::Leave => None,
            Question::Enter | Question::Through => Some(of(Book::GroupIn)),
        };
        let spd = match (question, exit) {
            (Question::Enter, _) => Some(of(Book::SpdIn)),
            (Question::Leave | Question::Through, Exit::Outside(_)) => Some(of(Book::SpdOut)),
            (Question::Leave | Question::Through, _) => None,
        };
        let groups_out = match (question, exit) {
            (Question::Enter, Exit::Outside(_)) | (_, Exit::Other) => None,
            (_, Exit::Inside(class) | Exit::Outside(class)) => {
                Some(DomainId::new(class, Book::GroupOut, domain.family()))
            }
        };
        Asked {
            groups_in: groups_in.filter(has_rules),
            spd,
            groups_out: groups_out.filter(has_rules),
            class: self.egress_class(scope, exit),
        }
    }

    /// Asks one book. A refusal for which the way out does not matter holds for every one.
    fn ask_book(&self, domain: DomainId, scope: Scope, flows: &[Flow], out: &mut [FlowVerdict]) {
        let (spd, opened_by) = (&self.spd, self.scopes.opened_by(scope));
        match (domain.book(), opened_by) {
            (Book::SpdIn, None) => {
                spd.classify_into(domain, flows, out, |decider| self.in_clear(decider));
            }
            (Book::SpdIn, Some(set)) => {
                spd.classify_into(domain, flows, out, |decider| self.opened_by(decider, set));
            }
            (Book::GroupIn, _) => {
                spd.classify_into(domain, flows, out, |decider| self.by_group(decider));
            }
            (Book::SpdOut, _) => {
                let read = |decider| self.to_leave(decider).by_way_out();
                spd.classify_into(domain, flows, out, read);
            }
            (Book::GroupOut, _) => {
                let read = |decider| self.by_group(decider).by_way_out();
                spd.classify_into(domain, flows, out, read);
            }
        }
    }

    /// Asks several books, one after the other. The first that refuses a flow decides; those behind
    /// it are not named.
    fn compose(
        &self,
        books: [Option<DomainId>; 3],
        scope: Scope,
        of: &[Flow],
        out: &mut [FlowVerdict],
    ) {
        let mut verdicts = [FlowVerdict::NOT_ASKED; AT_ONCE];
        for (flows, out) in of.chunks(AT_ONCE).zip(out.chunks_mut(AT_ONCE)) {
            let verdicts = &mut verdicts[..flows.len()];
            out.fill(FlowVerdict::NOT_ASKED);
            for domain in books.into_iter().flatten() {
                self.ask_book(domain, scope, flows, verdicts);
                out.iter_mut().zip(&*verdicts).for_each(|(so_far, next)| so_far.then(next));
            }
        }
    }

    /// Classifies one flow like [`classify`](Self::classify), and returns for each book that was
    /// consulted the reason for its answer.
    ///
    /// # Panics
    /// If the scope is from other tables.
    pub fn judge(
        &self,
        scope: Scope,
        exit: Exit,
        flow: &Flow,
        told: &mut impl FnMut(Consultation),
    ) -> FlowVerdict {
        let mut verdict = [FlowVerdict::NOT_ASKED];
        self.classify(scope, exit, std::slice::from_ref(flow), &mut verdict);
        self.explain(scope, exit, flow, KnownConnections::default(), told);
        let [verdict] = verdict;
        verdict
    }

    /// Says of each book that is consulted about a packet of these connections why it says so.
    ///
    /// # Panics
    /// If the scope is from other tables.
    pub fn explain(
        &self,
        scope: Scope,
        exit: Exit,
        flow: &Flow,
        known: KnownConnections,
        told: &mut impl FnMut(Consultation),
    ) {
        let Asked { groups_in, spd, groups_out, .. } = self.books(scope, exit);
        let groups_in = groups_in.filter(|_| known.ingress.is_none());
        let groups_out = groups_out.filter(|_| known.egress.is_none());
        let books = [groups_in, spd, groups_out].into_iter().flatten();
        self.explain_each(scope, books.map(|domain| (domain, flow)), told);
    }

    /// Returns the verdict of the groups' rule in a slot on the packets that it decides. `None`: no
    /// group's rule has the slot.
    pub fn verdict_of_group_rule(&self, rule: PolicyIndex) -> Option<FlowVerdict> {
        let has_slot = (rule.0 as usize) < self.spd.slots();
        let is_of_group = has_slot && self.spd.policy(rule).group.is_some();
        is_of_group.then(|| self.by_group(Decider::Policy(rule)))
    }

    /// Returns the verdict of the rule in a slot, where the groups of the port that a packet came
    /// by are all that is asked, and no connections are tracked. `None`: more is asked, or no
    /// group's rule has the slot.
    pub fn verdict_of_ingress_rule(
        &self,
        scope: Scope,
        exit: Exit,
        rule: PolicyIndex,
    ) -> Option<FlowVerdict> {
        let Asked { groups_in, spd, groups_out, class } = self.books(scope, exit);
        let is_all = groups_in.is_some() && spd.is_none() && groups_out.is_none();
        let is_all = is_all && self.tracks(scope, exit) == Tracks::default();
        let mut verdict = self.verdict_of_group_rule(rule).filter(|_| is_all)?;
        if verdict.passes() {
            verdict.egress = EgressClass::Only(class);
        }
        Some(verdict)
    }

    /// The verdict of a group's rule.
    #[inline]
    fn by_group(&self, decider: Decider) -> FlowVerdict {
        let is_audit = |slot| {
            let action = self.spd.policy(slot).action;
            matches!(
                action,
                Action::Permit(GroupMode::Audit)
                    | Action::Reflect(GroupMode::Audit)
                    | Action::Deny(GroupMode::Audit)
                    | Action::NoRule(GroupMode::Audit)
            )
        };
        match decider {
            Decider::FragmentPorts(slot) if is_audit(slot) => {
                FlowVerdict { deciders: Deciders::one(slot), ..FlowVerdict::NOT_ASKED }
            }
            // The last rule of a port's groups matches everything.
            Decider::None => FlowVerdict {
                action: FlowAction::Refuse(Refusal::GroupNoMatch),
                ..FlowVerdict::NOT_ASKED
            },
            Decider::Policy(_) | Decider::FragmentPorts(_) => self.to_leave(decider),
        }
    }

    /// The verdict on a packet that is to leave (RFC 4301 §5.1).
    #[inline]
    fn to_leave(&self, decider: Decider) -> FlowVerdict {
        let egress = EgressClass::Any;
        match decider {
            Decider::Policy(slot) => {
                let action = *self.actions.at(slot.0 as usize);
                FlowVerdict { action, deciders: Deciders::one(slot), egress }
            }
            Decider::FragmentPorts(slot) => {
                let action = FlowAction::Refuse(Refusal::FragmentPorts);
                FlowVerdict { action, deciders: Deciders::one(slot), egress }
            }
            Decider::None => {
                let action = FlowAction::Refuse(Refusal::NoMatch);
                FlowVerdict { action, deciders: Deciders::NONE, egress }
            }
        }
    }

    /// The verdict on a packet that came in clear (RFC 4301 §5.2 step 3).
    #[inline]
    fn in_clear(&self, decider: Decider) -> FlowVerdict {
        let verdict = self.to_leave(decider);
        match verdict.action {
            FlowAction::Protect(_) => {
                FlowVerdict { action: FlowAction::Refuse(Refusal::Unprotected), ..verdict }
            }
            FlowAction::Permit | FlowAction::Refuse(_) => verdict,
        }
    }

    /// The verdict on a packet that an SA of a set opened (RFC 4301 §5.2 step 4): the policy that
    /// decides must be one that this SA serves, no other peer's.
    #[inline]
    fn opened_by(&self, decider: Decider, own: SaSetId) -> FlowVerdict {
        let verdict = self.to_leave(decider);
        let action = match verdict.action {
            FlowAction::Protect(set) if self.sets.id(set) == own => FlowAction::Permit,
            FlowAction::Refuse(Refusal::FragmentPorts) => return verdict,
            _ => FlowAction::Refuse(Refusal::SelectorMismatch),
        };
        FlowVerdict { action, ..verdict }
    }
}

fn resolve(sets: &SetPlaces, action: Action) -> Result<FlowAction, TablesError> {
    match action {
        Action::Protect(id) => match sets.get(id) {
            Some(place) => Ok(FlowAction::Protect(place)),
            None => Err(TablesError::UnknownSet(id)),
        },
        Action::Bypass
        | Action::Permit(_)
        | Action::Reflect(_)
        | Action::Deny(GroupMode::Audit)
        | Action::NoRule(GroupMode::Audit) => Ok(FlowAction::Permit),
        Action::Discard => Ok(FlowAction::Refuse(Refusal::Discard)),
        Action::Deny(GroupMode::Enforce) => Ok(FlowAction::Refuse(Refusal::GroupDeny)),
        Action::NoRule(GroupMode::Enforce) => Ok(FlowAction::Refuse(Refusal::GroupNoMatch)),
    }
}

#[cfg(test)]
mod tests;
