//! Selectors of policies out of the traffic selectors of a child, and the order in which charon has
//! Linux ask them.

use std::collections::HashSet;

use policy::{AddressRange, PortRange, Selector, UpperSelector};
use wire::Family;
use wire::flow::protocol;

use super::values::TrafficSelector;

/// Addresses of an end at most: as many as a list of a policy has.
const MAX_ADDRESSES: usize = 4096;
/// Groups of selectors of an end at most.
const MAX_CLASSES: usize = 64;

/// The kind of a child, as far as it decides on the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Protect,
    Pass,
    Drop,
}

/// Selectors of one end with protocol and ports in common.
struct Class {
    protocol: Option<u8>,
    ports: Option<PortRange>,
    /// Bits of the prefix, where that decides on the order.
    bits: Option<u8>,
    addresses: Vec<AddressRange>,
}

/// The way in which selectors with prefixes of different lengths become policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prefixes {
    /// As one policy: the file has no other.
    Together,
    /// As a policy of each length: others may come between.
    Apart,
}

/// The reason why there is no policy.
pub(super) type Untaken = (&'static str, &'static str);

/// Makes the selectors of all policies of a child, each with its rank: the lower one is asked
/// first. All selectors have addresses.
pub(super) fn joined(
    kind: Kind,
    ends: &[Vec<(AddressRange, TrafficSelector)>; 2],
    prefixes: Prefixes,
) -> Result<Vec<(Selector, u32)>, Untaken> {
    let [local, remote] = ends.each_ref().map(|end| classes(end, prefixes));
    let (local, remote) = (local?, remote?);
    let mut found = Vec::new();
    for one in &local {
        for other in &remote {
            let protocol = match (one.protocol, other.protocol) {
                (Some(one), Some(other)) if one != other => continue,
                (one, other) => one.or(other),
            };
            let upper = upper(protocol, [one.ports, other.ports])?;
            if let Some([local, remote]) = meeting(protocol, [&one.addresses, &other.addresses]) {
                let rank = rank(kind, protocol, [one, other]);
                found.push((Selector { local, remote, protocol, upper }, rank));
            }
        }
    }
    match found.is_empty() {
        true => Err(("no packet matches both of its selectors", "correct local_ts or remote_ts")),
        false => Ok(found),
    }
}

/// The selectors of an end in groups that become one policy each.
fn classes(
    end: &[(AddressRange, TrafficSelector)],
    prefixes: Prefixes,
) -> Result<Vec<Class>, Untaken> {
    const TOO_MANY: Untaken =
        ("it has very many different selectors", "make several children of it");
    let mut classes: Vec<Class> = Vec::new();
    let mut seen = HashSet::new();
    for (range, selector) in end {
        let bits = (prefixes == Prefixes::Apart).then(|| prefix_bits(range));
        let key = (selector.protocol, selector.ports, bits);
        if !seen.insert((*range, selector.protocol, selector.ports)) {
            continue;
        }
        let same = |class: &Class| (class.protocol, class.ports, class.bits) == key;
        match classes.iter().position(same) {
            Some(class) => classes[class].addresses.push(*range),
            None if classes.len() >= MAX_CLASSES => return Err(TOO_MANY),
            None => {
                let (protocol, ports, bits) = key;
                classes.push(Class { protocol, ports, bits, addresses: vec![*range] });
            }
        }
        if seen.len() > MAX_ADDRESSES {
            return Err(TOO_MANY);
        }
    }
    Ok(classes)
}

fn upper(protocol: Option<u8>, ports: [Option<PortRange>; 2]) -> Result<UpperSelector, Untaken> {
    const MESSAGES: Untaken = (
        "Lockgate takes an SA for all ICMP or for none",
        "write [icmp] at both gateways, without a type",
    );
    const PORTLESS: Untaken = ("its protocol has no ports", "leave the port out");
    const HEADER: Untaken =
        ("its protocol is an extension header of IPv6", "name the protocol behind it");
    // Hop-by-hop, routing, fragment, destination, mobility, HIP, Shim6.
    if matches!(protocol, Some(0 | 43 | 44 | 60 | 135 | 139 | 140)) {
        return Err(HEADER);
    }
    if ports == [None, None] {
        return Ok(UpperSelector::Any);
    }
    match protocol {
        Some(protocol::ICMP | protocol::ICMPV6) => Err(MESSAGES),
        Some(number) if !protocol::has_ports(number) => Err(PORTLESS),
        _ => {
            let [local, remote] = ports.map(|ports| ports.into_iter().collect());
            Ok(UpperSelector::Ports { local, remote })
        }
    }
}

/// The addresses of both ends that some packet has; `None`: none has.
fn meeting(protocol: Option<u8>, ends: [&[AddressRange]; 2]) -> Option<[Vec<AddressRange>; 2]> {
    let has = |family| {
        let is_right = match protocol {
            Some(protocol::ICMP) => family == Family::V4,
            Some(protocol::ICMPV6) => family == Family::V6,
            _ => true,
        };
        is_right && ends.iter().all(|end| end.iter().any(|range| range.family == family))
    };
    let has = [Family::V4, Family::V6].map(|family| (family, has(family)));
    let keep = |range: &&AddressRange| has.contains(&(range.family, true));
    let ends = ends.map(|end| end.iter().filter(keep).copied().collect::<Vec<_>>());
    (!ends[0].is_empty()).then_some(ends)
}

/// The rank of a policy for any packet.
const fn last_rank(kind: Kind) -> u32 {
    const STEP: u32 = 200_000;
    match kind {
        Kind::Pass => STEP,
        Kind::Protect => 2 * STEP,
        Kind::Drop => 3 * STEP,
    }
}

/// The rank of the narrowest policy: two addresses of IPv6, a protocol, two ports.
pub(super) const fn first_rank(kind: Kind) -> u32 {
    last_rank(kind) - 2 * (512 * 128 + 4 * 16) - 256
}

/// The number by which charon's kernel-netlink sorts policies, the lower one first.
fn rank(kind: Kind, protocol: Option<u8>, classes: [&Class; 2]) -> u32 {
    let of = |class: &Class| {
        let bits = class.addresses.iter().map(prefix_bits).min().unwrap_or(0);
        512 * u32::from(bits) + 4 * class.ports.map_or(0, port_bits)
    };
    last_rank(kind) - of(classes[0]) - of(classes[1]) - if protocol.is_some() { 256 } else { 0 }
}

/// Bits of the longest prefix with all of a range.
fn prefix_bits(range: &AddressRange) -> u8 {
    let bits = range.family.address_bits();
    let unused = 128 - u32::from(bits);
    let same = (range.lo ^ range.hi).leading_zeros() - unused;
    u8::try_from(same).unwrap_or(bits).min(bits)
}

fn port_bits(ports: PortRange) -> u32 {
    (ports.lo ^ ports.hi).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::super::values::selector;
    use super::*;

    fn ends(local: &[&str], remote: &[&str]) -> [Vec<(AddressRange, TrafficSelector)>; 2] {
        [local, remote].map(|end| {
            let of = |text: &&str| {
                let selector = selector(text).unwrap();
                (selector.addresses.unwrap(), selector)
            };
            end.iter().map(of).collect()
        })
    }

    #[test]
    fn narrower_selectors_are_asked_first_and_pass_before_protect_before_drop() {
        let rank = |kind, local, remote| {
            joined(kind, &ends(&[local], &[remote]), Prefixes::Apart).unwrap()[0].1
        };
        let wide = rank(Kind::Protect, "10.0.0.0/8", "10.0.0.0/8");
        assert!(rank(Kind::Protect, "10.0.0.0/8", "10.2.0.0/16") < wide);
        assert!(rank(Kind::Protect, "10.0.0.0/8", "10.0.0.0/8[tcp]") < wide);
        assert!(rank(Kind::Pass, "0.0.0.0/0", "0.0.0.0/0") < wide);
        assert!(rank(Kind::Drop, "10.1.1.1", "10.2.2.2") > wide);
        assert_eq!(wide, 400_000 - 16 * 512);
        let narrowest = rank(Kind::Drop, "fd00::1[tcp/9]", "fd00::2[tcp/80]");
        assert_eq!(narrowest, first_rank(Kind::Drop));
        assert_eq!(rank(Kind::Pass, "fd00::1", "fd00::2[tcp/80]"), 200_000 - 256 * 512 - 256 - 64);
    }

    #[test]
    fn lists_become_as_few_policies_as_protocols_ports_and_prefixes_allow() {
        let count = |local: &[&str], remote: &[&str], prefixes| {
            joined(Kind::Protect, &ends(local, remote), prefixes).map(|all| all.len())
        };
        let (mixed, two) = (["10.1.0.0/16", "10.2.2.0/24"], ["10.3.0.0/16", "10.4.0.0/16"]);
        assert_eq!(count(&mixed, &two, Prefixes::Together), Ok(1));
        assert_eq!(count(&mixed, &two, Prefixes::Apart), Ok(2));
        let upper = ["10.3.0.0/16[tcp]", "10.3.0.0/16[udp]"];
        assert_eq!(count(&["10.1.0.0/16"], &upper, Prefixes::Together), Ok(2));
        assert_eq!(count(&["10.1.0.0/16[tcp]"], &upper, Prefixes::Together), Ok(1));
        let (four, six) = (["10.1.0.0/16", "fd00::/64"], ["fd01::/64"]);
        assert_eq!(count(&four, &six, Prefixes::Together), Ok(1));
        assert!(count(&four[..1], &six, Prefixes::Together).is_err());
        assert!(count(&["10.0.0.1[icmp/8]"], &["10.0.0.2"], Prefixes::Together).is_err());
        assert!(count(&["10.0.0.1[gre/8]"], &["10.0.0.2"], Prefixes::Together).is_err());
        let ports: Vec<String> = (1..100).map(|port| format!("10.0.0.1[tcp/{port}]")).collect();
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        assert_eq!(count(&ports[..64], &["10.0.0.2"], Prefixes::Apart), Ok(64));
        assert!(count(&ports, &["10.0.0.2"], Prefixes::Together).is_err());
    }
}
