//! The one task that prepares changes of what runs: one at a time, in the order in which they were
//! asked for. What takes long is done on other threads, beside what runs; the change itself the
//! control thread makes ([`Order`]).
//!
//! Charon does not wait for a configuration that is being compiled: its changes of peers and
//! policies are made meanwhile, and the configuration follows them before it runs.
//!
//! Changes of policies that were asked for while another one was made are made together: each has
//! its own generation and revision, and one snapshot is published for all.
//!
//! Background work that follows from changes of policies is done here too, when they pause: the
//! changes are folded into one search, and the guard lets go of what no policy asks for any more.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::v1;
use config::{IncludedTexts, Validated};
use control::guard::{Guard, UnwritableName};
use control::{CompileError, Compiler, IkeChange, NotAdopted, RebuiltBase};
use dataplane::SnapshotError;
use policy::Spd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::backend::{
    Change, ChangeError, ChangeReport, ConfirmError, Includes, Intent, ToConfirm,
};
use crate::change::{EvaluatedChange, Origin, Proposal, RestoredRevision, body_of, machine};
use crate::events::{Events, Kind};
use crate::ike_changes::{IkeRefusal, MadeIke, PreparedIke};
use crate::orders::{Order, OverdueOrder, Reply, Runs};
use crate::patient::{Haste, on_its_own};
use crate::picture::Picture;
use crate::policies::{self, QueuedChange};
use crate::revisions::{Body, Cause};
use crate::sa_changes::SaPut;
use crate::save;
use crate::who::{ConnectionNumber, Uid};

/// Time to wait for further changes that come one after the other.
const GATHER: Duration = Duration::from_millis(200);

/// A request for a change.
pub(crate) enum Ask {
    /// Applies a configuration.
    Apply { change: Change, by: Uid, reply: Reply<Result<ChangeReport, ChangeError>> },
    /// Other policies.
    Policies(QueuedChange),
    /// Other peers and policies that charon makes by itself.
    Ike { change: IkeChange, put: Option<SaPut>, reply: Reply<Result<MadeIke, IkeRefusal>> },
    /// An earlier revision, by default one step back.
    RollBack { revision: Option<u64>, by: Uid, reply: Reply<Result<ChangeReport, ChangeError>> },
    /// Keeps the change that waits.
    Confirm {
        revision: Option<u64>,
        over: ConnectionNumber,
        reply: Reply<Result<u64, ConfirmError>>,
    },
    /// Writes what runs to the daemon's file, unless it means that already.
    Save { reply: Reply<Result<v1::Saved, ChangeError>> },
}

/// A bug of Lockgate: a thread that prepared a change has panicked.
#[derive(Debug, thiserror::Error)]
#[error(
    "an internal error ended an earlier change: report it, and restart lockgated to change more"
)]
struct NoCompiler;

/// A bug of Lockgate: the thread that evaluated a configuration has panicked. It had nothing that
/// others need.
#[derive(Debug, thiserror::Error)]
#[error("an internal error ended this change: report it; what ran before runs on")]
struct JudgingPanicked;

/// The task.
pub(crate) struct Changer {
    /// `None`: a panic lost it, which is a bug of Lockgate.
    compiler: Option<Compiler>,
    picture: watch::Receiver<Arc<Picture>>,
    orders: mpsc::Sender<Order>,
    asks: mpsc::UnboundedReceiver<Ask>,
    /// Requests that came while another one was prepared, in their order.
    waiting: VecDeque<Ask>,
    events: Events,
    aside: BackgroundWork,
    /// Policies changed since what follows from it was begun.
    is_behind: bool,
    /// Policies of the file changed since the guard was made.
    has_old_guard: bool,
    refused: Option<RefusedFolding>,
}

/// The background work under way.
enum BackgroundWork {
    Nothing,
    /// Changes may still come.
    Gathering(Instant),
    Folding(oneshot::Receiver<Result<RebuiltBase, CompileError>>, RefusedFolding),
    Narrowing(JoinHandle<Result<Guard, UnwritableName>>, u64),
}

/// The result of a step of the background work.
enum Step {
    Gathered,
    Folded(Option<Result<RebuiltBase, CompileError>>, RefusedFolding),
    Narrowed(Option<Result<Guard, UnwritableName>>, u64),
}

/// The set of policies for which a folding was refused: with more policies upon it, it would be
/// refused again.
struct RefusedFolding {
    /// Settings of the set that was compiled whole last.
    settings: Arc<Validated>,
    policies_removed: u64,
}

impl RefusedFolding {
    /// Returns whether the set was not compiled whole since, and no policy was taken away.
    fn still_runs(&self, settings: &Arc<Validated>, policies_removed: u64) -> bool {
        Arc::ptr_eq(&self.settings, settings) && self.policies_removed == policies_removed
    }
}

impl BackgroundWork {
    /// Waits for the next step; for ever, if nothing is done.
    async fn step(&mut self) -> Step {
        let step = match self {
            BackgroundWork::Nothing => std::future::pending().await,
            BackgroundWork::Gathering(until) => {
                tokio::time::sleep_until(*until).await;
                Step::Gathered
            }
            BackgroundWork::Folding(job, of) => {
                let RefusedFolding { settings, policies_removed } = of;
                let of = RefusedFolding {
                    settings: settings.clone(),
                    policies_removed: *policies_removed,
                };
                Step::Folded(job.await.ok(), of)
            }
            BackgroundWork::Narrowing(job, revision) => Step::Narrowed(job.await.ok(), *revision),
        };
        *self = BackgroundWork::Nothing;
        step
    }
}

impl Changer {
    pub(crate) fn new(
        compiler: Compiler,
        picture: watch::Receiver<Arc<Picture>>,
        orders: mpsc::Sender<Order>,
        asks: mpsc::UnboundedReceiver<Ask>,
        events: Events,
    ) -> Changer {
        Changer {
            compiler: Some(compiler),
            picture,
            orders,
            asks,
            waiting: VecDeque::new(),
            events,
            aside: BackgroundWork::Nothing,
            is_behind: false,
            has_old_guard: false,
            refused: None,
        }
    }

    /// Serves requests until every sender is gone.
    pub(crate) async fn run(mut self) {
        loop {
            if let Some(ask) = self.waiting.pop_front() {
                self.answer(ask).await;
                continue;
            }
            let overdue = self.picture().pending.map(|pending| pending.until);
            let is_awaited = overdue.is_some();
            let overdue = overdue.map_or_else(Instant::now, Instant::from);
            tokio::select! {
                ask = self.asks.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => return,
                },
                step = self.aside.step() => self.go_on(step).await,
                () = tokio::time::sleep_until(overdue), if is_awaited => {
                    self.roll_back_overdue().await;
                }
            }
        }
    }

    fn picture(&self) -> Arc<Picture> {
        self.picture.borrow().clone()
    }

    /// Sends the control thread an order and returns its answer; `None`: the thread has ended.
    async fn order<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.ok()?;
        answer.await.ok()
    }

    async fn answer(&mut self, ask: Ask) {
        // Whoever asked may be gone.
        match ask {
            Ask::Apply { change, by, reply } => {
                let done = self.apply(change, by).await;
                let _ = reply.send(done);
            }
            Ask::Policies(first) => self.change_policies(first).await,
            Ask::Ike { change, put, reply } => {
                let done = self.change_ike(change, put).await;
                let _ = reply.send(done);
            }
            Ask::RollBack { revision, by, reply } => {
                let done = self.roll_back(revision, by).await;
                let _ = reply.send(done);
            }
            Ask::Confirm { revision, over, reply } => {
                let order = |reply| Order::Confirm { asked: revision, over, reply };
                let done = self.order(order).await;
                let _ = reply.send(done.unwrap_or(Err(ConfirmError::Stopping)));
            }
            Ask::Save { reply } => {
                let done = self.save().await;
                let _ = reply.send(done);
            }
        }
    }

    async fn apply(&mut self, change: Change, by: Uid) -> Result<ChangeReport, ChangeError> {
        let Change { text, file, base_directory: base, includes, .. } = change;
        let Change { intent, confirm, only_after, .. } = change;
        // No other change is made before this one.
        let running = self.picture().revision;
        if let Some(expected) = only_after.filter(|expected| *expected != running) {
            return Err(ChangeError::Overtaken { expected, running });
        }
        if intent == Intent::Apply {
            self.picture().check_free()?;
        }
        let origin = Origin { cause: Cause::Apply, file, base, includes, by, restores: None };
        self.propose(text, origin, (intent, confirm)).await
    }

    /// Makes an earlier revision the running one; by default one step back.
    async fn roll_back(
        &mut self,
        revision: Option<u64>,
        by: Uid,
    ) -> Result<ChangeReport, ChangeError> {
        self.picture().check_free()?;
        let (number, base, body) = match revision {
            Some(number) => self.kept(number).await?,
            None => self.one_step_back().await?,
        };
        let Body { text, keys } = body;
        let restores = Some(RestoredRevision { revision: number, keys });
        let (cause, file) = (Cause::Rollback, format!("revision {number}"));
        let includes = Includes::Sent(IncludedTexts::default());
        let origin = Origin { cause, file, base, includes, by, restores };
        self.propose(text, origin, (Intent::Apply, None)).await
    }

    /// Evaluates a configuration on a thread of its own, and has it made.
    async fn propose(
        &mut self,
        text: String,
        origin: Origin,
        (intent, confirm): (Intent, Option<ToConfirm>),
    ) -> Result<ChangeReport, ChangeError> {
        let picture = self.picture();
        if picture.stopping {
            return Err(ChangeError::Stopping);
        }
        let planner = self.compiler.as_ref().ok_or(NoCompiler).map_err(machine)?.planner();
        let judge = move || {
            let proposal = Proposal::judge(&picture, &planner, (&text, &origin))?;
            Ok::<_, ChangeError>((proposal, origin))
        };
        let judged = tokio::task::spawn_blocking(judge);
        let judged = self.serve_charon_until(judged).await;
        let (proposal, origin) = judged.map_err(|_| machine(JudgingPanicked))??;
        let compiler = self.compiler.take().ok_or(NoCompiler).map_err(machine)?;
        let proposed = Box::new(EvaluatedChange { compiler, proposal, origin, intent, confirm });
        let done = self.order(|reply| Order::Change { proposed, reply }).await;
        let (compiler, done) = done.ok_or(ChangeError::Stopping)?;
        self.compiler = Some(compiler);
        done
    }

    /// Makes the changes that charon asks for until a job has ended; other requests wait. Returns
    /// the job's result.
    async fn serve_charon_until<T>(&mut self, mut job: JoinHandle<T>) -> Result<T, JoinError> {
        loop {
            tokio::select! {
                done = &mut job => return done,
                Some(ask) = self.asks.recv() => match ask {
                    Ask::Ike { change, put, reply } => {
                        let done = self.change_ike(change, put).await;
                        // Charon may be gone.
                        let _ = reply.send(done);
                    }
                    other => self.waiting.push_back(other),
                },
            }
        }
    }

    /// Runs a function with the compiler on a thread of its own.
    ///
    /// # Errors
    /// [`NoCompiler`]: it panicked, or had before.
    async fn beside<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Compiler) -> T + Send + 'static,
    ) -> Result<T, ChangeError> {
        let compiler = self.compiler.take().ok_or(NoCompiler).map_err(machine)?;
        let done = tokio::task::spawn_blocking(move || caught(compiler, work)).await.ok().flatten();
        let (compiler, done) = done.ok_or(NoCompiler).map_err(machine)?;
        self.compiler = Some(compiler);
        Ok(done)
    }

    /// Has the compiler do something short.
    fn here<T>(&mut self, work: impl FnOnce(&mut Compiler) -> T) -> Result<T, ChangeError> {
        let compiler = self.compiler.take().ok_or(NoCompiler).map_err(machine)?;
        let (compiler, done) = caught(compiler, work).ok_or(NoCompiler).map_err(machine)?;
        self.compiler = Some(compiler);
        Ok(done)
    }

    /// A revision that is kept: its number, what a relative `keys_dir` is relative to, its text.
    async fn kept(&self, number: u64) -> Result<(u64, PathBuf, Body), ChangeError> {
        let revisions = &self.picture().revisions;
        let missing = || ChangeError::NoRevision { revision: number, kept: revisions.ends() };
        let base = revisions.find(number).ok_or_else(missing)?.base.clone();
        let reader = revisions.reader(number).ok_or_else(missing)?;
        let read = tokio::task::spawn_blocking(move || body_of(reader, number));
        Ok((number, base, read.await.map_err(machine)??))
    }

    /// The newest revision before the one that runs and says something else. Where what runs was
    /// brought back from an earlier revision, the steps go on from that one.
    async fn one_step_back(&self) -> Result<(u64, PathBuf, Body), ChangeError> {
        let picture = self.picture();
        let mut at = picture.revisions.origin_of(picture.restored.unwrap_or(picture.revision));
        let compiled = picture.compiled.copied();
        let text = move || compiled.validated().effective();
        let running = tokio::task::spawn_blocking(text).await.map_err(machine)?;
        loop {
            let before = picture.revisions.before(at).map(|kept| kept.number);
            let number = before.ok_or(ChangeError::NoEarlier)?;
            let (number, base, body) = self.kept(number).await?;
            if body.text != running {
                return Ok((number, base, body));
            }
            at = picture.revisions.origin_of(number);
        }
    }

    /// Makes a change of policies, with those that wait behind it.
    async fn change_policies(&mut self, first: QueuedChange) {
        let mut all = vec![first];
        while let Some(ask) = self.waiting.pop_front().or_else(|| self.asks.try_recv().ok()) {
            match ask {
                Ask::Policies(waiting) => all.push(waiting),
                other => {
                    self.waiting.push_front(other);
                    break;
                }
            }
        }
        let picture = self.picture();
        if let Err(refused) = picture.check_free() {
            let mut first = Some(refused);
            for QueuedChange { answer, .. } in all {
                let again = || picture.check_free().err().unwrap_or(ChangeError::Stopping);
                let _ = answer.send(Err(first.take().unwrap_or_else(again)));
            }
            return;
        }
        // What is not answered by a fault of ours is answered by what it drops.
        let compile = move |compiler: &mut Compiler| policies::compile_all(&picture, compiler, all);
        if let Ok(Some(batch)) = self.beside(compile).await {
            self.order(|reply| Order::Policies { batch, reply }).await;
            self.policies_changed();
        }
    }

    /// Makes a change of what charon makes by itself, with SAs for its peers. It waits for no
    /// confirmation: no revision has it.
    async fn change_ike(
        &mut self,
        change: IkeChange,
        put: Option<SaPut>,
    ) -> Result<MadeIke, IkeRefusal> {
        let picture = self.picture();
        let (has_policies, is_short) = (change.has_policies(), change.is_short());
        let compile = move |compiler: &mut Compiler| PreparedIke::of(&picture, compiler, change);
        let prepared = match is_short {
            // In less time than it takes to wake another thread.
            true => self.here(compile),
            false => self.beside(compile).await,
        };
        let prepared = Box::new(prepared.map_err(|_| IkeRefusal::Stopping)??);
        let done = self.order(|reply| Order::Ike { prepared, put, reply }).await;
        if has_policies {
            // The guard knows none of them: it closes all that they may name.
            self.search_changed();
        }
        done.unwrap_or(Err(IkeRefusal::Stopping))
    }

    /// Writes what runs to the daemon's file, unless it means that already.
    async fn save(&mut self) -> Result<v1::Saved, ChangeError> {
        let picture = self.picture();
        picture.check_free()?;
        let (file, revision) = (picture.file.display().to_string(), picture.revision);
        let write = move || {
            let known = picture
                .drift
                .as_ref()
                .and_then(|known| known.still(&picture.file, picture.revision).cloned());
            let drift = known.unwrap_or_else(|| save::compared(&picture).drift().clone());
            (!drift.saved).then(|| save::write_running(&picture)).transpose()
        };
        let written = tokio::task::spawn_blocking(write).await.map_err(machine)?;
        let text = written.map_err(ChangeError::NotSaved)?;
        let unchanged = text.is_none();
        if let Some(text) = text {
            self.order(|reply| Order::Accept { text, reply }).await;
        }
        Ok(v1::Saved { file, revision, unchanged })
    }

    async fn roll_back_overdue(&mut self) {
        let waited = self.picture().pending.is_some();
        let found = self.order(|reply| Order::Overdue(OverdueOrder::Look { reply })).await;
        let earlier = match found.flatten() {
            None => Ok(None),
            Some([earlier, running]) => {
                let compile =
                    move |compiler: &mut Compiler| compiler.without_gone_of_ike(&earlier, &running);
                self.beside(compile).await.and_then(|made| made.map_err(machine))
            }
        };
        let earlier = earlier.map(|earlier| earlier.map(Box::new));
        self.order(|reply| Order::Overdue(OverdueOrder::RollBack { earlier, reply })).await;
        if waited && self.picture().pending.is_none() {
            self.policies_changed();
        }
    }

    /// Notes that something follows from a change of the file's policies.
    fn policies_changed(&mut self) {
        self.has_old_guard = true;
        self.search_changed();
    }

    /// Notes that something follows from a change of the policies' search.
    fn search_changed(&mut self) {
        match self.aside {
            BackgroundWork::Nothing => {
                self.aside = BackgroundWork::Gathering(Instant::now() + GATHER)
            }
            BackgroundWork::Gathering(_)
            | BackgroundWork::Folding(..)
            | BackgroundWork::Narrowing(..) => {
                self.is_behind = true;
            }
        }
    }

    /// Continues after a change of policies: compacts the changes, then narrows the guard.
    async fn go_on(&mut self, step: Step) {
        match step {
            Step::Gathered => {
                self.is_behind = false;
                match self.folding() {
                    Some(folding) => self.aside = folding,
                    None => self.narrow(),
                }
            }
            Step::Folded(rebuilt, of) => {
                self.folded(rebuilt, of).await;
                self.narrow();
            }
            Step::Narrowed(made, revision) => {
                match made {
                    Some(Ok(guard)) => {
                        let order = |reply| Order::PutUp { guard, revision, reply };
                        let is_behind = self.order(order).await == Some(Runs::NoMore);
                        self.is_behind |= is_behind;
                        self.has_old_guard |= is_behind;
                    }
                    Some(Err(error)) => {
                        self.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
                    }
                    None => {}
                }
                self.rest();
            }
        }
    }

    /// Begins to fold changes into the policies' search, unless that was refused or is not worth
    /// it.
    fn folding(&mut self) -> Option<BackgroundWork> {
        let picture = self.picture();
        let (settings, policies_removed) = (picture.config().clone(), picture.policies_removed);
        if self.refused.as_ref().is_some_and(|of| of.still_runs(&settings, policies_removed)) {
            return None;
        }
        self.refused = None;
        let job = self.compiler.as_ref()?.rebuild_job(&picture.compiled)?;
        // Where the guard waits for it, or changes may soon not fit in front of the base.
        let is_urgent = self.has_old_guard || picture.compiled.spd.changes() > Spd::MAX_CHANGES / 2;
        let haste = if is_urgent { Haste::Urgent } else { Haste::Patient };
        let job = on_its_own(haste, move || job.run());
        Some(BackgroundWork::Folding(job, RefusedFolding { settings, policies_removed }))
    }

    async fn folded(
        &mut self,
        rebuilt: Option<Result<RebuiltBase, CompileError>>,
        of: RefusedFolding,
    ) {
        let rebuilt = match rebuilt {
            // The next change of policies begins another one.
            None => {
                let why = "the thread that folds changes of policies has ended";
                return self.events.record(Kind::FoldRefused, "", why, &[]);
            }
            Some(Err(error)) => return self.fold_refused(&error, of),
            Some(Ok(rebuilt)) => rebuilt,
        };
        let picture = self.picture();
        let Some(compiler) = &mut self.compiler else { return };
        match compiler.adopt(&picture.compiled, rebuilt) {
            Ok(adopted) => {
                let adopted = Box::new(adopted);
                let done = self.order(|reply| Order::Fold { adopted, reply }).await;
                if let Some(Err(error)) = done {
                    let error: SnapshotError = error;
                    self.fold_refused(&error, of);
                }
            }
            // Once more, of what runs now.
            Err(NotAdopted::Overtaken | NotAdopted::TooManyChanges) => self.is_behind = true,
        }
    }

    fn fold_refused(&mut self, error: &dyn std::error::Error, of: RefusedFolding) {
        self.events.record(Kind::FoldRefused, "", error.to_string(), &[]);
        self.refused = Some(of);
    }

    /// Ends the background work, or begins anew what changed meanwhile.
    fn rest(&mut self) {
        self.aside = BackgroundWork::Nothing;
        if std::mem::take(&mut self.is_behind) {
            self.search_changed();
        }
    }

    /// Begins to make the guard of the policies that run, unless it is theirs already.
    fn narrow(&mut self) {
        if !std::mem::take(&mut self.has_old_guard) {
            return self.rest();
        }
        let picture = self.picture();
        let revision = picture.revision;
        let make = move || {
            Guard::new(picture.compiled.copied().validated(), &picture.view, &picture.reserved)
        };
        self.aside = BackgroundWork::Narrowing(tokio::task::spawn_blocking(make), revision);
    }
}

/// Has a compiler do something. `None`: it panicked. What it was doing then it had not finished, so
/// it is not used again.
fn caught<T>(
    mut compiler: Compiler,
    work: impl FnOnce(&mut Compiler) -> T,
) -> Option<(Compiler, T)> {
    let done = catch_unwind(AssertUnwindSafe(|| work(&mut compiler))).ok()?;
    Some((compiler, done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_lab::{PEER, TestLab};

    const CONFIG: &str = r#"
[node]
name = "a"
[port.lan]
netdev = "eth1"
side = "protected"
mac = "02:00:00:00:0a:01"
mtu = 1500
addresses = ["10.1.0.1/16"]
"#;

    /// A job that is held stands for a configuration that is being compiled.
    #[tokio::test]
    async fn charon_is_served_while_a_configuration_is_prepared_and_others_wait() {
        let TestLab { folder: _folder, machine: _machine, compiler, mut state, events } =
            TestLab::new(PEER);
        let picture = state.watched();
        let (ordering, mut orders) = mpsc::channel(1);
        let (asking, asks) = mpsc::unbounded_channel();
        let mut changer = Changer::new(compiler, picture, ordering, asks, events);
        tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                state.obey(order).await.unwrap();
            }
        });
        let (release, held) = oneshot::channel::<u8>();
        let (reply, mut saved) = oneshot::channel();
        asking.send(Ask::Save { reply }).unwrap_or_else(|_| panic!("the changer is there"));
        let (reply, made) = oneshot::channel();
        let ask = Ask::Ike { change: IkeChange::default(), put: None, reply };
        asking.send(ask).unwrap_or_else(|_| panic!("the changer is there"));
        let job = tokio::spawn(async { held.await.unwrap() });
        let serve = changer.serve_charon_until(job);
        let charon = async {
            made.await.unwrap().unwrap();
            assert!(saved.try_recv().is_err(), "other requests wait");
            release.send(7).unwrap();
        };
        let (done, ()) = tokio::join!(serve, charon);
        assert_eq!(done.unwrap(), 7);
        assert!(matches!(changer.waiting.front(), Some(Ask::Save { .. })));
    }

    #[test]
    fn a_refused_folding_is_tried_again_when_a_policy_went_or_all_were_compiled_whole() {
        let parsed = || Arc::new(config::parse(CONFIG, "a.toml").unwrap().validated);
        let (settings, policies_removed) = (parsed(), 7);
        let refused = RefusedFolding { settings: settings.clone(), policies_removed };
        assert!(refused.still_runs(&settings, 7), "policies were added, if anything");
        assert!(!refused.still_runs(&settings, 8), "one was taken away");
        assert!(!refused.still_runs(&parsed(), 7), "the same was applied as a whole");
    }
}
