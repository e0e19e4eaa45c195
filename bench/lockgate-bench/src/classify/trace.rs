//! Flows that are looked up in a set of rules.

use policy::{AddressRange, Policy, PortRange, UpperSelector};
use wire::flow::protocol;
use wire::{Family, Flow, Upper};

use super::super::draw::{Distribution, Draw};
use super::sets::Set;
use scene::Random;

/// Kind of the flows looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(in super::super) enum Trace {
    /// Packets at and just beside the ends of rules' ranges.
    Corner,
    /// A few rules' corners over and over: the `n`th rule's as often as 1 / n.
    Flood,
    /// Random packets.
    Random,
}

impl Trace {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Trace::Corner => "corner",
            Trace::Flood => "flood",
            Trace::Random => "random",
        }
    }
}

/// Draws `count` flows.
pub(super) fn flows(set: &Set, trace: Trace, count: usize, random: &mut Random) -> Vec<Flow> {
    let policies = &set.policies;
    match trace {
        Trace::Corner => {
            let any = |random: &mut Random| &policies[random.below(policies.len())];
            (0..count).map(|_| corner(set.family, any(random), random)).collect()
        }
        Trace::Flood => {
            let mut draw = Draw::new(policies.len(), Distribution::Zipf, random);
            let seed = random.seed();
            let one = |rule: usize| {
                let of_rule = &mut Random::new(seed ^ rule as u64);
                corner(set.family, &policies[rule], of_rule)
            };
            (0..count).map(|_| one(draw.flow(random))).collect()
        }
        Trace::Random => (0..count).map(|_| anything(set.family, random)).collect(),
    }
}

/// One of the lowest and highest of a range and the numbers just outside.
fn end(lo: u128, hi: u128, most: u128, random: &mut Random) -> u128 {
    match random.below(4) {
        0 => lo,
        1 => hi,
        2 => lo.checked_sub(1).unwrap_or(most),
        _ => {
            if hi == most {
                0
            } else {
                hi + 1
            }
        }
    }
}

fn corner(family: Family, policy: &Policy, random: &mut Random) -> Flow {
    let selector = &policy.selector;
    let mut address =
        |range: &AddressRange| end(range.lo, range.hi, family.highest_address(), random);
    let (source, destination) = (address(&selector.local[0]), address(&selector.remote[0]));
    let (near, far) = match &selector.upper {
        UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
            (local.first(), remote.first())
        }
        UpperSelector::Any | UpperSelector::Icmp(_) => (None, None),
    };
    let mut port = |range: Option<&PortRange>| {
        let PortRange { lo, hi } = range.copied().unwrap_or(PortRange::ANY);
        end(lo.into(), hi.into(), u16::MAX.into(), random) as u16
    };
    let ports = [port(near), port(far)];
    let protocol = selector.protocol.unwrap_or_else(|| any_protocol(family, random));
    let upper = upper(family, protocol, ports);
    Flow { family, source, destination, protocol, upper, opens: false }
}

fn anything(family: Family, random: &mut Random) -> Flow {
    let mut address = || {
        let wide = u128::from(random.seed()) << 64 | u128::from(random.seed());
        wide >> (128 - family.address_bits())
    };
    let (source, destination) = (address(), address());
    let protocol = any_protocol(family, random);
    let ports = [random.below(1 << 16) as u16, random.below(1 << 16) as u16];
    let upper = upper(family, protocol, ports);
    Flow { family, source, destination, protocol, upper, opens: false }
}

fn any_protocol(family: Family, random: &mut Random) -> u8 {
    let icmp = match family {
        Family::V4 => protocol::ICMP,
        Family::V6 => protocol::ICMPV6,
    };
    [protocol::TCP, protocol::UDP, protocol::UDP, icmp][random.below(4)]
}

/// Returns the upper-layer part of a flow of this protocol.
fn upper(family: Family, number: u8, [source, destination]: [u16; 2]) -> Upper {
    let is_icmp = match family {
        Family::V4 => number == protocol::ICMP,
        Family::V6 => number == protocol::ICMPV6,
    };
    if is_icmp {
        let [kind, code] = source.to_be_bytes();
        return Upper::Icmp { kind, code };
    }
    match protocol::has_ports(number) {
        true => Upper::Ports { source, destination },
        false => Upper::None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sets::{Generated, generated};
    use super::*;
    use policy::{Book, Decider, Spd, common};
    use std::collections::HashSet;

    #[test]
    fn corners_match_often_and_not_always_and_a_flood_is_of_few_flows() {
        for kind in [Generated::Spd, Generated::Nested, Generated::Ipv6] {
            let set = generated(kind, 200);
            let spd = Spd::new(set.policies.clone()).unwrap();
            let random = &mut Random::new(1);
            let corners = flows(&set, Trace::Corner, 2000, random);
            let domain = common(Book::SpdOut, set.family);
            let says = |flow: &&Flow| spd.search_linear(domain, flow) != Decider::None;
            let matched = corners.iter().filter(says).count();
            assert!((10..2000).contains(&matched), "{kind:?}: {matched}");
            let flood = flows(&set, Trace::Flood, 2000, random);
            let different: HashSet<&Flow> = flood.iter().collect();
            assert!(different.len() <= 200, "one of each rule");
            let first = flood.iter().filter(|flow| **flow == flood[0]).count();
            assert!(first < 2000, "not one alone");
            assert_eq!(flows(&set, Trace::Random, 50, random).len(), 50);
        }
    }
}
