//! Lookups in the policies, and the tier that would answer each.

use dataplane::cache::Recall;
use policy::{Consultation, Decider};

use super::words::book_name;
use super::{PolicyLookup, Story};

impl Story<'_> {
    /// The tier that would answer a question, by its place, and why.
    pub(super) fn tier(&self, place: usize) -> (&'static str, String) {
        let recalled = self.picture.recalled;
        let with_cache = || recalled.iter().flatten();
        let of = |recall: Recall| {
            let is = move |worker: &Option<Vec<Recall>>| {
                worker.as_ref().and_then(|all| all.get(place)) == Some(&recall)
            };
            (0..recalled.len()).filter(|worker| is(&recalled[*worker])).collect::<Vec<usize>>()
        };
        let [known, bypassed, invalid] = [Recall::Known, Recall::Bypassed, Recall::Invalid].map(of);
        let classifier = |reason: &str| ("classifier", reason.to_owned());
        match &known[..] {
            _ if recalled.is_empty() => classifier("no daemon was asked, so no flow cache"),
            _ if with_cache().next().is_none() => classifier("the flow cache is off"),
            _ if with_cache().all(|all| place >= all.len()) => {
                classifier("what this machine itself sends is not remembered")
            }
            [] if !bypassed.is_empty() => {
                classifier("a search here costs no more than a look into the flow cache")
            }
            [] if !invalid.is_empty() => {
                classifier("the flow cache answers nothing until a fresh one takes its place")
            }
            [] => classifier("no worker's flow cache knows this flow yet"),
            [worker] if recalled.len() > 1 => {
                ("cache", format!("worker {worker} knows this flow; others search once"))
            }
            [_] => ("cache", "the worker knows this flow".to_owned()),
            several => {
                let all: Vec<String> = several.iter().map(usize::to_string).collect();
                ("cache", format!("workers {} know this flow", all.join(", ")))
            }
        }
    }

    /// A lookup in words, by its place.
    pub(super) fn consulted(&self, (place, asked): (usize, &Consultation)) -> PolicyLookup {
        let (tier, tier_reason) = self.tier(place);
        let name = |policy| self.snapshot.spd().policy(policy).name.clone();
        let (decided_by, fragment_lacks_ports) = match asked.decider {
            Decider::Policy(policy) => (Some(name(policy)), false),
            Decider::FragmentPorts(policy) => (Some(name(policy)), true),
            Decider::None => (None, false),
        };
        PolicyLookup {
            direction: book_name(asked.domain.book()),
            generation: asked.generation.0,
            decided_by,
            fragment_lacks_ports,
            beat: asked.beaten.iter().map(|policy| name(*policy)).collect(),
            tier,
            tier_reason,
        }
    }
}
