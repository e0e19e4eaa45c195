//! The workers of a row: stations under one snapshot, each with frames, a flow cache, an SA and
//! flows of its own, and on a core of its own. Their timed spans begin together.

use std::sync::Arc;
use std::thread;

use dataplane::{CardMarks, Handovers, PortId, Snapshot, SnapshotParts};
use io::memory::MemoryFrames;
use scene::{Case, Keys, Random};

use super::super::lap::{LeaveNotice, Start};
use super::super::lap_error::LapError;
use super::super::machine;
use super::{CardTags, LapFigures, Measured, Setting, Station};

/// A row's snapshot and the keys of its workers' SAs.
pub(super) struct Gateway {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) keys: Vec<Keys>,
}

impl Gateway {
    /// The gateway of a setting, with an SA for each of its workers.
    ///
    /// # Errors
    /// [`LapError`].
    pub(super) fn new(setting: &Setting, workers: usize) -> Result<Gateway, LapError> {
        let traffic = Case { workers, ..setting.traffic };
        let keys = (0..workers).map(|_| Keys::fresh(traffic.suite));
        let keys = keys.collect::<Result<Vec<Keys>, _>>()?;
        let mut parts = traffic.parts(&keys, setting.spd.clone())?;
        if setting.known.is_some() {
            parts.routes.push(traffic.default_route());
        }
        let connections = setting.connections.clone();
        let ingress = PortId(traffic.ingress().0);
        let tagged = |card: &Arc<CardTags>| CardMarks::new([(ingress, card.placements.clone())]);
        let cards = setting.card.as_ref().map(|card| tagged(card).into());
        let snapshot = Snapshot::new(SnapshotParts { connections, cards, ..parts })?;
        Ok(Gateway { snapshot: snapshot.into(), keys })
    }
}

/// All stations of a row.
pub(in super::super) struct Crew(Vec<Station>);

impl Crew {
    /// Makes a worker for each of these frames.
    ///
    /// # Errors
    /// [`LapError`].
    pub(in super::super) fn new(
        setting: &Setting,
        cache_entries: usize,
        in_flight: usize,
        frames: &mut [MemoryFrames],
        random: &mut Random,
    ) -> Result<Crew, LapError> {
        let workers = frames.len();
        let gateway = Gateway::new(setting, workers)?;
        let handovers = Handovers::among(workers as u32, &[0; 32]);
        let start = Arc::new(Start::of(workers));
        let mut stations = Vec::with_capacity(workers);
        for ((number, handovers), frames) in handovers.into_iter().enumerate().zip(frames) {
            let (setting, place) = (setting.clone(), (number, handovers));
            let sizes = (cache_entries, in_flight);
            let mut station = Station::of(setting, &gateway, place, sizes, random)?;
            station.within(frames, |station| station.settle(random))?;
            stations.push(station);
        }
        let packets = stations.iter().map(|station| station.packets).min().unwrap_or_default();
        for station in &mut stations {
            (station.packets, station.start) = (packets, Some(start.clone()));
        }
        Ok(Crew(stations))
    }

    /// The row in an error message.
    pub(in super::super) fn label(&self) -> &str {
        self.0.first().map_or("", Station::label)
    }

    /// One lap of all workers: the first on this thread, the others on further cores. Each has the
    /// frames of its number.
    ///
    /// # Errors
    /// [`LapError`].
    pub(in super::super) fn lap(
        &mut self,
        frames: &mut [MemoryFrames],
        cores: &[usize],
        random: &mut Random,
    ) -> Result<LapFigures, LapError> {
        let seeds: Vec<u64> = self.0.iter().map(|_| random.seed()).collect();
        let mut workers = self.0.iter_mut().zip(frames).zip(seeds).enumerate();
        let lap = |((station, frames), seed): ((&mut Station, &mut MemoryFrames), u64)| {
            let start = station.start.clone();
            let _left = start.as_deref().map(LeaveNotice);
            station.lap(frames, &mut Random::new(seed))
        };
        let first = workers.next();
        let laps = thread::scope(|scope| {
            let others: Vec<_> = workers
                .map(|(number, worker)| {
                    let core = cores.get(number).copied();
                    scope.spawn(move || {
                        core.map_or(Ok(0), |core| machine::pin(Some(core)))
                            .map_err(LapError::Pin)?;
                        lap(worker)
                    })
                })
                .collect();
            let own = first.map(|(_, worker)| lap(worker));
            let joined = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            own.into_iter().chain(joined).collect::<Result<Vec<LapFigures>, LapError>>()
        })?;
        Ok(together(&laps))
    }

    /// The figures of the row's laps: rates of all workers together.
    pub(in super::super) fn measured(&self, laps: &[LapFigures]) -> Measured {
        let measured = Measured::of(&self.0[0], laps);
        let workers = self.0.len() as f64;
        Measured { mpps: measured.mpps * workers, gbps: measured.gbps * workers, ..measured }
    }
}

/// Combines workers that ran side by side: the time a packet at which each would have to run for
/// all together to be as fast as they were, and the span of the one that had the least of its core.
fn together(laps: &[LapFigures]) -> LapFigures {
    let count = laps.len() as f64;
    let time =
        |of: fn(&LapFigures) -> f64| count / laps.iter().map(|lap| 1.0 / of(lap)).sum::<f64>();
    let part = |of: fn(&LapFigures) -> f64| laps.iter().map(of).sum::<f64>() / count;
    let share = |lap: &LapFigures| lap.span.share_of_core();
    let span = laps.iter().min_by(|a, b| share(a).total_cmp(&share(b))).map(|lap| lap.span);
    LapFigures {
        ns: time(|lap| lap.ns),
        touch_ns: time(|lap| lap.touch_ns),
        hit_rate: part(|lap| lap.hit_rate),
        search_rate: part(|lap| lap.search_rate),
        tag_rate: part(|lap| lap.tag_rate),
        audited: laps.iter().map(|lap| lap.audited).sum(),
        span: span.unwrap_or_default(),
        packets: laps.iter().map(|lap| lap.packets).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::measure::Span;
    use super::*;
    use std::time::Duration;

    #[test]
    fn workers_together_are_as_fast_as_their_rates_and_as_disturbed_as_the_worst() {
        let lap = |ns, cpu| {
            let span = Span { cpu: Duration::from_millis(cpu), wall: Duration::from_millis(10) };
            let (touch_ns, hit_rate, search_rate, packets) = (4.0, 1.0, 0.0, 100);
            LapFigures { ns, touch_ns, hit_rate, search_rate, span, packets, ..LapFigures::ZERO }
        };
        let both = together(&[lap(20.0, 10), lap(60.0, 5)]);
        // 50 and 16.7 million a second: 33.3 each.
        assert!((both.ns - 30.0).abs() < 1e-9 && both.packets == 200, "{both:?}");
        assert_eq!(both.span.share_of_core(), 0.5);
    }
}
