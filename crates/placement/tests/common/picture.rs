//! A picture of the tier's tables, which may refuse any write, and sees to it that nothing is
//! written that a program may still be reading.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;

use bpf::tier::{
    FlowKey, FlowRecord, FlowUse, Key, NetworkState, Overlay, QUARANTINE, Record, State, Verdict,
    Way,
};
use placement::Tables;

/// A write that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no")]
pub struct Refused;

/// A place that programs may read: its content, and since when it is closed.
#[derive(Clone, Debug)]
pub struct Place<T> {
    pub open: Option<T>,
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
pub struct Picture {
    /// Verdicts that there is room for.
    max_flows: u32,
    pub now_ns: Cell<u64>,
    /// Writes until one is refused, and how many are then.
    pub refuse: Cell<(u32, u32)>,
    pub slots: RefCell<HashMap<Key, u32>>,
    /// The moments at which slots lost their keys.
    pub left_ns: RefCell<HashMap<u32, u64>>,
    pub records: RefCell<HashMap<u32, Record>>,
    pub ways: RefCell<HashMap<u32, Place<Way>>>,
    pub networks: RefCell<HashMap<u32, Place<(u32, u32)>>>,
    /// The generations of those that ask, and all that there were.
    pub asking: RefCell<HashMap<u32, u32>>,
    pub generations: RefCell<HashSet<u32>>,
    pub flow_slots: RefCell<HashMap<FlowKey, u32>>,
    /// The moments at which slots lost their flows.
    pub flow_left_ns: RefCell<HashMap<u32, u64>>,
    pub flow_records: RefCell<HashMap<u32, FlowRecord>>,
    pub overlays: RefCell<HashMap<u32, Place<Overlay>>>,
    /// The use of slots.
    pub flow_use: RefCell<HashMap<u32, FlowUse>>,
}

/// Room for endpoints: too little for all.
pub const ROOM: u32 = 8;
/// Room for verdicts.
pub const FLOWS: u32 = 6;

impl Default for Picture {
    fn default() -> Picture {
        Picture::with_flows(FLOWS)
    }
}

impl Picture {
    /// With room for so many verdicts.
    pub fn with_flows(max_flows: u32) -> Picture {
        Picture {
            max_flows,
            now_ns: Cell::default(),
            refuse: Cell::default(),
            slots: RefCell::default(),
            left_ns: RefCell::default(),
            records: RefCell::default(),
            ways: RefCell::default(),
            networks: RefCell::default(),
            asking: RefCell::default(),
            generations: RefCell::default(),
            flow_slots: RefCell::default(),
            flow_left_ns: RefCell::default(),
            flow_records: RefCell::default(),
            overlays: RefCell::default(),
            flow_use: RefCell::default(),
        }
    }

    /// The verdict that a program finds on a packet of this many bytes, which it counts.
    pub fn judge(&self, key: FlowKey, bytes: u64) -> Option<Verdict> {
        let slot = *self.flow_slots.borrow().get(&key)?;
        let record = self.flow_records.borrow()[&slot];
        let generation = self.asking.borrow().get(&record.network).copied();
        let ends = [key.source, key.destination];
        let are_in = ends.iter().all(|address| {
            self.slots.borrow().contains_key(&Key { vni: key.vni, address: *address })
        });
        if !are_in || record.key != key || generation != Some(record.generation) {
            return None;
        }
        let mut used = self.flow_use.borrow_mut();
        let used = used.entry(slot).or_default();
        used.packets += 1;
        used.bytes += bytes;
        used.last_ns = self.now_ns.get();
        Some(record.verdict)
    }

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
        state: NetworkState,
    ) -> Result<(), Refused> {
        self.write()?;
        let mut networks = self.networks.borrow_mut();
        let place = networks.entry(number).or_default();
        let (content, now_ns) = ((vni, overlay), self.now_ns.get());
        self.asking.borrow_mut().remove(&number);
        if let NetworkState::Asks { generation } = state {
            assert!(self.generations.borrow_mut().insert(generation), "{generation} again");
            self.asking.borrow_mut().insert(number, generation);
        }
        match state {
            NetworkState::Closed => place.set(content, State::Closed, now_ns),
            // From one state to another it is the same network.
            _ if place.open.is_some() => assert_eq!(place.open, Some(content)),
            _ => place.set(content, State::Open, now_ns),
        }
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
    fn withdraw(&self, key: Key, slot: u32) -> Result<(), Refused> {
        self.write()?;
        if let Some(used) = self.slots.borrow_mut().remove(&key) {
            assert_eq!(used, slot, "{key:?}");
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
    fn flows(&self) -> u32 {
        self.max_flows
    }
    fn write_flow(&self, slot: u32, record: &FlowRecord) -> Result<(), Refused> {
        self.write()?;
        assert!(slot < self.max_flows);
        let is_read = self.flow_slots.borrow().values().any(|used| *used == slot);
        assert!(!is_read, "slot {slot} is read");
        let left = self.flow_left_ns.borrow().get(&slot).copied();
        let pause = QUARANTINE.as_nanos() as u64;
        assert!(left.is_none_or(|left| left + pause <= self.now_ns.get()), "slot {slot}");
        self.flow_records.borrow_mut().insert(slot, *record);
        Ok(())
    }
    fn publish_flow(&self, key: FlowKey, slot: u32) -> Result<(), Refused> {
        self.write()?;
        let before = self.flow_slots.borrow_mut().insert(key, slot);
        assert_eq!(before, None, "{key:?} leads elsewhere");
        Ok(())
    }
    fn withdraw_flow(&self, key: FlowKey, slot: u32) -> Result<(), Refused> {
        self.write()?;
        if let Some(used) = self.flow_slots.borrow_mut().remove(&key) {
            assert_eq!(used, slot, "{key:?}");
            self.flow_left_ns.borrow_mut().insert(slot, self.now_ns.get());
        }
        Ok(())
    }
    fn flow_use(&self, slot: u32) -> Result<FlowUse, Refused> {
        Ok(self.flow_use.borrow().get(&slot).copied().unwrap_or_default())
    }
}
