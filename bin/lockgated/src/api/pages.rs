//! Long answers, page by page: all of one moment, and made as the client reads.

use std::iter;
use std::pin::Pin;

use api::PAGE_ENTRIES;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Response, Status};

/// The stream of an answer.
pub(super) type Pages<P> = Pin<Box<dyn Stream<Item = Result<P, Status>> + Send>>;

/// Answers with entries, page by page; without any, with one page that has none. `page` makes the
/// message of some entries. If the daemon stops meanwhile the answer ends with an error, so that
/// nobody takes a part for the whole.
pub(super) fn answer<E: Send + 'static, P: Send + 'static>(
    entries: Vec<E>,
    ended: watch::Receiver<()>,
    mut page: impl FnMut(Vec<E>) -> P + Send + 'static,
) -> Response<Pages<P>> {
    let mut rest = Some(entries.into_iter());
    let pages = iter::from_fn(move || {
        let mut entries = rest.take()?;
        if ended.has_changed().is_err() {
            return Some(Err(Status::unavailable("lockgated is stopping")));
        }
        let message = page(entries.by_ref().take(PAGE_ENTRIES).collect());
        rest = (entries.len() > 0).then_some(entries);
        Some(Ok(message))
    });
    Response::new(Box::pin(tokio_stream::iter(pages)))
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    /// Reads all pages, as lists of numbers.
    async fn read(count: usize) -> Vec<Vec<usize>> {
        let (_goes_on, ended) = watch::channel(());
        let pages = answer((0..count).collect(), ended, |entries| entries).into_inner();
        pages.map(Result::unwrap).collect().await
    }

    #[tokio::test]
    async fn every_entry_is_on_one_page_in_its_order_and_no_page_is_larger_than_it_may_be() {
        assert_eq!(read(0).await, [Vec::<usize>::new()]);
        for count in [1, PAGE_ENTRIES - 1, PAGE_ENTRIES, PAGE_ENTRIES + 1, 3 * PAGE_ENTRIES] {
            let pages = read(count).await;
            assert_eq!(pages.len(), count.div_ceil(PAGE_ENTRIES));
            assert!(pages.iter().all(|page| (1..=PAGE_ENTRIES).contains(&page.len())));
            assert!(pages.concat().into_iter().eq(0..count));
        }
    }

    #[tokio::test]
    async fn an_answer_that_a_stop_cuts_off_ends_with_an_error() {
        let (goes_on, ended) = watch::channel(());
        let entries = vec![(); 3 * PAGE_ENTRIES];
        let mut pages = answer(entries, ended, |entries| entries).into_inner();
        assert_eq!(pages.next().await.unwrap().unwrap().len(), PAGE_ENTRIES);
        drop(goes_on);
        assert_eq!(pages.next().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(pages.next().await.is_none());
    }
}
