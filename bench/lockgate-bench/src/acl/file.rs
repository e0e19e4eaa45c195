//! Rules of a file of ClassBench's form as a group of lan, and flows that each hit a known one.

use std::collections::HashSet;
use std::path::Path;

use policy::{
    Book, Decider, DomainId, PolicyIndex, PortRange, Selector, Spd, SpdError, UpperSelector,
};
use scene::{Case, HOP_LIMIT, LAN, Random, Treatment};
use wire::build::PacketBuilder;
use wire::flow::protocol;
use wire::{Address, Family, Flow, packet};

use super::super::classify::{SetError, read};
use super::super::station::KnownFlows;

/// Draws for a rule's next flow: all may be other rules', or known.
const DRAWS: usize = 8;
/// Networks of the gateway, its routers and the peer, and addresses that no host has.
const RESERVED: [(u32, u8); 7] = [
    (0x0000_0000, 8),
    (0x0a00_0000, 8),
    (0x7f00_0000, 8),
    (0xa9fe_0000, 16),
    (0xc000_0200, 24),
    (0xc633_6400, 24),
    (0xe000_0000, 3),
];

/// Rules of a file, without those that could never decide.
#[derive(Clone, Debug)]
pub(super) struct FileRules {
    /// Name of the file, without its ending.
    pub(super) name: String,
    pub(super) selectors: Vec<Selector>,
    /// Rules that an earlier one covers, duplicates among them.
    pub(super) left_out: usize,
}

impl FileRules {
    /// Reads a file.
    ///
    /// # Errors
    /// [`SetError`].
    pub(super) fn read(file: &Path) -> Result<FileRules, SetError> {
        let set = read(file)?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut selectors: Vec<Selector> = Vec::with_capacity(set.policies.len());
        let mut left_out = 0;
        for policy in set.policies {
            match selectors.iter().any(|earlier| earlier.covers(&policy.selector)) {
                true => left_out += 1,
                false => selectors.push(policy.selector),
            }
        }
        Ok(FileRules { name, selectors, left_out })
    }

    /// The error that no flow could be drawn.
    pub(super) fn without_flows(&self) -> SetError {
        SetError::NoFlows(self.name.clone())
    }

    /// Makes the rules a group of lan.
    ///
    /// # Errors
    /// [`SpdError`].
    pub(super) fn group(&self, traffic: &Case, treatment: Treatment) -> Result<Spd, SpdError> {
        Spd::new(traffic.policies_of(&self.selectors, treatment))
    }

    /// Draws up to `most` flows of these rules in turn; `spd` has them. No two flows are of one
    /// connection. The linear search says which rule decides.
    pub(super) fn flows(
        &self,
        traffic: &Case,
        spd: &Spd,
        most: usize,
        random: &mut Random,
    ) -> KnownFlows {
        let domain = DomainId::new(spd.class(LAN.0), Book::GroupIn, Family::V4);
        let (mut flows, mut known) = (KnownFlows::default(), HashSet::new());
        let mut has_more = vec![true; self.selectors.len()];
        while flows.packets.len() < most && has_more.contains(&true) {
            for (selector, has_more) in self.selectors.iter().zip(&mut has_more) {
                if !*has_more || flows.packets.len() == most {
                    continue;
                }
                let drawn = (0..DRAWS).find_map(|_| {
                    let (packet, flow) = draw(selector, traffic.size, random)?;
                    let rule = decider(spd, domain, &flow)?;
                    let is_new = spd.policy(rule).selector == *selector
                        && !known.contains(&flow)
                        && !known.contains(&flow.reversed());
                    is_new.then_some((packet, flow, rule))
                });
                *has_more = drawn.is_some();
                let Some((packet, flow, rule)) = drawn else { continue };
                known.insert(flow);
                flows.packets.push(packet);
                flows.deciders.push(rule);
            }
        }
        flows
    }
}

/// The rule that decides.
fn decider(spd: &Spd, domain: DomainId, flow: &Flow) -> Option<PolicyIndex> {
    match spd.search_linear(domain, flow) {
        Decider::Policy(rule) => Some(rule),
        _ => None,
    }
}

/// A packet that a rule matches, of a size at least. `None`: its addresses are no hosts'.
fn draw(selector: &Selector, size: usize, random: &mut Random) -> Option<(PacketBuilder, Flow)> {
    let mut host = |range: &policy::AddressRange| {
        let value = range.lo + random.below((range.hi - range.lo) as usize + 1) as u128;
        let is_in = |(network, length): &(u32, u8)| (value as u32 ^ network) >> (32 - length) == 0;
        (!RESERVED.iter().any(is_in)).then_some(Address { family: Family::V4, value })
    };
    let (source, destination) = (host(&selector.local[0])?, host(&selector.remote[0])?);
    let (near, far) = match &selector.upper {
        UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
            (local.first(), remote.first())
        }
        UpperSelector::Any | UpperSelector::Icmp(_) => (None, None),
    };
    let mut port = |range: Option<&PortRange>| {
        let PortRange { lo, hi } = range.copied().unwrap_or(PortRange::ANY);
        lo + random.below(usize::from(hi - lo) + 1) as u16
    };
    let (near, far) = (port(near), port(far));
    let packet = PacketBuilder::new(source, destination).hop_limit(HOP_LIMIT);
    let packet = match selector.protocol.unwrap_or(protocol::UDP) {
        protocol::TCP => packet.tcp(near, far),
        protocol::UDP => packet.udp(near, far),
        protocol::ICMP => packet.icmp(8, 0, [0, 0, 0, 1]),
        other => packet.protocol(other),
    };
    let bare = packet.ip().len();
    let packet = packet.payload_of(size.saturating_sub(bare));
    let flow = packet::parse(&packet.ip()).ok()?.flow;
    Some((packet, flow))
}
