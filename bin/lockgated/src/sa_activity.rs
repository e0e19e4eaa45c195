//! Activity of SAs: the time of the last packet of each, as the control loop sees it once a second.
//!
//! An inbound SA counts a packet only after its ICV was verified and its number was new; an
//! outbound one when it has sealed it. The counters are those that are kept anyway.

use std::time::Instant;

use dataplane::counters::Volume;

use crate::totals::SaKey;

/// The times of the last packets, by SA: of those that had some. Cheap to copy.
#[derive(Clone, Default)]
pub(crate) struct SaActivity {
    sas: imbl::HashMap<SaKey, Seen>,
}

/// The state of an SA.
#[derive(Clone, Copy)]
struct Seen {
    packets: u64,
    last: Option<Instant>,
}

impl SaActivity {
    /// Takes the current counts of all SAs; forgets SAs that are gone.
    pub(crate) fn observe(&mut self, now: Instant, sas: &imbl::HashMap<SaKey, Volume>) {
        let mut known = 0;
        for (key, volume) in sas {
            let packets = volume.packets;
            let seen = self.sas.get(key).map(|seen| seen.packets);
            // One that has this name anew may have counted less than the one before.
            if seen.unwrap_or(0) != packets {
                let last = (packets > 0).then_some(now);
                self.sas.insert(key.clone(), Seen { packets, last });
            }
            known += usize::from(seen.is_some() || packets > 0);
        }
        if self.sas.len() > known {
            self.sas.retain(|key, _| sas.contains_key(key));
        }
    }

    /// Time of the last packet of an SA, to a second; `None`: there was none.
    pub(crate) fn last_packet(&self, key: &SaKey) -> Option<Instant> {
        self.sas.get(key)?.last
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ipsec::Spi;
    use policy::Direction;

    use super::*;

    #[test]
    fn the_last_packet_is_that_of_the_last_sample_in_which_the_count_rose() {
        let key = |value| (Direction::Inbound, Spi::new(value).unwrap(), "a".to_owned());
        let counts = |all: &[(u32, u64)]| -> imbl::HashMap<SaKey, Volume> {
            let one =
                |(spi, packets): &(u32, u64)| (key(*spi), Volume { packets: *packets, bytes: 0 });
            all.iter().map(one).collect()
        };
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut activity = SaActivity::default();
        activity.observe(at(1), &counts(&[(500, 0), (501, 7)]));
        activity.observe(at(2), &counts(&[(500, 0), (501, 7)]));
        let last = |activity: &SaActivity, spi| activity.last_packet(&key(spi));
        assert_eq!((last(&activity, 500), last(&activity, 501)), (None, Some(at(1))));
        activity.observe(at(3), &counts(&[(500, 1), (501, 8)]));
        assert_eq!((last(&activity, 500), last(&activity, 501)), (Some(at(3)), Some(at(3))));
        // One is gone; another has the name of the other.
        activity.observe(at(4), &counts(&[(501, 2)]));
        assert_eq!((last(&activity, 500), last(&activity, 501)), (None, Some(at(4))));
        assert_eq!(activity.sas.len(), 1);
        // One without packets takes no memory.
        activity.observe(at(5), &counts(&[(502, 0)]));
        assert_eq!(activity.sas.len(), 0);
    }
}
