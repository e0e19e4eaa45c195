//! Long answers, page by page: all of one moment, and made as the client reads.
//!
//! An answer holds the snapshot of its moment and a position. So an unread answer costs a page and
//! an entry, however long the answer is.

use std::iter::Peekable;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use api::{Message, PAGE_ENTRIES};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::{Response, Status};

use crate::backend::EntryIter;

/// The stream of an answer.
pub(super) type Pages<P> = Pin<Box<dyn Stream<Item = Result<P, Status>> + Send>>;

/// Encoded size at which a page ends, bytes. The last entry may exceed it.
pub(super) const PAGE_BYTES: usize = 64 << 10;

/// An entry of a page.
pub(super) trait PageEntry: Unpin {
    /// Encoded size, bytes.
    fn bytes(&self) -> usize;
}

impl<M: Message + Unpin> PageEntry for M {
    fn bytes(&self) -> usize {
        self.encoded_len()
    }
}

/// Answers with entries, page by page; without any, with one page that has none. `page` makes the
/// message of some entries. Threads for blocking work make the entries. If the daemon stops
/// meanwhile the answer ends with an error, so that nobody takes a part for the whole.
pub(super) fn answer<E: PageEntry + Send + 'static, P: Send + 'static>(
    entries: EntryIter<E>,
    ended: watch::Receiver<()>,
    page: impl FnMut(Vec<E>) -> P + Send + Unpin + 'static,
) -> Response<Pages<P>> {
    let state = PageState::Waiting(entries.peekable());
    Response::new(Box::pin(EntryPages { state, ended, page, is_first: true }))
}

/// Entries behind a position.
type RestOfEntries<E> = Peekable<EntryIter<E>>;

/// Stream of an answer.
struct EntryPages<E, F> {
    state: PageState<E>,
    ended: watch::Receiver<()>,
    page: F,
    is_first: bool,
}

/// State between two pages.
enum PageState<E> {
    Waiting(RestOfEntries<E>),
    Making(JoinHandle<(Vec<E>, Option<RestOfEntries<E>>)>),
    Over,
}

/// Makes the entries of a page. `None`: no entry is left.
fn fill<E: PageEntry>(mut rest: RestOfEntries<E>) -> (Vec<E>, Option<RestOfEntries<E>>) {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while entries.len() < PAGE_ENTRIES && bytes < PAGE_BYTES {
        let Some(entry) = rest.next() else { return (entries, None) };
        bytes += entry.bytes();
        entries.push(entry);
    }
    let is_more = rest.peek().is_some();
    (entries, is_more.then_some(rest))
}

impl<E, F, P> Stream for EntryPages<E, F>
where
    E: PageEntry + Send + 'static,
    F: FnMut(Vec<E>) -> P + Unpin,
{
    type Item = Result<P, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let PageState::Waiting(_) = &this.state {
            let PageState::Waiting(rest) = std::mem::replace(&mut this.state, PageState::Over)
            else {
                return Poll::Ready(None);
            };
            if this.ended.has_changed().is_err() {
                return Poll::Ready(Some(Err(Status::unavailable("lockgated is stopping"))));
            }
            this.state = PageState::Making(tokio::task::spawn_blocking(move || fill(rest)));
        }
        let PageState::Making(job) = &mut this.state else { return Poll::Ready(None) };
        let made = ready!(Pin::new(job).poll(context));
        this.state = PageState::Over;
        let Ok((entries, rest)) = made else {
            return Poll::Ready(Some(Err(Status::internal("internal error: report it"))));
        };
        this.state = rest.map_or(PageState::Over, PageState::Waiting);
        if entries.is_empty() && !this.is_first {
            return Poll::Ready(None);
        }
        this.is_first = false;
        Poll::Ready(Some(Ok((this.page)(entries))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio_stream::StreamExt;

    use super::*;

    /// Reads all pages, as lists of numbers.
    async fn read(count: u64) -> Vec<Vec<u64>> {
        let (_goes_on, ended) = watch::channel(());
        let pages = answer(Box::new(1..count + 1), ended, |entries| entries).into_inner();
        pages.map(Result::unwrap).collect().await
    }

    #[tokio::test]
    async fn every_entry_is_on_one_page_in_its_order_and_no_page_is_larger_than_it_may_be() {
        assert_eq!(read(0).await, [Vec::<u64>::new()]);
        let most = PAGE_ENTRIES as u64;
        for count in [1, most - 1, most, most + 1, 3 * most] {
            let pages = read(count).await;
            assert_eq!(pages.len(), (count as usize).div_ceil(PAGE_ENTRIES));
            assert!(pages.iter().all(|page| (1..=PAGE_ENTRIES).contains(&page.len())));
            assert!(pages.concat().into_iter().eq(1..count + 1));
        }
    }

    #[tokio::test]
    async fn large_entries_make_small_pages() {
        let (_goes_on, ended) = watch::channel(());
        let entries = (0..40).map(|_| "x".repeat(PAGE_BYTES / 4));
        let pages = answer(Box::new(entries), ended, |entries| entries.len()).into_inner();
        let pages: Vec<usize> = pages.map(Result::unwrap).collect().await;
        assert_eq!(pages, [4; 10]);
    }

    #[tokio::test]
    async fn an_answer_that_a_stop_cuts_off_ends_with_an_error() {
        let (goes_on, ended) = watch::channel(());
        let entries = Box::new(1..3 * PAGE_ENTRIES as u64);
        let mut pages = answer(entries, ended, |entries| entries).into_inner();
        assert_eq!(pages.next().await.unwrap().unwrap().len(), PAGE_ENTRIES);
        drop(goes_on);
        assert_eq!(pages.next().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(pages.next().await.is_none());
    }

    #[tokio::test]
    async fn entries_are_made_as_they_are_read() {
        let (_goes_on, ended) = watch::channel(());
        let made = Arc::<AtomicUsize>::default();
        let counts = made.clone();
        let entries = (0..u64::MAX).inspect(move |_| _ = counts.fetch_add(1, Ordering::Relaxed));
        let mut pages = answer(Box::new(entries), ended, |entries| entries).into_inner();
        for page in 1..4 {
            pages.next().await.unwrap().unwrap();
            assert_eq!(made.load(Ordering::Relaxed), page * PAGE_ENTRIES + 1);
        }
    }
}
