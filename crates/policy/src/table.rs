//! The rules of one domain: those that were compiled together, and what changed since.

use std::sync::Arc;

use wire::Flow;

use crate::policy::Precedence;
use crate::rule::Rule;
use crate::{Match, PolicyIndex};

/// Rules in order of precedence, compiled for searching. Immutable.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: Box<[Rule]>,
    /// One entry a rule: that of its policy.
    precedence: Box<[Precedence]>,
}

/// The rules of a domain. Cheap to copy: what is large in it is shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// What was compiled as a whole.
    base: Arc<Rules>,
    /// What came since.
    added: Option<Arc<Rules>>,
    /// Policies of `base` that went since, by what they had.
    removed: Arc<[Precedence]>,
}

impl Rules {
    /// `rules` in order of precedence, with that of each one's policy.
    pub(crate) fn new(rules: Vec<Rule>, precedence: Vec<Precedence>) -> Rules {
        assert_eq!(rules.len(), precedence.len(), "one precedence a rule");
        Rules { rules: rules.into(), precedence: precedence.into() }
    }

    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Places of the rules of the policy with this precedence: they lie side by side.
    fn of_policy(&self, precedence: Precedence) -> std::ops::Range<usize> {
        let start = self.precedence.partition_point(|known| *known > precedence);
        let end = self.precedence.partition_point(|known| *known >= precedence);
        start..end
    }

    /// What each rule that speaks of the flow says of it, highest precedence first.
    fn search(&self, flow: &Flow) -> impl Iterator<Item = (Precedence, Match)> {
        let says = self.precedence.iter().zip(&self.rules);
        let says = says.map(|(precedence, rule)| (*precedence, rule.judge(flow)));
        says.filter(|&(_, says)| says != Match::None)
    }
}

impl Table {
    /// A table of rules without changes.
    pub(crate) fn of(base: Rules) -> Table {
        Table { base: Arc::new(base), added: None, removed: Arc::default() }
    }

    /// The same base with other changes.
    pub(crate) fn with_changes(&self, added: Rules, removed: Vec<Precedence>) -> Table {
        let added = (added.len() > 0).then(|| Arc::new(added));
        Table { base: self.base.clone(), added, removed: removed.into() }
    }

    /// Rules that hold.
    pub(crate) fn len(&self) -> usize {
        let gone: usize = self.removed.iter().map(|gone| self.base.of_policy(*gone).len()).sum();
        self.base.len() - gone + self.added.as_ref().map_or(0, |added| added.len())
    }

    /// Whether the base has rules of this precedence.
    pub(crate) fn base_has(&self, precedence: Precedence) -> bool {
        !self.base.of_policy(precedence).is_empty()
    }

    /// What each rule that speaks of the flow says of it, highest precedence first: the authority,
    /// against which every faster search is checked.
    pub(crate) fn search(&self, flow: &Flow) -> impl Iterator<Item = Match> {
        let standing = |(precedence, _): &(Precedence, Match)| !self.removed.contains(precedence);
        let mut base = self.base.search(flow).filter(standing).peekable();
        let mut added = self.added.iter().flat_map(|added| added.search(flow)).peekable();
        std::iter::from_fn(move || match (base.peek(), added.peek()) {
            (Some((of_base, _)), Some((of_added, _))) if of_added > of_base => added.next(),
            (Some(_), _) => base.next(),
            (None, _) => added.next(),
        })
        .map(|(_, says)| says)
    }

    /// Judges each flow as [`search`](Self::search) would.
    pub(crate) fn classify(&self, flows: &[Flow], out: &mut [Match]) {
        for (flow, out) in flows.iter().zip(out) {
            *out = self.search(flow).next().unwrap_or(Match::None);
        }
    }
}

/// Rules as they come together, policy by policy.
#[derive(Default)]
pub(crate) struct Gathered {
    rules: Vec<Rule>,
    precedence: Vec<Precedence>,
}

impl Gathered {
    /// Room for so many.
    pub(crate) fn with_capacity(rules: usize) -> Gathered {
        let (rules, precedence) = (Vec::with_capacity(rules), Vec::with_capacity(rules));
        Gathered { rules, precedence }
    }

    /// Adds a policy's rules for a domain. Policies come in order of precedence.
    pub(crate) fn add(&mut self, policy: &crate::Policy, index: PolicyIndex, of: crate::DomainId) {
        policy.compile(index, of.direction(), of.family(), &mut self.rules);
        self.precedence.resize(self.rules.len(), policy.precedence());
    }

    pub(crate) fn finish(self) -> Rules {
        Rules::new(self.rules, self.precedence)
    }
}
