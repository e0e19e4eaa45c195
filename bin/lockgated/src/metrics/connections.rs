//! Open connections of the metrics' port. Where a bound is reached, the oldest silent connection
//! gives way, so that connections without a request keep no reader out.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Connections at a time.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Connections at a time from one source address.
pub(super) const MAX_SOURCE_CONNECTIONS: usize = 16;
/// Time for the head of a request. An older connection gives way even if it sent a request.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(2);

/// The connections that are open.
#[derive(Clone, Default)]
pub(super) struct OpenConnections(Arc<Mutex<ConnectionTable>>);

/// Connections in the order of their arrival.
#[derive(Default)]
struct ConnectionTable {
    connections: Vec<OpenConnection>,
    accepted: u64,
}

/// A connection in the table.
struct OpenConnection {
    number: u64,
    source: IpAddr,
    since: Instant,
    /// True until the head of a request came.
    silent: bool,
    /// Ends the connection when it is dropped.
    _end: oneshot::Sender<()>,
}

/// Place of a connection; dropping it frees the place.
pub(super) struct ConnectionPlace {
    open: OpenConnections,
    number: u64,
}

impl OpenConnections {
    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection at a time, with the signal of its end. `None`: nobody gives way to it.
    pub(super) fn admit(
        &self,
        source: IpAddr,
        now: Instant,
    ) -> Option<(Arc<ConnectionPlace>, oneshot::Receiver<()>)> {
        let mut table = self.table();
        let is_of_source = |open: &OpenConnection| open.source == source;
        let of_source = table.connections.iter().filter(|open| is_of_source(open)).count();
        let is_admitted = match () {
            () if of_source >= MAX_SOURCE_CONNECTIONS => table.evict(now, is_of_source),
            () if table.connections.len() >= MAX_CONNECTIONS => table.evict(now, |_| true),
            () => true,
        };
        if !is_admitted {
            return None;
        }
        let (end, ended) = oneshot::channel();
        table.accepted += 1;
        let number = table.accepted;
        let open = OpenConnection { number, source, since: now, silent: true, _end: end };
        table.connections.push(open);
        Some((Arc::new(ConnectionPlace { open: self.clone(), number }), ended))
    }
}

impl ConnectionTable {
    /// Ends the oldest silent connection of some, else their oldest one that had [`HEAD_TIME`].
    /// Returns whether there was one.
    fn evict(&mut self, now: Instant, of: impl Fn(&OpenConnection) -> bool) -> bool {
        let silent = self.connections.iter().position(|open| of(open) && open.silent);
        let had_time = |open: &OpenConnection| now.duration_since(open.since) >= HEAD_TIME;
        let place =
            silent.or_else(|| self.connections.iter().position(|open| of(open) && had_time(open)));
        place.map(|place| self.connections.remove(place)).is_some()
    }
}

impl ConnectionPlace {
    /// Notes that the head of a request came.
    pub(super) fn note_request(&self) {
        let mut table = self.open.table();
        let number = self.number;
        if let Some(open) = table.connections.iter_mut().find(|open| open.number == number) {
            open.silent = false;
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let number = self.number;
        self.open.table().connections.retain(|open| open.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Each entry is a connection: its place, and the signal of its end.
    type AdmittedConnections = Vec<(Arc<ConnectionPlace>, oneshot::Receiver<()>)>;

    fn has_ended((_, ended): &mut (Arc<ConnectionPlace>, oneshot::Receiver<()>)) -> bool {
        ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn oldest_silent_connection_gives_way() {
        let (open, now) = (OpenConnections::default(), Instant::now());
        let mut held: AdmittedConnections = Vec::new();
        for last in 0..MAX_CONNECTIONS / MAX_SOURCE_CONNECTIONS {
            for _ in 0..MAX_SOURCE_CONNECTIONS {
                held.push(open.admit(source(last as u8), now).unwrap());
            }
        }
        held[0].0.note_request();
        held.push(open.admit(source(200), now).unwrap());
        assert!(!has_ended(&mut held[0]) && has_ended(&mut held[1]) && !has_ended(&mut held[2]));
        assert_eq!(open.table().connections.len(), MAX_CONNECTIONS);
        // A source at its bound takes no place of another source.
        held.push(open.admit(source(1), now).unwrap());
        assert!(!has_ended(&mut held[2]) && has_ended(&mut held[MAX_SOURCE_CONNECTIONS]));
        held.clear();
        assert!(open.table().connections.is_empty());
    }

    #[test]
    fn connection_with_a_request_keeps_its_place_for_a_while() {
        let (open, now) = (OpenConnections::default(), Instant::now());
        let mut held: AdmittedConnections =
            (0..MAX_SOURCE_CONNECTIONS).map(|_| open.admit(source(1), now).unwrap()).collect();
        held.iter().for_each(|(place, _)| place.note_request());
        assert!(open.admit(source(1), now).is_none());
        assert!(open.admit(source(2), now).is_some());
        let newest = open.admit(source(1), now + HEAD_TIME).unwrap();
        assert!(has_ended(&mut held[0]) && !has_ended(&mut held[1]));
        drop(newest);
    }
}
