//! Policies beside the card's SAs. An SA of packet mode that was given a policy carries what the
//! policy matches, while the policy is there: without it, it carries nothing (XO-04).

use std::sync::Arc;

use offload::{CardPolicy, PolicyAction, Refusal, SaDirection, Tag, policy_fits};

use super::{EmulatedCard, failed, unsupported};
use crate::esp::Loss;
use crate::matcher::PolicyEntries;
use crate::parse::parse;

/// A policy in the card.
#[derive(Clone, Debug)]
pub(super) struct LoadedPolicy {
    pub(super) tag: Tag,
    policy: Arc<CardPolicy>,
    entries: PolicyEntries,
    /// Packets that it matched.
    pub(super) packets: u64,
}

impl EmulatedCard {
    /// Names of the policies that are in the card.
    pub fn policies(&self) -> impl Iterator<Item = Tag> {
        self.policies.iter().map(|policy| policy.tag)
    }

    /// Says whether the card can hold a policy.
    pub(super) fn policy_fits(&self, policy: &CardPolicy) -> Result<(), Refusal> {
        let sas = self.capabilities.sas.get();
        let sas = sas.ok_or_else(|| unsupported("this card has no SAs"))?;
        policy_fits(policy, sas).map_err(|unfit| unsupported(unfit.help()))
    }

    /// Takes a policy in; the SA that it protects by must be there.
    pub(super) fn take_policy(
        &mut self,
        tag: Tag,
        policy: &Arc<CardPolicy>,
    ) -> Result<(), Refusal> {
        let PolicyAction::Protect(handle) = policy.action else {
            return Err(unsupported("policies that protect only"));
        };
        let sa = self.sas.iter_mut().find(|sa| sa.tag.handle == handle);
        let sa = sa.ok_or_else(|| failed("the policy names an SA that is not there"))?;
        if !sa.is_of(policy.direction) {
            return Err(failed("the policy is of the other direction"));
        }
        sa.was_given_policy = true;
        let entries = PolicyEntries::of(&policy.patterns);
        let loaded = LoadedPolicy { tag, policy: policy.clone(), entries, packets: 0 };
        self.policies.push(loaded);
        Ok(())
    }

    /// Says whether a frame in clear may go by an SA in a direction, as its policy has it.
    pub(super) fn may_go(
        &mut self,
        sa: Tag,
        direction: SaDirection,
        frame: &[u8],
    ) -> Result<(), Loss> {
        let of = self.sas.iter().find(|of| of.tag == sa);
        if !of.is_some_and(|of| of.was_given_policy) {
            return Ok(());
        }
        let is_of = |policy: &CardPolicy| {
            policy.direction == direction && policy.action == PolicyAction::Protect(sa.handle)
        };
        let seen = parse(frame);
        let found = self.policies.iter_mut().find(|policy| {
            is_of(&policy.policy) && seen.as_ref().is_some_and(|seen| policy.entries.match_(seen))
        });
        let policy = found.ok_or(Loss::Policy)?;
        policy.packets += 1;
        Ok(())
    }
}
