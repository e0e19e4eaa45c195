//! Marks of entries: packets of the flow change nothing of their connections, and these let them
//! pass. While a mark holds, the fast path looks at no connection.
//!
//! A mark holds for one *tick*: one second, as long as no generation, no table of connections and
//! no clearing of it comes in between, and for packets that came by one port. So each connection is
//! looked at once a second at least, which keeps it alive, and a rule that goes or a connection
//! that is cleared ends all marks at once. It also says how many
//! [changes](crate::connections::Changes) the connection and those that are counted with it had
//! seen: one more ends it.
//!
//! Ticks are numbered and never given again. A busy port takes one a second. When all have been
//! given, after six days with one such port and two hours with 64, there are no more marks until a
//! fresh cache takes the place of this one with the next snapshot.

use crate::connections::Connections;
use crate::ids::PortId;

/// A port's tick, by number, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tick(u32);

/// Bits below a mark's part in a value: those of a verdict's number.
pub(super) const MARK_SHIFT: u32 = 18;
/// Ticks at most: 19 bits.
const LAST: u32 = (1 << 19) - 1;
/// Bits of a tick that are in a value.
const LOW_TICK: u32 = 3;

/// A tick, and the low byte of a count of changes: `tick << 8 | count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark(u32);

impl Tick {
    /// The mark of an entry whose connections have seen these changes.
    #[inline(always)]
    pub(crate) fn mark(self, changes: u8) -> Mark {
        Mark(self.0 << 8 | u32::from(changes))
    }
}

impl Mark {
    /// No mark, as entries have it that were not marked.
    pub(super) const NONE: Mark = Mark(0);

    /// The mark of an entry, by the parts that are in its identity and in its value.
    #[inline(always)]
    pub(super) fn of(upper: u16, low: u32) -> Mark {
        Mark(u32::from(upper) << (8 + LOW_TICK) | low)
    }

    /// Mask of the lower part, which is in a value.
    pub(super) const LOW_MASK: u64 = (1 << (8 + LOW_TICK)) - 1;

    /// The part that is in an identity.
    pub(super) fn upper(self) -> u16 {
        (self.0 >> (8 + LOW_TICK)) as u16
    }

    /// The part that is in a value.
    pub(super) fn low(self) -> u32 {
        self.0 & Self::LOW_MASK as u32
    }
}

/// All that ends marks at once.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Moment {
    now_s: u32,
    /// Snapshots that came with another generation of a domain.
    generations: u64,
    table: u64,
    clearings: u32,
}

/// The ticks of a cache's ports.
#[derive(Default)]
pub(super) struct Ticks {
    moment: Moment,
    /// Moments until now.
    moments: u64,
    /// By port: the tick, and the number of its moment.
    of_ports: Vec<(u32, u64)>,
    last: u32,
    pub(super) generations: u64,
}

impl Ticks {
    /// Returns whether all were given.
    pub(super) fn are_spent(&self) -> bool {
        self.last == LAST
    }

    /// Makes room for the ticks of so many slots of ports.
    pub(super) fn make_room(&mut self, ports: usize) {
        if self.of_ports.len() < ports {
            self.of_ports.resize(ports, (0, 0));
        }
    }

    /// Ports with reserved memory.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.of_ports.capacity()
    }

    /// The tick of a port, now. `None`: all were given.
    #[inline]
    pub(super) fn of(
        &mut self,
        port: PortId,
        connections: &Connections,
        now_s: u32,
    ) -> Option<Tick> {
        let (table, clearings) = (connections.number(), connections.clearings());
        let moment = Moment { now_s, generations: self.generations, table, clearings };
        if moment != self.moment {
            self.moment = moment;
            self.moments += 1;
        }
        match self.of_ports.get(usize::from(port.0)) {
            Some((tick, of)) if *of == self.moments => Some(Tick(*tick)),
            _ => self.next(port),
        }
    }

    #[cold]
    fn next(&mut self, port: PortId) -> Option<Tick> {
        if self.are_spent() {
            return None;
        }
        self.last += 1;
        let at = usize::from(port.0);
        self.make_room(at + 1);
        self.of_ports[at] = (self.last, self.moments);
        Some(Tick(self.last))
    }
}
