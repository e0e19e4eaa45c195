//! Limits on calls in progress, by user, and the end of answers that nobody reads.
//!
//! A call is in progress until its answer is handed over or its stream ends. Each costs a page of
//! its answer at most ([`super::pages`]), so the limits bound the memory that clients take.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use api::{MAX_CALLS, MAX_USER_CALLS, UNREAD_TIME};
use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::fair_turns::{CallerGroup, WorkCaller, WorkTurn};

/// Bytes of an answer that are handed over at a time.
const PIECE_BYTES: usize = 16 << 10;

/// The calls in progress.
#[derive(Clone, Default)]
pub(super) struct CallBudget(Arc<Mutex<CallCounts>>);

/// Calls in progress by caller. A caller without a call has no entry.
#[derive(Default)]
struct CallCounts(HashMap<WorkCaller, usize>);

/// One call in progress; it is counted until this is dropped.
pub(super) struct CallPermit {
    budget: CallBudget,
    caller: WorkCaller,
}

impl CallBudget {
    fn counts(&self) -> MutexGuard<'_, CallCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call of a caller.
    ///
    /// # Errors
    /// The caller, or all callers of a [`CallerGroup`] together, have too many calls in progress.
    pub(super) fn admit(&self, caller: WorkCaller) -> Result<CallPermit, String> {
        let mut counts = self.counts();
        let group = CallerGroup::of(caller);
        let all = counts.0.iter().filter(|(of, _)| CallerGroup::of(**of) == group);
        let all: usize = all.map(|(_, count)| count).sum();
        let own = counts.0.get(&caller).copied().unwrap_or(0);
        let advice = "end commands that follow events, or read their answers";
        if all >= MAX_CALLS {
            return Err(format!(
                "too many calls: {MAX_CALLS} are in progress, which is the limit; {advice}"
            ));
        }
        if group != CallerGroup::Root && own >= MAX_USER_CALLS {
            let whose = match caller {
                WorkCaller::Administrator(user) | WorkCaller::Reader(Some(user)) => {
                    format!("of user {user}")
                }
                WorkCaller::Reader(None) | WorkCaller::Scrape => "of one user".to_owned(),
            };
            return Err(format!(
                "too many calls: {MAX_USER_CALLS} {whose} are in progress, which is the limit of a \
                 user; {advice}"
            ));
        }
        *counts.0.entry(caller).or_default() += 1;
        Ok(CallPermit { budget: self.clone(), caller })
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut counts = self.budget.counts();
        if let Some(own) = counts.0.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                counts.0.remove(&self.caller);
            }
        }
    }
}

/// Progress of an answer.
#[derive(Default)]
struct AnswerProgress {
    polls: AtomicU64,
    /// True from the moment when a part was handed over until the next part is wanted.
    is_unread: AtomicBool,
}

/// Rights to make an answer: a place among the calls in progress and, for a whole answer, a turn.
type AnswerPermit = (CallPermit, Option<WorkTurn>);

/// Body of an answer. It hands over small pieces, so that it lasts until the client has read it.
/// Where the client reads nothing for [`UNREAD_TIME`], its connection ends.
pub(super) struct WatchedBody<B> {
    body: B,
    /// Rest of a frame that was cut.
    rest: Bytes,
    progress: Arc<AnswerProgress>,
    watchdog: Option<AbortHandle>,
    _permit: Option<AnswerPermit>,
}

impl<B> WatchedBody<B> {
    /// Watches a body; `end` ends the connection.
    pub(super) fn new(body: B, permit: AnswerPermit, end: Option<Arc<Notify>>) -> WatchedBody<B> {
        let progress = Arc::<AnswerProgress>::default();
        let watch =
            |end| tokio::spawn(end_unread(progress.clone(), end, UNREAD_TIME)).abort_handle();
        let watchdog = end.map(watch);
        WatchedBody { body, rest: Bytes::new(), progress, watchdog, _permit: Some(permit) }
    }

    /// Returns a body that costs nothing: that of a refusal.
    pub(super) fn unwatched(body: B) -> WatchedBody<B> {
        WatchedBody {
            body,
            rest: Bytes::new(),
            progress: Arc::default(),
            watchdog: None,
            _permit: None,
        }
    }
}

impl AnswerProgress {
    /// Returns whether the client read nothing since an earlier number of polls, and there was
    /// something to read.
    fn is_stalled_since(&self, polls: u64) -> bool {
        self.polls.load(Ordering::Relaxed) == polls && self.is_unread.load(Ordering::Relaxed)
    }
}

/// Ends a connection when an answer waits to be read for a time.
async fn end_unread(progress: Arc<AnswerProgress>, end: Arc<Notify>, unread_time: Duration) {
    loop {
        let polls = progress.polls.load(Ordering::Relaxed);
        tokio::time::sleep(unread_time).await;
        if progress.is_stalled_since(polls) {
            return end.notify_one();
        }
    }
}

impl<B> Drop for WatchedBody<B> {
    fn drop(&mut self) {
        self.watchdog.iter().for_each(AbortHandle::abort);
    }
}

impl<B: Default> Default for WatchedBody<B> {
    fn default() -> WatchedBody<B> {
        WatchedBody::unwatched(B::default())
    }
}

impl<B: Body<Data = Bytes> + Unpin> WatchedBody<B> {
    /// Returns the first piece of a frame, and keeps its rest.
    fn cut(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_data() {
            Ok(mut data) => {
                let piece = data.split_to(data.len().min(PIECE_BYTES));
                self.rest = data;
                Frame::data(piece)
            }
            Err(other) => other,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        this.progress.polls.fetch_add(1, Ordering::Relaxed);
        let rest = std::mem::take(&mut this.rest);
        let polled = match rest.is_empty() {
            true => Pin::new(&mut this.body).poll_frame(context),
            false => Poll::Ready(Some(Ok(Frame::data(rest)))),
        };
        this.progress.is_unread.store(polled.is_ready(), Ordering::Relaxed);
        polled.map_ok(|frame| this.cut(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn calls_of_one_user_keep_neither_others_nor_root_out() {
        let budget = CallBudget::default();
        const ADMIN: u32 = 5;
        let of = |user| match user {
            0 | ADMIN => WorkCaller::Administrator(user),
            user => WorkCaller::Reader(Some(user)),
        };
        let mut held: Vec<CallPermit> = Vec::new();
        let mut admit = |user: u32, count: usize| {
            for _ in 0..count {
                held.push(budget.admit(of(user)).unwrap_or_else(|error| panic!("{error}")));
            }
            budget.admit(of(user)).map(drop)
        };
        let refused = admit(7, MAX_USER_CALLS).unwrap_err();
        assert!(refused.starts_with("too many calls: 32 of user 7 are in progress"), "{refused}");
        assert_eq!(admit(8, 1), Ok(()));
        for user in 9..9 + (MAX_CALLS / MAX_USER_CALLS - 2) as u32 {
            assert!(admit(user, MAX_USER_CALLS).is_err());
        }
        let refused = admit(8, MAX_USER_CALLS - 1).unwrap_err();
        assert!(refused.starts_with("too many calls: 128 are in progress"), "{refused}");
        assert!(admit(ADMIN, MAX_USER_CALLS).is_err(), "an administrator has a bound too");
        assert!(admit(0, MAX_CALLS).is_err());
        held.clear();
        assert!(budget.counts().0.is_empty());
    }

    fn watched(bytes: usize) -> WatchedBody<http_body_util::Full<Bytes>> {
        let permit = CallBudget::default().admit(WorkCaller::Reader(Some(7))).unwrap();
        let body = http_body_util::Full::new(Bytes::from(vec![0; bytes]));
        WatchedBody::new(body, (permit, None), None)
    }

    #[tokio::test]
    async fn large_answer_is_handed_over_in_pieces() {
        let mut body = watched(2 * PIECE_BYTES + 1);
        for bytes in [PIECE_BYTES, PIECE_BYTES, 1] {
            assert!(!body.is_end_stream());
            let piece = body.frame().await.unwrap().unwrap();
            assert_eq!(piece.into_data().unwrap().len(), bytes);
        }
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn only_an_answer_with_unread_pieces_is_stalled() {
        let mut body = watched(3 * PIECE_BYTES);
        let progress = body.progress.clone();
        let polls = || progress.polls.load(Ordering::Relaxed);
        assert!(!progress.is_stalled_since(polls()), "its content is not made yet");
        body.frame().await;
        let seen = polls();
        assert!(progress.is_stalled_since(seen));
        body.frame().await;
        assert!(!progress.is_stalled_since(seen), "the client reads");
    }

    #[tokio::test]
    async fn stalled_answer_ends_its_connection() {
        let (progress, end) = (Arc::<AnswerProgress>::default(), Arc::<Notify>::default());
        progress.is_unread.store(true, Ordering::Relaxed);
        tokio::spawn(end_unread(progress, end.clone(), Duration::from_millis(1)));
        end.notified().await;
    }
}
