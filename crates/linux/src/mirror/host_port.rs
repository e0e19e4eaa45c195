//! The host port's netdev, and the routes that lead this machine's own packets into the walk.
//!
//! This machine's packets to a far net would leave in clear by the unprotected port (and be dropped
//! by the guard). For each PROTECT policy a route `PREFIX dev lockgate0` leads them into the host
//! port, where the walk takes them. These routes lie in a table of their own, which a rule looks up
//! for this machine's own packets (`iif lo`) before `main`: whatever routes there are to the far
//! net, and whoever changes them, stay as they are. A peer in transport mode is such a far net of
//! one address. The gateway's own ESP and IKE to peers is spared: rules before that one jump over
//! it.
//!
//! | priority | rule |
//! |---|---|
//! | 75 | `iif lo`, ESP, or UDP from or to port 500 or 4500: `goto 77` |
//! | 76 | `iif lo`: `lookup 76` |
//! | 77 | `nop` |

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use dataplane::Prefix;
use netlink_packet_core::{Emitable, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use netlink_packet_route::{AddressFamily, IpProtocol};
use wire::{Address, Family};

use super::{Mirror, kind};
use crate::netlink::NetlinkError;
use crate::view::{HOST_ROUTE_PROTOCOL, HOST_ROUTE_TABLE, KernelRoute};

/// The port of IKE (RFC 7296 §2).
const IKE_PORT: u16 = 500;
/// UDP port of IKE and ESP through NATs (RFC 3948 §2.1).
const NAT_TRAVERSAL_PORT: u16 = 4500;

/// A route into the host port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRoute {
    /// Destinations.
    pub prefix: Prefix,
    /// The source that this machine speaks from: one of its addresses that the policy names.
    pub source: Address,
}

/// The reason why the host port's netdev is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum HostPortError {
    /// The netdev does not exist.
    #[error("there is no netdev {netdev}")]
    Absent {
        /// The netdev's name.
        netdev: String,
    },
    /// The kernel refused.
    #[error("the host port: {0}")]
    Netlink(#[from] NetlinkError),
    /// A setting cannot be written.
    #[error("cannot write {value} to {}: {source}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The value that was to be written.
        value: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Mirror {
    /// Sets the kernel's routes into the host port: adds missing ones and removes others. Does
    /// nothing if they match, so it can be called at every change.
    ///
    /// # Errors
    /// [`HostPortError::Absent`]: there is no host port; else the first refusal, after all were
    /// tried: the caller tries again at the next change.
    pub fn set_host_routes(
        &mut self,
        netdev: &str,
        wanted: &[HostRoute],
    ) -> Result<(), HostPortError> {
        let absent = || HostPortError::Absent { netdev: netdev.to_owned() };
        let host = self.view.link_named(netdev).ok_or_else(absent)?.index;
        let is_ours = |route: &&KernelRoute| {
            route.protocol == HOST_ROUTE_PROTOCOL && route.hops.iter().any(|hop| hop.link == host)
        };
        let there = self.view.host_routes.values().flatten().filter(is_ours);
        let there: BTreeSet<_> =
            there.map(|route| (route.prefix.address, route.prefix.length, route.source)).collect();
        let wants: BTreeSet<_> = wanted
            .iter()
            .map(|route| (route.prefix.address, route.prefix.length, Some(route.source)))
            .collect();
        let mut result = self.add_host_rules();
        for &(address, length, source) in wants.difference(&there) {
            let payload = route_message(host, address, length, source);
            let flags = NLM_F_CREATE | NLM_F_REPLACE;
            let made = self.requests.request("new route", kind::NEW_ROUTE, flags, &payload, |_| {});
            result = result.and(made);
        }
        // One that has another source now was replaced, in both families by prefix and metric.
        let kept: BTreeSet<_> =
            wants.iter().map(|(address, length, _)| (*address, *length)).collect();
        for (address, length, source) in there.difference(&wants) {
            if kept.contains(&(*address, *length)) {
                continue;
            }
            let payload = route_message(host, *address, *length, *source);
            let gone = self.requests.request("delete route", kind::DEL_ROUTE, 0, &payload, |_| {});
            result = result.and(match gone {
                Err(error) if error.errno() == Some(libc::ESRCH) => Ok(()),
                gone => gone,
            });
        }
        Ok(result?)
    }

    /// Makes the kernel look up the host port's routes for this machine's own packets.
    fn add_host_rules(&mut self) -> Result<(), NetlinkError> {
        let mut result = Ok(());
        for payload in host_rules().map(|rule| emitted(&rule)) {
            let flags = NLM_F_CREATE | NLM_F_EXCL;
            let made = self.requests.request("new rule", kind::NEW_RULE, flags, &payload, |_| {});
            result = result.and(match made {
                Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
                // A kernel without IPv6 sends nothing by it.
                Err(error) if error.errno() == Some(libc::EAFNOSUPPORT) => Ok(()),
                made => made,
            });
        }
        result
    }

    /// Takes the host port's rules away again; its routes go with its netdev. For
    /// `on_exit = "open"`.
    ///
    /// # Errors
    /// [`NetlinkError`]: the first refusal, after all were tried.
    pub fn remove_host_rules(&mut self) -> Result<(), NetlinkError> {
        let mut result = Ok(());
        for payload in host_rules().map(|rule| emitted(&rule)) {
            let gone = self.requests.request("delete rule", kind::DEL_RULE, 0, &payload, |_| {});
            result = result.and(match gone {
                Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
                gone => gone,
            });
        }
        result
    }

    /// Sets the host port's netdev up, with this MTU, and without reverse path filtering, addresses
    /// or router discovery of its own. Changes no setting that is right already.
    ///
    /// # Errors
    /// [`HostPortError`]: without it this machine's own packets take no part.
    pub fn prepare_host_port(&mut self, netdev: &str, mtu: u32) -> Result<(), HostPortError> {
        // Not from the view: the netdev may be younger.
        for (path, value) in SETTINGS {
            let path = PathBuf::from(format!("/proc/sys/net/{path}").replace('@', netdev));
            match std::fs::write(&path, value) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_v6(&path) => {}
                Err(source) => return Err(HostPortError::Setting { path, value, source }),
                Ok(()) => {}
            }
        }
        let mut message = LinkMessage::default();
        (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        message.attributes.push(LinkAttribute::IfName(netdev.into()));
        message.attributes.push(LinkAttribute::Mtu(mtu));
        let payload = emitted(&message);
        self.requests.request("switch on the host port", kind::SET_LINK, 0, &payload, |_| {})?;
        Ok(())
    }
}

/// Settings of the host port's netdev below /proc/sys/net, which is that of the thread's network
/// namespace. Reverse path filtering is off: packets come by it from everywhere, decrypted ones and
/// those of a reserved service, and on a netdev without an address the kernel's loose filter is
/// strict. The walk has looked at their sources. Its only packets are Lockgate's: no link-local
/// address, no router solicitation.
const SETTINGS: [(&str, &str); 4] = [
    ("ipv4/conf/@/rp_filter", "0"),
    ("ipv6/conf/@/addr_gen_mode", "1"),
    ("ipv6/conf/@/router_solicitations", "0"),
    ("ipv6/conf/@/accept_ra", "0"),
];

fn is_v6(path: &std::path::Path) -> bool {
    path.starts_with("/proc/sys/net/ipv6")
}

fn route_message(link: u32, address: Address, length: u8, source: Option<Address>) -> Vec<u8> {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: match address.family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        },
        destination_prefix_length: length,
        table: HOST_ROUTE_TABLE as u8,
        protocol: RouteProtocol::from(HOST_ROUTE_PROTOCOL),
        scope: RouteScope::Link,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    let ip = std::net::IpAddr::from;
    message.attributes.push(RouteAttribute::Destination(ip(address).into()));
    message.attributes.push(RouteAttribute::Oif(link));
    message.attributes.extend(source.map(|own| RouteAttribute::PrefSource(ip(own).into())));
    emitted(&message)
}

/// The rules of both families, in an order in which nothing is led astray while they are made:
/// what a rule jumps to is there before it.
fn host_rules() -> impl Iterator<Item = RuleMessage> {
    let port = |port| RulePortRange { start: port, end: port };
    let mut spared = vec![vec![RuleAttribute::IpProtocol(IpProtocol::Esp)]];
    for number in [IKE_PORT, NAT_TRAVERSAL_PORT] {
        for ports in [RuleAttribute::SourcePortRange, RuleAttribute::DestinationPortRange] {
            spared.push(vec![RuleAttribute::IpProtocol(IpProtocol::Udp), ports(port(number))]);
        }
    }
    [AddressFamily::Inet, AddressFamily::Inet6].into_iter().flat_map(move |family| {
        let rule = move |action, priority, attributes: Vec<RuleAttribute>| {
            let mut message = RuleMessage::default();
            (message.header.family, message.header.action) = (family, action);
            message.attributes.push(RuleAttribute::Priority(priority));
            let ours = RouteProtocol::from(HOST_ROUTE_PROTOCOL);
            message.attributes.push(RuleAttribute::Protocol(ours));
            message.attributes.extend(attributes);
            message
        };
        let own = || RuleAttribute::Iifname("lo".into());
        let behind = HOST_ROUTE_TABLE + 1;
        let mut rules = vec![rule(RuleAction::Nop, behind, Vec::new())];
        for spared in &spared {
            let mut attributes = vec![own(), RuleAttribute::Goto(behind)];
            attributes.extend(spared.iter().cloned());
            rules.push(rule(RuleAction::Goto, HOST_ROUTE_TABLE - 1, attributes));
        }
        let mut lookup = rule(RuleAction::ToTable, HOST_ROUTE_TABLE, vec![own()]);
        lookup.header.table = HOST_ROUTE_TABLE as u8;
        rules.push(lookup);
        rules
    })
}

fn emitted(message: &impl Emitable) -> Vec<u8> {
    let mut payload = vec![0; message.buffer_len()];
    message.emit(&mut payload);
    payload
}
