//! A card behind a connection, as a ledger sees it: what it said last.

use std::collections::HashMap;
use std::sync::Arc;

use card_link::{Found, Request};
use offload::{Capabilities, Card, CardEvent, CardRule, Handle, Item, Reading, Tag};
use tokio::sync::mpsc::UnboundedSender;

/// A card behind a connection.
pub(super) struct LinkedCard {
    capabilities: Capabilities,
    /// Slots of its ports, in the order in which the card counts them.
    ports: Arc<[u16]>,
    found: HashMap<Handle, Reading>,
    requests: UnboundedSender<Request>,
}

impl LinkedCard {
    pub(super) fn new(capabilities: Capabilities, requests: UnboundedSender<Request>) -> Self {
        LinkedCard { capabilities, ports: Arc::default(), found: HashMap::new(), requests }
    }

    /// Notes that the card has nothing and can this.
    pub(super) fn begins(&mut self, capabilities: Capabilities) {
        self.capabilities = capabilities;
        self.found.clear();
    }

    /// Notes all that the card has.
    pub(super) fn take(&mut self, found: &Found, capabilities: Capabilities) {
        self.capabilities = capabilities;
        let as_of_ms = found.at_ms;
        let items = found.items.iter().map(|item| {
            (item.handle, Reading { packets: item.packets, bytes: item.bytes, as_of_ms })
        });
        self.found = items.collect();
    }

    /// Another connection carries what it is asked.
    pub(super) fn is_reached_by(&mut self, requests: UnboundedSender<Request>) {
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
        // The task that carries it ends with the daemon.
        let _ = self.requests.send(request);
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
        // Rules are all that is planned.
        if let Item::Rule(rule) = item {
            self.ask(Request::Place { tag, rule: self.numbered(rule) });
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
