//! Orders to the control thread, and its answers. The thread does one order after the other, and
//! answers when every reader sees the result.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use control::guard::{Guard, GuardError};
use control::{
    AdoptedBase, Compiled, Compiler, KeyManager, MovedEnds, PeerEnds, SaName, SpiRequest,
};
use dataplane::SnapshotError;
use ipsec::Spi;
use tokio::sync::oneshot;

use crate::backend::{ChangeError, ChangeReport, ConfirmError};
use crate::cards::CardPicture;
use crate::change::EvaluatedChange;
use crate::config_file::KnownDrift;
use crate::events::Kind;
use crate::gateway::MoveRefusal;
use crate::ike_changes::{IkeRefusal, MadeIke, PreparedIke};
use crate::policies::Batch;
use crate::revisions::RevisionError;
use crate::sa_changes::{ReserveError, Reserved, SaChange, SaDeletion, SaPut, SaRefusal};
use crate::state::State;
use crate::who::ConnectionNumber;
use crate::worker::{Report, WorkerGone};

/// The channel for an answer.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// An order for the control thread.
pub(crate) enum Order {
    /// Makes a change that was evaluated, or says what it would do. The compiler is lent.
    Change {
        proposed: Box<EvaluatedChange>,
        reply: Reply<(Compiler, Result<ChangeReport, ChangeError>)>,
    },
    /// Makes changes of policies, all or none. Each is answered by itself.
    Policies { batch: Batch, reply: Reply<()> },
    /// Makes a change of what charon makes by itself, with SAs for its peers.
    Ike {
        prepared: Box<PreparedIke>,
        put: Option<SaPut>,
        reply: Reply<Result<MadeIke, IkeRefusal>>,
    },
    /// Switches to a search structure into which changes were compacted.
    Fold { adopted: Box<AdoptedBase>, reply: Reply<Result<(), SnapshotError>> },
    /// Puts up the guard that was made of a revision's policies, if that still runs. Says whether
    /// it does.
    PutUp { guard: Guard, revision: u64, reply: Reply<Runs> },
    /// Restores the guard, which somebody may have changed; or says why nobody can tell.
    RestoreGuard { asked: Result<(), GuardError>, reply: Reply<()> },
    /// Keeps the change that waits.
    Confirm { asked: Option<u64>, over: ConnectionNumber, reply: Reply<Result<u64, ConfirmError>> },
    /// Is about a change that nobody confirmed in time.
    Overdue(OverdueOrder),
    /// Forgets that a text was never confirmed: it is in the daemon's file now.
    Accept { text: String, reply: Reply<()> },
    /// Notes whether a revision is on disk. Says why it is not.
    Written { number: u64, written: Result<(), RevisionError>, reply: Reply<Option<String>> },
    /// Notes how the daemon's file differs from what runs.
    Compared { known: Arc<KnownDrift>, reply: Reply<()> },
    /// Changes SAs that are put, or reserves an SPI for one.
    Sas(SaOrder),
    /// Lets every worker begin a turn, after connections were removed, and forgets those on disk.
    Exchange { reply: Reply<()> },
    /// Asks what network cards have.
    Cards { reply: Reply<Vec<CardPicture>> },
    /// Asks what the workers counted, while nothing else is done.
    Count { reply: Reply<Vec<Report>> },
}

/// An order about SAs that programs put.
pub(crate) enum SaOrder {
    /// Puts SAs, all or none.
    Put { put: SaPut, reply: Reply<Result<SaChange, SaRefusal>> },
    /// Deletes SAs that were put, all or none.
    Delete { deletion: SaDeletion, reply: Reply<Result<SaChange, SaRefusal>> },
    /// Moves an SA to other ends.
    Move { name: SaName, to: PeerEnds, reply: Reply<Result<Option<MovedEnds>, MoveRefusal>> },
    /// Reserves an SPI for a peer.
    Reserve { asked: SpiRequest, reply: Reply<Result<Reserved, ReserveError>> },
    /// Releases an SPI that charon reserved for exchanges with a remote address.
    Release { spi: Spi, remote: IpAddr, reply: Reply<bool> },
}

/// An order about a change that nobody confirmed in time.
pub(crate) enum OverdueOrder {
    /// Asks what is to run again, and what runs.
    Look { reply: Reply<Option<[Compiled; 2]>> },
    /// Rolls the change back. Says when to look again. `earlier`: what is to run again, if it is
    /// not what ran before.
    RollBack { earlier: Result<Option<Box<Compiled>>, ChangeError>, reply: Reply<Option<Instant>> },
}

/// State of a revision: it still runs, or no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Runs {
    Still,
    NoMore,
}

impl State {
    /// Carries an order out.
    ///
    /// # Errors
    /// [`WorkerGone`]: the daemon ends.
    pub(crate) async fn obey(&mut self, order: Order) -> Result<(), WorkerGone> {
        match order {
            Order::Change { proposed, reply } => {
                let done = self.change_as_proposed(*proposed).await;
                self.answer(reply, done);
            }
            Order::Policies { batch, reply } => {
                let answers = self.change_policies(batch).await;
                self.show();
                for (answer, done) in answers {
                    // Whoever asked may be gone.
                    let _ = answer.send(done);
                }
                let _ = reply.send(());
            }
            Order::Ike { prepared, put, reply } => {
                let done = self.change_ike(*prepared, put).await;
                self.settle_acquires();
                self.answer(reply, done);
            }
            Order::Fold { adopted, reply } => {
                let done = self.fold(*adopted).await?;
                self.answer(reply, done);
            }
            Order::PutUp { guard, revision, reply } => {
                let runs = self.put_up(guard, revision).await;
                self.answer(reply, runs);
            }
            Order::RestoreGuard { asked, reply } => {
                match asked {
                    Err(error) => {
                        self.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
                    }
                    Ok(()) if self.stopping => {}
                    // It may be another guard by now.
                    Ok(()) => self.gateway.restore_guard().await,
                }
                self.answer(reply, ());
            }
            Order::Confirm { asked, over, reply } => {
                let done = self.confirm(asked, over).await;
                self.answer(reply, done);
            }
            Order::Overdue(order) => self.obey_about_overdue(order).await,
            Order::Accept { text, reply } => {
                self.accept(&text).await;
                self.answer(reply, ());
            }
            Order::Written { number, written, reply } => {
                let lost = self.note_written(number, written);
                self.answer(reply, lost);
            }
            Order::Compared { known, reply } => {
                self.drift = Some(known);
                self.answer(reply, ());
            }
            Order::Sas(order) => self.obey_about_sas(order).await?,
            Order::Exchange { reply } => {
                self.settle_connections().await?;
                self.answer(reply, ());
            }
            Order::Cards { reply } => _ = reply.send(self.gateway.card_pictures()),
            Order::Count { reply } => {
                let reports = self.workers.reports(&self.gateway.snapshot).await?;
                self.answer(reply, reports.unwrap_or_default());
            }
        }
        Ok(())
    }

    async fn obey_about_overdue(&mut self, order: OverdueOrder) {
        match order {
            OverdueOrder::Look { reply } => {
                let overdue = self.overdue();
                self.answer(reply, overdue);
            }
            OverdueOrder::RollBack { earlier, reply } => {
                let next = self.roll_back_overdue(earlier).await;
                self.answer(reply, next);
            }
        }
    }

    async fn fold(&mut self, of: AdoptedBase) -> Result<Result<(), SnapshotError>, WorkerGone> {
        match self.stopping {
            true => Ok(Ok(())),
            false => self.gateway.fold(of).await,
        }
    }

    async fn obey_about_sas(&mut self, order: SaOrder) -> Result<(), WorkerGone> {
        match order {
            SaOrder::Put { put, reply } => {
                self.put_sas(put, reply).await?;
            }
            SaOrder::Delete { deletion, reply } => {
                let done = self.delete_sas(deletion).await?;
                self.answer(reply, done);
            }
            SaOrder::Move { name, to, reply } => {
                let done = self.move_sa(&name, to).await?;
                self.answer(reply, done);
            }
            SaOrder::Reserve { asked, reply } => {
                // Nobody sees it yet, and whoever asked may be gone.
                let _ = reply.send(self.reserve_spi(&asked));
            }
            SaOrder::Release { spi, remote, reply } => {
                let _ = reply.send(self.reserved_spis.release(spi, KeyManager::Ike, remote));
            }
        }
        Ok(())
    }

    /// Writes the file of connections that a restart goes by, if it is time. Waits for nothing.
    pub(crate) async fn keep_connections_if_due(&mut self) {
        self.kept_connections.keep_if_due(&self.gateway.snapshot, &self.events).await;
    }

    /// Puts up the guard of a revision, if that still runs.
    async fn put_up(&mut self, guard: Guard, revision: u64) -> Runs {
        let runs = if self.revision == revision { Runs::Still } else { Runs::NoMore };
        if runs == Runs::Still && !self.stopping {
            self.gateway.put_up(guard).await;
        }
        runs
    }

    /// Sees to it, after connections were removed, that no worker acts on one of them any more, and
    /// that no restart brings one back.
    async fn settle_connections(&mut self) -> Result<(), WorkerGone> {
        if !self.stopping {
            self.gateway.exchange_snapshots().await?;
            self.gateway.tier.look_at_connections();
            self.kept_connections.keep(&self.gateway.snapshot, &self.events).await;
        }
        Ok(())
    }

    /// Answers, after everybody who looks can see what was done.
    fn answer<T>(&self, reply: Reply<T>, answer: T) {
        self.show();
        // Whoever asked may be gone.
        let _ = reply.send(answer);
    }
}
