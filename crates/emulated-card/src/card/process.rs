//! The calls of a process that plays the card for hosts that come and go.

use offload::{Card, CardEvent, Handle, Reading, Tag};

use crate::card::{EmulatedCard, Presence, spread};
use crate::parse::{Seen, parse};

impl EmulatedCard {
    /// Spreads flows over this many receive queues; 0 counts as 1.
    pub fn set_queues(&mut self, queues: usize) {
        self.queues = queues.max(1);
    }

    /// A host begins: the card forgets all that it has, was asked and has not told. Its link and
    /// slot stay as they are, and the host is told if they are not up.
    pub fn begin(&mut self) {
        self.forget_all();
        self.events.clear();
        match self.presence {
            Presence::Up => {}
            Presence::Down => self.tell(self.now_ms, CardEvent::Down),
            Presence::Unplugged => self.tell(self.now_ms, CardEvent::Unplugged),
        }
    }

    /// The time at which something is done or told next; `None`: nothing is to be.
    pub fn next_ms(&self) -> Option<u64> {
        let done = self.queue.first().map(|(due, _)| *due);
        let told = self.events.first_key_value().map(|((due, _), _)| *due);
        done.into_iter().chain(told).min()
    }

    /// Operations that the card was asked and has not done.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Names and counts of the items that are in the card: rules, then SAs, each in the order in
    /// which they came.
    pub fn readings(&self) -> impl Iterator<Item = (Tag, Reading)> {
        let rules = self.table.rules.iter().map(|rule| {
            let (packets, bytes) = (rule.packets, rule.bytes);
            (rule.tag, Reading { packets, bytes, as_of_ms: self.now_ms })
        });
        rules.chain(self.sas.iter().map(|sa| (sa.tag, sa.reading(self.now_ms))))
    }

    /// Names and counts of the policies that are in the card.
    pub fn policy_readings(&self) -> impl Iterator<Item = (Tag, Reading)> {
        self.policies.iter().map(|policy| {
            let (packets, bytes) = (policy.packets, 0);
            (policy.tag, Reading { packets, bytes, as_of_ms: self.now_ms })
        })
    }

    /// Of each SA that opens and has opened, the highest number so far: the right edge of its
    /// window.
    pub fn edges(&self) -> impl Iterator<Item = (Handle, u64)> {
        self.sas.iter().filter_map(|sa| Some((sa.tag.handle, sa.edge()?)))
    }

    /// The queue of a frame that the card opened: that of the packet in clear.
    pub fn queue_of_clear(&self, frame: &[u8]) -> usize {
        self.queue_of(parse(frame).as_ref())
    }

    pub(super) fn queue_of(&self, seen: Option<&Seen>) -> usize {
        let hash = seen.map_or(0, |seen| spread(&seen.source, &seen.destination, seen.upper));
        hash % self.queues
    }

    /// Returns whether frames pass: the link is up and the card is in its slot.
    pub fn is_up(&self) -> bool {
        self.presence == Presence::Up
    }

    /// The card as text, which `offload::Capabilities` reads back.
    pub fn spec(&self) -> String {
        self.probe().spec()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use offload::{
        Capabilities, CardRule, Effect, Handle, Incarnation, Item, Pattern, RuleAbilities, Span,
        UpperPattern,
    };

    use super::*;

    fn tag(number: u32) -> Tag {
        Tag { handle: Handle::new(number).unwrap(), incarnation: Incarnation(0) }
    }

    fn item() -> Item {
        let any = Span { first: [0; 4].into(), last: [255; 4].into() };
        let patterns = [Pattern { source: any, destination: any, upper: UpperPattern::Any }].into();
        let ports = Arc::new([0]);
        Item::Rule(Arc::new(CardRule { ports, rank: 1, effect: Effect::Mark, patterns }))
    }

    fn told(card: &mut EmulatedCard) -> Vec<CardEvent> {
        let mut events = Vec::new();
        card.poll(&mut events);
        events
    }

    #[test]
    fn a_host_that_begins_finds_nothing_of_the_one_before_but_the_link() {
        let mut card = EmulatedCard::new(Capabilities::emulated(RuleAbilities::default()), 1);
        card.place(&item(), tag(1));
        card.advance(5);
        card.place(&item(), tag(2));
        assert_eq!(card.readings().map(|(tag, _)| tag).collect::<Vec<_>>(), [tag(1)]);
        card.begin();
        card.advance(1000);
        assert_eq!((told(&mut card), card.entries(), card.next_ms()), (vec![], 0, None));
        card.link_down();
        assert!(!card.is_up());
        told(&mut card);
        card.begin();
        assert_eq!(told(&mut card), [CardEvent::Down]);
        card.unplug();
        card.begin();
        assert_eq!(told(&mut card), [CardEvent::Unplugged]);
    }

    #[test]
    fn the_next_moment_is_that_of_what_is_done_or_told_first() {
        let mut card = EmulatedCard::new(Capabilities::emulated(RuleAbilities::default()), 1);
        assert_eq!(card.next_ms(), None);
        card.place(&item(), tag(1));
        assert_eq!(card.next_ms(), Some(5));
        card.advance(7);
        assert_eq!(card.next_ms(), Some(5), "not told yet");
        told(&mut card);
        assert_eq!(card.next_ms(), None);
    }
}
