//! Makes the SAs of a configuration. An SA that the configuration before had too keeps its slot,
//! its expanded key, its sequence counter or replay window, and the account of its limits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dataplane::{SaSet, Sad};
use ipsec::{
    Account, Allowance, Identifications, InboundSa, Lifetime, OutboundSa, ReplayWindow, SaError,
    SaId, SequenceCounter, Used,
};
use keystate::{KeyFileFacts, KeyRefused, KeyState, KeyUse};
use policy::{Direction, SaSetId, SetIndex};

use crate::compile::{CompileError, sa_set};
use crate::compiled::{PreviousSas, RefusedKey, SaIdentity};
use crate::identifications::identifications;
use crate::kept_sas::PutSas;
use config::KeyLine;
use config::validated::Peer;

/// The SAs of a configuration that is being compiled.
pub(crate) struct Associations<'a> {
    last: &'a PreviousSas,
    /// SAs that were put over the API and stay: no other SA gets their slots.
    put: &'a PutSas,
    sets: Vec<(&'a Peer, SaSetId)>,
    outbound: Vec<RequestedSa<'a, SequenceCounter>>,
    inbound: Vec<RequestedSa<'a, ReplayWindow>>,
    refused: Vec<RefusedKey>,
}

/// An SA that a key was taken for.
struct RequestedSa<'a, N> {
    peer: &'a Peer,
    set: SaSetId,
    line: &'a KeyLine,
    identity: SaIdentity,
    numbers: Arc<N>,
    /// The use of the SA, if it has limits.
    account: Option<Arc<Account>>,
}

impl<'a> Associations<'a> {
    /// Begins with the SAs that were compiled last, beside those that were put since.
    pub(crate) fn after(last: &'a PreviousSas, put: &'a PutSas) -> Associations<'a> {
        Associations {
            last,
            put,
            sets: Vec::new(),
            outbound: Vec::new(),
            inbound: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Adds a peer's set, whose SAs are put.
    pub(crate) fn add_set(&mut self, peer: &'a Peer, set: SaSetId) {
        self.sets.push((peer, set));
    }

    /// Adds a peer's set, and an SA for each of its keys that is not refused.
    pub(crate) fn add_peer(
        &mut self,
        peer: &'a Peer,
        set: SaSetId,
        lines: &'a [KeyLine],
        file: &KeyFileFacts,
        keys: &mut KeyState,
    ) -> Result<(), CompileError> {
        self.sets.push((peer, set));
        for line in lines {
            let identity = SaIdentity::of(peer, line);
            let (key, spi) = (identity.fingerprint, line.spi);
            let account = |keys: &mut KeyState, usage| {
                let hard = &peer.lifetime.hard;
                let is_limited = peer.lifetime != Lifetime::NONE;
                is_limited.then(|| keys.account(key, usage, hard)).flatten()
            };
            let added = match line.direction {
                Direction::Outbound => {
                    keys.outbound_later(key, spi, peer.numbers, file).map(|numbers| {
                        let account = account(keys, KeyUse::Seals);
                        let requested = RequestedSa { peer, set, line, identity, numbers, account };
                        self.outbound.push(requested);
                    })
                }
                Direction::Inbound => {
                    keys.inbound(key, spi, peer.replay_window, peer.numbers).map(|numbers| {
                        let account = account(keys, KeyUse::Opens);
                        let requested = RequestedSa { peer, set, line, identity, numbers, account };
                        self.inbound.push(requested);
                    })
                }
            };
            if let Err(KeyRefused { fingerprint, spi, reason, .. }) = added {
                let (peer, direction) = (peer.name.clone(), line.direction);
                self.refused.push(RefusedKey { peer, direction, spi, fingerprint, reason });
            }
        }
        Ok(())
    }

    /// Assigns slots: an SA that was there keeps its slot, a new one gets a vacant slot.
    /// `own`: sets of peers that charon made by itself, without their SAs, with their places.
    pub(crate) fn finish(
        self,
        own: &[(SetIndex, Arc<SaSet>)],
    ) -> Result<(Sad, Vec<RefusedKey>, PreviousSas), CompileError> {
        let Associations { last, put, sets, outbound, inbound, refused } = self;
        let mut sad = last.sad.clone();
        leave_out_gone(&mut sad, last, &outbound, &inbound);
        let there: HashSet<SaSetId> = sets.iter().map(|(_, set)| *set).collect();
        own.iter().for_each(|(place, set)| sad.put_set_at(*place, set.clone()));
        let there: HashSet<SaSetId> =
            there.into_iter().chain(own.iter().map(|(_, set)| set.id)).collect();
        let gone: Vec<SaSetId> =
            sad.places().iter().map(|(_, id)| id).filter(|id| !there.contains(id)).collect();
        gone.into_iter().for_each(|set| sad.remove_set(set));
        let mut kept = PreviousSas::default();
        let mut sealing: HashMap<SaSetId, Vec<SaId>> = HashMap::new();
        let carried = outbound.iter().map(|wanted| wanted.peer.encapsulation);
        for (wanted, identifications) in outbound.iter().zip(identifications(carried)) {
            let free = sad.vacant_outbound_where(|id| !put.outbound.contains_key(&id));
            let sa = wanted.sealing(last, &kept, free, identifications)?;
            sealing.entry(wanted.set).or_default().push(sa.id);
            kept.fingerprints[0].insert(sa.id, wanted.identity.fingerprint);
            kept.outbound.insert(wanted.identity, sa.clone());
            if sad.find_outbound(sa.id).is_none_or(|there| !Arc::ptr_eq(there, &sa)) {
                sad.put_outbound(sa);
            }
        }
        let ids: HashMap<&str, SaSetId> =
            sets.iter().map(|(peer, id)| (peer.name.as_str(), *id)).collect();
        for (peer, id) in sets {
            let mut set = sa_set(peer, id, sealing.remove(&id).unwrap_or_default());
            set.outer = peer.outer.as_ref().and_then(|outer| ids.get(outer.as_str()).copied());
            let there = sad.places().get(id).and_then(|place| sad.set(place));
            if let Some(there) = there {
                set.keep_path_mtu_of(there);
            }
            if there.is_none_or(|there| **there != set) {
                sad.put_set(set);
            }
        }
        // SAs that have slots come first: removing their old set made these slots vacant.
        let (known, new): (Vec<_>, Vec<_>) =
            inbound.iter().partition(|wanted| last.inbound.contains_key(&wanted.identity));
        for wanted in known.into_iter().chain(new) {
            let free = sad.vacant_inbound_where(|id| !put.inbound.contains_key(&id));
            let sa = wanted.opening(last, &kept, free)?;
            kept.fingerprints[1].insert(sa.id, wanted.identity.fingerprint);
            kept.inbound.insert(wanted.identity, sa.clone());
            if sad.find_inbound(sa.id).is_none_or(|there| !Arc::ptr_eq(there, &sa)) {
                sad.put_inbound(sa)?;
            }
        }
        kept.sad = sad.clone();
        Ok((sad, refused, kept))
    }
}

/// Removes the SAs that the configuration no longer has, which frees their slots and SPIs.
fn leave_out_gone(
    sad: &mut Sad,
    last: &PreviousSas,
    outbound: &[RequestedSa<'_, SequenceCounter>],
    inbound: &[RequestedSa<'_, ReplayWindow>],
) {
    let wanted: HashSet<SaIdentity> = outbound.iter().map(|wanted| wanted.identity).collect();
    let gone = last.outbound.iter().filter(|(identity, _)| !wanted.contains(identity));
    gone.for_each(|(_, sa)| sad.remove_outbound(sa.id));
    let wanted: HashSet<SaIdentity> = inbound.iter().map(|wanted| wanted.identity).collect();
    let gone = last.inbound.iter().filter(|(identity, _)| !wanted.contains(identity));
    gone.for_each(|(_, sa)| sad.remove_inbound(sa.id));
}

impl RequestedSa<'_, SequenceCounter> {
    fn sealing(
        &self,
        last: &PreviousSas,
        made: &PreviousSas,
        free: SaId,
        identifications: Identifications,
    ) -> Result<Arc<OutboundSa>, SaError> {
        let RequestedSa { peer, set, line, identity, numbers, account } = self;
        let (set, encapsulation) = (*set, peer.encapsulation);
        let before = last.outbound.get(identity).filter(|_| !made.outbound.contains_key(identity));
        let counted = before.and_then(|before| before.allowance.as_ref());
        let account = account.as_ref().or(counted.map(|counted| &counted.account));
        let allowance = allowance(&peer.lifetime, account, || numbers.last());
        let id = before.map_or(free, |before| before.id);
        let sa = match before.filter(|before| Arc::ptr_eq(&before.sequence, numbers)) {
            Some(before) if before.encapsulation != encapsulation => {
                before.at(id, set).carried(encapsulation)?
            }
            Some(before)
                if before.set == set
                    && before.allowance == allowance
                    && before.identifications() == identifications =>
            {
                return Ok(before.clone());
            }
            Some(before) => before.at(id, set),
            None => {
                let counter = numbers.clone();
                OutboundSa::new(id, line.spi, set, &line.material, encapsulation, counter)?
            }
        };
        Ok(Arc::new(sa.within(allowance).identified_by(identifications)))
    }
}

impl RequestedSa<'_, ReplayWindow> {
    fn opening(
        &self,
        last: &PreviousSas,
        made: &PreviousSas,
        free: SaId,
    ) -> Result<Arc<InboundSa>, SaError> {
        let RequestedSa { peer, set, line, identity, numbers, account } = self;
        let (set, encapsulation) = (*set, peer.encapsulation);
        let before = last.inbound.get(identity).filter(|_| !made.inbound.contains_key(identity));
        let counted = before.and_then(|before| before.allowance.as_ref());
        let account = account.as_ref().or(counted.map(|counted| &counted.account));
        let allowance = allowance(&peer.lifetime, account, || numbers.right_edge());
        let id = before.map_or(free, |before| before.id);
        let sa = match before.filter(|before| Arc::ptr_eq(&before.window, numbers)) {
            Some(before) if before.encapsulation != encapsulation => {
                before.at(id, set).carried(encapsulation)?
            }
            Some(before) if before.set == set && before.allowance == allowance => {
                return Ok(before.clone());
            }
            Some(before) => before.at(id, set),
            None => {
                let window = numbers.clone();
                InboundSa::new(id, line.spi, set, &line.material, encapsulation, window)?
            }
        };
        Ok(Arc::new(sa.within(allowance)))
    }
}

/// Returns the limits of an SA with the account of its use. An SA that was counted is counted on,
/// even if it has no limits any more: it may get some again. `None`: it was never counted. Of one
/// that was used and not counted, `most_used` is a bound from above of its packets.
fn allowance(
    lifetime: &Lifetime,
    account: Option<&Arc<Account>>,
    most_used: impl Fn() -> u64,
) -> Option<Allowance> {
    let account = match account {
        Some(account) => account.clone(),
        None if *lifetime == Lifetime::NONE => return None,
        // No record knows the key: it is counted in memory all the same.
        None => Arc::default(),
    };
    if account.used(0) == Used::default() {
        account.raise(most_used(), 0);
    }
    Some(Allowance { lifetime: *lifetime, account })
}

impl SaIdentity {
    fn of(peer: &Peer, line: &KeyLine) -> SaIdentity {
        SaIdentity {
            spi: line.spi,
            suite: line.material.suite(),
            fingerprint: line.material.fingerprint(),
            numbers: peer.numbers,
            window: match line.direction {
                Direction::Outbound => 0,
                Direction::Inbound => peer.replay_window,
            },
        }
    }
}
