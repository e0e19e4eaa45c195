//! Liveness of peers: the time of each one's last authentic packet, and the silent ones.
//!
//! The control loop looks at the SAs' counters once a second, so times are exact to a second. An
//! inbound SA counts a packet only after its ICV was verified and its sequence number was new, so
//! that nobody else can make a dead peer look alive.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dataplane::counters::Volume;

/// A peer that has been sent packets for this long, and nothing came back, is silent.
const SILENCE: Duration = Duration::from_secs(30);
/// A pause in sending after which the wait for an answer begins anew: a peer that was sent one
/// packet an hour ago is not silent when the next one leaves.
const PAUSE: Duration = Duration::from_secs(90);

/// The times at which the peers were heard, by name.
#[derive(Clone, Default)]
pub(crate) struct Liveness {
    peers: HashMap<String, Peer>,
}

/// The state of one peer.
#[derive(Clone, Copy, Default)]
struct Peer {
    sealed: u64,
    opened: u64,
    last_received: Option<Instant>,
    /// Packets that had been sealed for the peer when it was last heard, or first observed.
    sealed_when_heard: u64,
    last_sent: Option<Instant>,
    /// First packet to the peer that nothing has answered yet.
    unanswered: Option<Instant>,
    silent_since: Option<Instant>,
}

/// The liveness of a peer, for those who show it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PeerLiveness {
    /// Last authentic packet, to a second; `None`: none since the daemon started.
    pub(crate) last_received: Option<Instant>,
    /// Time since when the peer is silent; `None`: it is not.
    pub(crate) silent_since: Option<Instant>,
    /// Packets sealed for the peer after the second in which it was last heard.
    pub(crate) sent_since: u64,
}

/// A peer that became silent, or was heard again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Packets leave for it and nothing comes back.
    Silent {
        /// Its name.
        peer: String,
        /// Time since the first packet without an answer.
        unanswered: Duration,
    },
    /// A peer that was silent has sent an authentic packet.
    Heard {
        /// Its name.
        peer: String,
        /// Time that it was silent.
        silence: Duration,
    },
}

impl Liveness {
    /// Takes the current counts of all peers; forgets peers that are gone.
    pub(crate) fn observe<'a>(
        &mut self,
        now: Instant,
        volumes: impl Iterator<Item = (&'a str, [Volume; 2])>,
    ) -> Vec<Change> {
        let mut before = std::mem::take(&mut self.peers);
        let mut changes = Vec::new();
        for (name, [sealed, opened]) in volumes {
            let (name, mut peer) = match before.remove_entry(name) {
                Some(known) => known,
                // What was counted before its first sample has no time.
                None => {
                    let (sealed, opened) = (sealed.packets, opened.packets);
                    let first = Peer { sealed, opened, ..Peer::default() };
                    (name.to_owned(), Peer { sealed_when_heard: sealed, ..first })
                }
            };
            changes.extend(peer.observe(now, &name, sealed.packets, opened.packets));
            self.peers.insert(name, peer);
        }
        changes
    }

    /// The liveness of a peer.
    pub(crate) fn of(&self, peer: &str) -> PeerLiveness {
        let peer = self.peers.get(peer).copied().unwrap_or_default();
        let Peer { last_received, silent_since, sealed, sealed_when_heard, .. } = peer;
        // Counts begin anew where an SA goes.
        let sent_since = sealed.saturating_sub(sealed_when_heard);
        PeerLiveness { last_received, silent_since, sent_since }
    }
}

impl Peer {
    fn observe(&mut self, now: Instant, name: &str, sealed: u64, opened: u64) -> Option<Change> {
        let (has_sent, has_heard) = (sealed > self.sealed, opened > self.opened);
        (self.sealed, self.opened) = (sealed, opened);
        if has_heard {
            (self.last_received, self.sealed_when_heard) = (Some(now), sealed);
            self.unanswered = None;
        }
        if has_sent {
            let paused = self.last_sent.is_none_or(|last| now.duration_since(last) > PAUSE);
            // Within one sample nobody knows which packet came first.
            if !has_heard && (paused || self.unanswered.is_none()) {
                self.unanswered = Some(now);
            }
            self.last_sent = Some(now);
        }
        if has_heard {
            let since = self.silent_since.take()?;
            return Some(Change::Heard { peer: name.to_owned(), silence: now - since });
        }
        let unanswered = now - self.unanswered?;
        let is_sending = self.last_sent.is_some_and(|last| now.duration_since(last) < SILENCE);
        if self.silent_since.is_some() || unanswered < SILENCE || !is_sending {
            return None;
        }
        self.silent_since = Some(now);
        Some(Change::Silent { peer: name.to_owned(), unanswered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples one peer, second by second.
    struct Lab {
        liveness: Liveness,
        start: Instant,
        second: u64,
        sealed: u64,
        opened: u64,
    }

    impl Lab {
        fn new() -> Lab {
            let liveness = Liveness::default();
            let mut lab = Lab { liveness, start: Instant::now(), second: 0, sealed: 7, opened: 5 };
            assert_eq!(lab.after(1), []);
            lab
        }

        /// Advances the time by so many seconds, one sample each, and returns the changes.
        fn after(&mut self, seconds: u64) -> Vec<Change> {
            let mut changes = Vec::new();
            for _ in 0..seconds {
                self.second += 1;
                let now = self.start + Duration::from_secs(self.second);
                let volume = |packets| Volume { packets, bytes: 0 };
                let volumes = [volume(self.sealed), volume(self.opened)];
                changes.extend(self.liveness.observe(now, [("b", volumes)].into_iter()));
            }
            changes
        }

        /// Sends a packet each second.
        fn sending(&mut self, seconds: u64) -> Vec<Change> {
            let one = |lab: &mut Lab| {
                lab.sealed += 1;
                lab.after(1)
            };
            (0..seconds).flat_map(|_| one(self)).collect()
        }

        fn is_silent(&self) -> bool {
            self.liveness.of("b").silent_since.is_some()
        }
    }

    #[test]
    fn a_peer_that_answers_nothing_for_thirty_seconds_is_silent_until_it_is_heard() {
        let mut lab = Lab::new();
        assert_eq!(lab.sending(30), []);
        let silent = Change::Silent { peer: "b".into(), unanswered: SILENCE };
        assert_eq!(lab.sending(1), [silent]);
        assert_eq!(lab.liveness.of("b").last_received, None);
        // Told once; and it stays so when we send no more.
        assert_eq!(lab.sending(100), []);
        assert_eq!(lab.after(500), []);
        assert!(lab.is_silent());
        lab.opened += 1;
        let silence = Duration::from_secs(601);
        assert_eq!(lab.after(1), [Change::Heard { peer: "b".into(), silence }]);
        let now = lab.start + Duration::from_secs(lab.second);
        assert_eq!(
            lab.liveness.of("b"),
            PeerLiveness { last_received: Some(now), silent_since: None, sent_since: 0 }
        );
    }

    #[test]
    fn what_is_sent_since_the_last_packet_from_a_peer_is_counted() {
        let mut lab = Lab::new();
        let sent_since = |lab: &Lab| lab.liveness.of("b").sent_since;
        assert_eq!(sent_since(&lab), 0, "not what was sent before it was observed");
        let before = lab.sealed;
        lab.sending(3);
        let sent = lab.sealed - before;
        assert!(sent > 0);
        assert_eq!(sent_since(&lab), sent);
        lab.opened += 1;
        lab.after(1);
        assert_eq!(sent_since(&lab), 0);
        let before = lab.sealed;
        lab.sending(2);
        assert_eq!(sent_since(&lab), lab.sealed - before);
    }

    #[test]
    fn a_peer_that_answers_now_and_then_is_not_silent() {
        let mut lab = Lab::new();
        for _ in 0..10 {
            assert_eq!(lab.sending(29), []);
            lab.opened += 1;
            assert_eq!(lab.sending(1), []);
        }
        assert!(!lab.is_silent());
        assert_eq!(lab.sending(31).len(), 1, "and then it dies");
    }

    #[test]
    fn an_idle_tunnel_is_not_silent() {
        let mut lab = Lab::new();
        assert_eq!(lab.after(1000), []);
        // One packet, and nobody sends another: not enough to know.
        lab.sealed += 1;
        assert_eq!(lab.after(1000), []);
        // Nor does the next one, long after, count from the first.
        assert_eq!(lab.sending(30), []);
        assert_eq!(lab.sending(1).len(), 1);
    }

    #[test]
    fn a_packet_a_minute_is_enough_to_find_a_dead_peer() {
        let mut lab = Lab::new();
        let mut changes = Vec::new();
        for _ in 0..3 {
            lab.sealed += 1;
            changes.extend(lab.after(60));
        }
        assert_eq!(changes.len(), 1, "{changes:?}");
    }

    #[test]
    fn a_peer_that_is_removed_is_forgotten() {
        let mut lab = Lab::new();
        lab.sending(31);
        assert!(lab.is_silent());
        let now = lab.start + Duration::from_secs(lab.second + 1);
        assert_eq!(lab.liveness.observe(now, std::iter::empty()), []);
        assert_eq!(lab.liveness.of("b"), PeerLiveness::default());
    }
}
