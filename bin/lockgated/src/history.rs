//! The last minute: samples of the counters, one a second, so that one question is enough to get
//! rates. Samples of an earlier time than [`EACH_SECOND`] ago are kept [`APART`], and a sample
//! shares with the one before what it counted alike: with thousands of SAs they would be the
//! largest part of the daemon.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::DropReason;
use dataplane::counters::Volume;
use imbl::OrdMap;
use ipsec::Spi;

/// Samples reach back this far.
const REACH: Duration = Duration::from_secs(60);
/// Rates are means over about this time.
const RATE_TIME: Duration = Duration::from_secs(5);
/// Every sample is kept for this long.
const EACH_SECOND: Duration = Duration::from_secs(10);
/// Least time between two samples that are older than that.
const APART: Duration = Duration::from_secs(5);
/// Samples that are kept; a clock that ticks too often drops the oldest.
const MAX_SAMPLES: usize = 128;

/// Counters at one moment, all of them sums since the daemon started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    /// Received and transmitted packets, by port.
    pub(crate) ports: BTreeMap<String, PortVolume>,
    /// Sealed and opened, by peer.
    pub(crate) peers: OrdMap<Arc<str>, [Volume; 2]>,
    pub(crate) drops: BTreeMap<DropReason, u64>,
    /// Inbound SAs by peer and SPI.
    pub(crate) inbound: OrdMap<(Arc<str>, Spi), SaNumbers>,
    /// Frames that the kernel dropped because a worker's receive ring was full.
    pub(crate) ring_full: u64,
}

/// An inbound SA's sequence numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SaNumbers {
    /// Highest number received.
    pub(crate) edge: u64,
    /// Packets opened.
    pub(crate) opened: u64,
}

/// A port's counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PortVolume {
    pub(crate) received_packets: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) transmitted: Volume,
}

/// The samples of the last minute, oldest first.
#[derive(Clone, Default)]
pub(crate) struct History {
    samples: VecDeque<Arc<Sample>>,
}

/// Two samples, and the time between them.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) from: &'a Sample,
    pub(crate) to: &'a Sample,
}

impl History {
    /// Keeps a sample. Drops samples that are older than a minute, except the youngest of them, so
    /// that a full minute is covered, and others that lie close together.
    pub(crate) fn keep(&mut self, sample: Sample) {
        let now = sample.at;
        self.samples.push_back(sample.into());
        while self.samples.len() > MAX_SAMPLES
            || self.samples.get(1).is_some_and(|next| now - next.at >= REACH)
        {
            self.samples.pop_front();
        }
        let mut last: Option<Instant> = None;
        self.samples.retain(|sample| {
            let at = sample.at;
            let is_close = |last| at - last < APART;
            let stays = now - at <= EACH_SECOND || !last.is_some_and(is_close);
            last = if stays { Some(at) } else { last };
            stays
        });
    }

    /// The last sample.
    pub(crate) fn last(&self) -> Option<&Arc<Sample>> {
        self.samples.back()
    }

    /// Returns the last minute, or the time since the start if that is shorter; `None`: the daemon
    /// has just started.
    pub(crate) fn minute(&self) -> Option<Span<'_>> {
        self.span(REACH)
    }

    /// The last seconds, for rates; `None`: the daemon has just started.
    pub(crate) fn lately(&self) -> Option<Span<'_>> {
        self.span(RATE_TIME)
    }

    fn span(&self, time: Duration) -> Option<Span<'_>> {
        let to = self.samples.back()?;
        let is_old = |sample: &&Arc<Sample>| to.at - sample.at >= time;
        let from = self.samples.iter().rev().find(is_old).or_else(|| self.samples.front())?;
        (from.at < to.at).then_some(Span { from, to })
    }
}

impl Span<'_> {
    /// Time between the two samples.
    pub(crate) fn time(&self) -> Duration {
        self.to.at - self.from.at
    }

    /// Returns the rate per second between two counts. A counter that fell (it started again) gives
    /// 0.
    pub(crate) fn per_second(&self, from: u64, to: u64) -> u64 {
        (to.saturating_sub(from) as f64 / self.time().as_secs_f64()).round() as u64
    }

    /// Packets and bytes a second.
    pub(crate) fn rate(&self, from: Volume, to: Volume) -> Volume {
        Volume {
            packets: self.per_second(from.packets, to.packets),
            bytes: self.per_second(from.bytes, to.bytes),
        }
    }

    /// A port's counters, before and after.
    pub(crate) fn port(&self, name: &str) -> [PortVolume; 2] {
        [self.from, self.to].map(|sample| sample.ports.get(name).copied().unwrap_or_default())
    }

    /// Packets sealed for a peer and opened from it, before and after.
    pub(crate) fn peer(&self, name: &str) -> [[Volume; 2]; 2] {
        [self.from, self.to].map(|sample| sample.peers.get(name).copied().unwrap_or_default())
    }

    /// Numbers that a peer's SAs went through, and the packets opened, at most one a number: the
    /// difference was lost. SAs that came or went in between are left out.
    pub(crate) fn numbers(&self, peer: &str) -> SaNumbers {
        let mut sum = SaNumbers::default();
        let first = (Arc::from(peer), Spi::LOWEST);
        let of_peer = self.to.inbound.range(first..).take_while(|((name, _), _)| **name == *peer);
        for (key, to) in of_peer {
            let Some(from) = self.from.inbound.get(key) else { continue };
            let edge = to.edge.saturating_sub(from.edge);
            sum.edge += edge;
            sum.opened += to.opened.saturating_sub(from.opened).min(edge);
        }
        sum
    }

    /// Frames that were lost before a worker.
    pub(crate) fn ring_full(&self) -> u64 {
        self.to.ring_full.saturating_sub(self.from.ring_full)
    }

    /// Drops for a reason.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        let [from, to] = [self.from, self.to]
            .map(|sample| sample.drops.get(&reason).copied().unwrap_or_default());
        to.saturating_sub(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(start: Instant, second: u64) -> Sample {
        let transmitted = Volume { packets: 100 * second, bytes: 1000 * second };
        let port = PortVolume { received_packets: 10 * second, transmitted, ..Default::default() };
        Sample {
            at: start + Duration::from_secs(second),
            ports: [("wan".to_owned(), port)].into(),
            peers: OrdMap::unit("b".into(), [transmitted, Volume::default()]),
            drops: [(DropReason::NoMatch, second)].into(),
            inbound: [("a", 1, 5), ("b", 1, 10), ("b", 2, 1), ("c", 1, 0)]
                .map(|(peer, spi, edges)| {
                    let spi = Spi::new(Spi::LOWEST.value() + spi).unwrap();
                    let numbers = SaNumbers { edge: edges * second, opened: 8 * second };
                    ((peer.into(), spi), numbers)
                })
                .into_iter()
                .collect(),
            ring_full: 2 * second,
        }
    }

    #[test]
    fn rates_come_from_the_last_seconds_and_drops_from_the_last_minute() {
        let (mut history, start) = (History::default(), Instant::now());
        assert!(history.minute().is_none());
        for second in 0..200 {
            history.keep(sample(start, second));
            assert_eq!(history.lately().is_none(), second == 0);
        }
        let (lately, minute) = (history.lately().unwrap(), history.minute().unwrap());
        assert_eq!((lately.time(), minute.time()), (RATE_TIME, REACH + Duration::from_secs(4)));
        let [from, to] = lately.port("wan");
        assert_eq!(lately.per_second(from.received_packets, to.received_packets), 10);
        let rate = lately.rate(from.transmitted, to.transmitted);
        assert_eq!(rate, Volume { packets: 100, bytes: 1000 });
        let [from, to] = lately.peer("b");
        assert_eq!(lately.rate(from[0], to[0]).bytes, 1000);
        assert_eq!(minute.dropped(DropReason::NoMatch), 64);
        assert_eq!(minute.dropped(DropReason::NoRoute), 0);
        // Of one SA 10 numbers a second and 8 packets; of the other no more packets than numbers.
        assert_eq!(minute.numbers("b"), SaNumbers { edge: 704, opened: 576 });
        assert_eq!(minute.numbers("nobody"), SaNumbers::default());
        assert_eq!(minute.ring_full(), 128);
        assert!(history.samples.len() <= 22, "{}", history.samples.len());
        // At whichever second somebody asks, the minute is one, to five seconds.
        for second in 200..300 {
            history.keep(sample(start, second));
            let (lately, minute) = (history.lately().unwrap(), history.minute().unwrap());
            assert_eq!(lately.time(), RATE_TIME);
            assert!((REACH..REACH + APART).contains(&minute.time()), "{:?}", minute.time());
        }
    }

    #[test]
    fn memory_is_bounded_whatever_the_clock_does() {
        let (mut history, start) = (History::default(), Instant::now());
        for _ in 0..10 * MAX_SAMPLES {
            history.keep(sample(start, 1));
        }
        assert!(history.samples.len() <= MAX_SAMPLES);
        assert!(history.lately().is_none(), "no time has passed");
    }

    #[test]
    fn a_counter_that_begins_anew_gives_no_rate() {
        let (mut history, start) = (History::default(), Instant::now());
        history.keep(sample(start, 5));
        let mut next = sample(start, 6);
        next.ports.clear();
        history.keep(next);
        let span = history.lately().unwrap();
        let [from, to] = span.port("wan");
        assert_eq!(span.per_second(from.received_packets, to.received_packets), 0);
    }
}
