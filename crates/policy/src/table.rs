//! Tables of rules: the rules compiled together, and the changes since.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use wire::{Family, Flow, Upper};

use crate::classifier::{Budget, Classifier, Cost, Dead, NONE, Shape, Unfit};
use crate::ids::PolicyIndex;
use crate::policy::Precedence;
use crate::rule::Rule;
use crate::verdict::Decider;

/// Flows that are searched together.
const AT_ONCE: usize = 64;

/// Rules in order of precedence, compiled for searching. Immutable.
#[derive(Debug)]
pub(crate) struct Rules {
    rules: Box<[Rule]>,
    /// One entry a rule: that of its policy.
    precedence: Box<[Precedence]>,
    /// One entry a rule: the slot of its policy.
    slots: Box<[PolicyIndex]>,
    search: Classifier,
    /// Number of rules that tell TCP segments apart.
    telling: usize,
}

/// Memory of rules.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RuleMemory {
    /// Rules in memory; a rule shared by tables counts once.
    pub rules: usize,
    /// Bytes of the rules and of the search structures.
    pub bytes: usize,
}

/// The rules of domains with the same policies. Cheap to copy: copies share all large parts.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// The part that was compiled as a whole.
    base: Arc<Rules>,
    /// Changes since then.
    changes: Option<Arc<Changes>>,
    /// Rules that hold.
    rules: usize,
}

#[derive(Debug)]
struct Changes {
    added: Rules,
    /// Places of rules of the base that went.
    dead: Dead,
    /// Number of positions in `dead`.
    gone: usize,
    /// Number of rules among them that tell TCP segments apart.
    telling_gone: usize,
    /// The most that the changes add to a search: by rules that came, and by rules of the base that
    /// those gone had hidden.
    cost: Cost,
}

impl Rules {
    /// Returns the number of rules.
    fn len(&self) -> usize {
        self.rules.len()
    }

    /// Bytes of the rules and of the search structures.
    fn bytes(&self) -> usize {
        let Rules { rules, precedence, slots, search, telling: _ } = self;
        size_of_val(&**rules) + size_of_val(&**precedence) + size_of_val(&**slots) + search.bytes()
    }

    /// Places of the rules of the policy with this precedence: they lie side by side.
    fn of_policy(&self, precedence: Precedence) -> Range<usize> {
        let start = self.precedence.partition_point(|known| *known > precedence);
        let end = self.precedence.partition_point(|known| *known >= precedence);
        start..end
    }

    /// Returns the verdict of each rule that concerns the flow, highest precedence first, with its
    /// place.
    fn search(&self, flow: &Flow) -> impl Iterator<Item = (usize, Decider)> {
        let says = self.rules.iter().map(|rule| rule.judge(flow)).enumerate();
        says.filter(|&(_, says)| says != Decider::None)
    }

    /// Returns the verdict of the rule at a place, which concerns the flow.
    #[inline]
    fn says(&self, place: u32, flow: &Flow) -> Decider {
        if place == NONE {
            return Decider::None;
        }
        match flow.upper {
            Upper::Fragment => self.rules[place as usize].judge(flow),
            Upper::Ports { .. } | Upper::Icmp { .. } | Upper::None => {
                Decider::Policy(self.slots[place as usize])
            }
        }
    }

    /// Precedence of the rule at a place; lower than any if there is none.
    fn precedence_at(&self, place: u32) -> Option<Precedence> {
        (place != NONE).then(|| self.precedence[place as usize])
    }
}

impl Table {
    /// A table of rules without changes.
    pub(crate) fn of(base: Rules) -> Table {
        let rules = base.len();
        Table { base: Arc::new(base), changes: None, rules }
    }

    /// Returns a table on the same base with more changes: `added` are all rules that came,
    /// `removed` the policies that went beside those gone already, by their precedence, whether the
    /// base has them or not.
    pub(crate) fn with_changes(
        &self,
        added: Rules,
        removed: impl Iterator<Item = Precedence>,
    ) -> Table {
        let before = self.changes.as_ref();
        let (mut dead, mut gone, mut telling_gone) = before
            .map_or_else(Default::default, |before| {
                (before.dead.clone(), before.gone, before.telling_gone)
            });
        // A policy that came back with the precedence of one that went may go once more: what went
        // of the base is counted once.
        let places = removed.flat_map(|precedence| self.base.of_policy(precedence));
        for place in places {
            if dead.insert(place as u32) {
                gone += 1;
                telling_gone += usize::from(self.base.rules[place].tells_segments());
            }
        }
        let search = &self.base.search;
        let (as_made, now) = (search.worst_case_cost(), search.cost_without(&dead));
        let cost = Cost {
            nodes: now.nodes.saturating_sub(as_made.nodes),
            blocks: now.blocks.saturating_sub(as_made.blocks),
        };
        let cost = cost.and(added.search.worst_case_cost());
        let changes = Changes { added, dead, gone, telling_gone, cost };
        let rules = self.base.len() - gone + changes.added.len();
        let changes = (gone > 0 || changes.added.len() > 0).then(|| Arc::new(changes));
        Table { base: self.base.clone(), changes, rules }
    }

    /// Sets the form in which the base is searched, if no other table shares it.
    pub(crate) fn in_form(mut self, form: cpu::lanes::Form) -> Table {
        if let Some(base) = Arc::get_mut(&mut self.base) {
            base.search.use_form(form);
        }
        self
    }

    /// Returns whether nothing changed since the base was made.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.changes.is_none()
    }

    /// Rules that hold.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.rules
    }

    /// Returns whether a rule that holds tells TCP segments that open a connection from others.
    pub(crate) fn tells_segments(&self) -> bool {
        let (came, went) =
            self.changes.as_ref().map_or((0, 0), |c| (c.added.telling, c.telling_gone));
        self.base.telling - went + came > 0
    }

    /// Returns the verdict of each rule that concerns the flow, highest precedence first: the
    /// authority, against which every faster search is checked.
    pub(crate) fn search(&self, flow: &Flow) -> impl Iterator<Item = Decider> {
        let changes = self.changes.as_deref();
        let stands = move |&(place, _): &(usize, Decider)| {
            changes.is_none_or(|changes| !changes.dead.contains(place as u32))
        };
        let with_precedence =
            |rules: &'_ Rules, (place, says): (usize, Decider)| (rules.precedence[place], says);
        let base = self.base.search(flow).filter(stands);
        let mut base = base.map(move |found| with_precedence(&self.base, found)).peekable();
        let added = changes.into_iter().flat_map(move |changes| {
            changes.added.search(flow).map(move |found| with_precedence(&changes.added, found))
        });
        let mut added = added.peekable();
        std::iter::from_fn(move || match (base.peek(), added.peek()) {
            (Some((of_base, _)), Some((of_added, _))) if of_added > of_base => added.next(),
            (Some(_), _) => base.next(),
            (None, _) => added.next(),
        })
        .map(|(_, says)| says)
    }

    /// Classifies each flow as [`search`](Self::search) would; `out[i]` is what `read` makes of the
    /// answer.
    pub(crate) fn classify<T>(&self, flows: &[Flow], out: &mut [T], read: impl Fn(Decider) -> T) {
        let mut places = [NONE; AT_ONCE];
        for (flows, out) in flows.chunks(AT_ONCE).zip(out.chunks_mut(AT_ONCE)) {
            let places = &mut places[..flows.len()];
            match &self.changes {
                None => {
                    self.base.search.classify(flows, places);
                    let found = flows.iter().zip(&*places);
                    let says = found.map(|(flow, place)| self.base.says(*place, flow));
                    out.iter_mut().zip(says).for_each(|(out, says)| *out = read(says));
                }
                Some(changes) => self.classify_changed(changes, flows, places, out, &read),
            }
        }
    }

    /// Asks the base and what came since, and takes the answer of higher precedence.
    fn classify_changed<T>(
        &self,
        changes: &Changes,
        flows: &[Flow],
        of_base: &mut [u32],
        out: &mut [T],
        read: &impl Fn(Decider) -> T,
    ) {
        let mut of_added = [NONE; AT_ONCE];
        let of_added = &mut of_added[..flows.len()];
        match changes.gone {
            0 => self.base.search.classify(flows, of_base),
            _ => self.base.search.classify_alive(flows, &changes.dead, of_base),
        }
        if changes.added.len() > 0 {
            changes.added.search.classify(flows, of_added);
        }
        let places = of_base.iter().zip(of_added);
        for ((flow, out), (&of_base, &mut of_added)) in flows.iter().zip(out).zip(places) {
            let added = changes.added.precedence_at(of_added);
            *out = read(match added.is_some() && added > self.base.precedence_at(of_base) {
                true => changes.added.says(of_added, flow),
                false => self.base.says(of_base, flow),
            });
        }
    }

    /// Returns the most that a search of one flow costs, changes included.
    pub(crate) fn cost(&self) -> Cost {
        self.base.search.worst_case_cost().and(self.cost_of_changes())
    }

    /// Returns the part of that cost that changes since the base was made have added.
    pub(crate) fn cost_of_changes(&self) -> Cost {
        self.changes.as_ref().map_or_else(Cost::default, |changes| changes.cost)
    }

    /// Memory of what is searched, bytes: without the rules themselves, which only fragments and
    /// explanations look at.
    pub(crate) fn bytes(&self) -> usize {
        let of = |rules: &Rules| rules.search.bytes() + size_of_val(&*rules.slots);
        of(&self.base) + self.changes.as_ref().map_or(0, |changes| of(&changes.added))
    }

    /// Adds the table's memory to a sum, removed rules of the base included. `counted` holds the
    /// bases in the sum already: tables may share a base.
    pub(crate) fn add_memory(&self, counted: &mut HashSet<*const Rules>, sum: &mut RuleMemory) {
        let mut add = |rules: &Rules| {
            sum.rules += rules.len();
            sum.bytes += rules.bytes();
        };
        if counted.insert(Arc::as_ptr(&self.base)) {
            add(&self.base);
        }
        self.changes.iter().for_each(|changes| add(&changes.added));
    }

    /// Address of the base.
    #[cfg(test)]
    pub(crate) fn base_address(&self) -> *const Rules {
        Arc::as_ptr(&self.base)
    }

    /// Returns the sizes of the base.
    pub(crate) fn shape(&self) -> Shape {
        self.base.search.shape()
    }
}

/// Rules as they come together, policy by policy.
#[derive(Default)]
pub(crate) struct Gathered {
    rules: Vec<Rule>,
    precedence: Vec<Precedence>,
}

/// Rules that cannot be compiled, and why.
pub(crate) struct Refused {
    /// The reason.
    pub(crate) error: Unfit,
    /// Slots of the policies that cost most, the worst first, each once.
    pub(crate) slots: Vec<PolicyIndex>,
}

impl Gathered {
    /// Room for so many.
    pub(crate) fn with_capacity(rules: usize) -> Gathered {
        let (rules, precedence) = (Vec::with_capacity(rules), Vec::with_capacity(rules));
        Gathered { rules, precedence }
    }

    /// Adds a policy's rules for a domain. Policies come in order of precedence.
    pub(crate) fn add(&mut self, policy: &crate::Policy, index: PolicyIndex, of: crate::DomainId) {
        policy.compile(index, of.book().reads(), of.family(), &mut self.rules);
        self.precedence.resize(self.rules.len(), policy.precedence());
    }

    /// Compiles what came together, rules of this family.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) fn finish(self, family: Family) -> Result<Rules, Refused> {
        let Gathered { rules, precedence } = self;
        match Classifier::new(family, &rules, Budget::default()) {
            Ok(search) => {
                let slots = rules.iter().map(|rule| rule.index).collect();
                let telling = rules.iter().filter(|rule| rule.tells_segments()).count();
                let (rules, precedence) = (rules.into(), precedence.into());
                Ok(Rules { rules, precedence, slots, search, telling })
            }
            Err(error) => {
                let mut slots: Vec<PolicyIndex> = Vec::new();
                let positions = match &error {
                    Unfit::TooCostly(error) => &error.positions[..],
                    Unfit::TooManyLists(_) => &[],
                };
                for position in positions {
                    let Some(rule) = rules.get(*position as usize) else { continue };
                    if !slots.contains(&rule.index) {
                        slots.push(rule.index);
                    }
                }
                Err(Refused { error, slots })
            }
        }
    }
}
