//! The time since the last packet to a peer.

use std::sync::atomic::{AtomicU64, Ordering};

/// Silence towards a peer behind a NAT, found by looks at the peer's SAs. All snapshots and workers
/// share the record: a change of the snapshot or of the worker loses no time. A single worker looks
/// at a time; two workers at once send at most a second keepalive.
pub(crate) struct PeerSilence {
    /// Sum of the last sequence numbers of the peer's SAs.
    sealed: AtomicU64,
    /// Start of the silence, nanoseconds.
    since_ns: AtomicU64,
    /// Time of the last look, nanoseconds, or [`NEVER`].
    looked_ns: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Default for PeerSilence {
    fn default() -> PeerSilence {
        let [sealed, since_ns] = [const { AtomicU64::new(0) }; 2];
        PeerSilence { sealed, since_ns, looked_ns: AtomicU64::new(NEVER) }
    }
}

impl PeerSilence {
    /// Returns the nanoseconds since the last packet, at most a round of looks too many. `sealed`
    /// moves with each sealed packet. The first look counts as a packet.
    pub(crate) fn look(&self, sealed: u64, now_ns: u64) -> u64 {
        let before_ns = self.looked_ns.swap(now_ns, Ordering::Relaxed);
        let was_sealed = self.sealed.swap(sealed, Ordering::Relaxed);
        if before_ns == NEVER {
            self.end(now_ns);
        } else if was_sealed != sealed {
            self.end(before_ns);
        }
        now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed))
    }

    /// Ends the silence: a packet left at a time.
    pub(crate) fn end(&self, now_ns: u64) {
        self.since_ns.store(now_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_begins_at_the_look_before_the_last_packet() {
        let silence = PeerSilence::default();
        assert_eq!(silence.look(5, 100), 0, "the first look");
        assert_eq!(silence.look(5, 130), 30);
        assert_eq!(silence.look(6, 150), 20, "sealed between 130 and 150");
        assert_eq!(silence.look(6, 170), 40);
        silence.end(170);
        assert_eq!(silence.look(6, 180), 10);
        assert_eq!(silence.look(6, 0), 0, "a clock that goes back");
    }
}
