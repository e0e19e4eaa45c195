//! The fast search over the rules of one table (DESIGN §2 "Classifier"): the same answer as the
//! linear search, for a batch of flows at a time.
//!
//! A [`Classifier`] is made of the rules of one direction and family in order of precedence, and
//! never changes. It answers with the *position* of the rule that decides, which counts into the
//! list it was made of; `Rule::judge` stays the authority.
//!
//! | module | what |
//! |---|---|
//! | `header` | flows and rules as ranges of 32-bit numbers, and a class |
//! | `rank` | IPv6 addresses as such numbers |
//! | `forest` | cut trees over blocks of 16 rules, and the search of a batch |
//! | `forests` | both forests of some rules: for whole packets and for fragments |
//! | `labels`, `listed` | rules with long lists of addresses, over the labels of addresses |
//! | `build` | how the trees are made, within bounds |
//! | `cost` | what a search costs at most, and the bound on it |
//! | `dead` | rules deleted since the classifier was made |
//!
//! The search knows nothing of priorities but the order of the rules. It compares with whatever
//! the processor has ([`cpu::lanes`]); every form answers the same.
//!
//! Not here: which tables there are, single changes in front of a table (an overlay).

mod build;
mod cost;
mod dead;
mod forest;
mod forests;
mod header;
mod labels;
mod listed;
mod rank;

use cpu::lanes::{Form, Kernel, Lanes};
use wire::{Family, Flow, Upper};

use crate::rule::Rule;
use forest::{BATCH, Forest};
use forests::{Forests, Shown, Sizes};
use header::{Area, Header, Sees};
use listed::Listed;
use rank::Ranks;

pub use cost::{Budget, Cost, Shape, TooCostly};
pub use dead::Dead;
pub use labels::TooManyLists;

/// The answer of `Classifier::classify` for a flow that no rule concerns.
pub const NONE: u32 = u32::MAX;

/// The rules of one table, made for a fast search. Immutable; shared by threads.
#[derive(Debug)]
pub struct Classifier {
    form: Form,
    /// IPv6: ranks of source and destination.
    ranks: Option<[Ranks; 2]>,
    /// Nodes that a search visits to find those ranks.
    rank_nodes: u32,
    /// The forests of the rules without long lists.
    plain: Forests,
    /// The search over those with them, if there are any.
    listed: Option<Listed>,
    shape: Shape,
}

/// Reason why rules cannot become a classifier.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// Some flow would cost more than the budget.
    #[error(transparent)]
    TooCostly(TooCostly),
    /// The long lists of rules are too many, or overlap too much.
    #[error(transparent)]
    TooManyLists(TooManyLists),
}

impl Classifier {
    /// Makes the search over `rules`, all of `family`, the highest precedence first.
    ///
    /// # Errors
    /// [`Unfit`]; if a search could cost more than `budget` it names the rules to blame.
    pub(crate) fn new(family: Family, rules: &[Rule], budget: Budget) -> Result<Classifier, Unfit> {
        let form = Form::best();
        let sides: [Side; 2] = [|rule| rule.source, |rule| rule.destination];
        let ranks =
            (family == Family::V6).then(|| sides.map(|side| Ranks::new(rules.iter().map(side))));
        let ranges = ranks.as_ref().map(|ranks| {
            std::array::from_fn(|i| form.run(RanksOf { ranks: &ranks[i], rules, side: sides[i] }))
        });
        let ranges: Option<[Vec<(u32, u32)>; 2]> = ranges;
        let numbers = |position: usize| match &ranges {
            None => sides.map(|side| narrow(side(&rules[position]))),
            Some([sources, destinations]) => [sources[position], destinations[position]],
        };
        let areas = |sees: Sees| -> Vec<Area> {
            let area = |(position, rule): (usize, &Rule)| {
                let [source, destination] = numbers(position);
                Area::new(rule, family, source, destination, sees)
            };
            rules.iter().enumerate().map(area).collect()
        };
        let rank_nodes = ranks.iter().flatten().map(|ranks| ranks.depth() as u32).sum();
        let is_plain = |position: &u32| rules[*position as usize].lists == [None, None];
        let every: Vec<u32> = (0..rules.len() as u32).filter(is_plain).collect();
        let made = Forests::new(&areas(Sees::Whole), &areas(Sees::Fragment), every, budget);
        let (plain, mut sizes) = made.map_err(Unfit::TooCostly)?;
        let cost = plain.cost_of(|forest| forest.cost);
        let left = Budget { steps: budget.steps.saturating_sub(cost.steps()), ..budget };
        let listed = match Listed::new(family, rules, numbers, left)? {
            None => None,
            Some((listed, more)) => {
                sizes.trees += more.trees;
                sizes.depth = sizes.depth.max(more.depth);
                sizes.copies += more.copies;
                Some(listed)
            }
        };
        let Sizes { trees, depth, copies } = sizes;
        let shape = Shape { rules: rules.len(), trees, depth, copies };
        Ok(Classifier { form, ranks, rank_nodes, plain, listed, shape })
    }

    /// Returns this search in another of the processor's forms.
    #[must_use]
    pub fn with_form(self, form: Form) -> Classifier {
        Classifier { form, ..self }
    }

    /// Sets the form in place, as [`with_form`](Self::with_form) does.
    pub(crate) fn use_form(&mut self, form: Form) {
        self.form = form;
    }

    /// Searches each flow: `out[i]` is the position of the first rule that matches `flows[i]`
    /// (whose `judge` is not [`crate::Decider::None`]), or [`NONE`]. The flows are of the table's
    /// family; any number of them.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub(crate) fn classify(&self, flows: &[Flow], out: &mut [u32]) {
        assert_eq!(flows.len(), out.len(), "one position for each flow");
        self.form.run(Search { classifier: self, dead: None, flows, out });
    }

    /// Searches as [`classify`](Self::classify) does, without the rules in `dead`.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub(crate) fn classify_alive(&self, flows: &[Flow], dead: &Dead, out: &mut [u32]) {
        assert_eq!(flows.len(), out.len(), "one position for each flow");
        self.form.run(Search { classifier: self, dead: Some(dead), flows, out });
    }

    /// Returns the most that a search of one flow costs.
    pub fn worst_case_cost(&self) -> Cost {
        self.cost_of(|forest| forest.cost)
    }

    /// Returns [`worst_case_cost`](Self::worst_case_cost) without the rules in `dead`: the search
    /// goes on behind them to the rules that they hid, and no budget bounds that. Cost: by the
    /// number of rules, a bit each.
    pub fn cost_without(&self, dead: &Dead) -> Cost {
        self.cost_of(|forest| forest.cost_without(dead))
    }

    fn cost_of(&self, cost: impl Fn(&Forest) -> Cost) -> Cost {
        let of = |forests: &Forests| forests.cost_of(&cost);
        let listed = self.listed.as_ref().map_or_else(Cost::default, |listed| listed.cost_of(of));
        of(&self.plain).and(listed).and(Cost { nodes: self.rank_nodes, blocks: 0 })
    }

    /// Memory of the structure.
    pub fn bytes(&self) -> usize {
        let ranks: usize = self.ranks.iter().flatten().map(Ranks::bytes).sum();
        ranks + self.plain.bytes() + self.listed.as_ref().map_or(0, Listed::bytes)
    }

    /// Returns the sizes of the structure.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Searches up to [`BATCH`] flows.
    #[inline(always)]
    fn search_batch<L: Lanes>(
        &self,
        lanes: L,
        dead: Option<&Dead>,
        flows: &[Flow],
        out: &mut [u32],
    ) {
        let mut headers = [Header::default(); BATCH];
        let shown = self.headers(lanes, flows, &mut headers);
        let listed = self.listed.as_ref();
        let listed = listed.map(|listed| listed.search(lanes, dead, flows, &headers, shown));
        self.plain.search(lanes, dead, flows, (&mut headers, shown), out);
        if let Some(listed) = listed {
            out.iter_mut().zip(listed).for_each(|(out, listed)| *out = listed.min(*out));
        }
    }

    /// Makes the headers of flows, and says whether fragments are among them.
    #[inline(always)]
    fn headers<L: Lanes>(&self, lanes: L, flows: &[Flow], headers: &mut [Header; BATCH]) -> Shown {
        let mut fragments = false;
        for (flow, header) in flows.iter().zip(&mut headers[..]) {
            let (ports, class) = header::upper(flow);
            *header = [flow.source as u32, flow.destination as u32, ports, class];
            fragments |= flow.upper == Upper::Fragment;
        }
        if let Some([sources, destinations]) = &self.ranks {
            let (mut addresses, mut ranks) = ([0; BATCH], [0; BATCH]);
            let (addresses, ranks) = (&mut addresses[..flows.len()], &mut ranks[..flows.len()]);
            let source: fn(&Flow) -> u128 = |flow| flow.source;
            let destination: fn(&Flow) -> u128 = |flow| flow.destination;
            for (at, tree, side) in [(0, sources, source), (1, destinations, destination)] {
                addresses.iter_mut().zip(flows).for_each(|(to, flow)| *to = side(flow));
                tree.search(lanes, addresses, ranks);
                headers.iter_mut().zip(&*ranks).for_each(|(header, &rank)| header[at] = rank);
            }
        }
        if fragments { Shown::SomeFragments } else { Shown::AllWhole }
    }
}

/// The search of any number of flows.
struct Search<'a> {
    classifier: &'a Classifier,
    dead: Option<&'a Dead>,
    flows: &'a [Flow],
    out: &'a mut [u32],
}

impl Kernel for Search<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (flows, out) in self.flows.chunks(BATCH).zip(self.out.chunks_mut(BATCH)) {
            self.classifier.search_batch(lanes, self.dead, flows, out);
        }
    }
}

/// The addresses that a rule has on one side.
type Side = fn(&Rule) -> (u128, u128);

/// The ranges of one side of IPv6 rules as ranges of ranks.
struct RanksOf<'a> {
    ranks: &'a Ranks,
    rules: &'a [Rule],
    side: Side,
}

impl Kernel for RanksOf<'_> {
    type Output = Vec<(u32, u32)>;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Vec<(u32, u32)> {
        let RanksOf { ranks, rules, side } = self;
        let mut ranges = Vec::with_capacity(rules.len());
        for rules in rules.chunks(BATCH) {
            let (mut ends, mut lo, mut hi) = ([0; BATCH], [0; BATCH], [0; BATCH]);
            ends.iter_mut().zip(rules).for_each(|(end, rule)| *end = side(rule).0);
            ranks.search(lanes, &ends[..rules.len()], &mut lo[..rules.len()]);
            ends.iter_mut().zip(rules).for_each(|(end, rule)| *end = side(rule).1);
            ranks.search(lanes, &ends[..rules.len()], &mut hi[..rules.len()]);
            let ends = ends.iter().zip(lo.iter().zip(&hi)).take(rules.len());
            // What reaches to the end of all addresses reaches to the end of all numbers.
            let range = |(&end, (&lo, &hi))| (lo, if end == u128::MAX { u32::MAX } else { hi });
            ranges.extend(ends.map(range));
        }
        ranges
    }
}

/// An IPv4 range.
fn narrow((lo, hi): (u128, u128)) -> (u32, u32) {
    (lo as u32, hi as u32)
}

#[cfg(test)]
mod tests;
