//! `apply` and `rollback`: another configuration, all of it or nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use control::guard::{Guard, UnwritableName};
use control::mirror::{View, check_devices};
use control::validated::Validated;
use control::{
    Compiled, Compiler, Difference, Keys, Loaded, Prepared, Problem, differences, edited,
};
use ipsec::{Fingerprint, SaId};

use crate::backend::{Change, Done, Intent, Refused, Uid};
use crate::caches;
use crate::daemon::Daemon;
use crate::device::DeviceError;
use crate::events::Kind;
use crate::moves::live_parts_of;
use crate::revisions::{Cause, Content, Reader, Revision, RevisionError, Text, on_disk};
use crate::state::{State, netdevs};
use crate::worker::WorkerGone;

/// Peers that one note names.
const MAX_PEERS_NAMED: usize = 8;

/// Keys of `[node]` and `[metrics]` that are read at the start only.
#[derive(Debug, thiserror::Error)]
#[error(
    "{key} is read when lockgated starts: write it into {} and restart it",
    file.display()
)]
struct NeedsRestart {
    key: &'static str,
    file: PathBuf,
}

/// What a configuration is applied as.
pub(crate) struct Origin {
    pub(crate) cause: Cause,
    pub(crate) file: String,
    pub(crate) base: PathBuf,
    pub(crate) by: Uid,
}

/// How a netdev is left that is no port any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaving {
    /// The operator took it out of the configuration: without a program.
    Open,
    /// The configuration that named it was refused: what an earlier daemon had closed stays so.
    AsFound,
}

/// A configuration as text, and what it is applied as.
struct Asked {
    text: String,
    origin: Origin,
    intent: Intent,
}

/// A change, judged and compiled as far as that can be done beside what runs.
struct Proposal {
    keys: Keys,
    warnings: Vec<Problem>,
    differences: Vec<Difference>,
    prepared: Prepared,
    guard: Result<Guard, UnwritableName>,
    /// Effective configuration.
    effective: String,
}

/// What a change is judged by.
struct Judge {
    running: Compiled,
    compiler: Arc<std::sync::Mutex<Compiler>>,
    view: View,
}

pub(crate) fn machine(error: impl std::error::Error + Send + Sync + 'static) -> Refused {
    Refused::Machine(Box::new(error))
}

/// The whole text of a revision. Blocks, and takes as long as it is large.
pub(crate) fn text_of(reader: Reader, number: u64) -> Result<String, Refused> {
    let Text { whole, edits } = reader.read().map_err(machine)?;
    if edits.is_empty() {
        return Ok(whole);
    }
    let edits = edits.iter().map(|edit| (&edit.remove[..], &*edit.add));
    Ok(edited(&whole, edits, &format!("revision {number}"))?)
}

impl Daemon {
    /// Judges a change and, if it is meant, makes it.
    pub(crate) async fn apply_change(&self, change: Change, by: Uid) -> Result<Done, Refused> {
        let _one_at_a_time = self.changing.lock().await;
        let Change { text, file, base_directory, intent } = change;
        let origin = Origin { cause: Cause::Apply, file, base: base_directory, by };
        self.change_to(Asked { text, origin, intent }).await
    }

    /// Makes an earlier revision the running one; by default the one before.
    pub(crate) async fn roll_back(&self, revision: Option<u64>, by: Uid) -> Result<Done, Refused> {
        let _one_at_a_time = self.changing.lock().await;
        let state = self.state.lock().await;
        let wanted = match revision {
            Some(number) => {
                state.revisions.find(number).ok_or(Refused::NoRevision { revision: number })?
            }
            None => {
                let earlier = state.revisions.all().rev();
                let mut earlier = earlier.filter(|kept| kept.number < state.revision);
                earlier.next().ok_or(Refused::NoEarlier)?
            }
        };
        let file = format!("revision {}", wanted.number);
        let (number, base) = (wanted.number, wanted.base.clone());
        let reader =
            state.revisions.reader(number).ok_or(Refused::NoRevision { revision: number })?;
        drop(state);
        let read = tokio::task::spawn_blocking(move || text_of(reader, number));
        let text = read.await.map_err(machine)??;
        let origin = Origin { cause: Cause::Rollback, file, base, by };
        self.change_to(Asked { text, origin, intent: Intent::Apply }).await
    }

    /// What takes as long as the configuration is large, on a thread of its own and without the
    /// state; then the change itself.
    async fn change_to(&self, asked: Asked) -> Result<Done, Refused> {
        let judge = {
            let state = self.state.lock().await;
            if state.stopping {
                return Err(Refused::Stopping);
            }
            let (compiler, view) = (state.compiler.clone(), state.view.clone());
            Judge { running: state.compiled.copied(), compiler, view }
        };
        let Asked { text, origin, intent } = asked;
        let (file, base) = (origin.file.clone(), origin.base.clone());
        let proposal = tokio::task::spawn_blocking(move || judge.judge(&text, &file, &base)).await;
        let proposal = proposal.map_err(machine)??;
        self.state.lock().await.change_to(proposal, origin, intent).await
    }
}

impl Judge {
    fn judge(self, text: &str, file: &str, base: &Path) -> Result<Proposal, Refused> {
        let parsed = control::parse(text, file)?.within(control::machine_memory())?;
        let Loaded { validated, warnings, keys } = parsed.load_keys(base)?;
        let differences = differences(self.running.validated(), &validated);
        let guard = Guard::new(&validated, &self.view);
        let effective = validated.effective();
        let compiler = self.compiler.lock().unwrap_or_else(PoisonError::into_inner);
        let prepared = compiler.prepare(validated).map_err(machine)?;
        Ok(Proposal { keys, warnings, differences, prepared, guard, effective })
    }
}

impl State {
    /// 1. judge: what needs a restart, the netdevs;
    /// 2. compile, which takes nothing from what runs;
    /// 3. the guard, then the netdevs that come, then the workers, then the netdevs that go.
    ///
    /// Where a step of 3 fails, what ran before is put back.
    async fn change_to(
        &mut self,
        proposal: Proposal,
        origin: Origin,
        intent: Intent,
    ) -> Result<Done, Refused> {
        let Proposal { keys, warnings, differences, prepared, guard, effective } = proposal;
        if self.stopping {
            return Err(Refused::Stopping);
        }
        let new = prepared.validated();
        self.check_restart(new)?;
        let (workers, before) = (self.workers.len() as u32, self.config().cache);
        if new.cache != before {
            let freed = caches::bytes(before, workers);
            caches::check(new.cache, workers, freed).map_err(machine)?;
        }
        check_devices(new, &self.view).map_err(|mut all| machine(all.remove(0)))?;
        if intent == Intent::DryRun {
            let (revision, generation) = (self.revision, self.snapshot.generation());
            return Ok(Done { revision, generation, differences, warnings, notes: Vec::new() });
        }
        let guard = guard.map_err(machine)?;
        // The kernel may have moved on.
        let guard = guard.with_netdevs(new, &self.view).map_err(machine)?.unwrap_or(guard);
        let mut compiled = {
            let mut compiler = self.compiler.lock().unwrap_or_else(PoisonError::into_inner);
            compiler.finish(prepared, &keys, &mut self.keystate).map_err(machine)?
        };
        compiled.keep_ends(&self.compiled);
        let is_start_file = Path::new(&origin.file) == self.file;
        let number = self.revisions.next();
        let revision = Revision {
            number,
            time: SystemTime::now(),
            uid: origin.by.0,
            cause: origin.cause,
            file: origin.file,
            base: origin.base,
            changes: differences.len() as u32,
        };
        let keys_before = keys_in_use(&self.compiled);
        self.switch(compiled, guard).await?;
        let peers = &self.compiled.sets;
        self.moves.retain(|name, _| peers.iter().any(|set| set.peer == *name));
        self.base = revision.base.clone();
        self.revision = number;
        // It runs; that it is not kept is told, and only rolling back to it will miss it.
        let written = self.revisions.keep(revision, Content::Whole(effective));
        let lost = on_disk(written).await.err().map(|error| self.lose(number, &error));
        let mut notes: Vec<String> =
            other_keys(&keys_before, &keys_in_use(&self.compiled)).into_iter().collect();
        notes.extend(self.tell_refused());
        notes.extend(lost);
        if !is_start_file {
            notes.push(format!(
                "a restart reads {} again; `lockgate export` writes what runs now",
                self.file.display()
            ));
        }
        self.tell_guard();
        let generation = self.snapshot.generation();
        Ok(Done { revision: number, generation, differences, warnings, notes })
    }

    /// Goes over to a compiled configuration, or stays with the one that runs.
    async fn switch(&mut self, compiled: Compiled, guard: Guard) -> Result<(), Refused> {
        let live = live_parts_of(&compiled, &self.view);
        let snapshot = Arc::new(compiled.assemble(&live).map_err(machine)?);
        // Before anything is changed: it may not be had.
        let caches = match compiled.settings().cache == self.config().cache {
            true => None,
            false => Some(self.fresh_caches(compiled.settings().cache).await.map_err(machine)?),
        };
        let guard = guard.installed().await.map_err(machine)?;
        let old_guard = std::mem::replace(&mut self.guard, guard);
        self.tell_problems(&live);
        let old = std::mem::replace(&mut self.compiled, compiled);
        let old_live = std::mem::replace(&mut self.live, live);
        let old_snapshot = self.snapshot.clone();
        let is_other_cache = caches.is_some();
        self.publish_with(snapshot, caches).await.map_err(machine)?;
        self.instruct();
        let Err(error) = self.take_new().await else {
            self.drop_beyond(Leaving::Open);
            return Ok(());
        };
        let refused = netdevs(self.config());
        self.compiled = old;
        self.live = old_live;
        self.publish(old_snapshot).await.map_err(machine)?;
        if is_other_cache {
            self.renew_caches().await.map_err(machine)?;
        }
        self.instruct();
        self.drop_beyond(Leaving::AsFound);
        match old_guard.installed().await {
            Ok(guard) => self.guard = guard,
            Err(error) => self.events.record(Kind::GuardRefused, "", error.to_string(), &[]),
        }
        self.serve_again(&refused).await.map_err(machine)?;
        Err(machine(error))
    }

    /// Takes over again the netdevs that a refused configuration did not name: the workers closed
    /// their sockets when they went over to it. Their programs stayed, and dropped.
    async fn serve_again(&mut self, refused: &[String]) -> Result<(), WorkerGone> {
        let unserved: Vec<String> =
            self.devices.keys().filter(|name| !refused.contains(name)).cloned().collect();
        for name in unserved {
            let id = self.device_id(&name);
            if let Some(device) = self.devices.remove(&name) {
                device.release(&self.workers, id).await?;
            }
        }
        self.tend().await
    }

    /// Takes over the netdevs that the configuration names and that are not ours yet.
    async fn take_new(&mut self) -> Result<(), DeviceError> {
        let names = netdevs(self.config());
        for (place, name) in names.iter().enumerate().take(names.len() - 1) {
            if let (false, Some(Some(ifindex))) =
                (self.devices.contains_key(name), self.live.devices.get(place).copied())
            {
                self.take(name, ifindex).await?;
            }
        }
        Ok(())
    }

    /// Lets go of netdevs that are no ports any more.
    fn drop_beyond(&mut self, leaving: Leaving) {
        let names = netdevs(self.config());
        let beyond: Vec<String> =
            self.devices.keys().filter(|name| !names.contains(name)).cloned().collect();
        for name in beyond {
            // Its sockets went with the snapshot that knew it.
            let Some(device) = self.devices.remove(&name) else { continue };
            if leaving == Leaving::AsFound && device.attached.replaced {
                continue;
            }
            if let Err(error) = bpf::detach(device.ifindex) {
                self.events.record(Kind::PortRefused, &name, error.to_string(), &[]);
            }
        }
    }

    fn check_restart(&self, new: &Validated) -> Result<(), Refused> {
        let (old, file) = (self.config(), self.file.clone());
        let changed = [
            (old.node.run_dir != new.node.run_dir, "node.run_dir"),
            (old.node.state_dir != new.node.state_dir, "node.state_dir"),
            (old.node.workers != new.node.workers, "node.workers"),
            (old.node.reserve_cores != new.node.reserve_cores, "node.reserve_cores"),
            (old.node.poll != new.node.poll, "node.poll"),
            (old.metrics != new.metrics, "metrics.listen"),
        ];
        match changed.iter().find(|(changed, _)| *changed) {
            Some((_, key)) => Err(machine(NeedsRestart { key, file })),
            None => Ok(()),
        }
    }

    /// Tells that a revision is not on disk, and says it.
    pub(crate) fn lose(&mut self, number: u64, error: &RevisionError) -> String {
        self.revisions.lost(number);
        let message = format!("revision {number} runs and is not kept: {error}");
        self.events.record(Kind::RevisionRefused, "", message.as_str(), &[]);
        message
    }

    /// Events for the keys that were refused, and the same as sentences.
    pub(crate) fn tell_refused(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for refused in &self.compiled.refused {
            let message = refused.to_string();
            self.events.record(Kind::KeyRefused, &refused.peer, message.as_str(), &[]);
            notes.push(message);
        }
        notes
    }
}

/// The keys in use, by peer.
fn keys_in_use(compiled: &Compiled) -> BTreeMap<String, BTreeSet<Fingerprint>> {
    let peers: HashMap<_, _> = compiled.sets.iter().map(|set| (set.id, &set.peer)).collect();
    let ids = (0..).map(SaId);
    let outbound = compiled.outbound.iter().zip(ids.clone());
    let outbound = outbound.map(|(sa, id)| (sa.set, compiled.outbound_fingerprint(id)));
    let inbound = compiled.inbound.iter().zip(ids);
    let inbound = inbound.map(|(sa, id)| (sa.set, compiled.inbound_fingerprint(id)));
    let mut keys: BTreeMap<String, BTreeSet<Fingerprint>> = BTreeMap::new();
    for (set, fingerprint) in outbound.chain(inbound) {
        if let Some(peer) = peers.get(&set) {
            keys.entry((*peer).clone()).or_default().insert(fingerprint);
        }
    }
    keys
}

/// Says which peers that stay have other keys than before: no difference of the files shows it.
fn other_keys<K: PartialEq>(
    before: &BTreeMap<String, K>,
    after: &BTreeMap<String, K>,
) -> Option<String> {
    let is_other =
        |(peer, keys): &(&String, &K)| before.get(*peer).is_some_and(|earlier| earlier != *keys);
    let peers: Vec<&str> = after.iter().filter(is_other).map(|(peer, _)| peer.as_str()).collect();
    let (named, beyond) = peers.split_at(peers.len().min(MAX_PEERS_NAMED));
    let named = named.join(", ");
    match (peers.len(), beyond.len()) {
        (0, _) => None,
        (1, _) => Some(format!("peer {named} has other keys than before")),
        (_, 0) => Some(format!("peers {named} have other keys than before")),
        (_, more) => Some(format!("peers {named} and {more} more have other keys than before")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_whose_keys_changed_are_named_and_new_ones_are_not() {
        let keys = |peers: &[(&str, u8)]| -> BTreeMap<String, u8> {
            peers.iter().map(|(peer, key)| ((*peer).to_owned(), *key)).collect()
        };
        let before = keys(&[("a", 1), ("b", 2), ("c", 3)]);
        assert_eq!(other_keys(&before, &keys(&[("a", 1), ("c", 3), ("d", 4)])), None);
        let one = other_keys(&before, &keys(&[("a", 1), ("b", 9)]));
        assert_eq!(one.as_deref(), Some("peer b has other keys than before"));
        let two = other_keys(&before, &keys(&[("a", 8), ("b", 9), ("c", 3)]));
        assert_eq!(two.as_deref(), Some("peers a, b have other keys than before"));
        let many: Vec<String> = (0..MAX_PEERS_NAMED + 2).map(|n| format!("p{n}")).collect();
        let all = |key: u8| -> BTreeMap<String, u8> {
            many.iter().map(|peer| (peer.clone(), key)).collect()
        };
        let text = other_keys(&all(1), &all(2)).unwrap();
        assert!(text.contains(" and 2 more have other keys"), "{text}");
    }
}
