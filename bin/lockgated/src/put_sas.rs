//! SAs that programs put and delete while the gateway runs: checked, their keys recorded as used,
//! and published; and those that have had their time.
//!
//! 1. plan: what is refused is refused before a key is recorded
//! 2. record the keys as used; their origin says for how long
//! 3. publish: when a put is answered, every worker walks by it
//!
//! The control thread alone does this, between other orders. What waits to be replaced is looked at
//! ten times a second.

use std::fmt::Write;
use std::sync::Arc;

use control::{Compiled, GoneReason, GoneSa, PutPlan, PutSa, SaName, SpiRequest};
use keystate::{KeyCounts, KeyOrigin, KeyUsed, MAX_IKE_KEYS, MAX_NAMED_KEYS, MAX_PUT_KEYS, Once};
use policy::Direction;

use crate::events::{Events, Kind};
use crate::sa_changes::{ReserveError, Reserved, SaChange, SaDeletion, SaNames, SaPut, SaRefusal};
use crate::sa_limits::boot_clock_ns;
use crate::state::State;
use crate::waiting_put::{PutReply, ReadyPut, Wanted};
use crate::who::Uid;
use crate::worker::WorkerGone;

/// SAs that an event names at most.
const MAX_NAMED: usize = 8;

/// A put whose keys are recorded. No `Debug`: it holds key bytes.
struct PreparedPut {
    plan: PutPlan,
    proofs: Vec<Once>,
    wanted: Vec<Wanted>,
}

impl State {
    /// Puts SAs, all or none. Where cards are asked for some, the answer comes later.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn put_sas(&mut self, put: SaPut, reply: PutReply) -> Result<(), WorkerGone> {
        let (prepared, done) = match self.prepare_put(put).await {
            Ok(prepared) => prepared,
            Err(refusal) => {
                self.answer_put(reply, Err(refusal));
                return Ok(());
            }
        };
        let Some(PreparedPut { plan, proofs, wanted }) = prepared else {
            self.answer_put(reply, Ok(done));
            return Ok(());
        };
        self.ask_cards(ReadyPut { plan, proofs, done, reply }, wanted).await
    }

    /// Plans a put and records its keys; `None`: all of its SAs run already.
    async fn prepare_put(
        &mut self,
        put: SaPut,
    ) -> Result<(Option<PreparedPut>, SaChange), SaRefusal> {
        let origin = put.origin;
        let (plan, names) = self.plan_put(&self.gateway.compiled, put, boot_clock_ns())?;
        let wanted = self.find_seats(&plan)?;
        let fresh = plan.fingerprints().len() as u32;
        let unchanged = plan.unchanged() as u32;
        let done = SaChange { put: fresh, unchanged, names, ..SaChange::default() };
        let records_running = origin == KeyOrigin::AnyTime && unchanged > 0;
        if fresh == 0 && !records_running {
            return Ok((None, done));
        }
        let proofs = self.use_keys(&plan, origin).await?;
        if fresh == 0 {
            return Ok((None, done));
        }
        Ok((Some(PreparedPut { plan, proofs, wanted }), done))
    }

    /// Plans a put into a configuration.
    ///
    /// # Errors
    /// [`SaRefusal`].
    pub(crate) fn plan_put(
        &self,
        into: &Compiled,
        put: SaPut,
        now_ns: u64,
    ) -> Result<(PutPlan, SaNames), SaRefusal> {
        let SaPut { incarnation, origin, mut sas } = put;
        match origin {
            KeyOrigin::AnyTime if self.stopping => return Err(SaRefusal::Stopping),
            KeyOrigin::AnyTime => {}
            _ => self.check_incarnation(&incarnation)?,
        }
        let names = names_of(sas.iter().map(|sa| (&*sa.peer, text_of(sa))));
        self.reserved_spis.assign(&mut sas, now_ns)?;
        Ok((into.plan_put(sas)?, names))
    }

    /// Deletes SAs that were put, all or none.
    ///
    /// # Errors
    /// [`WorkerGone`]; inside, [`SaRefusal`]: nothing was deleted.
    pub(crate) async fn delete_sas(
        &mut self,
        SaDeletion { incarnation, names, .. }: SaDeletion,
    ) -> Result<Result<SaChange, SaRefusal>, WorkerGone> {
        let asked = match incarnation.as_str() {
            "" if self.stopping => Err(SaRefusal::Stopping),
            "" => Ok(()),
            incarnation => self.check_incarnation(incarnation),
        };
        if let Err(refusal) = asked {
            return Ok(Err(refusal));
        }
        let changed = match self.gateway.compiled.without(&names) {
            Ok(changed) => changed,
            Err((place, why)) => return Ok(Err(SaRefusal::Delete { place, why })),
        };
        let deleted = changed.gone.iter().map(|gone| {
            let name = SaName { direction: gone.direction, spi: gone.spi, peer: None };
            (&*gone.peer, name_text(&name))
        });
        let (names, deleted) = (names_of(deleted), changed.gone.len() as u32);
        if deleted == 0 {
            return Ok(Ok(SaChange::default()));
        }
        let gone = changed.gone.iter().map(|gone| (gone.direction, gone.spi, gone.peer.clone()));
        let done = SaChange { deleted, names, gone: gone.collect(), ..SaChange::default() };
        Ok(self.gateway.change_sas(changed).await?.map_err(SaRefusal::from).map(|_| done))
    }

    /// Reserves an SPI for a peer.
    ///
    /// # Errors
    /// [`ReserveError`].
    pub(crate) fn reserve_spi(&mut self, asked: &SpiRequest) -> Result<Reserved, ReserveError> {
        if self.stopping {
            return Err(ReserveError::Stopping);
        }
        let (running, workers) = (&self.gateway.compiled, self.gateway.active as u32);
        let (spi, worker) = self.reserved_spis.reserve(running, asked, workers, boot_clock_ns())?;
        Ok(Reserved { spi, worker: worker.worker, incarnation: self.incarnation.clone() })
    }

    /// Removes the replaced inbound SAs whose time is over. Returns whether there were any.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn retire_replaced_sas(&mut self) -> Result<bool, WorkerGone> {
        // A put that waits was planned beside them.
        if self.stopping || self.waits_for_cards() || !self.gateway.compiled.has_replaced() {
            return Ok(false);
        }
        let Some(changed) = self.gateway.compiled.retired(boot_clock_ns()) else {
            return Ok(false);
        };
        // Refused, it is tried again with the next look.
        if let Ok(gone) = self.gateway.change_sas(changed).await? {
            gone.iter().for_each(|gone| report_gone(gone, &self.events));
        }
        Ok(true)
    }

    /// Lets go of what was counted of SAs that were put into an earlier configuration and that
    /// another one does not have, and reports them.
    pub(crate) fn let_go_of_put_sas(&mut self, before: &Compiled) {
        let gone = self.gateway.compiled.put_sas_gone_since(before);
        if gone.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.gateway.totals).retire(&gone);
        for GoneSa { direction, spi, peer, .. } in &gone {
            let key = (*direction, *spi, peer.clone());
            if self.ike_names.has(&key) {
                // Nobody listens where no charon may come.
                let _ = self.deletions.send(key);
            }
        }
        for peer in gone.chunk_by(|one, other| one.peer == other.peer) {
            let (name, count) = (&peer[0].peer, peer.len());
            let message = format!(
                "{count} SAs that were put for peer {name} are gone: the peer is not configured \
                 with the same `keys` any more, may not have their ends, or is carried in another \
                 way than the card was told that had them"
            );
            self.events.record(Kind::SaDeleted, name, message, &[("deleted", &count)]);
        }
    }

    /// Records the keys of a plan as used: none of them is taken again.
    ///
    /// # Errors
    /// [`SaRefusal::Key`].
    pub(crate) async fn use_keys(
        &mut self,
        plan: &PutPlan,
        origin: KeyOrigin,
    ) -> Result<Vec<Once>, SaRefusal> {
        let mut keys = self.keys.clone().lock_owned().await;
        if keys.is_sweep_due() {
            keys.forget_ended_keys(self.gateway.compiled.put_fingerprints());
        }
        let before = keys.key_counts();
        let fingerprints = plan.fingerprints();
        let (used, now) = match origin {
            // The keys are synced to the disk, which may be slow: other tasks go on.
            KeyOrigin::AnyTime => {
                let running = plan.running_fingerprints().to_vec();
                let record = move || {
                    let used = keys.use_all_once_beside(&fingerprints, &running, origin);
                    (used, keys.key_counts())
                };
                let done = tokio::task::spawn_blocking(record).await;
                done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
            }
            _ => (keys.use_all_once(&fingerprints, origin), keys.key_counts()),
        };
        report_filling_memories(&self.events, before, now);
        used.map_err(|why| {
            let place = match &why {
                KeyUsed::PutBefore { fingerprint } | KeyUsed::FileKey { fingerprint } => {
                    plan.place_of(*fingerprint)
                }
                _ => None,
            };
            SaRefusal::Key { place, why }
        })
    }

    fn check_incarnation(&self, asked: &str) -> Result<(), SaRefusal> {
        match () {
            () if self.stopping => Err(SaRefusal::Stopping),
            () if asked.is_empty() || *asked != *self.incarnation => {
                Err(SaRefusal::OtherIncarnation { runs: self.incarnation.clone() })
            }
            () => Ok(()),
        }
    }
}

/// A memory of used keys that grew.
struct GrownMemory {
    before: usize,
    now: usize,
    most: usize,
    /// The origin of the keys, and what to do.
    text: &'static str,
}

/// Warns of each memory of used keys that reached three quarters since `before`.
pub(crate) fn report_filling_memories(events: &Events, before: KeyCounts, now: KeyCounts) {
    let memories = [
        GrownMemory {
            before: before.put,
            now: now.put,
            most: MAX_PUT_KEYS,
            text: "put without `incarnation`, and none is ever forgotten: name the run of the \
                   daemon with each put (`lockgate sa put --incarnation RUN`)",
        },
        GrownMemory {
            before: before.named,
            now: now.named,
            most: MAX_NAMED_KEYS,
            text: "put with `incarnation` since the machine booted: when the memory is full, no \
                   more are taken until the next boot",
        },
        GrownMemory {
            before: before.ike,
            now: now.ike,
            most: MAX_IKE_KEYS,
            text: "made by IKE; a key is forgotten 5 to 10 minutes after its SA: renew SAs less \
                   often",
        },
    ];
    for GrownMemory { before, now, most, text } in memories {
        let warning = most / 4 * 3;
        if before < warning && now >= warning {
            let message = format!("{now} keys of at most {most} were {text}");
            events.record(Kind::PutKeysFilling, "", message, &[("keys", &now)]);
        }
    }
}

/// Reports an inbound SA that was replaced and is gone.
fn report_gone(gone: &GoneSa, events: &Events) {
    let GoneSa { direction, spi, peer, reason } = gone;
    let subject = spi.to_string();
    let (kind, why) = match reason {
        GoneReason::ReplacementSilent => (
            Kind::SaReplacementSilent,
            "no authentic packet of the SA that replaced it came in 300 s",
        ),
        _ => (Kind::SaReplaced, "packets of the SA that replaced it have come"),
    };
    let message = format!("{} SA {spi} of peer {peer} is gone: {why}", direction.name());
    events.record(kind, &subject, message, &[("peer", peer)]);
}

/// Records what became of SAs that a user wanted put.
pub(crate) fn audit_put(events: &Events, by: Uid, done: Result<&SaChange, &SaRefusal>) {
    match done {
        // What runs already is no change.
        Ok(SaChange { put: 0, .. }) => {}
        Ok(SaChange { put, unchanged, names, .. }) => {
            let details: crate::events::Details<'_> = &[("put", put), ("unchanged", unchanged)];
            let message = format!("{put} SAs were put: {}", names.text);
            events.audit(by, Kind::SaPut, &names.subject, message, details);
        }
        Err(refusal) => audit_refusal(events, by, refusal),
    }
}

/// Records what became of SAs that a user wanted deleted.
pub(crate) fn audit_deletion(events: &Events, by: Uid, done: &Result<SaChange, SaRefusal>) {
    match done {
        Ok(SaChange { deleted: 0, .. }) => {}
        Ok(SaChange { deleted, names, .. }) => {
            let message = format!("{deleted} SAs were deleted: {}", names.text);
            events.audit(by, Kind::SaDeleted, &names.subject, message, &[("deleted", deleted)]);
        }
        Err(refusal) => audit_refusal(events, by, refusal),
    }
}

fn audit_refusal(events: &Events, by: Uid, refusal: &SaRefusal) {
    let (message, reason) = (refusal.to_string(), refusal.word());
    events.audit(by, Kind::SaRefused, "", message, &[("reason", &reason)]);
}

/// `outbound 0x00001001 instead of 0x00001000`.
fn text_of(sa: &PutSa) -> String {
    let name = SaName { direction: sa.direction, spi: sa.spi, peer: None };
    let mut text = name_text(&name);
    for old in &sa.replaces {
        write!(text, " instead of {old}").expect("writing to a string");
    }
    text
}

fn name_text(name: &SaName) -> String {
    let direction: Direction = name.direction;
    format!("{} {}", direction.name(), name.spi)
}

/// Names SAs, each with its peer, for an event.
fn names_of<'n>(all: impl Iterator<Item = (&'n str, String)>) -> SaNames {
    let all: Vec<(&str, String)> = all.collect();
    let mut peers: Vec<&str> = all.iter().map(|(peer, _)| *peer).collect();
    peers.sort_unstable();
    peers.dedup();
    let subject = match peers[..] {
        // A name that no section has may be anything.
        [peer] => config::escaped_line(peer).to_string(),
        _ => format!("{} peers", peers.len()),
    };
    let mut texts: Vec<String> = all.iter().take(MAX_NAMED).map(|(_, text)| text.clone()).collect();
    if all.len() > MAX_NAMED {
        texts.push(format!("and {} more", all.len() - MAX_NAMED));
    }
    SaNames { subject, text: texts.join(", ") }
}

#[cfg(test)]
mod carried_tests;
#[cfg(test)]
mod tests;
