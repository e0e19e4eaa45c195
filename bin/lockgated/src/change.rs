//! `apply` and `rollback`: another configuration, all of it or nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use control::allow_host::meetings;
use control::guard::{Guard, UnwritableName};
use control::mirror::{View, check_devices};
use control::validated::Validated;
use control::{
    Compiled, Compiler, ConfigErrors, Difference, KeyChange, Keys, Loaded, Meeting, Prepared,
    Problem, differences, edited, key_changes,
};
use dataplane::Side;
use dataplane::carve_out::Reserved;

use crate::backend::{Change, Done, Intent, Refused, ToConfirm, Uid};
use crate::caches;
use crate::daemon::Daemon;
use crate::device::DeviceError;
use crate::events::Kind;
use crate::moves::live_parts_of;
use crate::revisions::{
    Body, Cause, Confirmation, Content, Reader, Revision, RevisionError, StoredKeys, Text, on_disk,
    stored,
};
use crate::save::same_directory;
use crate::state::{State, netdevs, reserved_by, reserved_of_earlier};
use crate::unconfirmed::changed_keys;
use crate::worker::WorkerGone;

/// Peers that one note names.
const MAX_PEERS_NAMED: usize = 8;
/// The first words of the note that says what a restart loses.
pub(crate) const RESTART_NOTE: &str = "a restart reads ";

/// Says that what runs is not in the daemon's file.
pub(crate) fn restart_note(file: &Path) -> String {
    format!("{RESTART_NOTE}{} again; `lockgate save` writes what runs there", file.display())
}

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
    /// The earlier revision that it brings back.
    pub(crate) restores: Option<Restored>,
}

/// An earlier revision that is brought back.
pub(crate) struct Restored {
    revision: u64,
    /// The keys that it ran with.
    keys: StoredKeys,
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
    confirm: Option<ToConfirm>,
}

/// A change, evaluated and compiled as far as that can be done beside what runs.
struct Proposal {
    keys: Keys,
    key_changes: Vec<KeyChange>,
    /// The names of all its keys.
    stored_keys: StoredKeys,
    warnings: Vec<Problem>,
    differences: Vec<Difference>,
    prepared: Prepared,
    guard: Result<Guard, UnwritableName>,
    /// Effective configuration.
    effective: String,
}

/// The parts of a change that are reported and kept.
struct Summary {
    key_changes: Vec<KeyChange>,
    stored_keys: StoredKeys,
    warnings: Vec<Problem>,
    differences: Vec<Difference>,
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

/// The whole text of a revision, and its keys. Blocks, and takes as long as it is large.
pub(crate) fn body_of(reader: Reader, number: u64) -> Result<Body, Refused> {
    Ok(whole_body(reader.read().map_err(machine)?, number)?)
}

/// A revision's text with all changes made in it, and its keys.
///
/// # Errors
/// The changes do not fit the text.
pub(crate) fn whole_body(text: Text, number: u64) -> Result<Body, ConfigErrors> {
    let Text { whole, edits } = text;
    if edits.is_empty() {
        return Ok(whole);
    }
    let edits = edits.iter().map(|edit| (&edit.remove[..], &*edit.add));
    let text = edited(&whole.text, edits, &format!("revision {number}"))?;
    Ok(Body { text, keys: whole.keys })
}

impl Daemon {
    /// Evaluates a change and, if it is meant, makes it.
    pub(crate) async fn apply_change(&self, change: Change, by: Uid) -> Result<Done, Refused> {
        let _one_at_a_time = self.changing.lock().await;
        let Change { text, file, base_directory, intent, confirm, .. } = change;
        let base = base_directory;
        let origin = Origin { cause: Cause::Apply, file, base, by, restores: None };
        let done = self.change_to(Asked { text, origin, intent, confirm }).await;
        if confirm.is_some() {
            self.waits_changed.notify_one();
        }
        done
    }

    /// Makes an earlier revision the running one; by default one step back.
    pub(crate) async fn roll_back(&self, revision: Option<u64>, by: Uid) -> Result<Done, Refused> {
        let _one_at_a_time = self.changing.lock().await;
        let (number, base, body) = match revision {
            Some(number) => self.kept(number).await?,
            None => self.one_step_back().await?,
        };
        let file = format!("revision {number}");
        let Body { text, keys } = body;
        let restores = Some(Restored { revision: number, keys });
        let origin = Origin { cause: Cause::Rollback, file, base, by, restores };
        self.change_to(Asked { text, origin, intent: Intent::Apply, confirm: None }).await
    }

    /// A revision that is kept: its number, what a relative `keys_dir` is relative to, its text.
    async fn kept(&self, number: u64) -> Result<(u64, PathBuf, Body), Refused> {
        let state = self.state.lock().await;
        state.check_not_waiting()?;
        let missing = || Refused::NoRevision { revision: number, kept: state.revisions.ends() };
        let base = state.revisions.find(number).ok_or_else(missing)?.base.clone();
        let reader = state.revisions.reader(number).ok_or_else(missing)?;
        drop(state);
        let read = tokio::task::spawn_blocking(move || body_of(reader, number));
        Ok((number, base, read.await.map_err(machine)??))
    }

    /// The newest revision before the one that runs and says something else. Where what runs was
    /// brought back from an earlier revision, the steps go on from that one.
    async fn one_step_back(&self) -> Result<(u64, PathBuf, Body), Refused> {
        let (compiled, running_base, mut at) = {
            let state = self.state.lock().await;
            state.check_not_waiting()?;
            let at = state.restored.unwrap_or(state.revision);
            (state.compiled.copied(), state.base.clone(), state.revisions.origin_of(at))
        };
        let is_absolute = compiled.settings().node.keys_dir.is_absolute();
        let text = move || compiled.validated().effective();
        let running = tokio::task::spawn_blocking(text).await.map_err(machine)?;
        loop {
            let before = {
                let state = self.state.lock().await;
                let before = state.revisions.before(at).map(|kept| kept.number);
                before.map(|number| (number, state.revisions.origin_of(number)))
            };
            let Some((number, origin)) = before else { return Err(Refused::NoEarlier) };
            let (number, base, body) = self.kept(number).await?;
            if body.text != running || !(is_absolute || base == running_base) {
                return Ok((number, base, body));
            }
            at = origin;
        }
    }

    /// What takes as long as the configuration is large, on a thread of its own and without the
    /// state; then the change itself.
    async fn change_to(&self, asked: Asked) -> Result<Done, Refused> {
        let judge = {
            let state = self.state.lock().await;
            if state.stopping {
                return Err(Refused::Stopping);
            }
            if asked.intent == Intent::Apply {
                state.check_not_waiting()?;
            }
            let (compiler, view) = (state.compiler.clone(), state.view.clone());
            Judge { running: state.compiled.copied(), compiler, view }
        };
        let Asked { text, origin, intent, confirm } = asked;
        let (file, base) = (origin.file.clone(), origin.base.clone());
        let proposal = tokio::task::spawn_blocking(move || judge.judge(&text, &file, &base)).await;
        let proposal = proposal.map_err(machine)??;
        let mut state = self.state.lock().await;
        match intent {
            Intent::DryRun => state.evaluate(proposal),
            Intent::Apply => state.change_to(proposal, origin, confirm).await,
        }
    }
}

impl Judge {
    fn judge(self, text: &str, file: &str, base: &Path) -> Result<Proposal, Refused> {
        let parsed = control::parse(text, file)?.within(control::machine_memory())?;
        let Loaded { validated, warnings, keys } = parsed.load_keys(base)?;
        let differences = differences(self.running.validated(), &validated);
        let names = keys.names(&validated);
        let key_changes = key_changes(&self.running.key_names(), &names);
        let stored_keys = stored(&names);
        // What is reserved depends on addresses: it is filled in when the guard is put up.
        let lists = validated.ports.iter().map(|_| &[][..]);
        let guard = Guard::new(&validated, &self.view, &Reserved::nothing(lists));
        let effective = validated.effective();
        let compiler = self.compiler.lock().unwrap_or_else(PoisonError::into_inner);
        let prepared = compiler.prepare(validated).map_err(machine)?;
        Ok(Proposal {
            keys,
            key_changes,
            stored_keys,
            warnings,
            differences,
            prepared,
            guard,
            effective,
        })
    }
}

impl Proposal {
    /// Returns whether it runs already, keys and all.
    fn is_what_runs(&self, state: &State, base: &Path) -> bool {
        let keys_dir = &self.prepared.settings().node.keys_dir;
        let same_keys_dir = same_directory(&base.join(keys_dir), &state.base.join(keys_dir));
        self.differences.is_empty() && self.key_changes.is_empty() && same_keys_dir
    }

    /// An answer that says that the running revision stays.
    fn answer(self, state: &State) -> Done {
        let Proposal { warnings, differences, key_changes, .. } = self;
        let (revision, generation) = (state.revision, state.snapshot.generation());
        Done { revision, generation, differences, warnings, key_changes, ..Done::default() }
    }
}

impl State {
    /// Checks a change as far as that can be done without making it.
    fn check(&self, proposal: &Proposal) -> Result<(), Refused> {
        if self.stopping {
            return Err(Refused::Stopping);
        }
        let new = proposal.prepared.settings();
        self.check_restart(new)?;
        let (workers, before) = (self.workers.len() as u32, self.config().cache);
        if new.cache != before {
            let freed = caches::bytes(before, workers);
            caches::check(new.cache, workers, freed).map_err(machine)?;
        }
        check_devices(new, &self.view).map_err(|mut all| machine(all.remove(0)))
    }

    /// Answers a dry run.
    fn evaluate(&self, proposal: Proposal) -> Result<Done, Refused> {
        self.check(&proposal)?;
        Ok(proposal.answer(self))
    }

    /// 1. check: what needs a restart, the netdevs; what runs already ends here, unless some of its
    ///    keys were refused and may be taken now;
    /// 2. compile, which takes nothing from what runs;
    /// 3. where the change is to be confirmed, what a restart goes by;
    /// 4. the guard, then the netdevs that come, then the workers, then the netdevs that go.
    ///
    /// Where a step of 4 fails, what ran before is put back.
    async fn change_to(
        &mut self,
        proposal: Proposal,
        origin: Origin,
        confirm: Option<ToConfirm>,
    ) -> Result<Done, Refused> {
        self.check(&proposal)?;
        let is_same = proposal.is_what_runs(self, &origin.base);
        if is_same && self.compiled.refused.is_empty() {
            self.accept(&proposal.effective).await;
            return Ok(Done { unchanged: true, ..proposal.answer(self) });
        }
        let (compiled, guard, summary) = self.compile(proposal)?;
        match is_same {
            true => self.try_keys_again(compiled, guard, summary).await,
            false => self.go_over(compiled, guard, summary, origin, confirm).await,
        }
    }

    /// Compiles a change, which takes nothing from what runs.
    fn compile(&mut self, proposal: Proposal) -> Result<(Compiled, Guard, Summary), Refused> {
        let Proposal { keys, key_changes, stored_keys, warnings, differences, .. } = proposal;
        let Proposal { prepared, guard, effective, .. } = proposal;
        let guard = guard.map_err(machine)?;
        let mut compiled = {
            let mut compiler = self.compiler.lock().unwrap_or_else(PoisonError::into_inner);
            compiler.finish(prepared, &keys, &mut self.keystate).map_err(machine)?
        };
        compiled.keep_ends(&self.compiled);
        let summary = Summary { key_changes, stored_keys, warnings, differences, effective };
        Ok((compiled, guard, summary))
    }

    /// Goes over to what runs already, because some of its keys were refused and may be taken now.
    /// The revision stays.
    async fn try_keys_again(
        &mut self,
        compiled: Compiled,
        guard: Guard,
        Summary { warnings, effective, .. }: Summary,
    ) -> Result<Done, Refused> {
        let unchanged = compiled.refused == self.compiled.refused;
        self.switch(compiled, guard).await?;
        self.accept(&effective).await;
        let (revision, generation) = (self.revision, self.snapshot.generation());
        let notes = self.tell_refused();
        Ok(Done { revision, generation, warnings, notes, unchanged, ..Done::default() })
    }

    /// Goes over to another configuration and makes a revision of it, which may have to be
    /// confirmed.
    async fn go_over(
        &mut self,
        compiled: Compiled,
        guard: Guard,
        Summary { key_changes, stored_keys, warnings, differences, effective }: Summary,
        Origin { cause, file, base, by, restores }: Origin,
        confirm: Option<ToConfirm>,
    ) -> Result<Done, Refused> {
        let is_start_file = Path::new(&file) == self.file;
        let number = self.revisions.next();
        let promise = match confirm {
            Some(confirm) => Some(self.promise(confirm, number, &effective).await?),
            None => None,
        };
        if let Err(refused) = self.switch(compiled, guard).await {
            if let Some(promise) = promise {
                self.break_promise(promise).await;
            }
            return Err(refused);
        }
        let revision = Revision {
            number,
            time: SystemTime::now(),
            uid: by.0,
            cause,
            file,
            base,
            changes: (differences.len() + key_changes.len()) as u32,
            restored: restores.as_ref().map(|restored| restored.revision),
            confirmation: match promise {
                Some(_) => Confirmation::Asked,
                None => Confirmation::NotAsked,
            },
        };
        let waits = match promise {
            Some(promise) => Some(self.keep_promise(promise, number)),
            None => {
                self.accept(&effective).await;
                None
            }
        };
        let peers: Vec<&str> = key_changes.iter().map(|change| &*change.peer).collect();
        let mut notes: Vec<String> = other_keys(&peers).into_iter().collect();
        notes.extend(restores.and_then(|restored| restored.not_back(&stored_keys)));
        let body = Body { text: effective, keys: stored_keys };
        let lost = self.take_up(revision, Content::Whole(body)).await;
        notes.extend(self.tell_refused());
        let policies: Vec<_> = self.compiled.spd.holding().map(|(_, policy)| policy).collect();
        let met = self.allow_host_meetings(policies.iter().copied());
        notes.extend(unsaid(&met, &warnings));
        notes.extend(lost);
        if !is_start_file {
            notes.push(restart_note(&self.file));
        }
        self.tell_guard();
        let generation = self.snapshot.generation();
        let done =
            Done { revision: number, generation, differences, warnings, notes, ..Done::default() };
        Ok(Done { key_changes, waits, ..done })
    }

    /// Makes a revision that runs the running one, and keeps it. Returns why it is not kept.
    pub(crate) async fn take_up(&mut self, revision: Revision, content: Content) -> Option<String> {
        let number = revision.number;
        let peers = &self.config().peers.clone();
        self.moves.retain(|name, _| peers.iter().any(|peer| peer.name == *name));
        self.base = revision.base.clone();
        self.revision = number;
        self.restored = revision.restored;
        // It runs; that it is not kept is told, and only rolling back to it will miss it.
        let written = self.revisions.keep(revision, content);
        self.not_kept = on_disk(written).await.err().map(|error| self.lose(number, &error));
        self.not_kept.clone()
    }

    /// Goes over to a compiled configuration, or stays with the one that runs.
    pub(crate) async fn switch(&mut self, compiled: Compiled, guard: Guard) -> Result<(), Refused> {
        let live = live_parts_of(&compiled, &self.view);
        let snapshot = compiled.assemble(&live).map_err(machine)?;
        // Before anything is changed: it may not be had.
        let caches = match compiled.settings().cache == self.config().cache {
            true => None,
            false => Some(self.fresh_caches(compiled.settings().cache).await.map_err(machine)?),
        };
        let reserved = reserved_by(&compiled, &live);
        // Netdevs may have come and gone since it was made.
        let guard = guard
            .with_netdevs(compiled.settings(), &self.view, &reserved)
            .map_err(machine)?
            .unwrap_or(guard);
        // Nothing of the old `allow_host` passes any more that a new policy may want.
        let reserved_before = self.reserved.clone();
        let earlier = reserved_of_earlier(self, &compiled, &live);
        let guard = match self.reserve(&earlier).await {
            Ok(()) => guard.installed().await.map_err(machine),
            Err(error) => Err(machine(error)),
        };
        let guard = match guard {
            Ok(guard) => guard,
            Err(refused) => {
                self.free().await;
                return Err(refused);
            }
        };
        let old_guard = std::mem::replace(&mut self.guard, guard);
        self.tell_problems(&live);
        let old = std::mem::replace(&mut self.compiled, compiled);
        let old_live = std::mem::replace(&mut self.live, live);
        let old_snapshot = self.snapshot.clone();
        let is_other_cache = caches.is_some();
        self.publish_with(snapshot, caches).await.map_err(machine)?;
        self.reserved = reserved;
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
        self.reserved = reserved_before;
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

    /// The services of `allow_host` that these policies want packets of, by the addresses that the
    /// ports have now.
    pub(crate) fn allow_host_meetings<'p>(
        &self,
        policies: impl Iterator<Item = &'p policy::Policy> + Clone,
    ) -> Vec<Meeting> {
        let outside = self.live.ports.iter().filter(|port| port.side == Side::Unprotected);
        let own: Vec<_> = outside.flat_map(|port| port.addresses.iter().copied()).collect();
        meetings(&self.live.ports, &own, policies)
    }

    /// Tells that a revision is not on disk, and says it.
    pub(crate) fn lose(&mut self, number: u64, error: &RevisionError) -> String {
        self.revisions.lost(number);
        let message = format!("revision {number} runs and is not kept: {error}");
        self.events.record(Kind::RevisionRefused, "", message.as_str(), &[]);
        self.not_kept = Some(message.clone());
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

/// Returns the meetings that no warning names.
pub(crate) fn unsaid(met: &[Meeting], warnings: &[Problem]) -> Vec<String> {
    let texts = met.iter().map(Meeting::to_string);
    texts.filter(|text| !warnings.iter().any(|said| said.to_string().contains(text))).collect()
}

impl Restored {
    /// Says which peers have other keys now than the revision ran with.
    fn not_back(&self, now: &StoredKeys) -> Option<String> {
        let changed = changed_keys(&self.keys, now)?;
        Some(format!("revision {}: {changed}: key files decide", self.revision))
    }
}

/// A list of peers for people, of bounded length, with its noun; `None` for an empty one.
pub(crate) fn named(peers: &[&str]) -> Option<(&'static str, String)> {
    let (named, beyond) = peers.split_at(peers.len().min(MAX_PEERS_NAMED));
    let named = named.join(", ");
    match (peers.len(), beyond.len()) {
        (0, _) => None,
        (1, _) => Some(("peer", named)),
        (_, 0) => Some(("peers", named)),
        (_, more) => Some(("peers", format!("{named} and {more} more"))),
    }
}

/// Says which peers that stay have other keys than before: no difference of the files shows it.
fn other_keys(peers: &[&str]) -> Option<String> {
    let (noun, names) = named(peers)?;
    let verb = if noun == "peer" { "has" } else { "have" };
    Some(format!("{noun} {names} {verb} other keys than before"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_whose_keys_changed_are_named_and_of_very_many_a_few() {
        assert_eq!(other_keys(&[]), None);
        assert_eq!(other_keys(&["b"]).as_deref(), Some("peer b has other keys than before"));
        let two = other_keys(&["a", "b"]);
        assert_eq!(two.as_deref(), Some("peers a, b have other keys than before"));
        let many: Vec<String> = (0..MAX_PEERS_NAMED + 2).map(|n| format!("p{n}")).collect();
        let text = other_keys(&many.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(text.contains(" and 2 more have other keys"), "{text}");
    }
}
