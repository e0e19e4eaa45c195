//! Random packets are judged by an imported configuration as by the policies that it came from:
//! an obvious search over those, which knows nothing of the importer.

use std::net::Ipv4Addr;

use config::validated::{Action, Policy, Validated};
use import::{Foreign, Options, vpp, xfrm};
use policy::{Direction, UpperSelector};
use proptest::prelude::*;
use wire::Address;

/// A policy of xfrm or VPP, of one direction.
#[derive(Clone, Debug)]
struct Foreigner {
    is_out: bool,
    /// Source and destination: 10.A.B.0 with 8, 16 or 24 bits.
    ends: [(u8, u8, u8); 2],
    /// 0, 6 or 17.
    protocol: u8,
    destination_port: Option<u16>,
    priority: u32,
    effect: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Verdict {
    /// Protected with the peer 198.51.100.N.
    Peer(u8),
    Bypass,
    Discard,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    is_out: bool,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    destination_port: u16,
}

impl Foreigner {
    fn matches(&self, packet: &Packet) -> bool {
        let inside = |(a, b, bits): (u8, u8, u8), ip: Ipv4Addr| {
            let mask = u32::MAX << (32 - u32::from(bits));
            u32::from(ip) & mask == u32::from(Ipv4Addr::new(10, a, b, 0)) & mask
        };
        self.is_out == packet.is_out
            && inside(self.ends[0], packet.source)
            && inside(self.ends[1], packet.destination)
            && (self.protocol == 0 || self.protocol == packet.protocol)
            && self.destination_port.is_none_or(|port| port == packet.destination_port)
    }

    /// The selector, as the kernel tells policies apart.
    fn selector(&self) -> (bool, [(u32, u8); 2], u8, Option<u16>) {
        let network = |(a, b, bits): (u8, u8, u8)| {
            let mask = u32::MAX << (32 - u32::from(bits));
            (u32::from(Ipv4Addr::new(10, a, b, 0)) & mask, bits)
        };
        (self.is_out, self.ends.map(network), self.protocol, self.destination_port)
    }

    /// As `ip xfrm policy` prints it, or the words behind `ip xfrm policy add`.
    fn in_xfrm(&self, line: &str) -> String {
        let [(a, b, c), (d, e, f)] = self.ends;
        let upper = match (self.protocol, self.destination_port) {
            (0, _) => String::new(),
            (protocol, None) => format!("proto {protocol} "),
            (protocol, Some(port)) => format!("proto {protocol} dport {port} "),
        };
        let way = if self.is_out { "out" } else { "in" };
        let (action, template) = match self.effect {
            Verdict::Discard => ("action block ", String::new()),
            Verdict::Bypass => ("", String::new()),
            Verdict::Peer(peer) => {
                let (us, them) = ("192.0.2.1".to_owned(), format!("198.51.100.{peer}"));
                let [src, dst] = if self.is_out { [us, them] } else { [them, us] };
                let ends = format!("tmpl src {src} dst {dst}");
                ("", format!("{line}{ends}{line}proto esp reqid {peer} mode tunnel"))
            }
        };
        let priority = self.priority;
        format!(
            "src 10.{a}.{b}.0/{c} dst 10.{d}.{e}.0/{f} {upper}{line}dir {way} {action}priority \
             {priority} ptype main {template}\n"
        )
    }

    /// As VPP takes it.
    fn in_vpp(&self) -> String {
        let range = |(a, b, bits): (u8, u8, u8)| match bits {
            8 => "10.0.0.0 - 10.255.255.255".to_owned(),
            16 => format!("10.{a}.0.0 - 10.{a}.255.255"),
            _ => format!("10.{a}.{b}.0 - 10.{a}.{b}.255"),
        };
        let [source, destination] = self.ends.map(range);
        let (way, local, remote) = match self.is_out {
            true => ("outbound", source, destination),
            false => ("inbound", destination, source),
        };
        let upper = match (self.protocol, self.destination_port) {
            (0, _) => String::new(),
            (protocol, None) => format!("protocol {protocol}"),
            (protocol, Some(port)) => {
                let end = if self.is_out { "remote" } else { "local" };
                format!("protocol {protocol} {end}-port-range {port} - {port}")
            }
        };
        let action = match self.effect {
            Verdict::Bypass => "bypass".to_owned(),
            Verdict::Discard => "discard".to_owned(),
            Verdict::Peer(peer) => {
                format!("protect sa {}", u32::from(peer) + if self.is_out { 0 } else { 100 })
            }
        };
        format!(
            "ipsec policy add spd 1 priority {} {way} action {action} local-ip-range {local} \
             remote-ip-range {remote} {upper}\n",
            self.priority
        )
    }
}

/// The verdict of a configuration of ours: the highest priority, of equal ones the later.
fn ours(config: &Validated, packet: &Packet) -> Option<Verdict> {
    let direction = if packet.is_out { Direction::Outbound } else { Direction::Inbound };
    let (local, remote, local_port, remote_port) = match packet.is_out {
        true => (packet.source, packet.destination, 9, packet.destination_port),
        false => (packet.destination, packet.source, packet.destination_port, 9),
    };
    let address = |ip: Ipv4Addr| Address::from(std::net::IpAddr::from(ip));
    let matches = |policy: &&Policy| {
        let selector = &policy.selector;
        let inside = |list: &[policy::AddressRange], ip| {
            list.iter().any(|range| range.contains(address(ip)))
        };
        let port = |list: &[policy::PortRange], port| {
            list.is_empty() || list.iter().any(|range| (range.lo..=range.hi).contains(&port))
        };
        let upper = match &selector.upper {
            UpperSelector::Any => true,
            UpperSelector::Ports { local, remote } => {
                port(local, local_port) && port(remote, remote_port)
            }
            other => panic!("{other:?}"),
        };
        policy.only.is_none_or(|only| only == direction)
            && inside(&selector.local, local)
            && inside(&selector.remote, remote)
            && selector.protocol.is_none_or(|protocol| protocol == packet.protocol)
            && upper
    };
    // `max_by_key` returns the last of equal ones.
    let policy = config.policies.iter().filter(matches).max_by_key(|policy| policy.priority)?;
    Some(match policy.action {
        Action::Bypass => Verdict::Bypass,
        Action::Discard => Verdict::Discard,
        Action::Protect(peer) => match config.peers[peer.0 as usize].tunnel().remote {
            std::net::IpAddr::V4(remote) => Verdict::Peer(remote.octets()[3]),
            other => panic!("{other}"),
        },
    })
}

fn foreigners() -> impl Strategy<Value = Vec<Foreigner>> {
    let end = || (0u8..3, 0u8..3, prop::sample::select(&[8u8, 16, 24][..]));
    let effect = prop_oneof![
        (1u8..4).prop_map(Verdict::Peer),
        Just(Verdict::Bypass),
        Just(Verdict::Discard)
    ];
    let upper = prop_oneof![
        Just((0, None)),
        prop::sample::select(&[6u8, 17][..]).prop_map(|protocol| (protocol, None)),
        prop::sample::select(&[6u8, 17][..]).prop_map(|protocol| (protocol, Some(53))),
    ];
    let one = (any::<bool>(), [end(), end()], upper, 0u32..4, effect, prop::option::of(0u32..4))
        .prop_map(|(is_out, ends, (protocol, destination_port), priority, effect, twin)| {
            let there = Foreigner { is_out, ends, protocol, destination_port, priority, effect };
            // The mirror of a policy with a destination port has a source port: none here.
            let back = twin.filter(|_| destination_port.is_none()).map(|priority| Foreigner {
                priority,
                is_out: !is_out,
                ends: [ends[1], ends[0]],
                ..there.clone()
            });
            [Some(there), back]
        });
    prop::collection::vec(one, 0..12).prop_map(|list| {
        let mut seen = std::collections::HashSet::new();
        // The kernel keeps one policy of each selector.
        let list = list.into_iter().flatten().flatten();
        list.filter(|one| seen.insert(one.selector())).collect()
    })
}

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let ip = || (0u8..3, 0u8..3, 0u8..4).prop_map(|(a, b, c)| Ipv4Addr::new(10, a, b, c));
    let protocol = prop::sample::select(&[6u8, 17][..]);
    let port = prop::sample::select(&[53u16, 54][..]);
    let one = (any::<bool>(), ip(), ip(), protocol, port).prop_map(
        |(is_out, source, destination, protocol, destination_port)| Packet {
            is_out,
            source,
            destination,
            protocol,
            destination_port,
        },
    );
    prop::collection::vec(one, 200)
}

/// The verdict of a list in which the first that matches decides.
fn first(list: &[Foreigner], packet: &Packet) -> Option<Verdict> {
    list.iter().find(|one| one.matches(packet)).map(|one| one.effect)
}

fn config_of(text: &str) -> Validated {
    match config::parse(text, "imported") {
        Ok(parsed) => parsed.validated,
        Err(errors) => panic!("{errors}\n{text}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn xfrm_policies_judge_as_before(list in foreigners(), packets in packets()) {
        prop_assume!(!list.is_empty());
        // Of a script the earlier is the older, which decides among equals.
        let mut asked = list.clone();
        asked.sort_by_key(|one| one.priority);
        let script: String = list
            .iter()
            .map(|one| format!("ip xfrm policy add {}", one.in_xfrm(" ")))
            .collect();
        // A dump has the newest first.
        let dump: String = list.iter().rev().map(|one| one.in_xfrm("\n\t")).collect();
        for text in [script, dump] {
            let imported = xfrm(&[Foreign::new("x", &text)], &Options::default());
            let imported = imported.map_err(|errors| TestCaseError::fail(errors.to_string()))?;
            let config = config_of(&imported.text);
            for packet in &packets {
                let (here, there) = (ours(&config, packet), first(&asked, packet));
                prop_assert_eq!(here, there, "{:?}\n{}\n{}", packet, &text, &imported.text);
            }
        }
    }

    #[test]
    fn policies_of_vpp_judge_as_before(list in foreigners(), packets in packets()) {
        prop_assume!(!list.is_empty());
        // The later decides among equals; inbound, the kinds come one after the other.
        let mut asked: Vec<Foreigner> = list.iter().rev().cloned().collect();
        asked.sort_by_key(|one| {
            let kind = match one.effect {
                Verdict::Peer(_) => 0,
                Verdict::Bypass => 1,
                Verdict::Discard => 2,
            };
            (if one.is_out { 0 } else { kind }, std::cmp::Reverse(one.priority))
        });
        let mut text = String::new();
        for peer in 1..4u32 {
            let (out, inw) = (peer, peer + 100);
            let ends = ["192.0.2.1".to_owned(), format!("198.51.100.{peer}")];
            for (id, [src, dst]) in [(out, [&ends[0], &ends[1]]), (inw, [&ends[1], &ends[0]])] {
                text += &format!(
                    "ipsec sa add {id} spi {} esp crypto-alg aes-gcm-128 crypto-key \
                     000102030405060708090a0b0c0d0e{id:02x} tunnel src {src} dst {dst}\n",
                    1000 + id
                );
            }
        }
        text.extend(list.iter().map(Foreigner::in_vpp));
        let imported = vpp(&Foreign::new("x", &text), &Options::default());
        let imported = imported.map_err(|errors| TestCaseError::fail(errors.to_string()))?;
        let config = config_of(&imported.text);
        for packet in &packets {
            let (here, there) = (ours(&config, packet), first(&asked, packet));
            prop_assert_eq!(here, there, "{:?}\n{}\n{}", packet, &text, &imported.text);
        }
    }
}
