//! `apply` and `rollback`: another configuration, all of it or nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use control::guard::Guard;
use control::mirror::{check_devices, live_parts};
use control::validated::Validated;
use control::{Loaded, differences};

use crate::backend::{Change, Done, Intent, Refused, Uid};
use crate::device::DeviceError;
use crate::events::Kind;
use crate::revisions::{Cause, Revision};
use crate::state::{State, netdevs};
use crate::worker::WorkerGone;

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

fn machine(error: impl std::error::Error + Send + Sync + 'static) -> Refused {
    Refused::Machine(Box::new(error))
}

impl State {
    /// Judges a change and, if it is meant, makes it.
    pub(crate) async fn apply(&mut self, change: Change, by: Uid) -> Result<Done, Refused> {
        let Change { text, file, base_directory, intent } = change;
        let loaded = load(&text, &file, &base_directory)?;
        let origin = Origin { cause: Cause::Apply, file, base: base_directory, by };
        self.change_to(loaded, origin, intent).await
    }

    /// Makes an earlier revision the running one; by default the one before.
    pub(crate) async fn roll_back(
        &mut self,
        revision: Option<u64>,
        by: Uid,
    ) -> Result<Done, Refused> {
        let wanted = match revision {
            Some(number) => {
                self.revisions.find(number).ok_or(Refused::NoRevision { revision: number })?
            }
            None => {
                let earlier = self.revisions.all().iter().rev();
                let mut earlier = earlier.filter(|kept| kept.number < self.revision);
                earlier.next().ok_or(Refused::NoEarlier)?
            }
        };
        let name = format!("revision {}", wanted.number);
        let loaded = load(&wanted.text, &name, &wanted.base)?;
        let origin = Origin { cause: Cause::Rollback, file: name, base: wanted.base.clone(), by };
        self.change_to(loaded, origin, Intent::Apply).await
    }

    /// 1. judge: keys, what needs a restart, the netdevs;
    /// 2. compile, which takes nothing from what runs;
    /// 3. the guard, then the netdevs that come, then the workers, then the netdevs that go.
    ///
    /// Where a step of 3 fails, what ran before is put back.
    async fn change_to(
        &mut self,
        loaded: Loaded,
        origin: Origin,
        intent: Intent,
    ) -> Result<Done, Refused> {
        if self.stopping {
            return Err(Refused::Stopping);
        }
        self.check_restart(&loaded.validated)?;
        check_devices(&loaded.validated, &self.view).map_err(|mut all| machine(all.remove(0)))?;
        let found = differences(self.config(), &loaded.validated);
        let warnings = loaded.warnings.clone();
        if intent == Intent::DryRun {
            let (revision, generation) = (self.revision, self.snapshot.generation());
            let notes = Vec::new();
            return Ok(Done { revision, generation, differences: found, warnings, notes });
        }
        let compiled = self.compiler.compile(&loaded, &mut self.keystate).map_err(machine)?;
        let number = self.revisions.next();
        let revision = Revision {
            number,
            time: SystemTime::now(),
            uid: origin.by.0,
            cause: origin.cause,
            file: origin.file,
            base: origin.base,
            changes: found.len() as u32,
            text: loaded.validated.effective(),
        };
        self.switch(compiled).await?;
        self.base = revision.base.clone();
        self.revision = number;
        // It runs; that it is not kept is told, and only rolling back to it will miss it.
        if let Err(error) = self.revisions.keep(revision) {
            self.events.record(Kind::ReservationFailed, "", error.to_string(), &[]);
        }
        let notes = self.tell_refused();
        let generation = self.snapshot.generation();
        Ok(Done { revision: number, generation, differences: found, warnings, notes })
    }

    /// Goes over to a compiled configuration, or stays with the one that runs.
    async fn switch(&mut self, compiled: control::Compiled) -> Result<(), Refused> {
        let live = live_parts(&compiled.validated, &self.view);
        let snapshot = Arc::new(compiled.assemble(&live).map_err(machine)?);
        let mut guard = Guard::new(&compiled.validated, &self.view).map_err(machine)?;
        guard.install().map_err(machine)?;
        self.guard = guard;
        let old = std::mem::replace(&mut self.compiled, compiled);
        let old_live = std::mem::replace(&mut self.live, live);
        let old_snapshot = self.snapshot.clone();
        self.publish(snapshot).await.map_err(machine)?;
        self.instruct();
        let Err(error) = self.take_new().await else {
            self.drop_beyond(Leaving::Open);
            return Ok(());
        };
        let refused = netdevs(self.config());
        self.compiled = old;
        self.live = old_live;
        self.publish(old_snapshot).await.map_err(machine)?;
        self.instruct();
        self.drop_beyond(Leaving::AsFound);
        self.renew_guard();
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

fn load(text: &str, file: &str, base: &Path) -> Result<Loaded, Refused> {
    let parsed = control::parse(text, file)?;
    Ok(parsed.load_keys(base)?)
}
