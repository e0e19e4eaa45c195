//! Children that are left out, and the policies that their packets find instead.
//!
//! Linux may have asked the policy of such a child first, and that of a `pass` child for the same
//! packets behind it. They would now leave in cleartext: that is said. Packets are compared by
//! addresses alone, and a child whose selectors cannot be read may have any.

use policy::{AddressRange, Selector};

use super::selectors::{Kind, first_rank};
use super::syntax::View;
use super::values::{entries, number, selector};
use super::{Action, PolicyDraft, Reader, Untaken};
use crate::problem::{Fate, shown};

/// Selectors that are read again and comparisons of ranges at most. A child behind these counts as
/// one that may have any packets.
const MAX_STEPS: usize = 1 << 22;

/// A child that is not taken.
pub(super) struct LeftOut {
    /// The child, and its connection.
    pub(super) names: [String; 2],
    pub(super) view: View,
    pub(super) why: Untaken,
}

/// Ranges of both ends; `None`: they may be any.
type Ends = [Option<Vec<AddressRange>>; 2];

impl Reader<'_, '_> {
    /// Notes all children that were left out, once all policies are known.
    pub(super) fn note_left_out(&mut self) {
        let mut steps = MAX_STEPS;
        let policies = self.drafts.policies.iter().enumerate();
        let of = |(place, policy): (usize, &PolicyDraft)| {
            (policy.action == Action::Bypass).then_some((policy.rank, place))
        };
        // The last one first.
        let mut passing: Vec<(u32, usize)> = policies.filter_map(of).collect();
        passing.sort_unstable_by_key(|(rank, place)| std::cmp::Reverse((*rank, *place)));
        for LeftOut { names: [child, connection], view, why } in std::mem::take(&mut self.left_out)
        {
            let Untaken { at, word, reason, mut advice } = why;
            let mut reason =
                format!("child {} of {} is left out: {reason}", shown(&child), shown(&connection));
            if let Some(name) = self.passes_instead(&view, &passing, &mut steps) {
                reason += &format!(". Without it policy {name} may pass its packets in cleartext");
                advice += &format!(
                    "; or write a policy with action = \"discard\" for its packets, of a higher \
                     priority than {name}"
                );
            }
            self.note(Fate::Left, at, word, (&reason, &advice));
        }
    }

    /// The name of a policy that may pass packets of a child that was left out.
    fn passes_instead(
        &self,
        view: &View,
        passing: &[(u32, usize)],
        steps: &mut usize,
    ) -> Option<&str> {
        let value = |key| self.tree.value(view, key).map(|(_, text)| text);
        let kind = match value("mode") {
            Some(mode) if mode.eq_ignore_ascii_case("pass") => return None,
            Some(mode) if mode.eq_ignore_ascii_case("drop") => Kind::Drop,
            _ => Kind::Protect,
        };
        let fixed = value("priority").and_then(number).filter(|rank| *rank > 0);
        let rank = fixed.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(first_rank(kind));
        let behind = passing.iter().take_while(|(other, _)| *other >= rank);
        let mut behind = behind.map(|(_, place)| &self.drafts.policies[*place]).peekable();
        behind.peek()?;
        let ends =
            ["local_ts", "remote_ts"].map(|key| value(key).and_then(|text| read(text, steps)));
        behind.find(|policy| may_meet(&policy.selector, &ends, steps)).map(|policy| &*policy.name)
    }
}

/// The ranges of an end; `None`: they may be any.
fn read(text: &str, steps: &mut usize) -> Option<Vec<AddressRange>> {
    let mut ranges = Vec::new();
    for entry in entries(text) {
        *steps = steps.checked_sub(1)?;
        ranges.push(selector(entry).ok()?.addresses?);
    }
    Some(ranges)
}

/// Returns whether a policy may have packets between these ends.
fn may_meet(policy: &Selector, ends: &Ends, steps: &mut usize) -> bool {
    let both = [&policy.local, &policy.remote];
    both.into_iter().zip(ends).all(|(theirs, ours)| {
        let Some(ours) = ours else { return true };
        let Some(left) = steps.checked_sub(1 + ours.len() * theirs.len()) else { return true };
        *steps = left;
        ours.iter().any(|one| theirs.iter().any(|other| overlap(one, other)))
    })
}

fn overlap(one: &AddressRange, other: &AddressRange) -> bool {
    one.family == other.family && one.lo <= other.hi && other.lo <= one.hi
}
