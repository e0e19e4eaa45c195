//! Watching endpoints over the API.

use config::{StoreKind, StoreSettings};
use endpoints::Table;
use v1::endpoint_change::Change;

use super::*;

/// Opens a table of endpoints in the fake's desk.
fn open(fake: &Fake, room: usize) {
    let book = endpoints::Book::new(Table::new(room, &[3; 32]).unwrap(), room);
    let settings = StoreSettings { kind: StoreKind::Memory, endpoints: room as u32 };
    fake.endpoints().open(book, settings, Path::new("/nowhere")).unwrap();
}

fn put(number: u32, revision: u64) -> v1::EndpointChange {
    let [_, a, b, c] = number.to_be_bytes();
    let put = v1::Endpoint {
        vni: 7,
        address: format!("10.{a}.{b}.{c}"),
        host: "192.0.2.12".into(),
        host_mac: None,
        mac: "02:07:00:00:00:02".into(),
        revision,
    };
    v1::EndpointChange { change: Some(Change::Put(put)) }
}

/// Applies a batch, and waits until it is answered.
fn apply(fake: &Fake, changes: Vec<v1::EndpointChange>) {
    let numbered = changes.iter().map(|change| crate::api::endpoints::read(change).unwrap());
    let batch = fake.endpoints().apply(&numbered.collect::<Vec<_>>()).unwrap();
    assert_eq!(batch.applied, changes.len() as u64);
}

fn revisions(watched: &v1::EndpointsWatched) -> Vec<u64> {
    let revision = |change: &v1::EndpointChange| match change.change.as_ref().unwrap() {
        Change::Put(put) => put.revision,
        Change::Delete(name) => name.revision,
    };
    watched.changes.iter().map(revision).collect()
}

#[tokio::test]
async fn changes_are_sent_from_a_revision_on_and_then_as_they_come() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    let ask = |after| v1::EndpointsWatch { after };
    let without = client.watch_endpoints(ask(None)).await.unwrap_err();
    assert_eq!(without.code(), Code::FailedPrecondition);
    open(&fake, 64);
    apply(&fake, vec![put(1, 4), put(2, 5)]);
    let mut from_4 = client.watch_endpoints(ask(Some(4))).await.unwrap().into_inner();
    let mut from_now = client.watch_endpoints(ask(None)).await.unwrap().into_inner();
    let first = from_4.message().await.unwrap().unwrap();
    assert_eq!((revisions(&first), first.resume_after), (vec![5], 5));
    let first = from_now.message().await.unwrap().unwrap();
    assert_eq!((revisions(&first), first.resume_after), (vec![], 5));
    apply(&fake, vec![put(3, 9), put(4, 8)]);
    for stream in [&mut from_4, &mut from_now] {
        let next = stream.message().await.unwrap().unwrap();
        assert_eq!((revisions(&next), next.resume_after), (vec![9, 8], 8));
    }
    let ahead = client.watch_endpoints(ask(Some(10))).await.unwrap_err();
    assert_eq!(ahead.code(), Code::FailedPrecondition);
    assert!(ahead.message().contains("Take the whole table first"), "{ahead}");
    server.stop().await;
}

#[tokio::test]
async fn a_slow_watcher_is_cut_off_with_the_revision_to_go_on_from() {
    let (_directory, fake, server, mut client) = lab(Duration::ZERO).await;
    open(&fake, 1 << 19);
    let ask = v1::EndpointsWatch { after: None };
    let mut stream = client.watch_endpoints(ask).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().resume_after, 0);
    // More than the log, the channel and the connection's buffers hold; the client does not read.
    for batch in 0..64 {
        apply(&fake, (0..4096).map(|i| put(batch * 4096 + i, 0)).collect());
        tokio::task::yield_now().await;
    }
    let mut last = 0;
    let error = loop {
        match stream.message().await {
            Ok(Some(watched)) => {
                assert_eq!(revisions(&watched).first(), Some(&(last + 1)), "none is missing");
                last = watched.resume_after;
            }
            Ok(None) => panic!("the stream ends with a reason"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::Aborted);
    let expected = format!("you read too slowly: watch again after revision {last}");
    assert_eq!(error.message(), expected);
    // It went so far behind that the log does not reach back.
    let again = v1::EndpointsWatch { after: Some(last) };
    let error = client.watch_endpoints(again).await.unwrap_err();
    assert!(error.message().contains("too old"), "{error}");
    server.stop().await;
}
