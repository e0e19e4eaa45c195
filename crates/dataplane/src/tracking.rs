//! Connections on a packet's way: which connection a packet is of at the ports that it passes, what
//! follows for its verdict, and how the connection goes on.
//!
//! A port whose groups have a `reflect` rule tracks connections: it is a zone of its own. A packet
//! passes at most two such ports, the one by which it came and the one by which it leaves. A
//! virtual network is both at once for what its endpoints send each other. For each of them:
//!
//! 1. The connection is looked up, by the packet's addresses and ports in either direction. If the
//!    rules of the groups that let it begin have changed since, the flow of its first packet is
//!    judged again by the same groups; if no `reflect` rule permits it any more, the connection is
//!    removed, in both directions.
//! 2. A packet of a connection is not judged by the groups of the port. The SPD judges every packet
//!    by its own flow.
//! 3. If the packet passes, its connection goes on, or one begins if a `reflect` rule let it pass.
//!
//! What was opened is asked about twice, whether it may come and whether it may leave. A connection
//! that it begins when it comes is known when it leaves, if it leaves by the same port.
//!
//! An ICMP error is of the connection whose packet it quotes; it begins none and refreshes none.
//! The walk, the fast path and `explain` all ask here.
//!
//! **Order.** Packets of one flow are judged in the order in which they came. In a batch an ICMP
//! error may overtake packets of the flow that it quotes, as it may on the network.

use policy::connection::{self, Event, Next, Segment, Shown, Side};
use policy::{
    DomainId, FlowAction, FlowVerdict, GroupSide, KnownConnections, PolicyIndex, Refusal,
    TrackedVerdict,
};
use wire::flow::protocol;
use wire::{Flow, Fragment, Packet, icmp};

use crate::connections::{
    Connections, EchoMessage, Found, Gate, Inserted, Judgement, Key, Observed, Place, Zone,
};
use crate::row::Row;
use crate::snapshot::Snapshot;

/// A packet as connections see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appearance {
    /// The packet's flow; of an ICMP error that of the packet which it quotes.
    flow: Flow,
    /// Identifier of an ICMP echo.
    echo: Option<u16>,
    shown: Shown,
}

impl Appearance {
    /// Returns how a packet appears; `bytes` is the packet. `None`: it is of no connection.
    pub(crate) fn of(row: &Row, bytes: &[u8]) -> Option<Appearance> {
        Appearance::of_packet(&row.packet, row.echo, bytes)
    }

    /// Returns how a packet appears; `bytes` begins with it. `echo` is the identifier of an ICMP
    /// echo where only the first fragment shows it.
    pub(crate) fn of_packet(
        packet: &Packet,
        echo: Option<u16>,
        bytes: &[u8],
    ) -> Option<Appearance> {
        if icmp::is_error(&packet.flow) {
            // It goes to who sent what it quotes, or quotes nothing.
            let (flow, echo) = icmp::quoted(bytes, packet)
                .filter(|(quoted, _)| quoted.source == packet.flow.destination)?;
            return Some(Appearance { flow, echo, shown: Shown::IcmpError });
        }
        let upper = bytes.get(usize::from(packet.upper_offset)..).unwrap_or(&[]);
        let is_later = packet.fragment == Fragment::Later;
        let flags = upper.get(13).copied().filter(|_| !is_later);
        Appearance::of_flow(
            &packet.flow,
            flags.unwrap_or(0),
            echo.or_else(|| icmp::echo_identifier(packet, bytes)),
        )
    }

    /// Returns how a packet of a flow with these TCP flags, or this identifier of an ICMP echo,
    /// appears. `None`: it is of no connection.
    #[inline]
    pub(crate) fn of_flow(flow: &Flow, flags: u8, echo: Option<u16>) -> Option<Appearance> {
        let shown = match (flow.protocol, echo) {
            (protocol::TCP, _) => Shown::Tcp(Segment::of_flags(flags)),
            (protocol::UDP | protocol::UDP_LITE, _) => Shown::Udp,
            (protocol::ICMP | protocol::ICMPV6, Some(_)) => match EchoMessage::of(flow)? {
                EchoMessage::Request => Shown::EchoRequest,
                EchoMessage::Reply => Shown::EchoReply,
            },
            (protocol::ICMP | protocol::ICMPV6, None) => return None,
            _ => Shown::Other,
        };
        Some(Appearance { flow: *flow, echo, shown })
    }

    /// Content of the packet.
    pub(crate) fn shown(&self) -> Shown {
        self.shown
    }

    /// Returns whether a packet that appears so may be the first of a connection.
    fn begins(&self) -> bool {
        let event = Event { from: Side::Originator, shown: self.shown };
        matches!(connection::next(None, event), Next::Begins(_))
    }

    #[inline]
    fn key(&self, Gate { zone, .. }: Gate) -> Option<Key> {
        match self.echo {
            None => Key::of(&self.flow, zone),
            Some(identifier) => Key::of_echo(&self.flow, identifier, zone),
        }
    }
}

/// A gate that tracks connections, on a packet's way.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    key: Key,
    /// The connection that the packet is of, and the rule that let it begin.
    known: Option<(Place, PolicyIndex)>,
}

/// Knowledge of a packet at the ports of its way.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Way {
    ingress: Option<Tracked>,
    egress: Option<Tracked>,
}

impl Way {
    /// The rules that let the packet's connections begin.
    #[inline]
    pub(crate) fn known(&self) -> KnownConnections {
        let rule = |tracked: &Option<Tracked>| Some(tracked.as_ref()?.known?.1);
        KnownConnections { ingress: rule(&self.ingress), egress: rule(&self.egress) }
    }
}

/// Looks for connections, and moves them on.
#[derive(Clone, Copy)]
pub(crate) struct Tracker<'a> {
    snapshot: &'a Snapshot,
    connections: Option<&'a Connections>,
    now_s: u32,
}

/// Looks at a connection whose judgement another worker is writing: a few words.
const MOST_TRIES: u32 = 1000;
/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

impl<'a> Tracker<'a> {
    /// A tracker at this time, by the clock of the walk.
    #[inline]
    pub(crate) fn new(snapshot: &'a Snapshot, now_ns: u64) -> Tracker<'a> {
        let connections = snapshot.connections();
        Tracker { snapshot, connections, now_s: (now_ns / SECOND_NS) as u32 }
    }

    /// Finds the connections that a packet is of at the ports of its way: `ingress`, and `egress`
    /// if it is known.
    #[inline]
    pub(crate) fn find(
        &self,
        said: &TrackedVerdict,
        appearance: Option<&Appearance>,
        (ingress, egress): (Gate, Option<Gate>),
    ) -> Way {
        let Some(appearance) = appearance else { return Way::default() };
        let at = |gate: Gate| {
            let key = appearance.key(gate)?;
            Some(Tracked { key, known: self.known(&key, gate, appearance) })
        };
        Way {
            ingress: Some(ingress).filter(|_| said.tracks.ingress).and_then(at),
            egress: egress.filter(|_| said.tracks.egress).and_then(at),
        }
    }

    /// The connection of a key, unless the packet is to begin another one in its place, or no rule
    /// permits it any more.
    #[inline]
    fn known(
        &self,
        key: &Key,
        gate: Gate,
        appearance: &Appearance,
    ) -> Option<(Place, PolicyIndex)> {
        let found = self.found(key)?;
        let event = Event { from: found.from, shown: appearance.shown };
        if connection::next(Some(found.status), event) == Next::IsNew {
            return None;
        }
        let domain = domain(&found, key, gate);
        let judged = (found.judgement.domain, found.judgement.generation);
        if judged == (domain, self.snapshot.spd().generation(domain)) {
            return Some((found.place, found.judgement.rule));
        }
        self.judge_again(key, domain, &found)
    }

    /// The connection of a key, with its judgement. `None`: there is none, or another worker takes
    /// very long to write a new judgement; until then the rule that permits it is unknown.
    #[inline]
    fn found(&self, key: &Key) -> Option<Found> {
        let connections = self.connections?;
        let found = connections.find(key, self.now_s)?;
        if found.judgement != Judgement::UNKNOWN {
            return Some(found);
        }
        let again = |_| {
            std::hint::spin_loop();
            connections.find(key, self.now_s)
        };
        let mut tries = (0..MOST_TRIES).filter_map(again);
        tries.find(|found| found.judgement != Judgement::UNKNOWN)
    }

    /// Asks the groups that let a connection begin about its first packet again. A connection that
    /// none of their `reflect` rules permits any more is removed.
    #[cold]
    fn judge_again(
        &self,
        key: &Key,
        domain: DomainId,
        found: &Found,
    ) -> Option<(Place, PolicyIndex)> {
        let connections = self.connections?;
        let first = key.first_flow(found.from);
        let Some(rule) = self.snapshot.tables().reflects(domain, &first) else {
            connections.remove(found.place, key);
            return None;
        };
        let generation = self.snapshot.spd().generation(domain);
        connections.renew(found.place, key, Judgement { rule, domain, generation });
        Some((found.place, rule))
    }

    /// Moves a packet's connections on, and begins those that it is the first packet of. The packet
    /// passes by `verdict`. Returns the verdict: the same one, or a refusal.
    #[inline]
    pub(crate) fn go_on(
        &self,
        said: &TrackedVerdict,
        appearance: Option<&Appearance>,
        (mut way, ingress, egress): (Way, Gate, Option<Gate>),
        verdict: FlowVerdict,
    ) -> FlowVerdict {
        let Some(Appearance { shown, .. }) = appearance else { return verdict };
        let mut verdict = verdict;
        let sides = [(GroupSide::In, ingress), (GroupSide::Out, egress.unwrap_or(ingress))];
        for (side, gate) in sides {
            let tracked = match side {
                GroupSide::In => &mut way.ingress,
                GroupSide::Out => &mut way.egress,
            };
            let Some(at) = tracked else { continue };
            if let Some((place, _)) = at.known {
                let connections = self.connections.expect("it knows one");
                match connections.observe(place, &at.key, *shown, self.now_s) {
                    Observed::Seen { .. } => continue,
                    Observed::Refused(_) => return refused(verdict),
                    // Another worker has removed it since it was found.
                    Observed::IsNew | Observed::Gone => at.known = None,
                }
                verdict = said.with(way.known());
                if !verdict.passes() {
                    return verdict;
                }
            }
            let Some(rule) = said.reflects(side) else { continue };
            let at = match side {
                GroupSide::In => way.ingress,
                GroupSide::Out => way.egress,
            };
            let key = at.expect("it is tracked").key;
            if !self.begin(&key, *shown, (side, gate, rule)) {
                return refused(verdict);
            }
        }
        verdict
    }

    /// Begins a connection. Returns false if there is no room for it.
    fn begin(
        &self,
        key: &Key,
        shown: Shown,
        (side, gate, rule): (GroupSide, Gate, PolicyIndex),
    ) -> bool {
        let Some(connections) = self.connections else { return false };
        let domain = DomainId::new(gate.class, side.book(), key.family());
        let generation = self.snapshot.spd().generation(domain);
        let judgement = Judgement { rule, domain, generation };
        match connections.insert(key, shown, judgement, self.now_s) {
            Inserted::New(_) | Inserted::MakesNone => true,
            Inserted::Refused(_) => false,
            // Another worker was faster: the packet is the second one.
            Inserted::Raced(found) => {
                let observed = connections.observe(found.place, key, shown, self.now_s);
                !matches!(observed, Observed::Refused(_))
            }
        }
    }

    /// Settles the verdict on a packet: finds its connections, and moves them on if it passes.
    pub(crate) fn settle(
        &self,
        said: &TrackedVerdict,
        appearance: Option<&Appearance>,
        (ingress, egress): (Gate, Option<Gate>),
    ) -> FlowVerdict {
        let way = self.find(said, appearance, (ingress, egress));
        let verdict = said.with(way.known());
        match verdict.passes() {
            true => self.go_on(said, appearance, (way, ingress, egress), verdict),
            false => verdict,
        }
    }

    /// Says what [`settle`](Self::settle) would say, and changes nothing. The bounds of the table
    /// are not looked at. `begun`: the connection that the packet has begun on its way in.
    pub(crate) fn foresee(
        &self,
        said: &TrackedVerdict,
        appearance: Option<&Appearance>,
        (ingress, egress): (Gate, Option<Gate>),
        begun: Option<SeenConnection>,
    ) -> Foreseen {
        let gates =
            [Some(ingress).filter(|_| said.tracks.ingress), egress.filter(|_| said.tracks.egress)];
        let found = gates.map(|gate| self.foreseen(gate?, appearance?));
        let rule = |of: Option<(Found, PolicyIndex)>| of.map(|(_, rule)| rule);
        let mut known = KnownConnections { ingress: rule(found[0]), egress: rule(found[1]) };
        let own = begun.filter(|begun| gates[1].is_some_and(|gate| gate.zone == begun.zone));
        known.egress = known.egress.or(own.map(|begun| begun.rule));
        let verdict = said.with(known);
        let mut foreseen = Foreseen { known, ..Foreseen::of(verdict) };
        let may_begin = verdict.passes() && appearance.is_some_and(|it| it.begins());
        for (place, side) in GroupSide::ALL.into_iter().enumerate() {
            let Some(Gate { zone, .. }) = gates[place] else { continue };
            let is_begun = side == GroupSide::Out && own.is_some();
            let begins = said.reflects(side).filter(|_| may_begin && !is_begun);
            foreseen.connections[place] = match (found[place], begins) {
                (Some((found, rule)), _) => Some(SeenConnection { zone, rule, is: Some(found) }),
                (None, Some(rule)) => Some(SeenConnection { zone, rule, is: None }),
                (None, None) => None,
            };
        }
        foreseen
    }

    /// The connection at a gate, and the rule that permits it now.
    fn foreseen(&self, gate: Gate, appearance: &Appearance) -> Option<(Found, PolicyIndex)> {
        let key = appearance.key(gate)?;
        let found = self.found(&key)?;
        let event = Event { from: found.from, shown: appearance.shown };
        if connection::next(Some(found.status), event) == Next::IsNew {
            return None;
        }
        let domain = domain(&found, &key, gate);
        let rule = self.snapshot.tables().reflects(domain, &key.first_flow(found.from))?;
        Some((found, rule))
    }
}

/// The walk's answer about a packet whose connections are tracked, before it is walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreseen {
    pub(crate) verdict: FlowVerdict,
    /// The rules that let its connections begin.
    pub(crate) known: KnownConnections,
    /// Its connections at the port by which it came, and at the one by which it leaves.
    pub(crate) connections: [Option<SeenConnection>; 2],
}

/// A connection at a port, or in a virtual network, that a packet passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenConnection {
    /// The zone of the port or network.
    pub zone: Zone,
    /// The rule that permits it.
    pub rule: PolicyIndex,
    /// The connection; `None`: the packet would begin it.
    pub is: Option<Found>,
}

impl Foreseen {
    /// A verdict where no connections are tracked.
    pub(crate) fn of(verdict: FlowVerdict) -> Foreseen {
        Foreseen { verdict, known: KnownConnections::default(), connections: [None; 2] }
    }
}

/// The groups that let a connection at a gate begin.
#[inline]
fn domain(found: &Found, key: &Key, gate: Gate) -> DomainId {
    DomainId::new(gate.class, found.judgement.domain.book(), key.family())
}

/// The verdict where there is no room for another connection.
fn refused(verdict: FlowVerdict) -> FlowVerdict {
    FlowVerdict { action: FlowAction::Refuse(Refusal::ConnectionLimit), ..verdict }
}
