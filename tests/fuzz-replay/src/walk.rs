//! The whole walk: packets arrive at the laboratory's hub gateway in batches, and what leaves is
//! held against the policies by the oracle.
//!
//! The laboratory itself checks after each batch that every packet has its verdict, that every
//! ledger balances and that every frame is free again.

mod arrivals;

use std::collections::BTreeSet;

use dataplane::{DropReason, FastPathUse, PortId, RouteTarget, SaSet, SetIndex, Side, Verdict};
use ipsec::SequenceNumbers;
use model::spd::{Judgement, judge};
use packets::lab::{self, Hub, Laboratory, Outcome, Sent, WAN};
use policy::{Action, Direction, Policy, SaSetId};
use wire::flow::protocol;
use wire::{Address, Family, Flow, Upper, icmp};

use crate::Bytes;
use arrivals::{Arrival, Batch};

/// Batches of one input at most.
const MAX_BATCHES: usize = 64;

/// Reads the input as a gateway's shape and batches of packets (see `walk/arrivals.rs`), and lets
/// them arrive.
pub fn walk(data: &[u8]) {
    let mut input = Bytes::new(data);
    let frames = input.pick(&[96, 96, 96, 65, 3]);
    let frame_bytes = input.pick(&[4096, 4096, 1024, 16384]);
    let ring = input.pick(&[1024, 1024, 3]);
    let mut gateway = Gateway::new(|| Hub { frames, frame_bytes, ring, ..Hub::default() });
    for _ in 0..MAX_BATCHES {
        if input.is_empty() {
            break;
        }
        let batch = Batch::read(&mut input, &mut gateway.lab);
        gateway.arrive(&batch);
    }
}

/// Verdicts, with one reason for what the fast path and the general walk find out in different
/// order: a damaged copy of a packet of the same batch is refused by the cipher or by its number.
fn blurred(verdicts: &[Verdict]) -> Vec<Verdict> {
    let one = |verdict: &Verdict| match verdict {
        Verdict::Drop(DropReason::Replayed | DropReason::TooOld) => {
            Verdict::Drop(DropReason::Integrity)
        }
        verdict => *verdict,
    };
    verdicts.iter().map(one).collect()
}

/// The gateway, and what is known of it and its peers from outside.
struct Gateway {
    lab: Laboratory,
    /// The same gateway without the fast path.
    general: Laboratory,
    policies: Vec<Policy>,
    /// IVs that the gateway used, by set: none twice (DESIGN I8).
    ivs: BTreeSet<(u32, u64)>,
    /// Numbers that peers sealed packets under, by set, as the gateway can tell them apart.
    sealed: BTreeSet<(u32, u64)>,
    /// Flows that were allowed so far: later fragments have the ports of one of them, and may have
    /// waited for it.
    earlier: Vec<Allowed>,
    /// Flows of batches of which packets are still in a ring: without free frames none is received.
    waiting: Vec<Allowed>,
    /// Packets that arrived and have no verdict yet.
    unjudged: usize,
    /// One of them had no frame left for an ICMP message, which the other may have made.
    are_apart: bool,
}

impl Gateway {
    fn new(hub: impl Fn() -> Hub) -> Gateway {
        let policies = hub().policies;
        let (ivs, sealed) = (BTreeSet::new(), BTreeSet::new());
        let lab = |use_| hub().laboratory().remembering(64).with_fast_path(use_);
        let (fast, general) = (lab(FastPathUse::Eager), lab(FastPathUse::Never));
        let (earlier, waiting, unjudged) = (vec![], vec![], 0);
        Gateway {
            lab: fast,
            general,
            policies,
            ivs,
            sealed,
            earlier,
            waiting,
            unjudged,
            are_apart: false,
        }
    }

    /// Lets a batch arrive and judges all that leaves.
    fn arrive(&mut self, batch: &Batch) {
        self.lab.now_ns += batch.after_ns;
        self.general.now_ns = self.lab.now_ns;
        // Once a turn, as the daemon: a batch that takes the fast path alone ends no waiting.
        assert_eq!(self.lab.tick(), self.general.tick());
        let frames: Vec<&[u8]> = batch.arrivals.iter().map(|a| a.frame.as_slice()).collect();
        let outcome = self.lab.send_frames(batch.netdev, &frames);
        self.is_what_the_general_walk_says(batch, &frames, &outcome);
        self.nothing_was_opened_twice(batch);
        let allowed = self.allowed(batch);
        self.earlier.extend(&allowed);
        self.waiting.extend(&allowed);
        self.unjudged += batch.arrivals.len();
        let fragments = outcome.verdicts.contains(&Verdict::Consumed);
        for sent in &outcome.sent {
            let (flow, set) = self.read(sent);
            self.may_leave(sent, &flow, set, fragments);
            self.comes_from(sent, &flow, fragments);
        }
        self.unjudged = self.unjudged.saturating_sub(outcome.verdicts.len());
        if self.unjudged == 0 {
            self.waiting.clear();
        }
    }

    /// Holds verdicts, bytes and counts against the general walk. Where frames run out, who gets
    /// the last one is a matter of order.
    fn is_what_the_general_walk_says(
        &mut self,
        batch: &Batch,
        frames: &[&[u8]],
        outcome: &Outcome,
    ) {
        let expected = self.general.send_frames(batch.netdev, frames);
        let (fast, general) = (self.lab.counters(), self.general.counters());
        if fast.dropped(DropReason::NoFrame) + general.dropped(DropReason::NoFrame) > 0 {
            return;
        }
        self.are_apart |= fast.icmp_no_frame + general.icmp_no_frame > 0;
        if self.are_apart {
            return;
        }
        assert_eq!(blurred(&outcome.verdicts), blurred(&expected.verdicts));
        assert_eq!(outcome.sent, expected.sent);
        assert_eq!((&fast.sealed, &fast.opened), (&general.sealed, &general.opened));
        assert_eq!(fast.ledgers, general.ledgers);
    }

    /// DESIGN I8 and RFC 4303 §3.4.3: of each number at most one packet was delivered.
    fn nothing_was_opened_twice(&mut self, batch: &Batch) {
        for arrival in &batch.arrivals {
            if let Some((set, sequence)) = arrival.sealed_as {
                let number = match self.lab.peer(set).agreement.numbers {
                    SequenceNumbers::Short => sequence & u64::from(u32::MAX),
                    SequenceNumbers::Extended => sequence,
                };
                self.sealed.insert((set.0, number));
            }
        }
        for (sa, opened) in self.lab.counters().opened.iter().enumerate() {
            let sealed = self.sealed.iter().filter(|(set, _)| *set as usize == sa).count();
            assert!(opened.packets <= sealed as u64, "SA {sa}: {opened:?} of {sealed} sealed");
        }
    }

    /// The flows that may be carried on: all from the protected side; from the unprotected side
    /// those that the inbound policies let in, and what `allow_host` hands to Linux.
    fn allowed(&self, batch: &Batch) -> Vec<Allowed> {
        let mut allowed = vec![];
        for Arrival { clear, inside, .. } in &batch.arrivals {
            if let Some(flow) = clear {
                let is_forged = self.is_inside(flow.source_address());
                if batch.side == Side::Protected || (self.bypasses(flow) && !is_forged) {
                    allowed.push(Allowed { flow: *flow, only_to: None });
                } else if self.is_carved_out(flow) && !is_forged {
                    allowed.push(Allowed { flow: *flow, only_to: Some(lab::HOST) });
                }
            }
            if let Some((set, flow, quoted)) = inside
                && batch.side == Side::Unprotected
                && self.may_send(*set, flow, *quoted)
            {
                allowed.push(Allowed { flow: *flow, only_to: None });
            }
        }
        allowed
    }

    fn bypasses(&self, flow: &Flow) -> bool {
        let judgement = judge(&self.policies, Direction::Inbound, flow);
        matches!(judgement, Judgement::Entry(_, Action::Bypass))
    }

    /// The laboratory's `allow_host` (IKE), and neighbour discovery.
    fn is_carved_out(&self, flow: &Flow) -> bool {
        let destination = flow.destination_address();
        let ports = self.lab.snapshot.ports().map(|(_, port)| port);
        let mut unprotected = ports.filter(|port| port.side == Side::Unprotected);
        let outside = unprotected.any(|port| port.addresses.contains(&destination));
        let on_link =
            wire::packet::is_link_local(flow.family, flow.destination) && self.is_own(destination);
        (outside || on_link)
            && match (flow.protocol, flow.upper) {
                (protocol::UDP, Upper::Ports { destination, .. }) => {
                    [500, 4500].contains(&destination)
                }
                (protocol::UDP, Upper::Fragment) => true,
                (protocol::ICMPV6, Upper::Icmp { kind, .. }) => (133..=137).contains(&kind),
                _ => false,
            }
    }

    /// Ours, or behind a protected port: nobody outside speaks from there.
    fn is_inside(&self, address: Address) -> bool {
        let snapshot = &self.lab.snapshot;
        match snapshot.routes().lookup(address) {
            Some(RouteTarget::Local | RouteTarget::Broadcast) => true,
            Some(RouteTarget::Via(hop)) => {
                snapshot.port(snapshot.next_hop(hop).port).side == Side::Protected
            }
            Some(RouteTarget::Blackhole | RouteTarget::Elsewhere) | None => false,
        }
    }

    /// RFC 4301 §5.2 step 4 and §6.2: whether a peer may send this. What routers far away report
    /// (unreachable, too big, time exceeded, parameter problem) is judged by what it quotes.
    fn may_send(&self, set: SetIndex, flow: &Flow, quoted: Option<Flow>) -> bool {
        let is_report = match (flow.family, flow.upper) {
            (Family::V4, Upper::Icmp { kind, .. }) => [3, 11, 12].contains(&kind),
            (Family::V6, Upper::Icmp { kind, .. }) => [1, 2, 3, 4].contains(&kind),
            _ => false,
        };
        let asked = match quoted {
            _ if !is_report => *flow,
            Some(quoted)
                if quoted.source == flow.destination
                    && !icmp::is_error(&quoted)
                    && !self.is_inside(flow.source_address()) =>
            {
                quoted.reversed()
            }
            _ => return false,
        };
        let judgement = judge(&self.policies, Direction::Inbound, &asked);
        matches!(judgement, Judgement::Entry(_, Action::Protect(id)) if id == self.id(set))
    }

    /// The flow of a packet that left, and the set that it was sealed for.
    fn read(&mut self, sent: &Sent) -> (Flow, Option<SetIndex>) {
        let packet = wire::packet::parse(&sent.packet).expect("what leaves is a packet");
        let flow = packet.flow;
        let ends = (flow.source_address(), flow.destination_address());
        let is_ours = |set: &SaSet| ends == (set.tunnel.local.into(), set.tunnel.remote.into());
        let to_peer = self.lab.snapshot.sets().any(|(_, set)| is_ours(set));
        if sent.port != WAN || !to_peer || flow.protocol != protocol::ESP {
            return (flow, None);
        }
        for set in lab::agreements().map(|agreement| agreement.index) {
            if let Some(opened) = self.lab.peer(set).open(&sent.packet) {
                assert!(self.ivs.insert((set.0, opened.iv)), "IV {} came twice", opened.iv);
                assert_eq!(opened.iv as u32, opened.sequence_low);
                let inner = wire::packet::parse(&opened.inner).expect("what is sealed is a packet");
                return (inner.flow, Some(set));
            }
        }
        panic!("ESP that no peer opens: {:x?}", sent.packet);
    }

    /// RFC 4301 §5.1: whatever leaves by an unprotected port leaves as the outbound policies say.
    fn may_leave(&self, sent: &Sent, flow: &Flow, set: Option<SetIndex>, fragments: bool) {
        if self.lab.snapshot.port(sent.port).side == Side::Protected {
            return;
        }
        let asked = judge(&self.policies, Direction::Outbound, flow);
        let is_later = flow.upper == Upper::Fragment;
        let of_first = |known: &Allowed| {
            let asked = judge(&self.policies, Direction::Outbound, &known.flow);
            are_of_one_datagram(&known.flow, flow) && self.is_way(asked, set)
        };
        // A later piece of what the gateway judged when it was whole, or by its first one.
        let follows = || is_later && (fragments || self.earlier.iter().any(of_first));
        let right = match asked {
            Judgement::Opaque(_) => follows(),
            asked => self.is_way(asked, set),
        };
        assert!(right, "{flow:?} left for {set:?}, but {asked:?}");
    }

    /// Returns whether a packet may leave sealed for a set, or in clear, by this judgement.
    fn is_way(&self, asked: Judgement, set: Option<SetIndex>) -> bool {
        match (asked, set) {
            (Judgement::Entry(_, Action::Protect(id)), Some(set)) => id == self.id(set),
            (Judgement::Entry(_, Action::Bypass), None) => true,
            _ => false,
        }
    }

    /// Asserts that a packet that leaves came in and was allowed in, or is an ICMP error of ours.
    fn comes_from(&self, sent: &Sent, flow: &Flow, fragments: bool) {
        let allowed = &self.waiting;
        let ends = |flow: &Flow| (flow.family, flow.source, flow.destination, flow.protocol);
        let is_it = |known: &Allowed| {
            let same = known.flow == *flow || fragments && ends(&known.flow) == ends(flow);
            same && known.only_to.is_none_or(|port| port == sent.port)
        };
        let is_ours = icmp::is_error(flow) && self.is_own(flow.source_address());
        // It waited, or its first one says what it is.
        let follows = |known: &Allowed| {
            let may_leave = known.only_to.is_none_or(|port| port == sent.port);
            flow.upper == Upper::Fragment && are_of_one_datagram(&known.flow, flow) && may_leave
        };
        // ESP that came in fragments and is put together may go to Linux a batch later.
        let was_put_together = |known: &Allowed| {
            sent.port == lab::HOST && flow.protocol == protocol::ESP && known.flow == *flow
        };
        let is_known = |known: &Allowed| follows(known) || was_put_together(known);
        let came = allowed.iter().any(is_it) || self.earlier.iter().any(is_known);
        assert!(is_ours || came, "{flow:?} left, allowed: {allowed:?}");
    }

    fn is_own(&self, address: Address) -> bool {
        self.lab.snapshot.ports().any(|(_, port)| port.addresses.contains(&address))
    }

    fn id(&self, set: SetIndex) -> SaSetId {
        self.lab.snapshot.set(set).id
    }
}

/// A flow that may be carried on, perhaps only out by one port.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    flow: Flow,
    only_to: Option<PortId>,
}

/// Returns whether two flows may be of the fragments of one datagram: of IPv6 the first one alone
/// says the protocol.
fn are_of_one_datagram(one: &Flow, other: &Flow) -> bool {
    let ends = |flow: &Flow| (flow.family, flow.source, flow.destination);
    ends(one) == ends(other) && (one.family == Family::V6 || one.protocol == other.protocol)
}

/// The ports that packets arrive by.
const PORTS: [PortId; 4] = [lab::LAN, WAN, lab::LAN2, lab::HOST];

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A UDP packet from the lan to berlin's network, and one from berlin to the lan.
    const THERE: [u8; 10] = [0, 1, 0, 0, 0, 1, 20, 0, 0, 1];
    const BACK: [u8; 13] = [1, 1, 1, 0, 0, 1, 0, 20, 0, 0, 1, 0, 0];

    /// Returns whether the judge is content with a gateway, if it believes in these policies.
    fn content(change: impl Fn(&mut Policy), input: &[u8]) -> bool {
        let mut gateway = Gateway::new(Hub::default);
        gateway.policies.iter_mut().for_each(change);
        let batch = Batch::read(&mut Bytes::new(input), &mut gateway.lab);
        catch_unwind(AssertUnwindSafe(|| gateway.arrive(&batch))).is_ok()
            && gateway.lab.counters().total().sent == 1
    }

    #[test]
    fn a_gateway_that_follows_other_policies_than_the_judge_is_found_out() {
        let berlin = |change: fn(&mut Policy)| {
            move |policy: &mut Policy| {
                if policy.name == "berlin-net" {
                    change(policy);
                }
            }
        };
        for input in [&THERE[..], &BACK] {
            assert!(content(|_| {}, input));
            assert!(!content(berlin(|policy| policy.action = Action::Discard), input));
            assert!(!content(berlin(|policy| policy.action = Action::Bypass), input));
            let carla = |policy: &mut Policy| policy.action = Action::Protect(SaSetId(101));
            assert!(!content(berlin(carla), input));
            assert!(!content(berlin(|policy| policy.selector.local.clear()), input));
        }
    }

    #[test]
    fn a_packet_that_was_opened_twice_is_found_out() {
        let mut gateway = Gateway::new(Hub::default);
        let batch = Batch::read(&mut Bytes::new(&BACK), &mut gateway.lab);
        gateway.arrive(&batch);
        gateway.sealed.clear();
        let other = Batch::read(&mut Bytes::new(&THERE), &mut gateway.lab);
        assert!(catch_unwind(AssertUnwindSafe(|| gateway.arrive(&other))).is_err());
    }
}
