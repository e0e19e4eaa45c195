//! Policies of charon's own that come, with their peers, in one change: one that charon adds, or
//! all that another configuration admits again.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use charon_link::{AddPolicy, PolicyAction, PolicyDirection};
use config::IkeBounds;
use control::IkeChange;
use tokio::time::Instant;

use super::desk::Desk;
use super::own::{NotOwn, OwnForm, OwnKey, ends_of_policy, local_first, remote_end};
use crate::events::Kind;
use crate::ike_changes::IkeRefusal;

/// Time after which policies are tried again that the machine refused.
const RETRY: Duration = Duration::from_secs(1);

/// Policies and peers that are to come, and are noted as if they had.
#[derive(Default)]
pub(super) struct Coming {
    change: IkeChange,
    policies: Vec<OwnKey>,
    peers: Vec<Arc<str>>,
}

impl Desk {
    /// Plans an outbound policy that protects, between ends that `[ike]` admits.
    ///
    /// # Errors
    /// [`NotOwn`]: nothing is noted.
    pub(super) fn plan_protect(
        &mut self,
        policy: &AddPolicy,
        bounds: &IkeBounds,
        coming: &mut Coming,
    ) -> Result<(), NotOwn> {
        let (reqid, selectors) = (policy.reqid, local_first(policy));
        let ends = ends_of_policy(&policy.policy);
        let number = (reqid, remote_end(&ends));
        let known = self.own.numbered(reqid).cloned();
        let once = || std::iter::once(selectors.clone());
        let known = known.or_else(|| self.own.take_over(reqid, once()));
        let (name, peer) = match known {
            Some(name) => (name, None),
            None => {
                let form = OwnForm { ends, suite: None };
                let (name, peer) = self.own.plan_peer(number, form, bounds)?;
                (name, Some(peer))
            }
        };
        let key = OwnKey::Protect(name.clone(), selectors);
        if self.own.runs(&key) {
            return Ok(());
        }
        if peer.is_none() {
            self.check_policy_of(&name, policy)?;
        }
        let planned = self.own.plan_policy(&key, policy.priority, bounds)?;
        if let Some(peer) = peer {
            coming.change.peers.push(peer);
            coming.peers.push(name.clone());
            self.own.note_peer(&name, number);
        }
        self.own.note_policy(key.clone(), &planned.name);
        coming.policies.push(key);
        coming.change.policies.push(planned);
        Ok(())
    }

    /// Plans an outbound shunt.
    ///
    /// # Errors
    /// [`NotOwn`]: nothing is noted.
    pub(super) fn plan_shunt(
        &mut self,
        policy: &AddPolicy,
        bounds: &IkeBounds,
        coming: &mut Coming,
    ) -> Result<(), NotOwn> {
        let key = OwnKey::Shunt(policy.action, local_first(policy));
        if self.own.runs(&key) {
            return Ok(());
        }
        let planned = self.own.plan_policy(&key, policy.priority, bounds)?;
        self.own.note_policy(key.clone(), &planned.name);
        coming.policies.push(key);
        coming.change.policies.push(planned);
        Ok(())
    }

    /// Makes a change that is planned. Refused, nothing of it stays noted.
    ///
    /// # Errors
    /// [`IkeRefusal`].
    pub(super) async fn make(&mut self, coming: Coming) -> Result<(), IkeRefusal> {
        let Coming { change, policies, peers } = coming;
        if policies.is_empty() {
            return Ok(());
        }
        let made = self.change(change).await;
        if made.is_err() {
            policies.iter().for_each(|key| self.own.forget_policy(key));
            peers.iter().for_each(|name| self.own.forget_peer(name));
        }
        made
    }

    /// Has policies of charon's run that the configuration admits and that do not run.
    ///
    /// Not before charon has named all that it has: until then some may be those of an earlier one,
    /// whose numbers mean nothing to this one. A refusal by the machine is tried again.
    pub(super) async fn bring_back_missing(&mut self) {
        let is_due = self.retry_at.is_none_or(|at| at <= Instant::now());
        if !(self.must_bring_back && self.has_resumed && is_due) {
            return;
        }
        (self.must_bring_back, self.retry_at) = (false, None);
        let is_out = |policy: &&AddPolicy| {
            policy.policy.direction == PolicyDirection::Outbound && !self.runs_as_own(policy)
        };
        let policies: Vec<AddPolicy> = self.book.policies().filter(is_out).cloned().collect();
        let Err(why) = self.bring_back(&policies).await else { return };
        let next = match why {
            IkeRefusal::Transaction(_) => {
                (self.must_bring_back, self.retry_at) = (true, Some(Instant::now() + RETRY));
                "Lockgate tries again in a second"
            }
            _ => "they come back with a configuration that has room for them",
        };
        let message = format!("policies that charon has do not run: {why}; {next}");
        self.daemon.events.record(Kind::CharonRefused, "charon", message, &[]);
    }

    /// Returns the time of the next retry: of policies that the machine refused, or of a request to
    /// charon.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let refused = self.retry_at.filter(|_| self.must_bring_back && self.has_resumed);
        refused.into_iter().chain(self.successors.next()).min()
    }

    /// Has outbound policies run again as far as `[ike]` admits them, all in one change: where the
    /// file leaves no room for them, none comes. What does not come stays a note.
    ///
    /// # Errors
    /// [`IkeRefusal`]: none of them runs.
    async fn bring_back(&mut self, policies: &[AddPolicy]) -> Result<(), IkeRefusal> {
        let picture = self.daemon.picture();
        let Some(bounds) = &picture.config().ike else { return Ok(()) };
        let mut coming = Coming::default();
        for policy in policies {
            let ends: [IpAddr; 2] = [policy.policy.source.ip(), policy.policy.destination.ip()];
            let is_admitted = || bounds.admit_tunnel(ends[0], ends[1]).is_ok();
            let _ = match policy.action {
                PolicyAction::Protect if self.peers.has_ends(ends) || !is_admitted() => Ok(()),
                PolicyAction::Protect => self.plan_protect(policy, bounds, &mut coming),
                _ => self.plan_shunt(policy, bounds, &mut coming),
            };
        }
        self.make(coming).await
    }
}
