//! Reports of a worker, made in parts between turns. The cost of a part is bounded, however many
//! ports, netdevs, SAs and domains exist.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dataplane::counter_copy::{CopyProgress, CounterCopy};
use dataplane::{CacheCounters, Counters, FlowCache, NetdevId, Snapshot, Worker};
use io::{LivePort, XdpFrames};
use tokio::sync::oneshot;

/// Most netdevs of a part. Each socket costs a system call.
const STEP_NETDEVS: usize = 8;
/// Most domains of a part.
const STEP_DOMAINS: usize = 4096;
/// Most frames of a part whose owners are counted: some microseconds.
const STEP_FRAMES: usize = 2048;

/// Counts under a snapshot.
pub(crate) struct FlushedCounts {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) counters: Counters,
}

/// State of one worker's flow cache at one moment.
pub(crate) struct CacheReport {
    /// Room, in IPv4 entries and bytes.
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
    /// By domain: the valid entries, and whether the cache is bypassed.
    pub(crate) domains: Vec<(u64, bool)>,
    /// The cache has no room for another verdict.
    pub(crate) is_full: bool,
}

/// A worker's state. Each entry of a list shows a moment between two turns, all under the same
/// snapshot.
pub(crate) struct Report {
    /// The worker leaves the lists of policies empty.
    pub(crate) flushed: FlushedCounts,
    pub(crate) cache: Option<CacheReport>,
    /// Counters of the flow cache since the start.
    pub(crate) cache_counters: CacheCounters,
    pub(crate) census: xsk::Census,
    /// Bytes of a frame.
    pub(crate) frame_bytes: usize,
    /// Frames in each fill ring, and in each transmit ring, at most.
    pub(crate) quota: u32,
    pub(crate) waiting: usize,
    /// By slot of a netdev: the queues on this worker.
    pub(crate) queues: Vec<Vec<io::QueueStatistics>>,
    pub(crate) host: Option<io::TunStatistics>,
    pub(crate) turns: u64,
    pub(crate) sleeps: u64,
    /// Packets given to other workers, and taken from other workers, since the start.
    pub(crate) handed_over: u64,
    pub(crate) taken_over: u64,
    /// CPU time of the thread.
    pub(crate) cpu: Duration,
    pub(crate) changeovers: Changeovers,
}

/// Changes of a worker to another snapshot, and their time: no packet is processed meanwhile.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Changeovers {
    pub(crate) count: u64,
    pub(crate) spent: Duration,
    pub(crate) longest: Duration,
}

impl Changeovers {
    pub(crate) fn add(&mut self, spent: Duration) {
        self.count += 1;
        self.spent += spent;
        self.longest = self.longest.max(spent);
    }
}

/// The lists of a report under way.
pub(crate) struct ReportLists {
    pub(crate) counters: CounterCopy,
    pub(crate) queues: Vec<Vec<io::QueueStatistics>>,
    pub(crate) host: Option<io::TunStatistics>,
    pub(crate) domains: Vec<(u64, bool)>,
    /// Frames by owner, the last part.
    census: CensusProgress,
}

/// Progress of a report's census of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CensusProgress {
    NotBegun,
    UnderWay,
    Finished(xsk::Census),
}

impl ReportLists {
    /// Makes empty lists with room for a snapshot, on the requester's thread.
    pub(crate) fn with_room(snapshot: &Snapshot) -> ReportLists {
        ReportLists {
            counters: CounterCopy::with_room(snapshot),
            queues: Vec::with_capacity(snapshot.netdev_slots()),
            host: None,
            domains: Vec::with_capacity(snapshot.spd().domains().count()),
            census: CensusProgress::NotBegun,
        }
    }

    /// Frames by owner. Zeros before the last part.
    pub(crate) fn census(&self) -> xsk::Census {
        match self.census {
            CensusProgress::Finished(census) => census,
            CensusProgress::NotBegun | CensusProgress::UnderWay => xsk::Census::default(),
        }
    }

    /// Copies the next part. All parts belong to the same snapshot.
    fn step(&mut self, worker: &mut Worker<XdpFrames, LivePort>) -> CopyProgress {
        if self.counters.step(worker.counters()) == CopyProgress::Unfinished {
            return CopyProgress::Unfinished;
        }
        let slots = worker.netdevs().len();
        for slot in (self.queues.len()..slots).take(STEP_NETDEVS) {
            let (_, port) = worker.parts_mut(NetdevId(slot as u16));
            self.queues.push(match port {
                Some(LivePort::Xdp(port)) => port.statistics(),
                Some(LivePort::Tun(port)) => {
                    self.host = Some(port.statistics());
                    Vec::new()
                }
                None => Vec::new(),
            });
        }
        let domains = worker.cache().map_or(0, FlowCache::domains);
        if let Some(cache) = worker.cache() {
            let rest = cache.domain_uses(self.domains.len()).take(STEP_DOMAINS);
            self.domains.extend(rest);
        }
        if self.queues.len() < slots || self.domains.len() < domains {
            return CopyProgress::Unfinished;
        }
        self.count_frames(worker.frames_mut())
    }

    /// Counts the owners of the next frames. The census shows the moment of the last part.
    fn count_frames(&mut self, frames: &mut XdpFrames) -> CopyProgress {
        let umem = frames.umem_mut();
        if self.census == CensusProgress::NotBegun {
            // An abandoned report may have left a census under way.
            umem.begin_census();
        }
        match umem.go_on_with_census(STEP_FRAMES) {
            Some(census) => {
                self.census = CensusProgress::Finished(census);
                CopyProgress::Finished
            }
            None => {
                self.census = CensusProgress::UnderWay;
                CopyProgress::Unfinished
            }
        }
    }
}

/// Requested reports, the oldest first. Each requester waits for one report, and requests without
/// a requester leave the queue. So the queue is as long as the number of requesters at a time: the
/// control thread, `/healthz`, and the API's readers as far as the API admits them.
#[derive(Default)]
pub(crate) struct ReportQueue {
    asked: VecDeque<(ReportLists, oneshot::Sender<Report>)>,
}

impl ReportQueue {
    pub(crate) fn push(&mut self, lists: ReportLists, reply: oneshot::Sender<Report>) {
        self.asked.push_back((lists, reply));
        self.discard_abandoned();
    }

    /// Drops the requests whose requesters have gone.
    pub(crate) fn discard_abandoned(&mut self) {
        self.asked.retain(|(_, reply)| !reply.is_closed());
    }

    /// Returns whether no report is requested.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Copies a part of the oldest report. After the last part, returns the lists and the
    /// requester's channel.
    pub(crate) fn step(
        &mut self,
        worker: &mut Worker<XdpFrames, LivePort>,
    ) -> Option<(ReportLists, oneshot::Sender<Report>)> {
        let (lists, reply) = self.asked.front_mut()?;
        if reply.is_closed() {
            self.asked.pop_front();
            return None;
        }
        match lists.step(worker) {
            CopyProgress::Finished => self.asked.pop_front(),
            CopyProgress::Unfinished => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use config::ReplayKeys;
    use dataplane::Generation;

    use super::*;

    fn snapshot() -> Snapshot {
        let text = "[node]\nname = \"a\"\n[port.lan]\nnetdev = \"eth0\"\nside = \"protected\"\n";
        let config = config::parse(text, "a.toml").unwrap_or_else(|e| panic!("{e}")).validated;
        let keys = ReplayKeys::stand_ins(&config).unwrap();
        control::compile(&config, keys, Generation(1)).unwrap()
    }

    /// Frames change owners between the parts. An abandoned report leaves a census under way.
    #[test]
    fn a_report_has_the_census_of_its_last_part() {
        let (snapshot, frames) = (snapshot(), 2 * STEP_FRAMES as u32 + 100);
        let frames = XdpFrames::new(xsk::Umem::new(frames).unwrap());
        let mut worker: Worker<XdpFrames, LivePort> = Worker::new(&snapshot, frames, Vec::new());
        for abandons in [true, false] {
            let mut queue = ReportQueue::default();
            let (reply, answer) = oneshot::channel();
            queue.push(ReportLists::with_room(&snapshot), reply);
            let mut parts = 0;
            let lists = loop {
                parts += 1;
                let made = queue.step(&mut worker);
                let census = worker.frames().census();
                let _ = worker.frames_mut().umem_mut().take();
                if let Some((lists, _)) = made {
                    break Some((lists.census(), census));
                }
                if abandons && parts == 2 {
                    break None;
                }
            };
            drop(answer);
            if let Some((reported, counted)) = lists {
                assert_eq!(reported, counted);
                assert!(reported.outside > 2 && reported.imbalance() == 0, "{reported:?}");
                assert_eq!(parts, 3);
            }
            assert_eq!(lists.is_none(), abandons);
        }
    }

    #[test]
    fn requests_of_requesters_who_have_gone_leave_the_queue() {
        let snapshot = snapshot();
        let mut queue = ReportQueue::default();
        let mut waiting = Vec::new();
        for number in 0..1000 {
            let (reply, answer) = oneshot::channel();
            queue.push(ReportLists::with_room(&snapshot), reply);
            // One requester of a hundred waits for the answer.
            waiting.extend((number % 100 == 0).then_some(answer));
        }
        assert_eq!(waiting.len(), 10);
        assert!(queue.asked.len() <= waiting.len() + 1);
        waiting.truncate(3);
        queue.discard_abandoned();
        assert_eq!(queue.asked.len(), 3);
        waiting.clear();
        queue.discard_abandoned();
        assert!(queue.is_empty());
    }
}
