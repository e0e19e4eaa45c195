//! The card.

use std::collections::BTreeMap;
use std::sync::Arc;

use offload::{
    Capabilities, Card, CardEvent, CardRule, CardSa, Handle, Item, Limit, Reading, Refusal,
    RefusalKind, Tag,
};

use crate::esp::{EspCounts, LoadedSa};
use crate::faults::{Faults, Notice};
use crate::matcher::Table;
use crate::parse::parse;
use crate::random::Random;
use policies::LoadedPolicy;

/// Receive queues, unless [`EmulatedCard::set_queues`] says otherwise.
const QUEUES: usize = 4;
/// Numbers that drivers give with their refusals.
const NO_SPACE: i32 = -28;
const NOT_SUPPORTED: i32 = -95;
const INPUT_OUTPUT: i32 = -5;

/// The outcome of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The mark that the host finds beside it; 0: none.
    pub mark: u64,
    /// The queue; marked or not, by the flow alone.
    pub queue: usize,
    /// True if the card dropped the frame: the host does not see it.
    pub dropped: bool,
}

/// Something that the card was asked.
#[derive(Clone, Debug)]
enum Operation {
    Place(Tag, Item),
    Withdraw(Tag),
}

/// An emulated card.
#[derive(Clone, Debug)]
pub struct EmulatedCard {
    capabilities: Capabilities,
    faults: Faults,
    random: Random,
    now_ms: u64,
    table: Table,
    sas: Vec<LoadedSa>,
    policies: Vec<LoadedPolicy>,
    esp_counts: EspCounts,
    /// Operations with the time at which they are done; one after the other.
    queue: Vec<(u64, Operation)>,
    /// Events by the time at which they are told, and a number that keeps their order.
    events: BTreeMap<(u64, u64), CardEvent>,
    told: u64,
    presence: Presence,
    /// Receive queues, at least 1.
    queues: usize,
}

/// The state of the card's link and slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Up,
    Down,
    Unplugged,
}

impl EmulatedCard {
    /// A card without faults. What it can is what it says it can.
    pub fn new(capabilities: Capabilities, seed: u64) -> EmulatedCard {
        EmulatedCard {
            capabilities,
            faults: Faults::default(),
            random: Random::of(seed),
            now_ms: 0,
            table: Table::default(),
            sas: Vec::new(),
            policies: Vec::new(),
            esp_counts: EspCounts::default(),
            queue: Vec::new(),
            events: BTreeMap::new(),
            told: 0,
            presence: Presence::Up,
            queues: QUEUES,
        }
    }

    /// Sets the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Entries that are in the card.
    pub fn entries(&self) -> usize {
        self.table.entries()
    }

    /// SAs that are in the card.
    pub fn sas(&self) -> usize {
        self.sas.len()
    }

    /// Names of the items that are in the card: rules, then SAs, each in the order in which they
    /// came.
    pub fn tags(&self) -> impl Iterator<Item = Tag> {
        let rules = self.table.rules.iter().map(|rule| rule.tag);
        rules.chain(self.sas.iter().map(|sa| sa.tag))
    }

    /// Lets time pass: what is programmed by then is done. Time does not go backwards.
    pub fn advance(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        while self.queue.first().is_some_and(|(due, _)| *due <= self.now_ms) {
            let (due, operation) = self.queue.remove(0);
            self.carry_out(due, operation);
        }
    }

    /// Takes a frame in that came by a port.
    pub fn receive(&mut self, port: u16, frame: &[u8]) -> Received {
        let seen = parse(frame);
        let queue = self.queue_of(seen.as_ref());
        let mut received = Received { mark: 0, queue, dropped: false };
        if self.presence != Presence::Up {
            return Received { dropped: true, ..received };
        }
        let Some(rules) = self.capabilities.rules.get() else { return received };
        if let Some(seen) = seen.filter(|seen| !(seen.is_fragment && rules.fragments.is_there())) {
            let random = &mut self.random;
            let any = |found| random.below(found);
            let found = self.table.find(port, &seen, rules.order, any);
            // It drops whole packets with bare headers alone: of others it sees too little.
            let is_sure = |drops: bool| !drops || seen.is_bare && !seen.is_fragment;
            if let Some(rule) = found.filter(|rule| is_sure(rule.drops)) {
                rule.packets += 1;
                rule.bytes += frame.len() as u64;
                received.mark = rule.tag.to_bits();
                received.dropped = rule.drops;
            }
        }
        if self.faults.are_of_marks() {
            let marks: Vec<u64> = self.table.rules.iter().map(|rule| rule.tag.to_bits()).collect();
            received.mark = self.told_mark(received.mark, &marks);
        }
        received
    }

    /// The mark that the card tells instead of the right one, by the faults of marks. `marks` are
    /// those of its items of that kind.
    fn told_mark(&mut self, mut mark: u64, marks: &[u64]) -> u64 {
        if self.faults.swapped > 0 && self.random.happens(self.faults.swapped) {
            mark = self.other_mark(mark, marks);
        }
        if self.faults.garbage > 0 && self.random.happens(self.faults.garbage) {
            mark = self.garbage(marks);
        }
        mark
    }

    /// The mark of another item in the card, if there is one.
    fn other_mark(&mut self, mark: u64, marks: &[u64]) -> u64 {
        let others: Vec<u64> = marks.iter().copied().filter(|other| *other != mark).collect();
        if others.is_empty() { mark } else { others[self.random.below(others.len())] }
    }

    /// A mark that is no item's: all ones, noise, or the name of an item of another life.
    fn garbage(&mut self, marks: &[u64]) -> u64 {
        let noise = self.random.next();
        let place = self.random.below(3 + marks.len());
        match place.checked_sub(3) {
            None if place == 0 => u64::MAX,
            None => noise | 1 << 63,
            Some(place) => marks[place] ^ 1 << 62,
        }
    }

    /// Forgets one item, and tells or not.
    pub fn forget(&mut self, tag: Tag, notice: Notice) {
        self.remove(tag);
        if notice == Notice::Told {
            self.tell(self.now_ms, CardEvent::Withdrawn(tag));
        }
    }

    /// Says that an item reached a limit, whether it did or not.
    pub fn claim(&mut self, tag: Tag, limit: Limit) {
        self.tell(self.now_ms, CardEvent::Limit(tag, limit));
    }

    /// Forgets everything, what it was just asked too.
    pub fn reset(&mut self, notice: Notice) {
        self.forget_all();
        if notice == Notice::Told {
            self.tell(self.now_ms, CardEvent::Reset);
        }
    }

    /// Another driver takes the card over: it can other things now.
    pub fn reload(&mut self, capabilities: Capabilities) {
        self.forget_all();
        self.capabilities = capabilities;
        self.tell(self.now_ms, CardEvent::Reloaded);
    }

    /// The link goes down: nothing comes, and everything is forgotten.
    pub fn link_down(&mut self) {
        self.forget_all();
        self.presence = Presence::Down;
        self.tell(self.now_ms, CardEvent::Down);
    }

    /// The link comes up.
    pub fn link_up(&mut self) {
        if self.presence == Presence::Down {
            self.presence = Presence::Up;
            self.tell(self.now_ms, CardEvent::Up);
        }
    }

    /// The card is pulled out. It answers nothing more.
    pub fn unplug(&mut self) {
        self.forget_all();
        self.presence = Presence::Unplugged;
        self.tell(self.now_ms, CardEvent::Unplugged);
    }

    fn remove(&mut self, tag: Tag) {
        self.table.remove(tag);
        self.sas.retain(|sa| sa.tag != tag);
        self.policies.retain(|policy| policy.tag != tag);
    }

    fn forget_all(&mut self) {
        self.table = Table::default();
        self.sas.clear();
        self.policies.clear();
        self.queue.clear();
    }

    /// The time at which something is done that is asked now: behind all that was asked before.
    fn due(&self) -> u64 {
        let programming = self.capabilities.rules.get().map_or(0, |rules| rules.programming_ms);
        let begin = self.queue.last().map_or(self.now_ms, |(due, _)| (*due).max(self.now_ms));
        begin + u64::from(programming)
    }

    fn ask(&mut self, operation: Operation) {
        if self.presence != Presence::Unplugged {
            self.queue.push((self.due(), operation));
        }
    }

    fn carry_out(&mut self, due: u64, operation: Operation) {
        let answer = match operation {
            Operation::Withdraw(tag) => {
                self.remove(tag);
                CardEvent::Withdrawn(tag)
            }
            Operation::Place(tag, item) => match self.take_in(tag, &item) {
                Ok(()) => CardEvent::Live(tag),
                Err(refusal) => CardEvent::Refused(tag, refusal),
            },
        };
        self.answer(due, answer);
    }

    /// Takes an item in, whole or not at all.
    fn take_in(&mut self, tag: Tag, item: &Item) -> Result<(), Refusal> {
        match item {
            Item::Rule(_) if !self.capabilities.rules.is_there() => {
                return Err(unsupported("this card has no rules"));
            }
            Item::Rule(_) => {}
            Item::Sa(sa) => {
                self.capabilities.sa_fits(sa).map_err(|unfit| unsupported(unfit.help()))?;
            }
            Item::Policy(policy) => self.policy_fits(policy)?,
            _ => return Err(unsupported("rules, SAs and policies only")),
        }
        let (sa, policy) = (self.faults.sa, self.faults.policy);
        let of_kind = match item {
            Item::Sa(_) => sa,
            Item::Policy(_) => policy,
            _ => 0,
        };
        if of_kind > 0 && self.random.happens(of_kind) {
            return Err(failed("programming failed"));
        }
        if self.faults.refuse > 0 && self.random.happens(self.faults.refuse) {
            return Err(failed("programming failed"));
        }
        let policies = self.policies.iter().map(|policy| policy.tag);
        if self.tags().chain(policies).any(|known| known == tag) {
            return Err(failed("an item has this name"));
        }
        match item {
            Item::Rule(rule) => self.take_rule(tag, rule),
            Item::Sa(sa) => self.take_sa(tag, sa),
            Item::Policy(policy) => self.take_policy(tag, policy),
            _ => Err(unsupported("rules, SAs and policies only")),
        }
    }

    fn take_rule(&mut self, tag: Tag, rule: &CardRule) -> Result<(), Refusal> {
        let entries = self.capabilities.rules.get().map_or(0, |rules| rules.entries);
        let (taken, wanted) = (self.table.entries(), rule.entries());
        if taken + wanted > entries as usize {
            return Err(full(&format!("{taken} of {entries} entries taken, {wanted} wanted")));
        }
        self.table.insert(tag, rule);
        Ok(())
    }

    fn take_sa(&mut self, tag: Tag, sa: &Arc<CardSa>) -> Result<(), Refusal> {
        let most = self.capabilities.sas.get().and_then(|sas| sas.most.get().copied());
        if let Some(most) = most.filter(|most| self.sas.len() >= *most as usize) {
            return Err(full(&format!("all of {most} SAs taken")));
        }
        let loaded = LoadedSa::new(tag, sa).ok_or_else(|| failed("the SA makes no sense"))?;
        if self.sas.iter().any(|other| other.collides(&loaded)) {
            return Err(failed("an SA has this SPI and address"));
        }
        self.sas.push(loaded);
        Ok(())
    }

    /// Tells an answer, with the faults of answers.
    fn answer(&mut self, due: u64, event: CardEvent) {
        let Faults { twice, never, late, late_ms, .. } = self.faults;
        if never > 0 && self.random.happens(never) {
            return;
        }
        let delay = |random: &mut Random| match late > 0 && random.happens(late) {
            true => random.below(late_ms as usize + 1) as u64,
            false => 0,
        };
        let first = due + delay(&mut self.random);
        if twice > 0 && self.random.happens(twice) {
            let second = first + delay(&mut self.random);
            self.tell(second, event.clone());
        }
        self.tell(first, event);
    }

    fn tell(&mut self, at_ms: u64, event: CardEvent) {
        self.told += 1;
        self.events.insert((at_ms, self.told), event);
    }
}

impl Card for EmulatedCard {
    fn probe(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn place(&mut self, item: &Item, tag: Tag) {
        self.ask(Operation::Place(tag, item.clone()));
    }

    fn withdraw(&mut self, tag: Tag) {
        self.ask(Operation::Withdraw(tag));
    }

    fn poll(&mut self, into: &mut Vec<CardEvent>) {
        let later = self.events.split_off(&(self.now_ms + 1, 0));
        into.extend(std::mem::replace(&mut self.events, later).into_values());
    }

    fn reading(&self, handle: Handle) -> Option<Reading> {
        if let Some(sa) = self.sas.iter().find(|sa| sa.tag.handle == handle) {
            return Some(sa.reading(self.now_ms));
        }
        if let Some(policy) = self.policies.iter().find(|policy| policy.tag.handle == handle) {
            let (packets, bytes) = (policy.packets, 0);
            return Some(Reading { packets, bytes, as_of_ms: self.now_ms });
        }
        let rule = self.table.rules.iter().find(|rule| rule.tag.handle == handle)?;
        let (packets, bytes) = (rule.packets, rule.bytes);
        Some(Reading { packets, bytes, as_of_ms: self.now_ms })
    }
}

fn refusal(kind: RefusalKind, code: i32, text: &str) -> Refusal {
    Refusal { kind, code, text: format!("emulated: {text}").into() }
}

fn unsupported(text: &str) -> Refusal {
    refusal(RefusalKind::Unsupported, NOT_SUPPORTED, text)
}

fn failed(text: &str) -> Refusal {
    refusal(RefusalKind::Failed, INPUT_OUTPUT, text)
}

fn full(text: &str) -> Refusal {
    refusal(RefusalKind::Full, NO_SPACE, text)
}

/// The hash that spreads flows over queues (FNV-1a over addresses and ports, mixed).
fn spread(source: &[u8; 16], destination: &[u8; 16], upper: Option<[u8; 4]>) -> usize {
    let upper = upper.unwrap_or_default();
    let bytes = source.iter().chain(destination).chain(&upper);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as usize
}

mod policies;
mod process;
mod sealed;
#[cfg(test)]
mod tests;
