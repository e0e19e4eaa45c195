//! Turns for work: root, other administrators, readers and scrapes wait in queues of their own, and
//! a user other than root takes one turn at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The caller of work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WorkCaller {
    /// Root, or a member of group `lockgate-admin`, by user id.
    Administrator(u32),
    /// Another user of the API, by user id; `None`: the kernel did not name the user.
    Reader(Option<u32>),
    /// A client of the metrics' port.
    Scrape,
}

/// Callers that share a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallerGroup {
    Root,
    /// Members of group `lockgate-admin`.
    Administrators,
    Readers,
    Scrapes,
}

impl CallerGroup {
    pub(crate) fn of(caller: WorkCaller) -> CallerGroup {
        match caller {
            WorkCaller::Administrator(0) => CallerGroup::Root,
            WorkCaller::Administrator(_) => CallerGroup::Administrators,
            WorkCaller::Reader(_) => CallerGroup::Readers,
            WorkCaller::Scrape => CallerGroup::Scrapes,
        }
    }
}

/// Numbers of turns at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TurnCounts {
    /// All of root's.
    pub(crate) root: usize,
    /// All members of group `lockgate-admin` together.
    pub(crate) administrators: usize,
    /// All readers together.
    pub(crate) readers: usize,
    /// All clients of the metrics' port together.
    pub(crate) scrapes: usize,
}

/// Queues of callers that wait for a turn.
#[derive(Clone)]
pub(crate) struct FairTurns(Arc<TurnQueues>);

struct TurnQueues {
    root: Arc<Semaphore>,
    administrators: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    /// Each while work of the user waits or is in progress.
    users: Mutex<HashMap<WorkCaller, Weak<Semaphore>>>,
}

/// A turn; dropping it ends the turn.
pub(crate) struct WorkTurn {
    _of_all: Option<OwnedSemaphorePermit>,
    _of_user: Option<OwnedSemaphorePermit>,
}

impl FairTurns {
    pub(crate) fn new(counts: TurnCounts) -> FairTurns {
        let TurnCounts { root, administrators, readers, scrapes } = counts;
        let [root, administrators, readers, scrapes] =
            [root, administrators, readers, scrapes].map(|count| Arc::new(Semaphore::new(count)));
        FairTurns(Arc::new(TurnQueues {
            root,
            administrators,
            readers,
            scrapes,
            users: Mutex::default(),
        }))
    }

    /// Waits for a turn of a caller. A user other than root waits for the user's own earlier work
    /// first. So each user has one place in a queue.
    pub(crate) async fn take(&self, caller: WorkCaller) -> WorkTurn {
        let (all, of_user) = match CallerGroup::of(caller) {
            CallerGroup::Root => (&self.0.root, None),
            CallerGroup::Administrators => (&self.0.administrators, Some(self.of_user(caller))),
            CallerGroup::Readers => (&self.0.readers, Some(self.of_user(caller))),
            CallerGroup::Scrapes => (&self.0.scrapes, None),
        };
        // Nobody closes them; were one closed, more work at a time would do no harm.
        let _of_user = match of_user {
            Some(turns) => turns.acquire_owned().await.ok(),
            None => None,
        };
        WorkTurn { _of_all: all.clone().acquire_owned().await.ok(), _of_user }
    }

    fn of_user(&self, user: WorkCaller) -> Arc<Semaphore> {
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = users.get(&user).and_then(Weak::upgrade) {
            return turns;
        }
        let turns = Arc::new(Semaphore::new(1));
        users.insert(user, Arc::downgrade(&turns));
        turns
    }

    /// Returns the number of users with work.
    #[cfg(test)]
    pub(crate) fn users(&self) -> usize {
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, turns| turns.strong_count() > 0);
        users.len()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    async fn is_free(turns: &FairTurns, caller: WorkCaller) -> bool {
        let mut take = pin!(turns.take(caller));
        poll_fn(|context| Poll::Ready(take.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn callers_of_a_kind_delay_callers_of_no_other_kind() {
        let counts = TurnCounts { root: 2, administrators: 2, readers: 2, scrapes: 1 };
        let turns = FairTurns::new(counts);
        let [root, member, other, third] = [0, 7, 8, 9].map(WorkCaller::Administrator);
        let readers = [7, 8, 9].map(|user| WorkCaller::Reader(Some(user)));
        let mut held = vec![turns.take(readers[0]).await];
        assert!(!is_free(&turns, readers[0]).await, "the reader has one turn at a time");
        assert!(is_free(&turns, readers[1]).await);
        held.push(turns.take(readers[1]).await);
        assert!(
            !is_free(&turns, readers[2]).await && !is_free(&turns, WorkCaller::Reader(None)).await
        );
        for caller in [root, member, WorkCaller::Scrape] {
            assert!(is_free(&turns, caller).await, "{caller:?}");
        }
        held.push(turns.take(member).await);
        assert!(!is_free(&turns, member).await, "a member has one turn at a time");
        assert!(is_free(&turns, other).await);
        held.push(turns.take(other).await);
        assert!(!is_free(&turns, third).await);
        held.extend([turns.take(root).await, turns.take(root).await]);
        assert!(!is_free(&turns, root).await && is_free(&turns, WorkCaller::Scrape).await);
        held.push(turns.take(WorkCaller::Scrape).await);
        held.clear();
        assert!(is_free(&turns, third).await && is_free(&turns, readers[0]).await);
        assert_eq!(turns.users(), 0);
    }

    /// A reader with much work has one place in the queue.
    #[tokio::test]
    async fn readers_take_turns() {
        let counts = TurnCounts { root: 1, administrators: 1, readers: 1, scrapes: 1 };
        let turns = FairTurns::new(counts);
        let [greedy, modest] = [7, 8].map(|user| WorkCaller::Reader(Some(user)));
        let begin = |caller| {
            let (turns, (to, ended)) = (turns.clone(), tokio::sync::oneshot::channel::<()>());
            let work = async move {
                let _turn = turns.take(caller).await;
                let _ = ended.await;
            };
            (tokio::spawn(work), to)
        };
        let mut many: Vec<_> = (0..16).map(|_| begin(greedy)).collect();
        tokio::task::yield_now().await;
        let mut take = pin!(turns.take(modest));
        let waits = poll_fn(|context| Poll::Ready(take.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        let (first, end) = many.remove(0);
        drop(end);
        first.await.unwrap();
        // Fifteen others wait, and the modest reader's turn is the next.
        drop(take.await);
        drop(many);
    }
}
