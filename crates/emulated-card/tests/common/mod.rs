//! A gateway's rules, a card, the ledger between them, and the oracle.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod draw;

use std::collections::BTreeMap;
use std::sync::Arc;

use draw::{CardLine, Line, PacketLine, Step, Upper};
use emulated_card::{EmulatedCard, Faults, Notice};
use offload::{
    Capabilities, Card as _, CardEvent, Decision, Effect, Ledger, Order, Problem, RuleKey, Seasons,
    plan,
};
use policy::{
    Action, AddressRange, Book, Decider, DomainId, GroupMode, GroupSide, IcmpRange, Policy,
    PolicyId, PolicyIndex, PortRange, Selector, Spd, TcpSegments, UpperSelector,
};
use proptest::prelude::prop;
use wire::build::PacketBuilder;
use wire::flow::protocol;
use wire::{Family, packet};

/// Ports of the card; port 2 is another card's.
pub(crate) const CARD_PORTS: [u16; 2] = [0, 1];
const ALL_PORTS: u16 = 3;

/// A card with its faults.
pub(crate) struct Card {
    pub(crate) capabilities: Capabilities,
    pub(crate) faults: Faults,
}

impl Card {
    pub(crate) fn of(line: CardLine) -> Card {
        let [refuse, twice, never, late, garbage] = line.faults;
        let never = never / 8;
        let faults =
            Faults { refuse, twice, never, late, late_ms: 100, garbage, ..Faults::default() };
        Card { capabilities: Capabilities::emulated(line.rules), faults }
    }
}

/// A packet on its way: it was marked and is not judged yet.
struct OnItsWay {
    port: u16,
    ip: Vec<u8>,
    mark: u64,
}

pub(crate) struct World {
    /// Rules by their numbers, which are their slots for the card too.
    pub(crate) rules: BTreeMap<u32, Policy>,
    next: u32,
    spd: Spd,
    pub(crate) card: EmulatedCard,
    pub(crate) ledger: Ledger,
    pub(crate) seasons: Seasons,
    events: Vec<CardEvent>,
    late: Vec<OnItsWay>,
    now_ms: u64,
    /// The card's action on what rules deny.
    pub(crate) effect: Effect,
    /// Packets whose mark counted.
    pub(crate) tagged: u64,
    pub(crate) judged: u64,
    /// Packets that the card dropped, and those of them while it was to stop.
    pub(crate) dropped: [u64; 2],
}

/// The rule that decides what no other does, for each port.
fn last_rules() -> Vec<Policy> {
    let any = vec![AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
    let last = |port: u16| Policy {
        id: PolicyId(u32::from(port)),
        name: format!("port{port} (in)"),
        action: Action::NoRule(GroupMode::Enforce),
        priority: 0,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some([port].into()),
        selector: Selector {
            local: any.clone(),
            remote: any.clone(),
            protocol: None,
            upper: UpperSelector::Any,
        },
    };
    (0..ALL_PORTS).map(last).collect()
}

/// A drawn rule as a policy.
pub(crate) fn policy(id: u32, line: &Line) -> Policy {
    let action = match line.action {
        0 => Action::Permit(GroupMode::Enforce),
        1 => Action::Deny(GroupMode::Enforce),
        2 => Action::Reflect(GroupMode::Enforce),
        3 => Action::Deny(GroupMode::Audit),
        _ => Action::Permit(GroupMode::Audit),
    };
    let addresses = |of: &[(Family, u128, u128)]| {
        of.iter().map(|&(family, lo, hi)| AddressRange { family, lo, hi }).collect()
    };
    let ports = |of: &[(u16, u16)]| of.iter().map(|&(lo, hi)| PortRange { lo, hi }).collect();
    let upper = match &line.upper {
        Upper::Any => UpperSelector::Any,
        Upper::Ports(local, remote) => {
            UpperSelector::Ports { local: ports(local), remote: ports(remote) }
        }
        Upper::Icmp(of) => {
            UpperSelector::Icmp(of.iter().map(|&(lo, hi)| IcmpRange { lo, hi }).collect())
        }
        Upper::Tcp(kind, remote) => UpperSelector::Tcp {
            segments: TcpSegments::ALL[usize::from(*kind)],
            local: Vec::new(),
            remote: ports(remote),
        },
    };
    let ingress: Vec<u16> = (0..ALL_PORTS).filter(|port| line.ports >> port & 1 == 1).collect();
    Policy {
        id: PolicyId(id),
        name: format!("rule-{id}"),
        action,
        priority: 1 + line.priority,
        only: None,
        // A rule of other ports' groups out now and then: the card must leave it alone.
        group: Some(if line.action == 5 { GroupSide::Out } else { GroupSide::In }),
        ingress: Some(ingress.into()),
        selector: Selector {
            local: addresses(&line.sources),
            remote: addresses(&line.destinations),
            protocol: line.protocol,
            upper,
        },
    }
}

impl World {
    pub(crate) fn new(card: Card, lines: Vec<Line>, seed: u64) -> World {
        let lines = (u32::from(ALL_PORTS)..).zip(&lines).map(|(id, line)| policy(id, line));
        World::of(card, lines.collect(), seed)
    }

    /// A world with these rules and the last one of each port, which have the ids below 3.
    pub(crate) fn of(card: Card, rules: Vec<Policy>, seed: u64) -> World {
        let rules = last_rules().into_iter().chain(rules);
        let rules: BTreeMap<u32, Policy> = rules.map(|policy| (policy.id.0, policy)).collect();
        let next = rules.keys().max().map_or(0, |id| id + 1);
        let spd = Spd::new(rules.values().cloned().collect()).unwrap();
        let ledger = Ledger::new(card.capabilities.clone());
        let mut emulated = EmulatedCard::new(card.capabilities, seed);
        emulated.set_faults(card.faults);
        World {
            rules,
            next,
            spd,
            card: emulated,
            ledger,
            seasons: Seasons::default(),
            events: Vec::new(),
            late: Vec::new(),
            now_ms: 0,
            effect: Effect::Mark,
            tagged: 0,
            judged: 0,
            dropped: [0; 2],
        }
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Packets(packets) => {
                packets.iter().try_for_each(|line| {
                    let Some((port, ip)) = self.packet(line) else { return Ok(()) };
                    self.receive(port, &ip)
                })?;
            }
            Step::Late(line) => {
                if let Some((port, ip)) = self.packet(line) {
                    let received = self.card.receive(port, &frame(&ip));
                    match received.dropped {
                        true => self.judge_dropped(port, &ip)?,
                        false => self.late.push(OnItsWay { port, ip, mark: received.mark }),
                    }
                }
            }
            Step::Plan(packets) => {
                self.plan(|slot| packets[slot as usize % packets.len()]);
            }
            Step::Orders => self.ledger.orders().give(&mut self.card),
            Step::Advance(ms) => self.advance(*ms),
            Step::Event(at, times) => self.one_event(at, *times),
            Step::AllEvents => self.all_events(),
            Step::Look => {
                self.ledger.look(&self.card);
            }
            Step::Add(line) => {
                let policy = policy(self.next, line);
                self.next += 1;
                self.change(&[], vec![policy]);
            }
            Step::Remove(at) => {
                let numbers: Vec<u32> = self.rules.keys().copied().filter(|id| *id > 2).collect();
                if !numbers.is_empty() {
                    self.change(&[*at.get(&numbers)], Vec::new());
                }
            }
            Step::Fault(kind, of) => self.fault(*kind, of),
            Step::Period => self.ledger.end_period(),
            Step::Rounds(rounds) => (0..*rounds).for_each(|_| self.round()),
        }
        self.judge_late()
    }

    /// The rules change: the ledger hears of it before any packet is judged by them.
    pub(crate) fn change(&mut self, gone: &[u32], came: Vec<Policy>) {
        let families = [Family::V4, Family::V6];
        let keys: Vec<RuleKey> = gone
            .iter()
            .flat_map(|id| families.map(|family| RuleKey { slot: PolicyIndex(*id), family }))
            .collect();
        let new: Vec<(PolicyIndex, &Policy)> =
            came.iter().map(|policy| (PolicyIndex(policy.id.0), policy)).collect();
        self.ledger.changed(&keys, &new);
        gone.iter().for_each(|id| drop(self.rules.remove(id)));
        self.rules.extend(came.into_iter().map(|policy| (policy.id.0, policy)));
        self.spd = Spd::new(self.rules.values().cloned().collect()).unwrap();
    }

    pub(crate) fn plan(&mut self, packets: impl Fn(u32) -> u64) -> offload::Plan {
        let rules: Vec<(PolicyIndex, &Policy)> =
            self.rules.iter().map(|(id, policy)| (PolicyIndex(*id), policy)).collect();
        let mut standing = self.ledger.standing();
        standing.seasoned = self.seasons.seasoned();
        let card = self.ledger.card().clone();
        let packets = |slot: PolicyIndex| packets(slot.0);
        let plan = plan(&Problem {
            rules: &rules,
            ports: &CARD_PORTS,
            unused: &[],
            card: &card,
            effect: self.effect,
            own: &[],
            packets: &packets,
            standing: &standing,
            most_moves: usize::MAX,
        });
        self.ledger.adopt(&plan).expect("the rules are those that the ledger was told of");
        plan
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now_ms += ms;
        self.card.advance(self.now_ms);
        self.card.poll(&mut self.events);
    }

    fn one_event(&mut self, at: &prop::sample::Index, times: u8) {
        if self.events.is_empty() {
            return;
        }
        let at = at.index(self.events.len());
        let event = match times {
            0 | 1 => self.events.remove(at),
            // It comes again later.
            _ => self.events[at].clone(),
        };
        self.ledger.event(&event);
    }

    pub(crate) fn all_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            self.ledger.event(&event);
        }
    }

    /// Everything that a control thread does, until the card has what is planned.
    pub(crate) fn settle(&mut self) {
        (0..64).for_each(|_| self.round());
    }

    /// Does what a control thread does again and again.
    pub(crate) fn round(&mut self) {
        self.ledger.orders().give(&mut self.card);
        self.advance(1000);
        self.all_events();
        self.ledger.look(&self.card);
    }

    fn fault(&mut self, kind: u8, of: &prop::sample::Index) {
        let tags: Vec<_> = self.card.tags().collect();
        let order = self.ledger.card().rules.get().map(|rules| rules.order);
        match kind {
            0 => self.card.reset(Notice::Told),
            1 => self.card.reset(Notice::Silent),
            2 => self.card.link_down(),
            3 | 4 => self.card.link_up(),
            5 | 6 if !tags.is_empty() => {
                let notice = if kind == 5 { Notice::Told } else { Notice::Silent };
                self.card.forget(*of.get(&tags), notice);
                if order == Some(Order::Priority) {
                    // One rule forgotten by a card with an order: known at the next look, and not
                    // before.
                    self.ledger.look(&self.card);
                    self.late.clear();
                }
            }
            7 => self.reload(of),
            8 => self.card.set_faults(Faults::default()),
            _ => {}
        }
        // The ledger learns that a card which drops has lost its rules before it places the next
        // one: else the rule that denies is there without the one that permits above it.
        if matches!(kind, 0 | 1 | 7) && self.effect == Effect::Drop {
            self.ledger.look(&self.card);
        }
    }

    /// Another driver: it keeps an order where there was none, or none where there was one.
    fn reload(&mut self, of: &prop::sample::Index) {
        let mut capabilities = self.card.probe();
        if let offload::Ability::Has(rules) = &mut capabilities.rules {
            rules.order = Order::ALL[of.index(2)];
            rules.entries = rules.entries / 2 + of.index(4) as u32;
        }
        self.card.reload(capabilities);
    }

    fn judge_late(&mut self) -> Result<(), String> {
        // Some wait longer than others.
        if self.late.len() < 4 {
            return Ok(());
        }
        let OnItsWay { port, ip, mark } = self.late.remove(0);
        self.judge(port, &ip, mark)
    }

    /// A packet comes by a port of the card, or another, and is judged.
    pub(crate) fn receive(&mut self, port: u16, ip: &[u8]) -> Result<(), String> {
        let mark = match CARD_PORTS.contains(&port) {
            true => {
                let received = self.card.receive(port, &frame(ip));
                if received.dropped {
                    return self.judge_dropped(port, ip);
                }
                received.mark
            }
            false => 0,
        };
        self.judge(port, ip, mark)
    }

    /// Judges a packet that the card dropped: the rules do too, or the answer to the change that
    /// permits it was not given yet.
    fn judge_dropped(&mut self, port: u16, ip: &[u8]) -> Result<(), String> {
        if self.card.probe().rules.get().is_none() || !self.card.is_up() {
            return Ok(());
        }
        let parsed = packet::quoted(ip).zip(packet::parse_group(ip));
        let Some((packet, flow)) = parsed else { return Ok(()) };
        let class = self.spd.class(port);
        let domain = DomainId::new(class, Book::GroupIn, packet.flow.family);
        let alone = match self.spd.search_linear(domain, &flow) {
            Decider::Policy(slot) => Some(self.spd.policy(slot)),
            Decider::FragmentPorts(_) | Decider::None => None,
        };
        let is_awaited = self.ledger.unconfirmed_drops() > 0;
        self.dropped[usize::from(is_awaited)] += 1;
        let drops = alone.is_some_and(|policy| Decision::of(policy.action).drops());
        let tracks = |policy: &Policy| matches!(policy.action, Action::Reflect(_));
        let is_tracked = self.rules.values().any(tracks);
        match is_awaited || drops && !is_tracked && offload::is_plain(&packet) {
            true => Ok(()),
            false => Err(format!("port {port}, {flow:?}: the card drops it, the rules {alone:?}")),
        }
    }

    fn judge(&mut self, port: u16, ip: &[u8], mark: u64) -> Result<(), String> {
        // At the ends of ranges there are addresses that no packet should have: they are judged all
        // the same.
        let parsed = packet::quoted(ip).zip(packet::parse_group(ip));
        let Some((packet, flow)) = parsed else { return Ok(()) };
        let packet = packet::Packet { flow, ..packet };
        self.judged += 1;
        let class = self.spd.class(port);
        let domain = DomainId::new(class, Book::GroupIn, packet.flow.family);
        let alone = match self.spd.search_linear(domain, &packet.flow) {
            Decider::Policy(slot) => Some(self.spd.policy(slot)),
            Decider::FragmentPorts(_) | Decider::None => None,
        };
        if !offload::is_plain(&packet) {
            return Ok(());
        }
        let Some(rule) = self.ledger.placements().read(mark) else { return Ok(()) };
        self.tagged += 1;
        let said = self.rules.get(&rule.slot.0);
        let (said_decision, alone_decision) = (
            said.map(|policy| Decision::of(policy.action)),
            alone.map(|policy| Decision::of(policy.action)),
        );
        match said_decision == alone_decision && said_decision.is_some() {
            true => Ok(()),
            false => Err(format!(
                "port {port}, {:?}: the card says {said:?}, the rules {alone:?}; state {:?}",
                packet.flow,
                self.ledger.state(rule)
            )),
        }
    }

    /// A packet near a rule.
    fn packet(&self, line: &PacketLine) -> Option<(u16, Vec<u8>)> {
        let rules: Vec<&Policy> = self.rules.values().collect();
        let near = line.near.get(&rules);
        let selector = &near.selector;
        let source = selector.local[usize::from(line.noise[0]) % selector.local.len()];
        let same: Vec<&AddressRange> =
            selector.remote.iter().filter(|range| range.family == source.family).collect();
        let destination = **same.get(usize::from(line.noise[1]) % same.len().max(1))?;
        let highest = source.family.highest_address();
        let of = |range: AddressRange, choice| draw::corner((range.lo, range.hi), choice, highest);
        let builder = PacketBuilder::new(
            draw::address(source.family, of(source, line.corner[0])),
            draw::address(source.family, of(destination, line.corner[1])),
        );
        let builder = builder.payload(&[0; 16]);
        let builder = with_upper(builder, near, line, source.family);
        let builder = match (line.form, source.family) {
            (0, _) => builder,
            (1, _) => builder.identification(7).fragment(0, true),
            (2, _) => builder.identification(7).fragment(8, false),
            (_, Family::V4) => builder.options(&[1, 1, 1, 1]),
            (_, Family::V6) => builder.extension(60, &[0; 6]),
        };
        Some((u16::from(line.port), builder.ip()))
    }
}

fn with_upper(
    builder: PacketBuilder,
    near: &Policy,
    line: &PacketLine,
    family: Family,
) -> PacketBuilder {
    let port = |ports: &[PortRange], choice: u8, noise: u16| match ports {
        [] => noise,
        ports => {
            let range = ports[usize::from(noise) % ports.len()];
            draw::corner((range.lo.into(), range.hi.into()), choice, 0xffff) as u16
        }
    };
    let none: [&[PortRange]; 2] = [&[], &[]];
    let [local, remote] = near.selector.upper.ports().unwrap_or(none);
    let source = port(local, line.corner[2], line.noise[2]);
    let destination = port(remote, line.corner[3], line.noise[3]);
    let messages = near.selector.upper.messages();
    let drawn = [6, 17, 1, 58, 132, 136, 33, 47][usize::from(line.corner[4]) % 8];
    let number = match near.selector.protocol {
        Some(number) if !line.noise[0].is_multiple_of(4) => number,
        _ if !messages.is_empty() && !line.noise[0].is_multiple_of(4) => match family {
            Family::V4 => protocol::ICMP,
            Family::V6 => protocol::ICMPV6,
        },
        _ => drawn,
    };
    match number {
        protocol::TCP => builder.tcp_with(
            source,
            destination,
            [0x02, 0x10, 0x12, 0x04][source as usize % 4],
            None,
        ),
        protocol::UDP => builder.udp(source, destination),
        protocol::ICMP | protocol::ICMPV6 => {
            let message = match messages {
                [] => destination,
                messages => {
                    let range = messages[usize::from(line.noise[1]) % messages.len()];
                    let ends = (range.lo.into(), range.hi.into());
                    draw::corner(ends, line.corner[3], 0xffff) as u16
                }
            };
            let [kind, code] = message.to_be_bytes();
            let rest = [0; 4];
            let is_of_family = (number == protocol::ICMP) == (family == Family::V4);
            // The builder's ICMP is of the packet's family.
            if is_of_family { builder.icmp(kind, code, rest) } else { builder.protocol(number) }
        }
        number => {
            let ports = [source.to_be_bytes(), destination.to_be_bytes()].concat();
            builder.protocol(number).payload(&[&ports[..], &[0; 12]].concat())
        }
    }
}

pub(crate) fn frame(ip: &[u8]) -> Vec<u8> {
    let ethertype: [u8; 2] = if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ethertype, ip].concat()
}

/// A rule for tests by hand.
pub(crate) fn rule(id: u32, priority: u32, action: Action, selector: Selector) -> Policy {
    Policy {
        id: PolicyId(id),
        name: format!("rule-{id}"),
        action,
        priority,
        only: None,
        group: Some(GroupSide::In),
        ingress: Some(Arc::from(CARD_PORTS)),
        selector,
    }
}
