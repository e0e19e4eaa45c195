//! Fragments of ESP in UDP. Only a datagram's first fragment shows its ports and its SPI; later
//! ones look like fragments of any UDP datagram. A worker therefore remembers the datagrams whose
//! first fragment it dropped, so that later fragments are dropped for the same reason.
//!
//! The list is short and bounded, newest first, and is made once. Only fragments to one of our
//! addresses from outside ever look at it. Not covered:
//!
//! * A later fragment that arrives before its first one, or on another worker's queue, is decided
//!   like any fragment of UDP. Network cards put all fragments of a datagram into one queue.
//! * With more than [`DATAGRAMS`] fragmented datagrams under way at once the oldest is forgotten.
//!
//! Fragments of a forgotten datagram reach Linux at most, and only where `allow_host` lists UDP:
//! they are ciphertext that Linux cannot reassemble.

use wire::flow::protocol;
use wire::{Address, Family, Packet};

use crate::ids::PortId;
use crate::snapshot::Snapshot;

/// Datagrams that a worker remembers.
pub(crate) const DATAGRAMS: usize = 16;
/// Nanoseconds that a datagram is remembered; no host waits longer for fragments (RFC 1122 §3.3.2:
/// 60 to 120 s).
pub(crate) const REMEMBERED_NS: u64 = 120_000_000_000;

/// The fields that fragments of one datagram share (RFC 791 §2.3, RFC 8200 §4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Datagram {
    source: Address,
    destination: Address,
    identification: u32,
    ingress: PortId,
}

impl Datagram {
    /// The datagram that a packet is a fragment of, if that may be UDP. A later fragment of IPv6
    /// may name any protocol: the first one's counts, so protocols do not tell datagrams apart.
    pub(crate) fn of(packet: &Packet, ingress: PortId) -> Option<Datagram> {
        let flow = &packet.flow;
        if flow.family == Family::V4 && flow.protocol != protocol::UDP {
            return None;
        }
        Some(Datagram {
            source: flow.source_address(),
            destination: flow.destination_address(),
            identification: packet.fragment_header()?.identification,
            ingress,
        })
    }
}

/// Datagrams whose first fragment was dropped as ESP in UDP.
pub(crate) struct DroppedDatagrams {
    /// Each with the time at which it is forgotten; newest first.
    list: Vec<(Datagram, u64)>,
}

impl DroppedDatagrams {
    /// An empty list, which never grows beyond its memory.
    pub(crate) fn new() -> DroppedDatagrams {
        DroppedDatagrams { list: Vec::with_capacity(DATAGRAMS) }
    }

    /// Remembers a datagram whose first fragment was dropped now, as the newest.
    pub(crate) fn remember(&mut self, datagram: Datagram, now_ns: u64) {
        self.forget(datagram);
        self.list.truncate(DATAGRAMS - 1);
        self.list.insert(0, (datagram, now_ns.saturating_add(REMEMBERED_NS)));
    }

    /// Forgets a datagram: another one has its identification now.
    pub(crate) fn forget(&mut self, datagram: Datagram) {
        self.list.retain(|(known, _)| *known != datagram);
    }

    /// Returns whether a datagram is remembered.
    pub(crate) fn holds(&self, datagram: Datagram, now_ns: u64) -> bool {
        self.list.iter().any(|(known, until_ns)| *known == datagram && now_ns < *until_ns)
    }

    /// Forgets the datagrams that were received by ports which the next snapshot lacks.
    pub(crate) fn forget_gone(&mut self, next: &Snapshot) {
        self.list.retain(|(known, _)| next.has_port(known.ingress));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn datagram(identification: u32) -> Datagram {
        let (source, destination) = (Address::v4(1), Address::v4(2));
        Datagram { source, destination, identification, ingress: PortId(0) }
    }

    /// Datagrams and when their first fragments came, oldest first.
    #[derive(Default)]
    struct All(Vec<(Datagram, u64)>);

    impl All {
        fn holds(&self, datagram: Datagram, now_ns: u64) -> bool {
            self.0.iter().any(|(known, at)| *known == datagram && now_ns - at < REMEMBERED_NS)
        }
    }

    proptest! {
        #[test]
        fn the_list_holds_the_last_sixteen_for_two_minutes(
            steps in prop::collection::vec((0..24u32, 0..8u8, 0..20u64), 0..200),
        ) {
            let (mut dropped, mut all, mut now_ns) = (DroppedDatagrams::new(), All::default(), 0);
            let memory = dropped.list.capacity();
            for (identification, action, seconds) in steps {
                now_ns += seconds * 1_000_000_000;
                let datagram = datagram(identification);
                match action {
                    0 | 1 => {
                        dropped.forget(datagram);
                        all.0.retain(|(known, _)| *known != datagram);
                    }
                    2..=5 => {
                        dropped.remember(datagram, now_ns);
                        all.0.retain(|(known, _)| *known != datagram);
                        all.0.push((datagram, now_ns));
                        // What was pushed out does not come back when others are forgotten.
                        let pushed_out = all.0.len().saturating_sub(DATAGRAMS);
                        all.0.drain(..pushed_out);
                    }
                    _ => {}
                }
                for identification in 0..24 {
                    let datagram = self::datagram(identification);
                    let expected = all.holds(datagram, now_ns);
                    prop_assert_eq!(dropped.holds(datagram, now_ns), expected);
                }
                prop_assert_eq!(dropped.list.capacity(), memory);
            }
        }
    }

    #[test]
    fn the_end_of_time_is_no_overflow() {
        let mut dropped = DroppedDatagrams::new();
        dropped.remember(datagram(1), u64::MAX - 1);
        assert!(dropped.holds(datagram(1), u64::MAX - 1));
    }
}
