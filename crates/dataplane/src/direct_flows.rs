//! The flows of virtual networks that one worker has told their hosts direct paths of, and the
//! messages that wait: both bounded. `direct_paths` sends them, and ends paths.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use foldhash::quality::RandomState;
use wire::flow::protocol;
use wire::{DirectFlow, DirectPath, Family, Flow, Upper, Vni};

use crate::counters::DirectCounts;
use crate::overlays::OverlayId;
use crate::round_pace::RoundPace;
use crate::snapshot::Snapshot;

/// Flows that a worker has told at most.
pub(crate) const MAX_FLOWS: usize = 16_384;
/// Messages of a worker that wait at most.
pub(crate) const MAX_WAITING: usize = 1024;
/// Sets of quiet flows, a line of four each.
const QUIET_SETS: usize = 4096;
/// Time for which a flow goes on untold that there was no room for, nanoseconds.
const REFUSED_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The place that a flow comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sender {
    pub(crate) overlay: OverlayId,
    /// The entrance that its packets come to.
    pub(crate) entrance: Ipv4Addr,
    /// The host that sends them.
    pub(crate) host: Ipv4Addr,
}

/// A flow that its host was told of, or is to be.
pub(crate) struct Told {
    pub(crate) sender: Sender,
    /// The UDP port that the host hears at.
    pub(crate) udp_port: u16,
    /// The path that the host has; `None`: none was told.
    pub(crate) path: Option<DirectPath>,
    /// Time of the packet that the last message answers.
    pub(crate) said_ns: u64,
    /// Messages in a row, for the time until the next.
    tries: u8,
}

/// A message that waits.
pub(crate) enum Job {
    /// To tell the path of a flow in the table.
    Tell(DirectFlow),
    /// To end the path of a flow that no longer is.
    End(DirectFlow, Sender, (u16, DirectPath)),
}

/// A flow of which nothing is to be said before a time.
#[derive(Clone, Copy, Default)]
struct Quiet {
    /// [`hash`] of the flow. Another one with the same hash is told later than it could be.
    hash: u64,
    until_ns: u64,
}

/// The flows that one worker has told their hosts.
#[derive(Default)]
pub(crate) struct DirectFlows {
    is_on: bool,
    /// Quiet flows, each in the set that its hash says; none while nothing is told. They spare
    /// most packets the look into the table.
    quiet: Box<[[Quiet; 4]]>,
    flows: HashMap<DirectFlow, Told, RandomState>,
    /// The flows in the table, the next to be looked at first.
    order: VecDeque<DirectFlow>,
    pub(crate) jobs: VecDeque<Job>,
    /// Pace of the looks at flows.
    pub(crate) pace: RoundPace,
}

impl DirectFlows {
    /// None yet, under a snapshot.
    pub(crate) fn of(snapshot: &Snapshot) -> DirectFlows {
        let mut paths = DirectFlows::default();
        paths.adopt(snapshot);
        paths
    }

    /// Goes over to a snapshot: makes room for flows if one of its overlays tells them.
    pub(crate) fn adopt(&mut self, snapshot: &Snapshot) {
        let overlays = snapshot.overlays().map_or(&[][..], |it| it.overlays());
        self.is_on = overlays.iter().any(|overlay| overlay.direct_port.is_some());
        if self.is_on {
            if self.quiet.is_empty() {
                self.quiet = vec![[Quiet::default(); 4]; QUIET_SETS].into();
            }
            self.flows.reserve(MAX_FLOWS.saturating_sub(self.flows.len()));
            self.order.reserve(MAX_FLOWS.saturating_sub(self.order.len()));
            self.jobs.reserve(MAX_WAITING.saturating_sub(self.jobs.len()));
        }
    }

    /// Returns whether there are flows that hosts were told, or are to be.
    pub(crate) fn has_some(&self) -> bool {
        !self.order.is_empty() || !self.jobs.is_empty()
    }

    /// Returns whether the last look left flows over.
    pub(crate) fn is_behind(&self) -> bool {
        self.pace.is_behind()
    }

    /// Returns whether a snapshot has overlays whose flows are told.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Sees a packet of a flow that goes on by the gateway, of an overlay whose flows are told at
    /// this UDP port.
    #[inline]
    pub(crate) fn see(
        &mut self,
        flow: DirectFlow,
        from: (Sender, u16),
        counts: &mut DirectCounts,
        now_ns: u64,
    ) {
        let hash = hash(&flow);
        let quiet = &self.quiet[set_of(hash)];
        let is_quiet = |quiet: &Quiet| (quiet.hash == hash) & (now_ns < quiet.until_ns);
        if !quiet.iter().any(is_quiet) {
            self.note(flow, from, counts, now_ns);
        }
    }

    /// Puts a flow into the table and the queue, if it is time.
    #[inline(never)]
    fn note(
        &mut self,
        flow: DirectFlow,
        (sender, udp_port): (Sender, u16),
        counts: &mut DirectCounts,
        now_ns: u64,
    ) {
        let (flows, jobs) = (&mut self.flows, &mut self.jobs);
        let known = flows.get_mut(&flow);
        match &known {
            Some(told) if now_ns < told.quiet_until_ns() => {
                let until_ns = told.quiet_until_ns();
                return self.be_quiet(&flow, until_ns);
            }
            None if self.order.len() >= MAX_FLOWS || jobs.len() >= MAX_WAITING => {
                counts.refused += 1;
                return self.be_quiet(&flow, now_ns + REFUSED_NS);
            }
            _ if jobs.len() >= MAX_WAITING => return counts.refused += 1,
            _ => {}
        }
        jobs.push_back(Job::Tell(flow));
        match known {
            Some(told) => {
                (told.said_ns, told.tries) = (now_ns, told.tries.saturating_add(1));
                (told.sender, told.udp_port) = (sender, udp_port);
            }
            None => {
                let told = Told { sender, udp_port, path: None, said_ns: now_ns, tries: 0 };
                flows.insert(flow, told);
                self.order.push_back(flow);
            }
        }
    }

    /// Says nothing of a flow before a time.
    fn be_quiet(&mut self, flow: &DirectFlow, until_ns: u64) {
        let hash = hash(flow);
        let set = &mut self.quiet[set_of(hash)];
        // Its own place, or that of the flow that is quiet for the shortest time.
        let rank = |quiet: &&mut Quiet| if quiet.hash == hash { 0 } else { quiet.until_ns };
        if let Some(quiet) = set.iter_mut().min_by_key(rank) {
            *quiet = Quiet { hash, until_ns };
        }
    }

    /// Flows in the table.
    pub(crate) fn count(&self) -> usize {
        self.order.len()
    }

    /// A flow in the table.
    pub(crate) fn told(&mut self, flow: &DirectFlow) -> Option<&mut Told> {
        self.flows.get_mut(flow)
    }

    /// The flow that is to be looked at next, out of its turn, and what is known of it.
    pub(crate) fn next(&mut self) -> Option<(DirectFlow, &Told)> {
        let flow = self.order.pop_front()?;
        self.flows.get(&flow).map(|told| (flow, told))
    }

    /// Puts the flow that was looked at behind all others.
    pub(crate) fn keep(&mut self, flow: DirectFlow) {
        self.order.push_back(flow);
    }

    /// Forgets the flow that was looked at.
    pub(crate) fn forget(&mut self, flow: &DirectFlow) {
        self.flows.remove(flow);
        let hash = hash(flow);
        let set = self.quiet.get_mut(set_of(hash)).into_iter().flatten();
        set.filter(|quiet| quiet.hash == hash).for_each(|quiet| *quiet = Quiet::default());
    }
}

/// Hashes a flow: one multiplication. Whoever finds flows that meet finds that they are looked up.
fn hash(flow: &DirectFlow) -> u64 {
    let DirectFlow { vni, source, destination, protocol, ports } = flow;
    let ends = u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits());
    let ports = u64::from(ports.0) << 48 | u64::from(ports.1) << 32;
    let upper = ports | u64::from(*protocol) << 24 | u64::from(vni.get());
    let folded =
        u128::from(ends ^ 0x9e37_79b9_7f4a_7c15) * u128::from(upper ^ 0xd1b5_4a32_d192_ed03);
    (folded >> 64) as u64 ^ folded as u64
}

/// The set of quiet flows with a hash.
fn set_of(hash: u64) -> usize {
    hash as usize % QUIET_SETS
}

impl Told {
    /// Time from which packets that still come show that the host has not heard, nanoseconds.
    fn quiet_until_ns(&self) -> u64 {
        self.said_ns + (SECOND_NS << self.tries.min(4))
    }
}

/// Returns the flow of a tenant's packet as messages name it; `None`: it cannot be named.
pub(crate) fn direct_flow(vni: Vni, flow: &Flow) -> Option<DirectFlow> {
    let ports = match (flow.protocol, flow.upper) {
        _ if flow.family != Family::V4 => return None,
        (_, Upper::Fragment) => return None,
        (protocol::TCP | protocol::UDP, Upper::Ports { source, destination }) => {
            (source, destination)
        }
        _ => (0, 0),
    };
    let [source, destination] =
        [flow.source, flow.destination].map(|address| Ipv4Addr::from(address as u32));
    Some(DirectFlow { vni, source, destination, protocol: flow.protocol, ports })
}
