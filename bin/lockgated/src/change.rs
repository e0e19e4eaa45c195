//! `apply` and `rollback`: another configuration, all of it or nothing.

#[cfg(test)]
mod local_files;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use config::allow_host::meetings;
use config::validated::Validated;
use config::{
    CardSettings, Diagnostic, Difference, KeyChange, Keys, Loaded, Meeting, differences,
    key_changes,
};
use control::guard::{Guard, UnwritableName};
use control::{Compiled, Compiler, Planner, PreparedConfiguration, check_netdevs};
use dataplane::Side;
use dataplane::carve_out::Reserved;

use crate::backend::{ChangeError, ChangeReport, Includes, Intent, ToConfirm};
use crate::cache_memory;
use crate::events::Kind;
use crate::gateway::{OtherMode, Transaction, TransactionError};
use crate::picture::Picture;
use crate::revisions::{
    Body, Cause, Confirmation, Content, Reader, Revision, RevisionError, on_disk,
};
use crate::state::State;
use crate::stored_keys::{StoredKeys, changed_keys, named, stored};
use crate::who::Uid;

/// First words of the note about changes that a restart loses.
pub(crate) const RESTART_NOTE: &str = "a restart reads ";

/// Returns the note that the running configuration is not in the daemon's file.
pub(crate) fn restart_note(file: &Path) -> String {
    format!("{RESTART_NOTE}{} again; `lockgate save` writes what runs there", file.display())
}

/// Keys that are read at the start only.
#[derive(Debug, thiserror::Error)]
#[error(
    "{key} is read when lockgated starts: write it into {} and restart it",
    file.display()
)]
struct NeedsRestart {
    key: String,
    file: PathBuf,
}

/// `xdp` of a port whose netdev runs the program in another mode.
#[derive(Debug, thiserror::Error)]
#[error(
    "port.{port}.xdp: the program of {netdev} runs in {mode} mode, and no other mode can take its \
     place in one step: write it into {}, stop lockgated, run `ip link set {netdev} {} off`, and \
     start lockgated; in between, this machine gets all frames of {netdev}",
    file.display(),
    mode.ip_word()
)]
struct NeedsOtherMode {
    port: String,
    netdev: String,
    mode: bpf::Mode,
    file: PathBuf,
}

/// Origin of a configuration that is applied: cause, file, base directory, set files and user.
pub(crate) struct Origin {
    pub(crate) cause: Cause,
    pub(crate) file: String,
    /// Directory that relative names in it start at.
    pub(crate) base: PathBuf,
    /// Source of the texts of its set files.
    pub(crate) includes: Includes,
    pub(crate) by: Uid,
    /// The earlier revision that it brings back.
    pub(crate) restores: Option<RestoredRevision>,
}

/// An earlier revision that is brought back.
pub(crate) struct RestoredRevision {
    pub(crate) revision: u64,
    /// The keys that it ran with.
    pub(crate) keys: StoredKeys,
}

/// A change, evaluated and compiled as far as possible in the background.
pub(crate) struct Proposal {
    keys: Keys,
    key_changes: Vec<KeyChange>,
    /// The names of all its keys.
    stored_keys: StoredKeys,
    warnings: Vec<Diagnostic>,
    differences: Vec<Difference>,
    prepared: PreparedConfiguration,
    guard: Result<Guard, UnwritableName>,
    /// Effective configuration.
    effective: String,
}

/// The parts of a change that are reported and kept.
struct Summary {
    key_changes: Vec<KeyChange>,
    stored_keys: StoredKeys,
    warnings: Vec<Diagnostic>,
    differences: Vec<Difference>,
    /// Effective configuration.
    effective: String,
}

/// A change that was evaluated, for the control thread to make.
pub(crate) struct EvaluatedChange {
    /// Lent: it comes back with the answer.
    pub(crate) compiler: Compiler,
    pub(crate) proposal: Proposal,
    pub(crate) origin: Origin,
    pub(crate) intent: Intent,
    pub(crate) confirm: Option<ToConfirm>,
}

pub(crate) fn machine(error: impl std::error::Error + Send + Sync + 'static) -> ChangeError {
    ChangeError::Machine(Box::new(error))
}

impl From<TransactionError> for ChangeError {
    fn from(error: TransactionError) -> ChangeError {
        machine(error)
    }
}

/// Returns the complete text of a revision, and its keys. Blocks, longer for larger ones.
pub(crate) fn body_of(reader: Reader, number: u64) -> Result<Body, ChangeError> {
    Ok(reader.read().map_err(machine)?.with_edits(number)?)
}

impl Proposal {
    /// Evaluates a configuration in the background. Blocks, longer for larger ones.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub(crate) fn judge(
        running: &Picture,
        planner: &Planner,
        (text, origin): (&str, &Origin),
    ) -> Result<Proposal, ChangeError> {
        let Origin { file, base, includes, .. } = origin;
        let parsed = config::parse_with(text, file, includes.of(base))?;
        let mut parsed = parsed.within(linux::machine_memory())?;
        let keys_dir = running.keep_keys_dir(&mut parsed.validated, base)?;
        let Loaded { validated, warnings, keys } = parsed.load_keys_in(&keys_dir)?;
        let differences = differences(running.compiled.validated(), &validated);
        let names = keys.names(&validated);
        let key_changes = key_changes(&running.compiled.key_names(), &names);
        let stored_keys = stored(&names);
        // What is reserved depends on addresses: it is filled in when the guard is put up.
        let guard = Guard::new(&validated, &running.view, &Reserved::default());
        let effective = validated.effective();
        let prepared = planner.prepare(validated, Some(&running.compiled)).map_err(machine)?;
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

    /// Returns whether it runs already, keys and all.
    fn is_what_runs(&self) -> bool {
        self.differences.is_empty() && self.key_changes.is_empty()
    }

    /// An answer that says that the running revision stays.
    fn answer(self, state: &State) -> ChangeReport {
        let Proposal { warnings, differences, key_changes, .. } = self;
        let (revision, generation) = (state.revision, state.generation());
        ChangeReport {
            revision,
            generation,
            differences,
            warnings,
            key_changes,
            ..ChangeReport::default()
        }
    }
}

impl Picture {
    /// Directory that the daemon reads key files from. Only a restart changes it.
    pub(crate) fn keys_directory(&self) -> PathBuf {
        self.base.join(&self.config().node.keys_dir)
    }

    /// Checks that a configuration of directory `base` names the running `keys_dir`, in the same
    /// words or by another path, and writes it in the running words. Returns the directory.
    ///
    /// # Errors
    /// The configuration names another directory: the daemon must be restarted.
    fn keep_keys_dir(&self, new: &mut Validated, base: &Path) -> Result<PathBuf, ChangeError> {
        match new.keep_keys_dir(base, self.config(), &self.base) {
            true => Ok(self.keys_directory()),
            false => {
                let (key, file) = ("node.keys_dir".to_owned(), self.file.to_path_buf());
                Err(machine(NeedsRestart { key, file }))
            }
        }
    }
}

impl State {
    /// Checks a change as far as that can be done without making it.
    fn check(&self, proposal: &Proposal) -> Result<(), ChangeError> {
        if self.stopping {
            return Err(ChangeError::Stopping);
        }
        let new = proposal.prepared.settings();
        self.check_restart(new)?;
        let (workers, before) = (self.gateway.workers as u32, self.config().cache);
        if new.cache != before {
            let freed = cache_memory::bytes(before, workers);
            cache_memory::check(new.cache, workers, freed).map_err(machine)?;
        }
        let has_table = self.gateway.compiled.connections().is_some();
        if !has_table && new.tracks_connections() {
            crate::connections::check_memory(&new.connections).map_err(machine)?;
        }
        check_netdevs(new, &self.gateway.view).map_err(|mut all| machine(all.remove(0)))
    }

    /// Answers a dry run.
    fn evaluate(&self, proposal: Proposal) -> Result<ChangeReport, ChangeError> {
        self.check(&proposal)?;
        Ok(proposal.answer(self))
    }

    /// Makes a change, or returns its effects without making it. Gives the compiler back.
    ///
    /// 1. check: what needs a restart, the netdevs; what runs already ends here, unless some of its
    ///    keys were refused and may be taken now;
    /// 2. compile, which takes nothing from what runs;
    /// 3. where the change is to be confirmed, what a restart goes by;
    /// 4. the gateway goes over to it, or stays with what runs.
    pub(crate) async fn change_as_proposed(
        &mut self,
        proposed: EvaluatedChange,
    ) -> (Compiler, Result<ChangeReport, ChangeError>) {
        let EvaluatedChange { mut compiler, proposal, origin, intent, confirm } = proposed;
        let done = match intent {
            Intent::DryRun => self.evaluate(proposal),
            Intent::Apply => self.change_to(&mut compiler, proposal, origin, confirm).await,
        };
        (compiler, done)
    }

    async fn change_to(
        &mut self,
        compiler: &mut Compiler,
        proposal: Proposal,
        origin: Origin,
        confirm: Option<ToConfirm>,
    ) -> Result<ChangeReport, ChangeError> {
        self.check(&proposal)?;
        let is_same = proposal.is_what_runs();
        if is_same && self.gateway.compiled.refused.is_empty() {
            self.accept(&proposal.effective).await;
            return Ok(ChangeReport { unchanged: true, ..proposal.answer(self) });
        }
        let (compiled, guard, summary) = self.compile(compiler, proposal).await?;
        match is_same {
            true => self.try_keys_again(compiled, guard, summary).await,
            false => self.go_over(compiled, guard, summary, origin, confirm).await,
        }
    }

    /// Compiles a change, which takes nothing from what runs.
    async fn compile(
        &mut self,
        compiler: &mut Compiler,
        proposal: Proposal,
    ) -> Result<(Compiled, Guard, Summary), ChangeError> {
        let Proposal { keys, key_changes, stored_keys, warnings, differences, .. } = proposal;
        let Proposal { prepared, guard, effective, .. } = proposal;
        let guard = guard.map_err(machine)?;
        // Two files are synced for each new key: that is not for this thread.
        let (mut lent, state) = (std::mem::take(compiler), self.keys.clone());
        let running = self.gateway.compiled.copied();
        let (desk, node) = (self.endpoints.clone(), self.config().node.clone());
        let finish = move || {
            let settings = prepared.settings().store;
            let compiled = lent.finish(prepared, &keys, &mut state.blocking_lock(), Some(&running));
            // The first configuration with virtual networks: their endpoints may be known.
            let opened = match lent.take_endpoints() {
                Some(book) => desk.open(book, settings, &node.state_dir),
                None => Ok(()),
            };
            if opened.is_err() {
                lent.forget_endpoints();
            }
            (lent, compiled.map_err(machine).and_then(|it| opened.map_err(machine).map(|()| it)))
        };
        let finished = tokio::task::spawn_blocking(finish).await;
        let (lent, compiled) =
            finished.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        *compiler = lent;
        let mut compiled = compiled?;
        compiled.keep_moved_peers(&self.gateway.compiled);
        let summary = Summary { key_changes, stored_keys, warnings, differences, effective };
        Ok((compiled, guard, summary))
    }

    /// Switches to the same configuration again, because some of its keys were refused and may be
    /// accepted now. The revision stays.
    async fn try_keys_again(
        &mut self,
        compiled: Compiled,
        guard: Guard,
        Summary { warnings, effective, .. }: Summary,
    ) -> Result<ChangeReport, ChangeError> {
        let unchanged = compiled.refused == self.gateway.compiled.refused;
        self.switch(compiled, guard).await?;
        self.accept(&effective).await;
        let (revision, generation) = (self.revision, self.generation());
        let notes = self.report_refused();
        Ok(ChangeReport {
            revision,
            generation,
            warnings,
            notes,
            unchanged,
            ..ChangeReport::default()
        })
    }

    /// Switches to another configuration and makes a revision of it, which may have to be
    /// confirmed.
    async fn go_over(
        &mut self,
        compiled: Compiled,
        guard: Guard,
        Summary { key_changes, stored_keys, warnings, differences, effective }: Summary,
        Origin { cause, file, by, restores, .. }: Origin,
        confirm: Option<ToConfirm>,
    ) -> Result<ChangeReport, ChangeError> {
        let is_start_file = *Path::new(&file) == *self.file;
        let number = self.revisions.next();
        let promise = match confirm {
            Some(confirm) => Some(self.promise(confirm, number, &effective).await?),
            None => None,
        };
        if let Err(refused) = self.switch(compiled, guard).await {
            if let Some(promise) = promise {
                self.break_promise(promise).await;
            }
            return Err(refused.into());
        }
        let revision = Revision {
            number,
            time: SystemTime::now(),
            uid: by.0,
            cause,
            file,
            base: self.base.to_path_buf(),
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
        notes.extend(self.report_refused());
        let policies: Vec<_> =
            self.gateway.compiled.spd.holding_policies().map(|(_, policy)| policy).collect();
        let met = self.allow_host_meetings(policies.iter().copied());
        notes.extend(unsaid(&met, &warnings));
        notes.extend(lost);
        if !is_start_file {
            notes.push(restart_note(&self.file));
        }
        self.gateway.report_guard();
        let generation = self.generation();
        let done = ChangeReport {
            revision: number,
            generation,
            differences,
            warnings,
            notes,
            ..ChangeReport::default()
        };
        Ok(ChangeReport { key_changes, waits, ..done })
    }

    /// Makes a revision that runs the running one, and keeps it. Returns why it is not kept.
    pub(crate) async fn take_up(&mut self, revision: Revision, content: Content) -> Option<String> {
        let number = revision.number;
        let peers = &self.config().peers.clone();
        let moves = Arc::make_mut(&mut self.gateway.moves);
        let running = &self.gateway.compiled;
        moves.retain(|name, _| {
            peers.iter().any(|peer| peer.name == *name) || running.ike_peer(name).is_some()
        });
        self.base = revision.base.as_path().into();
        self.revision = number;
        self.restored = revision.restored;
        // It runs; that it is not kept is told, and only rolling back to it will miss it.
        let written = Arc::make_mut(&mut self.revisions).keep(revision, content);
        let written = on_disk(written).await;
        self.note_written(number, written)
    }

    /// Switches to a compiled configuration, or stays with the running one.
    ///
    /// # Errors
    /// [`TransactionError`].
    pub(crate) async fn switch(
        &mut self,
        compiled: Compiled,
        guard: Guard,
    ) -> Result<(), TransactionError> {
        let before = self.gateway.compiled.copied();
        let transaction = self.gateway.prepare(compiled, guard).await?;
        self.make(transaction).await?;
        self.let_go_of_put_sas(&before);
        Ok(())
    }

    /// Makes a change. Readers see it as soon as the workers use it: later counts belong to it.
    ///
    /// # Errors
    /// [`TransactionError`]: what ran before runs on, or again.
    pub(crate) async fn make(&mut self, transaction: Transaction) -> Result<(), TransactionError> {
        let begun = self.gateway.begin(transaction).await?;
        self.show();
        self.gateway.finish(begun).await
    }

    fn check_restart(&self, new: &Validated) -> Result<(), ChangeError> {
        let (old, file) = (self.config(), self.file.to_path_buf());
        let changed = [
            (old.node.run_dir != new.node.run_dir, "node.run_dir"),
            (old.node.state_dir != new.node.state_dir, "node.state_dir"),
            (old.node.workers != new.node.workers, "node.workers"),
            (old.node.reserve_cores != new.node.reserve_cores, "node.reserve_cores"),
            (old.node.poll != new.node.poll, "node.poll"),
            (old.metrics != new.metrics, "metrics.listen"),
        ];
        let changed = changed.iter().find(|(changed, _)| *changed).map(|(_, key)| (*key).into());
        // The table of connections is made by the configuration that first needs one.
        let has_table = self.gateway.compiled.connections().is_some();
        let of_table = || old.connections.changed_key(&new.connections).filter(|_| has_table);
        let of_card = || self.unknown_card_socket(new);
        let has_endpoints = self.gateway.compiled.overlays().is_some();
        let of_store = || old.store.changed_key(&new.store).filter(|_| has_endpoints);
        let of_kernel = || old.kernel.changed_key(&new.kernel).filter(|_| has_endpoints);
        if let Some(key) =
            changed.or_else(of_card).or_else(of_table).or_else(of_store).or_else(of_kernel)
        {
            return Err(machine(NeedsRestart { key, file }));
        }
        match self.gateway.port_in_another_mode(new) {
            Some(OtherMode { port, netdev, mode }) => {
                Err(machine(NeedsOtherMode { port, netdev, mode, file }))
            }
            None => Ok(()),
        }
    }

    /// Returns the key of a card's socket that the daemon did not start with.
    fn unknown_card_socket(&self, new: &Validated) -> Option<String> {
        let is_unknown = |card: &&CardSettings| {
            let socket = card.socket.as_ref();
            socket.is_some_and(|socket| {
                !self.card_sockets.contains(&(card.name.clone(), socket.clone()))
            })
        };
        let card = new.cards.iter().find(is_unknown)?;
        Some(format!("card.{}.socket", card.name))
    }

    /// The services of `allow_host` that these policies want packets of, by the addresses that the
    /// ports have now.
    pub(crate) fn allow_host_meetings<'p>(
        &self,
        policies: impl Iterator<Item = &'p policy::Policy> + Clone,
    ) -> Vec<Meeting> {
        let live = &self.gateway.live;
        let outside = live.ports.iter().map(|(_, port)| port);
        let outside = outside.filter(|port| port.side == Side::Unprotected);
        let own: Vec<_> = outside.flat_map(|port| port.addresses.iter().copied()).collect();
        meetings(&live.ports, &own, policies)
    }

    /// Notes whether a revision is on disk. Returns why it is not.
    pub(crate) fn note_written(
        &mut self,
        number: u64,
        written: Result<(), RevisionError>,
    ) -> Option<String> {
        self.not_kept = written.err().map(|error| self.lose(number, &error));
        self.not_kept.clone()
    }

    /// Generation of the policies that workers walk by.
    fn generation(&self) -> dataplane::Generation {
        self.gateway.snapshot.generation()
    }

    /// Reports that a revision is not on disk, and returns the note.
    pub(crate) fn lose(&mut self, number: u64, error: &RevisionError) -> String {
        Arc::make_mut(&mut self.revisions).lost(number);
        let message = format!("revision {number} runs but is not kept: {error}");
        self.events.record(Kind::RevisionRefused, "", message.as_str(), &[]);
        self.not_kept = Some(message.clone());
        message
    }

    /// Events for the keys that were refused, and the same as sentences.
    pub(crate) fn report_refused(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for refused in &*self.gateway.compiled.refused {
            let message = refused.to_string();
            self.events.record(Kind::KeyRefused, &refused.peer, message.as_str(), &[]);
            notes.push(message);
        }
        notes
    }
}

/// Returns the meetings that no warning names.
pub(crate) fn unsaid(met: &[Meeting], warnings: &[Diagnostic]) -> Vec<String> {
    let texts = met.iter().map(Meeting::to_string);
    texts
        .filter(|text| !warnings.iter().any(|said| said.mistake.to_string().contains(text)))
        .collect()
}

impl RestoredRevision {
    /// Says which peers have other keys now than the revision ran with.
    fn not_back(&self, now: &StoredKeys) -> Option<String> {
        let changed = changed_keys(&self.keys, now)?;
        Some(format!("revision {}: {changed}: key files decide", self.revision))
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
        let many: Vec<String> =
            (0..crate::stored_keys::MAX_PEERS_NAMED + 2).map(|n| format!("p{n}")).collect();
        let text = other_keys(&many.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(text.contains(" and 2 more have other keys"), "{text}");
    }
}
