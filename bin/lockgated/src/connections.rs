//! The table of connections as the daemon looks after it: its memory, and what is refused.

use config::ConnectionSettings;
use dataplane::connections::{Connections, Refusal};

use crate::cache_memory::available_bytes;
use crate::events::{Events, Kind};

/// Not enough memory is available for the table.
#[derive(Debug, thiserror::Error)]
#[error(
    "the table of connections takes {needed} bytes and {available} bytes of memory are available: \
     write a smaller number into [connections] max"
)]
pub(crate) struct NoRoom {
    needed: u64,
    available: u64,
}

/// Refuses a table that is larger than the memory there is.
///
/// # Errors
/// [`NoRoom`].
pub(crate) fn check_memory(settings: &ConnectionSettings) -> Result<(), NoRoom> {
    let needed = settings.bytes();
    match available_bytes() {
        Some(available) if needed > available => Err(NoRoom { needed, available }),
        _ => Ok(()),
    }
}

/// The connections that each bound had refused when the last event was recorded.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RefusedSoFar([u64; Refusal::ALL.len()]);

impl RefusedSoFar {
    /// Those that a table has refused by now: no event says so.
    pub(crate) fn of(connections: &Connections) -> RefusedSoFar {
        RefusedSoFar(connections.counts().refused)
    }

    /// Records an event for each bound that has refused connections since the last call.
    pub(crate) fn report(&mut self, connections: &Connections, events: &Events) {
        let seen = connections.counts().refused;
        for ((bound, count), before) in Refusal::ALL.into_iter().zip(seen).zip(&mut self.0) {
            let more = count.saturating_sub(std::mem::replace(before, count));
            if more == 0 {
                continue;
            }
            let message = format!("{more} new connections were refused: {}", cause(bound));
            let details: crate::events::Details<'_> = &[("refused", &more)];
            events.record(Kind::ConnectionsRefused, bound.name(), message, details);
        }
    }
}

/// Names a bound, with the key that raises it.
fn cause(bound: Refusal) -> &'static str {
    match bound {
        Refusal::TableFull => {
            "the table of connections is full, or no place for them gives way; `max` in \
             [connections] is its size"
        }
        Refusal::HalfOpenLimit => {
            "as many connections are half-open as may be; `half_open` in [connections] is the limit"
        }
        Refusal::ZoneLimit => {
            "a port has as many connections as it may have; `per_port` in [connections] is the \
             limit"
        }
        Refusal::ZoneHalfOpenLimit => {
            "a port has as many half-open connections as it may have; `half_open_per_port` in \
             [connections] is the limit"
        }
    }
}

#[cfg(test)]
mod tests {
    use dataplane::connections::{Inserted, Judgement, Key, Limits, Zone};
    use policy::connection::{Segment, Shown, Timeouts};
    use wire::{Family, Flow, Upper};

    use super::*;

    #[test]
    fn each_bound_that_refuses_is_an_event_with_the_number_since_the_last() {
        let limits = Limits { per_zone: 1, ..Limits::of(8) };
        let table = Connections::new(limits, Timeouts::default(), &[1; 32]);
        let (events, mut refused) = (Events::new(), RefusedSoFar::default());
        let key = |source: u16| {
            let upper = Upper::Ports { source, destination: 80 };
            let (source, destination) = (0x0a00_0001, 0x0a00_0002);
            let flow =
                Flow { family: Family::V4, source, destination, protocol: 6, upper, opens: false };
            Key::of(&flow, Zone { attachment: 3, vni: 0 }).unwrap()
        };
        let insert = |key: &Key| table.insert(key, Shown::Tcp(Segment::Ack), Judgement::UNKNOWN, 1);
        let assured = key(1000);
        let Inserted::New(place) = insert(&assured) else { panic!("there is room") };
        table.observe(place, &assured.reversed(), Shown::Tcp(Segment::Ack), 1);
        (0..64).for_each(|source| _ = insert(&key(source)));
        let counts = table.counts().refused;
        refused.report(&table, &events);
        refused.report(&table, &events);
        let told = events.subscribe().0;
        assert_eq!(told.len(), 1, "{told:?}");
        let place = Refusal::ALL.iter().position(|it| it.name() == "per_port").unwrap();
        assert!(told[0].message.contains(&format!("{} new", counts[place])), "{told:?}");
        assert_eq!(
            (told[0].kind.as_str(), told[0].subject.as_str()),
            ("connections_refused", "per_port")
        );
    }

    #[test]
    fn a_table_larger_than_memory_is_refused_with_both_figures() {
        assert!(check_memory(&ConnectionSettings::default()).is_ok());
        let limits = Limits { max: u32::MAX, ..Limits::of(2) };
        let settings = ConnectionSettings { limits, ..ConnectionSettings::default() };
        if available_bytes().is_some_and(|bytes| bytes < settings.bytes()) {
            let error = check_memory(&settings).unwrap_err().to_string();
            assert!(error.contains(&format!("takes {} bytes and", settings.bytes())), "{error}");
        }
    }
}
