//! Security groups of lan: the last rule permits what goes to dmz, those in front match nothing.

use std::collections::HashSet;
use std::sync::Arc;

use dataplane::connections::{Connections, Limits};
use dataplane::{NextHopId, Prefix, RouteEntry, RouteTarget, Snapshot, SnapshotParts};
use policy::connection::Timeouts;
use policy::{
    Action, AddressRange, GroupMode, GroupSide, Policy, PolicyId, PortRange, Selector, Spd,
    UpperSelector,
};
use wire::Address;
use wire::flow::protocol;

use crate::case::{Case, DMZ, FLOW_STEP, Keys, LAN, MAX_FLOWS, PEERS_PRIORITY, TRAFFICS_PORT};
use crate::error::SceneError;
use crate::random::Random;

/// Name of the rule that permits the traffic.
pub const PERMIT: &str = "permit-traffic";

/// The groups are enforced.
const ENFORCED: GroupMode = GroupMode::Enforce;

/// Networks and ports of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// Pairs of single addresses.
    Uniform,
    /// Single addresses, prefixes, and ranges aligned to nothing, with protocols and ports.
    Mixed,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Shape; 2] = [Shape::Uniform, Shape::Mixed];

    /// The shape's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Shape::Uniform => "uniform",
            Shape::Mixed => "mixed",
        }
    }
}

/// Treatment of the packets that the last rule lets pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Treatment {
    /// `permit`: every packet is judged by itself.
    Stateless,
    /// `reflect`: connections are tracked.
    Stateful,
}

impl Treatment {
    /// The treatment's name in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Treatment::Stateless => "stateless",
            Treatment::Stateful => "stateful",
        }
    }

    const fn action(self) -> Action {
        match self {
            Treatment::Stateless => Action::Permit(ENFORCED),
            Treatment::Stateful => Action::Reflect(ENFORCED),
        }
    }
}

/// An empty table of connections, with room for four times [`MAX_FLOWS`]: all of them may be
/// half-open.
pub fn connections() -> Arc<Connections> {
    let max = 4 * MAX_FLOWS as u32;
    let limits = Limits { half_open: max, half_open_per_zone: max, ..Limits::of(max) };
    // A run takes minutes, and the flows have no answers.
    let long = 86_400;
    let timeouts = Timeouts {
        tcp_syn_s: long,
        udp_unreplied_s: long,
        icmp_echo_s: long,
        other_unreplied_s: long,
        ..Timeouts::default()
    };
    Arc::new(Connections::new(limits, timeouts, &[11; 32]))
}

impl Case {
    /// Returns the policies of a gateway whose port lan has groups with so many rules; 0: it has no
    /// groups. Packets of [`Direction::Forward`](crate::Direction::Forward) with up to
    /// [`MAX_FLOWS`] flows match the last rule alone, [`PERMIT`]. No rule covers a later one.
    pub fn grouped_policies(
        &self,
        rules: usize,
        shape: Shape,
        treatment: Treatment,
    ) -> Vec<Policy> {
        let mut list = Vec::with_capacity(rules);
        if let Some(in_front) = rules.checked_sub(1) {
            let denied = |selector| ("deny".to_owned(), Action::Deny(ENFORCED), selector);
            list.extend(self.in_front(in_front, shape).into_iter().map(denied));
            list.push((PERMIT.to_owned(), treatment.action(), self.permitted(shape)));
        }
        self.with_group(list)
    }

    /// Returns the policies of a gateway whose port lan has a group with these selectors, the first
    /// with the highest precedence. All are treated alike.
    pub fn policies_of(&self, selectors: &[Selector], treatment: Treatment) -> Vec<Policy> {
        let rule = |(number, selector): (usize, &Selector)| {
            (format!("rule-{number}"), treatment.action(), selector.clone())
        };
        self.with_group(selectors.iter().enumerate().map(rule).collect())
    }

    /// The SPD's policy, and a group of lan with these rules; without rules there is no group.
    fn with_group(&self, mut rules: Vec<(String, Action, Selector)>) -> Vec<Policy> {
        if !rules.is_empty() {
            rules.push(("no-rule".to_owned(), Action::NoRule(ENFORCED), self.everything()));
        }
        let highest = rules.len();
        let rule =
            |(number, (name, action, selector)): (usize, (String, Action, Selector))| Policy {
                id: PolicyId(number as u32 + 1),
                name,
                action,
                priority: (highest - number) as u32,
                only: None,
                group: Some(GroupSide::In),
                ingress: Some([LAN.0].into()),
                selector,
            };
        let rules = rules.into_iter().enumerate().map(rule);
        [self.peers_policy(PolicyId(0), PEERS_PRIORITY)].into_iter().chain(rules).collect()
    }

    /// A route by which dmz leads to all addresses.
    pub fn default_route(&self) -> RouteEntry {
        let address = Address { family: self.family, value: 0 };
        let target = RouteTarget::Via(NextHopId(DMZ.0.into()));
        RouteEntry { prefix: Prefix { address, length: 0 }, target }
    }

    /// Makes the gateway with [these policies](Self::grouped_policies).
    ///
    /// # Errors
    /// Those of the parts; none is expected.
    pub fn grouped_gateway(
        &self,
        keys: &[Keys],
        (rules, shape): (usize, Shape),
        treatment: Treatment,
    ) -> Result<Snapshot, SceneError> {
        let spd = Spd::new(self.grouped_policies(rules, shape, treatment))?;
        let connections = (treatment == Treatment::Stateful).then(connections);
        Ok(Snapshot::new(SnapshotParts { connections, ..self.parts(keys, spd.into())? })?)
    }

    /// The packets that the last rule permits.
    fn permitted(&self, shape: Shape) -> Selector {
        let (local, remote) = (vec![self.network(LAN)], vec![self.network(DMZ)]);
        let (protocol, upper) = match shape {
            Shape::Uniform => (None, UpperSelector::Any),
            Shape::Mixed => (Some(protocol::UDP), destination(TRAFFICS_PORT, TRAFFICS_PORT)),
        };
        Selector { local, remote, protocol, upper }
    }

    /// Any packet of the family.
    fn everything(&self) -> Selector {
        let family = self.family;
        let all = vec![AddressRange { family, lo: 0, hi: family.highest_address() }];
        let (local, remote) = (all.clone(), all);
        Selector { local, remote, protocol: None, upper: UpperSelector::Any }
    }

    /// Selectors that differ and match no traffic. Those that match less come first, and so none
    /// covers a later one.
    fn in_front(&self, count: usize, shape: Shape) -> Vec<Selector> {
        let mut random = Random::new(7);
        let mut known = HashSet::with_capacity(count);
        let mut place = 0;
        while known.len() < count {
            known.insert(match shape {
                Shape::Uniform => self.pair(place),
                Shape::Mixed => self.mixed(place, &mut random),
            });
            place += 1;
        }
        let mut selectors: Vec<Selector> = known.into_iter().collect();
        selectors.sort_by_cached_key(|selector| (extent(selector), format!("{selector:?}")));
        selectors
    }

    /// Two hosts between which no flow is: flow n goes from host n to host n × [`FLOW_STEP`].
    fn pair(&self, place: usize) -> Selector {
        let from = place * 7919 % MAX_FLOWS;
        let to = (from * FLOW_STEP + 1 + place / MAX_FLOWS) % MAX_FLOWS;
        Selector {
            local: vec![part(self.network(LAN), from, 1)],
            remote: vec![part(self.network(DMZ), to, 1)],
            protocol: None,
            upper: UpperSelector::Any,
        }
    }

    fn mixed(&self, place: usize, random: &mut Random) -> Selector {
        let (lan, dmz) = (self.network(LAN), self.network(DMZ));
        let single = |random: &mut Random, first: u16| {
            let port = first + random.below(60_000) as u16;
            destination(port, port)
        };
        let several = |random: &mut Random, first: u16| {
            let lo = first + random.below(60_000) as u16;
            destination(lo, lo + random.below(1000) as u16)
        };
        let beyond = TRAFFICS_PORT + 1;
        let (local, remote, protocol, upper) = match random.below(5) {
            0 => return self.pair(place),
            1 => (prefix(lan, random), prefix(dmz, random), protocol::UDP, single(random, beyond)),
            2 => (range(lan, random), range(dmz, random), protocol::UDP, several(random, beyond)),
            3 => (range(lan, random), prefix(dmz, random), protocol::TCP, several(random, 0)),
            _ => (prefix(lan, random), dmz, protocol::TCP, single(random, 0)),
        };
        Selector { local: vec![local], remote: vec![remote], protocol: Some(protocol), upper }
    }
}

fn destination(lo: u16, hi: u16) -> UpperSelector {
    UpperSelector::Ports { local: vec![], remote: vec![PortRange { lo, hi }] }
}

/// Some hosts of a network.
fn part(network: AddressRange, first: usize, hosts: usize) -> AddressRange {
    let lo = network.lo + first as u128;
    AddressRange { lo, hi: lo + hosts as u128 - 1, ..network }
}

/// One host, or a network of up to 256.
fn prefix(network: AddressRange, random: &mut Random) -> AddressRange {
    let hosts = 1 << random.below(9);
    part(network, random.below(MAX_FLOWS / hosts) * hosts, hosts)
}

/// Up to 256 hosts, aligned to nothing.
fn range(network: AddressRange, random: &mut Random) -> AddressRange {
    let hosts = 1 + random.below(256);
    part(network, random.below(MAX_FLOWS - hosts), hosts)
}

/// The number of packets, by addresses, protocol and ports, that a selector of this file matches.
fn extent(selector: &Selector) -> u128 {
    let hosts = |ranges: &[AddressRange]| ranges.iter().map(|of| of.hi - of.lo + 1).sum::<u128>();
    let ports = match &selector.upper {
        UpperSelector::Ports { remote, .. } | UpperSelector::Tcp { remote, .. } => {
            remote.iter().map(|of| u128::from(of.hi - of.lo) + 1).sum()
        }
        UpperSelector::Any | UpperSelector::Icmp(_) => 1 << 16,
    };
    let protocols = if selector.protocol.is_some() { 1 } else { 1 << 8 };
    hosts(&selector.local).saturating_mul(hosts(&selector.remote)) * ports * protocols
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Direction;
    use dataplane::NetdevId;
    use ipsec::Suite;
    use policy::{Book, Decider, DomainId};
    use wire::Family;

    fn cases() -> [Case; 2] {
        [Family::V4, Family::V6].map(|family| {
            let (direction, suite) = (Direction::Forward, Suite::Null);
            Case { direction, suite, family, size: 48, flows: 1, backend: None, workers: 1, sas: 1 }
        })
    }

    #[test]
    fn no_rule_is_another_again_or_covered_by_an_earlier_one() {
        for case in cases() {
            for shape in Shape::ALL {
                let policies = case.grouped_policies(1000, shape, Treatment::Stateless);
                assert_eq!(policies.len(), 1 + 1000 + 1, "the SPD's, and what matches all");
                let rules: Vec<&Selector> = policies[1..].iter().map(|p| &p.selector).collect();
                for (place, rule) in rules.iter().enumerate() {
                    let covering = rules[..place].iter().find(|earlier| earlier.covers(rule));
                    assert_eq!(covering, None, "{rule:?}");
                }
            }
        }
    }

    #[test]
    fn the_traffic_matches_the_last_rule_and_only_that() {
        for case in cases() {
            for (shape, rules) in Shape::ALL.into_iter().flat_map(|of| [(of, 1), (of, 500)]) {
                let spd =
                    Spd::new(case.grouped_policies(rules, shape, Treatment::Stateful)).unwrap();
                let class = spd.class(LAN.0);
                let domain = DomainId::new(class, Book::GroupIn, case.family);
                let names = |index: &Decider| match index {
                    Decider::Policy(slot) => spd.policy(*slot).name.clone(),
                    other => format!("{other:?}"),
                };
                for flow in (0..MAX_FLOWS).step_by(97) {
                    let packet = wire::packet::parse(&case.inner(flow, 64).ip()).unwrap();
                    let found: Vec<String> =
                        spd.matching(domain, &packet.flow).iter().map(names).collect();
                    assert_eq!(found, [PERMIT, "no-rule"], "{shape:?} {rules} flow {flow}");
                    let decider = spd.search_linear(domain, &packet.flow);
                    assert_eq!(names(&decider), PERMIT);
                }
            }
        }
    }

    #[test]
    fn without_rules_lan_has_no_groups() {
        for case in cases() {
            let spd =
                Spd::new(case.grouped_policies(0, Shape::Uniform, Treatment::Stateless)).unwrap();
            for netdev in [LAN, NetdevId(9)] {
                let domain = DomainId::new(spd.class(netdev.0), Book::GroupIn, case.family);
                assert_eq!(spd.rules(domain), 0);
            }
        }
    }
}
