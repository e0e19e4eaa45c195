//! The policies of a row: the peer's, and those before it, which match no packet.

use policy::{
    Action, AddressRange, Direction, Policy, PolicyId, PortRange, Selector, UpperSelector,
};
use wire::flow::protocol;

use scene::Random;
use scene::{Case, DMZ, LAN, WAN};

/// Fields that keep packets from matching the policies in front.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(in super::super) enum Rules {
    /// The remote address: each policy has one local and one remote address.
    Addr,
    /// The UDP port: the addresses are those of the peer's policy.
    Port,
    /// Ranges of local and remote addresses and of ports, aligned to nothing.
    Range,
}

impl Rules {
    pub(in super::super) const fn name(self) -> &'static str {
        match self {
            Rules::Addr => "addr",
            Rules::Port => "port",
            Rules::Range => "range",
        }
    }
}

/// Match of the packets: the last of the policies, or none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(in super::super) enum Matching {
    /// The peer's policy is the last.
    Last,
    /// The peer has no SA: packets are dropped.
    None,
}

impl Matching {
    pub(in super::super) const fn name(self) -> &'static str {
        match self {
            Matching::Last => "last",
            Matching::None => "none",
        }
    }
}

/// Destination port of the traffic.
const TRAFFICS_PORT: u16 = 443;
/// First source port of the traffic.
const FIRST_SOURCE_PORT: u16 = 1024;
/// Ports that fillers of [`Rules::Port`] have, from 1024 on.
const PORTS: usize = 60_000;
/// Hosts of a network that fillers speak of.
const HOSTS: usize = 65_536;
/// Addresses and ports of a range of [`Rules::Range`] at most.
const RANGE: [usize; 2] = [256, 1000];

/// Makes `count` outbound policies, in order of precedence. The packets of `traffic` match the last
/// or none of them.
pub(in super::super) fn policies(
    traffic: &Case,
    count: usize,
    rules: Rules,
    matching: Matching,
) -> Vec<Policy> {
    let mut random = Random::new(7);
    let fillers = match matching {
        Matching::Last => count - 1,
        Matching::None => count,
    };
    let filler = |place: usize| Policy {
        id: PolicyId(place as u32),
        name: format!("filler-{place}"),
        action: Action::Bypass,
        priority: (count - place) as u32 + 1,
        only: Some(Direction::Outbound),
        group: None,
        ingress: None,
        selector: selector(traffic, place, rules, &mut random),
    };
    let mut policies: Vec<Policy> = (0..fillers).map(filler).collect();
    if matching == Matching::Last {
        let peers = traffic.peers_policy(PolicyId(fillers as u32), 1);
        policies.push(Policy { only: Some(Direction::Outbound), ..peers });
    }
    policies
}

/// Returns the selector of the filler at a place.
fn selector(traffic: &Case, place: usize, rules: Rules, random: &mut Random) -> Selector {
    let host = |netdev, host: usize| {
        let network = traffic.network(netdev);
        let address = network.lo + host as u128;
        AddressRange { lo: address, hi: address, ..network }
    };
    let ports = |local: Option<PortRange>, lo: u16, hi: u16| UpperSelector::Ports {
        local: local.into_iter().collect(),
        remote: vec![PortRange { lo, hi }],
    };
    let (local, remote, upper) = match rules {
        Rules::Addr => {
            let (near, far) = (place * 7919 % HOSTS, (place % HOSTS) ^ (place / HOSTS));
            (host(LAN, near), host(DMZ, far), UpperSelector::Any)
        }
        Rules::Port => {
            let port = FIRST_SOURCE_PORT + (place % PORTS) as u16;
            let round = (place / PORTS) as u16;
            let local = PortRange { lo: FIRST_SOURCE_PORT, hi: FIRST_SOURCE_PORT + round };
            let upper = ports((round > 0).then_some(local), port, port);
            (traffic.network(LAN), traffic.network(WAN), upper)
        }
        Rules::Range => {
            let mut range = |netdev| {
                let length = 1 + random.below(RANGE[0]);
                let first = host(netdev, random.below(HOSTS - length));
                AddressRange { hi: first.lo + length as u128 - 1, ..first }
            };
            let (local, remote) = (range(LAN), range(WAN));
            let length = random.below(RANGE[1]) as u16;
            let lo = TRAFFICS_PORT + 1 + random.below(60_000) as u16;
            (local, remote, ports(None, lo, lo + length))
        }
    };
    let protocol = (rules != Rules::Addr).then_some(protocol::UDP);
    Selector { local: vec![local], remote: vec![remote], protocol, upper }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipsec::Suite;
    use policy::{Book, Decider, Spd, common};
    use std::collections::HashSet;
    use wire::Family;

    #[test]
    fn traffic_matches_the_last_policy_or_none() {
        for family in [Family::V4, Family::V6] {
            for rules in [Rules::Addr, Rules::Port, Rules::Range] {
                for (matching, count) in [(Matching::Last, 1), (Matching::Last, 300)]
                    .into_iter()
                    .chain([(Matching::None, 1), (Matching::None, 300)])
                {
                    let traffic = super::super::traffic(family);
                    let spd = Spd::new(policies(&traffic, count, rules, matching)).unwrap();
                    assert_eq!(spd.len(), count);
                    for flow in [0, 1, 77, 65_535, 1_000_000] {
                        let packet = wire::packet::parse(&traffic.inner(flow, 64).ip()).unwrap();
                        let domain = common(Book::SpdOut, family);
                        let says = spd.search_linear(domain, &packet.flow);
                        match (matching, says) {
                            (Matching::Last, Decider::Policy(index)) => {
                                assert_eq!(spd.policy(index).name, "peer");
                                assert_eq!(spd.policies()[count - 1].0, index, "the last");
                            }
                            (Matching::None, Decider::None) => {}
                            other => panic!("{rules:?} {family:?}: {other:?}"),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn no_two_fillers_are_alike() {
        let traffic = Case { suite: Suite::Null, ..super::super::traffic(Family::V4) };
        for rules in [Rules::Addr, Rules::Port, Rules::Range] {
            let list = policies(&traffic, 150_000, rules, Matching::None);
            let different: HashSet<String> =
                list.iter().map(|policy| format!("{:?}", policy.selector)).collect();
            assert_eq!(different.len(), list.len(), "{rules:?}");
        }
    }
}
