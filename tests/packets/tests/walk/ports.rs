//! Ports that come and go beside those of the laboratory: what the others hold and count goes on.

use std::collections::BTreeMap;

use dataplane::counters::PortCounts;
use dataplane::neighbour_queues::PATIENCE_NS;
use dataplane::{
    Ledger, NetdevId, NextHop, PortId, PortInfo, Prefix, RouteTarget, Snapshot, VacatedSlots,
};
use packets::lab::{LAN, Laboratory, host};
use proptest::prelude::*;
use wire::build::PacketBuilder;
use wire::{Address, Family};

/// Ports that come and go.
const GUESTS: usize = 4;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A guest comes into the lowest vacant slot, or goes.
    Toggle(usize),
    /// Packets arrive by a guest, or by a port that stays, and leave at once.
    Pass(usize, usize),
    /// Packets arrive likewise, and wait for a neighbour on a port that stays.
    Wait(usize, usize),
    /// Packets arrive by a port that stays, and wait for a neighbour of a guest.
    WaitFor(usize),
    /// Those that wait are given up.
    GiveUp,
    /// Counters of other room are handed in.
    Exchange,
}

fn step() -> impl Strategy<Value = Step> {
    let (guest, from) = (0..GUESTS, 0..GUESTS + 1);
    prop_oneof![
        4 => guest.clone().prop_map(Step::Toggle),
        2 => (from.clone(), 1usize..4).prop_map(|(from, count)| Step::Pass(from, count)),
        2 => (from, 1usize..4).prop_map(|(from, count)| Step::Wait(from, count)),
        1 => guest.prop_map(Step::WaitFor),
        1 => Just(Step::GiveUp),
        1 => Just(Step::Exchange),
    ]
}

/// The laboratory, and what it counted of ports by their names.
struct World {
    lab: Laboratory,
    /// Slots of the guests that are there.
    guests: [Option<PortId>; GUESTS],
    /// Counts that were handed back.
    counted: BTreeMap<String, PortCounts>,
    received: BTreeMap<String, u64>,
}

/// The network that is on the link of a guest.
fn network(guest: usize) -> Prefix {
    Prefix { address: Address::v4(0x0a14_0000 + ((guest as u32) << 16)), length: 16 }
}

fn names(snapshot: &Snapshot) -> Vec<(PortId, String)> {
    snapshot.ports().map(|(slot, port)| (slot, port.name.clone())).collect()
}

fn vacant_netdev(snapshot: &Snapshot) -> NetdevId {
    let vacant = (0..).map(NetdevId).find(|netdev| !snapshot.has_netdev(*netdev));
    vacant.expect("few netdevs")
}

impl World {
    fn add(&mut self, name: &str, counts: &PortCounts) {
        let sum = self.counted.entry(name.to_owned()).or_default();
        sum.ledger.add(&counts.ledger);
        sum.transmitted.packets += counts.transmitted.packets;
    }

    /// A guest comes or goes. Guests 0 and 1 are on one netdev.
    fn toggle(&mut self, guest: usize) {
        let before = names(&self.lab.snapshot);
        let gone = match self.guests[guest].take() {
            Some(port) => self.lab.change(|sources| Laboratory::without_port(sources, port)),
            None => self.come(guest),
        };
        for (port, counts) in &gone.ports {
            let (_, name) = before.iter().find(|(slot, _)| slot == port).expect("it was there");
            self.add(name, counts);
        }
        for (slot, name) in names(&self.lab.snapshot) {
            for (slot_before, name_before) in &before {
                assert_eq!(slot == *slot_before, name == *name_before, "{name} keeps its slot");
            }
        }
    }

    fn come(&mut self, guest: usize) -> VacatedSlots {
        let snapshot = &self.lab.snapshot;
        let port = PortId(snapshot.sources().ports.vacant() as u16);
        let other = self.guests[..2].iter().flatten().next().filter(|_| guest < 2);
        let netdev = other.map(|other| snapshot.port(*other).netdev);
        let info = PortInfo {
            name: format!("guest{guest}"),
            netdev: netdev.unwrap_or_else(|| vacant_netdev(snapshot)),
            vlan: (guest == 1).then_some(9),
            addresses: Vec::new(),
            ..snapshot.port(LAN).clone()
        };
        self.guests[guest] = Some(port);
        let on_its_link = RouteTarget::Via(NextHop { port, gateway: None });
        self.lab.change(|sources| {
            sources.ports.set(usize::from(port.0), Some(info));
            sources.routes.insert(network(guest), on_its_link);
        })
    }

    /// Packets arrive by a guest, if it is there, or by a port that stays. Returns how many left.
    fn arrive(&mut self, from: usize, count: usize, to: Address) -> Option<usize> {
        let port = self.guests.get(from).copied().unwrap_or(Some(LAN))?;
        let name = self.lab.snapshot.port(port).name.clone();
        *self.received.entry(name).or_default() += count as u64;
        let packet = PacketBuilder::new(host(Family::V4, 1), to).udp(1, 2).ip();
        Some(self.lab.send_all(port, &vec![packet; count]).sent.len())
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Toggle(guest) => self.toggle(guest),
            Step::Pass(from, count) => {
                let sent = self.arrive(from, count, host(Family::V4, 12));
                assert!(sent.is_none_or(|sent| sent == count), "{sent:?}");
            }
            Step::Wait(from, count) => {
                self.arrive(from, count, Address::v4(0x0a0c_0107));
            }
            Step::WaitFor(guest) => {
                let Address { family, value } = network(guest).address;
                if self.guests[guest].is_some() {
                    self.arrive(GUESTS, 1, Address { family, value: value + 1 });
                }
            }
            Step::GiveUp => {
                self.lab.now_ns += PATIENCE_NS;
                self.lab.release();
                assert_eq!(self.lab.waiting(), 0);
            }
            Step::Exchange => {
                let counters = self.lab.exchange_counters();
                for (port, name) in names(&self.lab.snapshot) {
                    self.add(&name, &counters.port(port));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn counts_of_ports_that_come_and_go_sum_up_to_what_was_counted(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World {
            lab: Laboratory::default().live(),
            guests: [None; GUESTS],
            counted: BTreeMap::new(),
            received: BTreeMap::new(),
        };
        for step in steps {
            world.take(step);
        }
        let waiting = world.lab.waiting() as u64;
        let now = world.lab.counters().clone();
        for (port, name) in names(&world.lab.snapshot) {
            world.add(&name, &now.port(port));
        }
        let (mut sent, mut transmitted, mut held) = (0, 0, 0);
        for (name, PortCounts { ledger, transmitted: volume, .. }) in &world.counted {
            let received = world.received.get(name).copied().unwrap_or_default();
            prop_assert_eq!((ledger.received, ledger.imbalance()), (received, 0), "{}", name);
            (sent, held) = (sent + ledger.sent, held + ledger.held);
            transmitted += volume.packets;
        }
        prop_assert_eq!((sent, held), (transmitted, waiting));
        prop_assert_eq!(*now.without_port(), Ledger::default());
    }
}
