//! The tables: everything that is asked about a flow, and the one function that answers.
//!
//! Walk, `explain`, flow cache and planners of lower tiers all ask [`Tables::classify`] and nothing
//! else, so that no two of them can say different things of a flow.

use std::sync::Arc;

use wire::{Family, Flow};

use crate::book::Book;
use crate::by_slot::BySlot;
use crate::domain::{DomainId, Generation, IngressClass};
use crate::ids::{PolicyIndex, SetIndex};
use crate::policy::{Action, Policy, SaSetId};
use crate::scope::{Scope, ScopeBits};
use crate::set_places::SetPlaces;
use crate::spd::Spd;
use crate::verdict::{Decider, Deciders, EgressClass, FlowAction, FlowVerdict, Refusal};

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
    scopes: ScopeBits,
    /// The action of the policy of each slot.
    actions: BySlot<FlowAction>,
}

/// One asking of a book, for `explain`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Consultation {
    /// The circumstances.
    pub scope: Scope,
    /// The flow that was judged.
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

impl Tables {
    /// Puts a database together with SA sets. Takes from `earlier` what is the same; without that,
    /// or where the base is another or a set went, it takes as long as there are slots.
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
        let stays = |earlier: &&Tables| {
            let mut changes = sets.changes(&earlier.sets);
            changes.all(|(before, _)| before.is_none())
        };
        let (sets, earlier) = (sets.clone(), earlier.filter(stays));
        // A policy that holds no more may name a set that went with it. It decides nothing.
        let at = |slot: usize| {
            let action = resolve(&sets, spd.policy(PolicyIndex(slot as u32)).action);
            action.unwrap_or(FlowAction::Refuse(Refusal::Discard))
        };
        let earlier = earlier.filter(|earlier| earlier.spd.has_base_of(&spd));
        let base = match earlier {
            Some(earlier) => earlier.actions.base().clone(),
            None => (0..spd.base_slots()).map(at).collect(),
        };
        let check = |policy: &Policy| resolve(&sets, policy.action).map(|_| ());
        // One that came and went again may name a set that went with it: then all are looked at.
        let is_whole = earlier.is_some() && spd.added().all(|(_, policy)| check(policy).is_ok());
        if !is_whole {
            spd.holding().try_for_each(|(_, policy)| check(policy))?;
        }
        let added = (spd.base_slots()..spd.slots()).map(at).collect();
        Ok(Tables { spd, sets, scopes, actions: BySlot::new(base, added) })
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

    /// The scope in which a book judges packets of a family that came by a port of a class, and
    /// were opened by an SA of a set.
    ///
    /// # Panics
    /// If the set is from other tables.
    #[inline]
    pub fn scope(
        &self,
        class: IngressClass,
        book: Book,
        family: Family,
        opened_by: Option<SetIndex>,
    ) -> Scope {
        let opened_by = opened_by.map(|set| self.sets.id(set));
        self.scopes.scope(DomainId::new(class, book, family), opened_by)
    }

    /// Judges each flow in a scope: `out[i]` becomes the verdict on `flows[i]`.
    ///
    /// # Panics
    /// If the slices differ in length, or the scope is from other tables.
    pub fn classify(&self, scope: Scope, flows: &[Flow], out: &mut [FlowVerdict]) {
        assert_eq!(flows.len(), out.len(), "one verdict for each flow");
        let domain = self.scopes.domain(scope);
        let spd = &self.spd;
        match (domain.book(), self.scopes.opened_by(scope)) {
            (Book::SpdOut, _) => {
                spd.classify_into(domain, flows, out, |decider| self.to_leave(decider));
            }
            (Book::SpdIn, None) => {
                spd.classify_into(domain, flows, out, |decider| self.in_clear(decider));
            }
            (Book::SpdIn, Some(set)) => {
                spd.classify_into(domain, flows, out, |decider| self.opened_by(decider, set));
            }
        }
    }

    /// Judges one flow with [`classify`](Self::classify), and says of each book that was asked why
    /// it said so.
    ///
    /// # Panics
    /// If the scope is from other tables.
    pub fn judge(
        &self,
        scope: Scope,
        flow: &Flow,
        asked: &mut impl FnMut(Consultation),
    ) -> FlowVerdict {
        let domain = self.scopes.domain(scope);
        let mut verdict = [FlowVerdict::NOT_ASKED];
        self.classify(scope, std::slice::from_ref(flow), &mut verdict);
        let [verdict] = verdict;
        let matching = self.spd.matching(domain, flow);
        asked(Consultation {
            scope,
            flow: *flow,
            domain,
            generation: self.spd.generation(domain),
            decider: matching.first().copied().unwrap_or_default(),
            beaten: matching.iter().skip(1).filter_map(|beaten| beaten.slot()).collect(),
        });
        verdict
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
        Action::Bypass => Ok(FlowAction::Permit),
        Action::Discard => Ok(FlowAction::Refuse(Refusal::Discard)),
    }
}

#[cfg(test)]
mod tests;
