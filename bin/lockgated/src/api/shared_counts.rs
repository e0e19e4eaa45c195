//! Counts of one moment, which the long answers of a user share.
//!
//! A long answer holds the counts of its moment until the client has read the answer, and the
//! counts of many SAs and policies take megabytes. So an answer shares the counts of the user's
//! earlier answer if that answer is not read yet and is younger than a second. At a bound the user
//! who holds most counts gives way: the connections of the oldest unread answers end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dataplane::Snapshot;
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::fair_turns::WorkCaller;
use crate::running::CountedState;

/// Age up to which answers share counts.
pub(super) const SHARED_TIME: Duration = Duration::from_secs(1);
/// Counts that the unread answers of administrators hold, and as many those of readers.
pub(super) const MAX_HELD_COUNTS: usize = 8;

/// Counts that unread answers hold.
#[derive(Clone)]
pub(super) struct SharedCounts {
    shared_time: Duration,
    table: Arc<Mutex<CountsTable>>,
}

#[derive(Default)]
struct CountsTable {
    /// In the order in which they were made.
    held: Vec<HeldCounts>,
    /// Each while an answer of the caller is begun.
    turns: HashMap<WorkCaller, Weak<tokio::sync::Mutex<()>>>,
}

/// Counts of a caller's answers.
struct HeldCounts {
    caller: WorkCaller,
    made: Instant,
    counts: Weak<CountedState>,
    /// The end of each connection that got the counts.
    connections: Vec<Weak<Notify>>,
}

/// A caller with the end of the caller's connection.
#[derive(Clone)]
pub(super) struct CountsReader {
    pub(super) caller: WorkCaller,
    pub(super) end: Option<Arc<Notify>>,
}

impl SharedCounts {
    pub(super) fn new(shared_time: Duration) -> SharedCounts {
        SharedCounts { shared_time, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, CountsTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the caller's other answers have begun, so that a caller's answers share counts
    /// also if all begin at once.
    pub(super) async fn take_turn(&self, caller: WorkCaller) -> OwnedMutexGuard<()> {
        let turn = {
            let mut table = self.table();
            table.turns.retain(|_, turn| turn.strong_count() > 0);
            let known = table.turns.get(&caller).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                table.turns.insert(caller, Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }

    /// Returns counts that the caller's answers hold, if they are of this snapshot and young.
    pub(super) fn find(
        &self,
        reader: &CountsReader,
        snapshot: &Arc<Snapshot>,
        now: Instant,
    ) -> Option<Arc<CountedState>> {
        let mut table = self.table();
        let newest = table.held.iter_mut().rev().find(|held| held.caller == reader.caller)?;
        let counts = newest.counts.upgrade()?;
        let is_young = now.saturating_duration_since(newest.made) < self.shared_time;
        if !is_young || !Arc::ptr_eq(&counts.running.snapshot, snapshot) {
            return None;
        }
        newest.add_connection(reader);
        Some(counts)
    }

    /// Keeps counts that were made for an answer. At the bound the oldest counts of the user who
    /// holds most give way.
    pub(super) fn keep(
        &self,
        reader: &CountsReader,
        counts: CountedState,
        made: Instant,
    ) -> Arc<CountedState> {
        let counts = Arc::new(counts);
        let mut table = self.table();
        table.held.retain(|held| held.counts.strong_count() > 0);
        while table.count(reader.caller) >= MAX_HELD_COUNTS && table.evict(reader.caller) {}
        let (caller, connections) = (reader.caller, Vec::new());
        let mut held = HeldCounts { caller, made, counts: Arc::downgrade(&counts), connections };
        held.add_connection(reader);
        table.held.push(held);
        counts
    }

    /// Returns the number of counts that answers hold.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.table().held.iter().filter(|held| held.counts.strong_count() > 0).count()
    }
}

impl CountsTable {
    /// Returns the number of counts that share a bound with this caller.
    fn count(&self, caller: WorkCaller) -> usize {
        self.held.iter().filter(|held| held.shares_bound(caller)).count()
    }

    /// Ends the connections that hold the oldest counts of a caller with most, among callers that
    /// share a bound with this one. Returns false if nobody holds counts.
    fn evict(&mut self, caller: WorkCaller) -> bool {
        let mut by_caller: HashMap<WorkCaller, (usize, usize)> = HashMap::new();
        for (place, held) in self.held.iter().enumerate() {
            if held.shares_bound(caller) {
                by_caller.entry(held.caller).or_insert((0, place)).0 += 1;
            }
        }
        let most =
            by_caller.into_values().max_by_key(|(count, oldest)| (*count, usize::MAX - *oldest));
        let Some((_, oldest)) = most else { return false };
        let gone = self.held.remove(oldest);
        gone.connections.iter().filter_map(Weak::upgrade).for_each(|end| end.notify_one());
        true
    }
}

impl HeldCounts {
    fn shares_bound(&self, caller: WorkCaller) -> bool {
        self.caller.is_administrator() == caller.is_administrator()
    }

    fn add_connection(&mut self, reader: &CountsReader) {
        self.connections.retain(|known| known.strong_count() > 0);
        let Some(end) = reader.end.as_ref().map(Arc::downgrade) else { return };
        if !self.connections.iter().any(|known| known.ptr_eq(&end)) {
            self.connections.push(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake::Fake;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn reader(user: u32) -> CountsReader {
        let caller = match user {
            0 => WorkCaller::Administrator(0),
            user => WorkCaller::Reader(Some(user)),
        };
        CountsReader { caller, end: Some(Arc::default()) }
    }

    async fn is_ended(reader: &CountsReader) -> bool {
        let end = reader.end.as_ref().unwrap();
        let mut ended = std::pin::pin!(end.notified());
        let poll = |context: &mut std::task::Context<'_>| {
            std::task::Poll::Ready(ended.as_mut().poll(context).is_ready())
        };
        std::future::poll_fn(poll).await
    }

    #[tokio::test]
    async fn user_with_most_counts_gives_way() {
        let (fake, shared) = (Fake::new(Duration::ZERO), SharedCounts::new(Duration::ZERO));
        let now = Instant::now();
        let mut held = Vec::new();
        let mut hold = |reader: &CountsReader| held.push(shared.keep(reader, fake.state(), now));
        let (modest, greedy, root) = (reader(7), reader(8), reader(0));
        hold(&modest);
        let unread: Vec<_> = (1..MAX_HELD_COUNTS).map(|_| reader(8)).collect();
        unread.iter().for_each(&mut hold);
        for _ in 0..MAX_HELD_COUNTS {
            hold(&root);
        }
        assert!(!is_ended(&modest).await && !is_ended(&unread[0]).await && !is_ended(&root).await);
        hold(&greedy);
        assert!(is_ended(&unread[0]).await && !is_ended(&unread[1]).await);
        let other = reader(9);
        hold(&other);
        assert!(is_ended(&unread[1]).await && !is_ended(&unread[2]).await);
        assert!(!is_ended(&modest).await && !is_ended(&root).await && !is_ended(&other).await);
    }

    #[tokio::test]
    async fn only_counts_of_the_same_user_that_are_held_young_and_current_are_shared() {
        let (fake, shared) = (Fake::new(Duration::ZERO), SharedCounts::new(HOUR));
        let (now, snapshot) = (Instant::now(), fake.state().running.snapshot);
        let (mine, theirs) = (reader(7), reader(8));
        let counts = shared.keep(&mine, fake.state(), now);
        let found = shared.find(&reader(7), &snapshot, now).unwrap();
        assert!(Arc::ptr_eq(&found, &counts));
        assert!(shared.find(&theirs, &snapshot, now).is_none(), "of another user");
        assert!(shared.find(&mine, &snapshot, now + HOUR).is_none(), "an hour old");
        let other = Fake::new(Duration::ZERO).state().running.snapshot;
        assert!(shared.find(&mine, &other, now).is_none(), "of another snapshot");
        drop((counts, found));
        assert!(shared.find(&mine, &snapshot, now).is_none(), "no answer holds the counts");
        assert_eq!(shared.held(), 0);
    }
}
