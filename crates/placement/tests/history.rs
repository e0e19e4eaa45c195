//! Random histories of a gateway, with tables that may refuse any write: what programs can find in
//! them at any moment is what the walk says, and nothing that they may still be reading is written.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;

use bpf::tier::{Key, Overlay, QUARANTINE, Record, State, Way};
use common::*;
use dataplane::{PortId, Snapshot};
use endpoints::{Change, Endpoint};
use placement::{Admission, AdmitError, PortPlace, Residents, Tables};
use proptest::prelude::*;
use proptest::sample::select;
use wire::{Address, Family, LinkAddress};

/// A write that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no")]
struct Refused;

/// A place that programs may read: its content, and since when it is closed.
#[derive(Clone, Debug)]
struct Place<T> {
    open: Option<T>,
    closed_ns: Option<u64>,
}

impl<T> Default for Place<T> {
    fn default() -> Place<T> {
        Place { open: None, closed_ns: None }
    }
}

impl<T: PartialEq + fmt::Debug> Place<T> {
    /// Opens or closes it. Opened it must not have been open lately; closed it keeps its content,
    /// which a program may be in the middle of reading.
    fn set(&mut self, content: T, state: State, now_ns: u64) {
        match state {
            State::Open => {
                assert!(self.open.is_none(), "{content:?}: {:?} is open there", self.open);
                let pause = QUARANTINE.as_nanos() as u64;
                let is_free = self.closed_ns.is_none_or(|closed| closed + pause <= now_ns);
                assert!(is_free, "{content:?}: too early");
                self.open = Some(content);
            }
            State::Closed => {
                assert_eq!(self.open.take(), Some(content));
                self.closed_ns = Some(now_ns);
            }
        }
    }
}

/// The tables, as a picture.
#[derive(Default)]
struct Picture {
    now_ns: Cell<u64>,
    /// Writes until one is refused, and how many are then.
    refuse: Cell<(u32, u32)>,
    slots: RefCell<HashMap<Key, u32>>,
    /// The moments at which slots lost their keys.
    left_ns: RefCell<HashMap<u32, u64>>,
    records: RefCell<HashMap<u32, Record>>,
    ways: RefCell<HashMap<u32, Place<Way>>>,
    networks: RefCell<HashMap<u32, Place<(u32, u32)>>>,
    overlays: RefCell<HashMap<u32, Place<Overlay>>>,
}

/// Room for endpoints: too little for all.
const ROOM: u32 = 8;

impl Picture {
    fn write(&self) -> Result<(), Refused> {
        match self.refuse.get() {
            (0, 0) => Ok(()),
            (0, count) => {
                self.refuse.set((0, count - 1));
                Err(Refused)
            }
            (until, count) => {
                self.refuse.set((until - 1, count));
                Ok(())
            }
        }
    }
}

impl Tables for &Picture {
    type Error = Refused;

    fn endpoints(&self) -> u32 {
        ROOM
    }
    fn networks(&self) -> u32 {
        8
    }
    fn set_overlay(&self, number: u32, overlay: &Overlay, state: State) -> Result<(), Refused> {
        self.write()?;
        let mut overlays = self.overlays.borrow_mut();
        let place = overlays.entry(number).or_default();
        place.set(overlay.clone(), state, self.now_ns.get());
        Ok(())
    }
    fn set_network(
        &self,
        number: u32,
        vni: u32,
        overlay: u32,
        state: State,
    ) -> Result<(), Refused> {
        self.write()?;
        let mut networks = self.networks.borrow_mut();
        networks.entry(number).or_default().set((vni, overlay), state, self.now_ns.get());
        Ok(())
    }
    fn write_record(&self, slot: u32, record: &Record) -> Result<(), Refused> {
        self.write()?;
        assert!(slot < ROOM);
        assert!(!self.slots.borrow().values().any(|used| *used == slot), "slot {slot} is read");
        let left = self.left_ns.borrow().get(&slot).copied();
        let pause = QUARANTINE.as_nanos() as u64;
        assert!(left.is_none_or(|left| left + pause <= self.now_ns.get()), "slot {slot}");
        self.records.borrow_mut().insert(slot, *record);
        Ok(())
    }
    fn publish(&self, key: Key, slot: u32) -> Result<(), Refused> {
        self.write()?;
        assert_eq!(self.slots.borrow_mut().insert(key, slot), None, "{key:?} leads elsewhere");
        Ok(())
    }
    fn withdraw(&self, key: Key) -> Result<(), Refused> {
        self.write()?;
        if let Some(slot) = self.slots.borrow_mut().remove(&key) {
            self.left_ns.borrow_mut().insert(slot, self.now_ns.get());
        }
        Ok(())
    }
    fn set_way(&self, number: u32, way: &Way, state: State) -> Result<(), Refused> {
        self.write()?;
        assert!((1..=2 * ROOM).contains(&number));
        let mut ways = self.ways.borrow_mut();
        ways.entry(number).or_default().set(*way, state, self.now_ns.get());
        Ok(())
    }
    fn add_exit(&self, _: u32) -> Result<(), Refused> {
        self.write()
    }
    fn hits(&self, _: u32) -> Result<u64, Refused> {
        Ok(0)
    }
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Put(Endpoint),
    Delete(Endpoint),
    /// One of those that were put.
    Admit(usize),
    /// Groups judge all networks from now on, or one; a port goes or comes.
    Change {
        judged: bool,
        has_dmz: bool,
    },
    Wait(u64),
    /// After so many writes so many are refused.
    Refuse(u32, u32),
}

fn a_step() -> impl Strategy<Value = Step> {
    let pause = QUARANTINE.as_nanos() as u64;
    prop_oneof![
        4 => an_endpoint().prop_map(Step::Put),
        1 => an_endpoint().prop_map(Step::Delete),
        10 => any::<usize>().prop_map(Step::Admit),
        1 => (prop::bool::weighted(0.2), prop::bool::weighted(0.7))
            .prop_map(|(judged, has_dmz)| Step::Change { judged, has_dmz }),
        3 => select(vec![1, pause - 1, pause, 3 * pause]).prop_map(Step::Wait),
        1 => (0u32..6, 1u32..3).prop_map(|(until, count)| Step::Refuse(until, count)),
    ]
}

fn place(has_dmz: bool) -> impl Fn(PortId) -> Option<PortPlace> + Copy {
    move |port| place_of(port).filter(|_| port != DMZ || has_dmz)
}

/// Checks that all that programs find is what the walk says.
fn check(picture: &Picture, snapshot: &Snapshot, place_of: impl Fn(PortId) -> Option<PortPlace>) {
    let overlays = snapshot.overlays().unwrap();
    let networks = picture.networks.borrow();
    for (vni, overlay) in networks.values().filter_map(|place| place.open) {
        let network = overlays.networks().find(|network| network.vni.get() == vni).unwrap();
        assert!(snapshot.is_open_below(network), "network {vni}");
        assert_eq!(u32::from(network.overlay.0), overlay);
    }
    for (key, slot) in picture.slots.borrow().iter() {
        let record = picture.records.borrow()[slot];
        assert_eq!(record.key, *key);
        let Some((vni, number)) = networks.get(&record.network).and_then(|place| place.open) else {
            continue;
        };
        if vni != key.vni {
            continue;
        }
        let address = Address::v4(key.address.into());
        let key = endpoints::EndpointKey { vni: wire::Vni::new(vni).unwrap(), address };
        let found = overlays.endpoints().find(key).expect("an endpoint that there is");
        assert_eq!((found.host, found.mac.bytes()), (Address::v4(record.host.into()), record.mac));
        let overlay = &overlays.overlays()[number as usize];
        for (way, host_mac) in [(record.way, found.host_mac), (record.answers, None)] {
            let ways = picture.ways.borrow();
            let Some(way) = ways.get(&way).and_then(|place| place.open) else { continue };
            let right = snapshot.way_below(overlay, found.host, host_mac).expect("a way");
            let place = place_of(right.port).expect("a port that is there");
            let Way { host, ifindex, vlan, mtu, destination, source } = way;
            assert_eq!(host, record.host);
            assert_eq!(destination, right.mac.bytes());
            assert_eq!(PortPlace { ifindex, vlan, mac: source, mtu }, place);
        }
    }
}

// AX-34
#[test]
fn whatever_happens_programs_find_what_the_walk_says() {
    let admitted = Cell::new([0u64; 4]);
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() };
    proptest!(config, |(steps in prop::collection::vec(a_step(), 1..150))| {
        let picture = Picture::default();
        let mut residents = Residents::new(&picture);
        let (mut book, mut revision, mut known) = (book_of(&[]), 1, Vec::new());
        let (mut running, mut has_dmz) = (snapshot(book.table(), false), true);
        picture.now_ns.set(1);
        residents.widen(&running, place(true), 1).unwrap();
        for step in steps {
            let now_ns = picture.now_ns.get();
            let done = match step {
                Step::Put(endpoint) => {
                    revision += 1;
                    book.apply(&[Change::Put { revision, endpoint }]);
                    known.push(endpoint.key);
                    residents.withdraw(endpoint.key, now_ns)
                }
                Step::Delete(endpoint) => {
                    revision += 1;
                    book.apply(&[Change::Delete { revision, key: endpoint.key }]);
                    residents.withdraw(endpoint.key, now_ns)
                }
                Step::Admit(_) if known.is_empty() => Ok(()),
                Step::Admit(which) => {
                    let key = known[which % known.len()];
                    let admission = residents.admit(key, &running, place(has_dmz), now_ns);
                    let mut counts = admitted.get();
                    match &admission {
                        Ok(Admission::Admitted) => counts[0] += 1,
                        Ok(Admission::Full) => counts[1] += 1,
                        Ok(_) => counts[2] += 1,
                        Err(_) => counts[3] += 1,
                    }
                    admitted.set(counts);
                    match admission {
                        Ok(admission) => {
                            let has = residents.has(key);
                            let is_in = [Admission::Admitted, Admission::Resident];
                            prop_assert_eq!(has, is_in.contains(&admission));
                            let family = key.address.family;
                            prop_assert!(!has || family == Family::V4);
                            Ok(())
                        }
                        Err(AdmitError::RolledBack(_)) => Ok(()),
                        Err(AdmitError::Left(error)) => Err(error),
                    }
                }
                Step::Change { judged, has_dmz: has } => {
                    let next = snapshot(book.table(), judged);
                    let narrowed = residents.narrow(&next, place(has), now_ns);
                    if narrowed.is_ok() {
                        // Both hold while workers change over.
                        check(&picture, &running, place(has_dmz));
                        check(&picture, &next, place(has));
                    }
                    (running, has_dmz) = (next, has);
                    narrowed.and_then(|()| residents.widen(&running, place(has), now_ns))
                }
                Step::Wait(ns) => {
                    picture.now_ns.set(now_ns + ns);
                    let stranded = residents.stranded();
                    let mut left = stranded.into_iter();
                    left.try_for_each(|key| residents.withdraw(key, now_ns + ns))
                        .and_then(|()| residents.widen(&running, place(has_dmz), now_ns + ns))
                }
                Step::Refuse(until, count) => {
                    picture.refuse.set((until, count));
                    Ok(())
                }
            };
            // Then the lease ends, and nothing is found at all.
            if done.is_err() {
                return Ok(());
            }
            check(&picture, &running, place(has_dmz));
        }
    });
    let [admitted, full, not, refused] = admitted.get();
    println!(
        "{admitted} admitted, {full} without room, {not} ineligible or there, {refused} refused"
    );
    assert!(admitted > 1000 && full > 20 && not > 1000 && refused > 30);
}

// AX-14
#[test]
fn a_full_tier_takes_no_more_and_gives_nobody_up_by_itself() {
    let picture = Picture::default();
    let mut residents = Residents::new(&picture);
    let endpoint = |number: u8| Endpoint {
        key: endpoints::EndpointKey { vni: vni(PLAIN), address: tenant(number) },
        host: v4(HOSTS[0]),
        host_mac: None,
        mac: LinkAddress::new(mac_of(number)),
    };
    let all: Vec<Endpoint> = (1..=40).map(endpoint).collect();
    let snapshot = snapshot(&table_of(&all), false);
    residents.widen(&snapshot, place_of, 0).unwrap();
    for (number, endpoint) in all.iter().enumerate() {
        let admission = residents.admit(endpoint.key, &snapshot, place_of, 0).unwrap();
        let fits = number < ROOM as usize;
        assert_eq!(admission, if fits { Admission::Admitted } else { Admission::Full });
    }
    let counts = residents.counts();
    assert_eq!((counts.resident, counts.max), (ROOM as usize, ROOM as usize));
    // A place that was given up is free a second later.
    residents.withdraw(all[3].key, 10).unwrap();
    let pause = QUARANTINE.as_nanos() as u64;
    for (now_ns, outcome) in [(10 + pause - 1, Admission::Full), (10 + pause, Admission::Admitted)]
    {
        picture.now_ns.set(now_ns);
        assert_eq!(residents.admit(all[30].key, &snapshot, place_of, now_ns).unwrap(), outcome);
    }
}
