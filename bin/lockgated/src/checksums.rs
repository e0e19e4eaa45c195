//! Wrong TCP and UDP checksums: an event for each port that receives such packets. Receivers drop
//! them, and no drop counter of the gateway shows it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use dataplane::{L4Checksum, L4ChecksumCounts, PortInfo, PortInfos, Side};

use crate::events::{Events, Kind};

/// Time between two events about one port.
const QUIET: Duration = Duration::from_secs(3600);

/// Events about wrong checksums so far, by the port's name.
#[derive(Default)]
pub(crate) struct ChecksumEvents {
    last: HashMap<String, Last>,
}

/// The last event about a port.
#[derive(Clone, Copy)]
struct Last {
    bad: u64,
    at: Instant,
}

impl ChecksumEvents {
    /// Returns whether an event is due for a port with this count of wrong checksums: at the first,
    /// and
    /// while the count rises at most once in [`QUIET`].
    fn is_due(&mut self, port: &str, bad: u64, now: Instant) -> bool {
        let is_due = match self.last.get(port) {
            None => bad > 0,
            Some(last) => bad > last.bad && now.duration_since(last.at) >= QUIET,
        };
        if is_due {
            self.last.insert(port.to_owned(), Last { bad, at: now });
        }
        is_due
    }
}

/// Records an event for each port whose packets have wrong checksums, when it is due. `sums`: the
/// counts since the start, by the ports' names.
pub(crate) fn report_bad(
    told: &mut ChecksumEvents,
    (ports, sums): (&PortInfos, &BTreeMap<String, L4ChecksumCounts>),
    events: &Events,
) {
    let now = Instant::now();
    for (_, info) in ports.iter() {
        let Some(counts) = sums.get(&info.name) else { continue };
        if !told.is_due(&info.name, counts.bad, now) {
            continue;
        }
        let message = message(info, counts);
        let details: crate::events::Details<'_> =
            &[("bad", &counts.bad), ("checked", &counts.checked)];
        events.record(Kind::BadL4Checksum, &info.name, message, details);
    }
}

fn message(info: &PortInfo, counts: &L4ChecksumCounts) -> String {
    let L4ChecksumCounts { bad, checked, .. } = counts;
    let name = &info.name;
    let or_complete = match (info.side, info.l4_checksum) {
        (Side::Protected, L4Checksum::Pass) => {
            ", or here, if its netdev is veth, tap or virtio, l4_checksum = \"complete\""
        }
        _ => "",
    };
    format!(
        "port {name}: {bad} of {checked} sampled packets had a wrong TCP or UDP checksum, and \
         their receivers drop them. If the sender leaves checksums to its device, run there: \
         ethtool -K DEV tx off{or_complete}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_is_reported_at_first_and_then_once_an_hour_while_its_count_rises() {
        let mut events = ChecksumEvents::default();
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        assert!(!events.is_due("lan", 0, start));
        assert!(events.is_due("lan", 1, later(1)));
        assert!(!events.is_due("lan", 50, later(2)));
        assert!(events.is_due("dmz", 1, later(2)), "another port");
        assert!(!events.is_due("lan", 1, later(4000)), "none came since");
        assert!(events.is_due("lan", 51, later(4000)));
        assert!(!events.is_due("lan", 52, later(4001)));
    }
}
