//! Policies whose packets Linux carries, for a card that does ESP under Linux (kind `xfrm`): which
//! of a peer's policies Linux can decide exactly as the gateway does, and why not.
//!
//! Linux decides those packets alone. So all of this must hold, for every policy of the peer, or
//! none of its SAs goes into the card (DESIGN I4, I5):
//!
//! * It holds both ways, and names prefixes, any protocol or one, and single ports or none: a
//!   policy in Linux says just that.
//! * **No policy of another decides among its remote addresses**, of whatever rank. One that wins
//!   over it would lose in a card, which looks at its own policies first. One that it wins over
//!   would lose its own packets: the program in front passes whatever comes from or goes to those
//!   addresses to Linux.
//! * **Nothing of our own is among them**: ESP and IKE of a peer, groups, links' own addresses. Or
//!   Linux would seal ESP again, and keep the two gateways from agreeing on keys.
//! * No port has security groups: Linux does not ask them.

use std::fmt;
use std::net::IpAddr;

use policy::{Action, AddressRange, Policy, PortRange, SaSetId, Spd, UpperSelector};
use wire::{Address, Family};

/// Policies in Linux that the policies of one peer may become, a direction.
pub const MAX_CARRIED: usize = 64;

/// Addresses that Linux must judge by itself: of links and of groups.
const OWN: [(&str, u8); 4] = [("169.254.0.0", 16), ("224.0.0.0", 3), ("fe80::", 10), ("ff00::", 8)];

/// Packets of a policy, in the form of a policy of Linux; `local` is the gateway's side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CarriedFlow {
    /// Prefix on the gateway's side.
    pub local: (IpAddr, u8),
    /// Prefix on the far side.
    pub remote: (IpAddr, u8),
    /// Protocol; `None`: any.
    pub protocol: Option<u8>,
    /// Port on the gateway's side; `None`: any.
    pub local_port: Option<u16>,
    /// Port on the far side; `None`: any.
    pub remote_port: Option<u16>,
}

/// The reason why Linux cannot carry a peer's packets.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum NotCarried {
    /// The peer has no policy.
    #[error("no policy protects anything by this peer: the policy's half is missing")]
    NoPolicy,
    /// The policy holds one way.
    #[error(
        "policy {policy} holds {only} only: the other half is missing, and Linux must have both"
    )]
    OneWay {
        /// Its name.
        policy: String,
        /// The way that it holds.
        only: &'static str,
    },
    /// The policy cannot be said to Linux exactly.
    #[error("policy {policy} cannot be said to Linux exactly: {}", .why.help())]
    Inexact {
        /// Its name.
        policy: String,
        /// The part that cannot.
        why: Inexact,
    },
    /// Another policy decides among its remote addresses.
    #[error(
        "policy {other} {} among the remote addresses of policy {policy}: a card would not ask it",
        if *.wins { "wins over it" } else { "decides, too," }
    )]
    Overlapped {
        /// Its name.
        policy: String,
        /// Name of the other one.
        other: String,
        /// The other one is asked first.
        wins: bool,
    },
    /// Traffic of the gateway itself is among its packets.
    #[error(
        "policy {policy} has {address} among its remote addresses: Linux would seal our own {what}"
    )]
    Own {
        /// Its name.
        policy: String,
        /// One of those addresses.
        address: IpAddr,
        /// The traffic.
        what: &'static str,
    },
    /// Security groups are asked, which Linux does not.
    #[error("rule {rule} of a security group is asked by a port: Linux asks no groups")]
    Groups {
        /// A rule.
        rule: String,
    },
    /// More policies than Linux is given.
    #[error("the policies of this peer become more than {MAX_CARRIED} in Linux")]
    TooMany,
}

/// A part of a policy that Linux cannot be told exactly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Inexact {
    /// Addresses that are no prefix.
    Range,
    /// Ranges or lists of ports.
    Ports,
    /// Kinds of ICMP messages.
    Messages,
    /// Kinds of TCP segments.
    Segments,
    /// Ports by which packets come.
    Ingress,
}

impl Inexact {
    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Inexact::Range => "range",
            Inexact::Ports => "ports",
            Inexact::Messages => "messages",
            Inexact::Segments => "segments",
            Inexact::Ingress => "ingress",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Inexact::Range => "write prefixes instead of ranges of addresses",
            Inexact::Ports => "write one port, or none",
            Inexact::Messages => "leave the ICMP messages out",
            Inexact::Segments => "it asks for a kind of TCP segments",
            Inexact::Ingress => "it names ports by which packets come",
        }
    }
}

impl NotCarried {
    /// Its word, for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            NotCarried::NoPolicy => "no_policy",
            NotCarried::OneWay { .. } => "one_way",
            NotCarried::Inexact { .. } => "inexact",
            NotCarried::Overlapped { .. } => "overlapped",
            NotCarried::Own { .. } => "own_traffic",
            NotCarried::Groups { .. } => "groups",
            NotCarried::TooMany => "too_many",
        }
    }
}

impl fmt::Display for CarriedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((local, at), (remote, to)) = (self.local, self.remote);
        write!(f, "{local}/{at} to {remote}/{to}")
    }
}

/// The packets that Linux would carry for a peer's set, sorted. `ends` are all addresses at which
/// tunnels of this gateway end, here and there.
///
/// # Errors
/// [`NotCarried`]: the first reason why it cannot.
pub fn carried_flows(
    spd: &Spd,
    set: SaSetId,
    ends: &[IpAddr],
) -> Result<Vec<CarriedFlow>, NotCarried> {
    if let Some((_, rule)) = spd.holding_rules().next() {
        return Err(NotCarried::Groups { rule: rule.name.clone() });
    }
    let policies: Vec<&Policy> = spd.holding_policies().map(|(_, policy)| policy).collect();
    let is_ours = |policy: &&&Policy| policy.action == Action::Protect(set);
    let mut flows = Vec::new();
    for policy in policies.iter().filter(is_ours) {
        let others = policies.iter().filter(|other| !is_ours(other));
        check(policy, others.copied(), ends)?;
        flows_of(policy, &mut flows)?;
    }
    if flows.is_empty() {
        return Err(NotCarried::NoPolicy);
    }
    flows.sort_unstable();
    flows.dedup();
    Ok(flows)
}

/// Checks that Linux may decide a policy's packets alone.
fn check<'p>(
    policy: &Policy,
    mut others: impl Iterator<Item = &'p Policy>,
    ends: &[IpAddr],
) -> Result<(), NotCarried> {
    let name = || policy.name.clone();
    if let Some(only) = policy.only {
        return Err(NotCarried::OneWay { policy: name(), only: only.name() });
    }
    if policy.ingress.is_some() {
        return Err(NotCarried::Inexact { policy: name(), why: Inexact::Ingress });
    }
    let remote = &policy.selector.remote;
    let meets = |range: &AddressRange| remote.iter().any(|one| one.overlaps(range));
    if let Some(end) = ends.iter().find(|end| meets(&AddressRange::from(**end))) {
        return Err(NotCarried::Own { policy: name(), address: *end, what: "ESP and IKE" });
    }
    for (address, bits) in OWN {
        let address: IpAddr = address.parse().expect("an address that is written above");
        if meets(&AddressRange::network(Address::from(address), bits)) {
            let what = "neighbour discovery";
            return Err(NotCarried::Own { policy: name(), address, what });
        }
    }
    match others.find(|other| other.selector.remote.iter().any(meets)) {
        Some(other) => Err(NotCarried::Overlapped {
            policy: name(),
            other: other.name.clone(),
            wins: other.rank() > policy.rank(),
        }),
        None => Ok(()),
    }
}

/// Adds a policy's packets, in the form of policies of Linux.
fn flows_of(policy: &Policy, flows: &mut Vec<CarriedFlow>) -> Result<(), NotCarried> {
    let inexact = |why| NotCarried::Inexact { policy: policy.name.clone(), why };
    let [local_port, remote_port] = ports_of(&policy.selector.upper).map_err(inexact)?;
    for local in &policy.selector.local {
        for remote in &policy.selector.remote {
            if local.family != remote.family || !may_have(policy, local.family) {
                continue;
            }
            let prefix = |range: &AddressRange| {
                let bits = range.prefix_length().ok_or(inexact(Inexact::Range))?;
                Ok((IpAddr::from(range.first()), bits))
            };
            flows.push(CarriedFlow {
                local: prefix(local)?,
                remote: prefix(remote)?,
                protocol: policy.selector.protocol,
                local_port,
                remote_port,
            });
            if flows.len() > MAX_CARRIED {
                return Err(NotCarried::TooMany);
            }
        }
    }
    Ok(())
}

/// Returns whether a policy can match a packet of this family: one for ICMP is of one alone.
fn may_have(policy: &Policy, family: Family) -> bool {
    use wire::flow::protocol::{ICMP, ICMPV6};
    !matches!(
        (policy.selector.protocol, family),
        (Some(ICMP), Family::V6) | (Some(ICMPV6), Family::V4)
    )
}

fn ports_of(upper: &UpperSelector) -> Result<[Option<u16>; 2], Inexact> {
    let one = |ports: &[PortRange]| match ports {
        [] => Ok(None),
        [range] if range.lo == range.hi => Ok(Some(range.lo)),
        // All of them is not any: it matches packets that have ports.
        _ => Err(Inexact::Ports),
    };
    match upper {
        UpperSelector::Any => Ok([None, None]),
        UpperSelector::Ports { local, remote } => Ok([one(local)?, one(remote)?]),
        UpperSelector::Tcp { .. } => Err(Inexact::Segments),
        UpperSelector::Icmp(_) => Err(Inexact::Messages),
    }
}
