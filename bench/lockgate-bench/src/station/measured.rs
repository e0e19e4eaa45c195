//! Figures of a row's laps.

use serde::Serialize;

use super::super::measure::{Figure, Span};
use super::super::rows::undisturbed;
use super::{LapFigures, Station};

/// Figures of a row's laps.
#[derive(Clone, Debug, Default, Serialize)]
pub(in super::super) struct Measured {
    pub(in super::super) mpps: f64,
    /// Rate of inner IP packets.
    pub(in super::super) gbps: f64,
    /// CPU time, median of the laps.
    pub(in super::super) ns_per_packet: f64,
    /// The yardstick, median of the laps: a header line read, 66 bytes and a descriptor written for
    /// each frame, in the order of the last walk of a lap. Nothing is ciphered here.
    pub(in super::super) touch_ns: f64,
    /// Time a packet over the yardstick of the same lap, median of the laps.
    pub(in super::super) yardstick_ratio: f64,
    /// Distance of the quartiles of `yardstick_ratio` as a part of its median.
    pub(in super::super) yardstick_ratio_spread: f64,
    /// Part of the timed packets that the cache answered, mean of the laps.
    pub(in super::super) hit_rate: f64,
    /// Part of the timed packets whose policies were searched, mean of the laps.
    pub(in super::super) search_rate: f64,
    /// Part of the timed packets that a card's tag decided, mean of the laps.
    pub(in super::super) tag_rate: f64,
    /// Packets of the laps that were judged again.
    pub(in super::super) audited: u64,
    /// Distance of the quartiles of `ns_per_packet` as a part of its median.
    pub(in super::super) spread: f64,
    pub(in super::super) ns_best_quartile: f64,
    pub(in super::super) ns_min: f64,
    pub(in super::super) ns_max: f64,
    /// Entries that the cache has room for; 0: there is none.
    pub(in super::super) cache_entries: usize,
    /// Live connections; 0: none are tracked.
    pub(in super::super) connections: usize,
    pub(in super::super) in_flight: usize,
    pub(in super::super) laps: usize,
    /// Laps that are in no figure: the thread did not have its core.
    pub(in super::super) laps_discarded: usize,
    pub(in super::super) packets_per_lap: usize,
    pub(in super::super) share_of_core: f64,
}

/// The meaning of the columns.
pub(in super::super) const LEGEND: &str = "\
    ns/packet: CPU time of the thread, median of laps; each packet in a frame of its own, filled \
    outside the timed span.\n\
    ± IQR: distance of the quartiles over the median. best quartile: a quarter of the laps took \
    less.\n\
    touch ns: a line of each header read, 66 bytes written around the packet, and a descriptor, \
    for the same frames in the same order.\n\
    ÷ yardstick: ns/packet over touch ns of the same lap; it compares machines, as ns do not.\n\
    hits: part of the packets that the cache answered. walk: fast, the fast path where it takes \
    packets; general, the general walk alone.";

impl Measured {
    /// Heads of the [`cells`](Self::cells).
    pub(in super::super) const HEADS: [&str; 9] = [
        "ns/packet",
        "± IQR",
        "best quartile",
        "touch ns",
        "÷ yardstick",
        "± IQR",
        "hits",
        "core",
        "laps",
    ];

    /// Computes the figures of a station from its laps.
    pub(in super::super) fn of(station: &Station, laps: &[LapFigures]) -> Measured {
        let measured = Measured::of_laps(laps, station.setting.traffic.size);
        let (cache_entries, in_flight) = (station.cache_entries(), station.in_flight);
        let connections = station.connections();
        Measured { cache_entries, connections, in_flight, ..measured }
    }

    /// Computes the figures of laps with IP packets of this size, in bytes.
    pub(in super::super) fn of_laps(laps: &[LapFigures], size: usize) -> Measured {
        let (kept, discarded) = undisturbed(laps, |lap| lap.span);
        let figure =
            |of: fn(&LapFigures) -> f64| Figure::of(&kept.iter().map(of).collect::<Vec<f64>>());
        let mean =
            |of: fn(&LapFigures) -> f64| kept.iter().map(of).sum::<f64>() / kept.len() as f64;
        let (ns, ratio) = (figure(|lap| lap.ns), figure(|lap| lap.ns / lap.touch_ns));
        let mut span = Span::default();
        kept.iter().for_each(|lap| span.add(lap.span));
        let mpps = 1e3 / ns.median;
        Measured {
            mpps,
            gbps: 8e-3 * size as f64 * mpps,
            ns_per_packet: ns.median,
            touch_ns: figure(|lap| lap.touch_ns).median,
            yardstick_ratio: ratio.median,
            yardstick_ratio_spread: ratio.spread,
            hit_rate: mean(|lap| lap.hit_rate),
            search_rate: mean(|lap| lap.search_rate),
            tag_rate: mean(|lap| lap.tag_rate),
            audited: kept.iter().map(|lap| lap.audited).sum(),
            spread: ns.spread,
            ns_best_quartile: ns.first_quartile,
            ns_min: ns.least,
            ns_max: ns.most,
            cache_entries: 0,
            connections: 0,
            in_flight: 0,
            laps: kept.len(),
            laps_discarded: discarded,
            packets_per_lap: kept.first().map_or(0, |lap| lap.packets),
            share_of_core: span.share_of_core(),
        }
    }

    /// The columns of a table that all such benches show.
    pub(in super::super) fn cells(&self) -> [String; 9] {
        [
            format!("{:.1}", self.ns_per_packet),
            format!("{:.1} %", self.spread * 100.0),
            format!("{:.1}", self.ns_best_quartile),
            format!("{:.1}", self.touch_ns),
            format!("{:.2}", self.yardstick_ratio),
            format!("{:.1} %", self.yardstick_ratio_spread * 100.0),
            format!("{:.2} %", self.hit_rate * 100.0),
            format!("{:.0} %", self.share_of_core * 100.0),
            format!("{}-{}", self.laps + self.laps_discarded, self.laps_discarded),
        ]
    }
}
