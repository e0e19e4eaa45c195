//! Places where peers were seen that charon was told of.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which charon is told again of a place that it has not moved a peer to.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

/// Places where peers were seen that charon was told of last. At most one a peer.
#[derive(Default)]
pub(super) struct ToldPlaces(HashMap<Arc<str>, (SocketAddr, Instant)>);

impl ToldPlaces {
    /// Returns whether charon is to be told of a peer's place, and notes that it was.
    pub(super) fn tell(&mut self, peer: &Arc<str>, place: SocketAddr, now: Instant) -> bool {
        let is_known = self.0.get(peer).is_some_and(|(known, since)| {
            *known == place && now.saturating_duration_since(*since) < TOLD_AGAIN
        });
        if !is_known {
            self.0.insert(peer.clone(), (place, now));
        }
        !is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_once_and_again_when_charon_had_its_time() {
        let (mut told, now) = (ToldPlaces::default(), Instant::now());
        let (peer, other) = (Arc::from("a"), Arc::from("b"));
        let place = |port| SocketAddr::from(([192, 0, 2, 1], port));
        assert!(told.tell(&peer, place(1), now) && told.tell(&other, place(1), now));
        assert!(!told.tell(&peer, place(1), now + TOLD_AGAIN / 2));
        assert!(told.tell(&peer, place(2), now) && told.tell(&peer, place(1), now));
        assert!(told.tell(&peer, place(1), now + TOLD_AGAIN));
    }
}
