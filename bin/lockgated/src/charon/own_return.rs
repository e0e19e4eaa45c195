//! Policies of charon's own that come, with their peers, in one change: one that charon adds, or
//! all that another configuration admits again.

use std::net::IpAddr;
use std::sync::Arc;

use charon_link::{AddPolicy, PolicyAction};
use config::IkeBounds;
use control::IkeChange;

use super::desk::Desk;
use super::own::{Ends, Form, NotOwn, OwnKey, local_first};
use crate::ike_changes::IkeRefusal;

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
        (ends, bounds): (Ends, &IkeBounds),
        coming: &mut Coming,
    ) -> Result<(), NotOwn> {
        let (number, selectors) = ((policy.reqid, ends), local_first(policy));
        let known = self.own.numbered(policy.reqid, ends).cloned();
        let once = || std::iter::once(selectors.clone());
        let known = known.or_else(|| self.own.take_over(number, once()));
        let known = known.or_else(|| self.own.take_over_moved(number, once()));
        let known = known.or_else(|| self.own.find_moved(number, &selectors));
        let (name, peer) = match known {
            Some(name) => (name, None),
            None => {
                let (name, peer) = self.own.plan_peer(number, Form::default(), bounds)?;
                (name, Some(peer))
            }
        };
        let key = OwnKey::Protect(name.clone(), selectors);
        if self.own.runs(&key) {
            return Ok(());
        }
        let planned = self.own.plan_policy(&key, policy.priority, bounds)?;
        if let Some(peer) = peer {
            coming.change.peers.push(peer);
            coming.peers.push(name.clone());
            self.own.note_peer(&name, number, Form::default());
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

    /// Has outbound policies run again as far as `[ike]` admits them, all in one change: where the
    /// file leaves no room for them, none comes. What does not come stays a note.
    pub(super) async fn bring_back(&mut self, policies: &[AddPolicy]) {
        let picture = self.daemon.picture();
        let Some(bounds) = &picture.config().ike else { return };
        let mut coming = Coming::default();
        for policy in policies {
            let ends: [IpAddr; 2] = [policy.policy.source.ip(), policy.policy.destination.ip()];
            let is_admitted = || bounds.admit_tunnel(ends[0], ends[1]).is_ok();
            let _ = match policy.action {
                PolicyAction::Protect if self.peers.has_ends(ends) || !is_admitted() => Ok(()),
                PolicyAction::Protect => self.plan_protect(policy, (ends, bounds), &mut coming),
                _ => self.plan_shunt(policy, bounds, &mut coming),
            };
        }
        let _ = self.make(coming).await;
    }
}
