use wire::Family;

use super::*;
use crate::kernel_tier::KernelTier;

fn endpoint(number: u32, host: u32) -> Endpoint {
    let key = EndpointKey { vni: Vni::new(7).unwrap(), address: Address::v4(0x0a00_0000 + number) };
    let mac = LinkAddress::new([2, 7, 0, 0, 0, number as u8]);
    Endpoint { key, host: Address::v4(0xc000_0200 + host), host_mac: None, mac }
}

fn put(number: u32, host: u32, revision: Option<u64>) -> Numbered {
    (Wanted::Put(endpoint(number, host)), revision)
}

fn book(room: usize) -> Book {
    Book::new(endpoints::Table::new(room, &[3; 32]).unwrap(), room)
}

fn desk(kind: StoreKind, room: usize, folder: &Path) -> Arc<EndpointDesk> {
    let desk = EndpointDesk::new(KernelTier::off(), Events::new());
    let settings = StoreSettings { kind, endpoints: room as u32 };
    desk.open(book(room), settings, folder).unwrap();
    desk
}

/// Applies a batch, and waits until it is durable.
fn apply(desk: &EndpointDesk, wanted: &[Numbered]) -> AppliedBatch {
    let mut batch = desk.apply(wanted).unwrap();
    let (_, never) = oneshot::channel();
    let durable = std::mem::replace(&mut batch.durable, never);
    assert!(durable.blocking_recv().unwrap().is_ok());
    batch
}

fn revisions(desk: &EndpointDesk) -> Vec<(u128, u128, u64)> {
    let page = desk.page(None, None, 100).unwrap();
    let line = |known: &Known| {
        let Endpoint { key, host, .. } = known.endpoint;
        (key.address.value & 0xff, host.value & 0xff, known.revision)
    };
    page.endpoints.iter().map(line).collect()
}

#[test]
fn changes_without_a_revision_get_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let desk = desk(StoreKind::Memory, 16, folder.path());
    assert_eq!(apply(&desk, &[put(1, 1, None), put(2, 1, None)]).applied, 2);
    assert_eq!(apply(&desk, &[put(3, 1, Some(10)), put(1, 2, None)]).applied, 2);
    assert_eq!(revisions(&desk), [(1, 2, 11), (2, 1, 2), (3, 1, 10)]);
    let late = apply(&desk, &[put(3, 9, Some(9)), put(3, 1, Some(10))]);
    assert_eq!((late.applied, late.stale, late.repeated), (0, 1, 1));
}

#[test]
fn what_was_deleted_does_not_come_back_after_a_restart_either() {
    // AX-12, AX-33, AX-36
    let folder = tempfile::tempdir().unwrap();
    let before = desk(StoreKind::Sqlite, 16, folder.path());
    apply(&before, &[put(1, 1, Some(4)), put(2, 2, Some(5))]);
    let delete = (Wanted::Delete(endpoint(1, 1).key), Some(6));
    assert_eq!(apply(&before, &[delete]).applied, 1);
    before.close();
    assert_eq!(before.apply(&[]).unwrap_err(), NoNetworks);

    let after = desk(StoreKind::Sqlite, 16, folder.path());
    assert_eq!(revisions(&after), [(2, 2, 5)]);
    let late = apply(&after, &[put(1, 1, Some(5)), put(3, 3, None)]);
    assert_eq!((late.applied, late.stale), (1, 1));
    assert_eq!(revisions(&after), [(2, 2, 5), (3, 3, 7)], "numbers go on from the highest");
}

#[test]
fn what_does_not_fit_is_named_and_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let desk = desk(StoreKind::Sqlite, 2, folder.path());
    let nobody = Endpoint { host: Address { family: Family::V4, value: 0 }, ..endpoint(9, 1) };
    let wanted = [put(1, 1, None), (Wanted::Put(nobody), None), put(2, 1, None), put(3, 1, None)];
    let batch = apply(&desk, &wanted);
    assert_eq!(batch.applied, 2);
    let places: Vec<usize> = batch.refused.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [1, 3]);
    assert!(batch.refused[1].1.to_string().contains("at most 2 endpoints"));
    desk.close();
    let store = SqliteStore::open(&folder.path().join(FILE)).unwrap();
    let mut stored = 0;
    let mut store = store;
    store.snapshot(&mut |_| stored += 1).unwrap();
    assert_eq!(stored, 2);
}

#[test]
fn a_table_that_became_too_small_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let before = desk(StoreKind::Sqlite, 16, folder.path());
    apply(&before, &[put(1, 1, None), put(2, 1, None), put(3, 1, None)]);
    before.close();
    let desk = EndpointDesk::new(KernelTier::off(), Events::new());
    let settings = StoreSettings { kind: StoreKind::Sqlite, endpoints: 2 };
    desk.open(book(2), settings, folder.path()).unwrap();
    assert_eq!(desk.counts().unwrap().live, 2);
    let told = desk.events.subscribe().0;
    assert!(told.iter().any(|event| event.message.contains("1 endpoints of the store do not fit")));
}

#[test]
fn without_networks_there_is_nothing_to_change() {
    let desk = EndpointDesk::new(KernelTier::off(), Events::new());
    assert_eq!(desk.apply(&[put(1, 1, None)]).unwrap_err(), NoNetworks);
    assert!(desk.page(None, None, 1).is_err());
    assert_eq!(desk.counts(), None);
}

/// Revisions that a client reads that knows everything up to one.
fn watched(desk: &EndpointDesk, after: u64) -> Result<Vec<u64>, WatchError> {
    let (mut place, _) = desk.watch(Some(after))?;
    let changes = desk.read_log(&mut place, usize::MAX)?;
    Ok(changes.iter().map(Change::revision).collect())
}

#[test]
fn whoever_watches_goes_on_after_a_restart() {
    // AX-32
    let folder = tempfile::tempdir().unwrap();
    let before = desk(StoreKind::Sqlite, 16, folder.path());
    let (mut place, more) = before.watch(None).unwrap();
    apply(&before, &[put(2, 1, Some(4)), put(1, 2, Some(5))]);
    assert!(more.has_changed().unwrap());
    // Key 1 comes late, and stands before key 2 in the order of keys.
    apply(
        &before,
        &[put(4, 1, Some(9)), put(3, 1, Some(6)), (Wanted::Delete(endpoint(2, 1).key), None)],
    );
    // What has no effect is no change.
    apply(&before, &[put(1, 1, Some(1)), put(4, 1, Some(9))]);
    let read = before.read_log(&mut place, 2).unwrap();
    assert_eq!((read.len(), place.resume), (2, 5));
    assert_eq!(watched(&before, 5), Ok(vec![9, 6, 10]));
    before.close();
    assert_eq!(before.read_log(&mut place, 2), Err(NoNetworks.into()));

    let after = desk(StoreKind::Sqlite, 16, folder.path());
    assert_eq!(watched(&after, 5), Ok(vec![9, 6, 10]));
    assert_eq!(watched(&after, 9), Ok(vec![6, 10]), "6 was applied after 9");
    assert_eq!(watched(&after, 10), Ok(vec![]));
    assert_eq!(watched(&after, 11), Err(WatchError::Ahead { after: 11, last: 10 }));
    let (place, _) = after.watch(None).unwrap();
    assert_eq!(place.resume, 10);
}

#[test]
fn a_restart_does_not_hide_what_the_log_has_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let count = log::MAX as u64 + 2;
    let before = desk(StoreKind::Sqlite, count as usize, folder.path());
    let many = |from: u64, to: u64| -> Vec<Numbered> {
        (from..=to).map(|number| put(number as u32, 1, Some(number))).collect()
    };
    apply(&before, &many(1, 3));
    apply(&before, &many(4, count));
    before.close();
    let after = desk(StoreKind::Sqlite, count as usize, folder.path());
    assert_eq!(watched(&after, 1), Err(WatchError::Compacted { after: 1, dropped: 2 }));
    assert_eq!(watched(&after, 3).unwrap().len() as u64, count - 3);
    assert_eq!(watched(&after, count), Ok(vec![]));
}

#[test]
fn more_deletions_than_are_remembered_do_not_hide_endpoints_at_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(&folder.path().join(FILE)).unwrap();
    let change = |(wanted, revision): Numbered| match wanted {
        Wanted::Put(endpoint) => Change::Put { revision: revision.unwrap(), endpoint },
        Wanted::Delete(key) => Change::Delete { revision: revision.unwrap(), key },
    };
    let deletes = (1..9)
        .map(|number| (Wanted::Delete(endpoint(number, 1).key), Some(100 + u64::from(number))));
    let changes =
        deletes.chain([put(200, 1, Some(3))]).map(|wanted| stored_change(&change(wanted)));
    store.commit(&changes.collect::<Vec<_>>(), store::Journal::Nothing).unwrap();
    drop(store);
    let desk = desk(StoreKind::Sqlite, 2, folder.path());
    assert_eq!(revisions(&desk), [(200, 1, 3)]);
    assert_eq!((desk.counts().unwrap().tombstones, desk.counts().unwrap().floor), (2, 106));
}

#[test]
fn deletions_that_are_forgotten_leave_the_store_and_nothing_comes_back() {
    // AX-33, AX-36
    let folder = tempfile::tempdir().unwrap();
    let before = desk(StoreKind::Sqlite, 2, folder.path());
    let delete = |number, revision| (Wanted::Delete(endpoint(number, 1).key), Some(revision));
    apply(&before, &[put(9, 1, Some(3))]);
    apply(
        &before,
        &(1..6).map(|number| delete(number, 10 + u64::from(number))).collect::<Vec<_>>(),
    );
    assert_eq!(before.counts().unwrap().floor, 13);
    // Stale by the floor: the store, which never had the key, must not take it for new.
    assert_eq!(apply(&before, &[put(7, 1, Some(12))]).stale, 1);
    before.close();

    let mut store = SqliteStore::open(&folder.path().join(FILE)).unwrap();
    let mut stored = Vec::new();
    store.snapshot(&mut |change| stored.push(change.revision())).unwrap();
    assert_eq!((stored, store.floor()), (vec![14, 15, 3], 13));
    let mut journaled = Vec::new();
    store.journal(12, &mut |line| journaled.push((line.revision, line.delivered))).unwrap();
    assert_eq!(journaled, [(12, 2), (13, 1), (14, 1), (15, 1)]);
    drop(store);

    let after = desk(StoreKind::Sqlite, 2, folder.path());
    assert_eq!((revisions(&after), after.counts().unwrap().floor), (vec![(9, 1, 3)], 13));
    let late = apply(&after, &[put(1, 1, Some(10)), put(4, 1, Some(13)), put(9, 2, Some(4))]);
    assert_eq!((late.applied, late.stale), (1, 2), "an endpoint that is there goes by itself");
}
