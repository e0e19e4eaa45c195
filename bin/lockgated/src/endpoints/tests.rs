use store::Store;
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
    // AX-33, AX-36
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
