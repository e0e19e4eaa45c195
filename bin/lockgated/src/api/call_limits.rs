//! Limits of each call. `docs/LIMITS.md` has a row for each; a test compares both with the API.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use api::MAX_WHOLE_ANSWERS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Right that a call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallRight {
    /// Membership of group `lockgate`, which opens the socket.
    Reader,
    /// Root, or membership of group `lockgate-admin`.
    Administrator,
}

/// Largest size of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestSize {
    /// [`api::MAX_SMALL_REQUEST_BYTES`].
    Small,
    /// Size of a configuration; from readers [`api::MAX_SMALL_REQUEST_BYTES`].
    Large,
}

/// Memory that an answer takes until it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnswerKind {
    /// A page, and the snapshot of its moment.
    Paged,
    /// The whole answer, whose size grows with the configuration. A user makes one at a time, all
    /// users together [`MAX_WHOLE_ANSWERS`].
    Whole,
}

/// Limits of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimit {
    /// Name in the API.
    pub(super) name: &'static str,
    /// Right of the caller, for the test that compares the table with docs/LIMITS.md.
    #[cfg_attr(not(test), expect(dead_code))]
    pub(super) right: CallRight,
    pub(super) request: RequestSize,
    pub(super) answer: AnswerKind,
}

const fn reader(name: &'static str, answer: AnswerKind) -> CallLimit {
    CallLimit { name, right: CallRight::Reader, request: RequestSize::Small, answer }
}

const fn change(name: &'static str, request: RequestSize) -> CallLimit {
    CallLimit { name, right: CallRight::Administrator, request, answer: AnswerKind::Paged }
}

/// The limits of all calls.
pub(super) const CALL_LIMITS: [CallLimit; 31] = [
    reader("ShowStatus", AnswerKind::Whole),
    reader("ShowPorts", AnswerKind::Whole),
    reader("ShowPeers", AnswerKind::Paged),
    reader("ShowSecurityAssociations", AnswerKind::Paged),
    reader("ShowPolicies", AnswerKind::Paged),
    reader("ShowGroups", AnswerKind::Whole),
    reader("ShowPlacement", AnswerKind::Whole),
    reader("ShowConnections", AnswerKind::Paged),
    reader("ShowCache", AnswerKind::Whole),
    reader("ShowCacheEntries", AnswerKind::Whole),
    reader("ShowNeighbours", AnswerKind::Whole),
    reader("ShowRoutes", AnswerKind::Whole),
    reader("ShowCounters", AnswerKind::Whole),
    reader("Explain", AnswerKind::Whole),
    reader("Export", AnswerKind::Paged),
    reader("ShowEndpoints", AnswerKind::Paged),
    reader("WatchEndpoints", AnswerKind::Paged),
    reader("ShowRevisions", AnswerKind::Whole),
    reader("Events", AnswerKind::Paged),
    change("ClearConnections", RequestSize::Small),
    change("Apply", RequestSize::Large),
    change("Confirm", RequestSize::Small),
    change("Rollback", RequestSize::Small),
    change("Save", RequestSize::Small),
    change("ChangePolicies", RequestSize::Large),
    change("PutSecurityAssociations", RequestSize::Small),
    change("DeleteSecurityAssociations", RequestSize::Small),
    change("ReserveSpi", RequestSize::Small),
    change("ChangeEndpoints", RequestSize::Large),
    change("WatchAcquires", RequestSize::Small),
    change("Capture", RequestSize::Small),
];

/// Returns the limits of the call with this path. `None`: there is no such call.
pub(super) fn limit_of(path: &str) -> Option<&'static CallLimit> {
    let name = path.rsplit('/').next()?;
    CALL_LIMITS.iter().find(|limit| limit.name == name)
}

/// Turns of whole answers: a user who is not root makes one at a time.
#[derive(Clone)]
pub(super) struct AnswerTurns(Arc<TurnTable>);

struct TurnTable {
    root: Arc<Semaphore>,
    others: Arc<Semaphore>,
    /// Each while a call of the user waits or is in progress.
    users: Mutex<HashMap<Option<u32>, Weak<Semaphore>>>,
}

/// A turn; the next call of the user begins when this is dropped.
pub(super) struct AnswerTurn {
    _of_all: Option<OwnedSemaphorePermit>,
    _of_user: Option<OwnedSemaphorePermit>,
}

impl Default for AnswerTurns {
    fn default() -> AnswerTurns {
        let [root, others] = [(); 2].map(|()| Arc::new(Semaphore::new(MAX_WHOLE_ANSWERS)));
        AnswerTurns(Arc::new(TurnTable { root, others, users: Mutex::default() }))
    }
}

impl AnswerTurns {
    /// Waits for the turn of a user.
    pub(super) async fn take(&self, user: Option<u32>) -> AnswerTurn {
        let (all, of_user) = match user {
            Some(0) => (&self.0.root, None),
            user => (&self.0.others, Some(self.of_user(user))),
        };
        // Nobody closes them; were one closed, more answers at a time would do no harm.
        let _of_user = match of_user {
            Some(turns) => turns.acquire_owned().await.ok(),
            None => None,
        };
        AnswerTurn { _of_all: all.clone().acquire_owned().await.ok(), _of_user }
    }

    fn of_user(&self, user: Option<u32>) -> Arc<Semaphore> {
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = users.get(&user).and_then(Weak::upgrade) {
            return turns;
        }
        let turns = Arc::new(Semaphore::new(1));
        users.insert(user, Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    /// Each line of the table of calls in the document: `| Name | right | … |`.
    #[test]
    fn every_call_has_its_limits_here_and_a_row_in_the_document() {
        let document = include_str!("../../../../docs/LIMITS.md");
        let limits: Vec<&str> = CALL_LIMITS.iter().map(|limit| limit.name).collect();
        for name in api::CALL_NAMES {
            assert!(limits.contains(name), "{name} has no limits");
        }
        assert_eq!(limits.len(), api::CALL_NAMES.len(), "a call is gone, and its limits are not");
        for CallLimit { name, right, request, answer } in CALL_LIMITS {
            let row = document.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/LIMITS.md has no row of {name}"));
            let right = match right {
                CallRight::Reader => "reader",
                CallRight::Administrator => "administrator",
            };
            let request = match request {
                RequestSize::Small => "64 KiB",
                RequestSize::Large => "257 MiB",
            };
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!((cells[2], cells[3]), (right, request), "{row}");
            let is_whole = cells[4].starts_with("whole");
            assert_eq!(is_whole, answer == AnswerKind::Whole, "{row}");
        }
    }

    #[tokio::test]
    async fn user_makes_one_whole_answer_at_a_time() {
        let turns = AnswerTurns::default();
        let first = turns.take(Some(7)).await;
        let mut second = Box::pin(turns.take(Some(7)));
        let is_waiting =
            std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
        assert!(is_waiting.await);
        drop(turns.take(Some(8)).await);
        let of_root = [turns.take(Some(0)).await, turns.take(Some(0)).await];
        drop(first);
        drop(second.await);
        drop(of_root);
        turns.take(Some(9)).await;
        assert_eq!(turns.0.users.lock().unwrap().len(), 1, "users without a call have no entry");
    }
}
