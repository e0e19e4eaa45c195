//! A card behind a connection, as a ledger sees it: what it said last.

use std::collections::HashMap;
use std::sync::Arc;

use card_link::{Found, Request};
use offload::{Capabilities, Card, CardEvent, CardRule, CardSa, Handle, Item, Reading, SaUse, Tag};
use tokio::sync::mpsc::UnboundedSender;

use super::linux::{Carriage, LinuxCard};

/// A card behind a connection.
pub(super) struct LinkedCard {
    capabilities: Capabilities,
    /// Slots of its ports, in the order in which the card counts them.
    ports: Arc<[u16]>,
    found: HashMap<Handle, Reading>,
    /// Right edges of the windows of SAs that open.
    edges: HashMap<Handle, u64>,
    requests: Requests,
}

/// The way to the card.
#[derive(Clone)]
pub(super) enum Requests {
    /// The task that carries them to a process.
    Process(UnboundedSender<Request>),
    /// Linux, which carries the packets.
    Linux(Arc<LinuxCard>),
}

impl LinkedCard {
    pub(super) fn new(capabilities: Capabilities, requests: Requests) -> Self {
        let (found, edges) = (HashMap::new(), HashMap::new());
        LinkedCard { capabilities, ports: Arc::default(), found, edges, requests }
    }

    /// Notes that the card has nothing and can this.
    pub(super) fn begins(&mut self, capabilities: Capabilities) {
        self.capabilities = capabilities;
        self.found.clear();
        self.edges.clear();
    }

    /// Notes all that the card has.
    pub(super) fn take(&mut self, found: &Found, capabilities: Capabilities) {
        self.capabilities = capabilities;
        let as_of_ms = found.at_ms;
        let items = found.items.iter().map(|item| {
            (item.handle, Reading { packets: item.packets, bytes: item.bytes, as_of_ms })
        });
        self.found = items.collect();
        self.edges = found.edges.iter().copied().collect();
    }

    /// The use of an SA at the last look; `None`: the card does not have it.
    pub(super) fn use_of(&self, handle: Handle) -> Option<SaUse> {
        let edge = self.edges.get(&handle).copied().unwrap_or(0);
        Some(SaUse { reading: *self.found.get(&handle)?, edge })
    }

    /// Another connection carries what it is asked.
    pub(super) fn is_reached_by(&mut self, requests: Requests) {
        self.requests = requests;
    }

    /// Numbers its ports anew.
    pub(super) fn has_ports(&mut self, ports: Arc<[u16]>) {
        self.ports = ports;
    }

    /// Asks for all that it has.
    pub(super) fn look(&self, number: u64) {
        self.ask(Request::Look { number });
    }

    fn ask(&self, request: Request) {
        match &self.requests {
            // The task that carries it ends with the daemon.
            Requests::Process(task) => _ = task.send(request),
            Requests::Linux(card) => card.ask(&request),
        }
    }

    /// Asks for an SA whose packets Linux carries.
    pub(super) fn carry(&mut self, tag: Tag, sa: &CardSa, carriage: &Carriage) {
        if let Requests::Linux(card) = &self.requests {
            card.carry(tag, sa, carriage);
        }
    }

    /// The rule as the card numbers ports.
    fn numbered(&self, rule: &CardRule) -> Arc<CardRule> {
        let place = |slot: &u16| self.ports.iter().position(|port| port == slot);
        let mut ports: Vec<u16> =
            rule.ports.iter().filter_map(place).map(|place| place as u16).collect();
        ports.sort_unstable();
        Arc::new(CardRule { ports: ports.into(), ..rule.clone() })
    }
}

impl Card for LinkedCard {
    fn probe(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn place(&mut self, item: &Item, tag: Tag) {
        match item {
            Item::Rule(rule) => self.ask(Request::Place { tag, rule: self.numbered(rule) }),
            Item::Sa(sa) => self.ask(Request::PlaceSa { tag, sa: sa.clone() }),
            Item::Policy(policy) => {
                self.ask(Request::PlacePolicy { tag, policy: policy.clone() });
            }
            _ => {}
        }
    }

    fn withdraw(&mut self, tag: Tag) {
        self.ask(Request::Withdraw { tag });
    }

    /// Nothing: events come by the connection, in their order among looks.
    fn poll(&mut self, _into: &mut Vec<CardEvent>) {}

    fn reading(&self, handle: Handle) -> Option<Reading> {
        self.found.get(&handle).copied()
    }
}
