//! Counts of one moment, which the long answers of a user share.
//!
//! A long answer holds the counts of its moment until the client has read the answer, and the
//! counts of many SAs and policies take megabytes. So an answer shares the counts of the user's
//! earlier answer if that answer is not read yet and the counts were made less than a second ago.
//! [`HeldParts`] bounds the counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dataplane::Snapshot;
use tokio::sync::OwnedMutexGuard;

use super::held_answers::{AnswerPlace, AnswerReader, HeldParts};
use crate::backend::EntryIter;
use crate::fair_turns::WorkCaller;
use crate::running::CountedState;

/// Age up to which answers share counts.
pub(super) const SHARED_TIME: Duration = Duration::from_secs(1);
/// Counts that the unread answers of a kind of caller hold.
pub(super) const MAX_HELD_COUNTS: usize = 8;

/// Counts that unread answers hold.
#[derive(Clone)]
pub(super) struct SharedCounts {
    shared_time: Duration,
    table: Arc<Mutex<CountsTable>>,
}

struct CountsTable {
    held: HeldParts<CountedState>,
    /// Each while an answer of the caller is begun.
    turns: HashMap<WorkCaller, Weak<tokio::sync::Mutex<()>>>,
}

/// Counts of an answer, and the answer's place among the holders.
pub(super) struct AnswerCounts {
    pub(super) state: Arc<CountedState>,
    pub(super) place: AnswerPlace,
}

/// Returns entries that hold the place of their answer.
pub(super) fn entries_in<E: 'static>(place: AnswerPlace, entries: EntryIter<E>) -> EntryIter<E> {
    Box::new(entries.inspect(move |_| _ = &place))
}

impl SharedCounts {
    pub(super) fn new(shared_time: Duration) -> SharedCounts {
        let table = CountsTable { held: HeldParts::new(MAX_HELD_COUNTS), turns: HashMap::new() };
        SharedCounts { shared_time, table: Arc::new(Mutex::new(table)) }
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
        reader: &AnswerReader,
        snapshot: &Arc<Snapshot>,
        now: Instant,
    ) -> Option<AnswerCounts> {
        let mut table = self.table();
        let (latest, state) = table.held.latest(reader.caller)?;
        let is_young = now.saturating_duration_since(latest.made) < self.shared_time;
        if !is_young || !Arc::ptr_eq(&state.running.snapshot, snapshot) {
            return None;
        }
        Some(AnswerCounts { place: latest.add_answer(reader), state })
    }

    /// Keeps counts that were made for an answer.
    pub(super) fn keep(
        &self,
        reader: &AnswerReader,
        counts: CountedState,
        made: Instant,
    ) -> AnswerCounts {
        let state = Arc::new(counts);
        let place = self.table().held.hold(reader, &state, made);
        AnswerCounts { state, place }
    }

    /// Returns the number of counts that answers hold.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.table().held.held()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake::Fake;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn reader(user: u32) -> AnswerReader {
        let caller = match user {
            0 => WorkCaller::Administrator(0),
            user => WorkCaller::Reader(Some(user)),
        };
        AnswerReader::with_end(caller)
    }

    #[tokio::test]
    async fn user_with_most_counts_gives_way() {
        let (fake, shared) = (Fake::new(Duration::ZERO), SharedCounts::new(Duration::ZERO));
        let now = Instant::now();
        let mut held = Vec::new();
        let mut hold = |reader: &AnswerReader| held.push(shared.keep(reader, fake.state(), now));
        let (modest, greedy, root) = (reader(7), reader(8), reader(0));
        hold(&modest);
        let unread: Vec<_> = (1..MAX_HELD_COUNTS).map(|_| reader(8)).collect();
        unread.iter().for_each(&mut hold);
        for _ in 0..MAX_HELD_COUNTS {
            hold(&root);
        }
        assert!(!modest.is_ended().await && !unread[0].is_ended().await && !root.is_ended().await);
        hold(&greedy);
        assert!(unread[0].is_ended().await && !unread[1].is_ended().await);
        let other = reader(9);
        hold(&other);
        assert!(unread[1].is_ended().await && !unread[2].is_ended().await);
        assert!(!modest.is_ended().await && !root.is_ended().await && !other.is_ended().await);
    }

    #[tokio::test]
    async fn only_counts_of_the_same_user_that_are_held_young_and_current_are_shared() {
        let (fake, shared) = (Fake::new(Duration::ZERO), SharedCounts::new(HOUR));
        let (now, snapshot) = (Instant::now(), fake.state().running.snapshot.clone());
        let (mine, theirs) = (reader(7), reader(8));
        let counts = shared.keep(&mine, fake.state(), now);
        let found = shared.find(&reader(7), &snapshot, now).unwrap();
        assert!(Arc::ptr_eq(&found.state, &counts.state));
        assert!(shared.find(&theirs, &snapshot, now).is_none(), "of another user");
        assert!(shared.find(&mine, &snapshot, now + HOUR).is_none(), "an hour old");
        let other = Fake::new(Duration::ZERO).state().running.snapshot.clone();
        assert!(shared.find(&mine, &other, now).is_none(), "of another snapshot");
        drop((counts, found));
        assert!(shared.find(&mine, &snapshot, now).is_none(), "no answer holds the counts");
        assert_eq!(shared.held(), 0);
    }
}
